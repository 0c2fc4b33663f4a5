"""Find the enclosing ranges of each range, and the stage and flags inherited from them.

A program pushes and pops the ranges of each thread as a stack, so they form a tree; where domains
interleave, or a recording is damaged, they may cross. In both cases the parent of a range is the
latest-started range of its thread that is open when it starts and still open when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import polars as pl

from tracekit.attribution._arrays import (
    Array,
    Bones,
    Nested,
    NestedRows,
    OpenAround,
    OpenRanges,
    OpenStages,
    SeenThreads,
    Stack,
    number_type,
)
from tracekit.attribution._chunks import Waiting
from tracekit.attribution._loops import (
    APART,
    BEGINS,
    COVERED,
    EVALUATES,
    METRIC_EVALUATION,
    PASSES,
    nest,
)
from tracekit.attribution._names import RangeNames
from tracekit.attribution._rules import Rules
from tracekit.errors import UsageError
from tracekit.model import RANGE_STYLE, STAGES, Stream
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Workspace


@dataclass(frozen=True)
class Nesting:
    """Parent, depth and flags of all ranges, and the ranges that mark steps and passes."""

    names: RangeNames
    """Distinct range names and the stage that each implies."""
    places: Waiting
    """Chunks parallel to those of ranges: ``name_id, parent, depth, flags``; the parent is -1 for
    an outermost range."""
    skeleton: pl.DataFrame
    """The ranges that may mark steps, passes or evaluation: possible steps, and ranges that `tells`
    selects. Columns: those of the canonical table, where ``open`` is also true for ranges that end
    together at the end of the recording; ``base`` (name without the numbers that PyTorch appends);
    ``stage, rule, number`` (see `step_names`); ``around``, the nearest outer range of a pass.
    Flags: ``evaluates``, the range lies in metric evaluation; ``apart``, it does, or its process
    evaluates when the range begins; ``begins``, it is the outermost range with ``apart``;
    ``covered``, an outer range has the same stage."""
    marks: pl.DataFrame
    """``process, thread, passes, marks``: number of ranges (`marks`) by thread and stage (`passes`:
    forward, backward, weight update), without those inside autograd markers."""
    marked: pl.Series
    """Threads with autograd markers."""
    loading: pl.Series
    """Threads with input ranges."""


def look_at_ranges(
    ranges: Stream, threads: int, rules: Rules, workspace: Workspace, last_call: int = 0
) -> Nesting:
    """Find parent, depth and flags of all ranges in one pass, in order of start.

    Parameters
    ----------
    ranges
        The table of ranges, ordered by start; of ranges that start together, the one that ends last
        is first.
    threads
        Number of threads.
    rules
        Rules that give names a meaning.
    workspace
        Memory budget and folder for the result.
    last_call
        Start of the last call, ns: a range that ended before it was not open when the recording
        ended.

    Raises
    ------
    UsageError
        If the ranges that mark steps and passes take more memory than the workspace has.
    """
    names, places, nester = RangeNames(rules), Waiting(workspace), _Nester(ranges, threads)
    skeletons, rows_in_memory, last, count = [], 0, last_call, 0
    for number in range(len(ranges)):
        rows = ranges.coded(number, *_READ)
        chunk = nester.nest(rows, ranges.first[number], names)
        latest = int(chunk.rows.end.max())
        if latest >= last:
            count *= latest == last
            count, last = count + int((chunk.rows.end == latest).sum()), latest
        skeletons.append(_skeleton(chunk, names))
        rows_in_memory += skeletons[-1].height
        share = (ranges.first[number] + rows.height) / ranges.height
        _require_memory(int(rows_in_memory / share), workspace)
        places.append({"name_id": chunk.rows.name, **chunk.found._asdict()})
    skeleton = names.settle(pl.concat([_NO_SKELETON, *skeletons]))
    # Ranges that a program ends do not end in one instant; those that the recording ends do.
    is_open = pl.col("open").fill_null(value=False) | ((pl.col("end") >= last) & (count > 1))
    return Nesting(names, places, skeleton.with_columns(open=is_open), *_thread_counts(nester.seen))


def _require_memory(rows: int, workspace: Workspace) -> None:
    """Raise `UsageError` if so many ranges that mark steps and passes exceed the memory budget."""
    wanted = _BESIDE + rows * _ROW_BYTES
    if rows > _FEW and wanted > workspace.memory:
        raise UsageError(
            f"about {rows:,} ranges name a stage that no more than one around them names, and take"
            f" {wanted >> 20:,} MiB, of {workspace.memory >> 20:,} allowed",
            f"allow more with --memory {(wanted >> 20) + 1}MiB",
        )


_ROW_BYTES = 420
"""Memory for one range of the skeleton while steps are found, bytes: 1.2 and 1.9 GiB for 2 and 4
million."""
_BESIDE = 300 << 20
_FEW = 500_000
"""Number of ranges that fit into the least memory of an ingest."""

PUSHED = pl.Series(["push_pop"], dtype=RANGE_STYLE).to_physical().item()
"""Code of the style of push/pop ranges."""
_READ = ("report", "process", "thread", "domain", "name", "start", "end", "open", "style")


@dataclass(frozen=True)
class _Chunk:
    """A chunk of ranges as arrays: their parents, depths, flags, and which may mark steps."""

    frame: pl.DataFrame
    rows: NestedRows
    found: Nested
    bones: Bones


def _thread_counts(seen: SeenThreads) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return the fields ``marks, marked, loading`` of `Nesting`, from counts per thread."""
    thread, place = np.nonzero(seen.passes)
    marks = pl.DataFrame(
        {
            "process": seen.process[thread],
            "thread": thread.astype(np.int32),
            "passes": pl.Series(STAGES[:PASSES], dtype=pl.String)[place],
            "marks": seen.passes[thread, place],
        }
    )
    marked, loading = (
        pl.Series("thread", np.flatnonzero(which), pl.Int32)
        for which in (seen.marked, seen.loading)
    )
    return marks, marked, loading


