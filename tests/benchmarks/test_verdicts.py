"""Verdicts on steps whose truth is known: the page holds what the trials gave, and it is well."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("verdicts")


def test_all_kinds_are_on_their_pages(trials: Any) -> None:
    evidence = (ROOT / "docs" / "evidence" / "verdicts.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "evidence" / "recordings.md").read_text(encoding="utf-8")
    for kinds, text in ((trials.KINDS, evidence), (trials.RECORDED, page)):
        for kind in kinds:
            assert f"| {kind.name} | {kind.truth} |" in text


def test_a_table_is_put_into_a_page(trials: Any) -> None:
    page = "before\n<!-- trials -->\nold\n<!-- end of trials -->\nafter"
    assert trials.with_table(page, "trials", "| new |") == page.replace("old", "\n| new |\n")
    assert trials.with_table(page, "trials of recordings", "| new |") == page


@pytest.mark.parametrize("way", ["_by_steps", "_by_recordings"])
def test_each_pair_is_compared_alone(trials: Any, way: str) -> None:
    a, b = 1e6 + 1e4 * np.random.default_rng(1).normal(size=(2, 9, 12)).round(2)
    columns, told_by = ["low_ns", "high_ns", "verdict"], getattr(trials, way)
    alone = pl.concat([told_by(a[[at]], b[[at]]).select(columns) for at in range(9)])
    assert_frame_equal(told_by(a, b).select(columns), alone)


def test_what_is_well(trials: Any) -> None:
    named = {kind.name: kind for kind in trials.KINDS}
    well = {"unknown": 0.0, "false": 0.05, "right": 0.95, "seen": (0.9, 1.0)}
    assert trials.Trial(named["independent"], 30, **well).is_well
    for wrong in ({"unknown": 0.06}, {"false": 0.09}, {"right": 0.89}):
        assert not trials.Trial(named["independent"], 30, **well | wrong).is_well
    # Drifts are to be told from 200 steps on; of fewer the page says what they are.
    often = well | {"false": 0.3, "right": 0.7}
    assert trials.Trial(named["AR 0.95 + noise"], 30, **often).is_well
    assert not trials.Trial(named["AR 0.95 + noise"], 200, **often).is_well
    assert trials.Trial(named["random walk"], 200, **often).is_well


@pytest.mark.slow
@pytest.mark.parametrize("name", ["independent", "AR 0.95 + noise", "states of 20", "cold start"])
def test_verdicts_of_many_steps_are_seldom_wrong(trials: Any, name: str) -> None:
    kind = next(each for each in trials.KINDS if each.name == name)
    assert trials.tried(kind, 200, pairs=500).false <= 0.09


@pytest.mark.slow
def test_a_limit_is_seldom_wrong_where_a_step_is_far_off(trials: Any) -> None:
    assert trials.gated(30, 1.0, pairs=100)["within"] >= 0.95
    assert trials.gated(30, 1.1, pairs=100)["above"] >= 0.95


@pytest.mark.nightly
def test_verdicts_are_as_the_pages_say(trials: Any) -> None:
    found = [trials.tried(kind, steps) for kind in trials.KINDS for steps in trials.STEPS]
    recorded = trials.tried_recordings()
    assert [each for each in (*found, *recorded) if not each.is_well] == []
    text = (ROOT / "docs" / "evidence" / "verdicts.md").read_text(encoding="utf-8")
    assert trials.evidence(found) == text
    page = (ROOT / "docs" / "evidence" / "recordings.md").read_text(encoding="utf-8")
    for name, table in trials.page_tables(recorded).items():
        assert table in page, name
