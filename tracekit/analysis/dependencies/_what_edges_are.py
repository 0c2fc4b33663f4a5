"""Describe edges: op or call, stage, cause, link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.dependencies._links_of import link_of_ops

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._graph import Graph
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace


def described_edges(
    trace: Trace, graph: Graph, traffic: Traffic, rows: pl.DataFrame
) -> pl.DataFrame:
    """Return edges of a graph with their descriptions.

    Returns
    -------
    The columns of `rows`, and ``op, name, work, op_kind, stage, link, others_use`` of the op that
    waits or works (null of calls, but ``stage``, which is that of the next op that the thread
    launches, and ``name``), ``process, device``, and ``of_source``: what the op does that is waited
    for.
    """
    moments = graph.moments
    targets = rows.select("target").unique()
    ops = _at(moments.ops, targets)
    both = pl.concat(
        [_ops(trace, ops, link_of_ops(traffic, moments)), _at(_calls(moments), targets)],
        how="diagonal",
    )
    known = rows.join(both, on="target", how="left", maintain_order="left")
    return known.with_columns(of_source=moments.ops["work"].gather(_ended(rows, moments)))


def _ended(rows: pl.DataFrame, moments: Moments) -> pl.Series:
    """Return which op ends at the source of each edge; null where none does."""
    source, first = pl.col("source"), moments.first_of_ops
    does_end = (source >= first) & (source % 2 == 1)
    return rows.select(pl.when(does_end).then((source - first) // 2)).to_series()


def _at(rows: pl.DataFrame, targets: pl.DataFrame) -> pl.DataFrame:
    """Return those of ops or calls that begin or end at some moments, with ``target``."""
    edges = ("begin", "finish")
    return pl.concat(
        [
            rows.drop(set(edges) - {edge}).rename({edge: "target"})
            .join(targets, on="target", how="semi")
            for edge in edges
        ]
    )  # fmt: skip


def _ops(trace: Trace, ops: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    return (
        ops.select("op", "work", "process", "device", "stage", "target", op_kind="kind")
        .join(op_names(trace), on="op", how="left")
        .join(links, on="op", how="left")
    )


def op_names(trace: Trace) -> pl.DataFrame:
    """Return ``op, name``: the short name of each op."""
    return trace["ops"].select("op", name=pl.coalesce("short_name", "name")).collect()


def _calls(moments: Moments) -> pl.DataFrame:
    """Return calls; their stage is that of the next op that their thread launches."""
    launched = moments.ops.drop_nulls("call").unique("call", keep="first").select("call", "stage")
    return (
        moments.calls.join(launched, on="call", how="left", maintain_order="left")
        .sort("thread", "start", "end")
        .with_columns(pl.col("stage").backward_fill().over("thread"))
        .select("process", "name", "stage", "begin", "finish")
    )
