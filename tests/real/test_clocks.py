"""Clocks of real ranks that are shifted by known amounts come back where they were."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import tracekit as tk

PROCESS = ~0xFFFFFF


@pytest.fixture(scope="module")
def dlrm(real_trace: Callable[[str], Path]) -> list[Path]:
    folder = real_trace("ddp_unet_4xa100_rank0").with_name("kineto_dlrm_8xv100")
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return sorted(folder.glob("*.json"))


def _shifted(path: Path, by_us: int, folder: Path) -> Path:
    """Write a PyTorch trace again whose clock is so many microseconds ahead."""
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if isinstance(event.get("ts"), int | float):
            event["ts"] += by_us
    copy = folder / path.name
    copy.write_text(json.dumps(document))
    return copy


def _ends(run: tk.Run) -> dict[int, list[int]]:
    """Ends of each rank's collectives, less when the first rank's first one ends."""
    ops = run.trace["ops"].filter(pl.col("kind") == "collective").select("report", "end")
    rows = ops.collect().sort("report", "end")
    zero = rows["end"][0]
    return {
        number: (frame["end"] - zero).to_list()
        for (number,), frame in rows.partition_by("report", as_dict=True).items()
    }


@pytest.mark.nightly  # by day simulated ranks are shifted: tests/many/test_many_clocks.py
def test_shifted_pytorch_ranks_come_back(dlrm: list[Path], tmp_path: Path) -> None:
    """They agree with the unshifted ones, and with their Unix times, which one machine gave."""
    here, _ = tk.ingest(dlrm, name="here", store=tmp_path / "store")
    moved = [_shifted(path, 7_777 * n * n, tmp_path) for n, path in enumerate(dlrm)]
    away, _ = tk.ingest(moved, name="away", store=tmp_path / "store")
    for run in (here, away):
        assert run.info(clocks=True)["known_by"].to_list() == [None, *["collectives"] * 7]
        assert run.info(clocks=True)["violations"].sum() == 0
    apart = [
        abs(one - other)
        for rank, ends in _ends(here).items()
        for one, other in zip(ends, _ends(away)[rank], strict=True)
    ]
    assert max(apart) < 5_000
    evidence = here.info(clocks=True)
    assert (evidence["offset_ns"] - evidence["sessions_say_ns"]).abs().max() < 5_000


def _of_process(trace: Path, keep: int, offset: int, host: str, copy: Path) -> Path:
    """Write the part of an export that one of its processes recorded, times moved."""
    shutil.copy(trace, copy)
    copy.chmod(0o644)
    with sqlite3.connect(copy) as database:
        tables = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'")]  # fmt: skip
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            owner = next((c for c in ("globalPid", "globalTid") if c in columns), None)
            if owner and ("start" in columns or table == "NVTX_EVENTS"):
                database.execute(f"DELETE FROM {table} WHERE ({owner} & {PROCESS}) != {keep}")
            for column in {"start", "end"} & set(columns):
                database.execute(f"UPDATE {table} SET {column} = {column} + {offset}")
        database.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", [host]
        )
        if host != "modal":  # whose clock is another one
            database.execute(
                "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 7"
            )
    database.close()
    return copy


def test_processes_of_a_report_come_back(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    """Two processes that send and receive, a report each: by one host's clock, or their calls."""
    trace = real_trace("sendrecv_2xh100_two_processes")
    with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as database:
        query = "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1"
        pids = [pid for (pid,) in database.execute(query)]
    database.close()
    whole, _ = tk.ingest(trace, name="whole", store=tmp_path / "store")
    true = whole.trace.read("ops").sort("process", "start", "end")["end"]
    found = {}
    for name, host, offset in (("same", "modal", 0), ("a", "n2", 0), ("b", "n2", 31_234_567)):
        (tmp_path / name).mkdir()
        parts = [
            _of_process(trace, pids[0], 0, "modal", tmp_path / name / "p0.sqlite"),
            _of_process(trace, pids[1], offset, host, tmp_path / name / "p1.sqlite"),
        ]
        run, _ = tk.ingest(parts, name=name, store=tmp_path / "store")
        found[name] = run.trace.read("ops").sort("process", "start", "end")["end"]
        assert run.info(clocks=True)["clock"].n_unique() == 1
    assert (found["same"] - true).abs().max() == 0
    assert (found["b"] - found["a"]).abs().max() < 5_000
    # Their calls name no peers, so that calls in which both send and receive alone tell of clocks.
    assert run.info(clocks=True)["messages"].null_count() == 2
    # The kernels end up to 27 us apart on one host's clock, so calls alone tell no better.
    assert (found["a"] - true).abs().max() < 27_000
