"""A job's dependency graph with its steps: what both questions to it begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._host_time import has_ops
from tracekit.analysis._needs import how_to_record
from tracekit.analysis._steps import numbered_alike
from tracekit.analysis.clocks._clocks import with_clocks
from tracekit.analysis.dependencies._graph import Graph, graph_of
from tracekit.analysis.dependencies._paths_back import path_segments
from tracekit.analysis.dependencies._step_marks import step_bounds, step_marks
from tracekit.analysis.dependencies._what_edges_are import described_edges
from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.analysis.communication._traffic import Traffic
    from tracekit.analysis.dependencies._sweeps import Array
    from tracekit.model import Trace

TRUSTED = 0.1
"""Answers of which nothing explains more than this share are not to be trusted."""


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
        The steps that count, as `step_marks` returns them.
    """

    trace: Trace
    traffic: Traffic
    graph: Graph
    marks: pl.DataFrame

    @cached_property
    def edges(self) -> pl.DataFrame:
        """The edges, with what they are about."""
        return described_edges(self.trace, self.graph, self.traffic, self.graph.edges)

    @cached_property
    def followed(self) -> pl.DataFrame:
        """The edges of paths, likewise, and ``edge``, their row of all edges."""
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
        """What of the steps nothing explains."""
        total = self.segments.select((pl.col("end") - pl.col("start")).sum()).item()
        return self.segments["late"].sum() / total if total else None

    def steps(self, time: Array) -> pl.DataFrame:
        """Return the steps where moments come at some times."""
        return step_bounds(self.marks, pl.Series(time))


def job_of(
    trace: Trace, traffic: Traffic, skip: int, iterations: tuple[int, int] | None = None
) -> Job:
    """Return the dependency graph of a run, and its steps, or those from one to another.

    Raises
    ------
    MissingDataError
        If it holds no GPU work, is on several clocks, or holds no step that was recorded whole.
    UsageError
        If iterations are skipped that it has not.
    """
    if not has_ops(trace):
        raise MissingDataError(
            "this run holds no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    active = trace.read("processes").join(
        trace["ops"].select("process").unique().collect(engine="streaming"), on="process"
    )
    clocks = with_clocks(active, trace.read("reports"))["clock"].n_unique()
    if clocks > 1:
        raise MissingDataError(
            f"the reports of this run are on {clocks} clocks: what waits for what is not known",
            "ask it of a report alone, or set clocks (docs/clocks.md)",
        )
    alike = numbered_alike(trace)
    graph = graph_of(alike)
    every = step_marks(alike, graph.moments, skip)
    if iterations is not None:
        every = every.filter(pl.col("iteration").is_between(*iterations))
    bounds = step_bounds(every, pl.Series(graph.time))
    marks = every.filter(bounds["end"] > bounds["start"])
    if marks.is_empty():
        raise MissingDataError("this run holds no whole step", "record longer, or skip fewer")
    return Job(alike, traffic, graph, marks)


def distrust(share: float | None) -> list[str]:
    """Return a warning where more is not explained than an answer can be trusted with."""
    if share is None or share <= TRUSTED:
        return []
    told = f"{share:.0%} of the steps is explained by nothing that was recorded, more than"
    return [f"{told} {TRUSTED:.0%}: what follows from dependencies is not to be trusted here"]
