"""Which range lies in which, and what that says of it.

A program pushes and pops the ranges of each thread as a stack, so they form a tree; where domains
interleave, or a recording is damaged, they may cross. Either way the range around another one is
the latest-started of those of its thread that are open when it starts and still open when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._columns import Nested, NestedRows, OpenAround
from tracekit.attribution._loops import (
    APART,
    BEGINS,
    COVERED,
    DIFFERENTIATES,
    EVALUATES,
    nest,
)
from tracekit.attribution._names import RangeNames
from tracekit.attribution._opens import is_open
from tracekit.attribution._rules import Rules
from tracekit.attribution._stacks import Stacks
from tracekit.model import STAGES, Stream
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Spool, Workspace

_PASSES = ("FP", "BP", "WU")
_STAGE_PLACES = {stage: place for place, stage in enumerate(STAGES)}

_SKELETON = {
    "range": pl.Int64, "report": pl.Int32, "process": pl.Int32, "thread": pl.Int32,
    "domain": pl.String, "name": pl.String, "start": pl.Int64, "end": pl.Int64,
    "pushes": pl.Boolean,
}  # fmt: skip


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
    skeletons: list[pl.DataFrame] = []
    marks: list[pl.DataFrame] = []
    marked: list[pl.Series] = []
    loading: list[pl.Series] = []
    for number in range(len(ranges)):
        chunk = _meant(ranges, number, names)
        chunk = nester.nest(chunk)
        places.append(chunk.select("name_id", "parent", "depth", "flags"))
        skeletons.append(_skeleton(chunk, names))
        marks.append(_marks(chunk))
        marked.append(chunk.filter("marks")["thread"].unique())
        loading.append(chunk.filter(pl.col("place") == _STAGE_PLACES["IO"])["thread"].unique())
    empty = pl.DataFrame(schema=_MARKS)
    return Nesting(
        names,
        places,
        pl.concat([_skeleton(nester.nest(_EMPTY), names), *skeletons]),
        pl.concat([empty, *marks])
        .group_by("process", "thread", "passes")
        .agg(pl.col("marks").sum()),
        _threads(marked),
        _threads(loading),
    )


def _threads(parts: list[pl.Series]) -> pl.Series:
    return pl.concat([pl.Series("thread", [], pl.Int32), *parts]).unique()


_MARKS = {"process": pl.Int32, "thread": pl.Int32, "passes": pl.String, "marks": pl.Int64}
_EMPTY = pl.DataFrame(
    schema={**_SKELETON, "name_id": pl.UInt32, "place": pl.Int8, "marks": pl.Boolean}
)


def _meant(ranges: Stream, number: int, names: RangeNames) -> pl.DataFrame:
    """Return a chunk with what its names mean: ``name_id, place`` (of the stage) and ``marks``."""
    stored = [name for name in _SKELETON if name != "pushes"]
    chunk = ranges.read(number, *stored, "style").with_columns(
        pushes=pl.col("style") == "push_pop"
    ).drop("style")  # fmt: skip
    ids = names.of(chunk)
    return chunk.with_columns(
        name_id=ids, place=names.places.gather(ids), marks=names.table["autograd"].gather(ids)
    )


class _Nester:
    """The ranges that are open on each thread, as chunk after chunk goes by."""

    def __init__(self, threads: int, rows: int) -> None:
        self._loop = compiled(nest, rows)
        self._open = Stacks(threads, OpenAround)
        self._evaluations = pl.DataFrame(schema=_SPAN)

    def nest(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """Add ``parent, depth, flags, around, passes`` to the next ranges, see `nest`."""
        columns = ("range", "thread", "start", "end", "pushes", "place", "marks")
        rows = NestedRows(*map(given, (*chunk.select(columns), self._during(chunk))))
        out = Nested(
            np.empty(chunk.height, np.int64),
            np.empty(chunk.height, np.int32),
            np.empty(chunk.height, np.uint8),
            np.empty(chunk.height, np.int64),
            np.empty(chunk.height, np.int32),
        )
        done = 0
        while (done := self._loop(done, rows, self._open.arrays(), out)) < chunk.height:
            self._open.make_room()
        parent, depth, flags, around, passes = (pl.Series(values) for values in out)
        return chunk.with_columns(
            parent=parent.set(parent < 0, None), depth=depth.set(depth < 0, None), flags=flags,
            around=around.set(around < 0, None), passes=passes,
        )  # fmt: skip

    def _during(self, chunk: pl.DataFrame) -> pl.Series:
        """Tell for each range whether its process was in a start/end range of evaluation."""
        evaluations = chunk.filter(
            ~pl.col("pushes") & (pl.col("place") == _STAGE_PLACES["ME"])
        ).select(list(_SPAN))
        self._evaluations = pl.concat([self._evaluations, evaluations])
        if self._evaluations.is_empty():
            return pl.repeat(value=False, n=chunk.height, eager=True)
        return is_open(chunk.select("process", time="start"), self._evaluations)


_SPAN = {"process": pl.Int32, "start": pl.Int64, "end": pl.Int64}


def has(flag: int) -> pl.Expr:
    """Tell which ranges have a flag."""
    return pl.col("flags") & pl.lit(flag, pl.UInt8) != 0


def _skeleton(chunk: pl.DataFrame, names: RangeNames) -> pl.DataFrame:
    rule = names.table["rule"].is_not_null().gather(chunk["name_id"])
    passes = pl.col("place").is_in([_STAGE_PLACES[stage] for stage in _PASSES])
    kept = chunk.filter(
        rule
        # What a range repeats of the one around it counts where that one turns out to say nothing.
        | (passes & (~has(COVERED) | (pl.col("passes") == 1)))
        | has(BEGINS)
        | (~pl.col("pushes") & (pl.col("place") >= 0))
    )
    meanings = names.table.select("base", "stage", "rule", "number")[kept["name_id"]]
    flags = {"evaluates": EVALUATES, "apart": APART, "begins": BEGINS, "covered": COVERED}
    told = (has(flag).alias(name) for name, flag in flags.items())
    return pl.concat([kept.select(*_SKELETON, "around", *told), meanings], how="horizontal")


def _marks(chunk: pl.DataFrame) -> pl.DataFrame:
    passes = [_STAGE_PLACES[stage] for stage in _PASSES]
    stage = pl.col("place").replace_strict(range(len(STAGES)), STAGES, return_dtype=pl.String)
    return (
        chunk.filter(~has(DIFFERENTIATES) & pl.col("place").is_in(passes))
        .group_by("process", "thread", "place")
        .agg(marks=pl.len().cast(pl.Int64))
        .select("process", "thread", stage.alias("passes"), "marks")
    )
