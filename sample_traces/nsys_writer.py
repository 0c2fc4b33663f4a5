"""Write SQLite files in the schema of a given nsys version, row by row.

The schema comes from ``schemas/nsys``. A row or a value for which that version has no table or no
column is left out, as nsys itself does; a name that no version has is an error. Tables appear with
their first row, so an absent table means that there was nothing to record, again as in nsys.
"""

from __future__ import annotations

import re
import sqlite3
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

SCHEMAS = Path(__file__).resolve().parents[1] / "schemas" / "nsys"
VM = 1 << 48

Value = int | float | str | bytes | None
"""What a cell may hold."""

_ZERO: dict[str, Value] = {"INTEGER": 0, "TEXT": "", "REAL": 0.0}
_COPY_ENDS = {1: (1, 2), 2: (2, 1), 8: (2, 2), 9: (1, 1), 10: (2, 2)}
_ONE_BLOCK = {
    "launchType": 1, "registersPerThread": 32, "gridX": 1, "gridY": 1, "gridZ": 1,
    "blockX": 128, "blockY": 1, "blockZ": 1,
}  # fmt: skip
_NO_ID = 4294967295
_CATEGORY, _MARK, _PUSH_POP, _START_END, _DOMAIN = 33, 34, 59, 60, 75


@dataclass(frozen=True)
class Schema:
    """Tables and columns of one schema version.

    Parameters
    ----------
    version
        Name of the version, such as ``3.11.1``.
    products
        Versions of nsys that write it.
    tables
        Column declarations (``name TYPE [NOT NULL] [PRIMARY KEY]``) by table.
    """

    version: str
    products: tuple[str, ...]
    tables: dict[str, tuple[str, ...]]


def schema_versions() -> tuple[str, ...]:
    """Return the names of all schema versions, without order."""
    return tuple(path.stem for path in SCHEMAS.glob("*.toml") if path.stem != "tables")


@cache
def load_schema(version: str) -> Schema:
    """Read a schema version; tables it does not list are taken from the one it refers to."""
    with (SCHEMAS / f"{version}.toml").open("rb") as file:
        content = tomllib.load(file)
    tables = {name: tuple(columns) for name, columns in content["tables"].items()}
    if "unlisted" in content:
        tables = load_schema(content["unlisted"]).tables | tables
    return Schema(content["schema"], tuple(content["products"]), tables)


@cache
def _known_names() -> dict[str, frozenset[str]]:
    """Column names by table, over all schema versions."""
    names: dict[str, frozenset[str]] = {}
    for version in schema_versions():
        for table, columns in load_schema(version).tables.items():
            names[table] = names.get(table, frozenset()) | {c.split()[0] for c in columns}
    return names


def global_pid(pid: int) -> int:
    """Pack a process id as the column globalPid holds it."""
    return VM | pid << 24


def global_tid(pid: int, tid: int | None = None) -> int:
    """Pack a thread as the column globalTid holds it; the main thread has the id of its process."""
    return global_pid(pid) | (pid if tid is None else tid)


