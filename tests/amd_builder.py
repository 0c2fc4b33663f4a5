"""Small recordings of AMD's profilers, row by row.

RPDs have the tables of rocmProfileData (schema version 2), JSON the keys of rocprofv3 that are read
and some that are not, databases of rocprofv3 its tables in the older or the newer layout.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, Self

SESSION = 1 << 32
"""What ids of a session count from."""
EPOCH = 3_489_389_198_142_444
"""A time since the start of the machine, more than a float holds exactly with a fraction."""

_TABLES = """
CREATE TABLE rocpd_metadata (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER,
    "end" INTEGER, apiName_id INTEGER, args_id INTEGER);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
    completionSignal TEXT, start INTEGER, "end" INTEGER, description_id INTEGER,
    opType_id INTEGER);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, gridX INTEGER,
    gridY INTEGER, gridZ INTEGER, workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER,
    kernelName_id INTEGER);
CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, size INTEGER,
    kind INTEGER, dstDevice INTEGER, srcDevice INTEGER);
CREATE TABLE ext_autogradapi (api_ptr_id INTEGER PRIMARY KEY, autogradName_id INTEGER,
    seq INTEGER, op_id INTEGER, sizes TEXT, input_op_ids TEXT);
CREATE TABLE rocpd_monitor (id INTEGER PRIMARY KEY, deviceType TEXT, deviceId INTEGER,
    monitorType TEXT, start INTEGER, "end" INTEGER, value TEXT);
CREATE VIEW op AS SELECT id FROM rocpd_op;
INSERT INTO rocpd_metadata (tag, value) VALUES ('schema_version', '2');
"""


class RpdBuilder:
    """An RPD of literal rows, whose times count from `EPOCH`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = sqlite3.connect(path)
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.commit()
        self._file.close()

    def string(self, text: str) -> int:
        """Return the number of a text."""
        found = self._file.execute("SELECT id FROM rocpd_string WHERE string = ?", (text,))
        known = found.fetchone()
        if known:
            return int(known[0])
        made = self._file.execute("INSERT INTO rocpd_string (string) VALUES (?)", (text,))
        return int(made.lastrowid or 0)

    def _add(self, table: str, **values: object) -> int:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        row = tuple(values.values())
        made = self._file.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
        return int(made.lastrowid or 0)

    def call(self, start: int, end: int, name: str, args: str = "", pid: int = 7,
             tid: int = 8) -> int:  # fmt: skip
        """Add a row of the table of calls; return its id."""
        count = self._file.execute("SELECT count(*) FROM rocpd_api").fetchone()[0]
        return self._add(
            "rocpd_api", id=SESSION + count + 1, pid=pid, tid=tid, start=EPOCH + start,
            end=EPOCH + end, apiName_id=self.string(name), args_id=self.string(args),
        )  # fmt: skip

    def marker(self, start: int, end: int, text: str, sequence: object = None) -> int:
        """Add a marker, or an operator of PyTorch with its sequence number."""
        number = self.call(start, end, "UserMarker", text)
        if sequence is not None:
            self._add("ext_autogradapi", api_ptr_id=number, seq=sequence)
        return number

    def op(self, start: int, end: int, kind: str = "KernelExecution", name: str = "",
           call: int | None = None, gpu: int | None = 2, queue: int = 0) -> int:  # fmt: skip
        """Add GPU work of a call."""
        number = self._add(
            "rocpd_op", gpuId=gpu, queueId=queue, start=EPOCH + start, end=EPOCH + end,
            description_id=self.string(name), opType_id=self.string(kind),
        )  # fmt: skip
        if call is not None:
            self._add("rocpd_api_ops", api_id=call, op_id=number)
        return number

    def kernel(self, start: int, end: int, name: str, *, grid: tuple[int, int, int] = (4, 2, 1),
               block: tuple[int, int, int] = (64, 1, 1), stream: str = "0x0",
               function: str = "hipLaunchKernel") -> int:  # fmt: skip
        """Add a kernel and the call that launched it just before."""
        call = self.call(start - 5, start - 1, function)
        names = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
        sizes = dict(zip(names, (*grid, *block), strict=True))
        name_id = self.string(name)
        self._add("rocpd_kernelapi", api_ptr_id=call, stream=stream, kernelName_id=name_id, **sizes)
        return self.op(start, end, name=name, call=call)

    def copy(self, start: int, end: int, kind: str, size: int, *, devices: tuple[int, int] = (0, 0),
             ops: int = 1) -> int:  # fmt: skip
        """Add a copy (or several of one call) and the call that asked for it."""
        call = self.call(start - 5, start - 1, "hipMemcpyAsync")
        self._add(
            "rocpd_copyapi", api_ptr_id=call, stream="0x1f", size=size, kind=4,
            srcDevice=devices[0], dstDevice=devices[1],
        )  # fmt: skip
        for number in range(ops):
            self.op(start + number, end + number, kind, call=call)
        return call


