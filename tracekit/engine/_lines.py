"""Lines: what has windows of its own, a device or a process on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._numbering import Numbers
from tracekit.engine._sweep_loops import Course, Windows
from tracekit.support.compiled import given

Array: TypeAlias = NDArray[Any]
_EVER = 1 << 62
_OWNER = ["process", "device"]
_Arrays = TypeVar("_Arrays", bound=tuple[Array, ...])


class Lines:
    """Numbers owners as they come.

    Parameters
    ----------
    columns
        The columns of ops that say who the owner is, one or two.
    known
        The owners, in their order, where no others matter.
    """

    def __init__(self, columns: Sequence[str], known: pl.DataFrame | None = None) -> None:
        self._columns = (columns[0], columns[-1])
        self._numbers = Numbers(None if known is None else self._given(known))

    def _given(self, rows: pl.DataFrame) -> tuple[Array, Array]:
        first, last = self._columns
        return given(rows[first], np.int32), given(rows[last], np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def owners(self) -> pl.DataFrame:
        """The owners, in the order of their numbers."""
        columns = dict(zip(self._columns, self._numbers.known, strict=True))
        return pl.DataFrame(columns).cast(pl.Int32)

    def of(self, rows: pl.DataFrame) -> Array:
        """Return the line of each row; -1 where its owner is not known and does not matter."""
        return self._numbers.of(*self._given(rows))[0]


class LinesInWindows:
    """The windows of lines, and how far each line has come.

    Parameters
    ----------
    windows
        ``window, process, device, start, end``; by default each device is one, whose number is
        that of the device, from its first op to its last one.
    """

    def __init__(self, windows: pl.DataFrame | None) -> None:
        self._given = windows
        if windows is None:
            self._lines = Lines(["device"])
            self.cut = _endless(0)
        else:
            self._lines = Lines(_OWNER, windows.select(_OWNER).unique(maintain_order=True))
            self.cut, order = _laid_out(windows, self._lines)
            self._numbers = windows["window"].gather(order)
        self.course = _beginning(self.cut.first)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""
        return ["start", "end", *(["device"] if self._given is None else _OWNER)]

    @property
    def count(self) -> int:
        """For how many lines there is room."""
        return int(self.course.ends.size)

    def of(self, rows: pl.DataFrame) -> Array:
        """Return the line of each row, -1 where it is on none that has windows."""
        lines = self._lines.of(rows)
        if self._given is None and len(self._lines) > self.count:
            self.cut = _endless(2 * len(self._lines))
            self.course = extended(self.course, _beginning(self.cut.first))
        return lines

    def window_of(self, rows: Array) -> pl.Series:
        """Return the numbers of windows, by the rows of `cut`."""
        numbers = self._lines.owners["device"] if self._given is None else self._numbers
        return numbers.gather(rows).alias("window")

    def windows(self) -> pl.DataFrame:
        """Return the windows; of devices, when they began and ended."""
        if self._given is not None:
            return self._given
        count = len(self._lines)
        edges = self._lines.owners.with_columns(
            window="device",
            start=self.course.earliest[:count],
            end=self.course.ends[:count],
            iteration=pl.lit(None, pl.Int64),
        )
        return edges.select("window", "start", "end", "device", "iteration").sort("window")


def _endless(count: int) -> Windows:
    """Return a window for each line that holds all of its time."""
    return Windows(np.arange(count + 1), np.full(count, -_EVER), np.full(count, _EVER))


def _laid_out(windows: pl.DataFrame, lines: Lines) -> tuple[Windows, Array]:
    """Return windows in the order of their lines, and of time, and which row each one is."""
    line, begins = lines.of(windows), windows["start"].to_numpy()
    ends = windows["end"].to_numpy()
    order = np.lexsort((ends, begins, line))
    first = np.searchsorted(line[order], np.arange(len(lines) + 1))
    return Windows(first, begins[order], ends[order]), order


def _beginning(first: Array) -> Course:
    never = np.full(first.size - 1, -_EVER)
    return Course(windows=first[:-1] - 1, earliest=-never, latest=never, ends=never.copy())


def extended(old: _Arrays, new: _Arrays) -> _Arrays:
    """Return new arrays that begin as the old ones, which have fewer rows."""
    for before, after in zip(old, new, strict=True):
        after[: before.shape[0]] = before
    return new
