"""Durations, op counts and busy time by group, in one pass over ops ordered by start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._lines import LinesInWindows, Numbers, extended
from tracekit.engine._stream import Named
from tracekit.engine._sweep_loops import (
    COUNTED,
    SEEN,
    USED,
    Counted,
    GroupOps,
    GroupsReached,
    GroupSums,
    sweep_groups,
)
from tracekit.support.batches import at_least_one
from tracekit.support.compiled import compiled, given
from tracekit.support.inner import inner

if TYPE_CHECKING:
    from tracekit.model import Frames

_Array: TypeAlias = NDArray[Any]
_MOST_BITS = 10
"""Bits of a length that are counted together."""
_EVER = 1 << 62
_ROOM = 1024
_BITS = 63
"""Bits of a number, without its sign."""


class _Found(NamedTuple):
    """Number, sum, and least, median and greatest of the durations of each group, ns.

    The median is between `low` and `high`, the two durations in the middle (equal for an odd
    number).
    """

    number: _Array
    total: _Array
    least: _Array
    low: _Array
    high: _Array
    """The higher of the two middle values; for an odd number of values, equal to the lower one."""
    most: _Array


def _deal(
    rows: _Array, lengths: _Array, times: _Array, groups: _Array, free: _Array, dealt: _Array,
    dealt_times: _Array,
) -> None:  # fmt: skip
    """Sort durations by group (counting sort); equal durations are stored once, with a count.

    Parameters
    ----------
    rows, lengths, times
        Parallel arrays, one entry per distinct duration of a row: the row in the table of sums, the
        duration in ns, and how often it occurs.
    groups
        The group of each row in the table of sums.
    free
        For each group the position in the output at which its next entry goes; updated.
    dealt, dealt_times
        Output: the durations sorted by group, and how often each occurs.
    """
    for place in range(len(rows)):
        group = groups[rows[place]]
        dealt[free[group]] = lengths[place]
        dealt_times[free[group]] = times[place]
        free[group] += 1


@inner
def _ranked(
    lengths: _Array, times: _Array, begin: int, end: int, rank: int, least: int, most: int,
    counts: _Array,
) -> int:  # fmt: skip
    """Return the duration of rank `rank` (from 0) within `least` to `most` (radix select).

    The durations are the entries `begin` to `end` of `lengths`, each occurring `times` times. They
    are counted in buckets by their leading bits; then the bucket that contains the rank is split by
    its next bits, and so on. `counts` is scratch space for the buckets.
    """
    bits, width = 1, 0
    while bits < _MOST_BITS and 1 << bits < end - begin:
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


def _find_middles(
    dealt: _Array, times: _Array, first: _Array, counts: _Array, found: _Found
) -> None:  # fmt: skip
    """Find number and sum, and the least, the median and the greatest duration of each group.

    Parameters
    ----------
    dealt, times
        Durations sorted by group, and how often each occurs.
    first
        Position in `dealt` of the first duration of each group; one more element is the total
        number.
    counts
        Scratch space: one number for each bucket.
    found
        Output; entries of groups without durations are not written.
    """
    for group in range(len(first) - 1):
        begin, end = first[group], first[group + 1]
        if begin == end:
            continue
        least = most = dealt[begin]
        number = total = 0
        for at in range(begin, end):
            least, most = min(least, dealt[at]), max(most, dealt[at])
            number += times[at]
            total += dealt[at] * times[at]
        rank = number // 2
        high = _ranked(dealt, times, begin, end, rank, least, most, counts)
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
        found.number[group], found.total[group] = number, total
        found.least[group], found.most[group] = least, most
        found.low[group], found.high[group] = low, high


_NARROW = 1 << 31
_NONE = pl.DataFrame(schema={"row": pl.Int32, "length": pl.Int32, "times": pl.Int32})


class Durations:
    """Durations of ops, for medians, each with its row in a table of sums by group and time window.

    Parameters
    ----------
    parts
        Tuples of an offset to add to the row numbers, and three parallel arrays of integers: row in
        the table of sums, duration (ns), and how often this duration occurs in this row.
    """

    def __init__(self, parts: Sequence[tuple[int, _Array, _Array, _Array]] = ()) -> None:
        self.parts = [*parts]

    def add(self, rows: _Array, lengths: _Array) -> None:
        """Add ops: row in the table of sums and duration (ns) of each, in 32 bits if possible."""
        dtype = np.int32 if lengths.max(initial=0) < _NARROW else np.int64
        once = np.broadcast_to(np.ones(1, np.int32), rows.shape)
        self.parts.append((0, rows, lengths.astype(dtype), once))

    def frame(self) -> pl.DataFrame:
        """Return ``row, length, times``: row in the table of sums, duration (ns), occurrences.

        The columns have the narrowest types that hold their values, to send them between processes.
        """
        added = (
            pl.DataFrame(dict(zip(_NONE.columns, part, strict=True))) for _, *part in self.parts
        )
        counted = pl.concat([_NONE, *added], how="vertical_relaxed")
        found = counted.group_by("row", "length").agg(pl.col("times").sum()).sort("row", "length")
        return found.select(column.shrink_dtype() for column in found)

    @classmethod
    def merged(cls, parts: Sequence[pl.DataFrame], rows: Sequence[int]) -> Durations:
        """Merge results of the method `frame` for parts of a run, whose tables of sums are joined.

        `rows` is the number of rows in the table of sums of each part.
        """
        first = [0, *accumulate(rows)]
        return cls(
            [
                (before, given(part["row"]), given(part["length"]), given(part["times"]))
                for part, before in zip(parts, first, strict=False)
            ]
        )

    def of(self, groups: _Array) -> pl.DataFrame:
        """Return statistics of durations per group, ordered by group id.

        Parameters
        ----------
        groups
            For each row of the table of sums the number of its group, 32 bits.

        Returns
        -------
        One row per group: ``number`` (of ops), ``total`` (ns); ``median_ns, min_ns, max_ns``, null
        if the group has no ops.
        """
        number = int(groups.max(initial=-1)) + 1
        first, dealt, times = self._dealt(groups, number)
        found = _Found(*(np.zeros(number, np.int64) for _ in _Found._fields))
        counts = np.zeros(1 << _MOST_BITS, np.int64)
        compiled(_find_middles, dealt.size)(dealt, times, first, counts, found)
        known = pl.when(pl.col("number") > 0)
        return pl.DataFrame(found._asdict()).select(
            "number", "total",
            median_ns=known.then((pl.col("low") + pl.col("high")) / 2),
            min_ns=known.then("least"), max_ns=known.then("most"),
        )  # fmt: skip

    def _dealt(self, groups: _Array, number: int) -> tuple[_Array, _Array, _Array]:
        """Return the durations sorted by group, with each group's first position and their counts.

        The order is: first position of each group; durations (ns); how often each duration occurs.
        """
        of_each = np.zeros(number, np.int64)
        for before, rows, _, _ in self.parts:
            of_each += np.bincount(groups[before:][rows], minlength=number)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(of_each)])
        types = [lengths.dtype for _, _, lengths, _ in self.parts]
        dealt = np.empty(int(first[-1]), np.result_type(np.int32, *types))
        dealt_times, free = np.empty(dealt.size, np.int32), first[:-1].copy()
        run = compiled(_deal, dealt.size)
        for before, rows, lengths, times in self.parts:
            # The loop is compiled for these types alone.
            wide = (rows.astype(np.int32), lengths.astype(dealt.dtype), times.astype(np.int32))
            run(*wide, groups[before:], free, dealt, dealt_times)
        return first, dealt, dealt_times


class GroupTally:
    """Adds up ops (GPU work) by group and window: number, durations and busy time.

    Busy time is the length of the union of the ops' intervals. A window is an interval of a
    device's time, such as a step.

    Parameters
    ----------
    keys
        Columns of ops that define a group within a window.
    named
        For each key whose values are stored in another table: how to look them up.
    keeps_durations
        Whether each op's duration is kept, for medians.
    of_pieces
        Whether the rows are not GPU ops, but pieces of NVTX ranges (host time). Each range then
        adds 1 to the number of ops, at its first piece (`is_first`).
    """

    def __init__(
        self, keys: Sequence[str], named: Mapping[str, Named], *,
        keeps_durations: bool = False, of_pieces: bool = False,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._named = named
        self.keeps_durations = keeps_durations
        self._of_pieces = of_pieces
        self._codes = {name: _codes(key.values) for name, key in named.items()}
        self.begin(None)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""
        keys = (self._named[key].columns if key in self._named else (key,) for key in self._keys)
        pieces = ("is_first",) if self._of_pieces else ()
        return [*self._lines.columns, *chain.from_iterable(keys), *pieces]

    def begin(self, windows: pl.DataFrame | None) -> None:
        """Zero all sums; set the time windows to sum over (None: one window per device)."""
        self._lines = LinesInWindows(windows)
        self._numbers = [Numbers() for _ in self._keys]
        self._count = 0
        self._examples: list[pl.DataFrame] = []
        self._reached = _nowhere(_ROOM)
        self._sums = _nothing(_ROOM)
        self._used = 0
        self._durations = Durations()

    def add(self, rows: pl.DataFrame) -> bool:
        """Add up ops; return False if the ops of a device or process are not ordered by start."""
        lines = self._lines.of(rows)
        ops = GroupOps(
            lines,
            given(rows["start"]),
            given(rows["end"]),
            self._groups_of(rows, lines),
            given(rows["is_first"]) if self._of_pieces else np.ones(rows.height, np.bool_),
        )
        counted = Counted(np.empty(rows.height, np.int32), np.empty(rows.height, np.int64))
        number = self._swept(ops, counted)
        if number is None:
            return False
        if self.keeps_durations:
            self._durations.add(counted.rows[:number], counted.lengths[:number])
        return True

    def _groups_of(self, rows: pl.DataFrame, lines: _Array) -> _Array:
        """Return the group id of each row; `lines` has the id of its line (see `Course`)."""
        groups, first = lines, np.zeros(0, np.int64)
        for codes, numbers in zip(self._codes_of(rows), self._numbers, strict=False):
            groups, first = numbers.of(groups, codes)
        self._count += first.size
        self._examples.append(self._values(rows[first]))
        return groups

    def _codes_of(self, rows: pl.DataFrame) -> Iterator[_Array]:
        """Yield integer codes of the keys' values; one code packs as many keys as bits allow."""
        packed, used = np.zeros(rows.height, np.int64), 0
        for key in self._keys:
            codes, bits = self._code_of(rows, key)
            if used and used + bits > _BITS:
                yield packed
                used = 0
            packed, used = (packed << bits | codes if used else codes), used + bits
        yield packed

    def _code_of(self, rows: pl.DataFrame, key: str) -> tuple[_Array, int]:
        """Return an integer code for each value of a key, and the number of bits of the codes."""
        if key in self._named:
            codes = self._codes[key].gather(rows.select(self._named[key].number).to_series())
        else:
            codes = rows[key].to_physical()
        if codes.dtype.is_signed_integer():
            return given(codes, np.int64, null=-_EVER), _BITS
        bits = 8 * given(codes.head(0)).itemsize
        return given(codes.cast(pl.Int64), null=-1) + 1, bits + 1

    def _values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the values of the columns (keys) that define groups, for these ops."""
        return pl.DataFrame(
            [
                self._named[key].values.gather(rows.select(self._named[key].number).to_series())
                .alias(key) if key in self._named else rows[key]
                for key in self._keys
            ]
        )  # fmt: skip

    def _swept(self, ops: GroupOps, counted: Counted) -> int | None:
        """Add up ops in a compiled loop; return how many, None if starts are not ordered."""
        if self._count > self._reached.ends.size:
            self._reached = extended(self._reached, _nowhere(2 * self._count))
        run = compiled(sweep_groups, ops.starts.size)
        done = np.zeros(3, np.int64)
        done[USED] = self._used
        while run(
            ops, self._lines.cut, self._lines.course, self._reached, self._sums, done, counted
        ):
            if done[SEEN] == ops.starts.size:
                self._used = int(done[USED])
                return int(done[COUNTED])
            windows = self._lines.cut.begins.size
            self._sums = extended(self._sums, _nothing(4 * self._sums.ops.size + windows))
        return None

    def windows(self) -> pl.DataFrame:
        """Return the given windows, or else one per device, from its first op to its last."""
        return self._lines.windows()

    def groups(self) -> pl.DataFrame:
        """Return ``window``, the columns `keys` that define groups, and ``ops, total_ns, busy_ns``.

        The last three are number of ops, summed durations and busy time (length of the union), ns.
        If several rows have the same group and window (time interval), add up their sums.
        """
        sums = GroupSums(*(values[: self._used] for values in self._sums))
        examples = pl.concat(self._examples)
        return pl.DataFrame(
            [
                self._lines.window_of(sums.windows),
                *(examples[key].gather(sums.groups) for key in self._keys),
                pl.Series("ops", sums.ops),
                pl.Series("total_ns", sums.total),
                pl.Series("busy_ns", sums.busy),
            ]
        )

    def sums(self) -> GroupTotals:
        """Return op count, total duration and busy time by group and window; and kept durations."""
        return GroupTotals(self.groups(), self._durations)


@dataclass(frozen=True)
class GroupTotals:
    """Op counts, durations and busy time by group and window (interval of time, such as a step)."""

    groups: pl.DataFrame
    """Sums, as `GroupTally.groups` returns them."""
    lengths: Durations
    """Durations of the ops of each row of `groups`; empty if they were not kept."""

    def frames(self) -> Frames:
        """Return the sums as frames by name, small enough to send between processes."""
        return {"groups": self.groups, "lengths": self.lengths.frame()}

    @classmethod
    def merged(cls, parts: Sequence[Frames]) -> GroupTotals:
        """Merge the results of the method `frames` for several parts of a run."""
        groups = [part["groups"] for part in parts]
        rows = [each.height for each in groups]
        return cls(pl.concat(groups), Durations.merged([part["lengths"] for part in parts], rows))

    def durations(self, numbers: pl.Series) -> pl.DataFrame:
        """Merge groups; return ``median_ns, min_ns, max_ns`` of op durations per merged group.

        Parameters
        ----------
        numbers
            For each row of `groups` the number of the merged group that it belongs to; the numbers
            run from 0 without gaps.
        """
        return self.lengths.of(given(numbers, np.int32)).drop("number", "total")


def median_lengths(ops: pl.LazyFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the lengths (end - start) of ops by the columns `keys`: median, number and sum, ns.

    The columns are ``own`` (median), ``number`` and ``total``. The keys are names of columns
    of whole numbers (not below 0) or categories.
    """
    numbers, durations, firsts = [Numbers() for _ in keys], Durations(), []
    for batch in at_least_one(ops.select(*keys, length=pl.col("end") - pl.col("start"))):
        groups, new = np.zeros(batch.height, np.int32), np.zeros(0, np.int64)
        for key, of_key in zip(keys, numbers, strict=True):
            groups, new = of_key.of(groups, given(batch[key].to_physical().cast(pl.Int64), null=-1))
        firsts.append(batch.select(keys)[new])
        durations.add(groups, given(batch["length"]))
    known = pl.concat(firsts)
    found = durations.of(np.arange(known.height, dtype=np.int32))
    return known.hstack(found.select(pl.col("median_ns").alias("own"), "number", "total"))


def _codes(values: pl.Series) -> pl.Series:
    """Return an integer code for each value: equal for equal values."""
    return values if values.dtype.is_integer() else values.rank("dense")


def _nowhere(groups: int) -> GroupsReached:
    return GroupsReached(np.full(groups, -_EVER), np.full(groups, -1, np.int32))


def _nothing(rows: int) -> GroupSums:
    places, sums = (
        (np.zeros(rows, np.int32) for _ in range(2)),
        (np.zeros(rows, np.int64) for _ in range(3)),
    )
    return GroupSums(*places, *sums)
