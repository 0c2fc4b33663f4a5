"""A job's dependency graph with its steps as moments, and the longest path of each step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._descriptions import described_edges
from tracekit.analysis.dependencies._edges import MOMENT
from tracekit.analysis.dependencies._graph import Graph, graph_of
from tracekit.analysis.dependencies._sweeps import LATEST, latest, walk_back
from tracekit.analysis.facts import require_ops
from tracekit.engine import (
    first_iterations,
    iteration_windows,
    launch_groups,
    numbered_alike,
    torn,
)
from tracekit.errors import MissingDataError
from tracekit.model import with_clocks
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._edges import Moments
    from tracekit.analysis.dependencies._sweeps import Array
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace

CAUSES = ("gpu", "comm", "host", "input", "latency", "unexplained")
"""What time on a path is: see ``docs/critical-path.md``."""
_HOST = ("host", "call", "handover")
_OWNER = ["process", "device"]
_MARKS = pl.Schema(
    {"iteration": pl.Int64(), "begin": pl.List(MOMENT), "end": pl.List(MOMENT),
     "is_last": pl.Boolean()}
)  # fmt: skip
TRUSTED = 0.1
"""Largest unexplained share of steps with which answers are trusted."""


def path_segments(graph: Graph, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the segments of each step's path.

    Parameters
    ----------
    graph
        The graph.
    bounds
        Steps, as `_step_bounds` returns them, in the times of the graph.

    Returns
    -------
    ``edge, step`` (rows of `Graph.edges` and of `bounds`)``, start, end, explained, late``, those
    of a step following each other from its start to its end: `explained` is the part of a segment
    that its edge's length explains, and `late` the rest. `edge` is null of the time before a moment
    that waits for nothing.
    """
    ends = given(bounds["sink"], np.int64), given(bounds["start"], np.int64)
    room = 2 * graph.time.size + bounds.height
    path = np.zeros((2, room), np.int64)
    count = compiled(walk_back, graph.time.size)(ends, graph.into, graph.time, path)
    walked = pl.DataFrame({"edge": path[0, :count], "step": path[1, :count]})
    time = pl.Series(graph.time)
    edges = graph.edges.select("source", "target", "weight")
    placed = walked.with_columns(edges[walked["edge"]])
    begins = bounds["start"].gather(walked["step"])
    length = pl.col("end") - pl.col("start")
    segments = placed.select(
        "edge", "step", "weight",
        start=pl.max_horizontal(time.gather(placed["source"]), begins),
        end=time.gather(placed["target"]),
    ).with_columns(explained=pl.min_horizontal(length, "weight"))  # fmt: skip
    both = pl.concat([segments.drop("weight"), _unfounded(segments, bounds)])
    return both.with_columns(late=length - pl.col("explained"))


