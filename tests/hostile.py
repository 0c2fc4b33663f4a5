"""A sample trace in which a kernel and a range are named to do harm."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

SAMPLES = Path(__file__).parents[1] / "sample_traces"
KERNEL = "<img src=x onerror=alert(1)>"
RANGE = "'; DROP TABLE runs; --"
MARKUP = "</script><script>alert(2)</script>\u202e\x07"


def hostile_trace(folder: Path) -> Path:
    """Write the trace into a folder."""
    path = folder / "hostile.sqlite"
    shutil.copy(SAMPLES / "ddp_4gpu.sqlite", path)
    with sqlite3.connect(path) as file:
        kernels = file.execute(
            "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1 ORDER BY count(*) DESC"
            " LIMIT 2"
        ).fetchall()
        for (number,), name in zip(kernels, (KERNEL, MARKUP), strict=True):
            file.execute("UPDATE StringIds SET value = ? WHERE id = ?", (name, number))
        file.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text LIKE 'forward%'", (RANGE,))
    file.close()
    return path
