"""Tables of an export: what they tell, and how to record them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.sources._tables import ExportFile
from tracekit.sources.nsys._gpu import EVENT_RECORD, GRAPH, KERNEL, MEMCPY, MEMSET, SYNC
from tracekit.sources.nsys._host import NVTX, RUNTIME
from tracekit.sources.nsys._memory import MEMORY_USAGE
from tracekit.sources.nsys._metrics import GENERIC_EVENTS, GPU_METRICS, NIC_METRICS
from tracekit.sources.nsys._mpi import MPI_TABLES, UCX_TABLES
from tracekit.sources.nsys._threads import FRAMES, OVERHEAD_TABLES, SWITCHES

PAYLOADS = "NVTX payloads"
"""Feature whose rows are a part of a table's rows, and counted by the reader of that table."""
_ALWAYS = "nsys profile, whatever is traced"


@dataclass(frozen=True)
class _Feature:
    name: str
    tables: tuple[str, ...]
    tells: str
    record_with: str
    counted: bool = True
    """Whether rows are counted; not for large tables that nothing reads."""
    part: str = ""
    """The part of the table's rows that belong to the feature."""


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
        PAYLOADS,
        (NVTX,),
        "communicators, peers and message sizes of NCCL calls",
        "nsys export --type sqlite --include-blobs=true",
        part=" (binaryData)",
    ),
    _Feature("thread names", ("ThreadNames",), "which threads load data or run backward", _ALWAYS),
    _Feature("GPU descriptions", ("TARGET_INFO_GPU",), "which physical GPU is meant", _ALWAYS),
    _Feature(
        "GPU memory events",
        (MEMORY_USAGE,),
        "GPU memory that each process allocated and had in use",
        "nsys profile -t cuda --cuda-memory-usage=true",
    ),
    _Feature(
        "GPU metrics",
        (GPU_METRICS, GENERIC_EVENTS),
        "counted NVLink and PCIe throughput, and active multiprocessors",
        "nsys profile --gpu-metrics-devices=all",
        counted=False,
    ),
    _Feature(
        "NIC metrics",
        (NIC_METRICS,),
        "counted network throughput",
        "nsys profile --nic-metrics=true",
        counted=False,
    ),
    _Feature(
        "MPI calls",
        MPI_TABLES,
        "MPI calls, their sizes, and between which ranks",
        "nsys profile -t mpi --mpi-impl=openmpi",
    ),
    _Feature(
        "UCX calls",
        UCX_TABLES,
        "messages below MPI, with their sizes",
        "nsys profile -t ucx",
    ),
    _Feature(
        "waits for GPU work",
        (SYNC,),
        "when the host waited for which stream, event or context",
        "nsys profile -t cuda",
    ),
    _Feature(
        "records of CUDA events",
        (EVENT_RECORD,),
        "which stream waits for which other one",
        "nsys profile -t cuda",
    ),
    _Feature(
        "making of CUDA graph nodes",
        ("CUDA_GRAPH_NODE_EVENTS",),
        "in which ranges the ops of a graph were captured",
        "nsys profile -t cuda --cuda-graph-trace=node",
    ),
    _Feature("profiler overhead", OVERHEAD_TABLES, "time that the profiler itself took", _ALWAYS),
    _Feature(
        "OS runtime calls",
        ("OSRT_API",),
        "what the host waited for",
        "nsys profile -t osrt",
        counted=False,
    ),
    _Feature(
        "context switches",
        (SWITCHES,),
        "when a thread was off the CPU",
        "nsys profile --cpuctxsw=process-tree",
        counted=False,
    ),
    _Feature(
        "samples of call stacks",
        (FRAMES,),
        "the host's code while it launched nothing",
        "nsys profile --sample=process-tree --backtrace=fp",
        counted=False,
    ),
)


def read_contents(file: ExportFile, known: Mapping[str, int]) -> pl.DataFrame:
    """Return the canonical table ``contents``: one row per feature, present or not.

    Parameters
    ----------
    file
        The export.
    known
        Table -> number of rows that need not be counted again; and feature -> number of rows, for
        features that are a part of a table.
    """
    rows = [_row(file, feature, known) for feature in _FEATURES]
    return pl.DataFrame(rows, schema_overrides={"rows": pl.Int64}, infer_schema_length=None)


def _row(file: ExportFile, feature: _Feature, known: Mapping[str, int]) -> dict[str, object]:
    part = known.get(feature.name)
    present = [
        table for table in feature.tables if (file.holds_rows(table) if part is None else part)
    ]
    rows = part
    if part is None and (feature.counted or not present):
        rows = sum(known.get(table) or file.count(table) for table in present)
    return {
        "report": 0,
        "feature": feature.name,
        "source_table": ", ".join(present or feature.tables) + feature.part,
        "present": bool(present),
        "rows": rows,
        "tells": feature.tells,
        "record_with": feature.record_with,
    }
