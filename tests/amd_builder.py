"""Small RPDs, row by row, in the tables of rocmProfileData (schema version 2)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Self

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