class _Nester:
    """Finds parents of ranges, with a stack of open ranges per thread kept between chunks."""

    def __init__(self, ranges: Stream, threads: int) -> None:
        self._loop = compiled(nest, ranges.height)
        self._number = number_type(ranges.height)
        self._open = Stacks(threads, OpenAround)
        self._evaluations = pl.DataFrame(schema=_SPAN)
        process, passes = np.zeros(threads, np.int32), np.zeros((threads, PASSES), np.int64)
        self.seen = SeenThreads(process, passes, *np.zeros((2, threads), np.bool_))
        """Observations about threads."""

    def nest(self, frame: pl.DataFrame, first: int, names: RangeNames) -> _Chunk:
        """Find parents and flags in the next chunk of ranges, whose first range is `first`."""
        ids, meanings, height = given(names.of(frame)), names.meanings, frame.height
        process, thread, start, end = (
            given(frame[name]) for name in ("process", "thread", "start", "end")
        )
        pushes = given(frame["style"].to_physical()) == PUSHED
        during = self._during(process, start, end, self._evaluating(ids, pushes, names))
        rows = NestedRows(first, process, thread, start, end, pushes, ids, during)
        found = Nested(
            np.empty(height, self._number), np.empty(height, np.int32), np.empty(height, np.uint8)
        )
        bones = Bones(np.empty(height, np.int64), np.empty(height, np.int64), np.zeros(1, np.int64))
        done, out = 0, (found, bones, self.seen)
        while (done := self._loop(done, rows, meanings, self._open.arrays(), *out)) < height:
            self._open.make_room()
        return _Chunk(frame, rows, found, bones)

    @staticmethod
    def _evaluating(ids: Array, pushes: Array, names: RangeNames) -> Array:
        """Mask the rows that are start/end ranges of metric evaluation."""
        shared = np.flatnonzero(~pushes)
        found: Array = shared[names.meanings.place[ids[shared]] == METRIC_EVALUATION]
        return found

    def _during(self, process: Array, start: Array, end: Array, evaluating: Array) -> Array:
        """Mask ranges that begin while their process has an open start/end range of evaluation."""
        if evaluating.size:
            spans = {
                "process": process[evaluating],
                "start": start[evaluating],
                "end": end[evaluating],
            }
            self._evaluations = pl.concat([self._evaluations, pl.DataFrame(spans)])
        if self._evaluations.is_empty():
            return np.zeros(start.size, np.bool_)
        moments = pl.DataFrame({"process": process, "time": start})
        during: Array = is_open(moments, self._evaluations).to_numpy()
        return during


