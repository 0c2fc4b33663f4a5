"""Histories: their order, their levels, and what changes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.comparison import (
    Recorded,
    change_points,
    history,
    typical_step,
    unlike,
)  # fmt: skip
from tracekit.errors import UsageError

BEGIN = datetime(2026, 10, 1, tzinfo=UTC)
NOISE = (0, 3, -2, 1, -3, 2, 4, -1, 0, -4)


def _recordings(values: list[str], steps: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "value": values,
            "run": [f"run{number}" for number in range(len(values))],
            "created": [BEGIN + timedelta(hours=number) for number in range(len(values))],
            "step_ns": steps,
        },
        schema_overrides={"step_ns": pl.Float64},
    )


def test_a_program_that_gets_slower_once() -> None:
    """Ten nights around 1000, ten around 1050: medians 1000 and 1050, 5 % more."""
    steps: list[float | None] = [1000 + NOISE[n % 10] + 50 * (n >= 10) for n in range(20)]
    found = history(_recordings([str(n) for n in range(20)], steps), label="night")
    assert found.rows["level"].to_list() == [1] * 10 + [2] * 10
    changed = found.rows.drop_nulls("change_percent").row(0, named=True)
    assert (changed["value"], changed["change_percent"]) == ("10", pytest.approx(5))
    assert changed["p_value"] == 1 / 2000
    assert found.rows["level_ns"].unique(maintain_order=True).to_list() == [1000, 1050]
    assert found.meta["headline"] == "20 points: +5.0 % from night 10 on"
    assert found.rows["p_value"].null_count() == 19


def test_one_night_off_is_no_change() -> None:
    steps: list[float | None] = [1000.0 + NOISE[n % 10] for n in range(20)]
    steps[7] = 5000
    found = history(_recordings([str(n) for n in range(20)], steps), label="night")
    assert found.meta["changes"] == 0
    assert (
        found.meta["headline"] == "20 points: no change found; far from their level: 7 (+400.0 %)"
    )


def test_a_slow_week_is_named_where_no_cut_is_found() -> None:
    """Before and after a week that is 8 % slower ranks differ alike: no cut parts the series."""
    steps: list[float | None] = [1000.0 + NOISE[n % 10] + 80 * (10 <= n < 17) for n in range(30)]
    steps[29] = 940.0
    found = history(_recordings([f"2026-1-{n + 1}" for n in range(30)], steps), label="night")
    assert found.meta["headline"] == (
        "30 points: no change found; far from their level: 2026-1-11 to 2026-1-17 (+8.0 %), "
        "2026-1-30 (-6.0 %)"
    )


def test_a_change_of_slowly_varying_points_may_be_a_drift() -> None:
    """A wave over ten points: nights that go with the night before look like levels by chance."""
    wave: list[float | None] = [1000 + 20 * np.sin(n / 3) + 50 * (n >= 20) for n in range(40)]
    found = history(_recordings([str(n) for n in range(40)], wave), label="night")
    assert found.meta["headline"].endswith("from night 28 on, if no drift")


def test_a_steady_drift_is_no_sudden_change() -> None:
    steps: list[float | None] = [1000.0 + NOISE[n % 10] + 5 * n for n in range(24)]
    found = history(_recordings([str(n) for n in range(24)], steps), label="night")
    assert found.meta["changes"]
    assert "; a steady +0.47 % a point fits no worse" in found.meta["headline"]


def test_evaluation_that_only_some_runs_hold_is_told() -> None:
    runs = []
    for name, stage in (("a", "FP"), ("b", "FP"), ("c", "ME"), ("d", "ME")):
        b = TraceBuilder()
        b.op("gemm", 10, stage=stage)
        runs.append(Recorded(b.trace(), name, {}))
    assert unlike(runs) == ["c has evaluation, which counts in the step before it, a does not"]


def test_input_of_another_size_is_told() -> None:
    """Steps that copy twice the input, or 4 % more, which is alike, or half of it between steps."""
    runs = []
    for name, size in (("a", 100), ("b", 200), ("c", 104), ("d", 198), ("e", 50)):
        b = TraceBuilder()
        b.op("weights", 0, kind="h2d", bytes=size, stage="WU", iteration=0)
        gpus = (0, 1) if name == "c" else (0,)  # whose process numbers its steps apart
        for gpu, (step, stage) in itertools.product(gpus, enumerate(("IO", "IO", "OTHER"))):
            at, thread = 100 * step, 10 * gpu  # the last stage is that of a server
            row = {"device": gpu, "thread": thread, "bytes": size * 10_000, "stage": stage}
            b.iteration(7 * gpu + step, at, at + 90, thread=thread, whole=True)
            b.op("gemm", at + 1, device=gpu, thread=thread, iteration=7 * gpu + step)
            b.op("x", at + 10, kind="h2d", iteration=7 * gpu + step, **row)
            if name == "e":
                b.op("x", at + 95, kind="h2d", **row)
        runs.append(Recorded(b.trace(), name, {}))
    assert unlike(runs) == [
        "a step copies 1.000 MB of input to a GPU in a and 2.000 in b: batches may differ"
    ]


@pytest.mark.parametrize("points", range(6, 14))
def test_fewer_than_ten_points_are_said_to_show_no_change(points: int) -> None:
    """Of the orders of nine 2 in 126 are as far as half of them slower by any amount."""
    steps: list[float | None] = [1000.0 + n + 900 * (n >= points // 2) for n in range(points)]
    found = history(_recordings([str(n) for n in range(points)], steps), label="night")
    assert found.meta["changes"] == (points >= 10)
    few = f"{points} points: too few to show a change, which takes 10"
    assert found.meta["headline"].startswith(few) == (points < 10)


def test_the_order_of_points() -> None:
    def order(values: list[str]) -> list[str]:
        points = _recordings(values, [1.0] * len(values))
        return history(points, label="x").rows["value"].to_list()

    assert order(["10", "9", "1e1.5"]) == ["10", "9", "1e1.5"]
    assert order(["10", "9", "8.5"]) == ["8.5", "9", "10"]
    assert order(["2026-10-02", "2025-12-31"]) == ["2025-12-31", "2026-10-02"]
    assert order(["2026-10-2", "2026-9-30"]) == ["2026-9-30", "2026-10-2"]
    assert order(["v1.10", "v1.9"]) == ["v1.9", "v1.10"]
    assert order(["fed", "abc"]) == ["fed", "abc"]
    assert order(["0.05", "0.1", "0.02"]) == ["0.02", "0.05", "0.1"]
    assert order(["28.11.2026", "01.12.2026"]) == ["28.11.2026", "01.12.2026"]
    assert order(["n-1-12-2026 9:30", "n-28-11-2026 9:30"])[0] == "n-28-11-2026 9:30"
    assert order(["11/28/2026", "2/1/2027"]) == ["11/28/2026", "2/1/2027"]
    assert order(["31.12.26", "01.01.27"]) == ["31.12.26", "01.01.27"]
    assert order(["11.1.1803", "10.2.1904"]) == ["10.2.1904", "11.1.1803"]  # versions of Windows
    assert order(["-1", "-2", "-3"]) == ["-3", "-2", "-1"]
    assert order(["1e-3", "1e-4"]) == ["1e-4", "1e-3"]
    of_commits = history(_recordings(["fed", "abc"], [1.0, 1.0]), label="commit")
    assert of_commits.title == "history by commit, in the order of ingest"


def test_an_order_that_depends_on_the_reading_is_told() -> None:
    def titled(*values: str) -> tuple[list[str], str]:
        found = history(_recordings([*values], [1.0] * len(values)), label="x")
        return found.rows["value"].to_list(), found.title

    versions = ["2.8", "2.9", "2.10", "2.11"]
    assert titled(*versions) == (
        versions, "history by x, as versions (as decimals in another order)"
    )  # fmt: skip
    rates = ["0.1", "0.25", "0.3"]
    title = "history by x, as decimals (as versions in another order)"
    assert titled(*rates) == (rates, title)
    assert titled("2.1", "2.10", "2.9")[0] == ["2.1", "2.9", "2.10"]  # 2.1 and 2.10 are two values
    days = ["03.01.2026", "04.01.2026", "01.02.2026"]
    title = "history by x, as days before months (as months before days in another order)"
    assert titled(*days) == (days, title)
    assert titled("0.5", "1.5", "2.0") == (["0.5", "1.5", "2.0"], "history by x")


def test_the_farthest_points_are_named_not_the_longest_groups() -> None:
    steps: list[float | None] = [1000.0 + NOISE[n % 10] for n in range(30)]
    for begin, end, more in ((2, 5, 50), (8, 11, 60), (14, 17, 70), (25, 26, 900)):
        for place in range(begin, end):
            steps[place] = 1000.0 + more
    found = history(_recordings([str(n) for n in range(30)], steps), label="night")
    off = "8 to 10 (+5.7 %), 14 to 16 (+6.7 %), 25 (+89.5 %) and 1 more"
    assert found.meta["headline"] == f"30 points: no change found; far from their level: {off}"


def test_runs_with_one_value_are_a_point_and_those_without_steps_none() -> None:
    found = history(_recordings(["a", "a", "b", "c"], [10, 14, 11, None]), label="commit")
    columns = ("value", "run", "runs", "step_ns", "low_ns", "high_ns")
    assert found.rows.select(columns).rows() == [
        ("a", None, 2, 12, 10, 14), ("b", "run2", 1, 11, None, None)
    ]  # fmt: skip
    assert found.meta["untimed"] == ["run3"]
    with pytest.raises(UsageError, match="no run with the label 'commit' has steps"):
        history(_recordings(["a"], [None]), label="commit")


def test_two_changes() -> None:
    values = np.array([*NOISE, *(n + 50 for n in NOISE), *(n - 30 for n in NOISE)], np.float64)
    assert [change.place for change in change_points(values)] == [10, 20]
    assert change_points(np.full(40, 7.0)) == []
    assert change_points(np.arange(5.0)) == []


@given(st.lists(st.integers(0, 1000), min_size=6, max_size=40), st.integers(1, 50))
@settings(max_examples=examples(10))
def test_changes_do_not_hang_on_the_unit(values: list[int], factor: int) -> None:
    plain = np.array(values, np.float64)
    assert change_points(plain) == change_points(factor * plain + 3)


def test_steps_of_a_recording() -> None:
    b = TraceBuilder()
    for number, length in enumerate((300, 100, 100)):
        b.iteration(number, 1000 * number, 1000 * number + 900)
        b.op("fw", at=1000 * number, start=1000 * number, end=1000 * number + length, stage="FP")
    # Two steps last until the next one begins, the last one as long as its op.
    assert typical_step(b.trace()) == pytest.approx(2100 / 3)
    assert typical_step(b.trace(), metric="median") == 1000
    assert typical_step(b.trace(), skip=2) == 100
    without = TraceBuilder()
    without.op("fw", at=0, start=0, end=5, stage="FP")
    assert typical_step(without.trace()) is None
