"""Longest path of each step, followed from its end back to its begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._sweeps import LATEST, latest, walk_back
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._graph import Graph

CAUSES = ("gpu", "comm", "host", "input", "latency", "unexplained")
"""What time on a path is: see ``docs/critical-path.md``."""
_HOST = ("host", "call", "handover")


def path_segments(graph: Graph, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the segments of each step's path.

    Parameters
    ----------
    graph
        The graph.
    bounds
        Steps, as `step_bounds` returns them, in the times of the graph.

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
