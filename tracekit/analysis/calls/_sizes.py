"""Why sizes of messages are not known."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls._excerpt import excerpt
from tracekit.model import Trace

_UNSIZED = {
    "PyTorch Kineto JSON": "this PyTorch did not record them, as later ones do",
    "nvprof SQLite": "nvprof records no sizes",
    "RPD SQLite": "rocmProfileData records no sizes",
    **dict.fromkeys(("rocprofv3 JSON", "rocprofv3 SQLite"), "rocprofv3 records no sizes"),
    "XLA profile": "JAX's profiles hold no sizes of collectives",
}


def unsized_of_others(calls: pl.DataFrame) -> list[str]:
    """Count kernels of unknown size from libraries other than NCCL."""
    others = calls.filter(~pl.col("library").is_in(["nccl", "mpi"]), pl.col("bytes").is_null())
    counted = others.group_by("library").len().sort("library")
    return [
        f"{number:,} collective kernels of {library} are of unknown size, which it does not record:"
        " give --bytes"
        for library, number in counted.iter_rows()
    ]


def why_unsized(trace: Trace) -> str:
    """Say why sizes of NCCL's messages are unknown, and how to record them."""
    formats = trace["reports"].select(pl.col("format").unique()).collect()["format"].to_list()
    if len(formats) == 1 and formats[0] in _UNSIZED:
        return _UNSIZED[formats[0]]
    calls, payloads = (
        excerpt(trace)
        .ranges.filter(pl.col("domain") == "NCCL")
        .select(pl.len(), payloads=pl.col("payload").count())
        .collect()
        .row(0)
    )
    if not calls:
        return "no NVTX ranges of NCCL (2.8 or later) were recorded; trace nvtx"
    if not payloads:
        return (
            "NCCL's ranges hold no payload; export with `nsys export --include-blobs=true` "
            "(NCCL 2.16 or later)"
        )
    return "their calls or number of ranks are not known"
