"""Exports of nsys cut to a window of time, as a profiler that is started late and stopped early."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

_GPU = ("KERNEL", "MEMCPY", "MEMSET")
_HOST = ("RUNTIME", "SYNCHRONIZATION")
Ends = Literal["open", "ended"]


def cut_export(source: Path, made: Path, begin: int, end: int, ends: Ends = "open") -> Path:
    """Write what a recording of `begin` to `end`, ns, would have held.

    Calls and ranges that start inside stay, and GPU work that runs inside, also where it was
    launched before. Ranges that are still open then have no end, or (`ended`) end with the
    recording.
    """
    shutil.copyfile(source, made)
    with closing(sqlite3.connect(made)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for kind in _HOST:
            _keep(db, names, f"CUPTI_ACTIVITY_KIND_{kind}", "start BETWEEN ? AND ?", begin, end)
        for kind in _GPU:
            _keep(db, names, f"CUPTI_ACTIVITY_KIND_{kind}", "start >= ? AND end <= ?", begin, end)
        for table in ("OSRT_API", "SCHED_EVENTS", "COMPOSITE_EVENTS", "PROFILER_OVERHEAD"):
            _keep(db, names, table, "start BETWEEN ? AND ?", begin, end)
        _keep(db, names, "NVTX_EVENTS", "start BETWEEN ? AND ?", begin, end)
        closed = None if ends == "open" else end
        db.execute("UPDATE NVTX_EVENTS SET end = ? WHERE end > ?", (closed, end))
        # Not all recorders say how long they recorded to the nanosecond.
        db.execute("UPDATE ANALYSIS_DETAILS SET duration = ?", (end + (ends == "ended"),))
        db.commit()
    return made


def _keep(db: sqlite3.Connection, names: set[str], table: str, where: str, *edges: int) -> None:
    if table in names:
        db.execute(f"DELETE FROM {table} WHERE NOT ({where})", edges)
