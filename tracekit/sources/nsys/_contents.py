"""What an export may hold, table by table, what that tells, and how it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.sources.nsys._gpu import GRAPH, KERNEL, MEMCPY, MEMSET
from tracekit.sources.nsys._host import NVTX, RUNTIME
from tracekit.sources.sqlite import SqliteFile


@dataclass(frozen=True)
class _Feature:
    name: str
    tables: tuple[str, ...]
    tells: str
    record_with: str
    counted: bool = True
    """Whether rows are counted; large tables that nothing reads are not."""


_FEATURES = (
    _Feature("kernels", (KERNEL,), "GPU time by stage and kernel", "nsys profile -t cuda"),
    _Feature("copies", (MEMCPY,), "input data and peer copies", "nsys profile -t cuda"),
    _Feature("memsets", (MEMSET,), "GPU time of memsets", "nsys profile -t cuda"),
    _Feature(
        "whole CUDA graphs",
        (GRAPH,),
        "GPU time of CUDA graphs, not of their nodes",
        "nsys profile -t cuda --cuda-graph-trace=node (records the nodes instead)",
    ),
    _Feature(
        "CUDA calls", (RUNTIME,), "which thread launched an op, and when", "nsys profile -t cuda"
    ),
    _Feature("NVTX events", (NVTX,), "stages, layers and iterations", "nsys profile -t nvtx"),
    _Feature(
        "NVTX payloads",
        ("NVTX_PAYLOAD_SCHEMAS",),
        "message sizes of NCCL calls",
        "nsys export --type sqlite --include-blobs=true",
    ),
    _Feature("thread names", ("ThreadNames",), "which threads load data or run backward", "any"),
    _Feature("GPU descriptions", ("TARGET_INFO_GPU",), "which physical GPU is meant", "any"),
    _Feature(
        "GPU memory events",
        ("CUDA_GPU_MEMORY_USAGE_EVENTS",),
        "memory in use over time",
        "nsys profile -t cuda --cuda-memory-usage=true",
    ),
    _Feature(
        "GPU metrics",
        ("GPU_METRICS", "GENERIC_EVENTS"),
        "counted NVLink and PCIe throughput",
        "nsys profile --gpu-metrics-devices=all",
        counted=False,
    ),
    _Feature(
        "NIC metrics",
        ("NET_NIC_METRIC",),
        "counted network throughput",
        "nsys profile --nic-metrics=true",
        counted=False,
    ),
    _Feature(
        "MPI calls",
        ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_RANKS"),
        "MPI messages, their sizes, and ranks",
        "nsys profile -t mpi --mpi-impl=openmpi",
    ),
    _Feature(
        "OS runtime calls",
        ("OSRT_API",),
        "what the host waited for",
        "nsys profile -t osrt",
        counted=False,
    ),
)


def read_contents(file: SqliteFile, known: Mapping[str, int]) -> pl.DataFrame:
    """Return the canonical table ``contents``: one row per feature, present or not.

    Parameters
    ----------
    file
        The export.
    known
        How many rows some tables have, which need not be counted again.
    """
    rows = [_row(file, feature, known) for feature in _FEATURES]
    return pl.DataFrame(rows, schema_overrides={"rows": pl.Int64}, infer_schema_length=None)


def _row(file: SqliteFile, feature: _Feature, known: Mapping[str, int]) -> dict[str, object]:
    present = [table for table in feature.tables if file.holds_rows(table)]
    counted = feature.counted or not present
    rows = [known.get(table) or file.count(table) for table in present] if counted else None
    return {
        "report": 0,
        "feature": feature.name,
        "source_table": ", ".join(present or feature.tables),
        "present": bool(present),
        "rows": None if rows is None else sum(rows),
        "tells": feature.tells,
        "record_with": feature.record_with,
    }
