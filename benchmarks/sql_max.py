"""Let SQLite decode every value that tracekit reads of an export, on one thread.

    python benchmarks/sql_max.py EXPORT.sqlite

This is the yardstick of the benchmarks: what reading costs when nothing is done with what is read.
The columns are listed here, not taken from tracekit, so that the yardstick stays the same while
tracekit changes.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

_GPU = "start end deviceId contextId streamId correlationId globalPid "
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        _GPU + "demangledName shortName graphNodeId gridX gridY gridZ blockX blockY blockZ"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        _GPU + "bytes copyKind srcKind dstKind srcDeviceId dstDeviceId srcContextId dstContextId "
        "graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _GPU + "bytes graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId returnValue",
    "NVTX_EVENTS": (
        "start end eventType category globalTid endGlobalTid textId domainId uint64Value int64Value"
        " uint32Value int32Value doubleValue floatValue text jsonTextId jsonText"
    ),
    "StringIds": "id value",
}
"""Columns by table."""


def scan(path: Path) -> None:
    """Read all `COLUMNS` that the export has."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        for table, columns in COLUMNS.items():
            present = {
                name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", [table])
            }
            wanted = [f'max("{name}")' for name in columns.split() if name in present]
            if wanted:
                db.execute(f"SELECT {', '.join(wanted)} FROM {table} NOT INDEXED").fetchone()


if __name__ == "__main__":
    scan(Path(sys.argv[1]))
