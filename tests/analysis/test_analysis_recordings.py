"""Comparisons of several recordings a side: by hand, against a second way, and what is said."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.comparison import (
    Comparison,
    Metric,
    Recorded,
    check_limit,
    compare_recordings,
)
from tracekit.analysis.comparison._recordings import (
    between,
    difference_error,
    enough_recordings,
    least_enough,
    reach_of,
)
from tracekit.analysis.statistics import quantile
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import MEMORY, Trace


def _trace(step: int, *, steps: int = 6, first: int | None = None, extra: bool = False) -> Trace:
    """Steps of one length, which one forward op fills; the first one may take another time."""
    b = TraceBuilder()
    at = 0
    for number in range(steps):
        length = first if number == 0 and first is not None else step
        b.iteration(number, at, at + length)
        end = at + length - (40 if extra else 0)
        b.op("fw", at=at, start=at, end=end, stage="FP")
        if extra:
            b.op("sgd", at=at + 1, start=end, end=at + length, stage="WU")
        at += length
    return b.trace()


def _side(name: str, *steps: int, extra: bool = False) -> list[Recorded]:
    return [
        Recorded(_trace(step, extra=extra), f"{name}{number}")
        for number, step in enumerate(steps, 1)
    ]


def _found(a: list[int], b: list[int], metric: Metric = "mean") -> Comparison:
    return compare_recordings(_side("a", *a), _side("b", *b), metric=metric)


def test_three_against_three_by_hand() -> None:
    """Means 1020 and 1090, variances 400: 70 ± 2.776 sqrt(400 / 3 + 400 / 3), with 4 degrees."""
    found = _found([1000, 1020, 1040], [1070, 1090, 1110])
    step = found.meta["step"]
    assert (step["a_ns"], step["b_ns"], step["delta_ns"]) == (1020, 1090, 70)
    assert (step["a_sd_ns"], step["b_sd_ns"]) == pytest.approx((20, 20))
    assert step["low_ns"] == pytest.approx(70 - 45.339, abs=1e-3)
    assert step["high_ns"] == pytest.approx(70 + 45.339, abs=1e-3)
    assert step["p_value"] == pytest.approx(0.0128, abs=5e-5)
    assert step["verdict"] == "slower"
    assert found.table.row(0, named=True)["verdict"] == "slower"
    assert found.table.select("stage", "a_ns", "b_ns").rows() == [
        ("FP", 1020, 1090), ("idle", 0, 0), ("between_steps", 0, 0)
    ]  # fmt: skip
    assert found.meta["headline"].startswith(
        "step: 1.02 us in A (3 recordings), 1.09 us in B (3 recordings): slower by 70 ns "
        "(+6.9 %); shown of the two programs, 95 % interval +25 ns to +115 ns"
    )
    assert found.meta["notes"] == [
        "recordings scatter by 2 % in A, 2 % in B; with 3 and 3 changes of 4.4 % or more are shown",
        f"about {enough_recordings((100 / 51, 100 / 51), 1)} recordings a side would show 1 %",
    ]


def test_one_recording_has_the_scatter_of_the_other_side() -> None:
    """70 ± 4.303 sqrt(400 (1 / 3 + 1)), with 2 degrees of freedom: not shown."""
    found = _found([1000, 1020, 1040], [1090])
    step = found.meta["step"]
    assert (step["low_ns"], step["high_ns"]) == pytest.approx((70 - 99.366, 70 + 99.366), abs=1e-3)
    assert step["verdict"] == "no difference shown"
    assert step["b_sd_ns"] is None
    assert "B is one recording" in found.meta["notes"][0]
    assert "recordings a side would show 6.9 %" in found.meta["notes"][-1]
    back = _found([1090], [1000, 1020, 1040]).meta["step"]
    assert (back["low_ns"], back["high_ns"]) == pytest.approx((-step["high_ns"], -step["low_ns"]))


def test_the_typical_step_is_the_mean_of_medians() -> None:
    """Each first step of B takes ten times as long; the others are 1 % quicker."""
    a = [Recorded(_trace(step), f"a{step}") for step in (1000, 1001, 1002)]
    b = [Recorded(_trace(step, first=10_000), f"b{step}") for step in (990, 991, 992)]
    found = compare_recordings(a, b, metric="median", least=0.5, skip=0)
    step = found.meta["step"]
    assert step["delta_ns"] > 0 > step["shift_ns"] == -10
    assert found.meta["judged"]["sentence"] == "by median: faster (least 0.5 %)"
    assert found.meta["notes"][0] == (
        "cold steps at the beginning: 1 of b990, 1 of b991, 1 of b992; --skip auto leaves them out"
    )
    assert compare_recordings(a, b).meta["b_skipped"] == 1


@pytest.mark.slow
def test_a_limit_is_held_against_recordings() -> None:
    """Over 1.05 x 1020 are 19; one-sided 2.13 (4 degrees) x 16.7: not known of 3 a side."""
    found = _found([1000, 1020, 1040], [1070, 1090, 1110])
    unknown = check_limit(found, 5)
    assert unknown.outcome == "unknown"
    assert "more recordings a side would decide" in unknown.sentence
    assert check_limit(found, 15).outcome == "within"
    assert check_limit(found, 2).outcome == "above"
    assert check_limit(_found([1000, 1020, 1040], [1090]), 50).outcome == "within"
    # At 15 % A's scatter is 23: sqrt((23^2 + 20^2) / 3) x 2.14 (3.9 degrees) are 37.7 over 1090.
    assert "+6.9 %, at most +10.6 % at 95 %" in check_limit(found, 15).sentence
    # And at 2 % 20.4: 16.5 x 2.13 are 35.2 below.
    assert "+6.9 %, at least +3.4 % at 95 %" in check_limit(found, 2).sentence


def test_what_never_varies_is_above_a_limit_or_within() -> None:
    found = _found([1000, 1000], [1200, 1200])
    assert check_limit(found, 10).outcome == "above"
    exact = check_limit(found, 20)
    assert (exact.outcome, exact.sentence) == (
        "within", "within 20 %: steps change by +20.0 %, none varies"
    )  # fmt: skip


def test_groups_of_one_side_alone() -> None:
    found = compare_recordings(
        _side("a", 1000, 1010), _side("b", 1000, 1010, extra=True), "kernel"
    ).table
    row = found.filter(name="sgd").row(0, named=True)
    assert (row["a_ns"], row["b_ns"], row["only_in"], row["verdict"]) == (0, 40, "B", "slower")
    assert (row["a_count"], row["b_count"]) == (0, 1)


def test_parts_of_the_step_add_up() -> None:
    found = compare_recordings(_side("a", 900, 1000), _side("b", 950, 1111, extra=True), "step")
    for column in ("a_ns", "b_ns", "delta_ns"):
        assert found.table[column].sum() == pytest.approx(found.meta["step"][column])
    assert found.table["share"].sum() == pytest.approx(1)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="do not show how recordings scatter"):
        compare_recordings(_side("a", 1000), _side("b", 1000))
    with pytest.raises(UsageError, match="'a1' is given twice"):
        compare_recordings(_side("a", 1000), _side("a", 1000, 1001))
    with pytest.raises(MissingDataError, match="a1 has no events of GPU memory"):
        compare_recordings(_side("a", 1000), _side("b", 1000, 1001), "memory")


def _using(name: str, *peaks: int) -> Recorded:
    """A recording with a peak of memory on each of some GPUs."""
    rows = [
        {"report": 0, "process": 0, "device": device, "time": 1, "change": peak, "in_use": peak}
        for device, peak in enumerate(peaks)
    ]  # fmt: skip
    memory = MEMORY.conform(pl.DataFrame(rows))
    return Recorded(_trace(1000).with_tables({"memory": memory}), name)


def test_peaks_of_memory_are_means_of_recordings() -> None:
    found = compare_recordings(
        [_using("a1", 100), _using("a2", 120)], [_using("b1", 132, 7), _using("b2", 132)], "memory"
    )
    assert found.table.columns == [
        "device", "a_bytes", "b_bytes", "delta_bytes", "ratio", "only_in", "a_sd_bytes",
        "b_sd_bytes", "a_runs", "b_runs",
    ]  # fmt: skip
    first, second = found.table.rows()
    assert first[:4] == (0, 110, 132, 22)
    assert first[4] == pytest.approx(1.2)
    assert first[5:] == (None, pytest.approx(200**0.5), 0, 2, 2)
    assert second == (1, None, 7, None, None, "B", None, None, 0, 1)


def _warming(step: int, outside: int) -> Trace:
    """Steps of one forward op, after work that is in none of them."""
    b = TraceBuilder()
    b.op("warm", at=1, start=10, end=10 + outside, stage="OTHER")
    for number in range(6):
        at = 500 + number * step
        b.iteration(number, at, at + step)
        b.op("fw", at=at, start=at, end=at + step, stage="FP")
    return b.trace()


def test_what_lies_outside_of_steps_is_a_mean_of_recordings() -> None:
    a = [Recorded(_warming(1000 + n, 100 + n), f"a{n}") for n in (0, 2)]
    b = [Recorded(_warming(1000 + n, 50), f"b{n}") for n in (0, 2)]
    found = compare_recordings(a, b, "kernel")
    rows = {row["name"]: row for row in found.table.iter_rows(named=True)}
    warm = rows["warm"]
    told = (warm["a_ns"], warm["b_ns"], warm["verdict"])
    assert told == (0, 0, "too small to matter")
    assert (warm["a_outside_steps_ns"], warm["b_outside_steps_ns"]) == (101, 50)
    assert (warm["a_outside_steps_count"], warm["b_outside_steps_count"]) == (1, 1)
    assert rows["fw"]["a_outside_steps_ns"] == 0
    assert any(note.startswith("outside_steps: ") for note in found.meta["notes"])
    assert found.readable_rows.filter(name="warm")["a_outside_steps_ns"].item() == 101
    assert "a_outside_steps_count" not in found.readable_rows.columns


def test_times_are_of_one_gpu_in_the_mean() -> None:
    def on_two(*busy: int) -> Trace:
        b = TraceBuilder()
        for at in range(0, 6000, 1000):
            for rank, length in enumerate(busy):
                b.iteration(at // 1000, at, at + 1000, thread=10 * rank)
                b.op("fw", at=at, start=at, end=at + length, stage="FP", thread=10 * rank,
                     device=rank)  # fmt: skip
        return b.trace()

    a, b = ([Recorded(on_two(500 + n, 900 + n), f"{side}{n}") for n in (0, 10)] for side in "ab")
    found = compare_recordings(a, b).table.filter(stage="FP").row(0, named=True)
    assert (found["a_ns"], found["b_ns"]) == (705, 705)


def test_recordings_of_other_batches_are_not_comparable() -> None:
    a = [Recorded(_trace(1000 + n), f"a{n}", {"batch": "16"}) for n in range(2)]
    b = [Recorded(_trace(1100 + n), f"b{n}", {"batch": "32"}) for n in range(2)]
    found = compare_recordings(a, b)
    assert found.meta["not_comparable"] == ["batch 16 in a0, batch 32 in b0",
                                            "batch 16 in a0, batch 32 in b1"]  # fmt: skip
    assert set(found.table["verdict"]) == {None}
    assert compare_recordings(a, b, anyway=True).meta["step"]["verdict"] == "slower"


_MEANS = st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True)


@given(_MEANS, _MEANS)
@settings(max_examples=examples(30))
def test_p_values_and_intervals_are_those_of_scipy(a: list[int], b: list[int]) -> None:
    from scipy import stats

    expected = stats.ttest_ind(b, a, equal_var=False)
    low, high, p_value = between(np.array([a], np.float64), np.array([b], np.float64))
    assert p_value[0] == pytest.approx(expected.pvalue, rel=1e-6)
    ends = expected.confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx(tuple(ends), rel=1e-6, abs=1e-6)


@given(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0.5, 10))
@settings(max_examples=examples(30))
def test_the_number_of_recordings_is_the_least(a: float, b: float, change: float) -> None:
    found = enough_recordings((a, b), change)
    naive = next((n for n in range(2, 1100) if reach_of((a, b), (n, n), 0.95) < change), None)
    assert found == naive


def test_a_number_is_searched_for_up_to_the_largest() -> None:
    for least in (2, 600, 1000):
        assert least_enough(lambda number, least=least: number >= least, 2, 1000) == least  # type: ignore[misc]
    assert least_enough(lambda _: False, 2, 1000) is None


def test_no_number_of_recordings_shows_next_to_nothing() -> None:
    assert enough_recordings((5, 5), 0.001) is None


def test_one_recording_scatters_as_the_others_do_whichever_side_it_is_on() -> None:
    """Of 1 and 3 the variance is 2; a mean of two and a lone one differ by 2 / 2 + 2 / 1."""
    two, one = np.array([[1.0, 3.0]]), np.array([[5.0]])
    for sides in ((two, one), (one, two)):
        variance, freedom = difference_error(*sides)
        assert (variance.tolist(), freedom.tolist()) == ([3], [1])


def test_the_reach_of_sides_with_unlike_numbers_is_welch_s() -> None:
    """2^2 / 3 and 1 / 5, of 2 and 4 degrees of freedom."""
    whole = 4 / 3 + 1 / 5
    freedom = whole**2 / ((4 / 3) ** 2 / 2 + (1 / 5) ** 2 / 4)
    expected = float(quantile(freedom, 0.975)) * np.sqrt(whole)
    assert reach_of((2, 1), (3, 5), 0.95) == pytest.approx(expected)
    assert reach_of((1, 2), (5, 3), 0.95) == pytest.approx(expected)
