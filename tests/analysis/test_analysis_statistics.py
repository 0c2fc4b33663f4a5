"""Intervals and p values: right on known cases, mirrored, and seldom wrong by chance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.comparison._dependence import ENOUGH, dependence, mean_error
from tracekit.analysis.comparison._modes import NEVER, mode_edges, switches
from tracekit.analysis.comparison._statistics import adjusted, differences, welch

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
    assert (there.is_unknown == back.is_unknown).all()
    known = ~there.is_unknown
    for numbers in (there.low, there.high, there.p_value):
        assert (np.isnan(numbers) == there.is_unknown).all()
    assert (there.low == -back.high)[known].all()
    assert (there.high == -back.low)[known].all()
    assert (there.p_value == back.p_value)[known].all()
    assert (there.low <= there.high)[known].all()
    # No resample's mean lies outside of the values; dependent steps alone move the ends.
    alone = known.copy()
    for sample in (a, b):
        alone &= dependence(sample).effective == sample.shape[1]
    assert (there.low >= b.min(axis=1) - a.max(axis=1))[alone].all()
    assert (there.high <= b.max(axis=1) - a.min(axis=1))[alone].all()


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
    from scipy import stats  # which takes a second

    a, b = _array([[10, 12, 14, 11, 13], [5, 5, 6, 5, 9]]), _array([[15, 12, 18, 16], [5, 6, 7, 6]])
    expected = stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue
    assert welch(a, b) == pytest.approx(expected)
    # By hand, two rows: the smaller p value doubles, the larger one stays.
    p = sorted(expected)
    assert sorted(adjusted(welch(a, b))) == pytest.approx([min(2 * p[0], p[1]), p[1]])


def test_the_interval_is_near_student_s() -> None:
    from scipy import stats  # which takes a second

    random = np.random.default_rng(5)
    a = np.rint(random.normal(1e6, 2e4, (1, 19))).astype(np.int64)
    b = np.rint(random.normal(1.05e6, 3e4, (1, 18))).astype(np.int64)
    assert dependence(a).effective == 19  # fewer than 20 steps: noise is taken for none
    assert dependence(b).effective == 18
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
    monkeypatch.setattr("tracekit.analysis.comparison._statistics._AT_ONCE", 9_999 * 2)
    parts = differences(a, b)
    assert (whole.low == parts.low).all()
    assert (whole.high == parts.high).all()


def test_rows_that_are_rare_are_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is 0 in most steps is added up in another way, to the same sums."""
    random = np.random.default_rng(4)
    a, b = (random.integers(1, 10**12, (6, 30)) for _ in range(2))
    for each in (a, b):
        each[[0, 2, 5]] *= random.random((3, 30)) > 0.9
        each[3] = 0
    plain = differences(a, b)
    monkeypatch.setattr("tracekit.analysis.comparison._statistics._MANY", 0)
    swift = differences(a, b)
    for name in ("low", "high", "p_value"):
        assert np.array_equal(getattr(plain, name), getattr(swift, name), equal_nan=True)


def test_no_rows_have_no_differences() -> None:
    nothing = np.zeros((0, 5), dtype=np.int64)
    found = differences(nothing, nothing)
    assert len(found.low) == len(found.high) == len(found.p_value) == 0


# -- steps that depend on each other -----------------------------------------------------------


def _naive(steps: list[int]) -> float:
    """The bias-corrected lag-1 correlation, in one line of Marriott and Pope's."""
    mean, n = sum(steps) / len(steps), len(steps)
    products = sum((x - mean) * (y - mean) for x, y in pairwise(steps))
    r = products / sum((x - mean) ** 2 for x in steps)
    return (r + 1 / n) / (1 - 4 / n)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=60).filter(lambda x: len({*x}) > 1))
def test_correlations_are_those_of_a_naive_sum(steps: list[int]) -> None:
    assert dependence(_array([steps])).correlation[0] == pytest.approx(_naive(steps), abs=1e-9)


