"""GPU work of nsys exports: kernels, copies, memsets and whole CUDA graphs as one table of ops.

Frames here name processes by global id (``process_gid``) and GPUs by the process's own CUDA ordinal
(``ordinal``, ``src_ordinal``, ``dst_ordinal``). If a copy names contexts but no GPUs, its GPUs are
those of the contexts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import polars as pl

from tracekit.model import KIND
from tracekit.sources._copies import DIRECTION, Copies, graphs, memsets
from tracekit.sources._export_tables import ExportFile
from tracekit.sources._identities import small
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import counted
from tracekit.sources._syncs import LOST, by_call, chunks, ordered, sync_type
from tracekit.sources.nsys._ids import Export, Texts, given, pid_of, with_all
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.nsys._places import Places
from tracekit.sources.sqlite import SqlType
from tracekit.support.spool import Workspace

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GPU_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)

_HEAD: dict[str, SqlType] = {
    "start": "int",
    "end": "int",
    "deviceId": "narrow",
    "contextId": "narrow",
    "streamId": "narrow",
    "correlationId": "narrow",
    "globalPid": "int",
}

_COPIES = Copies(
    host_memory=(0, 1),  # pageable, pinned
    device_memory=(2, 3, 5),  # device, array, device static
    managed_memory=(4, 6),  # managed, managed static
    here="deviceId",
    source="src_ordinal",
    target="dst_ordinal",
)
"""How nsys encodes copies, by the codes of its own tables of names, which may be absent or
empty."""
_LOST = {
    "untimed": "GPU ops have no valid times and were left out",
    "unplaced": "GPU ops have no device or process and were left out",
    "by context": "copies between GPUs were placed by their CUDA contexts",
    "endless": "copies between GPUs lack their source or target",
}
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT_RECORD = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_SYNC_HEAD = (
    "deviceId", "contextId", "streamId", "eventId", "correlationId", "globalPid", "eventSyncId",
)  # fmt: skip
_TIED = ["process_gid", "eventSyncId"]
"""Columns that tie a wait to its event record, in exports since 2026."""


class GpuWork:
    """All GPU work (kernels, copies, memsets, whole graphs) of an nsys export, as ops."""

    def __init__(self, export: Export) -> None:
        self._file = export.file
        self._metadata = export.metadata
        self._names = Texts(export.strings, pl.Categorical())
        self._short_names = Texts(export.strings, pl.Categorical())
        self._contexts = _Contexts(export.file, GPU_TABLES)
        self.rows: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        """Table -> number of rows read."""
        self._kept: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        self.lost: Counter[str] = Counter()
        """Reason -> number of ops that were left out, or lack an attribute."""

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield ops with a time, a GPU and a process: kernels, then copies, memsets and graphs."""
        for table, (extra, make) in _TABLES.items():
            for batch in self._file.batches(table, {**_HEAD, **extra}, rows):
                self.rows[table] += batch.height
                placed = self._placed(_with_head(batch, self._metadata))
                self._kept[table] += placed.height
                yield make(self, placed).rename(_RENAMED, strict=False)

    @property
    def has_kernels(self) -> bool:
        """True if there is any kernel, or CUDA graph recorded as a whole."""
        return bool(self._kept[KERNEL] or self._kept[GRAPH])

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings for users: on ops that were left out, and on copies with unclear GPUs."""
        return counted(self.lost, _LOST)

    def _placed(self, ops: pl.DataFrame) -> pl.DataFrame:
        start, end = ops["start"], ops["end"]
        # Times that are not known are 0, whether or not the exporter shifted that as well.
        unknown = (start == end) & ((start == 0) | (start == -self._metadata.time_shift))
        is_timed = (end >= start) & ~unknown
        timed = ops if is_timed.all(ignore_nulls=False) else ops.filter(is_timed)
        placed = with_all(timed, "deviceId", "globalPid")
        self.lost["untimed"] += ops.height - timed.height
        self.lost["unplaced"] += timed.height - placed.height
        return placed

    def kernels(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add kind, full name, short name and launch size (threads) to kernels."""
        name = self._names.of(frame["demangledName"])
        short_name = self._short_names.of(frame["shortName"])
        return frame.drop("demangledName", "shortName", *LAUNCH_SIZE).with_columns(
            kind=pl.lit("compute", KIND),
            name=_else(name, short_name),
            short_name=_else(short_name, name),
            launch_size=launch_size(frame),
        )

    def copies(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add kind (such as h2d), names, and source and target GPU to copies."""
        copies = _COPIES.directed(frame).with_columns(
            src_ordinal=small(pl.col("srcDeviceId")).cast(pl.Int32),
            dst_ordinal=small(pl.col("dstDeviceId")).cast(pl.Int32),
        )
        copies = _COPIES.ended(self._with_ends_by_context(copies))
        self._count_ends(copies)
        return copies.drop(*_COPY, "by_context").with_columns(pl.col("copy_kind").cast(DIRECTION))

    def _with_ends_by_context(self, copies: pl.DataFrame) -> pl.DataFrame:
        """Fill in missing source and target GPUs of copies from the CUDA contexts they name."""
        copies = copies.with_columns(by_context=pl.lit(value=False))
        if not ((copies["kind"] == "p2p") | (copies["kind"] == "d2d")).any():
            return copies
        among_gpus = pl.col("kind").is_in(("p2p", "d2d"))
        for ordinal, context in (("src_ordinal", "srcContextId"), ("dst_ordinal", "dstContextId")):
            silent = among_gpus & pl.col(ordinal).is_null()
            contexts = copies.select(
                process_gid="globalPid", context=pl.when(silent).then(given(pl.col(context)))
            )
            if contexts["context"].count():
                found = self._contexts.ordinals(contexts)
                copies = copies.with_columns(
                    pl.coalesce(ordinal, found).alias(ordinal),
                    by_context=pl.col("by_context") | found.is_not_null(),
                )
        return copies

    def _count_ends(self, copies: pl.DataFrame) -> None:
        peers = copies.filter(copies["kind"] == "p2p")
        if peers.is_empty():
            return
        self.lost["by context"] += int(peers["by_context"].sum())
        ends = pl.any_horizontal(pl.col("src_ordinal", "dst_ordinal").is_null())
        self.lost["endless"] += int(peers.select(ends.sum()).item())


def _else(first: pl.Series, second: pl.Series) -> pl.Series:
    """Return `first`, with the values of `second` in place of its nulls."""
    return first if not first.null_count() else pl.select(pl.coalesce(first, second)).to_series()


def _with_head(frame: pl.DataFrame, metadata: Metadata) -> pl.DataFrame:
    return shifted(frame, metadata, "start", "end").with_columns(
        small(pl.col("deviceId", "contextId")).cast(pl.Int32), given(pl.col("streamId"))
    )


def _narrow(*columns: str) -> dict[str, SqlType]:
    return dict.fromkeys(columns, "narrow")


_COPY = (
    "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "srcContextId", "dstContextId",
)  # fmt: skip
"""Columns that only `GpuWork.copies` uses."""
_ENDS: dict[str, SqlType] = dict.fromkeys(("srcContextId", "dstContextId"), "int")
"""Columns with the contexts at both ends of a copy."""
_RENAMED = {
    "deviceId": "ordinal",
    "contextId": "context",
    "streamId": "stream",
    "correlationId": "correlation",
    "globalPid": "process_gid",
    "graphNodeId": "graph_node",
}
_TABLES: dict[str, tuple[dict[str, SqlType], Callable[[GpuWork, pl.DataFrame], pl.DataFrame]]] = {
    KERNEL: (
        _narrow("demangledName", "shortName", "graphNodeId", *LAUNCH_SIZE),
        GpuWork.kernels,
    ),
    MEMCPY: ({**_narrow("bytes", "graphNodeId", *_COPY), **_ENDS}, GpuWork.copies),
    MEMSET: (
        _narrow("bytes", "graphNodeId"),
        lambda _, ops: memsets(ops, "dst_ordinal", "deviceId"),
    ),
    GRAPH: (_narrow("graphId"), lambda _, ops: graphs(ops).drop("graphId")),
}
"""Table -> columns that are read beside the common ones, and the function that makes ops."""


_DECLARING = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_KEY = ["pid", "context"]


class _Contexts:
    """Lookup of the GPU (CUDA ordinal) of each CUDA context of a process.

    Parameters
    ----------
    file
        The export.
    tables
        Tables of GPU work, used for contexts that are in no other table.
    """

    def __init__(self, file: ExportFile, tables: Sequence[str]) -> None:
        self._file = file
        self._tables = tables

    def ordinals(self, contexts: pl.DataFrame) -> pl.Series:
        """Return the CUDA ordinal of each context's GPU; null if unknown.

        `contexts` has ``process_gid`` (nsys's global process id), ``context``; null contexts give
        null.
        """
        keys = contexts.select("context", pid=pid_of(pl.col("process_gid")))
        found = _looked_up(keys, self._declared)
        lacking = found.is_null() & keys["context"].is_not_null()
        return (
            found.zip_with(~lacking, _looked_up(keys, self._observed)) if lacking.any() else found
        )

    @cached_property
    def _declared(self) -> pl.DataFrame:
        columns = ("processId", "contextId", "deviceId")
        rows = [self._file.read(table, dict.fromkeys(columns, "int")) for table in _DECLARING]
        return _unequivocal(
            pl.concat(rows).select(
                pid="processId", context="contextId", ordinal=small(pl.col("deviceId"))
            )
        )

    @cached_property
    def _observed(self) -> pl.DataFrame:
        columns = ("globalPid", "contextId", "deviceId")
        seen = pl.DataFrame(schema=dict.fromkeys((*_KEY, "ordinal"), pl.Int64))
        for table in self._tables:
            for batch in self._file.batches(table, dict.fromkeys(columns, "int")):
                rows = batch.select(
                    pid=pid_of(pl.col("globalPid")),
                    context="contextId",
                    ordinal=small(pl.col("deviceId")),
                )
                seen = pl.concat([seen, rows.unique()]).unique()
        return _unequivocal(seen)


def _looked_up(keys: pl.DataFrame, known: pl.DataFrame) -> pl.Series:
    found = keys.join(known, on=_KEY, how="left", maintain_order="left")
    return found["ordinal"].cast(pl.Int32)


def _unequivocal(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the contexts that have the same GPU in all rows; ``process_gid`` is a global id."""
    return rows.drop_nulls().unique().filter(pl.len().over(_KEY) == 1)


class Syncs:
    """Host waits for GPU work, and records of CUDA events, of an nsys export.

    Parameters
    ----------
    workspace
        Folder and memory budget for rows until they are sorted.
    """

    def __init__(self, export: Export, workspace: Workspace) -> None:
        self._export = export
        self._untimed = 0
        self.rows = {SYNC: 0, EVENT_RECORD: 0}
        """Table -> number of rows read."""
        self._records = ordered(self._read_records(workspace.rows), workspace)
        self._waits = ordered(self._read_waits(workspace.rows), workspace)

    def _read_waits(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_SYNC_HEAD, "start", "end"), "int")
        recorded = self._recorded()
        for batch in self._export.file.batches(SYNC, columns, rows):
            self.rows[SYNC] += batch.height
            timed = batch.filter(pl.col("end") >= pl.col("start")).drop_nulls("globalPid")
            self._untimed += batch.height - timed.height
            waits = _named(shifted(timed, self._export.metadata, "start", "end"))
            of_event = pl.when(pl.col("event").is_not_null()).then("eventSyncId")
            yield (
                waits.with_columns(sync_type(), of_event)
                .join(recorded, on=_TIED, how="left", maintain_order="left")
                .drop("eventSyncId")
            )

    def _read_records(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_SYNC_HEAD, "timestamp"), "int")
        for batch in self._export.file.batches(EVENT_RECORD, columns, rows):
            self.rows[EVENT_RECORD] += batch.height
            # Where the GPU's time was not collected it is 0.
            is_time = (pl.col("timestamp") > 0) & self._export.file.times.hold(pl.col("timestamp"))
            times = batch.with_columns(pl.when(is_time).then("timestamp"))
            timed = shifted(times, self._export.metadata, "timestamp").drop_nulls("globalPid")
            yield by_call(_named(timed).rename({"timestamp": "time"}).drop("eventSyncId"))

    def _recorded(self) -> pl.DataFrame:
        """Return ``process_gid, eventSyncId, recorded_by``: the call that recorded a CUDA event.

        `process_gid` is the global process id, `eventSyncId` the record's id, `recorded_by` the
        call's correlation id; records whose ids occur twice are left out.
        """
        columns = ("globalPid", "eventSyncId", "correlationId")
        if not self._export.file.has(EVENT_RECORD, *columns):
            return pl.DataFrame(schema=dict.fromkeys((*_TIED, "recorded_by"), pl.Int64))
        keys = self._export.file.read(EVENT_RECORD, dict.fromkeys(columns, "int")).drop_nulls()
        named = keys.select(*_TIED[1:], process_gid="globalPid", recorded_by="correlationId")
        return named.unique(_TIED, keep="none")

    def waits(self, places: Places) -> Iterator[pl.DataFrame]:
        """Yield the table ``syncs``: host waits for GPU work, sorted by start."""
        for chunk in chunks(self._waits, "syncs", "process_gid", "ordinal"):
            yield _placed(chunk, places)

    def records(self, places: Places) -> Iterator[pl.DataFrame]:
        """Yield the table ``event_records``: calls that recorded CUDA events."""
        for chunk in chunks(self._records, "event_records", "process_gid", "ordinal"):
            yield _placed(chunk, places)

    def losses(self, places: Places) -> tuple[str, ...]:
        """Warnings, one sentence each, on waits left out, as they lack valid times or a process."""
        pids = self._waits.chunks({"process_gid": pl.Int64})
        lost = self._untimed + sum(
            places.process(chunk["process_gid"]).null_count() for chunk in pids
        )
        return (f"{lost:,} {LOST}",) if lost else ()


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(
        given(pl.col("streamId", "eventId")), small(pl.col("deviceId", "contextId"))
    ).rename(
        {
            "deviceId": "ordinal", "contextId": "context", "streamId": "stream",
            "eventId": "event", "correlationId": "correlation", "globalPid": "process_gid",
        }
    )  # fmt: skip


def _placed(rows: pl.DataFrame, places: Places) -> pl.DataFrame:
    process = places.process(rows["process_gid"])
    device = places.device(process, rows["ordinal"])
    return rows.with_columns(process=process, device=device).drop_nulls("process")
