"""Find the operators of kernels in replayed CUDA graphs, from traces of the graphs' captures.

A replay is one call that launches kernels outside of all operators. While a graph is captured, the
calls that become its nodes lie inside operators and name their kernels (AMD). A capture belongs to
the replays whose kernels have the same names, in the same order. If several captures match that
differ in their operators or tensor sizes, the replay stays unresolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.sources._seen import OPEN
from tracekit.sources.kineto._document import Document
from tracekit.sources.kineto._event_frame import read_events
from tracekit.sources.kineto._gathered import Gathered, with_groups

_BEGIN, _END, _REPLAY = "StreamBeginCapture", "StreamEndCapture", "GraphLaunch"
_HOST = ("operator", "annotation", "call")
_APART_NS = 1_000
_COPY = "[CUDA "
"""Prefixes of names of copies and memsets; the calls that make these name no kernel."""
_OP = ["correlation", "start", "stream"]
_RECORD = "profile while the graphs are captured: AMD's profiler names kernels in launching calls"


@dataclass(frozen=True)
class Joined:
    """Kernels of CUDA graphs as captured (nodes), and which node each replayed op is."""

    nodes: pl.DataFrame
    """``graph_node, pid, tid, time`` (ns): when each node was captured, moved to the times of the
    trace with the replay."""
    ops: pl.DataFrame
    """``correlation, start, stream, node``: the node that each op replays."""
    warnings: tuple[str, ...]
    """Warnings, one sentence each, on replays whose capture was not found."""


def joined(paths: Sequence[Path], gathered: Gathered) -> Joined:
    """Match the graph replays of a trace (`gathered`) with captures in other traces (`paths`).

    Raises
    ------
    MissingDataError
        If a file contains no graph capture, or only captures without kernel names.
    """
    hosts = [_host_of(path) for path in paths]
    graphs = pl.concat(_graphs_of(*each) for each in zip(paths, hosts, strict=True))
    graphs = graphs.with_row_index("graph").cast({"graph": pl.Int64})
    inside = _placed(pl.concat(hosts), graphs, gathered)
    gathered.add_captured(inside)
    launches = inside.filter(pl.col("kernel").is_not_null()).sort("graph", "start")
    numbered = launches.drop("graph_node").with_row_index("graph_node", 1)
    nodes = numbered.cast({"graph_node": pl.Int64})
    found, warnings = _matched(_replays(gathered), nodes, _operators(inside))
    return Joined(nodes.select("graph_node", "pid", "tid", time="start"), found, warnings)


def _host_of(path: Path) -> pl.DataFrame:
    """Return operators, annotations and CUDA calls of a trace, with ``start, end`` in ns."""
    with closing(Document(path)) as document:
        parts = [_host_events(read_events(piece, path)) for piece in document.pieces()]
    return pl.concat(parts).with_columns(path=pl.lit(str(path)))


def _host_events(events: pl.DataFrame) -> pl.DataFrame:
    spans = with_groups(events.filter(pl.col("ph") == "X"))
    kept = spans.filter(pl.col("group").is_in(_HOST), pl.col("name") != "record_param_comms")
    ids = pl.col("pid", "tid").cast(pl.Int64, strict=False)
    timed = kept.with_columns(ids, end=pl.col("start") + pl.col("length").clip(0))
    return timed.drop_nulls(["start", "end", "pid", "tid"]).filter(pl.col("end") < OPEN)


def _graphs_of(path: Path, host: pl.DataFrame) -> pl.DataFrame:
    """Return ``path, pid, tid, begin, until``: when each graph was captured in a trace, in ns."""
    calls = host.filter(pl.col("group") == "call").sort("start")
    thread = ["pid", "tid"]
    begun, ended = (
        calls.filter(pl.col("name").str.contains(which)).with_columns(
            place=pl.int_range(pl.len()).over(thread)
        )
        for which in (_BEGIN, _END)
    )
    found = begun.join(ended.select(*thread, "place", until="start"), on=[*thread, "place"]).select(
        "path", *thread, "until", begin="end"
    )
    if found.is_empty():
        raise MissingDataError(f"{path} has no capture of a CUDA graph", _RECORD)
    if calls["kernel"].null_count() == calls.height:
        raise MissingDataError(f"launching calls in {path} name no kernels", _RECORD)
    return found.filter(pl.col("until") > pl.col("begin")).sort("begin")


def _placed(host: pl.DataFrame, graphs: pl.DataFrame, gathered: Gathered) -> pl.DataFrame:
    """Return the host events during graph captures, moved to before the first event of the replays.

    Events are clipped to the capture, and get its number as ``graph``.
    """
    length = pl.col("until") - pl.col("begin") + _APART_NS
    first = gathered.first or 0
    moved = graphs.with_columns(to=first - length.cum_sum(reverse=True))
    both = host.join(
        moved.select("graph", "path", "pid", "tid", "begin", "until", "to"),
        on=["path", "pid", "tid"],
    )
    inside = both.filter(pl.col("start") < pl.col("until"), pl.col("end") > pl.col("begin"))
    by = pl.col("to") - pl.col("begin")
    return inside.with_columns(
        start=pl.max_horizontal("start", "begin") + by,
        end=pl.min_horizontal("end", "until") + by,
        pid=pl.lit(gathered.pid, pl.Int64),
        correlation=pl.lit(None, pl.Int64),  # ids of another recording
    ).drop("begin", "until", "to", "path")  # fmt: skip


def _operators(inside: pl.DataFrame) -> pl.DataFrame:
    """Return ``graph, operators``: names and tensor sizes of a capture's operators as one text."""
    text = pl.format("{} {}", "name", pl.col("input_dims").fill_null(""))
    operators = inside.filter(pl.col("group") == "operator").sort("graph", "start", "end")
    return operators.group_by("graph").agg(operators=text.str.join("\n"))


