"""The generator of large exports writes what a real export holds, and the same for a seed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.model import path_texts

LAUNCHES = """
WITH ops AS (
    SELECT start, end, globalPid >> 24 AS process, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL
    UNION ALL
    SELECT start, end, globalPid >> 24, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY
    UNION ALL
    SELECT start, end, globalPid >> 24, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET
)
SELECT ops.start, ops.end, calls.start, calls.globalTid
FROM ops JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS calls
ON calls.correlationId = ops.correlationId AND calls.globalTid >> 24 = ops.process
"""
"""What launched each op: of a process, the call with its id."""
RANGES = """
SELECT start, end, globalTid FROM NVTX_EVENTS WHERE eventType = 59
"""
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "generate_export.py"
GPU_TABLES = ("KERNEL", "MEMCPY", "MEMSET")


def generate(path: Path, *options: str) -> Path:
    job = ("--kernels", "2000", "--layers", "4", "--names", "300", *options)
    subprocess.run([sys.executable, SCRIPT, path, *job], check=True, capture_output=True)
    return path


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("export") / "job.sqlite")


@pytest.fixture(scope="module")
def run(export: Path) -> tracekit.Run:
    return tracekit.ingest(export, store=export.parent / "store")[0]


@pytest.mark.slow
def test_every_row_is_ingested(export: Path, run: tracekit.Run) -> None:
    counts = [
        rows(export, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}")[0][0]
        for table in (*GPU_TABLES, "RUNTIME")
    ]
    ranges = rows(export, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59")[0][0]

    assert counts[0] == 2080  # ten steps of two processes, 104 kernels each
    assert run.trace.read("ops").height == sum(counts[:3])
    assert run.trace.read("calls").height == counts[3]
    assert run.trace.read("ranges").height == ranges
    assert run.trace.read("iterations").height == 20
    assert run.trace.read("devices").height == 2
    assert run.warnings == ()


def test_every_op_has_a_launch_before_it_and_a_stage(run: tracekit.Run) -> None:
    ops = run.trace.read("ops")

    assert ops["launch_start"].null_count() == 0
    assert ops.filter(pl.col("start") < pl.col("launch_end")).is_empty()
    assert ops.filter(pl.col("end") <= pl.col("start")).is_empty()
    assert ops.filter(pl.col("stage") == "OTHER").is_empty()
    assert ops.filter(pl.col("iteration").is_null()).is_empty()
    assert set(ops["stage_source"]) == {"nvtx", "backward_thread", "gradient_exchange"}


def test_streams_run_one_op_at_a_time_and_collectives_end_together(run: tracekit.Run) -> None:
    ops = run.trace.read("ops").sort("start")
    after = ops.select(pl.col("start") - pl.col("end").shift().over("device", "stream"))
    collectives = ops.filter(pl.col("kind") == "collective")

    assert after["start"].drop_nulls().min() >= 0
    assert collectives.height == 80  # four of each step and process
    assert collectives.group_by("end").len()["len"].to_list() == [2] * 40


def test_ranges_nest_and_correlation_ids_repeat_across_processes(run: tracekit.Run) -> None:
    ranges, ops = run.trace.read("ranges"), run.trace.read("ops")
    paths = path_texts(run.trace.read("paths"), ranges["path"])

    assert paths.str.contains("^step N . forward . layer 3 . aten::linear$").any()
    assert ops.select("process", "correlation").is_unique().all()
    assert ops["correlation"].n_unique() == ops.height // 2
    assert ops["launch_thread"].n_unique() == 6


@pytest.mark.parametrize(
    ("options", "tables"),
    [((), {"OSRT_API": 208, "SCHED_EVENTS": 416, "COMPOSITE_EVENTS": 416}), (("--noise", "0"), {})],
)
def test_noise_is_as_much_as_asked_for(
    tmp_path: Path, options: tuple[str, ...], tables: dict[str, int]
) -> None:
    export = generate(tmp_path / "noise.sqlite", *options)
    present = {str(name) for (name,) in rows(export, "SELECT name FROM sqlite_master")}

    noise = {"OSRT_API", "SCHED_EVENTS", "COMPOSITE_EVENTS"} & present
    assert {table: rows(export, f"SELECT count(*) FROM {table}")[0][0] for table in noise} == tables


def test_the_seed_decides(export: Path, tmp_path: Path) -> None:
    same = generate(tmp_path / "same.sqlite")
    other = generate(tmp_path / "other.sqlite", "--seed", "2")

    assert same.read_bytes() == export.read_bytes()
    assert other.read_bytes() != export.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["3.0.0", "3.28.0", "none-2020.4"])
def test_other_schema_versions_hold_the_same_job(
    tmp_path: Path, run: tracekit.Run, schema: str
) -> None:
    export = generate(tmp_path / "other.sqlite", "--schema", schema)
    other, _ = tracekit.ingest(export, store=tmp_path / "store")

    stages = ["op", "start", "end", "stage", "iteration"]
    assert other.trace.read("ops").select(stages).equals(run.trace.read("ops").select(stages))


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "4"])
def test_stages_are_known_for_any_number_of_threads(tmp_path: Path, threads: str) -> None:
    export = generate(tmp_path / "threads.sqlite", "--threads", threads)
    run, _ = tracekit.ingest(export, store=tmp_path / "store")

    assert run.trace.read("threads").height == 2 * int(threads)
    assert set(run.trace.read("ops")["stage"]) == {"FP", "BP", "WU", "IO"}


def innermost(path: Path) -> list[tuple[object, ...]]:
    """Return of each op its start, end, launch, and the innermost range around that, by SQL."""
    sql = f"""
    WITH launches AS MATERIALIZED ({LAUNCHES}), ranges AS MATERIALIZED ({RANGES})
    SELECT launches.*, (
        SELECT max(ranges.start) FROM ranges
        WHERE ranges.globalTid = launches.globalTid
        AND ranges.start <= launches."start:1" AND ranges.end >= launches."start:1"
    ) FROM launches
    """
    return rows(path, sql)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))]
)
def test_of_any_shape_launches_and_ranges_are_those_of_sql(tmp_path: Path, seed: int) -> None:
    export = tmp_path / "drawn.sqlite"
    size = ("--kernels", "500", "--layers", "2", "--operators", "3")
    command = [sys.executable, SCRIPT, export, "--drawn", "--seed", str(seed), *size]
    subprocess.run(command, check=True, capture_output=True)
    trace = tracekit.ingest(export, store=tmp_path / "store")[0].trace
    tids = dict(trace.read("threads").select("thread", "global_id").iter_rows())
    begun = dict(trace.read("ranges").select("range", "start").iter_rows())
    told = [
        (start, end, launch, tids.get(thread), begun.get(within))
        for start, end, launch, thread, within in trace.read("ops")
        .select("start", "end", "launch_start", "launch_thread", "range")
        .iter_rows()
    ]

    assert trace.height("ops") == sum(
        rows(export, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}")[0][0]
        for table in GPU_TABLES
    )
    assert sorted(told, key=str) == sorted(innermost(export), key=str)