KINDS = {
    "KERNEL_DISPATCH": ["NONE", "ENQUEUE", "COMPLETE"],
    "MEMORY_COPY": [f"MEMORY_COPY_{ends}" for ends in ("NONE", "HOST_TO_DEVICE", "DEVICE_TO_HOST",
                                                       "DEVICE_TO_DEVICE")],
    "HIP_RUNTIME_API_EXT": ["hipLaunchKernel", "hipMemcpyAsync", "hipGetDeviceCount"],
    "MARKER_CORE_RANGE_API": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"],
    "RCCL_API": ["ncclAllGather", "ncclAllReduce"],
}  # fmt: skip
HOST_AGENT, GPU_AGENT = 100, 200


class RocprofBuilder:
    """JSON of rocprofv3 of one process, whose times count from `EPOCH`."""

    def __init__(self, gpus: int = 2, pid: int = 7) -> None:
        self.arrays: dict[str, list[Any]] = {
            name: []
            for name in ("kernel_dispatch", "hip_api", "hsa_api", "marker_api", "rccl_api",
                         "memory_copy", "memory_allocation")
        }  # fmt: skip
        self.symbols: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []
        self.pid, self.host = pid, "juniper"
        self.agents = [{"id": {"handle": HOST_AGENT}, "type": 1, "logical_node_type_id": 0}]
        self.agents += [
            {
                "id": {"handle": GPU_AGENT + number}, "type": 2, "logical_node_type_id": number,
                "product_name": "AMD Instinct MI350X", "cu_count": 256, "domain": 0,
                "location_id": 29_952, "mem_banks": [{"size_in_bytes": 309_220_868_096}],
                "uuid": {"bytes": {f"value{place}": 200 + place for place in range(16)}},
            }
            for number in range(gpus)
        ]  # fmt: skip

    def record(self, array: str, operation: str, start: int, end: int, *, correlation: int = 1,
               tid: int = 8, **more: Any) -> dict[str, Any]:  # fmt: skip
        """Add a record to an array."""
        kind = next(n for n, names in enumerate(KINDS.values()) if operation in names)
        record = {
            "size": 88, "kind": kind, "operation": list(KINDS.values())[kind].index(operation),
            "thread_id": tid, "correlation_id": {"internal": correlation, "external": 0},
            "start_timestamp": EPOCH + start, "end_timestamp": EPOCH + end, **more,
        }  # fmt: skip
        self.arrays[array].append(record)
        return record

    def kernel(self, start: int, end: int, name: str, *, correlation: int = 1, gpu: int = 0,
               stream: int = 3, grid: tuple[int, int, int] = (512, 2, 1)) -> None:  # fmt: skip
        """Add a kernel and its symbol."""
        number = 10 + len(self.symbols)
        self.symbols.append(
            {"kernel_id": number, "kernel_name": f"{name}.kd", "formatted_kernel_name": name}
        )
        info = {
            "agent_id": {"handle": GPU_AGENT + gpu}, "queue_id": {"handle": 16},
            "kernel_id": number, "grid_size": dict(zip("xyz", grid, strict=True)),
            "workgroup_size": {"x": 64, "y": 1, "z": 1},
        }  # fmt: skip
        self.record(
            "kernel_dispatch", "COMPLETE", start, end, correlation=correlation,
            stream_id={"handle": stream}, dispatch_info=info,
        )  # fmt: skip

    def copy(self, start: int, end: int, ends: str, size: int, source: int, target: int,
             correlation: int = 1) -> None:  # fmt: skip
        """Add a copy between agents."""
        self.record(
            "memory_copy", f"MEMORY_COPY_{ends}", start, end, correlation=correlation,
            bytes=size, src_agent_id={"handle": source}, dst_agent_id={"handle": target},
            stream_id={"handle": 3},
        )  # fmt: skip

    def call(self, start: int, end: int, name: str, correlation: int = 1) -> None:
        """Add a call of HIP."""
        self.record("hip_api", name, start, end, correlation=correlation)

    def marker(self, start: int, end: int, text: str, correlation: int, *, tid: int = 8,
               function: str = "roctxThreadRangeA") -> None:  # fmt: skip
        """Add a range of roctx."""
        self.record("marker_api", function, start, end, correlation=correlation, tid=tid)
        self.texts.append({"key": correlation, "value": text})

    @property
    def process(self) -> dict[str, Any]:
        """The object of the process."""
        kinds = [{"kind": kind, "operations": names} for kind, names in KINDS.items()]
        return {
            "metadata": {
                "node": {"hostname": self.host}, "pid": self.pid,
                "command": ["/usr/bin/python3.10", "train.py", "--key=secret"],
            },
            "agents": self.agents,
            "strings": {"callback_records": kinds[:1], "buffer_records": kinds,
                        "marker_api": self.texts, "pc_sample_comments": ["a", "b"]},
            "kernel_symbols": self.symbols,
            "summary": [],
            "callback_records": {"counter_collection": []},
            "buffer_records": self.arrays,
        }  # fmt: skip

    def write(self, path: Path, *others: RocprofBuilder) -> Path:
        """Write the file, with other processes in it."""
        processes = [each.process for each in (self, *others)]
        path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}, separators=(",", ":")))
        return path


