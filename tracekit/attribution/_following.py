"""Context of each call and range: the ranges, steps and backward windows around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import polars as pl

from tracekit.attribution import _columns
from tracekit.attribution._columns import (
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
from tracekit.attribution._nesting import PUSHED, Nesting
from tracekit.attribution._paths import Labels
from tracekit.attribution._spans import Spans
from tracekit.attribution._stacks import Stacks
from tracekit.attribution._teams import Teams
from tracekit.model import STAGES, PathTree, Stream
from tracekit.support.ahead import ahead
from tracekit.support.arrays import Bits
from tracekit.support.compiled import compiled, given

_NEVER = np.iinfo(np.int64).min
_LAST = np.iinfo(np.int64).max


class Follower:
    """Ranges and calls, followed together in the order of time.

    Parameters
    ----------
    ranges, nesting
        The ranges, and what is known of them.
    calls, launching
        The calls, and for each chunk which of them launched an op.
    steps, windows
        Training steps and backward windows of each team.
    teams
        Who trains with whom.
    may_serve
        By thread, whether it may be an autograd thread.
    labels
        What ranges are called in a path.
    iterations
        By step, the row of its iteration, -1 for none.
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
        self._times = _columns.Teams(
            steps.arrays(), iterations, self._windows, teams.trainer_of_each()
        )
        self._labels = labels
        self._open = _Open(may_serve.size, teams.count)
        self._found = (number_type(ranges.height), np.int32, np.int16)
        """The types of `Found`."""
        self._paths = PathTree()
        during, inside, served = np.zeros((3, may_serve.size), np.int64)
        latest = np.full(may_serve.size, -1)
        self.serving = Serving(during, inside, served, latest, may_serve)
        """What tells autograd threads."""

    def recorded(self) -> pl.Series:
        """Tell which backward windows were recorded.

        At an edge of the recording only those that a thread works in that may be the autograd
        thread: where it was cut is not known any better.
        """
        windows, stretches = self._windows, self._windows.stretches
        team = np.repeat(np.arange(windows.begun.size), np.diff(stretches.first))
        is_whole = (stretches.start >= windows.begun[team]) & (stretches.end <= windows.ended[team])
        return pl.Series(windows.used | (windows.fed & is_whole))

    def chunks(self) -> Iterator[tuple[int, Array | Context]]:
        """Go through all, and say of each chunk that was passed what was found of its rows.

        Yields
        ------
        The number of the chunk, and the paths of its ranges or where its calls stand.
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
        """Return the canonical table ``paths`` of the ranges that were passed."""
        return self._paths.table(self._labels.texts)

    def _pass(self, ranges: _Chunks[RangeRows, Array], calls: _Chunks[CallRows, Context]) -> None:
        """Go on until one of the chunks is passed, making room where it is needed."""
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
        thread, process, start, end, style = (given(column.to_physical()) for column in rows)
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
    """Open ranges by thread, and by process of each team."""

    def __init__(self, threads: int, teams: int) -> None:
        self._ranges, self._stages = Stacks(threads, OpenRanges), Stacks(threads, OpenStages)
        self._evaluates, self._differentiates = np.full((2, threads), _NEVER)
        self._shared = np.full((teams, len(STAGES), 2), _NEVER)
        self._share = np.full(teams, _NEVER)

    def arrays(self) -> Opened:
        """Return the arrays for the loops."""
        return Opened(
            self._ranges.arrays(), self._stages.arrays(),
            self._evaluates, self._differentiates, self._shared, self._share,
        )  # fmt: skip

    def make_room(self) -> None:
        """Make room where there is none left."""
        self._ranges.make_room()
        self._stages.make_room()


def _windows(windows: Spans, teams: int) -> Windows:
    """Return empty windows for a number of teams."""
    fed, used = np.zeros((2, windows.rows.height), np.bool_)
    begun, ended = np.full(teams, _LAST), np.full(teams, -_LAST)
    return Windows(windows.arrays(), windows.last(), fed, used, begun, ended)


def _found(context: Context) -> Found:
    """Return the columns of calls that the loop fills."""
    return Found(context.range, context.step, context.evidence)


def _none(*dtypes: type[np.generic]) -> Iterator[Array]:
    """Return columns without rows."""
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

Rows = TypeVar("Rows", RangeRows, CallRows)
Told = TypeVar("Told", Array, Context)


class _Chunks(Generic[Rows, Told]):
    """A table chunk by chunk: the one whose turn it is, and none when all have been.

    Parameters
    ----------
    load
        Returns what the loop is given of a chunk, and where it puts what it finds.
    chunks
        How many chunks there are.
    nothing
        What stands for a chunk of no rows.
    """

    def __init__(
        self,
        load: Callable[[int], tuple[Rows, Told]],
        chunks: int,
        nothing: tuple[Rows, Told],
    ) -> None:
        self._loaded: Iterator[tuple[Rows, Told]] = ahead(load, range(chunks), waiting=1)
        self._nothing: tuple[Rows, Told] = nothing
        self._chunks = chunks
        self.number = -1
        self.rows: Rows
        self.found: Told
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
