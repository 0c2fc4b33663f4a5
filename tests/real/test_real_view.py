"""Selections of the view: equal to the command line, and to plain SQL over the ops."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import polars as pl
import pytest
from effort import examples

import tracekit as tk
from tracekit.model import STAGES
from tracekit.view import _blocks
from tracekit.view._asked import AskedRuns

TRACES = ("ddp_unet_4xa100_rank0", "mnist_1xa100_phases", "sendrecv_2xh100_two_processes")
XPLANE = "new_formats/xplane"
BY_NIGHT = (
    "ddp_unet_4xa100_rank0.nsys-rep", "jacobi_p2p_nvlink_8xv100", "jacobi_p2p_staged_8xv100",
    "jax_compile", "kineto_ddp_2xa100_rank0", "llm_2_7b_forward", "lm_pyprof_nvprof",
    "mnist_1xa100_first_optimization", "nccl_4xv100_nvlink_topology", "transformer_rtx3070ti",
    "unet_1xa100_16workers", "unet_1xa100_1worker", "unet_1xa100_4workers", "unet_1xa100_dali",
    "unet_1xa100_dali_bf16_fused_jit", "unet_1xgpu_dali", "unet_1xgpu_dali_amp",
    "new_formats/kineto_amd/mi210__gpu_only_trace__gpu_only_trace",
    "new_formats/rocpd/made_from_mytrace_schema3.db.gz",
    "new_formats/rocprofv3/908_results", "new_formats/rpd/matmul_result.rpd",
    "new_formats/rpd/mytrace.rpd.gz",
    f"{XPLANE}/mi300__jax_conv_minimal_legacy__chi-mi300x-013.ord.vultr.cpe.ice.amd.com.xplane.pb",
    f"{XPLANE}/test_data_jax_te_fused_attn_categorization__934987a2fc2f.xplane.pb",
    "tracelens/h100_qwen", "tracelens/mi300_resnet_checkpoint", "tracelens/sglang_prefilldecode",
    "tracelens/vllm_decode_capture", "tracelens/vllm_decode_replay",
)  # fmt: skip
"""Beside these, `dlrm_run` is the one real run of several files."""
BUSY = """
WITH cut AS (SELECT device, layer, max(start, :a) s, min(end, :b) e
             FROM ops JOIN layers USING (rank)
             WHERE end > :a AND start < :b),
far AS (SELECT device, layer, s, e, max(e) OVER (PARTITION BY device, layer ORDER BY s, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) p FROM cut)
SELECT layer, sum(max(0, e - max(s, coalesce(p, s)))) FROM far GROUP BY layer
"""
"""Busy time by layer, added over GPUs: layer N is stage N, layer 100 + N all stages up to it."""
WINDOW = """
WITH edges AS (SELECT min(start) f, max(end) l FROM ops GROUP BY device)
SELECT sum(max(0, min(l, :b) - max(f, :a))) FROM edges
"""
OF_STREAM = """
WITH cut AS (SELECT device, process, stream, rank, start, max(start, :a) s, min(end, :b) e
             FROM ops WHERE end > :a AND start < :b),
