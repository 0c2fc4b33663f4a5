"""Where nodes of CUDA graphs come from: when and on which thread each of them was captured."""

from __future__ import annotations

import polars as pl

from tracekit.sources.nsys._ids import process_of
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places

GRAPH_NODES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Where exports keep them; until 2023.4 in the second, which is of whole graphs since then."""
_MOST_COPIES = 8
"""A node is copied when its graph is cloned and when it is instantiated, seldom more often."""
_NODE = ["process_gid", "graph_node"]


def graph_nodes(export: Export, places: Places) -> pl.DataFrame:
    """Return the canonical table ``graph_nodes``."""
    made = _made(export)
    first = _first(made).join(
        made.select("process_gid", "time", "thread_gid", first="graph_node"),
        on=["process_gid", "first"], maintain_order="left",
    )  # fmt: skip
    return first.select(
        pl.lit(0, pl.Int32).alias("report"),
        places.process(first["process_gid"]).alias("process"),
        places.thread(first["thread_gid"]).alias("thread"),
        "graph_node",
        "time",
    ).drop_nulls()


def _made(export: Export) -> pl.DataFrame:
    """Return the nodes that were made: ``process_gid, graph_node, original, thread_gid, time``."""
    columns = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
    table = next((name for name in GRAPH_NODES if export.file.has(name, "graphNodeId")), None)
    if table is None:
        return pl.DataFrame(
            schema=dict.fromkeys((*_NODE, "original", "thread_gid", "time"), pl.Int64)
        )
    rows = export.file.read(table, dict.fromkeys(columns, "int"))
    made = shifted(rows, export.metadata, "start").select(
        process_of(pl.col("globalTid")).alias("process_gid"),
        graph_node="graphNodeId",
        original=pl.when(pl.col("originalGraphNodeId") != 0).then("originalGraphNodeId"),
        thread_gid="globalTid",
        time="start",
    )
    known = made.drop_nulls(["process_gid", "graph_node", "time"])
    return known.sort("time").unique(_NODE, keep="first", maintain_order=True)


def _first(made: pl.DataFrame) -> pl.DataFrame:
    """Return each node with the ``first`` of those that it is a copy of, itself if of none."""
    copies = made.select("process_gid", "original", first="graph_node")
    found = made.select(*_NODE, first=pl.coalesce("original", "graph_node"))
    for _ in range(_MOST_COPIES):
        asked = found.join(copies, on=["process_gid", "first"], how="left", maintain_order="left")
        if asked["original"].null_count() == asked.height:
            break
        found = asked.select(*_NODE, first=pl.coalesce("original", "first"))
    return found
