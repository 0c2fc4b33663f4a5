"""Intervals and p values: right on known cases, mirrored, and seldom wrong by chance."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from effort import by_day, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.statistics import (
    COSINES,
    adjusted_p_values,
    differences,
    long_run,
    outliers,
    p_values,
    regularly_slow,
    welch_error,
    within_kinds,
)
from tracekit.analysis.statistics._kinds_of_steps import mode_edges
from tracekit.analysis.statistics._long_run import WIDER, WIDER_OF_FEW

_SAMPLES = st.integers(1, 4).flatmap(
    lambda rows: st.tuples(
        *(
            st.integers(5, 12).flatmap(
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
    middle = b.sum(axis=1) / b.shape[1] - a.sum(axis=1) / a.shape[1]
    assert (there.low <= middle)[known].all()
    assert (middle <= there.high)[known].all()


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


@pytest.mark.slow
def test_p_values_are_scipy_s_of_welch() -> None:
    from scipy import stats  # which takes a second

    a, b = _array([[10, 12, 14, 11, 13], [5, 5, 6, 5, 9]]), _array([[15, 12, 18, 16], [5, 6, 7, 6]])
    expected = stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue
    errors = [each.var(axis=1, ddof=1) / each.shape[1] for each in (a, b)]
    freedoms = [np.full(2, each.shape[1] - 1.0) for each in (a, b)]
    found = p_values(
        b.mean(axis=1) - a.mean(axis=1),
        *welch_error((errors[0], errors[1]), (freedoms[0], freedoms[1])),
    )
    assert found == pytest.approx(expected)
    # By hand, two rows: the smaller p value doubles, the larger one stays.
    p = sorted(expected)
    adjusted, level = adjusted_p_values(found)
    assert sorted(adjusted) == pytest.approx([min(2 * p[0], p[1]), p[1]])
    assert level == pytest.approx(0.95 if p[1] <= 0.05 else 0.975)  # one or two of two differ


def test_of_five_steps_the_interval_is_student_s_three_tenths_wider() -> None:
    """Four cosines of five steps are all that varies: their mean square is the variance."""
    from scipy import stats  # which takes a second

    a, b = _array([[10, 17, 14, 11, 13]]), _array([[25, 32, 28, 36, 24]])
    found = differences(a, b)
    exact = stats.ttest_ind(b[0], a[0], equal_var=False).confidence_interval(0.95)
    apart = b.mean() - a.mean()
    assert found.low[0] == pytest.approx(apart - 1.3 * (apart - exact.low))
    assert found.high[0] == pytest.approx(apart + 1.3 * (exact.high - apart))


@pytest.mark.parametrize(
    ("iterations", "spread"),
    by_day(product([5, 8, 30], ["normal", "lognormal"]), (5, "lognormal"), (30, "normal")),
)
def test_intervals_hold_the_truth_as_often_as_they_say(iterations: int, spread: str) -> None:
    random = np.random.default_rng(iterations)
    draw = getattr(random, spread)
    held = known = false = 0
    for _ in range(100):
        a, b = (
            np.rint(1e6 * (5 + draw(0, 0.5, (10, iterations)))).astype(np.int64) for _ in range(2)
        )
        found = differences(a, b)
        known += int((~found.is_unknown).sum())
        held += int(((found.low <= 0) & (found.high >= 0)).sum())
        false += int(((found.low > 0) | (found.high < 0))[found.p_value <= 0.05].any())
    assert held / known > 0.93
    # Among 10 rows of each table that do not differ, one is told to in 5 % of the tables at most.
    assert false / 100 <= 0.07


def test_no_rows_have_no_differences() -> None:
    nothing = np.zeros((0, 5), dtype=np.int64)
    found = differences(nothing, nothing)
    assert len(found.low) == len(found.high) == len(found.p_value) == 0


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_an_interval_excludes_0_exactly_where_the_adjusted_p_value_tells_a_difference(
    changes: list[tuple[int, int]], seed: int
) -> None:
    """Rows that differ by so many thousandths and spread by so many; some do not vary at all."""
    random = np.random.default_rng(seed)
    a, b = (
        np.rint([
            random.normal(10_000 + side * 10 * change, 10 * spread, 12)
            for change, spread in changes
        ]).astype(np.int64)
        for side in (0, 1)
    )  # fmt: skip
    found = differences(a, b)
    is_told = (found.low > 0) | (found.high < 0)
    assert (is_told == (found.p_value <= 0.05))[~found.is_unknown].all()
    alone = differences(a, b, related=False)
    known = ~found.is_unknown
    assert (found.low <= alone.low)[known].all()  # no row is known better for being one of many
    assert (found.high >= alone.high)[known].all()


def test_rows_that_are_the_same_step_by_step_count_for_nothing() -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(0, 10**6, (2, 12)) for _ in range(2))
    same = np.zeros((50, 12), dtype=np.int64)
    few, many = differences(a, b), differences(np.vstack([a, same]), np.vstack([b, same]))
    assert (few.p_value == many.p_value[:2]).all()
    assert (few.low == many.low[:2]).all()


# -- steps of two kinds, by their places -------------------------------------------------------


@pytest.mark.parametrize("tables", [2, 3])
def test_tables_that_are_judged_together(tables: int) -> None:
    """Of equal samples so many tables tell a difference in 5 % of cases at most, all together."""
    random = np.random.default_rng(tables)
    a, b = (random.normal(1e6, 1e4, (4_000, 12)).astype(np.int64) for _ in range(2))
    alone = differences(a, b, related=False)
    found = differences(a, b, related=False, tables=tables)
    assert found.p_value == pytest.approx(np.minimum(alone.p_value * tables, 1), nan_ok=True)
    tells = (found.low > 0) | (found.high < 0)
    assert (tells == (found.p_value < 0.05)).all()
    together = tells[: 4_000 // tables * tables].reshape(-1, tables).any(axis=1)
    assert together.mean() < 0.06


def test_what_varies_within_kinds_by_hand() -> None:
    """Slow steps 30, 34 and 32 every third; quick ones 10 and 12 by turns."""
    steps = np.array([10, 30, 12, 10, 34, 12, 10, 32, 12])
    regular = regularly_slow(np.tile(steps, 1) * 1000)
    assert regular is not None
    assert (regular.period, np.flatnonzero(regular.is_slow).tolist()) == (3, [1, 4, 7])
    apart, off = within_kinds(steps[np.newaxis, :], regular)
    slow, quick = np.sqrt(3 / 2), np.sqrt(6 / 5)
    assert apart[0].tolist() == pytest.approx(
        [-quick, -2 * slow, quick, -quick, 2 * slow, quick, -quick, 0, quick]
    )
    assert off.tolist() == [0]  # a third of nine steps is slow, as in the long run
    _, more = within_kinds(steps[np.newaxis, 1:8], replace(regular, is_slow=regular.is_slow[1:8]))
    assert more.tolist() == pytest.approx([(3 / 7 - 1 / 3) * (32 - 11)])


@pytest.mark.parametrize(
    ("places", "period"),
    [([9, 19, 29, 39, 49, 59], 10),
     ([9, 19, 24, 29, 39, 49, 59], 10),  # one is slow by chance
     ([3, 9, 19, 24, 29, 39, 49, 59], 10),  # two of eight
     ([3, 9, 19, 24, 29, 33, 39, 49, 59], None),  # three of nine
     ([9, 19, 29, 49, 59], None),  # one is missing
     ([9, 19, 29, 39, 49], None),  # the last is
     ([29, 59], None), ([19, 39, 59], 20), ([10, 11, 12], None)],
)  # fmt: skip
def test_slow_steps_that_come_regularly(places: list[int], period: int | None) -> None:
    steps = np.array([1000 + n * n * 7 % 31 for n in range(60)])
    steps[places] *= 4
    found = regularly_slow(steps)
    assert (found and found.period) == period
    if found is not None:
        regular = np.flatnonzero(found.is_slow).tolist()
        assert set(regular) <= set(places)
        # What is slow by chance stays an outlier, unless as many are slow as make a kind.
        assert outliers(steps) in ([], [place for place in places if place not in regular])


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(30, 70), st.integers(30, 70), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_steps_compared_by_kind_mirror_and_hold_the_change(
    of_a: int, of_b: int, phase: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    places = (np.arange(of_a) % 10 == phase, np.arange(of_b) % 10 == 0)
    a, b = (
        np.rint(random.normal(10_000, 200, (3, len(slow))) * np.where(slow, 5, 1)).astype(np.int64)
        for slow in places
    )
    kinds = (regularly_slow(a[0]), regularly_slow(b[0]))
    there, back = differences(a, b, regular=kinds), differences(b, a, regular=kinds[::-1])
    known = ~there.is_unknown
    assert (there.low == -back.high)[known].all()
    assert (there.p_value == back.p_value)[known].all()
    change = b.mean(axis=1) - a.mean(axis=1)
    assert (there.low <= change)[known].all()
    assert (change <= there.high)[known].all()


def test_a_tenth_step_that_is_slow_hides_no_change() -> None:
    """50 steps, of which every tenth takes 5 times as long: 10 % is hidden from one kind."""
    random = np.random.default_rng(6)
    slow = [np.where(np.arange(50) % 10 == phase, 5, 1) for phase in (4, 7)]
    a, b = (np.rint(10_000 * gain * random.normal(1, 0.02, (200, 50)) * own).astype(np.int64)
            for gain, own in zip((1, 1.1), slow, strict=True))  # fmt: skip
    kinds = (regularly_slow(a[0]), regularly_slow(b[0]))
    assert (differences(a, b, related=False, regular=kinds).low > 0).mean() > 0.98
    assert (differences(a, b, related=False).low > 0).mean() < 0.2
    equal = differences(a[:100], a[100:], related=False, regular=(kinds[0], kinds[0]))
    assert (equal.p_value <= 0.05).mean() <= 0.08


@pytest.mark.parametrize("steps", [(8, 200), (200, 8)])
@pytest.mark.parametrize("is_regular", [True, False])
def test_few_steps_that_lack_rare_slow_ones_show_no_difference(
    steps: tuple[int, int], *, is_regular: bool
) -> None:
    """One step of 25 takes 3 times as long, by turns or by chance: 8 steps most often have none."""
    random = np.random.default_rng(7)
    sides = []
    for number in steps:
        slow = random.random((300, number)) < 1 / 25
        if is_regular:
            slow[:] = np.arange(number) % 25 == 24
        quick = random.normal(10_000, 200, slow.shape)
        sides.append(np.rint(quick * np.where(slow, 3, 1)).astype(np.int64))
    kinds = [regularly_slow(each[0]) if is_regular else None for each in sides]
    assert [each is not None for each in kinds] == [is_regular and n == 200 for n in steps]
    found = differences(sides[0], sides[1], related=False, regular=(kinds[0], kinds[1]))
    assert ((found.low > 0) | (found.high < 0)).mean() <= 0.05


# -- steps that depend on each other -----------------------------------------------------------


def _naive(steps: list[int]) -> tuple[float, float]:
    """The variance of a mean by scipy's cosines, and the share of the two lowest frequencies."""
    from scipy import fft  # which takes a second

    powers = fft.dct(np.array(steps, float), type=2, norm="ortho")[1:] ** 2
    share = powers[:2].sum() / powers.sum() if powers.sum() else 0.0
    return float(powers[:COSINES].mean() / len(steps)), float(share)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=60))
