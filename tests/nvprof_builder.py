"""Databases of nvprof of literal rows, in the tables of any version of ``schemas/nvprof``.

    with NvprofBuilder(tmp_path / "t.nvvp", schema="11.2") as nvprof:
        nvprof.range(90, 130, "forward")
        nvprof.call(100, 105, correlation=1)
        nvprof.kernel(110, 120, correlation=1, name="_Z4gemmIfEvi")

As nvprof does, it makes all tables at once and writes 0 where it has no value. Times are counted
from `EPOCH`, which is more than a float can hold exactly.
"""

from __future__ import annotations

import sqlite3
import struct
import tomllib
from pathlib import Path
from typing import Any, Self

SCHEMAS = Path(__file__).resolve().parents[1] / "schemas" / "nvprof"
VERSIONS = ("8", "11.2", "11.8", "12.4")
EPOCH = 1_583_975_499_355_129_131

START, END, MARK = 2, 4, 1
PROCESS, THREAD = 1, 2


def tables_of(version: str) -> dict[str, list[str]]:
    """Return column declarations by table."""
    with (SCHEMAS / f"{version}.toml").open("rb") as file:
        tables = tomllib.load(file)["tables"]
    return {name: [each.strip() for each in text.split(",")] for name, text in tables.items()}


def object_id(pid: int, tid: int = 0, rest: bytes = bytes(4)) -> bytes:
    """Pack a thread as MARKER.objectId holds it."""
    return struct.pack("<iI", pid, tid & 0xFFFFFFFF) + rest


class NvprofBuilder:
    """A database in the tables of an nvprof version, written row by row."""

    def __init__(self, path: Path, schema: str = "11.2", version: int | None = 16) -> None:
        self.path = path
        self.tables = tables_of(schema)
        self._file = sqlite3.connect(path)
        self._marker = 0
        execute = self._file.execute
        execute("PRAGMA synchronous = OFF")
        execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY AUTOINCREMENT,"
                " value TEXT NOT NULL UNIQUE)")  # fmt: skip
        execute("INSERT INTO StringTable VALUES (0, '-- null --')")
        execute("CREATE TABLE Version (version INTEGER)")
        if version is not None:
            execute("INSERT INTO Version VALUES (?)", (version,))
        for name, columns in self.tables.items():
            declared = (
                each if each.endswith("BLOB") else f"{each} INT NOT NULL" for each in columns
            )
            execute(
                f"CREATE TABLE CUPTI_ACTIVITY_KIND_{name}"
                f" (_id_ INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(declared)})"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.commit()
        self._file.close()

    def string(self, text: str | None) -> int:
        """Return the number of a string."""
        if text is None:
            return 0
        self._file.execute("INSERT OR IGNORE INTO StringTable (value) VALUES (?)", (text,))
        query = "SELECT _id_ FROM StringTable WHERE value = ?"
        [(number,)] = self._file.execute(query, (text,)).fetchall()
        return int(number)

    def insert(self, table: str, **values: Any) -> None:
        """Add a row of literal values; what this version has no column for is left out."""
        row = {}
        for declared in self.tables[table]:
            name, *kind = declared.split()
            row[name] = values.get(name, b"" if kind else 0)
        marks = ", ".join("?" * len(row))
        self._file.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} ({', '.join(row)}) VALUES ({marks})",
            tuple(row.values()),
        )

    def _gpu(self, table: str, start: int, end: int, correlation: int, **values: Any) -> None:
        head = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation}
        self.insert(table, **{**head, "start": EPOCH + start, "end": EPOCH + end, **values})

    def kernel(
        self, start: int, end: int, *, correlation: int = 0, name: str = "kernel",
        table: str = "CONCURRENT_KERNEL", **values: Any,
    ) -> None:  # fmt: skip
        self._gpu(table, start, end, correlation, name=self.string(name), **values)

    def memcpy(self, start: int, end: int, *, correlation: int = 0, **values: Any) -> None:
        self._gpu("MEMCPY", start, end, correlation, **values)

    def peer_copy(self, start: int, end: int, *, correlation: int = 0, **values: Any) -> None:
        self._gpu("MEMCPY2", start, end, correlation, **values)

    def memset(self, start: int, end: int, *, correlation: int = 0, **values: Any) -> None:
        self._gpu("MEMSET", start, end, correlation, **values)

    def call(
        self, start: int, end: int, *, correlation: int = 0, cbid: int = 211, pid: int = 100,
        tid: int = 7, table: str = "RUNTIME", result: int = 0,
    ) -> None:  # fmt: skip
        self.insert(
            table, start=EPOCH + start, end=EPOCH + end, cbid=cbid, processId=pid, threadId=tid,
            correlationId=correlation, returnValue=result,
        )  # fmt: skip

    def sync(
        self, start: int, end: int, correlation: int, *, stream: int = -1, event: int = -1,
        **values: Any,
    ) -> None:  # fmt: skip
        self.insert(
            "SYNCHRONIZATION", start=EPOCH + start, end=EPOCH + end, correlationId=correlation,
            **{"contextId": 1, "streamId": stream, "cudaEventId": event, **values},
        )  # fmt: skip

    def event_record(self, event: int, *, correlation: int, stream: int = 7) -> None:
        self.insert(
            "CUDA_EVENT", correlationId=correlation, contextId=1, streamId=stream, eventId=event
        )

    def context(self, context: int, device: int) -> None:
        self.insert("CONTEXT", contextId=context, deviceId=device)

    def marker(
        self, flags: int, at: int, marker: int, name: str | None = None, *, pid: int = 100,
        tid: int = 7, kind: int = THREAD, domain: str | None = None, blob: bytes | None = None,
    ) -> None:  # fmt: skip
        self.insert(
            "MARKER", flags=flags, timestamp=EPOCH + at, id=marker, objectKind=kind,
            objectId=object_id(pid, tid) if blob is None else blob,
            name=self.string(name), domain=self.string(domain),
        )  # fmt: skip

    def range(self, start: int, end: int | None, name: str | None, **marker: Any) -> int:
        """Add a range of two markers, or one that is still open; return its id."""
        self._marker += 1
        self.marker(START, start, self._marker, name, **marker)
        if end is not None:
            self.marker(END, end, self._marker, **{**marker, "domain": None})
        return self._marker

    def device(self, number: int = 0, **values: Any) -> None:
        described = {
            "id": number, "name": self.string("Tesla V100-SXM2-16GB"),
            "uuid": bytes(range(number, number + 16)), "globalMemorySize": 16_914_055_168,
            "globalMemoryBandwidth": 898_048_000, "numMultiprocessors": 80,
            "computeCapabilityMajor": 7,
        }  # fmt: skip
        self.insert("DEVICE", **{**described, **values})
