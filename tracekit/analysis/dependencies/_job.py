"""Dependency graph of a run with its steps, and the longest (critical) path of each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._dependency_graph import Dependencies, Graph, dependencies_of
from tracekit.analysis.dependencies._descriptions import described_edges
from tracekit.analysis.dependencies._edges import LANE, MOMENT, near
from tracekit.analysis.dependencies._sweeps import LATEST, latest
from tracekit.analysis.facts import how_to_record, require_ops
from tracekit.analysis.statistics import Skip
from tracekit.analysis.step_sums import cold_meta, skipped_of
from tracekit.engine import (
    first_iterations,
    numbered_alike,
    run_windows,
    torn,
)
from tracekit.errors import MissingDataError
from tracekit.model import with_clocks
from tracekit.support.compiled import compiled
from tracekit.support.wording import note, percent

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._edges import Moments
    from tracekit.analysis.dependencies._sweeps import Array
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace

CAUSES = (
    "gpu", "comm", "copy", "host", "input", "between_steps", "off_cpu", "latency", "unexplained",
)  # fmt: skip
"""Causes of time on a critical path: see ``docs/critical-path.md``."""
_OWNER = ["process", "device"]
_MARKS = pl.Schema(
    {"iteration": pl.Int64(), "begin": pl.List(MOMENT), "end": pl.List(MOMENT),
     "is_last": pl.Boolean()}
)  # fmt: skip
TRUSTED = 0.1
"""Largest unexplained share of steps for which answers carry no warning."""


def slack_of(job: Job) -> pl.DataFrame:
    """Return ``op, slack_ns``: how much later each op could end without delaying any step.

    The slack is null for ops that no step needs to end.
    """
    graph, ops = job.graph, job.moments.ops
    time = graph.replayed()
    allowed = np.full(time.size, LATEST, np.int64)
    sinks = job.bounds["sink"].to_numpy()
    allowed[sinks] = time[sinks]
    compiled(latest, time.size)(graph.order, graph.into(), graph.delays, allowed)
    finish = ops["finish"].to_numpy()
    slack = pl.Series(allowed[finish] - time[finish])
    known = pl.Series(allowed[finish] != LATEST)
    return ops.select("op").with_columns(slack_ns=pl.select(pl.when(known).then(slack)).to_series())


@dataclass(frozen=True)
class Job:
    """Dependency graph of a run, with the nodes at which its steps start and end."""

    trace: Trace
    traffic: Traffic
    """The run, whose processes number iterations alike, and its traffic between GPUs."""
    found: Dependencies
    """The dependencies of its calls and ops."""
    marks: pl.DataFrame
    """The complete steps that were not skipped, from `_step_marks`."""
    left_out: dict[str, Any]
    """Metadata on skipped steps (``skip``) and slow first steps (``cold``)."""

    @cached_property
    def edges(self) -> pl.DataFrame:
        """All edges, each with the op or call that ends there (see `described_edges`)."""
        return described_edges(self.trace, self.moments, self.traffic, self.graph.edges)

    @cached_property
    def graph(self) -> Graph:
        """The dependencies as a table."""
        return self.found.graph()

    @property
    def gpus(self) -> str:
        """The GPUs that a step spans, in words."""
        number = self.moments.ops["device"].n_unique()
        return f"{number} GPUs together" if number > 1 else "1 GPU"

    def changed(self, graph: Graph, edges: pl.DataFrame) -> Job:
        """Return the job with another graph, whose edges are described by `edges`."""
        made = replace(self)
        made.__dict__.update(graph=graph, edges=edges)
        return made

    @property
    def moments(self) -> Moments:
        """The calls and ops."""
        return self.found.moments

    @cached_property
    def bounds(self) -> pl.DataFrame:
        """Start and end of each step as recorded."""
        return self.steps(self.found.net.time)

    @property
    def has_steps(self) -> bool:
        """Test if iterations are known; else the whole recording is one step."""
        return self.bounds["iteration"].null_count() < self.bounds.height

    def steps(self, time: Array) -> pl.DataFrame:
        """Return the steps with their lengths, from the times `time` of nodes."""
        return _step_bounds(self.marks, pl.Series(time))


def job_of(
    trace: Trace, traffic: Traffic, skip: Skip, iterations: tuple[int, int] | None = None
) -> Job:
    """Return the dependency graph of a run with its steps, or with the steps `iterations` only.

    Raises
    ------
    MissingDataError
        If the run contains no GPU work or no complete step, or is on several clocks.
    UsageError
        If the number of skipped iterations is negative, or no iteration would be left.
    """
    require_ops(trace)
    require_one_clock(trace)
    alike = numbered_alike(trace)
    found = dependencies_of(alike)
    skip = 0 if skip == "auto" and iterations else skip  # chosen steps all count
    first = skipped_of(trace, skip)
    every = _step_marks(alike, found.moments, first)
    if iterations is not None:
        every = every.filter(pl.col("iteration").is_between(*iterations))
    bounds = _step_bounds(every, pl.Series(found.net.time))
    marks = every.filter(bounds["end"] > bounds["start"])
    if (between := trace.stretch.between) is not None:
        begin, end = between
        bounded = bounds.filter(pl.col("end") > pl.col("start"))
        marks = marks.filter((bounded["start"] >= begin) & (bounded["end"] <= end))
        if marks.is_empty():
            raise MissingDataError("no complete step is in that time", "give --between more of it")
    if marks.is_empty() and not found.moments.ops["launch_end"].count():
        raise MissingDataError(
            "no launch is known, and so no work of a step", how_to_record(trace, "launching calls")
        )
    if marks.is_empty():
        raise MissingDataError("this run has no complete step", "record longer, or skip fewer")
    return Job(alike, traffic, found, marks, {"skip": first, **cold_meta(trace, skip)})


def require_one_clock(trace: Trace) -> None:
    """Raise `MissingDataError` if the processes with GPU work are on several clocks."""
    active = trace.read("processes").join(
        trace["ops"].select("process").unique().collect(engine="streaming"), on="process"
    )
    clocks = with_clocks(active, trace.read("reports"))["clock"].n_unique()
    if clocks > 1:
        raise MissingDataError(
            f"reports of this run are on {clocks} clocks: dependencies between them are unknown",
            "ask it of a report alone, or set clocks (docs/clocks.md)",
        )


def _step_marks(trace: Trace, moments: Moments, skip: int) -> pl.DataFrame:
    """Return the complete steps after the first `skip`: ``iteration, begin, end, is_last``.

    A step starts when the first device starts it (see `iteration_windows`; copies of input belong
    to the step, if its thread launches them), and ends where the next step starts; the
    last step ends with its last op, input and evaluation excluded. `begin` and `end` are lists of
    nodes: the earliest node counts, for the end of the last step the latest node.

    Steps that begin before or end after the recording are left out, as are skipped ones. A run
    without iterations is one step.
    """
    iterations = trace.read("iterations")
    if iterations.is_empty():
        return _recording_as_step(moments)
    never = pl.Series(dtype=pl.Int64())
    ops = near(moments.ops, "end", never, [*LANE, "iteration", "stage"])
    own = ops.filter(~pl.col("stage").is_in(["IO", "ME"])).drop_nulls("iteration")
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
    return kept.select(*_MARKS)


def _begun(trace: Trace, moments: Moments, own: pl.DataFrame) -> pl.DataFrame:
    """Return ``iteration, begin``: node of the first op of each step on each device with work.

    `own` has the ops of steps, without input and evaluation, which show where a step has work.
    """
    windows = run_windows(trace).drop_nulls("iteration")
    at, step = [*_OWNER, "start"], [*_OWNER, "iteration"]
    working = windows.join(own, on=step, how="semi")
    is_first = pl.col("start").is_in(working["start"].implode())
    ops = moments.ops.lazy().filter(is_first).select(*at, "begin").collect()
    return working.select(*at, "iteration").join(ops, on=at).select("iteration", "begin")


def _by_iteration(ops: pl.DataFrame, moment: str) -> pl.DataFrame:
    """Collect the nodes in column `moment` (one per device) into a list per ``iteration``."""
    return ops.group_by("iteration").agg(pl.col(moment).sort())


def _recording_as_step(moments: Moments) -> pl.DataFrame:
    ops = moments.ops
    begin = ops.filter(pl.col("start") == pl.col("start").min())["begin"].to_list()
    end = ops.filter(pl.col("end") == pl.col("end").max())["finish"].to_list()
    row = {"iteration": [None], "begin": [begin], "end": [end], "is_last": [True]}
    return pl.DataFrame(row, schema=_MARKS)


def _step_bounds(marks: pl.DataFrame, time: pl.Series) -> pl.DataFrame:
    """Return ``iteration, start, end, sink`` of steps; `sink` is the node that ends the step.

    `marks` are the steps with the nodes of their starts and ends, from `_step_marks`; `time` is the
    time of each node, ns.
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


def distrust(share: float | None) -> list[str]:
    """Return a warning if `share`, the unexplained part of critical paths, is above `TRUSTED`."""
    if share is None or share <= TRUSTED:
        return []
    limit = f"more than {percent(TRUSTED)}"
    text = f"{percent(share)} of the steps is unexplained by the recording, {limit}"
    return [f"{text}: do not trust answers from dependencies here"]


def stand_in(job: Job) -> list[str]:
    """Return a warning if steps are unknown, so that the whole recording counts as one step."""
    return [] if job.has_steps else ["no steps are known: the whole recording counts as one"]


note("unexplained_share")(
    lambda value: [
        "unexplained part of the steps: " + ("unknown" if value is None else percent(value))
    ]
)
