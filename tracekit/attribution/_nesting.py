"""Which range lies in which, and what that says of it.

A program pushes and pops the ranges of each thread as a stack, so they form a tree; where domains
interleave, or a recording is damaged, they may cross. Either way the range around another one is
the latest-started of those of its thread that are open when it starts and still open when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array, Nested, NestedRows, OpenAround
from tracekit.attribution._loops import (
    APART,
    BEGINS,
    COVERED,
    DIFFERENTIATES,
    EVALUATES,
    PASSES,
    nest,
)
from tracekit.attribution._names import RangeNames
from tracekit.attribution._opens import is_open
from tracekit.attribution._rules import Rules
from tracekit.attribution._stacks import Stacks
from tracekit.model import RANGE_STYLE, STAGES, Stream
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Spool, Workspace

_STAGE_PLACES = {stage: place for place, stage in enumerate(STAGES)}


@dataclass(frozen=True)
class Nesting:
    """What is known of the ranges when all have been looked at once.

    Parameters
    ----------
    names
        Their names and what these mean.
    places
        Chunk by chunk, as the ranges come: ``name_id, parent, depth, flags``.
    skeleton
        The ranges that tell what a process does: those that may be steps, those with a stage that
        none around them has (or one alone), start/end ranges with a stage, and those with which
        evaluation begins. Beside columns of the canonical table ``base, stage, rule, number``;
        ``around``, the nearest range of a pass; and the flags ``evaluates, apart, begins,
        covered``.
    marks
        ``process, thread, passes, marks``: ranges of forward, backward and weight update, those in
        autograd markers aside.
    marked
        Threads that carry autograd markers.
    loading
        Threads that hold ranges of input.
    """

    names: RangeNames
    places: Spool
    skeleton: pl.DataFrame
    marks: pl.DataFrame
    marked: pl.Series
    loading: pl.Series


def look_at_ranges(ranges: Stream, threads: int, rules: Rules, workspace: Workspace) -> Nesting:
    """Go through all ranges, in the order of their numbers.

    Parameters
    ----------
    ranges
        The canonical table: by start, and of those that start together the one that ends last
        first.
    threads
        How many threads there are.
    rules
        What names mean.
    workspace
        Where what is found waits.
    """
    names, places, nester = RangeNames(rules), Spool(workspace), _Nester(threads, ranges.height)
    seen = _Seen(threads)
    skeletons = []
    for number in range(len(ranges)):
        rows = ranges.read(number, *_READ)
        ids = names.of(rows)
        chunk = nester.nest(rows, given(ids), names)
        seen.add(chunk)
        skeletons.append(_skeleton(chunk, names))
        found = chunk.found
        parent, depth = (pl.Series(values).set(pl.Series(values < 0), None) for values in found[:2])
        places.append(
            pl.DataFrame({"name_id": ids, "parent": parent, "depth": depth, "flags": found.flags})
        )
    return Nesting(names, places, pl.concat([_NO_SKELETON, *skeletons]), *seen.told())


PUSHED = pl.Series(["push_pop"], dtype=RANGE_STYLE).to_physical().item()
"""How the style of push/pop ranges is written."""
_READ = ("range", "report", "process", "thread", "domain", "name", "start", "end", "style")


@dataclass(frozen=True)
class _Chunk:
    """Ranges with their names' ids, as loops go over them, and what was found around them."""

    frame: pl.DataFrame
    ids: Array
    rows: NestedRows
    found: Nested


class _Seen:
    """What is noticed of threads, as chunk after chunk goes by."""

    def __init__(self, threads: int) -> None:
        self._process = np.zeros(threads, np.int32)
        self._passes = np.zeros(threads * PASSES, np.int64)
        self._marked, self._loading = np.zeros((2, threads), np.bool_)

    def add(self, chunk: _Chunk) -> None:
        """Notice what the threads of some ranges do."""
        rows, thread = chunk.rows, chunk.rows.thread
        self._process[thread] = chunk.frame["process"].to_numpy()
        self._marked[thread[rows.marks]] = True
        self._loading[thread[rows.stage == _STAGE_PLACES["IO"]]] = True
        told = np.flatnonzero(_is_pass(rows.stage) & ~has(chunk.found.flags, DIFFERENTIATES))
        passes = thread[told] * np.int64(PASSES) + rows.stage[told]
        self._passes += np.bincount(passes, minlength=self._passes.size)

    def told(self) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
        """Return ``marks, marked, loading`` of `Nesting`."""
        found = np.flatnonzero(self._passes)
        thread, place = np.divmod(found, PASSES)
        marks = pl.DataFrame(
            {
                "process": self._process[thread],
                "thread": thread.astype(np.int32),
                "passes": pl.Series(STAGES[:PASSES], dtype=pl.String)[place],
                "marks": self._passes[found],
            }
        )
        marked, loading = (
            pl.Series("thread", np.flatnonzero(which), pl.Int32)
            for which in (self._marked, self._loading)
        )
        return marks, marked, loading