def test_variances_are_those_of_the_lowest_frequencies(steps: list[int]) -> None:
    found = long_run(_array([steps]))
    variance, share = _naive(steps)
    wider = WIDER_OF_FEW if len(steps) < 8 else WIDER
    assert found.variance[0] == pytest.approx(wider**2 * variance, rel=1e-6, abs=1e-6)
    if variance > 1e-9:
        assert found.effective[0] == pytest.approx(np.var(steps, ddof=1) / variance, rel=1e-6)
    if share < 0.69:
        assert not found.drifts[0]


def test_steps_that_never_vary_are_worth_as_many() -> None:
    found = long_run(_array([[10**15 + 1] * 7]))
    assert (found.variance[0], found.effective[0], found.drifts[0]) == (0, 7, False)


@pytest.mark.parametrize(
    ("steps", "drifts"),
    [
        ([*range(12)], True),  # a trend
        ([*range(6), *range(6, 0, -1)], True),  # there and back
        ([1, 3, 2, 4, 5], False),  # five independent steps are nearly in order by chance, too
        ([10, 50] * 10, False),
        ([10] * 10 + [50] * 10, True),  # of two kinds in two blocks
        ([10, 10, 50, 50] * 5, False),
    ],
)
def test_drifts(steps: list[int], drifts: bool) -> None:
    assert long_run(_array([steps])).drifts.tolist() == [drifts]


