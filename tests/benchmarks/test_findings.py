"""The score of findings: jobs are drawn, claims are judged by simulation, the page holds all."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tracekit.analysis.diagnosis import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "diagnose.md"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("findings")


@pytest.fixture
def kinds(trials: Any) -> Any:
    return importlib.import_module("finding_kinds")


@pytest.mark.slow
def test_the_page_and_the_score_are_of_the_same_trials(trials: Any) -> None:
    page = PAGE.read_text(encoding="utf-8")
    simulated = [rule for rule in trials.MENDS if f"| `{rule}` |" in page]
    assert set(simulated) == set(trials.MENDS)
    assert "clean runs, " in page


def test_a_table_is_put_into_a_page(trials: Any) -> None:
    page = "before\n<!-- trials -->\nold\n<!-- end of trials -->\nafter"
    assert trials.with_tables(page, "| new |") == page.replace("old", "\n| new |\n")


def test_jobs_differ_and_are_drawn_alike_again(trials: Any) -> None:
    jobs = list(trials.clean_jobs(100))
    assert len({job.seed for job in jobs}) == 100
    assert {job.synchronise for job in jobs} == {"never"}
    drawn = list(trials.drawn_jobs(40, 7))
    assert drawn == list(trials.drawn_jobs(40, 7))
    assert len({job.seed for _, job in drawn}) == 40


def test_each_fault_is_mended_by_what_a_rule_says(kinds: Any) -> None:
    """What mends a fault gives back the job without it, or one that differs from the faulty one."""
    assert set(kinds.MENDS) <= set(RULES)
    plain = replace(kinds.plain_job(Random(3)), gpus=4, link_factors={})
    slow = kinds.FAULTS["a slow GPU"](plain, Random(1))
    assert slow.gpu_pace
    assert kinds.MENDS["slow_clocks"](slow) == (plain,)
    assert kinds.MENDS["slow_clocks"](plain) == ()
    allocating = kinds.FAULTS["allocation in steps"](plain, Random(1))
    assert kinds.MENDS["allocation_in_loop"](allocating) == (plain,)


def test_a_claim_is_judged_by_what_is_won(
    trials: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier.toml"
    earlier.write_text("[late_buckets]\nclaims = 7\nwrong = 1\n", encoding="utf-8")
    monkeypatch.setattr(trials, "EARLIER", earlier)
    said = {"late_buckets": {"win_ns": 10.0, "win_low_ns": 5.0, "win_high_ns": 30.0}}
    right = trials._trial("job", "late_buckets", said, 20.0, 1_000.0)
    assert (right.spoke, right.right, right.missed, right.held) == (True, True, False, True)
    wrong = trials._trial("job", "late_buckets", said, 9.0, 1_000.0)
    assert (wrong.right, wrong.held) == (False, True)
    # The same fault by its other name is not missed; what nobody names is.
    assert not trials._trial("job", "exposed_collectives", said, 90.0, 1_000.0).missed
    assert trials._trial("job", "sync_in_loop", said, 40.0, 1_000.0).missed
    assert not trials._trial("job", "sync_in_loop", said, 39.0, 1_000.0).missed
    claims = [trials.Claim("trace", "late_buckets", "", False, ""),
              trials.Claim("trace", "late_buckets", "", None, "")]  # fmt: skip
    score = trials.tomllib.loads(trials.score_file([right, wrong], claims))
    assert score["late_buckets"] == {"claims": 3 + 7, "wrong": 2 + 1}
    line = trials.rules_table([right, wrong], 2).splitlines()[-1]
    assert line.startswith("| `late_buckets` | 1 | 1 | 0 | 2 | 1 | 7 | 1 | 3 to 60 % | ")
    assert list(score) == list(RULES)


def test_a_run_that_was_ended_goes_on(
    trials: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = [trials.Trial("late_buckets", "job", spoke=True, right=True, missed=False, won=0.1)]
    monkeypatch.setattr(trials, "tried", lambda _: said)
    assert trials.tried_once((3, ("job", None)), tmp_path) == said
    monkeypatch.setattr(trials, "tried", lambda _: [])
    assert trials.tried_once((3, ("job", None)), tmp_path) == said
    assert trials.tried_once((4, ("job", None)), None) == []


def test_earlier_claims_are_of_rules(trials: Any) -> None:
    assert set(trials.earlier()) <= set(trials.MENDS) | {"cold_steps"}


def test_intervals_of_errors(trials: Any) -> None:
    """By hand: none of n is wrong with a rate of up to 1 - 0.025 ** (1 / n)."""
    assert trials.wrong_interval(0, 3) == pytest.approx((0, 1 - 0.025 ** (1 / 3)))
    assert trials.wrong_interval(3, 3) == pytest.approx((0.025 ** (1 / 3), 1))


@pytest.mark.nightly
def test_clean_runs_are_clean_and_few_claims_are_wrong(trials: Any) -> None:
    assert trials.clean_line(21).startswith("Of 21 clean runs, 0 have a finding")
    claims = [
        each
        for job in trials.drawn_jobs(24, 99)
        for each in trials.tried(job)
        if each.spoke and each.rule not in ("central_update", "pipeline_bubbles")
    ]
    assert sum(not each.right for each in claims) <= len(claims) / 5
