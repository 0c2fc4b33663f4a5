"""Where each call and each range stands: in which ranges, steps and backward windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from tracekit.attribution._loops import (
    FULL_PATHS,
    FULL_STACK,
    MORE_ROWS,
    Array,
    Arrays,
    follow,
)
from tracekit.attribution._nesting import Nesting
from tracekit.attribution._paths import Labels
from tracekit.attribution._spans import Spans
from tracekit.attribution._stacks import Stacks
from tracekit.attribution._teams import Teams
from tracekit.model import STAGES, PathTree, Stream
from tracekit.support.ahead import ahead
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
    """

    def __init__(
        self,
        ranges: Stream,
        nesting: Nesting,
        calls: Stream,
        launching: list[Array],
        steps: Spans,
        windows: Spans,
        teams: Teams,
        may_serve: Array,
        labels: Labels,
    ) -> None:
        self._ranges, self._nesting = ranges, nesting
        self._calls, self._launching = calls, launching
        self._loop = compiled(follow, ranges.height + calls.height)
        self._steps = steps.arrays()
        self._windows = (
            *windows.arrays(), windows.last(),
            *(np.zeros(windows.rows.height, np.bool_) for _ in range(2)),
            np.full(teams.count, _LAST), np.full(teams.count, -_LAST),
        )  # fmt: skip
        self._teams, self._trainers = teams, teams.trainer_of_each()
        self._labels = labels
        threads = may_serve.size
        self._open, self._staged = Stacks(threads, values=2), Stacks(threads, values=1)
        self._flagged = tuple(np.full(threads, _NEVER) for _ in range(2))
        self._shared = np.full((teams.count, len(STAGES), 2), _NEVER)
        self._paths = PathTree()
        counts = (np.zeros(threads, np.int64) for _ in range(3))
        self.threads = (*counts, np.full(threads, -1), may_serve)
        """By thread: launches between the first and the last backward window of the team, those
        inside windows, the units of these, the last unit, and `may_serve`."""

    def recorded(self) -> pl.Series:
        """Tell which backward windows were recorded.

        At an edge of the recording only those that a thread works in that may be the autograd
        thread: where it was cut is not known any better.
        """
        first, start, end, *_, fed, used, begun, ended = self._windows
        team = np.repeat(np.arange(begun.size), np.diff(first))
        return pl.Series(used | (fed & (start >= begun[team]) & (end <= ended[team])))

    def chunks(self) -> Iterator[tuple[str, int, Arrays]]:
        """Go through all, and say of each chunk that was passed what was found of its rows.

        Yields
        ------
        ``"ranges"``, the number of the chunk and ``path``; or ``"calls"``, the number of the chunk
        and ``thread, start, end, range, step, evidence`` (see `Evidence`).
        """
        no_ranges, no_calls = (_NO_RANGES, (np.empty(0, np.int32),)), (_NO_CALLS, _found(0))
        ranges = _Turn(self._range_chunk, len(self._ranges), no_ranges)
        calls = _Turn(self._call_chunk, len(self._calls), no_calls)
        while not (ranges.over and calls.over):
            self._pass(ranges, calls)
            for name, turn in (("ranges", ranges), ("calls", calls)):
                if turn.passed:
                    yield name, turn.number, turn.out
                    turn.advance()

    def paths(self) -> pl.DataFrame:
        """Return the canonical table ``paths`` of the ranges that were passed."""
        return self._paths.table(self._labels.texts)

    def _pass(self, ranges: _Turn, calls: _Turn) -> None:
        """Go on until one of the chunks is passed, making room where it is needed."""
        position = np.array([ranges.row, calls.row])
        stopped = -1
        while stopped != MORE_ROWS:
            stopped = self._loop(
                position,
                ranges.rows,
                calls.rows,
                (ranges.is_last, calls.is_last),
                (self._open.arrays(), self._staged.arrays(), self._flagged, self._shared),
                self._steps,
                self._windows,
                self._trainers,
                self._labels.arrays(),
                self._paths.arrays(),
                self.threads,
                ranges.out,
                calls.out[-_FOUND:],
            )
            if stopped == FULL_STACK:
                for stacks in (self._open, self._staged):
                    stacks.make_room()
            elif stopped == FULL_PATHS:
                self._paths.grow()
        ranges.row, calls.row = position.tolist()

    def _range_chunk(self, number: int) -> tuple[Arrays, Arrays]:
        columns = ("range", "thread", "process", "start", "end")
        rows = self._ranges.read(number, *columns, "style")
        places, names = self._nesting.places.read(number), self._nesting.names
        ids = places["name_id"]
        found = (
            *(rows[name] for name in columns),
            rows["style"] == "push_pop",
            names.places.gather(ids),
            places["flags"],
            names.table["autograd"].gather(ids),
            ids,
            self._teams.of(rows),
        )
        return tuple(given(column) for column in found), (np.empty(rows.height, np.int32),)

    def _call_chunk(self, number: int) -> tuple[Arrays, Arrays]:
        rows = self._calls.read(number, "thread", "process", "start", "end")
        thread, process, start, end = (given(column) for column in rows)
        launches = given(pl.Series(self._launching[number]))
        # What is known before comes first, for what is found to be put beside it.
        team = given(self._teams.of(rows))
        return (thread, process, start, launches, team), (thread, start, end, *_found(rows.height))


_FOUND = 3
"""How many columns `follow` fills in for calls."""
_RANGES = (
    np.int64, np.int32, np.int32, np.int64, np.int64, np.bool_, np.int8, np.uint8, np.bool_,
    np.uint32, np.int32,
)  # fmt: skip
_CALLS = (np.int32, np.int32, np.int64, np.bool_, np.int32)
_NO_RANGES = tuple(given(pl.Series(np.zeros(0, dtype))) for dtype in _RANGES)
_NO_CALLS = tuple(given(pl.Series(np.zeros(0, dtype))) for dtype in _CALLS)


def _found(rows: int) -> Arrays:
    return np.empty(rows, np.int64), np.empty(rows, np.int32), np.empty(rows, np.int32)


class _Turn:
    """The chunk of a table whose turn it is, and none when all have been.

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
        load: Callable[[int], tuple[Arrays, Arrays]],
        chunks: int,
        nothing: tuple[Arrays, Arrays],
    ) -> None:
        self._loaded = ahead(load, range(chunks), waiting=1)
        self._chunks, self._nothing = chunks, nothing
        self.number = -1
        self.advance()

    @property
    def is_last(self) -> bool:
        return self.number >= self._chunks - 1

    @property
    def over(self) -> bool:
        return self.number >= self._chunks

    @property
    def passed(self) -> bool:
        return not self.over and self.row == self.rows[0].size

    def advance(self) -> None:
        self.number += 1
        self.row = 0
        self.rows, self.out = next(self._loaded, self._nothing)
