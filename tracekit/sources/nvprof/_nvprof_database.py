"""Convert an nvprof database to tracekit's tables of GPU work (ops), calls and ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath

import polars as pl

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.model import DEVICES, KIND, MACHINE, NO_KERNELS, Maker, Recording
from tracekit.sources._copies import graphs, memsets
from tracekit.sources._export_tables import (
    Feature,
    Strings,
    check_columns,
    coercions,
    read_contents,
)
from tracekit.sources._identities import HOST, OPS, Identities, report, small, steps
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import NO_CALLS, NO_RANGES, Seen, absences, counted, no_work
from tracekit.sources._times import Times
from tracekit.sources.nvprof._host import (
    CALL_COLUMNS,
    DRIVER,
    EVENT_RECORD,
    MARKER,
    MARKER_COLUMNS,
    MARKER_DATA,
    RUNTIME,
    SYNC,
    Calls,
    Markers,
    Syncs,
)
from tracekit.sources.nvprof._input import (
    COPIES,
    PROCESS,
    STRINGS,
    TABLE,
    THREAD,
    by_process,
    object_gid,
    owned,
    pid_of,
    thread_gid,
    tid_of,
    timed,
)
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

CONCURRENT, SERIAL = f"{TABLE}CONCURRENT_KERNEL", f"{TABLE}KERNEL"
MEMCPY, PEER_COPY = f"{TABLE}MEMCPY", f"{TABLE}MEMCPY2"
MEMSET, GRAPH = f"{TABLE}MEMSET", f"{TABLE}GRAPH_TRACE"
KERNEL_TABLES = (CONCURRENT, SERIAL)
GPU_TABLES = (*KERNEL_TABLES, MEMCPY, PEER_COPY, MEMSET, GRAPH)
GPU_COLUMNS = ("start", "end", "deviceId", "correlationId")

_HEAD = (*GPU_COLUMNS, "contextId", "streamId", "graphNodeId")
_IDENTITY = ("start", "end", "deviceId", "streamId", "correlationId")

_LOST = {
    "untimed": "GPU ops have no valid times and were left out",
    "unplaced": "GPU ops have no device and were left out",
    "twice": "kernels are in two tables and were counted once",
    "ownerless": "GPU ops could be of several of the processes in the file and were left out: "
    "record each process in a separate file (`nvprof -o run_%p.nvvp`)",
}


class GpuWork:
    """All GPU work (kernels, copies, memsets, whole graphs) of an nvprof database, as ops.

    Parameters
    ----------
    file
        The database.
    strings
        Strings of the database.
    owners
        Process id of all ops; or ``correlation, pid``, to look it up by correlation id.
    """

    def __init__(self, file: SqliteFile, strings: Strings, owners: int | pl.DataFrame) -> None:
        self._file = file
        self._strings, self._names = strings, KernelNames()
        self._owners = owners
        self.rows: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        """Table -> number of rows read."""
        self._kept: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        self.lost: Counter[str] = Counter()
        """Reason -> number of ops that were left out, or lack an attribute."""

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield ops with a time, a GPU and a process: kernels, then copies, memsets and graphs."""
        for table, (extra, make) in _TABLES.items():
            for batch in self._file.batches(table, dict.fromkeys((*_HEAD, *extra), "int"), rows):
                self.rows[table] += batch.height
                placed = self._placed(self._once(batch, table))
                self._kept[table] += placed.height
                made = make(self, placed)
                yield made.select(name for name in _KEPT if name in made.columns)

    @property
    def has_kernels(self) -> bool:
        """True if there is any kernel, or CUDA graph recorded as a whole."""
        return any(self._kept[table] for table in (*KERNEL_TABLES, GRAPH))

    def _once(self, batch: pl.DataFrame, table: str) -> pl.DataFrame:
        """Drop kernels of the serial table that the table of concurrent kernels lists, too."""
        if table != SERIAL or not self.rows[CONCURRENT]:
            return batch
        others = self._file.read(CONCURRENT, dict.fromkeys(_IDENTITY, "int"))
        once = batch.join(others, on=_IDENTITY, how="anti", maintain_order="left")
        self.lost["twice"] += batch.height - once.height
        return once

    def _placed(self, ops: pl.DataFrame) -> pl.DataFrame:
        valid = timed(ops)
        placed = valid.rename(_RENAMED).with_columns(
            device=small(pl.col("deviceId")).cast(pl.Int32)
        )
        placed = placed.drop_nulls("device")
        known = owned(placed, self._owners)
        self.lost["untimed"] += ops.height - valid.height
        self.lost["unplaced"] += valid.height - placed.height
        self.lost["ownerless"] += placed.height - known.height
        return known.with_columns(
            context=small(pl.col("contextId")).cast(pl.Int32),
            graph_node=pl.when(pl.col("graphNodeId") != 0).then("graphNodeId"),
        )

    def kernels(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Add kind, full name, short name and launch size (threads) to kernels."""
        ids = ops["name"].unique()
        names = pl.DataFrame([ids.alias("id"), *self._names.of(self._strings.of(ids))])
        named = ops.rename({"name": "id"}).join(names, on="id", how="left", maintain_order="left")
        return named.with_columns(kind=pl.lit("compute", KIND), launch_size=launch_size(ops))


def _copies(_work: GpuWork, ops: pl.DataFrame) -> pl.DataFrame:
    none = pl.lit(None, pl.Int32)
    return _classified(ops.with_columns(src_device=none, dst_device=none))


def _peer_copies(_work: GpuWork, ops: pl.DataFrame) -> pl.DataFrame:
    return _classified(
        ops.with_columns(
            src_device=small(pl.col("srcDeviceId")).cast(pl.Int32),
            dst_device=small(pl.col("dstDeviceId")).cast(pl.Int32),
        )
    )


def _classified(copies: pl.DataFrame) -> pl.DataFrame:
    return COPIES.ended(COPIES.directed(copies))


_COPY = ("bytes", "copyKind", "srcKind", "dstKind")
_TABLES: dict[str, tuple[tuple[str, ...], Callable[[GpuWork, pl.DataFrame], pl.DataFrame]]] = {
    CONCURRENT: (("name", *LAUNCH_SIZE), GpuWork.kernels),
    SERIAL: (("name", *LAUNCH_SIZE), GpuWork.kernels),
    MEMCPY: (_COPY, _copies),
    PEER_COPY: ((*_COPY, "srcDeviceId", "dstDeviceId"), _peer_copies),
    MEMSET: (("bytes",), lambda _, ops: memsets(ops)),
    GRAPH: (("graphId",), lambda _, ops: graphs(ops)),
}
"""Table -> columns that are read beside the common ones, and the function that makes ops."""
_RENAMED = {"correlationId": "correlation", "streamId": "stream"}
_KEPT = (
    "start", "end", "pid", "device", "context", "stream", "correlation", "graph_node", "name",
    "short_name", "kind", "bytes", "copy_kind", "host_memory", "src_device",
    "dst_device", "launch_size",
)  # fmt: skip


FORMAT = "nvprof SQLite"
NAME, DEVICE = f"{TABLE}NAME", f"{TABLE}DEVICE"
_UUID_BYTES = 16
_KILO = 1000
_REQUIRED = {
    **dict.fromkeys(GPU_TABLES, GPU_COLUMNS),
    **dict.fromkeys(KERNEL_TABLES, (*GPU_COLUMNS, "name")),
    **dict.fromkeys((RUNTIME, DRIVER), CALL_COLUMNS),
    MARKER: MARKER_COLUMNS,
}
_TIMED = {**dict.fromkeys((*GPU_TABLES, RUNTIME, DRIVER), "start"), MARKER: "timestamp"}
"""Tables whose first rows give the approximate time of the recording."""
_TOPOLOGY = ("CUPTI_ACTIVITY_KIND_NVLINK", "CUPTI_ACTIVITY_KIND_PCIE")
_RECORD_GPU = "record with `nvprof -o run.nvvp`"
_NO_PROCESS = 0
_YEAR_2000 = 946_684_800_000_000_000
"""Unix time, ns: earlier times are of a clock that is not the time of day."""


def is_nvprof(file: SqliteFile) -> bool:
    """Test whether an SQLite file is a database of nvprof or the Visual Profiler."""
    return file.has(STRINGS, "_id_", "value")


def read(file: SqliteFile, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Read an nvprof database into tracekit's tables; ops get stage and launching call later.

    A database contains absolute times, but not the time of its start. Here times count from the
    first event, whose time is ``session_start`` of the report, so that adding the two gives every
    recorded time exactly. If the clock is not the time of day (times before the year 2000),
    ``session_start`` is null.

    Raises
    ------
    MissingDataError
        If the database contains no GPU work and no NVTX ranges, or a table lacks a necessary
        column.
    DamagedTraceError
        If a table cannot be read.
    """
    check_columns(file, _REQUIRED, f"record again with {RECORD}")
    file.times = Times(file.path, file.first_times(_TIMED))
    rows, strings = workspace.rows, Strings(file, STRINGS, "_id_", "value", none=0)
    reading = steps(progress, "CUDA calls", "NVTX ranges", "GPU work")
    host, markers = Calls(file), Markers(file, strings)
    next(reading)
    calls = Seen(map(by_process, host.batches(rows)), workspace, *HOST)
    next(reading)
    ranges = Seen(map(by_process, markers.batches(rows)), workspace, *HOST)
    next(reading)
    names = object_names(file, strings)
    callers = _callers(calls, ranges, names)
    owners = _owners(callers, calls)
    work, syncs = GpuWork(file, strings, owners), Syncs(file, workspace, owners)
    ops = Seen(work.batches(rows), workspace, *OPS)
    next(reading)
    if not len(ops) and not len(ranges):
        raise MissingDataError(
            f"{no_work(work.lost['untimed'])} and no NVTX ranges in {file.path} (nvprof database)"
            f"{file.times.why_nothing}",
            f"record with {RECORD}",
        )
    identities = Identities(ops, calls, ranges)
    table = identities.processes(programs(names))
    machine, no_machine = _machine(file)
    payloads = markers.payloads() if table.height == 1 else pl.DataFrame(_NO_PAYLOADS)

    def payload(of: pl.DataFrame) -> pl.Series:
        return of.join(payloads, on="id", how="left", maintain_order="left")["payload"]

    return Recording(
        tables={
            "processes": table,
            "threads": threads(identities, names),
            "devices": devices(file, strings, ops.distinct.drop("pid")),
            "reports": _report(file, identities.origin),
            "machine": machine,
            "contents": read_contents(
                file, _FEATURES, {**work.rows, **host.rows, **syncs.rows, MARKER: markers.rows}
            ),
        },
        streams=identities.streams(payload=Maker(("id",), payload)),
        passing={
            "syncs": lambda: syncs.waits(identities),
            "event_records": lambda: syncs.records(identities),
        },
        warnings=(
            *absences(
                len(ops), work.lost["untimed"], _RECORD_GPU,
                (work.has_kernels, NO_KERNELS, _RECORD_GPU),
                (len(calls), NO_CALLS, "record with `nvprof --profile-api-trace all -o run.nvvp`"),
                (len(ranges), NO_RANGES, f"put NVTX ranges into the program and {_RECORD_GPU}"),
            ),
            *(["the process was not recorded; its id is set to 0"] * (callers == [_NO_PROCESS])),
            *counted(work.lost, _LOST),
            *host.losses,
            *markers.losses,
            *syncs.losses,
            *coercions(file),
            *file.times.losses,
            *no_machine,
            *file.warnings,
        ),
        labels=markers.labels.labels,
    )  # fmt: skip


_NO_PAYLOADS = {"id": pl.Series([], dtype=pl.Int64), "payload": pl.Series([], dtype=pl.String)}


def _callers(calls: Seen, ranges: Seen, names: pl.DataFrame) -> list[int]:
    """Return the ids of processes that may own GPU work: those with CUDA calls, else all known."""
    named = names.filter(pl.col("kind") == PROCESS).select(pid=pid_of(pl.col("gid")))
    for known in (calls.distinct, ranges.distinct, named):
        if len(known):
            return known["pid"].unique().sort().to_list()
    return [_NO_PROCESS]


def _owners(callers: list[int], calls: Seen) -> int | pl.DataFrame:
    """Return the process id of all GPU work; for several, ``correlation, pid`` where unambiguous.

    Tables of GPU work do not name the process, and each process counts its calls from 1: a
    correlation id is ambiguous if several processes have it. `callers` are the processes in
    question.
    """
    if len(callers) == 1:
        return callers[0]
    known = pl.DataFrame(schema={"correlation": pl.Int64, "pid": pl.Int64})
    for chunk in calls.rows.chunks(known.schema):
        known = pl.concat([known, chunk.drop_nulls().unique()])
    return known.unique().unique("correlation", keep="none")


def _machine(file: SqliteFile) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the machine's topology (tables NVLINK and PCIE), and a warning if it is corrupt."""
    if not any(file.has(table) and file.count(table) for table in _TOPOLOGY):
        return MACHINE.empty(), ()
    # A machine is a graph, which takes time to load.
    from tracekit.machine import machine_toml, read_topology  # noqa: PLC0415

    try:
        description = machine_toml(read_topology(file.path))
    except MissingDataError:
        return MACHINE.empty(), ()
    except DamagedTraceError as error:
        return MACHINE.empty(), (f"the machine is not known from the trace: {error}",)
    return pl.DataFrame({"description": [description]}), ()


def _report(file: SqliteFile, origin: int) -> pl.DataFrame:
    versions = file.read("Version", {"version": "int"})["version"].drop_nulls()
    return report(
        file.path,
        FORMAT,
        schema_version=str(versions[0]) if len(versions) else None,
        session_start=origin if origin >= _YEAR_2000 else None,
    )


RECORD = "nvprof -o run.nvvp PROGRAM (nsys profile -t cuda,nvtx for GPUs that nvprof does not know)"


_FEATURES = (
    Feature("kernels", KERNEL_TABLES, "GPU time by stage and kernel", RECORD),
    Feature("copies", (MEMCPY, PEER_COPY), "input data and peer copies", RECORD),
    Feature("memsets", (MEMSET,), "GPU time of memsets", RECORD),
    Feature("whole CUDA graphs", (GRAPH,), "GPU time of CUDA graphs, not of their nodes", RECORD),
    Feature(
        "CUDA calls",
        (RUNTIME, DRIVER),
        "which thread launched an op, and when",
        "nvprof --profile-api-trace all -o run.nvvp PROGRAM",
    ),
    Feature(
        "NVTX events",
        (MARKER,),
        "stages, layers and iterations",
        "nvprof -o run.nvvp PROGRAM, with NVTX ranges in the program",
    ),
    Feature(
        "NVTX values", (MARKER_DATA,), "values that the program attached to its ranges", RECORD
    ),
    Feature("GPU descriptions", (DEVICE,), "which physical GPU is meant", RECORD),
    Feature(
        "waits for GPU work",
        (SYNC,),
        "when the host waited for which stream, event or context",
        RECORD,
    ),
    Feature(
        "records of CUDA events", (EVENT_RECORD,), "which stream waits for which other one", RECORD
    ),
    Feature(
        "NVLink and PCIe",
        _TOPOLOGY,
        "what joins the GPUs (give the file to `tracekit links --topology`)",
        RECORD,
    ),
)


def object_names(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    """Return the program's names for processes and threads: ``kind, gid`` (global id), ``name``."""
    rows = file.read(NAME, {"objectKind": "int", "objectId": "blob", "name": "int"})
    return (
        rows.select(
            kind="objectKind",
            gid=object_gid(pl.col("objectKind"), pl.col("objectId")),
            name=pl.lit(strings.of(rows["name"])),
        )
        .drop_nulls(["gid", "name"])
        .unique(["kind", "gid"], keep="first", maintain_order=True)
    )


def programs(names: pl.DataFrame) -> dict[int, str | None]:
    """Return the name of each process's executable: process id -> name.

    A process is recorded with its whole command line, which may contain private data: only the name
    of the executable is kept.
    """
    commands = names.filter(pl.col("kind") == PROCESS).select(pid_of(pl.col("gid")), "name")
    return {pid: _executable(command) for pid, command in commands.iter_rows()}


def _executable(command: str) -> str | None:
    words = command.split(maxsplit=1)
    return PurePath(words[0]).name or None if words else None


def threads(ids: Identities, names: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``threads`` for a database, without the column ``report``."""
    gid = pl.col("gid")
    named = names.filter(pl.col("kind") == THREAD).select("name", pid=pid_of(gid), tid=tid_of(gid))
    return ids.threads(named).with_columns(global_id=thread_gid(pl.col("pid"), pl.col("tid")))


def devices(file: SqliteFile, strings: Strings, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``devices`` (without ``report``): GPUs that the file describes or ops use.

    Parameters
    ----------
    file, strings
        The database and its strings.
    ops
        ``device, src_device, dst_device`` of the ops.
    """
    described = _described(file, strings)
    active = ops["device"].drop_nulls()
    seen = pl.concat([ops[name] for name in ops.columns]).drop_nulls()
    every = pl.concat([described["device"], seen.cast(pl.Int32)]).unique().sort()
    table = every.to_frame("device").join(described, on="device", how="left", maintain_order="left")
    table = table.with_columns(
        active=pl.col("device").is_in(active.cast(pl.Int32).implode()),
        identity=pl.when("known").then(pl.lit("ordinal")).otherwise(pl.lit("unknown")),
    )
    return table.select(name for name in DEVICES.schema if name in table.columns)


def _described(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    numbers = (
        "id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors",
        "computeCapabilityMajor", "computeCapabilityMinor",
    )  # fmt: skip
    rows = file.read(DEVICE, {**dict.fromkeys(numbers, "int"), "uuid": "blob"})
    return (
        rows.with_columns(strings.of(rows["name"]).alias("product"))
        .select(
            device=small(pl.col("id")).cast(pl.Int32),
            name="product",
            uuid=_uuid(),
            memory_bytes=_positive("globalMemorySize"),
            peak_memory_bandwidth=_positive("globalMemoryBandwidth") * _KILO,
            sm_count=small(_positive("numMultiprocessors")).cast(pl.Int32),
            compute_capability=pl.format(
                "{}.{}", "computeCapabilityMajor", "computeCapabilityMinor"
            ),
            known=pl.lit(value=True),
        )
        .drop_nulls("device")
        .unique("device", keep="first", maintain_order=True)
    )


def _positive(name: str) -> pl.Expr:
    return pl.when(pl.col(name) > 0).then(name)


def _uuid() -> pl.Expr:
    uuid = pl.col("uuid")
    is_complete = (uuid.bin.size() == _UUID_BYTES) & (uuid != bytes(_UUID_BYTES))
    text = uuid.bin.encode("hex")
    parts = (text.str.slice(at, length) for at, length in ((0, 8), (8, 4), (12, 4), (16, 4)))
    return pl.when(is_complete).then(pl.concat_str(*parts, text.str.slice(20), separator="-"))
