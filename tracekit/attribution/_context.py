"""Ranges, step and backward window around each call, found by merging ranges and calls by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import polars as pl

from tracekit.attribution import _arrays
from tracekit.attribution._arrays import (
    Array,
    CallRows,
    Context,
    Found,
    Opened,
    OpenRanges,
    OpenStages,
    RangeRows,
    Serving,
    Turn,
    Windows,
    number_type,
)
from tracekit.attribution._loops import FULL_PATHS, FULL_STACK, MORE_ROWS, follow
from tracekit.attribution._nesting import PUSHED, Nesting, Stacks
from tracekit.attribution._passes import outermost, passes_of
from tracekit.attribution._range_labels import Labels
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution._trainers import Spans, Teams
from tracekit.model import STAGES, PathTree, Stream
from tracekit.support.ahead import ahead
from tracekit.support.arrays import Bits
from tracekit.support.compiled import compiled, given

_NEVER = np.iinfo(np.int64).min
_LAST = np.iinfo(np.int64).max


class Follower:
    """Merges ranges and calls in order of time, and finds the ranges and the step around each.

    Parameters
    ----------
    ranges, nesting
        The ranges, and the parent, depth and flags of each.
    calls, launching
        The API calls, and per chunk a mask of the calls that launched an op.
    steps, windows
        Training steps, and backward windows (intervals in which a backward pass may run), of each
        team.
    teams
        The teams: each is a training thread with its helper threads.
    may_serve
        By thread: whether it may be an autograd thread.
    labels
        Labels of range names in a path.
    iterations
        By step: the row of its iteration in the table `iterations`, -1 for none (see `Teams`).
    """

    def __init__(
        self,
        ranges: Stream,
        nesting: Nesting,
        calls: Stream,
        launching: Bits,
        steps: Spans,
        windows: Spans,
        teams: Teams,
        may_serve: Array,
        labels: Labels,
        iterations: Array,
    ) -> None:
        self._ranges, self._nesting = ranges, nesting
        self._calls, self._launching = calls, launching
        self._loop = compiled(follow, ranges.height + calls.height)
        self._windows = _windows(windows, teams.count)
        self._teams = teams
        self._times = _arrays.Teams(
            steps.arrays(), iterations, self._windows, teams.trainer_of_each()
        )
        self._labels = labels
        self._open = _Open(may_serve.size, teams.count)
        self._found = (number_type(ranges.height), np.int32, np.int16)
        """Integer types of the arrays of `Found`."""
        self._paths = PathTree()
        during, inside, served = np.zeros((3, may_serve.size), np.int64)
        latest = np.full(may_serve.size, -1)
        self.serving = Serving(during, inside, served, latest, may_serve)
        """Evidence for autograd threads, by thread."""

    def recorded(self) -> pl.Series:
        """Return a mask of the backward windows that were recorded in full.

        A backward pass may run in a window. Where the recording was cut is not known exactly, so a
        window at its edge counts only if a possible autograd thread launches work in the window.
        """
        windows, stretches = self._windows, self._windows.stretches
        team = np.repeat(np.arange(windows.begun.size), np.diff(stretches.first))
        is_whole = (stretches.start >= windows.begun[team]) & (stretches.end <= windows.ended[team])
        return pl.Series(windows.used | (windows.fed & is_whole))

    def chunks(self) -> Iterator[tuple[int, Array | Context]]:
        """Yield chunk by chunk, in order of time, paths of ranges and contexts of calls.

        Yields
        ------
        The number of the chunk; and for a chunk of ranges the path id of each, for a chunk of calls
        their contexts (innermost range, step, evidence for the stage).
        """
        ranges = _Chunks(self._range_chunk, len(self._ranges), _NO_RANGES)
        calls = _Chunks(self._call_chunk, len(self._calls), _NO_CALLS)
        while not (ranges.over and calls.over):
            self._pass(ranges, calls)
            for chunks in (ranges, calls):
                if chunks.passed:
                    yield chunks.number, chunks.found
                    chunks.advance()

    def paths(self) -> pl.DataFrame:
        """Return the canonical table ``paths`` for the ranges processed so far."""
        return self._paths.table(self._labels.texts)

    def _pass(self, ranges: _Chunks[RangeRows, Array], calls: _Chunks[CallRows, Context]) -> None:
        """Process a chunk of ranges and one of calls in order of time, until one is used up.

        Stacks of open ranges that are full meanwhile are enlarged.
        """
        turn = Turn(
            np.array([ranges.row, calls.row]), ranges.rows, calls.rows,
            ranges.is_last, calls.is_last, ranges.found, _found(calls.found),
        )  # fmt: skip
        stopped = -1
        while stopped != MORE_ROWS:
            stopped = self._loop(
                turn,
                self._nesting.names.meanings,
                self._open.arrays(),
                self._times,
                self.serving,
                self._labels.arrays(),
                self._paths.arrays(),
            )
            if stopped == FULL_STACK:
                self._open.make_room()
            elif stopped == FULL_PATHS:
                self._paths.grow()
        ranges.row, calls.row = turn.position.tolist()

    def _range_chunk(self, number: int) -> tuple[RangeRows, Array]:
        rows = self._ranges.read(number, "thread", "process", "start", "end", "style")
        thread, process, start, end = (given(rows[name]) for name in rows.columns[:-1])
        style = given(rows["style"].to_physical())
        ids, flags = self._nesting.places.read(number, "name_id", "flags")
        found = RangeRows(
            self._ranges.first[number], thread, process, start, end, style == PUSHED, ids, flags,
            given(self._teams.of(rows)),
        )  # fmt: skip
        return found, np.empty(rows.height, np.int32)

    def _call_chunk(self, number: int) -> tuple[CallRows, Context]:
        rows = self._calls.read(number, "thread", "process", "start", "end")
        thread, process, start, end = (given(column) for column in rows)
        launches = given(pl.Series(self._launching[number]))
        team = given(self._teams.of(rows))
        empty = (np.empty(rows.height, dtype) for dtype in self._found)
        context = Context(thread, start, end, *empty)
        return CallRows(thread, process, start, launches, team), context


class _Open:
    """Stacks of the ranges open at the current time, by thread and process, in growing arrays."""

    def __init__(self, threads: int, teams: int) -> None:
        self._ranges, self._stages = Stacks(threads, OpenRanges), Stacks(threads, OpenStages)
        self._evaluates, self._differentiates = np.full((2, threads), _NEVER)
        self._shared = np.full((teams, len(STAGES), 2), _NEVER)
        self._share = np.full(teams, _NEVER)

    def arrays(self) -> Opened:
        """Return the stacks as arrays for the compiled loops."""
        return Opened(
            self._ranges.arrays(), self._stages.arrays(),
            self._evaluates, self._differentiates, self._shared, self._share,
        )  # fmt: skip

    def make_room(self) -> None:
        """Grow the stacks that are full."""
        self._ranges.make_room()
        self._stages.make_room()


def _windows(windows: Spans, teams: int) -> Windows:
    """Return backward windows, with counters of launches for `teams` training threads, all at 0.

    A backward window is an interval in which a backward pass may run.
    """
    fed, used = np.zeros((2, windows.rows.height), np.bool_)
    begun, ended = np.full(teams, _LAST), np.full(teams, -_LAST)
    return Windows(windows.arrays(), windows.last(), fed, used, begun, ended)


def _found(context: Context) -> Found:
    """Return the arrays of `context` that `follow` fills: range, step, and evidence for a stage."""
    return Found(context.range, context.step, context.evidence)


def _none(*dtypes: type[np.generic]) -> Iterator[Array]:
    """Return an empty array for each of the types `dtypes`."""
    return (given(pl.Series(np.zeros(0, dtype))) for dtype in dtypes)


_NO_RANGES = (
    RangeRows(0, *_none(
        np.int32, np.int32, np.int64, np.int64, np.bool_, np.uint32, np.uint8, np.int32
    )),
    np.empty(0, np.int32),
)  # fmt: skip
_NO_CALLS = (
    CallRows(*_none(np.int32, np.int32, np.int64, np.bool_, np.int32)),
    Context(
        *_none(np.int32, np.int64, np.int64),
        *(np.empty(0, dtype) for dtype in (np.int32, np.int32, np.int16)),
    ),
)

_Rows = TypeVar("_Rows", RangeRows, CallRows)
_Told = TypeVar("_Told", Array, Context)


class _Chunks(Generic[_Rows, _Told]):
    """Iterator over the chunks of a table that keeps the current chunk; empty after the last.

    Parameters
    ----------
    load
        Function of a chunk's number that returns the loop's input and its output arrays.
    chunks
        Number of chunks.
    nothing
        Input and output arrays without rows, used after the last chunk.
    """

    def __init__(
        self,
        load: Callable[[int], tuple[_Rows, _Told]],
        chunks: int,
        nothing: tuple[_Rows, _Told],
    ) -> None:
        self._loaded: Iterator[tuple[_Rows, _Told]] = ahead(load, range(chunks), waiting=1)
        self._nothing: tuple[_Rows, _Told] = nothing
        self._chunks = chunks
        self.number = -1
        self.rows: _Rows
        self.found: _Told
        self.advance()

    @property
    def is_last(self) -> bool:
        return self.number >= self._chunks - 1

    @property
    def over(self) -> bool:
        return self.number >= self._chunks

    @property
    def passed(self) -> bool:
        return not self.over and self.row == self.rows.start.size

    def advance(self) -> None:
        self.number += 1
        self.row = 0
        self.rows, self.found = next(self._loaded, self._nothing)


def backward_windows(
    ranges: pl.DataFrame, training: pl.DataFrame, iterations: pl.DataFrame
) -> pl.DataFrame:
    """Return the intervals in which each process may be running its backward pass.

    These are the backward ranges of its training thread. If it has none, they are the intervals
    inside an iteration that last from the end of a forward range to the last weight update before
    the next forward range (or, without an update, to that forward range).

    Returns
    -------
    ``process, start, end, unit, ranged`` (times in ns) by start: `unit` numbers the backward pass
    (a range or an iteration) that the window belongs to; `ranged` is true for windows that are
    ranges.
    """
    passes = passes_of(ranges.filter(~pl.col("evaluates")), training)
    marked = outermost(passes.filter(pl.col("stage") == "BP")).select(
        "process", "start", "end", unit="range", ranged=pl.lit(value=True)
    )
    silent = passes.join(marked, on="process", how="anti")
    gaps = [] if silent.is_empty() else [_gaps(silent, iterations)]
    return pl.concat([marked, *gaps]).sort("start")


def _gaps(passes: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    steps = iterations.select("process", "iteration", "start", step_end="end").sort("start")
    forward, update = pl.col("stage") == "FP", pl.col("stage") == "WU"
    return (
        outermost(passes)
        .sort("start")
        .join_asof(steps, on="start", by="process", check_sortedness=False)
        .filter(pl.col("start") < pl.col("step_end"))
        .with_columns(turn=forward.cum_sum().over("process", "iteration"))
        .filter(pl.col("turn") > 0)
        .group_by("process", "iteration", "turn", maintain_order=True)
        .agg(
            pl.col("start", "end", "step_end").first(),
            # Gradients may be cleared before they are made, so the last update is the one.
            update=pl.col("start").filter(update).last(),
        )
        .with_columns(next=pl.col("start").shift(-1).over("process"))
        .filter(pl.col("end") <= pl.col("step_end"))
        .select(
            "process",
            start="end",
            end=pl.min_horizontal(pl.coalesce("update", "next"), "step_end"),
            unit="iteration",
            ranged=pl.lit(value=False),
        )
    )


def autograd_threads(
    launches: pl.DataFrame,
    windows: pl.DataFrame,
    threads: pl.DataFrame,
    marked: pl.Series,
    training: pl.DataFrame,
) -> pl.Series:
    """Return the threads that run backward passes, found by name, markers or launches.

    Parameters
    ----------
    launches
        ``thread, during, inside, served``: number of launches of each thread between the first and
        the last backward window (interval in which a backward pass may run) of its process, number
        inside windows, and number of backward passes with a launch inside.
    windows
        ``process, number``: the windows recorded in full, with the number of their backward pass.
    threads
        The threads, with the meaning of their names.
    marked
        Threads with autograd markers (ranges that mark work of the backward pass).
    training
        The training threads. These, like data loaders, are never autograd threads.
    """
    thread, behaving = threads["thread"], _behaving(launches, threads, windows)
    qualifies = pl.col("autograd") | pl.lit(np.isin(thread, marked) | np.isin(thread, behaving))
    others = ~np.isin(thread, training["thread"])
    return threads.filter(qualifies, pl.col("stage").is_null(), others)["thread"]


def _behaving(launches: pl.DataFrame, threads: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return threads that launch work in nearly all backward windows, and hardly any outside.

    A backward window is an interval in which a backward pass may run.
    """
    units = windows.group_by("process").agg(units=pl.col("number").n_unique())
    units_or_none = pl.col("units").fill_null(0)
    return (
        launches.join(threads.select("thread", "process"), on="thread")
        .join(units, on="process", how="left")
        .filter(
            (pl.max_horizontal(units_or_none, "served") > 1)
            & (pl.col("during") > 0)
            & (pl.col("inside") >= THRESHOLDS.served * pl.col("during"))
            & (pl.col("served") >= THRESHOLDS.served * units_or_none)
        )["thread"]
    )
