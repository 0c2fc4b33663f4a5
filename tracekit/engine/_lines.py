"""Assign dense ids to devices, or to processes on a device ("lines"), and keep their windows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._sweep_loops import Course, Windows
from tracekit.support.compiled import compiled, given
from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]
_ROOM = 256
_LOW = 0xFFFF_FFFF
_FACTORS = 3
_LARGE = 1 << 27
_SHIFT = 24
"""Factors are above 2^27, so that keys which differ by one are at least eight slots apart."""


class Pairs(NamedTuple):
    """Hash table from pairs of integers to dense ids; pairs are stored in order of their ids."""

    first: Array
    last: Array
    rows: Array
    """Row in which each pair first occurred, in the frame that it came with."""
    slots: Array
    """Slots, a power of two of them, -1 if free; at least half of them are free."""
    factors: Array
    """Random odd numbers below 2^28, so that no trace can be made to collide in the hash table."""


class Numbers:
    """Assigns dense ids to pairs of integers in order of appearance.

    Parameters
    ----------
    known
        Pairs that get the ids 0, 1, ... in this order; if given, all other pairs get no id.
    """

    def __init__(self, known: tuple[Array, Array] | None = None) -> None:
        self._is_open = True
        self._count = 0
        self._pairs = _pairs(_ROOM)
        if known is not None:
            self.of(*known)
            self._is_open = False

    def __len__(self) -> int:
        return self._count

    @property
    def known(self) -> tuple[Array, Array]:
        """The pairs, in the order of their ids."""
        return self._pairs.first[: self._count], self._pairs.last[: self._count]

    def of(self, first: Array, last: Array) -> tuple[Array, Array]:
        """Return the id of each pair of two columns; new pairs get the next ids.

        Parameters
        ----------
        first, last
            The columns: 32-bit integers and 64-bit integers.

        Returns
        -------
        The id of each row's pair; and for each new pair, in the order of ids, the row in which it
        first occurs. If `known` pairs were given, no pair is new, and all other pairs have id -1.
        """
        found = np.empty(first.size, np.int32)
        before, begin = self._count, np.zeros(1, np.int64)
        run = compiled(number_pairs, first.size)
        while True:
            self._count = run(
                first, last, self._pairs, self._count, int(self._is_open), begin, found
            )
            if begin[0] == first.size:
                return found, self._pairs.rows[before : self._count]
            self._pairs = _with_room(self._pairs)


def _pairs(room: int) -> Pairs:
    factors = np.frombuffer(os.urandom(4 * _FACTORS), np.uint32) >> 5 | _LARGE | 1
    return Pairs(
        np.zeros(room, np.int32), np.zeros(room, np.int64), np.zeros(room, np.int64),
        np.full(2 * room, -1, np.int32), factors.astype(np.int64),
    )  # fmt: skip


def _with_room(pairs: Pairs) -> Pairs:
    """Return the hash table, copied into arrays four times as large if it is full."""
    known = pairs.first.size
    more = _pairs(4 * known)
    begin, found = np.zeros(1, np.int64), np.empty(known, np.int32)
    compiled(number_pairs, known)(pairs.first, pairs.last, more, 0, 1, begin, found)
    more.rows[:known] = pairs.rows
    return more


@inner
def place_of(first: int, last: int, pairs: Pairs) -> int:
    """Return the slot of a pair (`first`, `last`) in the hash table, or the free slot for it."""
    mask = len(pairs.slots) - 1
    factors = pairs.factors
    mixed = first * factors[0] + (last & _LOW) * factors[1] + ((last >> 32) & _LOW) * factors[2]
    place = (mixed >> _SHIFT) & mask
    while pairs.slots[place] >= 0 and (
        pairs.last[pairs.slots[place]] != last or pairs.first[pairs.slots[place]] != first
    ):
        place = (place + 1) & mask
    return int(place)


def number_pairs(
    first: Array, last: Array, pairs: Pairs, count: int, is_open: int, begin: Array, found: Array
) -> int:  # fmt: skip
    """Assign ids to the pairs of two columns, until the arrays are full.

    Parameters
    ----------
    first, last
        The columns.
    pairs
        Hash table of the pairs that have an id.
    count
        Number of these pairs.
    is_open
        Whether new pairs get an id; otherwise -1 is written for them.
    begin
        Array of one element: the row to start at; becomes the first row that is not done, or the
        number of rows.
    found
        Output: the id of each row's pair.

    Returns
    -------
    How many pairs have an id now.
    """
    for row in range(begin[0], len(first)):
        place = place_of(first[row], last[row], pairs)
        number = pairs.slots[place]
        if number < 0 and is_open:
            if count == len(pairs.first):
                begin[0] = row
                return count
            number = count
            pairs.first[count], pairs.last[count], pairs.rows[count] = first[row], last[row], row
            pairs.slots[place] = count
            count += 1
        found[row] = number
    begin[0] = len(first)
    return count


_EVER = 1 << 62
_OWNER = ["process", "device"]
_Arrays = TypeVar("_Arrays", bound=tuple[Array, ...])


class Lines:
    """Assigns dense ids ("line ids") to devices, or to processes on devices, as they appear.

    Parameters
    ----------
    columns
        ``device``, or ``process`` and ``device``: the columns of ops that get one id together.
    known
        The devices (or processes on devices) to number, in order, if all others are to be ignored;
        else None.
    """

    def __init__(self, columns: Sequence[str], known: pl.DataFrame | None = None) -> None:
        self._columns = (columns[0], columns[-1])
        self._numbers = Numbers(None if known is None else self._cut(known))

    def _cut(self, rows: pl.DataFrame) -> tuple[Array, Array]:
        first, last = self._columns
        return given(rows[first], np.int32), given(rows[last], np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def owners(self) -> pl.DataFrame:
        """The devices (or processes on devices), in the order of their ids."""
        columns = dict(zip(self._columns, self._numbers.known, strict=True))
        return pl.DataFrame(columns, dict.fromkeys(columns, pl.Int32))

    def of(self, rows: pl.DataFrame) -> Array:
        """Return the id of each row's device (or process on a device); -1 if that is ignored."""
        return self._numbers.of(*self._cut(rows))[0]


