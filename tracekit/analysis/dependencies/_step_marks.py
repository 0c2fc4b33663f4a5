"""Steps of a job as moments: the op with which each begins, and with which it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._launch_groups import launch_groups
from tracekit.analysis._steps import torn
from tracekit.analysis._windows import first_iterations, iteration_windows
from tracekit.analysis.clocks._clocks import with_clocks
from tracekit.analysis.dependencies._moments import MOMENT

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

_OWNER = ["process", "device"]
MARKS = pl.Schema(
    {"iteration": pl.Int64(), "begin": pl.List(MOMENT), "end": pl.List(MOMENT),
     "is_last": pl.Boolean()}
)  # fmt: skip


def step_marks(trace: Trace, moments: Moments, skip: int) -> pl.DataFrame:
    """Return the steps that count: ``iteration, begin, end, is_last``.

    A step of a job begins where its window does on the first of its devices (`iteration_windows`:
    with its own input, where it copies that itself), and ends where the next one begins; the last
    one with the last of its ops, input and evaluation aside. `begin` and `end` list the moments: of
    a begin the earliest of them counts, of the end of the last step the latest.
    Steps that an edge of the recording cut count no more than skipped ones. A run without
    iterations is one step.
    """
    iterations = trace.read("iterations")
    if iterations.is_empty():
        return _whole(moments)
    own = moments.ops.filter(~pl.col("stage").is_in(["IO", "ME"])).drop_nulls("iteration")
    is_last = pl.col("end") == pl.col("end").max()
    lasts = _by_iteration(own.filter(is_last.over("iteration", "device")), "finish")
    firsts = _by_iteration(_begun(trace, moments, own), "begin")
    ordered = firsts.join(lasts, on="iteration").sort("iteration")
    out = pl.concat([first_iterations(iterations, skip), torn(iterations)])
    next_one = pl.col("iteration").shift(-1) == pl.col("iteration") + 1
    steps = ordered.with_columns(
        end=pl.when(next_one).then(pl.col("begin").shift(-1)).otherwise("finish"),
        is_last=~next_one.fill_null(value=False),
    )
    kept = steps.join(out.select("iteration").unique(), on="iteration", how="anti")
    return kept.select(*MARKS)


def _begun(trace: Trace, moments: Moments, own: pl.DataFrame) -> pl.DataFrame:
    """Return the ops with which the windows of steps begin that hold work: ``iteration, begin``."""
    iterations = with_clocks(trace.read("iterations"), trace.read("reports"))
    windows = iteration_windows(launch_groups(trace), iterations).drop_nulls("iteration")
    working = windows.join(own, on=["process", "device", "iteration"], how="semi")
    at = [*_OWNER, "start"]
    ops = moments.ops.select(*at, "begin")
    return working.select(*at, "iteration").join(ops, on=at).select("iteration", "begin")


def _by_iteration(ops: pl.DataFrame, moment: str) -> pl.DataFrame:
    """Return ``iteration`` and the moments at its edge on each device."""
    return ops.group_by("iteration").agg(pl.col(moment).sort())


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