_ROCPD = """
CREATE TABLE rocpd_metadata{e} (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string{e} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_node{e} (id INTEGER PRIMARY KEY, hostname TEXT);
CREATE TABLE rocpd_info_process{e} (id INTEGER PRIMARY KEY, nid INTEGER, pid INTEGER, command TEXT,
    environment JSONB);
CREATE TABLE rocpd_info_thread{e} (id INTEGER PRIMARY KEY, nid INTEGER, pid INTEGER, tid INTEGER,
    name TEXT);
CREATE TABLE rocpd_info_agent{e} (id INTEGER PRIMARY KEY, type TEXT, absolute_index INTEGER,
    type_index INTEGER, uuid INTEGER, name TEXT, product_name TEXT, extdata JSONB);
CREATE TABLE rocpd_info_kernel_symbol{e} (id INTEGER PRIMARY KEY, kernel_name TEXT,
    display_name TEXT);
CREATE TABLE rocpd_event{e} (id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER,
    parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB);
CREATE TABLE rocpd_track{e} (id INTEGER PRIMARY KEY, nid INTEGER{track});
CREATE TABLE rocpd_region{e} (id INTEGER PRIMARY KEY{place}, start BIGINT, "end" BIGINT,
    name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch{e} (id INTEGER PRIMARY KEY{place}, kernel_id INTEGER,
    dispatch_id INTEGER, start BIGINT, "end" BIGINT, workgroup_size_x INTEGER,
    workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER,
    grid_size_z INTEGER, event_id INTEGER, graph_node_id INTEGER);
CREATE TABLE rocpd_memory_copy{e} (id INTEGER PRIMARY KEY{place}, start BIGINT, "end" BIGINT,
    name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, event_id INTEGER);
CREATE TABLE rocpd_memory_allocate{e} (id INTEGER PRIMARY KEY{place}, type TEXT, level TEXT,
    start BIGINT, "end" BIGINT, address INTEGER, size INTEGER, event_id INTEGER);
"""
_PLACE = ("pid", "tid", "agent_id", "queue_id", "stream_id")


