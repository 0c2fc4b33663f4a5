"""A small machine, and literal transfers on it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.machine import Link, Machine
from tracekit.model import REPORTS, TRANSFERS

GB = 10**9
HERE = {0: 0, 1: 1, 2: 2, 3: 3}


def machine() -> Machine:
    """Two sockets, a switch and two GPUs on each; 0 and 1 are joined doubly, 1 and 2 singly."""
    nodes = {
        **{f"GPU{n}": {"type": "gpu"} for n in range(4)},
        **{f"PCIe{n}": {"type": "pcie"} for n in range(2)},
        **{f"CPU{n}": {"type": "host"} for n in range(2)},
    }
    return Machine.of(
        "box",
        nodes,
        [
            Link(("GPU0", "GPU1"), "nvlink", 2, 50 * GB),
            Link(("GPU1", "GPU2"), "nvlink", 1, 25 * GB),
            *(Link((f"GPU{n}", f"PCIe{n // 2}"), "pcie", None, 16 * GB) for n in range(4)),
            *(Link((f"PCIe{n}", f"CPU{n}"), "pcie", None, 16 * GB) for n in range(2)),
            Link(("CPU0", "CPU1"), "socket"),
        ],
    )


def transfer(src: int | None, dst: int | None, start: int, end: int, **row: Any) -> dict[str, Any]:
    return {
        "report": 0, "process": 0, "src_device": src, "dst_device": dst, "start": start, "end": end,
        "bytes": 1000, "method": "p2p", "evidence": "measured", "source": "recorded", "stage": "WU",
    } | row  # fmt: skip


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    return TRANSFERS.conform(pl.DataFrame(rows, infer_schema_length=None))


def on_clocks(*names: str) -> pl.DataFrame:
    """Return reports, numbered from 0, on these clocks."""
    rows = {"report": range(len(names)), "file": "", "format": "", "size": 0, "clock": names}
    return REPORTS.conform(pl.DataFrame(rows))