far AS (SELECT *, max(e) OVER (PARTITION BY device, process, stream, rank ORDER BY s, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) p FROM cut)
SELECT device, process, stream, rank, sum(start >= :a), sum(max(0, e - max(s, coalesce(p, s))))
FROM far GROUP BY 1, 2, 3, 4
"""
COUNTS = "SELECT {} k, count(*) FROM ops WHERE start >= :a AND start < :b GROUP BY k"


def check(run: tk.Run, number: int) -> None:
    asked, drawn = AskedRuns([run]), random.Random(43)
    ops = run.trace.read("ops")["device", "process", "stream", "start", "end", "stage", "kind"]
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE ops (device, process, stream, start, end, rank, kind)")
        database.execute("CREATE TABLE layers (rank, layer)")
        rows = ((*own, STAGES.index(stage), kind) for *own, stage, kind in ops.iter_rows())
        database.executemany("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        database.execute("CREATE INDEX by_time ON ops (start)")
        layers = [(n, n) for n in range(6)] + [(n, 100 + m) for m in range(6) for n in range(m + 1)]
        database.executemany("INSERT INTO layers VALUES (?, ?)", layers)
        first, last = ops["start"].min(), ops["end"].max()
        for _ in range(number):
            a, b = sorted(drawn.sample(range(first, last), 2))  # type: ignore[arg-type]
            if drawn.random() < 0.5:  # as short as a few ops
                b = min(b, a + drawn.randint(1, (last - first) // 1000))  # type: ignore[operator]
            _check_one(run, asked, database, a, b)
            _check_lanes(run, asked, database, a, b, drawn)


def _check_lanes(
    run: tk.Run,
    asked: AskedRuns,
    database: sqlite3.Connection,
    a: int,
    b: int,
    drawn: random.Random,
) -> None:
    """Compare stages of some streams with SQL, and with the rows of all that the command tells."""
    own = [lane["where"] for lane in asked.run({"run": "0"})["lanes"] if lane["kind"] == "ops"]
    known = [*filter(None, own)]
    chosen = [each for each in known if drawn.random() < 2 / len(known)] or known[:1]
    pids = dict(run.trace.read("processes").select("process", "pid").iter_rows())
    found = {}
    for device, process, stream, rank, *sums in database.execute(OF_STREAM, {"a": a, "b": b}):
        names = {
            f"device={device}{of} and stream={stream}" for of in ("", f" and pid={pids[process]}")
        }
        if names & {*chosen}:
            found[device, pids[process], stream, STAGES[rank]] = tuple(sums)
    told = _table(asked, a, b, "stage", " or ".join(chosen))
    keys = ("device", "pid", "stream", "stage", "ops", "busy_ns")
    shown = [tuple(row[key] for key in keys) for row in told["rows"]]
    assert {tuple(key): (ops, busy) for *key, ops, busy in shown} == found, (a, b, chosen)
    assert len(shown) == len(found)


def _check_one(run: tk.Run, asked: AskedRuns, database: sqlite3.Connection, a: int, b: int) -> None:
    told = {by: _table(asked, a, b, by) for by in ("stage", "kind")}
    for by, shown in told.items():
        answer = run.breakdown.answer(by=by, between=(a, b))
        assert shown["rows"] == answer.rows.to_dicts(), (a, b)
    kernels = run.breakdown.answer(by="kernel", between=(a, b)).rows
    shown = pl.DataFrame(_table(asked, a, b, "kernel")["rows"], kernels.schema)
    one_hundred = kernels.drop("median_ns").head(100)
    assert shown.drop("median_ns").equals(one_hundred), (a, b)
    between = {"a": a, "b": b}
    busy = dict(database.execute(BUSY, between))
    counts = dict(database.execute(COUNTS.format("rank"), between))
    below = 0
    for rank, stage in enumerate(STAGES):
        row = next((each for each in told["stage"]["rows"] if each["stage"] == stage), {})
        covered = max(busy.get(100 + rank, 0), below)
        assert row.get("busy_ns", 0) == busy.get(rank, 0), (a, b, stage)
        assert row.get("exposed_ns", 0) == covered - below, (a, b, stage)
        assert row.get("ops", 0) == counts.get(rank, 0), (a, b, stage)
        below = covered
    (window,) = database.execute(WINDOW, between).fetchone()
    assert told["stage"]["meta"]["window_ns"] == window, (a, b)
    assert told["stage"]["meta"]["idle_ns"] == window - below, (a, b)
    kinds = {row["kind"]: row["ops"] for row in told["kind"]["rows"] if row["ops"]}
    assert kinds == dict(database.execute(COUNTS.format("kind"), between)), (a, b)


def _table(asked: AskedRuns, a: int, b: int, by: str, lanes: str = "") -> Any:
    return asked.table({"run": "0", "from": str(a), "to": str(b), "by": by, "lanes": lanes})


@pytest.fixture(autouse=True)
def _none_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add up what is kept of stretches of any length."""
    monkeypatch.setattr(_blocks, "MANY", 0)


@pytest.mark.parametrize("name", TRACES)
def test_selections(real_run: Callable[[str], tk.Run], name: str) -> None:
    check(real_run(name), examples(6, thorough=200))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*TRACES, *BY_NIGHT])
def test_two_hundred_selections(real_run: Callable[[str], tk.Run], name: str) -> None:
    check(real_run(name), 200)


@pytest.mark.nightly
def test_two_hundred_selections_of_eight_ranks(dlrm_run: tk.Run) -> None:
    check(dlrm_run, 200)