class RocpdBuilder:
    """A database of rocprofv3, whose times count from `EPOCH`.

    Parameters
    ----------
    path
        The file; the tables of a process are added to those that are there.
    newer
        Whether the places of rows are in ``rocpd_track``, and numbers of threads are none of a
        table.
    """

    def __init__(self, path: Path, pid: int = 7, guid: str = "_00aa", *, newer: bool = False,
                 environment: dict[str, str] | None = None, gpus: int = 2) -> None:  # fmt: skip
        self.path, self.pid, self._ending, self._newer = path, pid, guid, newer
        self._file = sqlite3.connect(path)
        self._file.execute("PRAGMA synchronous = OFF")
        place = "".join(f", {name} INTEGER" for name in _PLACE)
        self._file.executescript(
            _ROCPD.format(
                e=guid,
                place=", track_id INTEGER" if newer else place,
                track=place if newer else ", pid INTEGER, tid INTEGER",
            )
        )
        if newer:
            self._file.execute(
                f"CREATE TABLE rocpd_info_category{guid} (id INTEGER PRIMARY KEY, name TEXT)"
            )
        self._add("metadata", tag="schema_version", value="4.1.0" if newer else "3")
        self._add("info_node", id=1, hostname="juniper")
        self._add("info_process", id=pid + 1000, nid=1, pid=pid,
                  command="/usr/bin/python3 train.py --key=secret",
                  environment=json.dumps(environment or {}))  # fmt: skip
        self._add("info_thread", id=2008, pid=pid + 1000, tid=8, name="main")
        self._add("info_agent", id=0, type="CPU", absolute_index=0, type_index=0)
        for number in range(gpus):
            told = {"product_name": "AMD Instinct MI350X", "cu_count": 256, "domain": 0,
                    "location_id": 29_952}  # fmt: skip
            self._add(
                "info_agent",
                id=4 + number,
                type="GPU",
                absolute_index=4 + number,
                type_index=number,
                uuid=123,
                name="gfx950",
                extdata=json.dumps(told),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.commit()
        self._file.close()

    def _add(self, table: str, **values: object) -> int:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        made = self._file.execute(
            f'INSERT INTO "rocpd_{table}{self._ending}" ({names}) VALUES ({marks})',
            tuple(values.values()),
        )
        return int(made.lastrowid or 0)

    def _number(self, table: str, column: str, text: str) -> int:
        found = self._file.execute(
            f'SELECT id FROM "rocpd_{table}{self._ending}" WHERE "{column}" = ?', (text,)
        ).fetchone()
        return int(found[0]) if found else self._add(table, **{column: text})

    def _event(self, category: str, correlation: int, message: str | None = None) -> int:
        table = ("info_category", "name") if self._newer else ("string", "string")
        told = {} if message is None else {"message": message}
        return self._add(
            "event", category_id=self._number(*table, category), stack_id=correlation,
            parent_stack_id=correlation, correlation_id=0, extdata=json.dumps(told),
        )  # fmt: skip

    def _place(self, **place: int) -> dict[str, int]:
        if not self._newer:
            return {"pid": self.pid + 1000, "tid": 2008, **place}
        row = {"pid": self.pid, "tid": 8, **place}
        return {"track_id": self._add("track", **row)}

    def region(self, start: int, end: int, name: str, category: str = "HIP_RUNTIME_API_EXT", *,
               correlation: int = 1, message: str | None = None) -> int:  # fmt: skip
        """Add a call or a range."""
        return self._add(
            "region", start=EPOCH + start, end=EPOCH + end,
            name_id=self._number("string", "string", name),
            event_id=self._event(category, correlation, message), **self._place(),
        )  # fmt: skip

    def marker(self, start: int, end: int, text: str, function: str = "roctxThreadRangeA") -> int:
        """Add a range of roctx."""
        return self.region(start, end, function, "MARKER_CORE_RANGE_API", message=text)

    def kernel(self, start: int, end: int, name: str, *, correlation: int = 1, gpu: int = 0,
               stream: int = 3, node: int = 0,
               grid: tuple[int, int, int] = (512, 2, 1)) -> int:  # fmt: skip
        """Add a kernel; its grid counts threads."""
        sizes = dict(zip((f"grid_size_{axis}" for axis in "xyz"), grid, strict=True))
        return self._add(
            "kernel_dispatch", start=EPOCH + start, end=EPOCH + end, graph_node_id=node,
            kernel_id=self._number("info_kernel_symbol", "display_name", name),
            workgroup_size_x=64, workgroup_size_y=1, workgroup_size_z=1, **sizes,
            event_id=self._event("KERNEL_DISPATCH", correlation),
            **self._place(agent_id=4 + gpu, queue_id=1, stream_id=stream),
        )  # fmt: skip

    def copy(self, start: int, end: int, ends: str, size: int, source: int, target: int,
             correlation: int = 1) -> int:  # fmt: skip
        """Add a copy between agents: 0 is the host, 4 the first GPU."""
        return self._add(
            "memory_copy", start=EPOCH + start, end=EPOCH + end, size=size, src_agent_id=source,
            dst_agent_id=target, name_id=self._number("string", "string", f"MEMORY_COPY_{ends}"),
            event_id=self._event("MEMORY_COPY", correlation), **self._place(stream_id=3),
        )  # fmt: skip

    def allocation(self, at: int, kind: str, address: int, size: int = 0, agent: int | None = None,
                   level: str = "REAL") -> int:  # fmt: skip
        """Add an allocation or a release of memory."""
        place = {} if agent is None else {"agent_id": agent}
        return self._add(
            "memory_allocate", type=kind, level=level, start=EPOCH + at, end=EPOCH + at + 1,
            address=address, size=size, event_id=None, **self._place(**place),
        )  # fmt: skip
