"""What is added up by stage: lengths and numbers of ops in windows, in one go over ops by start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis._lines import Lines
from tracekit.analysis._sweep_loops import Ops, Reached, Sums, Windows, sweep
from tracekit.model import STAGE, STAGE_SOURCES, STAGES
from tracekit.support.compiled import compiled, given

Array: TypeAlias = NDArray[Any]
_EVER = 1 << 62
_STAGES = pl.Series(STAGES, dtype=STAGE)
_OWNER = ["process", "device"]
_Arrays = TypeVar("_Arrays", bound=tuple[Array, ...])


class StageTally:
    """Lengths by stage, by source of the stage, and of all.

    Parameters
    ----------
    of_pieces
        Whether rows are pieces of what is counted, of which the first one stands for it.
    """

    def __init__(self, *, of_pieces: bool = False) -> None:
        self._of_pieces = of_pieces
        self.begin(None)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""
        owner = ("device",) if self._windows is None else _OWNER
        pieces = ("is_first",) if self._of_pieces else ()
        return ("start", "end", *owner, "stage", "stage_source", "launch_thread", *pieces)

    def begin(self, windows: pl.DataFrame | None) -> None:
        """Begin anew.

        Parameters
        ----------
        windows
            ``window, process, device, start, end``; by default each device is one, whose number is
            that of the device, from its first op to its last one.
        """
        self._windows = windows
        if windows is None:
            self._lines, count = Lines(["device"]), 0
            self._cut = _endless(count)
            self._numbers = None
        else:
            owners = windows.select(_OWNER).unique(maintain_order=True)
            self._lines, count = Lines(_OWNER, owners), windows.height
            self._cut, order = _laid_out(windows, self._lines)
            self._numbers = windows["window"].gather(order)
        self._reached = _nowhere(self._cut.first)
        self._sums = _nothing(count)

    def add(self, rows: pl.DataFrame) -> bool:
        """Count ops; tell whether those of each line still come by start."""
        lines = self._lines.of(rows)
        if self._windows is None and len(self._lines) > self._sums.total.size:
            self._make_room(2 * len(self._lines))
        counted = rows["is_first"] if self._of_pieces else None
        ops = Ops(
            lines,
            given(rows["start"]),
            given(rows["end"]),
            given(rows["stage"].to_physical()),
            given(rows["stage_source"].to_physical()),
            np.ones(rows.height, np.bool_) if counted is None else given(counted),
            given(rows["launch_thread"].is_not_null()),
        )
        run = compiled(sweep, rows.height)
        return bool(run(ops, self._cut, self._reached, self._sums))

    def _make_room(self, count: int) -> None:
        self._cut = _endless(count)
        self._reached = _copied(self._reached, _nowhere(self._cut.first))
        self._sums = _copied(self._sums, _nothing(count))

    def windows(self) -> pl.DataFrame:
        """Return the windows; of devices, when they began and ended."""
        if self._windows is not None:
            return self._windows
        count = len(self._lines)
        edges = self._lines.owners.with_columns(
            window="device",
            start=self._reached.earliest[:count],
            end=self._reached.ends[:count],
            iteration=pl.lit(None, pl.Int64),
        )
        return edges.select("window", "start", "end", "device", "iteration").sort("window")

    def _window_of(self, rows: Array) -> pl.Series:
        numbers = self._lines.owners["device"] if self._numbers is None else self._numbers
        return numbers.gather(rows).alias("window")

    def stages(self) -> pl.DataFrame:
        """Return ``window, stage, ops, busy_ns, exposed_ns`` of the stages in each window."""
        ops, busy, exposed = self._sums.ops, self._sums.busy, self._sums.exposed
        window, stage = np.nonzero((ops > 0) | (busy > 0))
        return pl.DataFrame(
            {
                "window": self._window_of(window),
                "stage": _STAGES.gather(stage),
                "ops": ops[window, stage],
                "busy_ns": busy[window, stage],
                "exposed_ns": exposed[window, stage],
            }
        )

    def groups(self) -> pl.DataFrame:
        """Return ``window, ops, total_ns, busy_ns`` of all that runs in each window."""
        ops, busy = self._sums.ops.sum(axis=1), self._sums.exposed.sum(axis=1)
        window = np.flatnonzero((ops > 0) | (busy > 0))
        return pl.DataFrame(
            {
                "window": self._window_of(window),
                "ops": ops[window],
                "total_ns": self._sums.total[window],
                "busy_ns": busy[window],
            }
        )

    def launched(self) -> int:
        """Return the number of ops whose launching call is known."""
        return int(self._sums.launched.sum())

    def sources(self) -> dict[str, int]:
        """Return for how long an op of each source runs, of the sources that occur."""
        lengths, seen = self._sums.sources.sum(axis=0), self._sums.seen.sum(axis=0)
        return {
            source: int(length)
            for source, length, ops in zip(STAGE_SOURCES, lengths, seen, strict=True)
            if length or ops
        }


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


def _nowhere(first: Array) -> Reached:
    lines = first.size - 1
    never = np.full(lines, -_EVER)
    return Reached(
        windows=first[:-1] - 1,
        earliest=-never,
        latest=never,
        ends=never.copy(),
        stages=np.full((lines, len(STAGES)), -_EVER),
        sources=np.full((lines, len(STAGE_SOURCES)), -_EVER),
    )


def _nothing(windows: int) -> Sums:
    stages, sources = (windows, len(STAGES)), (windows, len(STAGE_SOURCES))
    shapes = (windows, windows, stages, stages, stages, sources, sources)
    return Sums(*(np.zeros(shape, np.int64) for shape in shapes))


def _copied(old: _Arrays, new: _Arrays) -> _Arrays:
    """Return new arrays that begin as the old ones, which have fewer rows."""
    for before, after in zip(old, new, strict=True):
        after[: before.shape[0]] = before
    return new