_SPAN = {"process": pl.Int32, "start": pl.Int64, "end": pl.Int64}


def _skeleton(chunk: _Chunk, names: RangeNames) -> pl.DataFrame:
    """Return the rows of a chunk that may mark a step, a pass or evaluation."""
    rows, bones = chunk.rows, chunk.bones
    # As copies: a series of some of an array holds all of it.
    kept, around = (column[: bones.total[0]].copy() for column in bones[:2])
    flags, given_names = chunk.found.flags[kept], rows.name[kept]
    bits = {"evaluates": EVALUATES, "apart": APART, "begins": BEGINS, "covered": COVERED}
    columns = (
        pl.Series("range", kept + rows.first),
        *chunk.frame.drop("style")[kept].cast({"name": pl.String, "domain": pl.String}),
        pl.Series("pushes", rows.pushes[kept]),
        pl.Series("around", around).set(pl.Series(around < 0), None),
        *(pl.Series(name, flags & flag != 0) for name, flag in bits.items()),
        *names.table.select("base", "stage", "rule", "number")[given_names],
    )
    return pl.DataFrame(columns)


_NO_SKELETON = pl.DataFrame(
    schema={
        "range": pl.Int64, "report": pl.Int32, "process": pl.Int32, "thread": pl.Int32,
        "domain": pl.String, "name": pl.String, "start": pl.Int64, "end": pl.Int64,
        "open": pl.Boolean, "pushes": pl.Boolean, "around": pl.Int64,
        "evaluates": pl.Boolean, "apart": pl.Boolean,
        "begins": pl.Boolean, "covered": pl.Boolean, "base": pl.String, "stage": pl.String,
        "rule": pl.Int32, "number": pl.Int64,
    }
)  # fmt: skip


def is_open(launches: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Test for each ``process, time`` (ns) in `launches` if a range of the process is open then."""
    changes = (
        pl.concat(
            [
                ranges.select("process", time="start", change=1),
                ranges.select("process", time="end", change=-1),
            ]
        )
        .group_by("process", "time")
        .agg(pl.col("change").sum())
        .sort("time")
        .with_columns(count=pl.col("change").cum_sum().over("process"))
    )
    return (
        launches.with_row_index("row")
        .sort("time")
        .join_asof(changes, on="time", by="process", check_sortedness=False)
        .sort("row")
        .select((pl.col("count") > 0).fill_null(value=False))
        .to_series()
    )


_ROOM = 1 << 10
"""Initial number of items that fit on all stacks together."""

Kind = TypeVar("Kind", OpenRanges, OpenStages, OpenAround)


class Stacks(Generic[Kind]):
    """Stacks of open items, one per line (such as a thread); see `close` and `put`.

    Items are, for example, NVTX ranges. All stacks share one set of arrays, which grows with the
    number of items open on all lines together.

    Parameters
    ----------
    lines
        Number of stacks.
    kind
        Named tuple type of the arrays: a `Stack`, and one array for each value stored with an item.
    """

    def __init__(self, lines: int, kind: type[Kind]) -> None:
        self._kind: Callable[..., Kind] = kind
        self._tops = np.full(lines, -1, np.int64)
        self._free = np.full(1, -1, np.int64)
        self._rows = np.zeros((1 + len(kind._fields), 0), np.int64)
        self._widen(_ROOM)

    def arrays(self) -> Kind:
        """Return the arrays that the compiled loops work on."""
        until, below, *values = self._rows
        return self._kind(Stack(until, below, self._tops, self._free), *values)

    def make_room(self) -> None:
        """Double the capacity of the stacks if it is used up."""
        if self._free[0] < 0:
            self._widen(self._rows.shape[1])

    def _widen(self, by: int) -> None:
        """Add `by` slots to the stacks."""
        first = self._rows.shape[1]
        added = np.zeros((len(self._rows), by), np.int64)
        added[1] = np.append(np.arange(first + 1, first + by), -1)
        self._rows = np.hstack([self._rows, added])
        self._free[0] = first
