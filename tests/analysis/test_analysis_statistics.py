"""Intervals and p values: right on known cases, mirrored, and seldom wrong by chance."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tracekit.analysis._statistics import adjusted, differences, welch

_SAMPLES = st.integers(1, 4).flatmap(
    lambda rows: st.tuples(
        *(
            st.integers(2, 12).flatmap(
                lambda columns: st.lists(
                    st.lists(st.integers(0, 10**12), min_size=columns, max_size=columns),
                    min_size=rows, max_size=rows,
                )
            )
            for _ in range(2)
        )
    )
)  # fmt: skip


def _array(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


@settings(max_examples=examples(25), deadline=None)
@given(_SAMPLES)
def test_samples_that_change_places_mirror(samples) -> None:
    a, b = map(_array, samples)
    there, back = differences(a, b), differences(b, a)
    assert (there.low == -back.high).all()
    assert (there.high == -back.low).all()
    assert (there.p_value == back.p_value).all()
    assert (there.low <= there.high).all()
    # No resample's mean lies outside of the values.
    assert (there.low >= b.min(axis=1) - a.max(axis=1)).all()
    assert (there.high <= b.max(axis=1) - a.min(axis=1)).all()


@settings(max_examples=examples(25), deadline=None)
@given(_SAMPLES)
def test_a_sample_does_not_differ_from_itself(samples) -> None:
    a = _array(samples[0])
    found = differences(a, a.copy())
    assert (found.low == 0).all()
    assert (found.high == 0).all()
    assert (found.p_value == 1).all()


def test_what_never_varies_differs_for_certain() -> None:
    found = differences(_array([[3] * 5, [7] * 5]), _array([[5] * 6, [7] * 6]))
    assert found.low.tolist() == found.high.tolist() == [2, 0]
    assert found.p_value.tolist() == [0, 1]


def test_p_values_are_scipy_s_of_welch() -> None:
    a, b = _array([[10, 12, 14, 11, 13], [5, 5, 6, 5, 9]]), _array([[15, 12, 18, 16], [5, 6, 7, 6]])
    expected = stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue
    assert welch(a, b) == pytest.approx(expected)
    # By hand, two rows: the smaller p value doubles, the larger one stays.
    p = sorted(expected)
    assert sorted(adjusted(welch(a, b))) == pytest.approx([min(2 * p[0], p[1]), p[1]])


def test_the_interval_is_near_student_s() -> None:
    random = np.random.default_rng(5)
    a = np.rint(random.normal(1e6, 2e4, (1, 40))).astype(np.int64)
    b = np.rint(random.normal(1.05e6, 3e4, (1, 50))).astype(np.int64)
    found = differences(a, b)
    exact = stats.ttest_ind(b[0], a[0], equal_var=False).confidence_interval(0.95)
    width = exact.high - exact.low
    assert found.low[0] == pytest.approx(exact.low, abs=0.08 * width)
    assert found.high[0] == pytest.approx(exact.high, abs=0.08 * width)


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [5, 8, 30])
@pytest.mark.parametrize("spread", ["normal", "lognormal"])
def test_intervals_hold_the_truth_as_often_as_they_say(iterations: int, spread: str) -> None:
    random = np.random.default_rng(iterations)
    draw = getattr(random, spread)
    held = false = 0
    for _ in range(40):
        a, b = (
            np.rint(1e6 * (5 + draw(0, 0.5, (10, iterations)))).astype(np.int64) for _ in range(2)
        )
        found = differences(a, b)
        held += int(((found.low <= 0) & (found.high >= 0)).sum())
        false += int(((found.low > 0) | (found.high < 0))[found.p_value <= 0.05].any())
    assert held / 400 > 0.92
    # Among 10 rows of each table that do not differ, one is told to in 5 % of the tables.
    assert false / 40 <= 0.1


def test_many_rows_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and resamples are done in blocks, of which the outcome shows nothing."""
    random = np.random.default_rng(3)
    a, b = (random.integers(0, 10**9, (7, 20)) for _ in range(2))
    whole = differences(a, b)
    monkeypatch.setattr("tracekit.analysis._statistics._AT_ONCE", 9_999 * 2)
    parts = differences(a, b)
    assert (whole.low == parts.low).all()
    assert (whole.high == parts.high).all()


def test_no_rows_have_no_differences() -> None:
    nothing = np.zeros((0, 5), dtype=np.int64)
    found = differences(nothing, nothing)
    assert len(found.low) == len(found.high) == len(found.p_value) == 0
