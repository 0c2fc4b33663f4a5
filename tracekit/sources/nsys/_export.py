"""From an export's tables to the canonical ones."""

from __future__ import annotations

import os
from collections.abc import Callable

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.model import Trace
from tracekit.sources._sqlite import SqliteFile
from tracekit.sources.nsys._contents import read_contents
from tracekit.sources.nsys._devices import DeviceMap, map_devices
from tracekit.sources.nsys._gpu import GPU_TABLES, drop_unplaced, read_ops
from tracekit.sources.nsys._host import (
    NVTX,
    RUNTIME,
    ranges_of,
    read_calls,
    read_nvtx,
    thread_names,
)  # fmt: skip
from tracekit.sources.nsys._ids import Strings, pid_of, process_of, tid_of
from tracekit.sources.nsys._metadata import Metadata, read_metadata

Progress = Callable[[str, int, int], None]

FORMAT = "nsys SQLite"
_REQUIRED = {
    **dict.fromkeys(GPU_TABLES, ("start", "end", "deviceId", "globalPid")),
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "end", "globalTid", "eventType"),
}
_STEPS = ("GPU work", "CUDA calls", "NVTX ranges", "devices and threads")


def is_nsys(file: SqliteFile) -> bool:
    """Tell whether an SQLite file is an export of Nsight Systems, whole or trimmed."""
    return file.has("StringIds", "id", "value")


def read(file: SqliteFile, progress: Progress = lambda *_: None) -> Trace:
    """Return the canonical tables of an export; stages and launches are not attributed yet.

    Raises
    ------
    MissingDataError
        If the export holds neither GPU work nor NVTX ranges, or a table lacks a necessary column.
    DamagedTraceError
        If a table cannot be read.
    """
    metadata = read_metadata(file)
    _check_content(file, metadata)
    strings = Strings(file)
    step = _stepper(progress)
    step()
    ops, lost = drop_unplaced(read_ops(file, metadata, strings), metadata)
    step()
    calls = read_calls(file, metadata, strings)
    step()
    nvtx = read_nvtx(file, strings)
    ranges = _closed(ranges_of(nvtx, metadata), ops, calls, metadata)
    step()
    if ops.is_empty() and ranges.is_empty():
        raise _nothing_recorded(file, metadata)
    names = thread_names(file, nvtx, strings)
    processes, threads = _processes(file, ops, calls, ranges), _threads(calls, ranges, names)
    devices = map_devices(file, ops, metadata)
    step()
    warnings = (
        *metadata.warnings,
        *_absences(ops, calls, ranges),
        *lost,
        *_coercions(file),
        *_unrecorded_graphs(ops, calls),
    )
    return _assemble(file, metadata, processes, threads, devices, ops, calls, ranges, warnings)


def _stepper(progress: Progress) -> Callable[[], None]:
    done = iter(range(len(_STEPS) + 1))

    def step() -> None:
        number = next(done)
        progress("read " + _STEPS[min(number, len(_STEPS) - 1)], number, len(_STEPS))

    return step


def _check_content(file: SqliteFile, metadata: Metadata) -> None:
    if not any(table in file.tables for table in (*GPU_TABLES, NVTX)):
        raise _nothing_recorded(file, metadata)
    for table, columns in _REQUIRED.items():
        absent = [column for column in columns if not file.has(table, column)]
        if table in file.tables and absent:
            raise MissingDataError(
                f"{table} has no column {', '.join(absent)} in {file.path} ({_schema(metadata)})",
                "export the report again with a current nsys: nsys export --type sqlite REPORT",
            )


def _nothing_recorded(file: SqliteFile, metadata: Metadata) -> MissingDataError:
    return MissingDataError(
        f"no GPU work and no NVTX ranges in {file.path} ({_schema(metadata)})",
        "record with `nsys profile -t cuda,nvtx`",
    )


def _schema(metadata: Metadata) -> str:
    return f"schema {metadata.schema_version}" if metadata.schema_version else "no schema version"


def _closed(
    ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame, metadata: Metadata
) -> pl.DataFrame:
    """End the ranges that were still open when recording ended."""
    ends = [metadata.duration, ops["end"].max(), calls["end"].max(), ranges["end"].max()]
    ends.append(ranges["start"].max())
    last = max((end for end in ends if isinstance(end, int)), default=0)
    at_end = pl.col("end") >= metadata.duration if metadata.duration else pl.lit(value=False)
    return ranges.with_columns(
        open=pl.col("end").is_null() | at_end,
        # An end before its start (a clock that was set back) makes the range empty, not negative.
        end=pl.max_horizontal(pl.col("end").fill_null(last), "start"),
    )


def _processes(
    file: SqliteFile, ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame
) -> pl.DataFrame:
    seen = pl.concat([frame.select("process_gid") for frame in (ops, calls, ranges)])
    known = file.read("PROCESSES", {"globalPid": "int", "name": "text"})
    known = known.unique("globalPid", keep="first")
    return (
        seen.drop_nulls()
        .unique()
        .sort("process_gid")
        .with_row_index("process")
        .join(known, left_on="process_gid", right_on="globalPid", how="left", maintain_order="left")
        .with_columns(pid=pid_of(pl.col("process_gid")), global_id="process_gid")
    )