def test_blocks_of_rows_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(3).integers(0, 10**9, (2, 7, 20))
    scales = (np.arange(1, 8), np.arange(7, 0, -1))
    whole, apart = long_run(a), differences(a, b, scales=scales)
    scaled = differences(a * scales[0][:, np.newaxis], b * scales[1][:, np.newaxis])
    for module in ("_long_run", "_differences"):
        monkeypatch.setattr(f"tracekit.analysis.statistics.{module}.AT_ONCE", 40)
    parts, in_blocks = long_run(a), differences(a, b, scales=scales)
    assert (whole.variance == parts.variance).all()
    assert (whole.effective == parts.effective).all()
    for name in ("low", "high", "p_value"):
        assert (getattr(apart, name) == getattr(in_blocks, name)).all()
        assert (getattr(apart, name) == getattr(scaled, name)).all()


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
    assert np.isnan(mode_edges(_array([two[:9]])))


def _drawn(kind: str, random: np.random.Generator, steps: int) -> np.ndarray:
    """Draw 400 recordings: of what goes with the step before it, under noise of each step."""
    noise = random.normal(size=(400, steps))
    if kind == "independent":
        return noise
    slow = random.normal(size=(400, steps))
    for step in range(1, steps):
        slow[:, step] = 0.95 * slow[:, step - 1] + np.sqrt(1 - 0.95**2) * slow[:, step]
    return slow + noise


