"""What a database may hold, table by table, what that tells, and how it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.sources.nvprof._calls import DRIVER, RUNTIME
from tracekit.sources.nvprof._gpu import GRAPH, KERNEL_TABLES, MEMCPY, MEMSET, PEER_COPY
from tracekit.sources.nvprof._input import TABLE
from tracekit.sources.nvprof._markers import MARKER, MARKER_DATA
from tracekit.sources.nvprof._places import DEVICE
from tracekit.sources.nvprof._syncs import EVENT_RECORD, SYNC
from tracekit.sources.sqlite import SqliteFile

RECORD = "nvprof -o run.nvvp PROGRAM (nsys profile -t cuda,nvtx for GPUs that nvprof does not know)"


@dataclass(frozen=True)
class _Feature:
    name: str
    tables: tuple[str, ...]
    tells: str
    record_with: str = RECORD


_FEATURES = (
    _Feature("kernels", KERNEL_TABLES, "GPU time by stage and kernel"),
    _Feature("copies", (MEMCPY, PEER_COPY), "input data and peer copies"),
    _Feature("memsets", (MEMSET,), "GPU time of memsets"),
    _Feature("whole CUDA graphs", (GRAPH,), "GPU time of CUDA graphs, not of their nodes"),
    _Feature(
        "CUDA calls",
        (RUNTIME, DRIVER),
        "which thread launched an op, and when",
        "nvprof --profile-api-trace all -o run.nvvp PROGRAM",
    ),
    _Feature(
        "NVTX events",
        (MARKER,),
        "stages, layers and iterations",
        "nvprof -o run.nvvp PROGRAM, with NVTX ranges in the program",
    ),
    _Feature("NVTX values", (MARKER_DATA,), "values that the program attached to its ranges"),
    _Feature("GPU descriptions", (DEVICE,), "which physical GPU is meant"),
    _Feature(
        "waits for GPU work",
        (SYNC,),
        "when the host waited for which stream, event or context",
    ),
    _Feature(
        "records of CUDA events", (EVENT_RECORD,), "which stream waits for what another one did"
    ),
    _Feature(
        "NVLink and PCIe",
        (f"{TABLE}NVLINK", f"{TABLE}PCIE"),
        "what joins the GPUs (give the file to `tracekit links --topology`)",
    ),
)


def read_contents(file: SqliteFile, known: Mapping[str, int]) -> pl.DataFrame:
    """Return the canonical table ``contents``: one row per feature, present or not.

    Parameters
    ----------
    file
        The database.
    known
        How many rows some tables have, which need not be counted again.
    """
    return pl.DataFrame([_row(file, feature, known) for feature in _FEATURES])


def _row(file: SqliteFile, feature: _Feature, known: Mapping[str, int]) -> dict[str, object]:
    there = [table for table in feature.tables if file.has(table)]
    rows = {table: known.get(table) or file.count(table) for table in there}
    present = [table for table, count in rows.items() if count]
    return {
        "report": 0,
        "feature": feature.name,
        "source_table": ", ".join(present or feature.tables),
        "present": bool(present),
        "rows": sum(rows.values()),
        "tells": feature.tells,
        "record_with": feature.record_with,
    }
