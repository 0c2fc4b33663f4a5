"""Metadata of an nsys export: GPUs, rank, job, times and versions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from tracekit.sources._export_tables import ExportFile
from tracekit.sources._labels import VARIABLES, launch_of
from tracekit.sources._reading import Where
from tracekit.sources._times import FARTHEST, REACH

_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_CAPTURE_TABLE = "META_DATA_CAPTURE"
_EXPORT_KEYS = (
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_PRODUCT_NAME",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_CONFIG_TIME_SHIFT",
    "EXPORT_PARAM_TABLES_TO_EXPORT",
    "EXPORT_PARAM_TIMES_TO_EXPORT",
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_VARIABLES = (_VISIBLE, *VARIABLES)
"""Environment variables that are read. Others may contain secrets, so they never leave the file."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of an nsys export: GPUs, rank, job, times, versions; empty if not recorded."""

    schema_version: str | None = None
    product: str | None = None
    time_shift: int = 0
    """Offset that the exporter added to every time, ns."""
    session_start: int | None = None
    """Unix time of time 0, ns."""
    duration: int | None = None
    host: str | None = None
    visible_devices: tuple[str, ...] | None = None
    rank: int | None = None
    ranks: int | None = None
    """Rank of the recorded command in its job, from its environment."""
    job: str | None = None
    """Identity of its job: ``VARIABLE=digest`` for each variable of its launcher."""
    traced: frozenset[str] = frozenset()
    """What was traced, in the words of the capture: ``Cuda``, ``NvtxEvents``; empty if unknown."""
    warnings: tuple[str, ...] = field(default=())


def read_metadata(file: ExportFile) -> Metadata:
    """Read an export's metadata; only environment variables for GPUs, rank and job are used."""
    export = _export_values(file)
    variables = _variables(file)
    visible = variables.get(_VISIBLE)
    launched = launch_of(variables)
    product = [export.get("EXPORT_PRODUCT_NAME"), export.get("EXPORT_PRODUCT_VERSION")]
    shift = _time_shift(export.get("EXPORT_CONFIG_TIME_SHIFT", ""))
    start = _first(file, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs", FARTHEST)
    duration = _first(file, "ANALYSIS_DETAILS", "duration", REACH)
    warnings = _filter_warnings(export)
    if duration is not None and (middle := file.times.middle - shift) > duration:
        warnings += (
            f"times, about {middle / 1e9:,.3f} s, do not count from the start of the session",
        )
        start = duration = None  # of another clock
    return Metadata(
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        product=" ".join(part for part in product if part) or None,
        time_shift=shift,
        session_start=start,
        duration=duration,
        host=_host(file),
        visible_devices=None if visible is None else tuple(map(str.strip, visible.split(","))),
        rank=launched.rank,
        ranks=launched.ranks,
        job=launched.job,
        traced=_traced(file),
        warnings=warnings,
    )


def _export_values(file: ExportFile) -> dict[str, str]:
    table = next((name for name in _EXPORT_TABLES if file.has(name, "name", "value")), None)
    if table is None:
        return {}
    wanted = Where("name", "is", _EXPORT_KEYS)
    frame = file.read(table, {"name": "text", "value": "text"}, [wanted])
    return {name: value for name, value in frame.rows() if value}


def _time_shift(value: str) -> int:
    number = int(value) if re.fullmatch(r"-?[0-9]{1,19}", value) else 0
    return number if abs(number) < FARTHEST else 0


def _first(file: ExportFile, table: str, column: str, most: int) -> int | None:
    """Return the first integer in a column of a table; None if it is not less than `most`."""
    values = file.read(table, {column: "int"})[column].drop_nulls()
    return int(values[0]) if len(values) and abs(values[0]) < most else None


def _host(file: ExportFile) -> str | None:
    if not file.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return None
    wanted = Where("name", "is", ("Hostname",))
    columns = file.read("TARGET_INFO_SYSTEM_ENV", {"value": "text"}, [wanted])
    return columns["value"][0] if columns.height else None


def _traced(file: ExportFile) -> frozenset[str]:
    if not file.has(_CAPTURE_TABLE, "name", "value"):
        return frozenset()
    wanted = [Where("name", "is", ("CAPTURE_EVENT_TYPE",))]
    return frozenset(file.read(_CAPTURE_TABLE, {"value": "text"}, wanted)["value"].drop_nulls())


def _variables(file: ExportFile) -> dict[str, str]:
    """Return the environment variables of interest (GPUs, rank, job) that have a single value.

    Quotes are removed: nsys writes RANK="0".
    """
    if not file.has(_CAPTURE_TABLE, "name", "value"):
        return {}
    wanted = (
        Where("name", "ends", (":ENVIRONMENT_VARIABLE",)),
        Where("value", "starts", tuple(f"{name}=" for name in _VARIABLES)),
    )
    texts = set(file.read(_CAPTURE_TABLE, {"value": "text"}, wanted)["value"].to_list())
    names = Counter(text.partition("=")[0] for text in texts)
    known = (text.partition("=") for text in texts)
    return {name: value.strip('"') for name, _, value in known if names[name] == 1}


def _filter_warnings(export: dict[str, str]) -> tuple[str, ...]:
    warnings = []
    if export.get("EXPORT_PARAM_TIMES_TO_EXPORT"):
        warnings.append(
            "the export has only a part of the recorded time "
            f"(--times {export['EXPORT_PARAM_TIMES_TO_EXPORT']}): "
            "NVTX domain, category and thread names are lost in such exports"
        )
    if export.get("EXPORT_PARAM_TABLES_TO_EXPORT"):
        warnings.append(
            f"the export has only some tables (--tables {export['EXPORT_PARAM_TABLES_TO_EXPORT']})"
        )
    return tuple(warnings)


def shifted(frame: pl.DataFrame, metadata: Metadata, *columns: str) -> pl.DataFrame:
    """Subtract the exporter's offset from times in `columns`, so that 0 is the session's start."""
    if metadata.time_shift == 0:
        return frame
    return frame.with_columns(pl.col(columns) - metadata.time_shift)
