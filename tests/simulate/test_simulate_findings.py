"""Findings of simulated runs: none of a clean one, and of the others what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from effort import by_day
from simulate.export import write_export
from simulate.grid import scenarios
from simulate.job import Job
from simulate.run import simulate
from simulate.truth import read_truth, step_times
from trace_builder import default_rules

from tracekit.analysis.diagnosis import RULES, _diagnose, diagnose, stragglers
from tracekit.attribution import attribute
from tracekit.sources import read

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces" / "simulated"
FIRST = {
    "input_bound": ("input_bound", "loader takes no time"),
    "launch_bound": ("launch_bound", "host launches twice as fast"),
    "exposed_nccl": ("late_buckets", None),
    "star_8": ("central_update", None),
}
"""By scenario, the first finding, and what of the truth its interval should hold."""


@pytest.fixture(autouse=True)
def _tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order findings by their wins alone: rules that are often wrong come last otherwise."""
    score = {rule: {"claims": 100, "wrong": 0} for rule in RULES}
    monkeypatch.setattr(_diagnose, "score", lambda: score)


def _rows(name: str) -> list[dict[str, object]]:
    trace = attribute(read(FOLDER / f"{name}.sqlite", lambda *_: None), default_rules())
    return diagnose(trace, top=None).rows.to_dicts()


@pytest.mark.slow
def test_only_its_copies_of_input_are_found_in_a_clean_run() -> None:
    """They run on the stream that computes; over a PCIe so fast they are as good as hidden."""
    (found,) = _rows("clean")
    assert found["rule"] == "unhidden_copies"
    job = scenarios()["clean"].job
    hidden = replace(job, link_factors={"pcie": 100.0})
    before, after = (
        sum(step_times(simulate(each).books.ops)) / each.steps for each in (job, hidden)
    )
    assert found["win_low_ns"] <= before - after <= found["win_high_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_the_fault_comes_first(name: str) -> None:
    rule, change = FIRST[name]
    first = _rows(name)[0]
    assert first["rule"] == rule
    if change is not None:
        known = read_truth(FOLDER / f"{name}.truth.json.gz")
        other = next(each for each in known["what_if"] if each["change"] == change)
        # The first step of one is cold, the last one of the other ends without a wait.
        counted = slice(int(name == "launch_bound"), -1 if name == "input_bound" else None)
        steps = [known["step_ns"][counted], other["step_ns"][counted]]
        before, after = (sum(each) / len(each) for each in steps)
        assert first["win_low_ns"] <= before - after <= first["win_high_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(["pipeline_1f1b", "pipeline_nccl"], "pipeline_1f1b"))
def test_micro_batches_that_win_nothing_are_not_priced(name: str) -> None:
    """Of eight images each: those of four take twice as many kernels, which get little shorter."""
    row = next(row for row in _rows(name) if row["rule"] == "pipeline_bubbles")
    assert (row["win_ns"], row["confidence"]) == (None, "hint")
    job = scenarios()[name].job
    assert (job.micro_batches, job.batch) == (8, 64)
    before, after = (
        sum(step_times(simulate(replace(job, micro_batches=each)).books.ops)) for each in (8, 16)
    )
    assert after > before


@pytest.mark.slow
def test_few_micro_batches_are_priced(tmp_path: Path) -> None:
    job = replace(scenarios()["pipeline_1f1b"].job, micro_batches=1)
    write_export(simulate(job), tmp_path / "few.sqlite")
    trace = attribute(read(tmp_path / "few.sqlite", lambda *_: None), default_rules())
    (row,) = diagnose(trace, top=None, rules=["pipeline_bubbles"]).rows.to_dicts()
    before, after = (
        sum(step_times(simulate(replace(job, micro_batches=each)).books.ops)) / job.steps
        for each in (1, 2)
    )
    assert row["win_low_ns"] <= before - after <= row["win_high_ns"]
    assert row["win_ns"] == pytest.approx(before - after, rel=0.5)


@pytest.mark.slow
def test_a_slow_gpu_is_the_straggler(tmp_path: Path) -> None:
    job = Job(
        network="googlenet", batch=16, gpus=4, pattern="all_reduce", processes="per_gpu",
        gpu_pace={2: 1.4}, steps=3,
    )  # fmt: skip
    world = simulate(job)
    write_export(world, tmp_path / "slow.sqlite")
    trace = attribute(read(tmp_path / "slow.sqlite", lambda *_: None), default_rules())
    found = stragglers(trace).rows
    assert found["device"][0] == 2
    assert found["last_share"].to_list() == [1, 0, 0, 0]
    assert found["excess_in"][0] == "BP"
    alike = simulate(replace(job, gpu_pace={}))
    gained = [sum(step_times(each.books.ops)) / job.steps for each in (world, alike)]
    assert found["caused_ns"][0] == pytest.approx(gained[0] - gained[1], rel=0.1)
    rules = diagnose(trace, top=2).rows["rule"].to_list()
    assert sorted(rules) == ["slow_clocks", "stragglers"]
