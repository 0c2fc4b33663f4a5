"""Findings on runs whose faults are known: the page holds what the trials gave, and it is well."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "diagnose.md"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("findings")


def test_all_faults_are_on_the_page(trials: Any) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in trials.FAULTS:
        assert f"| {name} |" in page
    assert "Of 100 clean runs, " in page


def test_a_table_is_put_into_a_page(trials: Any) -> None:
    page = "before\n<!-- trials -->\nold\n<!-- end of trials -->\nafter"
    assert trials.with_tables(page, "| new |") == page.replace("old", "\n| new |\n")


def test_clean_jobs_differ(trials: Any) -> None:
    jobs = list(trials.clean_jobs(100))
    assert len({job.seed for job in jobs}) == 100
    assert {job.synchronise for job in jobs} == {"never"}


@pytest.mark.nightly
def test_faults_are_found_and_clean_runs_are_clean(trials: Any) -> None:
    assert trials.clean_table(21).startswith("Of 21 clean runs, 0 have a finding")
    tried = {name: trials.tried(draw(99)) for name, draw in trials.FAULTS.items()}
    assert [name for name, trial in tried.items() if not trial.found] == []
    assert sum(bool(trial.held) for trial in tried.values()) >= len(tried) - 1
