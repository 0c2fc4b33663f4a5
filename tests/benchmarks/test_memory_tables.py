"""Exports of bare launches, and the tables of what questions take."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.parametrize("stages", [False, True])
def test_rows_of_processes_alternate_and_each_kernel_has_its_range(
    scripts: Any, stages: bool, tmp_path: Path
) -> None:
    path = tmp_path / "export.sqlite"
    exports = scripts("generate_export")
    step = "stages" if stages else "kernels"
    exports.generate(path, exports.Job(8_000, processes=8, threads=1, noise=0, step=step))
    trace = tracekit.ingest(path, store=tmp_path / "store")[0].trace
    assert [trace.height(name) for name in ("ops", "calls", "ranges")] == [8_000] * 3
    ops = trace.read("ops")
    assert ops["process"].n_unique() == 8
    assert (ops["process"].diff().drop_nulls() == 0).mean() < 0.2
    assert ops["range"].n_unique() == 8_000
    known = (ops["stage_source"].cast(pl.String) != "none").mean()
    assert known == (1 if stages else 0)


def test_launches_allocate_and_release_where_that_is_asked_for(
    scripts: Any, tmp_path: Path
) -> None:
    path = tmp_path / "export.sqlite"
    exports = scripts("generate_export")
    exports.generate(path, exports.Job(8_000, processes=2, threads=1, step="allocations"))
    trace = tracekit.ingest(path, store=tmp_path / "store")[0].trace
    assert [trace.height(name) for name in ("ops", "calls", "memory")] == [16, 8_016, 8_000]
    changes = trace.read("memory").group_by("device").agg(pl.col("change").sum())
    assert changes["change"].to_list() == [0, 0]


@pytest.mark.nightly
def test_an_ingest_keeps_to_its_memory(scripts: Any, tmp_path: Path) -> None:
    memory = scripts("memory")
    assert memory.LIMIT == "512MiB"
    for name, peaks in memory.measured(tmp_path, [2_000_000], []).items():
        for how in memory.INGESTS:
            assert peaks[how][2_000_000] < 1.1 * (512 << 20), (name, how)


def test_a_table_says_what_each_further_kernel_takes(scripts: Any) -> None:
    memory = scripts("memory")
    first, second = memory.GENERATORS
    mib = 1 << 20
    peaks = {
        first: {
            "ingest": {2_000_000: 300 * mib},
            memory.CPU: {2_000_000: 9},
            "idle": {10: 2 * mib, 20: 3 * mib},
        },
        second: {"idle": {10: 5 * mib}},
    }
    text = memory.tables(peaks)
    assert "| `ingest` | 300 | - |" in text
    assert "| CPU seconds | 9 | - |" in text
    assert "| `idle` | 2 | 3 (104,858) | 5 | - |" in text
    page = f"before\n{memory._BEGIN}\nold\n{memory._END}\nafter"
    assert memory.with_tables(page, "| new |") == page.replace("old", "\n| new |\n")