def owners_of(windows: pl.DataFrame) -> list[str]:
    """Return the columns that identify the owner of a window: device, or process and device."""
    return ["device"] if windows["process"].null_count() else _OWNER


class LinesInWindows:
    """Windows (intervals) of each line (see `Course`), and the window reached so far.

    A pass over ops goes through the windows in order of time.
    """

    def __init__(self, windows: pl.DataFrame | None) -> None:
        self._cut = windows
        if windows is None:
            self._lines = Lines(["device"])
            self.cut = _endless(0)
        else:
            owners = owners_of(windows)
            self._lines = Lines(owners, windows.select(owners).unique(maintain_order=True))
            self.cut, order = _laid_out(windows, self._lines)
            self._numbers = windows["window"].gather(order)
        self.course = _beginning(self.cut.first)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that are read: times, and device (or process and device)."""
        return ["start", "end", *(["device"] if self._cut is None else owners_of(self._cut))]

    @property
    def count(self) -> int:
        """Number of lines (devices, or processes on devices) for which the arrays have room."""
        return int(self.course.ends.size)

    def of(self, rows: pl.DataFrame) -> Array:
        """Return the id of each row's device (or process on it), -1 if that has no windows."""
        lines = self._lines.of(rows)
        if self._cut is None and len(self._lines) > self.count:
            self.cut = _endless(2 * len(self._lines))
            self.course = extended(self.course, _beginning(self.cut.first))
        return lines

    def window_of(self, rows: Array) -> pl.Series:
        """Return the ids (column ``window``) of windows (time intervals), given by position.

        `rows` has positions among the windows sorted by line (see `Course`) and start.
        """
        numbers = self._lines.owners["device"] if self._cut is None else self._numbers
        return numbers.gather(rows).alias("window")

    def windows(self) -> pl.DataFrame:
        """Return the given windows, or else one per device, from its first op to its last."""
        if self._cut is not None:
            return self._cut
        count = len(self._lines)
        edges = self._lines.owners.with_columns(
            window="device",
            start=self.course.earliest[:count],
            end=self.course.ends[:count],
            iteration=pl.lit(None, pl.Int64),
        )
        return edges.select("window", "start", "end", "device", "iteration").sort("window")


def _endless(count: int) -> Windows:
    """Return one window (interval) without bounds for each of `count` lines (device, process)."""
    return Windows(np.arange(count + 1), np.full(count, -_EVER), np.full(count, _EVER))


def _laid_out(windows: pl.DataFrame, lines: Lines) -> tuple[Windows, Array]:
    """Return windows ordered by line (device or process) and time, and each one's original row."""
    line, begins = lines.of(windows), windows["start"].to_numpy()
    ends = windows["end"].to_numpy()
    order = np.lexsort((ends, begins, line))
    first = np.searchsorted(line[order], np.arange(len(lines) + 1))
    return Windows(first, begins[order], ends[order]), order


def _beginning(first: Array) -> Course:
    never = np.full(first.size - 1, -_EVER)
    return Course(windows=first[:-1] - 1, earliest=-never, latest=never, ends=never.copy())


def extended(old: _Arrays, new: _Arrays) -> _Arrays:
    """Copy the old arrays into the beginning of larger new arrays."""
    for before, after in zip(old, new, strict=True):
        after[: before.shape[0]] = before
    return new
