"""Reports of several hosts, whose clocks differ by a known offset and drift, come back aligned."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest

import tracekit

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "ddp_4gpu.sqlite"


def rewritten(path: Path, offset: int, drift: float, host: str) -> Path:
    """Copy the sample as another host would have recorded it, whose clock is off and runs fast."""
    shutil.copy(SAMPLE, path)
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            for column in {"start", "end"} & columns:
                database.execute(
                    f"UPDATE {table} SET {column} ="
                    f" {column} + CAST(round({column} * {drift!r}) AS INTEGER) + {offset}"
                )
        database.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", [host]
        )
    database.close()
    return path


@pytest.mark.parametrize(("offset", "drift"), [(0, 0.0), (123_456_789, 0.0), (-5_000_000, 2e-5)])
def test_a_rewritten_copy_comes_back(tmp_path, offset: int, drift: float) -> None:
    first = rewritten(tmp_path / "rank0.sqlite", 0, 0.0, "node0")
    second = rewritten(tmp_path / "rank1.sqlite", offset, drift, "node1")
    with sqlite3.connect(second) as database:
        database.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 7")
    database.close()
    run, _ = tracekit.ingest([first, second], name="job", store=tmp_path / "store")
    ops = run.table("ops").select("report", "start", "end").collect()
    one, other = (ops.filter(report=number).sort("start", "end") for number in range(2))
    apart = (other["end"] - one["end"]).abs()
    assert apart.max() <= 2
    told = run.table("reports").collect().row(1, named=True)
    assert told["clock"] == run.table("reports").collect()["clock"][0]
    assert (told["clock_p5"], told["clock_p95"]) == pytest.approx((0, 0), abs=2)
    assert told["clock_drift"] == pytest.approx(-drift, abs=1e-7)
    assert any("rank1.sqlite: its clock is set" in warning for warning in run.warnings)
    assert run.breakdown("node").select(pl.col("node").sort()).to_series().to_list() == [
        "node0", "node1",
    ]  # fmt: skip