def _replays(gathered: Gathered) -> pl.DataFrame:
    """Return kernels run by CUDA graph launches: ``correlation, start`` (ns), ``stream, name``."""
    calls = pl.concat(
        [pl.DataFrame(schema={"name": pl.String, "correlation": pl.Int64})]
        + [each.with_columns(pl.col("name").cast(pl.String))
           for each in gathered.calls.chunks({"name": pl.Categorical, "correlation": pl.Int64})]
    )  # fmt: skip
    launches = calls.filter(pl.col("name").str.contains(_REPLAY))["correlation"].drop_nulls()
    columns = {"correlation": pl.Int64, "start": pl.Int64, "stream": pl.Int64,
               "name": pl.Categorical}  # fmt: skip
    parts = [
        each.filter(pl.col("correlation").is_in(launches.implode())).with_columns(
            pl.col("name").cast(pl.String)
        )
        for each in gathered.ops.chunks(columns)
    ]
    every = pl.concat([pl.DataFrame(schema={**columns, "name": pl.String}), *parts])
    return every.filter(~pl.col("name").str.starts_with(_COPY)).sort(_OP)


def _matched(
    replays: pl.DataFrame, nodes: pl.DataFrame, operators: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the captured node of each replayed op, and warnings on replays without a match."""
    captured = (
        nodes.group_by("graph", maintain_order=True)
        .agg(names=pl.col("kernel").str.join("\n"), first=pl.col("graph_node").first())
        .join(operators, on="graph", how="left")
    )  # fmt: skip
    alike = captured.group_by("names").agg(
        pl.col("first").first(), kinds=pl.col("operators").n_unique()
    )
    launched = replays.group_by("correlation").agg(names=pl.col("name").str.join("\n"))
    known = launched.join(alike, on="names", how="left")
    place = pl.int_range(pl.len()).over("correlation")
    found = (
        replays.with_columns(place=place)
        .join(known.filter(kinds=1).select("correlation", "first"), on="correlation")
        .select(*_OP, node=pl.col("first") + pl.col("place"))
        .unique(_OP, keep="first", maintain_order=True)
    )  # fmt: skip
    number = launched.height
    unlike, several = known["kinds"].null_count(), known.filter(pl.col("kinds") > 1).height
    texts = {
        unlike: "replay kernels that no capture names in this order",
        several: "replay kernels that several captures name equally, in other operators or sizes",
    }
    warnings = (f"{few:,} of {number:,} launches of CUDA graphs {why}: they have no operators"
                for few, why in texts.items() if few)  # fmt: skip
    return found, tuple(warnings)