def test_by_hand() -> None:
    """1 2 3 4 5: deviations -2..2, products 2 + 0 + 0 + 2 of squares 10, so r = 0.4."""
    found = dependence(_array([[1, 2, 3, 4, 5], [7, 7, 7, 7, 7]]))
    assert found.correlation[0] == pytest.approx((5 * 0.4 + 1) / 1)
    assert np.isnan(found.correlation[1])
    assert found.effective.tolist() == [5, 5]  # 5 steps show no correlation
    # Twenty steps, 1 to 10 and 10 to 1: r is 0.8497 of 495/6 * 2 squares.
    up = [*range(1, 11), *range(10, 0, -1)]
    steps = dependence(_array([up]))
    assert steps.correlation[0] == pytest.approx(_naive(up))
    assert steps.is_too_much[0]


def test_modes_persist_where_they_change_fewer_than_five_times() -> None:
    """Ten steps, six of them short: from one to the other and back, so many times."""
    four = [10, 11, 50, 50, 12, 11, 49, 50, 10, 11]
    five = [10, 11, 50, 50, 12, 11, 49, 50, 10, 51]
    assert switches(_array([four, five])).tolist() == [4, ENOUGH]
    assert dependence(_array([four, five])).persists.tolist() == [True, False]


def test_the_error_of_a_mean() -> None:
    """Independent: s^2 / n. Worth 5 of 21: s^2 is too small by 21 * 4 / (5 * 20), so s^2 20/84."""
    variance, freedom = mean_error(np.array([3.0, 2.0]), 21, np.array([21.0, 5.0]))
    assert variance.tolist() == pytest.approx([9 / 21, 4 * 20 / 84])
    assert freedom.tolist() == [20, 4]
    # Steps that take turns are worth more than they are, but not more degrees of freedom.
    variance, freedom = mean_error(np.array([3.0]), 21, np.array([41.0]))
    assert variance.tolist() == pytest.approx([9 * 20 / (21 * 40)])
    assert freedom.tolist() == [20]


@pytest.mark.parametrize(("slow", "edge"), [(3, np.nan), (4, 55.0)])
def test_a_mode_has_a_tenth_of_the_steps(slow: int, edge: float) -> None:
    sample = np.array([[10] * (40 - slow) + [100] * slow])
    assert mode_edges(sample) == pytest.approx([edge], nan_ok=True)


def test_modes() -> None:
    two = [10, 11, 50, 10, 51, 12, 11, 49, 10, 50]
    one = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
    outlier = [10, 11, 10, 12, 11, 10, 11, 12, 90, 95]
    assert mode_edges(_array([two, one, outlier])).tolist() == pytest.approx(
        [(12 + 49) / 2, np.nan, np.nan], nan_ok=True
    )
    assert switches(_array([two, one])).tolist() == [7, NEVER]
    assert np.isnan(mode_edges(_array([two[:9]])))


def test_correlated_steps_are_seldom_told_to_differ() -> None:
    """As independent ones, 13 % and 24 % of equal pairs would be."""
    random = np.random.default_rng(1)
    for correlation in (0.3, 0.5):
        noise = random.normal(size=(2, 400, 40))
        for step in range(1, 40):
            noise[:, :, step] *= np.sqrt(1 - correlation**2)
            noise[:, :, step] += correlation * noise[:, :, step - 1]
        a, b = np.rint(1e6 + 2e4 * noise).astype(np.int64)
        found = differences(a, b, related=False)
        assert (found.p_value[~found.is_unknown] <= 0.05).mean() <= 0.08
        assert (welch(a, b) <= 0.05).mean() > 0.1


def test_modes_that_persist_count_where_the_runs_have_lengths_in_common() -> None:
    """26 quick steps and 3 slow ones near the end, against ones that are longer than all or not."""
    modes = [100 + n * 3 % 7 + (50 if n in (25, 26, 28) else 0) for n in range(29)]
    near, far = ([base + n * 5 % 7 for n in range(29)] for base in (120, 200))
    found = differences(_array([modes, modes]), _array([near, far]))
    assert found.is_unknown.tolist() == [True, False]