def _unfounded(segments: pl.DataFrame, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return what of steps lies before their path's first moment, which waits for nothing."""
    found = segments.group_by("step").agg(first=pl.col("start").min())
    steps = bounds.with_row_index("step").with_columns(pl.col("step").cast(pl.Int64))
    rest = steps.join(found, on="step", how="left").with_columns(first=pl.coalesce("first", "end"))
    none = pl.lit(None, pl.Int64)
    return rest.filter(pl.col("first") > pl.col("start")).select(
        "step", "start", edge=none, end="first", explained=pl.lit(0, pl.Int64)
    ).select("edge", "step", "start", "end", "explained")  # fmt: skip


def cause_of() -> pl.Expr:
    """Return the cause of an edge's explained part, by its ``kind`` and the op's ``work``."""
    kind, work = pl.col("kind").cast(pl.String), pl.col("work")
    moved = work.is_in(["comm", "host_copy"])
    return (
        pl.when(kind.is_in(["work", "transfer"]))
        .then(pl.when(moved).then(pl.lit("comm")).otherwise(pl.lit("gpu")))
        .when(kind.is_in(_HOST)).then(pl.lit("host"))
        .when(kind.is_in(["loader", "wait", "pace"])).then(pl.lit("input"))
        .otherwise(pl.lit("latency"))
    )  # fmt: skip


def slack_of(graph: Graph, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return ``op, slack_ns``: how much later each op could end and no step would end later.

    Null of ops that no end of a step waits for.
    """
    time = graph.replayed()
    allowed = np.full(time.size, LATEST, np.int64)
    sinks = bounds["sink"].to_numpy()
    allowed[sinks] = time[sinks]
    compiled(latest, time.size)(graph.order, graph.into, graph.carried, allowed)
    finish = graph.moments.ops["finish"].to_numpy()
    slack = pl.Series(allowed[finish] - time[finish])
    known = pl.Series(allowed[finish] != LATEST)
    return graph.moments.ops.select("op").with_columns(
        slack_ns=pl.select(pl.when(known).then(slack)).to_series()
    )


@dataclass(frozen=True)
class Job:
    """A run's dependency graph, and its steps as moments.

    Parameters
    ----------
    trace, traffic
        The run, its processes' iterations numbered alike, and what it moved.
    graph
        Its graph.
    marks
        The steps that count, as `_step_marks` returns them.
    """

    trace: Trace
    traffic: Traffic
    graph: Graph
    marks: pl.DataFrame

    @cached_property
    def edges(self) -> pl.DataFrame:
        """Edges with their descriptions."""
        return described_edges(self.trace, self.graph, self.traffic, self.graph.edges)

    @cached_property
    def followed(self) -> pl.DataFrame:
        """Edges on paths with their descriptions, and ``edge``, their row among all edges."""
        numbers = self.segments["edge"].drop_nulls().unique().sort()
        rows = self.graph.edges[numbers].with_columns(edge=numbers)
        return described_edges(self.trace, self.graph, self.traffic, rows)

    @cached_property
    def bounds(self) -> pl.DataFrame:
        """The steps as they were recorded."""
        return self.steps(self.graph.time)

    @cached_property
    def segments(self) -> pl.DataFrame:
        """The longest path of each step, as `path_segments` returns it."""
        return path_segments(self.graph, self.bounds)

    @property
    def unexplained(self) -> float | None:
        """Time of the steps that nothing explains."""
        total = self.segments.select((pl.col("end") - pl.col("start")).sum()).item()
        return self.segments["late"].sum() / total if total else None

    @property
    def has_steps(self) -> bool:
        """Whether steps are known; if not, the whole recording is taken for one."""
        return self.bounds["iteration"].null_count() < self.bounds.height

    def steps(self, time: Array) -> pl.DataFrame:
        """Return the lengths of steps, given times of moments."""
        return _step_bounds(self.marks, pl.Series(time))


def job_of(
    trace: Trace, traffic: Traffic, skip: int, iterations: tuple[int, int] | None = None
) -> Job:
    """Return the dependency graph of a run, with its steps or some of them.

    Raises
    ------
    MissingDataError
        If it holds no GPU work, is on several clocks, or holds no complete step.
    UsageError
        If iterations are skipped that it has not.
    """
    require_ops(trace)
    active = trace.read("processes").join(
        trace["ops"].select("process").unique().collect(engine="streaming"), on="process"
    )
    clocks = with_clocks(active, trace.read("reports"))["clock"].n_unique()
    if clocks > 1:
        raise MissingDataError(
            f"reports of this run are on {clocks} clocks: dependencies between them are unknown",
            "ask it of a report alone, or set clocks (docs/clocks.md)",
        )
    alike = numbered_alike(trace)
    graph = graph_of(alike)
    every = _step_marks(alike, graph.moments, skip)
    if iterations is not None:
        every = every.filter(pl.col("iteration").is_between(*iterations))
    bounds = _step_bounds(every, pl.Series(graph.time))
    marks = every.filter(bounds["end"] > bounds["start"])
    if (between := trace.stretch.between) is not None:
        begin, end = between
        whole = bounds.filter(pl.col("end") > pl.col("start"))
        marks = marks.filter((whole["start"] >= begin) & (whole["end"] <= end))
        if marks.is_empty():
            raise MissingDataError(
                "no complete step lies in that time", "give --between more of it"
            )
    if marks.is_empty():
        raise MissingDataError("this run holds no complete step", "record longer, or skip fewer")
    return Job(alike, traffic, graph, marks)


def _step_marks(trace: Trace, moments: Moments, skip: int) -> pl.DataFrame:
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
    ops = moments.ops.select(*_OWNER, "iteration", "start", "end", "finish", "stage")
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
    return pl.DataFrame(row, schema=_MARKS)


def _step_bounds(marks: pl.DataFrame, time: pl.Series) -> pl.DataFrame:
    """Return ``iteration, start, end, sink`` of steps; `sink` is the moment at which each ends.

    Parameters
    ----------
    marks
        As `_step_marks` returns them.
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


def distrust(share: float | None) -> list[str]:
    """Return a warning where more is not explained than an answer can be trusted with."""
    if share is None or share <= TRUSTED:
        return []
    text = f"{share:.0%} of the steps is unexplained by the recording, more than {TRUSTED:.0%}"
    return [f"{text}: do not trust answers from dependencies here"]


def stand_in(job: Job) -> list[str]:
    """Return a warning where the whole recording stands for a step."""
    return [] if job.has_steps else ["no steps are known: the whole recording stands for one"]
