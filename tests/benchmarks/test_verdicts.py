"""Verdicts on steps whose truth is known: the page holds what the trials gave, and it is well."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("verdicts")


def test_all_kinds_are_on_the_page(trials: Any) -> None:
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    for kind in (*trials.KINDS, *trials.RECORDED):
        assert f"| {kind.name} | {kind.truth} |" in page


def test_a_table_is_put_into_a_page(trials: Any) -> None:
    page = "before\n<!-- trials -->\nold\n<!-- end of trials -->\nafter"
    assert trials.with_table(page, "trials", "| new |") == page.replace("old", "\n| new |\n")
    assert trials.with_table(page, "trials of recordings", "| new |") == page


def test_what_is_well(trials: Any) -> None:
    named = {kind.name: kind for kind in trials.KINDS}
    well = {"unknown": 0.0, "false": 0.05, "right": 0.95, "seen": 1.0}
    assert trials.Trial(named["normal"], 30, **well).is_well
    for wrong in ({"unknown": 0.06}, {"false": 0.09}, {"right": 0.89}, {"seen": 0.89}):
        assert not trials.Trial(named["normal"], 30, **well | wrong).is_well
    assert not trials.Trial(named["random walk"], 30, **well).is_well
    # Where most are unknown, the few intervals may miss, but not those of a tenth of all pairs.
    few = {"unknown": 0.8, "false": 0.05, "seen": 0.1}
    assert trials.Trial(named["lasting modes"], 30, right=0.6, **few).is_well
    assert not trials.Trial(named["lasting modes"], 30, right=0.4, **few).is_well
    assert trials.Trial(named["two kinds"], 30, **well | {"seen": 0.1}).is_well


@pytest.mark.nightly
def test_verdicts_are_seldom_wrong(trials: Any) -> None:
    found = [trials.tried(kind, steps) for kind in trials.KINDS for steps in trials.STEPS]
    recorded = trials.tried_recordings()
    assert [each for each in (*found, *recorded) if not each.is_well] == []
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    for name, table in trials.page_tables(found, recorded).items():
        assert table in page, name