def _is_pass(place: Array) -> Array:
    return (place >= 0) & (place < PASSES)


class _Nester:
    """The ranges that are open on each thread, as chunk after chunk goes by."""

    def __init__(self, threads: int, rows: int) -> None:
        self._loop = compiled(nest, rows)
        self._open = Stacks(threads, OpenAround)
        self._evaluations = pl.DataFrame(schema=_SPAN)

    def nest(self, frame: pl.DataFrame, ids: Array, names: RangeNames) -> _Chunk:
        """Find what is around the next ranges, see `nest`."""
        meant = names.meanings
        number, process, thread, start, end = (
            given(frame[name]) for name in ("range", "process", "thread", "start", "end")
        )
        pushes = given(frame["style"].to_physical() == PUSHED)
        place = meant.place[ids]
        during = self._during(process, start, end, ~pushes & (place == _STAGE_PLACES["ME"]))
        rows = NestedRows(number, thread, start, end, pushes, place, meant.marks[ids], during)
        height = frame.height
        out = Nested(
            np.empty(height, np.int64),
            np.empty(height, np.int32),
            np.empty(height, np.uint8),
            np.empty(height, np.int64),
            np.empty(height, np.int32),
        )
        done = 0
        while (done := self._loop(done, rows, self._open.arrays(), out)) < height:
            self._open.make_room()
        return _Chunk(frame, ids, rows, out)

    def _during(self, process: Array, start: Array, end: Array, evaluates: Array) -> Array:
        """Tell for each range whether its process was in a start/end range of evaluation."""
        if evaluates.any():
            spans = {
                "process": process[evaluates],
                "start": start[evaluates],
                "end": end[evaluates],
            }
            self._evaluations = pl.concat([self._evaluations, pl.DataFrame(spans)])
        if self._evaluations.is_empty():
            return np.zeros(start.size, np.bool_)
        asked = pl.DataFrame({"process": process, "time": start})
        during: Array = is_open(asked, self._evaluations).to_numpy()
        return during


_SPAN = {"process": pl.Int32, "start": pl.Int64, "end": pl.Int64}


def has(flags: Array, flag: int) -> Array:
    """Tell which ranges have a flag."""
    found: Array = flags & flag != 0
    return found


def _skeleton(chunk: _Chunk, names: RangeNames) -> pl.DataFrame:
    place, flags = chunk.rows.stage, chunk.found.flags
    covered = has(flags, COVERED)
    kept = np.flatnonzero(
        names.meanings.may_be_step[chunk.ids]
        # What a range repeats of the one around it counts where that one turns out to say nothing.
        | (_is_pass(place) & (~covered | (chunk.found.passes == 1)))
        | has(flags, BEGINS)
        | (~chunk.rows.pushes & (place >= 0))
    )
    rows = chunk.frame.drop("style")[kept]
    around = pl.Series(chunk.found.around[kept])
    told = {"evaluates": EVALUATES, "apart": APART, "begins": BEGINS, "covered": COVERED}
    return pl.concat(
        [
            rows.with_columns(
                pushes=pl.Series(chunk.rows.pushes[kept]), around=around.set(around < 0, None)
            ),
            pl.DataFrame({name: has(flags[kept], flag) for name, flag in told.items()}),
            names.table.select("base", "stage", "rule", "number")[chunk.ids[kept]],
        ],
        how="horizontal",
    )


_NO_SKELETON = pl.DataFrame(
    schema={
        "range": pl.Int64, "report": pl.Int32, "process": pl.Int32, "thread": pl.Int32,
        "domain": pl.String, "name": pl.String, "start": pl.Int64, "end": pl.Int64,
        "pushes": pl.Boolean, "around": pl.Int64, "evaluates": pl.Boolean, "apart": pl.Boolean,
        "begins": pl.Boolean, "covered": pl.Boolean, "base": pl.String, "stage": pl.String,
        "rule": pl.Int32, "number": pl.Int64,
    }
)  # fmt: skip
