"""Durations of ops by group: minimum, maximum and median, with their loops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import compiled, given
from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]
MOST_BITS = 10
"""Of a length that are looked at together."""


class Found(NamedTuple):
    """Durations found for each group."""

    least: Array
    low: Array
    high: Array
    """The two middle ones, or twice the one."""
    most: Array


def deal(
    rows: Array, lengths: Array, times: Array, groups: Array, free: Array, dealt: Array,
    dealt_times: Array,
) -> None:  # fmt: skip
    """Put lengths together by group.

    Parameters
    ----------
    rows, lengths, times
        The row of sums that each is counted in, the lengths, and how often each is there.
    groups
        The group of each row of sums.
    free
        Where the next one of each group goes; updated.
    dealt, dealt_times
        Become the lengths, and how often each is there.
    """
    for place in range(rows.size):
        group = groups[rows[place]]
        dealt[free[group]] = lengths[place]
        dealt_times[free[group]] = times[place]
        free[group] += 1


@inner
def ranked(
    lengths: Array, times: Array, begin: int, end: int, rank: int, least: int, most: int,
    counts: Array,
) -> int:  # fmt: skip
    """Return which of some lengths has so many before it in their order, all from least to most.

    They are counted by their leading bits, those in the right place by the bits that follow, and so
    on: whatever the lengths are, each is looked at once for every few bits. So many bits are taken
    at once that there are about as many counts as lengths.
    """
    bits, width = 1, 0
    while bits < MOST_BITS and 1 << bits < end - begin:
        bits += 1
    while (most - least) >> width:
        width += 1
    while width > 0:
        shift = max(0, width - bits)
        for place in range(1 << (width - shift)):
            counts[place] = 0
        for at in range(begin, end):
            beyond = lengths[at] - least
            if beyond >= 0 and beyond >> width == 0:
                counts[beyond >> shift] += times[at]
        place = 0
        while rank >= counts[place]:
            rank -= counts[place]
            place += 1
        least += place << shift
        width = shift
    return least


def find_middles(
    dealt: Array, times: Array, first: Array, counts: Array, found: Found
) -> None:  # fmt: skip
    """Find the least, the middle and the greatest length of each group.

    Parameters
    ----------
    dealt, times
        Lengths, those of one group together, and how often each is there.
    first
        Where those of each group begin, and last where all end.
    counts
        Room for a number for each value of so many bits.
    found
        Becomes what is found; of groups without lengths nothing is.
    """
    for group in range(first.size - 1):
        begin, end = first[group], first[group + 1]
        if begin == end:
            continue
        least = most = dealt[begin]
        number = 0
        for at in range(begin, end):
            least, most = min(least, dealt[at]), max(most, dealt[at])
            number += times[at]
        rank = number // 2
        high = ranked(dealt, times, begin, end, rank, least, most, counts)
        low = high
        if rank > 0 and number % 2 == 0:
            low, before = least, 0
            for at in range(begin, end):
                length = dealt[at]
                if length < high:
                    before += times[at]
                    low = max(low, length)
            if before < rank:
                low = high
        found.least[group], found.most[group] = least, most
        found.low[group], found.high[group] = low, high


_NARROW = 1 << 31

_IS_KNOWN = pl.col("ops") > 0
_NONE = pl.DataFrame(schema={"row": pl.Int32, "length": pl.Int32, "times": pl.Int32})


class Durations:
    """Lengths of ops, each with the row of sums that it is counted in.

    Parameters
    ----------
    parts
        Rows, lengths, and how often each length is there.
    """

    def __init__(self, parts: Sequence[tuple[Array, Array, Array]] = ()) -> None:
        self.parts = [*parts]

    def add(self, rows: Array, lengths: Array) -> None:
        """Keep some, in as few bits as hold them."""
        dtype = np.int32 if lengths.max(initial=0) < _NARROW else np.int64
        once = np.broadcast_to(np.ones(1, np.int32), rows.shape)
        self.parts.append((rows, lengths.astype(dtype), once))

    def packed(self) -> Durations:
        """Return the same with each length of a row once."""
        names = ("row", "length", "times")
        added = (pl.DataFrame(dict(zip(names, part, strict=True))) for part in self.parts)
        whole = pl.concat([_NONE, *added], how="vertical_relaxed")
        unlike = whole.group_by("row", "length").agg(pl.col("times").sum())
        return Durations([tuple(given(unlike[name]) for name in names)])  # type: ignore[list-item]

    @classmethod
    def merged(cls, parts: Sequence[Durations], rows: Sequence[int]) -> Durations:
        """Merge the durations of several parts, each with so many rows of sums."""
        first = [0, *itertools.accumulate(rows)]
        return cls(
            [
                (own + np.int32(before), lengths, times)
                for part, before in zip(parts, first, strict=False)
                for own, lengths, times in part.parts
            ]
        )

    def of(self, groups: Array, ops: Array) -> pl.DataFrame:
        """Return statistics of groups, in the order of their numbers.

        Parameters
        ----------
        groups
            The group of each row of sums, 32-bit numbers.
        ops
            How many lengths each group has.

        Returns
        -------
        ``median_ns, min_ns, max_ns``, null where a group has no ops.
        """
        first, dealt, times = self._dealt(groups, ops.size)
        found = Found(*(np.zeros(ops.size, np.int64) for _ in Found._fields))
        counts = np.zeros(1 << MOST_BITS, np.int64)
        compiled(find_middles, dealt.size)(dealt, times, first, counts, found)
        table = pl.DataFrame({"ops": ops, **found._asdict()})
        return table.select(
            pl.when(_IS_KNOWN).then((pl.col("low") + pl.col("high")) / 2).alias("median_ns"),
            pl.when(_IS_KNOWN).then("least").alias("min_ns"),
            pl.when(_IS_KNOWN).then("most").alias("max_ns"),
        )

    def _dealt(self, groups: Array, number: int) -> tuple[Array, Array, Array]:
        """Return where those of each group begin, all lengths by group, and how often each is."""
        of_each = np.zeros(number, np.int64)
        for rows, _, _ in self.parts:
            of_each += np.bincount(groups[rows], minlength=number)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(of_each)])
        types = [lengths.dtype for _, lengths, _ in self.parts]
        dealt = np.empty(int(first[-1]), np.result_type(np.int32, *types))
        dealt_times, free = np.empty(dealt.size, np.int32), first[:-1].copy()
        for rows, lengths, times in self.parts:
            run, wide = compiled(deal, dealt.size), lengths.astype(dealt.dtype, copy=False)
            run(rows, wide, np.ascontiguousarray(times), groups, free, dealt, dealt_times)
        return first, dealt, dealt_times