@pytest.mark.parametrize(("kind", "as_independent"), [("independent", 0.03), ("drift", 0.4)])
def test_equal_runs_are_seldom_told_to_differ(kind: str, as_independent: float) -> None:
    """A slow drift under noise of each step: as independent steps half of the pairs would be."""
    random = np.random.default_rng(1)
    a, b = (np.rint(1e6 + 2e4 * _drawn(kind, random, 200)).astype(np.int64) for _ in range(2))
    found = differences(a, b, related=False)
    assert (found.p_value <= 0.05).mean() <= 0.08
    assert found.is_unknown.mean() <= 0.02
    errors = [each.var(axis=1, ddof=1) / 200 for each in (a, b)]
    plain = p_values(b.mean(axis=1) - a.mean(axis=1), errors[0] + errors[1], np.full(400, 398.0))
    assert (plain <= 0.05).mean() >= as_independent


@pytest.mark.parametrize("steps", [30, 200])
def test_a_random_walk_is_mostly_unknown(steps: int) -> None:
    random = np.random.default_rng(4)
    a, b = (np.rint(1e6 + 1e4 * random.normal(size=(400, steps)).cumsum(axis=1)).astype(np.int64)
            for _ in range(2))  # fmt: skip
    found = differences(a, b, related=False)
    assert found.is_unknown.mean() >= 0.85
    assert (found.p_value <= 0.05).mean() <= 0.08


@pytest.mark.parametrize("steps", [12, 30])
def test_independent_steps_are_hardly_ever_unknown(steps: int) -> None:
    random = np.random.default_rng(5)
    a, b = (np.rint(1e6 + 2e4 * random.normal(size=(2_000, steps))).astype(np.int64)
            for _ in range(2))  # fmt: skip
    assert differences(a, b, related=False).is_unknown.mean() <= (0.02 if steps < 30 else 0.001)


def test_few_steps_that_differ_are_told() -> None:
    """12 independent steps of 2 % each, 5 % apart."""
    random = np.random.default_rng(2)
    a, b = (np.rint(1e6 * mean + 2e4 * random.normal(size=(400, 12))).astype(np.int64)
            for mean in (1, 1.05))  # fmt: skip
    found = differences(a, b, related=False)
    assert ((found.low > 0) & (found.p_value <= 0.05)).mean() > 0.95
    assert found.is_unknown.mean() < 0.05


def test_what_one_run_lacks_differs_even_if_it_drifts() -> None:
    found = differences(_array([[0] * 12, [3] * 12]), _array([[*range(1, 13)]] * 2))
    assert found.is_unknown.tolist() == [False, True]
    assert 0 < found.p_value[0] < 0.05
