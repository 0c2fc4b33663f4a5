"""How well ratios of mean times are known: by hand, and by trial."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.analysis.studies import overhead, scaling, study_notes
from tracekit.analysis.studies._ratios import step_interval
from tracekit.analysis.studies._study import STUDY


def _study(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"network": "lenet", "batch": 16, "gpus": 1, "method": "p2p"}
    full = [{name: ({**usual, **row}).get(name) for name in STUDY} for row in rows]
    return pl.DataFrame(full, schema=STUDY)


def _run(step: float, error: float, steps: int = 26, **row: Any) -> dict[str, Any]:
    known = {"step_ns": step, "step_se_ns": error, "step_effective": float(steps)}
    return {**known, "iterations": steps, **row}


def test_an_overhead_that_is_noise() -> None:
    """0.26 %, each mean known to 0.5 %: 0.0026 ± 2.306 sqrt(2) 0.005, 8 degrees of freedom."""
    found = overhead(
        _study(_run(1000, 5), _run(1002.6, 5.013, method="nccl", run="b"))
    ).rows.row(0, named=True)  # fmt: skip
    assert found["overhead_percent"] == pytest.approx(0.26)
    assert found["from_percent"] == pytest.approx(100 * (1.0026 * np.exp(-0.016306) - 1), abs=1e-3)
    assert found["to_percent"] == pytest.approx(100 * (1.0026 * np.exp(0.016306) - 1), abs=1e-3)
    assert (found["interval_of"], found["steps"], found["baseline_steps"]) == ("steps", 26, 26)


def test_an_overhead_of_several_runs() -> None:
    """Runs of 990, 1010 and 1090, 1110: 1.4 % and 1.3 % of scatter, Welch's degrees near 2."""
    from scipy import stats  # which takes a second

    rows = [_run(step, 1) for step in (990, 1010)]
    rows += [_run(step, 1, method="nccl") for step in (1090, 1110)]
    found = overhead(_study(*rows)).rows.row(0, named=True)
    spreads = [
        (np.std(each, ddof=1) / np.mean(each)) ** 2 / 2 for each in ((990, 1010), (1090, 1110))
    ]
    freedom = sum(spreads) ** 2 / sum(each**2 for each in spreads)
    reach = np.exp(stats.t.ppf(0.975, freedom) * np.sqrt(sum(spreads)))
    assert found["from_percent"] == pytest.approx(100 * (1.1 / reach - 1))
    assert found["to_percent"] == pytest.approx(100 * (1.1 * reach - 1))
    assert found["interval_of"] == "runs"
    # One run beside two has their scatter.
    alone = overhead(_study(*rows[:3])).rows.row(0, named=True)
    reach = np.exp(stats.t.ppf(0.975, 1) * np.sqrt(2 * spreads[0] * 1.5))
    assert alone["to_percent"] == pytest.approx(100 * (1.09 * reach - 1))
    assert (alone["interval_of"], alone["steps"], alone["baseline_steps"]) == ("runs", 26, 52)


def test_runs_without_a_time_make_no_interval_narrower() -> None:
    """Two runs with times stay two values beside one of which no step, or no stage, is known."""
    sides = {(1, "p2p"): (990, 1010), (1, "nccl"): (1090, 1110), (2, "p2p"): (590, 610)}
    rows = [
        _run(step, 1, gpus=gpus, method=method, fp_bp_ns=0.9 * step)
        for (gpus, method), steps in sides.items()
        for step in steps
    ]
    unknown = {"step_ns": None, "step_se_ns": None, "iterations": None, "fp_bp_ns": None}
    ends = ["from_percent", "to_percent"]
    more = [{**row, **unknown} for row in rows[1::2]]
    assert_frame_equal(
        overhead(_study(*more, *rows)).rows.select(ends), overhead(_study(*rows)).rows.select(ends)
    )
    ends = ["speedup_fp_bp_from", "speedup_fp_bp_to"]
    more = [{**row, "fp_bp_ns": None} for row in rows[1::2]]
    assert_frame_equal(
        scaling(_study(*rows, *more)).rows.select(ends), scaling(_study(*rows)).rows.select(ends)
    )


def test_a_speedup_has_an_interval_but_not_over_itself() -> None:
    from scipy import stats  # which takes a second

    rows = [_run(1000, 5), _run(600, 3, gpus=2), _run(400, 2, gpus=4, steps=4)]
    found = scaling(_study(*rows), batch_scope="global").rows
    assert found["speedup_from"][0] is found["interval_of"][0] is None
    reach = np.exp(stats.t.ppf(0.975, 8) * np.sqrt(2) * 0.005)
    assert found["speedup_to"][1] == pytest.approx(1000 / 600 * reach)
    assert found["speedup_from"][1] == pytest.approx(1000 / 600 / reach)
    assert found["speedup_to"][2] == pytest.approx(1000 / 400 * reach)
    assert found["steps"].to_list() == [26, 26, 4]


@pytest.mark.parametrize(("steps", "every", "error"), [
    (8, None, 0.4 / 8**0.5),
    (13, None, 0.4 / 13**0.5),
    (14, None, 0.01),  # more than half as many
    (8, 4, 0.01),  # which has slow steps
])  # fmt: skip
def test_a_short_run_may_lack_rare_slow_steps(steps: int, every: int | None, error: float) -> None:
    """26 steps that vary by 40 % beside a few that vary little."""
    from scipy import stats  # which takes a second

    rows = [_run(1000, 5, step_sd_ns=400), _run(600, 6, steps, gpus=2, slow_every=every)]
    found = scaling(_study(*rows), batch_scope="global").rows.row(1, named=True)
    variances = (0.005**2, error**2)
    freedom = sum(variances) ** 2 / sum(each**2 / 4 for each in variances)
    reach = np.exp(stats.t.ppf(0.975, freedom) * np.sqrt(sum(variances)))
    assert found["speedup_to"] == pytest.approx(1000 / 600 * reach)
    back = overhead(_study(*rows[::-1]).with_columns(gpus=1, method=pl.Series(["p2p", "nccl"])))
    assert back.rows["to_percent"][0] == pytest.approx(100 * (1000 / 600 * reach - 1))