def base_name(kernel: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters."""
    plain = re.sub(r"<unnamed>::|\(anonymous namespace\)::|^void ", "", kernel)
    return re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1]


@cache
def _name_and_default(column: str) -> tuple[str, Value]:
    """Return a column's name, and what it holds for null; SQLite itself numbers primary keys."""
    name, kind, *constraints = column.split()
    required = "NOT" in constraints and "PRIMARY" not in constraints
    return name, _ZERO[kind] if required else None


def _cell(column: str, values: dict[str, Value]) -> Value:
    """Return what a row holds in a column."""
    name, default = _name_and_default(column)
    value = values.get(name)
    return default if value is None else value


class NsysWriter:
    """A file in the schema of an nsys version, written row by row.

    Methods take nanoseconds, bytes, process and thread ids as the operating system counts them,
    and names as text. Where no process is given it is 100; where no thread, its main thread.

    Parameters
    ----------
    path
        File to write; one that exists is replaced.
    schema
        Schema version, one of `schema_versions`.
    product
        Product name for the metadata table, where the version has one.
    """

    def __init__(
        self, path: Path | str, schema: str = "3.11.1", product: str = "NVIDIA Nsight Systems"
    ) -> None:
        self.path = Path(path)
        self.schema = load_schema(schema)
        self.path.unlink(missing_ok=True)
        self._file = sqlite3.connect(self.path)
        for setting in ("journal_mode = MEMORY", "synchronous = OFF"):  # it is made again if lost
            self._file.execute(f"PRAGMA {setting}")
        self._created: set[str] = set()
        self._strings: dict[str, int] = {}
        self._ranges = 0
        self._create("StringIds")
        self.meta("EXPORT_PRODUCT_NAME", product)
        self.meta("EXPORT_PRODUCT_VERSION", self.schema.products[0])
        self.meta("EXPORT_SCHEMA_VERSION", self.schema.version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._file.commit()
        self._file.close()

    def insert(self, table: str, **values: Value) -> None:
        """Add a row; absent columns are null, or zero or empty where null is not allowed.

        Raises
        ------
        ValueError
            If no schema version has that table or one of those columns.
        """
        unknown = set(values) - _known_names().get(table, frozenset())
        if unknown or table not in _known_names():
            raise ValueError(f"no schema has {table}({', '.join(sorted(unknown))})")
        if table not in self.schema.tables:
            return
        self._create(table)
        row = [_cell(column, values) for column in self.schema.tables[table]]
        marks = ", ".join("?" * len(row))
        self._file.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    def _create(self, table: str) -> None:
        if table in self._created:
            return
        columns = ", ".join(
            f'"{name}" {rest}'
            for name, rest in (column.split(" ", 1) for column in self.schema.tables[table])
        )
        self._file.execute(f"CREATE TABLE {table} ({columns})")
        self._created.add(table)

    def string(self, value: str) -> int:
        """Return the id of a string in StringIds; it is added when it is new."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.insert("StringIds", id=self._strings[value], value=value)
        return self._strings[value]

    # GPU work

    def kernel(
        self,
        start: int,
        end: int,
        *,
        name: str = "foo<float>(int)",
        short_name: str | None = None,
        **op: Any,
    ) -> None:
        """Add a kernel; its short name follows from `name` unless given.

        `op`, here and for all other GPU work, says which it is and where it ran: `correlation`,
        `pid`, `device`, `stream`, `context`, `graph_node`, and further columns by name.
        """
        columns = {"demangledName": self.string(name)}
        columns["shortName"] = self.string(short_name or base_name(name))
        self._op("CUPTI_ACTIVITY_KIND_KERNEL", start, end, **(_ONE_BLOCK | columns | op))

    def memcpy(
        self,
        start: int,
        end: int,
        *,
        kind: int = 1,
        bytes: int = 1024,  # noqa: A002 - the word of the model
        src_device: int | None = None,
        dst_device: int | None = None,
        src_kind: int | None = None,
        dst_kind: int | None = None,
        **op: Any,
    ) -> None:
        """Add a copy; `kind` is 1 HtoD, 2 DtoH, 8 DtoD, 9 HtoH, 10 PtoP.

        The kinds of memory (0 pageable, 1 pinned, 2 device) follow from `kind` unless given.
        """
        source, target = _COPY_ENDS.get(kind, (7, 7))
        self._op(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start, end, copyKind=kind, bytes=bytes,
            srcDeviceId=src_device, dstDeviceId=dst_device,
            srcKind=source if src_kind is None else src_kind,
            dstKind=target if dst_kind is None else dst_kind, **op,
        )  # fmt: skip

    def memset(
        self,
        start: int,
        end: int,
        *,
        bytes: int = 1024,  # noqa: A002 - the word of the model
        **op: Any,
    ) -> None:
        """Add a memset of device memory."""
        columns = {"bytes": bytes, "memKind": 2}
        self._op("CUPTI_ACTIVITY_KIND_MEMSET", start, end, **(columns | op))

    def graph_trace(
        self, start: int, end: int, *, graph: int = 1, graph_exec: int = 2, **op: Any
    ) -> None:
        """Add a CUDA graph recorded as a whole."""
        columns = {"graphId": graph, "graphExecId": graph_exec}
        self._op("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, end, **(columns | op))

    def _op(
        self,
        table: str,
        start: int,
        end: int,
        *,
        correlation: int | None = None,
        pid: int = 100,
        device: int = 0,
        stream: int = 7,
        context: int = 1,
        **columns: Value,
    ) -> None:
        if "graph_node" in columns:
            columns["graphNodeId"] = columns.pop("graph_node")
        self.insert(
            table, start=start, end=end, correlationId=correlation, globalPid=global_pid(pid),
            deviceId=device, streamId=stream, contextId=context, **columns,
        )  # fmt: skip

    def memory(
        self,
        at: int,
        address: int,
        size: int = 0,
        *,
        frees: bool = False,
        pid: int = 100,
        device: int = 0,
        kind: int = 2,
        **columns: Value,
    ) -> None:
        """Add an allocation of memory, or its release.

        `kind` is 1 pinned, 2 device, 3 array, 4 managed, 5 device static.
        """
        row: dict[str, Value] = {
            "start": at, "globalPid": global_pid(pid), "deviceId": device, "contextId": 1,
            "address": address, "bytes": size, "memKind": kind, "memoryOperationType": int(frees),
        }  # fmt: skip
        self.insert("CUDA_GPU_MEMORY_USAGE_EVENTS", **(row | columns))

    # the host's side

    def sync(
        self,
        start: int,
        end: int,
        *,
        correlation: int | None = None,
        pid: int = 100,
        device: int = 0,
        context: int = 1,
        stream: int = _NO_ID,
        event: int = _NO_ID,
        **columns: Value,
    ) -> None:
        """Add a wait: for a stream, for an event (of a stream, if both are given), or for all."""
        self.insert(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=start, end=end, correlationId=correlation, globalPid=global_pid(pid),
            deviceId=device, contextId=context, streamId=stream, eventId=event, **columns,
        )  # fmt: skip

    def event_record(
        self,
        event: int,
        *,
        correlation: int | None = None,
        pid: int = 100,
        device: int = 0,
        context: int = 1,
        stream: int = 7,
        **columns: Value,
    ) -> None:
        """Add the record of a CUDA event in a stream."""
        self.insert(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            eventId=event, correlationId=correlation, globalPid=global_pid(pid),
            deviceId=device, contextId=context, streamId=stream, **columns,
        )  # fmt: skip

    def graph_node(
        self, at: int, node: int, original: int | None = None, *, pid: int = 100,
        tid: int | None = None,
    ) -> None:  # fmt: skip
        """Add the making of a node of a CUDA graph, or of a copy of the node `original`."""
        newer = "CUDA_GRAPH_NODE_EVENTS" in self.schema.tables
        self.insert(
            "CUDA_GRAPH_NODE_EVENTS" if newer else "CUDA_GRAPH_EVENTS",
            start=at, end=at + 1, globalTid=global_tid(pid, tid), nameId=self.string("node"),
            graphNodeId=node, originalGraphNodeId=original,
        )  # fmt: skip

    def call(
        self,
        start: int,
        end: int,
        *,
        correlation: int | None = None,
        pid: int = 100,
        tid: int | None = None,
        name: str = "cudaLaunchKernel_v7000",
        event_class: int = 0,
        result: int = 0,
    ) -> None:
        """Add a CUDA call: `event_class` 0 is the runtime, 1 the driver API."""
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start, end=end, correlationId=correlation, globalTid=global_tid(pid, tid),
            nameId=self.string(name), eventClass=event_class, returnValue=result,
        )  # fmt: skip

    def nvtx(
        self,
        event_type: int,
        start: int,
        end: int | None,
        name: str | None,
        *,
        pid: int = 100,
        tid: int | None = None,
        domain: int = 0,
        registered: bool = False,
        **columns: Value,
    ) -> None:
        """Add an NVTX event; a `registered` name lies in StringIds and leaves the text null."""
        text = {"textId": self.string(name)} if registered and name is not None else {"text": name}
        self.insert(
            "NVTX_EVENTS",
            start=start, end=end, eventType=event_type, globalTid=global_tid(pid, tid),
            domainId=domain, **text, **columns,
        )  # fmt: skip

    def push_pop(self, start: int, end: int | None, name: str | None, **event: Any) -> None:
        """Add a push/pop range; `event` is as for `nvtx`: pid, tid, domain, registered, columns."""
        self.nvtx(_PUSH_POP, start, end, name, **event)

    def start_end(
        self,
        start: int,
        end: int | None,
        name: str | None,
        *,
        pid: int = 100,
        end_tid: int | None = None,
        **event: Any,
    ) -> None:
        """Add a start/end range; `end_tid` is the thread that ended it, where another."""
        self._ranges += 1
        if end_tid is not None:
            event["endGlobalTid"] = global_tid(pid, end_tid)
        self.nvtx(_START_END, start, end, name, pid=pid, **({"rangeId": self._ranges} | event))

    def mark(self, at: int, name: str | None, **event: Any) -> None:
        """Add an NVTX mark; `event` is as for `push_pop`."""
        self.nvtx(_MARK, at, None, name, **event)

    def domain(
        self, pid: int, domain_id: int, name: str, start: int = 0, tid: int | None = None
    ) -> None:
        """Add the row that names an NVTX domain of a process."""
        self.nvtx(_DOMAIN, start, None, name, pid=pid, tid=tid, domain=domain_id)

    def category(self, pid: int, category_id: int, name: str, *, domain: int = 0) -> None:
        """Add the row that names an NVTX category."""
        self.nvtx(_CATEGORY, 0, None, name, pid=pid, domain=domain, category=category_id)

    def payload_schema(
        self,
        domain: int,
        schema: int,
        entries: Sequence[tuple[str | None, int, int | None]],
        size: int | None,
        **columns: Value,
    ) -> None:
        """Declare a layout of extended payloads: names, types and offsets of fields, and its size.

        Zeros are left out as nsys does.
        """
        layout = {"type": 1, "numEntries": len(entries), "payloadSize": size} | columns
        self.insert("NVTX_PAYLOAD_SCHEMAS", domainId=domain or None, schemaId=schema, **layout)
        for number, (name, kind, offset) in enumerate(entries):
            self.insert(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=domain, schemaId=schema, idx=number, name=name, type=kind,
                offset=offset or None,
            )  # fmt: skip

    def payload_enum(
        self, domain: int, schema: int, names: Sequence[tuple[str, int]], size: int | None = 4
    ) -> None:
        """Declare an enumeration that fields of extended payloads have for their type."""
        self.insert(
            "NVTX_PAYLOAD_ENUMS",
            domainId=domain or None, schemaId=schema, numEntries=len(names), size=size,
        )  # fmt: skip
        for number, (name, value) in enumerate(names):
            self.insert(
                "NVTX_PAYLOAD_ENUM_ENTRIES",
                domainId=domain, schemaId=schema, idx=number, name=name, value=value or None,
            )  # fmt: skip

    def overhead(
        self,
        start: int,
        end: int,
        name: str | None,
        *,
        type: int = 3,  # noqa: A002 - the word of the schema
        table: str = "PROFILER_OVERHEAD",
        pid: int = 100,
        tid: int | None = None,
        **columns: Value,
    ) -> None:
        """Add a stretch of time that the profiler took: `type` 3 to flush, 4 to instrument."""
        row: dict[str, Value] = {
            "start": start, "end": end, "globalTid": global_tid(pid, tid), "overheadType": type,
            "nameId": None if name is None else self.string(name),
        }  # fmt: skip
        self.insert(table, **(row | columns))

    def mpi(
        self,
        group: str,
        start: int,
        end: int | None,
        name: str | None,
        *,
        pid: int = 100,
        tid: int | None = None,
        **columns: Value,
    ) -> None:
        """Add an MPI call to the table of a `group`: P2P, COLLECTIVES, START_WAIT or OTHER."""
        self._called(f"MPI_{group}", start, end, name, pid, tid, **columns)

    def ucx(
        self, group: str, start: int, end: int | None, name: str | None, *, pid: int = 100,
        tid: int | None = None, **columns: Value,
    ) -> None:  # fmt: skip
        """Add a call of UCX to the table of a `group`: UCP_SUBMIT, UCP_PROGRESS or UCP."""
        self._called(group, start, end, name, pid, tid, **columns)

    def _called(
        self, table: str, start: int, end: int | None, name: str | None, pid: int,
        tid: int | None, **columns: Value,
    ) -> None:  # fmt: skip
        self.insert(
            f"{table}_EVENTS",
            start=start, end=end, globalTid=global_tid(pid, tid),
            textId=None if name is None else self.string(name), **columns,
        )  # fmt: skip

    def mpi_rank(self, pid: int, rank: int, tid: int | None = None) -> None:
        """Say which MPI rank a thread initialised."""
        self.insert("MPI_RANKS", globalTid=global_tid(pid, tid), rank=rank)

    def thread_name(self, pid: int, tid: int, name: str, priority: int = 20) -> None:
        """Name a thread."""
        self.insert(
            "ThreadNames",
            nameId=self.string(name), priority=priority, globalTid=global_tid(pid, tid),
        )  # fmt: skip

    def process(self, pid: int, name: str) -> None:
        """Name a process."""
        self.insert("PROCESSES", globalPid=global_pid(pid), pid=pid, name=name)

    # the machine and the recording

    def gpu(
        self,
        gpu_id: int,
        *,
        cu_device: int | None = None,
        name: str = "NVIDIA A100-SXM4-40GB",
        bus: str | None = None,
        uuid: str | None = None,
        **more: Value,
    ) -> None:
        """Add a GPU of the machine; its CUDA ordinal is `gpu_id` unless given."""
        description: dict[str, Value] = {
            "isDiscrete": 1, "totalMemory": 42_350_739_456, "memoryBandwidth": 1_555_200_000_000,
            "smCount": 108, "chipName": "GA100", "computeMajor": 8, "computeMinor": 0,
        }  # fmt: skip
        self.insert(
            "TARGET_INFO_GPU",
            vmId=VM, id=gpu_id, name=name,
            cuDevice=gpu_id if cu_device is None else cu_device,
            busLocation=bus or f"0000:{gpu_id + 1:02X}:00.0",
            uuid=uuid or f"00000000-0000-0000-0000-{gpu_id:012x}",
            **(description | more),
        )  # fmt: skip

    def context(self, pid: int, context: int, device: int) -> None:
        """Say which GPU, by its CUDA ordinal, a CUDA context of a process belongs to."""
        for table in ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM"):
            self.insert(table, vmId=1, processId=pid, contextId=context, deviceId=device)

    def gpu_metrics(self, type_id: int, *names: str) -> None:
        """Name the metrics that are sampled of a GPU; its id is in the lowest bits of `type_id`."""
        for number, name in enumerate(names):
            self.insert("TARGET_INFO_GPU_METRICS", typeId=type_id, metricId=number, metricName=name)

    def gpu_sample(self, at: int, type_id: int, *values: int | None) -> None:
        """Add a sample of each of a GPU's metrics."""
        for number, value in enumerate(values):
            if value is not None:
                self.insert(
                    "GPU_METRICS", timestamp=at, typeId=type_id, metricId=number, value=value
                )

    def nic(self, global_id: int, nic_id: int, name: str) -> None:
        """Name a network adapter, and the id that its samples have."""
        self.insert("NIC_ID_MAP", nicId=nic_id, globalId=global_id)
        self.insert("TARGET_INFO_NIC_INFO", nicId=nic_id, name=name)

    def nic_metrics(self, list_id: int, *names: tuple[str, str]) -> None:
        """Give names and units to a list of metrics of network adapters."""
        for number, (name, unit) in enumerate(names):
            self.insert(
                "TARGET_INFO_NETWORK_METRICS",
                metricsListId=list_id, metricsIdx=number, name=name, unit=unit,
            )  # fmt: skip

    def nic_sample(self, start: int, end: int, global_id: int, list_id: int, *values: int) -> None:
        """Add a sample of each of an adapter's metrics."""
        for number, value in enumerate(values):
            self.insert(
                "NET_NIC_METRIC",
                start=start, end=end, globalId=global_id, metricsListId=list_id,
                metricsIdx=number, value=value,
            )  # fmt: skip

    def cuda_device(self, pid: int, cuda_id: int, gpu_id: int, uuid: str | None = None) -> None:
        """Say which GPU a process means by a CUDA ordinal."""
        self.insert(
            "TARGET_INFO_CUDA_DEVICE",
            pid=pid, cudaId=cuda_id, gpuId=gpu_id,
            uuid=uuid or f"00000000-0000-0000-0000-{gpu_id:012x}",
        )  # fmt: skip

    def meta(self, name: str, value: str) -> None:
        """Add a key of the export's metadata table, whichever name that table has."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            self.insert(table, name=name, value=value)

    def capture(self, name: str, value: str) -> None:
        """Add a key of the capture's metadata; names may repeat."""
        self.insert("META_DATA_CAPTURE", name=name, value=value)

    def env(self, name: str, value: str, *, device: str = "Local (CLI)", number: int = 0) -> None:
        """Add a property of the machine's environment, such as ``Hostname``."""
        self.insert(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=VM, devStateName=device, name=name, nameEnum=number, value=value,
        )  # fmt: skip

    def session(self, utc_epoch_ns: int, duration: int) -> None:
        """Say when the recording started, in Unix time, and how long it is."""
        self.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_epoch_ns)
        self.insert("ANALYSIS_DETAILS", globalVid=VM, duration=duration, stopTime=duration)
