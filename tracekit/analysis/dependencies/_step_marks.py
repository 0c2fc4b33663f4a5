"""Steps of a job as moments: the op with which each begins, and with which it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._steps import torn
from tracekit.analysis._windows import first_iterations
from tracekit.analysis.dependencies._moments import MOMENT

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

MARKS = pl.Schema(
    {"iteration": pl.Int64(), "begin": pl.List(MOMENT), "end": pl.List(MOMENT),
     "is_last": pl.Boolean()}
)  # fmt: skip


def step_marks(trace: Trace, moments: Moments, skip: int) -> pl.DataFrame:
    """Return the steps that count: ``iteration, begin, end, is_last``.

    A step of a job begins with the first of its ops on any device, input and evaluation aside, and
    ends where the next one begins; the last one with the last of its ops. `begin` and `end` list
    the moments: of a begin the earliest of them counts, of the end of the last step the latest.
    Steps that an edge of the recording cut count no more than skipped ones. A run without
    iterations is one step.
    """
    iterations = trace.read("iterations")
    own = moments.ops.filter(~pl.col("stage").is_in(["IO", "ME"]))
    if iterations.is_empty():
        return _whole(moments)
    working = own.drop_nulls("iteration")
    firsts = _edge(working, "begin", pl.col("start") == pl.col("start").min())
    lasts = _edge(working, "finish", pl.col("end") == pl.col("end").max())
    ordered = firsts.join(lasts, on="iteration").sort("iteration")
    out = pl.concat([first_iterations(iterations, skip), torn(iterations)])
    next_one = pl.col("iteration").shift(-1) == pl.col("iteration") + 1
    steps = ordered.with_columns(
        end=pl.when(next_one).then(pl.col("begin").shift(-1)).otherwise("finish"),
        is_last=~next_one.fill_null(value=False),
    )
    kept = steps.join(out.select("iteration").unique(), on="iteration", how="anti")
    return kept.select(*MARKS)


def _edge(ops: pl.DataFrame, moment: str, is_edge: pl.Expr) -> pl.DataFrame:
    """Return ``iteration`` and the moments at its edge on each device."""
    at_edge = ops.filter(is_edge.over("iteration", "device"))
    return at_edge.group_by("iteration").agg(pl.col(moment).sort())


def _whole(moments: Moments) -> pl.DataFrame:
    ops = moments.ops
    begin = ops.filter(pl.col("start") == pl.col("start").min())["begin"].to_list()
    end = ops.filter(pl.col("end") == pl.col("end").max())["finish"].to_list()
    row = {"iteration": [None], "begin": [begin], "end": [end], "is_last": [True]}
    return pl.DataFrame(row, schema=MARKS)


def step_bounds(marks: pl.DataFrame, time: pl.Series) -> pl.DataFrame:
    """Return ``iteration, start, end, sink`` of steps; `sink` is the moment at which each ends.

    Parameters
    ----------
    marks
        As `step_marks` returns them.
    time
        When each moment comes.
    """
    numbered = marks.with_row_index("step")

    def moments(edge: str) -> pl.DataFrame:
        rows = numbered.select("step", "is_last", moment=edge).explode("moment")
        return rows.with_columns(time=time.gather(rows["moment"]))

    first = pl.col("moment").sort_by("time").first()
    last = pl.col("moment").sort_by("time").last()
    ends = moments("end").group_by("step").agg(
        sink=pl.when(pl.col("is_last").first()).then(last).otherwise(first)
    )  # fmt: skip
    begins = moments("begin").group_by("step").agg(start=pl.col("time").min())
    found = numbered.join(begins, on="step").join(ends, on="step").sort("step")
    return found.with_columns(end=time.gather(found["sink"])).select(
        "iteration", "start", "end", "sink"
    )