@pytest.mark.parametrize(("steps", "effective", "is_told"), [
    (199, 199, True), (200, 200, False), (200, 49, True), (200, None, False), (None, None, False),
])  # fmt: skip
def test_intervals_of_few_or_slowly_varying_steps_hold_if_no_drift(
    steps: int | None, effective: float | None, *, is_told: bool
) -> None:
    found = study_notes(_study(_run(1000, 5, run="a", iterations=steps, step_effective=effective)))
    note = (
        "intervals hold if no drift, and no slow steps rarer than the recorded ones "
        "(fewer than 200 steps, or slow variation): a"
    )
    assert found == [note] * is_told


def test_weak_against_strong_has_an_interval() -> None:
    """Steps of 8 GPUs that take 211.2 and 240: 12 % less, each known to 0.5 %."""
    from scipy import stats  # which takes a second

    rows = [
        _run(200, 1),
        _run(240, 1.2, gpus=8, scaling="strong"),
        _run(211.2, 1.056, gpus=8, scaling="weak"),
    ]
    found = scaling(_study(*rows), mode="weak").rows.row(1, named=True)
    assert found["reduction_percent"] == pytest.approx(12)
    reach = np.exp(stats.t.ppf(0.975, 8) * np.sqrt(2) * 0.005)
    assert found["reduction_from"] == pytest.approx(100 * (1 - 0.88 * reach))
    assert found["reduction_to"] == pytest.approx(100 * (1 - 0.88 / reach))


def test_times_from_a_table_have_no_interval() -> None:
    rows = [{"epoch_ns": 100.0}, {"epoch_ns": 116.4, "method": "nccl"}]
    found = overhead(_study(*rows)).rows.row(0, named=True)
    assert found["overhead_percent"] == pytest.approx(16.4)
    assert found["from_percent"] is found["interval_of"] is found["steps"] is None
    several = overhead(_study(*rows, {"epoch_ns": 118.0, "method": "nccl"})).rows.row(0, named=True)
    assert several["interval_of"] == "runs"


def test_intervals_hold_the_truth() -> None:
    """2,000 ratios of means of 12 and 20 lognormal times: 97 % of the intervals hold the truth.

    Their errors are plain ones, with more degrees of freedom than the four that are counted.
    """
    random = np.random.default_rng(4)
    a, b = (random.lognormal(0, 0.3, (2000, number)) for number in (12, 20))
    rows = [
        _run(
            each.mean(), each.std(ddof=1) / np.sqrt(len(each)), len(each), gpus=n + 1, method=method
        )
        for n in range(2000)
        for method, each in (("p2p", a[n]), ("nccl", b[n]))
    ]  # fmt: skip
    found = overhead(_study(*rows)).rows
    held = ((found["from_percent"] <= 0) & (found["to_percent"] >= 0)).mean()
    assert found.height == 2000
    assert 0.95 <= float(held or 0) <= 0.985


def _steps(lengths: Any) -> Any:
    """Return what is known of a run of one GPU, as far as its steps go."""
    rows = {"iteration": range(len(lengths)), "length_ns": np.rint(lengths).astype(np.int64)}
    return SimpleNamespace(parts=pl.DataFrame(rows), iterations=[*rows["iteration"]], devices=1)


@pytest.mark.slow
def test_a_slow_tenth_step_does_not_hide_a_slower_run() -> None:
    """60 steps, of which every tenth takes 5 times as long: the mean is 140 in the long run."""
    random = np.random.default_rng(11)

    def drawn() -> dict[str, Any]:
        is_slow = (np.arange(60) + random.integers(10)) % 10 == 0
        return step_interval(
            _steps(1000 * np.where(is_slow, 500, 100) * (1 + 0.02 * random.normal(size=60)))
        )

    found = pl.DataFrame([drawn() for _ in range(500)])
    assert found["slow_every"].unique().to_list() == [10]
    right = found.filter((pl.col("step_low_ns") < 140e3) & (pl.col("step_high_ns") > 140e3))
    assert right.height >= 0.93 * 500
    # 2 % of steps of 140, with cosines' four degrees of freedom; it was a half of the mean.
    assert float(found["step_high_ns"].median() / found["step_low_ns"].median()) < 1.03
    alone = step_interval(_steps([100.0] * 9 + [500.0] + [100.0] * 50))
    assert alone["slow_every"] is None
    assert alone["step_se_ns"] > 1  # one slow step alone is no kind


def test_a_slow_step_more_than_usual_is_part_of_the_error() -> None:
    """Of 25 steps that never vary but for every tenth, three are slow, where 2.5 are usual."""
    found = step_interval(_steps([500 if n % 10 == 0 else 100 for n in range(25)]))
    assert found["slow_every"] == 10
    assert found["step_high_ns"] - 148 == pytest.approx(400 * (3 / 25 - 1 / 10))
    assert 148 - found["step_low_ns"] == pytest.approx(400 * (3 / 25 - 1 / 10))
