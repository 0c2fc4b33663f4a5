"""Random stretches of real traces, against plain SQL on what was recorded."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import tracekit as tk

BY_DAY = ("transformer_rtx3070ti", "llm_2_7b_forward", "sendrecv_2xh100_two_processes")
BY_NIGHT = ("ddp_unet_4xa100_rank0", "mnist_1xa100_phases", "jacobi_p2p_nvlink_8xv100",
            "jacobi_p2p_staged_8xv100")  # fmt: skip
TABLES = ("KERNEL", "MEMCPY", "MEMSET")
BUSY = """
WITH edges AS (SELECT deviceId d, min(start) f, max(end) l FROM ops GROUP BY d),
cut AS (SELECT deviceId d, max(start, :a) s, min(end, :b) e FROM ops WHERE end > :a AND start < :b),
far AS (SELECT d, s, e, max(e) OVER (PARTITION BY d ORDER BY s, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) p FROM cut)
SELECT d, (SELECT count(*) FROM ops WHERE deviceId = d AND start >= :a AND start < :b),
       coalesce((SELECT sum(max(0, e - max(s, coalesce(p, s)))) FROM far WHERE far.d = edges.d), 0),
       min(l, :b) - max(f, :a)
FROM edges WHERE f < :b AND l > :a ORDER BY d
"""
"""By GPU: ops that start in the stretch, its busy time, and the length of its window."""


def _check(trace: Path, run: tk.Run, number: int) -> None:
    drawn = random.Random(7)
    with closing(sqlite3.connect(f"file:{trace}?mode=ro", uri=True)) as database:
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        some = [f"CUPTI_ACTIVITY_KIND_{name}" for name in TABLES]
        parts = [f"SELECT deviceId, start, end FROM {name}" for name in some if name in known]
        database.execute(f"CREATE TEMP TABLE ops AS {' UNION ALL '.join(parts)}")
        database.execute("CREATE INDEX temp.by_time ON ops (deviceId, start, end)")
        first, last = database.execute("SELECT min(start), max(end) FROM ops").fetchone()
        for _ in range(number):
            a, b = sorted(drawn.sample(range(first, last), 2))
            if drawn.random() < 0.5:  # as short as a few ops
                b = min(b, a + drawn.randint(1, (last - first) // 1000))
            told = database.execute(BUSY, {"a": a, "b": b}).fetchall()
            rows = run.breakdown("device", between=(a, b)).sort("device")
            found = rows.filter(pl.col("window_ns") > 0).select("ops", "busy_ns", "window_ns")
            of_sql = [row[1:] for row in told if row[-1]]
            assert found.rows() == of_sql, (a, b)


@pytest.mark.parametrize("name", BY_DAY)
def test_some_stretches(
    real_run: Callable[[str], tk.Run], real_trace: Callable[[str], Path], name: str
) -> None:
    _check(real_trace(name), real_run(name), 10)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*BY_DAY, *BY_NIGHT])
def test_many_stretches(
    real_run: Callable[[str], tk.Run], real_trace: Callable[[str], Path], name: str
) -> None:
    _check(real_trace(name), real_run(name), 200)
