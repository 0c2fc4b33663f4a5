"""What edges are about: the op or call that waits, its stage, what it does, over which link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.dependencies._links_of import link_of_ops

if TYPE_CHECKING:
    from tracekit.analysis.communication._traffic import Traffic
    from tracekit.analysis.dependencies._graph import Graph
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace


def described_edges(trace: Trace, graph: Graph, traffic: Traffic) -> pl.DataFrame:
    """Return the edges of a graph with what they are about.

    Returns
    -------
    The columns of `Graph.edges`, and ``op, name, work, op_kind, stage, bytes, link, others_use``
    of the op that waits or works (null of calls, but ``stage``, which is that of the next op that
    the thread launches, and ``name``), ``process, device, thread``, and ``of_source``: what the op
    does that is waited for.
    """
    moments = graph.moments
    ops = _ops(trace, moments, traffic)
    calls = _calls(moments)
    both = pl.concat(
        [
            rows.with_columns(target=moment).drop("begin", "finish")
            for rows in (ops, calls)
            for moment in ("begin", "finish")
        ],
        how="diagonal",
    )
    source = moments.ops.select(source="finish", of_source="work")
    return graph.edges.join(both, on="target", how="left", maintain_order="left").join(
        source, on="source", how="left", maintain_order="left"
    )


def _ops(trace: Trace, moments: Moments, traffic: Traffic) -> pl.DataFrame:
    name = pl.coalesce(pl.col("short_name").cast(pl.String), pl.col("name").cast(pl.String))
    names = trace["ops"].select("op", name=name).collect()
    return (
        moments.ops.select(
            "op", "work", "bytes", "process", "device", "begin", "finish",
            op_kind=pl.col("kind").cast(pl.String), stage=pl.col("stage").cast(pl.String),
        )
        .join(names, on="op")
        .join(link_of_ops(traffic, moments), on="op", how="left")
    )  # fmt: skip


def _calls(moments: Moments) -> pl.DataFrame:
    """Return calls; their stage is that of the next op that their thread launches."""
    launched = moments.ops.drop_nulls("call").unique("call", keep="first").select(
        "call", stage=pl.col("stage").cast(pl.String)
    )  # fmt: skip
    return (
        moments.calls.join(launched, on="call", how="left", maintain_order="left")
        .sort("thread", "start", "end")
        .with_columns(pl.col("stage").backward_fill().over("thread"))
        .select("process", "thread", "name", "stage", "begin", "finish")
    )
