"""Extract the rows about communication and ranks from each trace file (report) of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import polars as pl

from tracekit.model import Frames, Stretch, Trace
from tracekit.support.labels import RANK_MARK

_COLLECTIVE = (
    "op", "report", "process", "device", "context", "stream", "start", "end", "name", "short_name",
    "collective", "launch_thread", "launch_start", "range", "stage", "iteration", "correlation",
    "graph_node",
)  # fmt: skip
_COPY = (
    "op", "report", "process", "device", "start", "end", "bytes", "stage", "iteration",
    "correlation", "graph_node", "launch_thread", "launch_start", "launch_end", "kind", "copy_kind",
    "src_device", "dst_device",
)  # fmt: skip
_RANGE = (
    "range", "report", "process", "thread", "start", "end", "domain", "name", "style", "payload",
)  # fmt: skip
_COPIES = ("p2p", "staged", "d2h", "h2d")
_NAME = pl.col("name")
IS_NCCL = (pl.col("domain") == "NCCL") | ((_NAME >= "ncclA") & (_NAME < "nccl["))  # ^nccl[A-Z]
IS_MPI = (pl.col("domain") == "MPI") | _NAME.str.starts_with("MPI_")
IS_RANK_MARK = _NAME.str.starts_with(RANK_MARK)
_TELLS = (IS_NCCL | IS_MPI | IS_RANK_MARK).fill_null(value=False)


@dataclass(frozen=True)
class Excerpt:
    """Rows of a run's tables about communication and ranks."""

    collectives: pl.LazyFrame
    copies: pl.LazyFrame
    """Kernels of collectives, and copies between GPUs or between GPU and host."""
    around: pl.LazyFrame
    """``range, path``: each NVTX range that launched collectives, with its path of nested names."""
    ranges: pl.LazyFrame
    """NVTX ranges of NCCL and MPI, and marks ``tracekit.rank``; may include other ranges."""
    host: pl.LazyFrame
    """Host calls of MPI, and calls with a known rank; may include other calls."""
    active: pl.LazyFrame
    """``report, process``: the processes that ran GPU ops, and the trace file of each."""
    edges: pl.LazyFrame
    """``report, start, end``: start of the first and end of the last GPU op of each trace file,
    ns."""


def excerpt(trace: Trace) -> Excerpt:
    """Return the rows of a run about communication and ranks; computed once per run."""
    return trace.once(_excerpt, of_all=True)


def _excerpt(trace: Trace) -> Excerpt:
    parts = trace.limited_to(Stretch()).parts(with_paths=True)
    if len(parts) == 1:
        return _looked_at(trace)
    found = trace.sums_of_parts([partial(_of_part, part) for part in parts])
    tables = {name: pl.concat([each[name] for each in found]) for name in found[0]}
    order = {"collectives": "op", "copies": "op", "around": "range", "ranges": "range"}
    return Excerpt(**{
        name: rows.sort(order.get(name, "report"), maintain_order=True).lazy()
        for name, rows in tables.items()
    })  # fmt: skip


def _of_part(part: Trace) -> Frames:
    found = _looked_at(part)
    tells_of_rank = (pl.col("library") == "mpi") | pl.col("rank").is_not_null()
    rows = {
        **vars(found),
        "ranges": found.ranges.filter(_TELLS),
        "host": found.host.filter(tells_of_rank.fill_null(value=False)),
    }
    frames = pl.collect_all([*rows.values()])
    return {name: part.in_run(each) for name, each in zip(rows, frames, strict=True)}


def _looked_at(trace: Trace) -> Excerpt:
    ops, ranges = trace["ops"], trace["ranges"]
    collectives = ops.filter(pl.col("kind") == "collective").select(_COLLECTIVE)
    launching = collectives.select("range").drop_nulls().unique()
    return Excerpt(
        collectives=collectives,
        copies=ops.filter(pl.col("kind").is_in(_COPIES)).select(_COPY),
        around=ranges.select("range", "path").join(launching, on="range", how="semi"),
        ranges=ranges.select(_RANGE),
        host=trace["host"],
        active=ops.select("report", "process").unique(),
        edges=ops.group_by("report").agg(pl.col("start").min(), pl.col("end").max()),
    )