def _threads(calls: pl.DataFrame, ranges: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    seen = [
        calls.select("thread_gid"),
        ranges.select("thread_gid"),
        ranges.filter(process_of(pl.col("end_thread_gid")) == pl.col("process_gid")).select(
            thread_gid="end_thread_gid"
        ),
    ]
    return (
        pl.concat(seen)
        .drop_nulls()
        .unique()
        .sort("thread_gid")
        .with_row_index("thread")
        .join(names, on="thread_gid", how="left", maintain_order="left")
        .with_columns(
            tid=tid_of(pl.col("thread_gid")),
            global_id="thread_gid",
            process_gid=process_of(pl.col("thread_gid")),
        )
    )


def _absences(ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> tuple[str, ...]:
    """Say what numbers must not be read as, where the export lacks what they would need."""
    if ops.is_empty():
        return ("no GPU work was recorded: record with `nsys profile -t cuda,nvtx`",)
    kernels = ops.filter(pl.col("kind").is_in(["compute", "graph"]))
    absences = (
        (kernels, "no kernels were recorded, so GPU time is that of copies and memsets alone"),
        (calls, "no CUDA calls were recorded, so no op's launch, range or iteration is known"),
        (ranges, "no NVTX ranges were recorded, so stages are told by names of kernels alone"),
    )
    hint = "record with `nsys profile -t cuda,nvtx`"
    return tuple(f"{absence}: {hint}" for frame, absence in absences if frame.is_empty())


def _coercions(file: SqliteFile) -> tuple[str, ...]:
    return tuple(
        f"{count:,} values of {column} are not of its type and were left out"
        for column, count in file.coerced.items()
    )


def _unrecorded_graphs(ops: pl.DataFrame, calls: pl.DataFrame) -> tuple[str, ...]:
    launches = calls.filter(pl.col("name").cast(pl.String).str.contains("(?i)^cu(da)?GraphLaunch"))
    silent = launches.join(ops, on=["process_gid", "correlation"], how="anti")
    if silent.is_empty():
        return ()
    lost = f"GPU time of {silent.height:,} CUDA graph launches was not recorded"
    return (f"{lost}: record with `--cuda-graph-trace=node`",)


def _assemble(
    file: SqliteFile,
    metadata: Metadata,
    processes: pl.DataFrame,
    threads: pl.DataFrame,
    devices: DeviceMap,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    warnings: tuple[str, ...],
) -> Trace:
    report = pl.lit(0, pl.Int32).alias("report")
    process = processes.select("process_gid", "process")
    thread = threads.select("thread_gid", "thread")
    tables = {
        "processes": processes,
        "threads": threads.join(process, on="process_gid", how="left", maintain_order="left"),
        "devices": devices.devices,
        "ops": _numbered(_placed(ops, devices), "op").join(
            process, on="process_gid", how="left", maintain_order="left"
        ).with_columns(stage=pl.lit("OTHER"), stage_source=pl.lit("none")),
        "calls": _with_thread(_numbered(calls, "call"), process, thread),
        "ranges": _with_thread(_numbered(ranges, "range"), process, thread).join(
            thread.rename({"thread": "end_thread"}),
            left_on="end_thread_gid", right_on="thread_gid", how="left", maintain_order="left",
        ),
    }  # fmt: skip
    tables = {name: frame.with_columns(report) for name, frame in tables.items()}
    tables["reports"] = _report(file, metadata)
    tables["contents"] = read_contents(file)
    return Trace.of(tables, warnings)


def _numbered(frame: pl.DataFrame, key: str) -> pl.DataFrame:
    """Give numbers by start; of rows that start together, the one that ends last is first."""
    ordered = frame.sort("start", "end", descending=[False, True], maintain_order=True)
    return ordered.with_row_index(key)


def _placed(ops: pl.DataFrame, devices: DeviceMap) -> pl.DataFrame:
    """Put the run's devices in the place of each process's ordinals."""
    for role in ("", "src_", "dst_"):
        ordinals = devices.ordinals.rename({"ordinal": f"{role}ordinal", "device": f"{role}device"})
        ops = ops.join(
            ordinals, on=["process_gid", f"{role}ordinal"], how="left", maintain_order="left"
        )
    return ops


def _with_thread(frame: pl.DataFrame, process: pl.DataFrame, thread: pl.DataFrame) -> pl.DataFrame:
    return frame.join(process, on="process_gid", how="left", maintain_order="left").join(
        thread, on="thread_gid", how="left", maintain_order="left"
    )


def _report(file: SqliteFile, metadata: Metadata) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "report": [0],
            # A file's name may be any bytes; those that are no text are replaced.
            "file": [os.fsencode(file.path.name).decode("utf-8", "replace")],
            "format": [FORMAT],
            "product": [metadata.product],
            "schema_version": [metadata.schema_version],
            "size": [file.path.stat().st_size],
            "host": [metadata.host],
            "session_start": [metadata.session_start],
            "duration": [metadata.duration],
        }
    )
