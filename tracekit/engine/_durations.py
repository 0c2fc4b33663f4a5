"""How long the ops of groups are: the shortest, the longest, the middle one; and their loops."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import compiled
from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]
MOST_BITS = 10
"""Of a length that are looked at together."""


class Found(NamedTuple):
    """What is found of each group that has lengths."""

    least: Array
    low: Array
    high: Array
    """The two middle ones, or twice the one."""
    most: Array


def deal(rows: Array, lengths: Array, groups: Array, free: Array, dealt: Array) -> None:
    """Put lengths together by group.

    Parameters
    ----------
    rows, lengths
        The row of sums that each is counted in, and the lengths.
    groups
        The group of each row of sums.
    free
        Where the next one of each group goes; updated.
    dealt
        Becomes the lengths.
    """
    for place in range(rows.size):
        group = groups[rows[place]]
        dealt[free[group]] = lengths[place]
        free[group] += 1


@inner
def ranked(
    lengths: Array, begin: int, end: int, rank: int, least: int, most: int, counts: Array
) -> int:
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
                counts[beyond >> shift] += 1
        place = 0
        while rank >= counts[place]:
            rank -= counts[place]
            place += 1
        least += place << shift
        width = shift
    return least


def find_middles(dealt: Array, first: Array, counts: Array, found: Found) -> None:
    """Find the least, the middle and the greatest length of each group.

    Parameters
    ----------
    dealt
        Lengths, those of one group together.
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
        for at in range(begin, end):
            least, most = min(least, dealt[at]), max(most, dealt[at])
        rank = (end - begin) // 2
        high = ranked(dealt, begin, end, rank, least, most, counts)
        low = high
        if rank > 0 and (end - begin) % 2 == 0:
            low, before = least, 0
            for at in range(begin, end):
                length = dealt[at]
                if length < high:
                    before += 1
                    low = max(low, length)
            if before < rank:
                low = high
        found.least[group], found.most[group] = least, most
        found.low[group], found.high[group] = low, high


_NARROW = 1 << 31

_IS_KNOWN = pl.col("ops") > 0


class Durations:
    """Lengths of ops, each with the row of sums that it is counted in."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Array]] = []

    def add(self, rows: Array, lengths: Array) -> None:
        """Keep some, in as few bits as hold them."""
        dtype = np.int32 if lengths.max(initial=0) < _NARROW else np.int64
        self._parts.append((rows, lengths.astype(dtype)))

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
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(ops)])
        dealt = self._dealt(groups, first)
        found = Found(*(np.zeros(ops.size, np.int64) for _ in Found._fields))
        counts = np.zeros(1 << MOST_BITS, np.int64)
        compiled(find_middles, dealt.size)(dealt, first, counts, found)
        table = pl.DataFrame({"ops": ops, **found._asdict()})
        return table.select(
            pl.when(_IS_KNOWN).then((pl.col("low") + pl.col("high")) / 2).alias("median_ns"),
            pl.when(_IS_KNOWN).then("least").alias("min_ns"),
            pl.when(_IS_KNOWN).then("most").alias("max_ns"),
        )

    def _dealt(self, groups: Array, first: Array) -> Array:
        """Return all lengths by group, given where those of each group begin."""
        types = [lengths.dtype for _, lengths in self._parts]
        dealt = np.empty(int(first[-1]), np.result_type(np.int32, *types))
        free = first[:-1].copy()
        for rows, lengths in self._parts:
            run = compiled(deal, dealt.size)
            run(rows, lengths.astype(dealt.dtype, copy=False), groups, free, dealt)
        return dealt
