"""Reports of several hosts, whose clocks differ by a known offset and drift, come back aligned."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.errors import UsageError

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "ddp_4gpu.sqlite"

pytestmark = pytest.mark.usefixtures("samples_read_once")


def rewritten(path: Path, offset: int, drift: float, host: str, sample: Path = SAMPLE) -> Path:
    """Copy a sample as another host would have recorded it, whose clock is off and runs fast."""
    shutil.copy(sample, path)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "drift"),
    [
        pytest.param(0, 0.0, marks=pytest.mark.nightly),
        pytest.param(123_456_789, 0.0, marks=pytest.mark.nightly),
        (-5_000_000, 2e-5),
    ],
)
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
    assert apart.max() <= (400 if drift else 2)  # too short a recording to tell a drift
    told = run.table("reports").collect().row(1, named=True)
    assert told["clock"] == run.table("reports").collect()["clock"][0]
    assert (told["clock_p5"], told["clock_p95"]) == pytest.approx((0, 0), abs=300)
    assert told["clock_drift"] == 0
    assert any("rank1.sqlite: its clock is set" in warning for warning in run.warnings)
    assert run.breakdown("node").select(pl.col("node").sort()).to_series().to_list() == [
        "node0", "node1",
    ]  # fmt: skip


RECORDED = SAMPLE.parent / "recorded"


def two_hosts(folder: Path, sample: str, offset: int) -> list[Path]:
    """Copy the two ranks of a recorded sample as two hosts would have recorded them."""
    names = [f"{sample}_rank{rank}.sqlite" for rank in range(2)]
    return [
        rewritten(folder / name, rank * offset, 0.0, f"node{rank}", RECORDED / name)
        for rank, name in enumerate(names)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["mpi_latency", "lenet_mpi"])
@pytest.mark.parametrize(
    "offset",
    [*(pytest.param(each, marks=pytest.mark.nightly) for each in (0, 1_234_567)), 987_654_321],
)
def test_recorded_mpi_ranks_come_back(tmp_path, sample: str, offset: int) -> None:
    """By their calls alone, within 5 us of where one host's clock puts them."""
    ranks = [RECORDED / f"{sample}_rank{rank}.sqlite" for rank in range(2)]
    here, _ = tracekit.ingest(ranks, name="here", store=tmp_path / "store")
    files = two_hosts(tmp_path, sample, offset)
    away, _ = tracekit.ingest(files, name="away", store=tmp_path / "store")
    sources = [run.table("reports").collect()["clock_source"][1] for run in (here, away)]
    assert sources == ["session_start", "collectives"]
    known, found = (
        run.table("host").filter(pl.col("report") == 1).collect()["end"].sort()
        for run in (here, away)
    )
    assert (found - known).abs().max() < 5_000
    assert (found - known).n_unique() == 1


@pytest.mark.slow
def test_clocks_that_cannot_be_aligned_are_refused(tmp_path) -> None:
    """Ranks of two programs, whose calls are not the same ones."""
    files = [two_hosts(tmp_path, "lenet_mpi", 0)[0], two_hosts(tmp_path, "mpi_latency", 0)[1]]
    run, _ = tracekit.ingest(files, name="job", store=tmp_path / "store", force=True)
    evidence = run.info(clocks=True)
    assert evidence["clock"].to_list() == ["host node0", "host node1"]
    assert evidence["evidence"][1] == "their calls are not the same ones"
    assert evidence["calls"].to_list() == [None, None]


@pytest.mark.slow
def test_a_user_gives_a_clock(tmp_path) -> None:
    files, store = two_hosts(tmp_path, "lenet_mpi", 1_500_000), tmp_path / "store"
    run, _ = tracekit.ingest(files, name="a", store=store, clocks={"lenet_mpi_rank1": -1_500_000})
    row = run.info(clocks=True).row(1, named=True)
    assert (row["known_by"], row["calls"], row["violations"]) == ("given", 37, 0)
    assert row["offset_ns"] == row["sessions_say_ns"] - 1_500_000
    assert any("its clock is set" in text and "by the user" in text for text in run.warnings)
    with pytest.raises(UsageError, match="no one report is 'rank7'"):
        tracekit.ingest(files, name="b", store=tmp_path / "other", clocks={"rank7": 1})


@pytest.mark.slow
@pytest.mark.parametrize("offset", [pytest.param(0, marks=pytest.mark.nightly), 987_654_321])
def test_messages_of_recorded_ranks_arrive_after_they_are_sent(tmp_path, offset: int) -> None:
    """546 of a ping-pong, under the clock that collectives tell, and not under another."""
    files = two_hosts(tmp_path, "mpi_latency", offset)
    run, _ = tracekit.ingest(files, name="a", store=tmp_path / "store")
    row = run.info(clocks=True).row(1, named=True)
    assert (row["known_by"], row["messages"], row["early_messages"]) == ("collectives", 546, 0)
    wrong, _ = tracekit.ingest(
        files, name="b", store=tmp_path / "other", clocks={"mpi_latency_rank1": 50_000_000 - offset}
    )
    row = wrong.info(clocks=True).row(1, named=True)
    assert (row["known_by"], row["messages"]) == ("given", 546)
    assert row["early_messages"] >= 250
