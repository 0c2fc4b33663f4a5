"""Small recordings of AMD's profilers, row by row.

RPDs have the tables of rocmProfileData (schema version 2), JSON the keys of rocprofv3 that are read
and some that are not.
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
        self.pid = pid
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
                "node": {"hostname": "juniper"}, "pid": self.pid,
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
