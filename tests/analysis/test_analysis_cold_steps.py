"""How many steps at the beginning of a run are cold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from compared_traces import compare
from trace_builder import TraceBuilder

import tracekit
from tracekit.analysis import idle_time
from tracekit.analysis.statistics import cold_steps, left_out_notes
from tracekit.analysis.studies import study_row
from tracekit.model import Trace

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def _calm(number: int) -> list[int]:
    return [1000 + n * n * 7 % 31 for n in range(number)]


@pytest.mark.parametrize(
    ("first", "others", "cold"),
    [
        ([9000, 3000, 1500], 27, 3),  # the most usual recording of all
        ([3000], 5, 1),
        ([3000], 4, 1),  # of few steps, one that takes far longer than each of the others
        ([3000], 3, 1),
        ([3000], 2, 0),  # two others are none
        ([1450], 4, 0),
        ([3000, 2500], 3, 0),
        ([1100], 29, 1),
        ([1040], 29, 0),  # 4 % longer is no warm-up
        ([100], 29, 0),  # nor is a short step
        ([1000, 3000], 28, 0),  # nor is what comes later
        ([], 0, 0),
        ([], 30, 0),
    ],
)
def test_by_hand(first: list[int], others: int, cold: int) -> None:
    assert cold_steps([*first, *_calm(others)]) == cold


def test_a_slow_kind_of_steps_is_not_cold() -> None:
    """Every tenth step is slow, of which the first one is no warm-up; of one alone it is."""
    steps = [length * (5 if n % 10 == 0 else 1) for n, length in enumerate(_calm(40))]
    assert cold_steps(steps) == 0
    assert cold_steps(steps[:9]) == 1
    # One stall later on hides no warm-up.
    assert cold_steps([5000, 3000, *_calm(20), 9000, *_calm(10)]) == 2


@pytest.mark.parametrize(
    ("number", "period", "phase"),
    [(60, 20, 0), (60, 20, 7), (75, 25, 0), (200, 20, 0), (200, 50, 12)],
)
def test_the_first_of_slow_steps_that_come_regularly_is_not_cold(
    number: int, period: int, phase: int
) -> None:
    steps = [length * (5 if n % period == phase else 1) for n, length in enumerate(_calm(number))]
    assert cold_steps(steps) == 0
    # Nor does it hide the cold steps before it, or one that is longer.
    before = [9000, 3000, *_calm(period - phase)]
    assert cold_steps(before + steps[phase:]) == 2
    # Two that are slow later on, at places of no order, hide none.
    steps = [5000, *_calm(number)]
    steps[number // 2] = steps[number // 2 + 7] = 5000
    assert cold_steps(steps) == 1


def test_a_third_of_the_steps_is_the_most() -> None:
    assert cold_steps([5000] * 13 + _calm(27)) == 13
    assert cold_steps([5000] * 20 + _calm(20)) == 0  # a kind of steps
    assert cold_steps([*range(5000, 1000, -100)]) < 13


def test_noise_is_seldom_cut() -> None:
    random = np.random.default_rng(1)
    for steps, most in ((6, 0.1), (12, 0.02), (30, 0.01), (200, 0.005)):
        found = [cold_steps(100 + 2 * random.normal(size=steps)) for _ in range(1000)]
        assert np.mean(np.array(found) > 0) <= most


def test_of_few_steps_noise_is_seldom_cut_but_a_first_stall_is() -> None:
    """Steps that vary by 20 %, and a stall of five times a step somewhere in four."""
    random = np.random.default_rng(1)
    for steps in (4, 5):
        found = [cold_steps(np.exp(0.198 * random.normal(size=steps))) for _ in range(1000)]
        assert np.mean(found) <= 0.02
    stalled = [np.where(np.arange(4) == place, 500.0, 100.0) for place in range(4)]
    assert [cold_steps(steps) for steps in stalled] == [1, 0, 0, 0]


def _run(*lengths: int, first: int = 0) -> Trace:
    b = TraceBuilder()
    at = 0
    for number, length in enumerate(lengths):
        b.iteration(number + first, at, at + length)
        b.op("fw", at=at, start=at, end=at + length, stage="FP")
        at += length
    return b.trace()


def test_comparisons_and_studies_leave_out_the_same_steps() -> None:
    """Three warm-up steps before 27 others: both kinds of answers are of the 27."""
    a = _run(9000, 3000, 1500, *_calm(27), first=10)
    b = _run(8000, 2500, *(length + 100 for length in _calm(28)))
    found = compare(a, b)
    assert (found.meta["a_iterations"], found.meta["b_iterations"]) == (27, 28)
    assert (found.meta["skip"], found.meta["a_skipped"], found.meta["b_skipped"]) == (None, 3, 2)
    assert found.meta["step"]["verdict"] == "slower"
    told = "left out at the beginning: 3 of A, 2 of B; --skip 0 keeps all"
    assert told in found.meta["notes"]
    row = study_row(a, {}, "a")
    assert (row["iterations"], row["skipped"]) == (27, 3)
    assert row["step_ns"] == pytest.approx(found.meta["step"]["a_ns"])
    whole = compare(a, b, skip=0)
    assert (whole.meta["a_iterations"], whole.meta["a_skipped"]) == (30, 0)
    assert (
        "cold steps at the beginning: 3 of A, 2 of B; --skip auto leaves them out"
        in (whole.meta["notes"])
    )
    assert study_row(a, {}, "a", skip=0)["skipped"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("samples_read_once")
def test_numbers_per_step_are_one_in_all_commands_and_sums_hold_cold_steps() -> None:
    """The first step of this run is cold: it is in sums over the window, and in no mean."""
    run = tracekit.open(SAMPLES / "ddp_4gpu.sqlite")
    assert tracekit.study([run]).select("skipped", "iterations").row(0) == (1, 5)
    for skip, kept in (("auto", 5), (0, 6)):
        facts = tracekit.study([run], skip=skip).row(0, named=True)
        step, idle = facts["step_ns"], facts["idle_ns"] + facts["between_steps_ns"]
        assert run.idle(skip=skip)["step_ns"].sum() == pytest.approx(idle)
        stalls = tracekit.stalls([run], skip=skip)
        assert stalls["idle_ns"].sum() / 4 / kept == pytest.approx(idle)
        assert stalls["iterations"].to_list() == [kept] * 4
        assert tracekit.compare(run, run, skip=skip).meta["step"]["a_ns"] == pytest.approx(step)
        assert run.flops.answer(skip=skip).meta["step_ns"] == pytest.approx(step)
        path = run.critical_path.answer(skip=skip).meta
        assert (path["steps"], path["skip"]) == (kept, 6 - kept)
        percentiles = run.breakdown(per_iteration=True, skip=skip)
        assert set(percentiles["iterations"]) == {kept}
    assert run.roofline.answer().meta["skip"] == 1
    assert run.whatif.answer(no_sync=True).meta["steps"] == 5
    told = run.diagnose.answer().meta
    assert (told["steps"], told["step_ns"]) == (5, int(tracekit.study([run])["step_ns"].item()))
    # Sums over the window hold the cold step, and say how much of them it is.
    sums, whole = run.breakdown.answer(), run.sql('SELECT sum("end" - start) AS ns FROM ops')
    assert run.breakdown(by="kind")["total_ns"].sum() == whole["ns"].item()
    each = run.breakdown(by="iteration").filter(iteration=0)
    found = run.idle.answer()
    assert found.rows["idle_ns"].sum() == sums.meta["idle_ns"] == found.meta["idle_ns"]
    assert sums.meta["skip"] == found.meta["skip"] == 0
    held = {"steps": 1, "last": 0, "skip": 1, "window_ns": each["window_ns"].item()}
    assert sums.meta["cold"] == held
    assert found.meta["cold"] == held | {
        "idle_ns": each.select(pl.col("idle_ns") + pl.col("between_steps_ns")).item()
    }
    # Of steps that were chosen none is left out.
    assert "cold" not in run.idle.answer(iterations=(0, 2)).meta
    assert run.critical_path.answer(iterations="0:2").meta["steps"] == 3


@pytest.mark.parametrize("first", [0, 100])
def test_idle_time_of_a_step_is_that_of_processes_that_number_steps_apart(
    first: int, b: TraceBuilder
) -> None:
    for process in range(2):
        at, row = 0, {"thread": 10 * process, "device": process}
        for step in range(first * process, first * process + 10):
            length = 9_000 if at == 0 else 1_000
            b.iteration(step, at, at + length, thread=10 * process, ops=2, whole=True)
            b.op("a", at + 10, start=at + 20, end=at + 300, iteration=step, **row)
            end = at + length - 100
            b.op("b", end - 300, start=end - 200, end=end, iteration=step, **row)
            at += length
    answer = idle_time.idle(b.trace(), ["cause"], skip="auto", longest=None)
    assert answer.meta["cold"]["idle_ns"] == 17_040
    assert answer.rows["step_ns"].sum() == pytest.approx(4_560 / 9)


def test_cold_steps_of_a_shared_gpu_hold_the_work_of_others_which_is_not_idle_time(
    b: TraceBuilder,
) -> None:
    """A GPU is idle for 1 us; each of its two processes is without work for half of its steps."""
    for thread in (0, 10):
        for step, (begin, end) in enumerate(pairwise([0, 9_000, *range(10_000, 20_000, 1_000)])):
            half = (end - begin) // 2
            at = begin + half * (thread > 0)
            b.iteration(step, begin, end, thread=thread, ops=1, whole=True)
            b.op("a", at, thread=thread, start=at, end=at + half - 1 * (step == 4), iteration=step)
    answer = idle_time.idle(b.trace(), ["cause"], skip="auto", longest=None)
    assert answer.meta["cold"]["steps"] == 1
    assert answer.meta["cold"].get("idle_ns", 0) <= answer.meta["idle_ns"] == 2


def test_few_runs_are_named_of_which_steps_are_left_out() -> None:
    told = "left out at the beginning: {}; --skip 0 keeps all".format
    assert left_out_notes({"a": 0, "b": 0}) == []
    assert left_out_notes({"a": 3, "b": 0, "c": 1}) == [told("3 of a, 1 of c")]
    assert left_out_notes(dict.fromkeys("abcde", 1)) == [told("1 of each of 5 runs")]
    assert left_out_notes(dict(zip("abcdef", (1, 2, 3, 1, 1, 0), strict=True))) == [
        told("1 to 3 of each of 5 runs")
    ]
