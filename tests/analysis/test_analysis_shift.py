"""The change of a typical step, and steps that are unlike the rest."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from effort import by_day, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.comparison._headline import _typical, judged
from tracekit.analysis.comparison._outliers import OUTLIERS, step_notes
from tracekit.analysis.comparison._step_change import Steps, _typical_verdict, change, has_typical
from tracekit.analysis.statistics import ENOUGH, modes, outliers, regularly_slow, shift

_STEPS = st.lists(st.integers(0, 10**6), min_size=5, max_size=30)


def _array(steps: list[int]) -> np.ndarray:
    return np.array(steps, dtype=np.int64)


def _calm(base: int, steps: int, apart: int = 7) -> list[int]:
    """Steps in no order that a correlation would show."""
    return [base + n * n * apart % 31 for n in range(steps)]


def test_by_hand() -> None:
    """1 2 6 against 4 5 9: differences -2 -1 2 3 3 3 4 7 8, whose median is 3."""
    found = shift(_array([1, 2, 6]), _array([4, 5, 9]))
    assert found.value == 3
    assert found.interval is None  # three steps show nothing


@settings(max_examples=examples(30), deadline=None)
@given(_STEPS, _STEPS)
def test_runs_that_change_places_mirror(a: list[int], b: list[int]) -> None:
    there, back = shift(_array(a), _array(b)), shift(_array(b), _array(a))
    assert there.value == -back.value
    assert there.value == np.median([y - x for x in a for y in b])
    if there.interval is None:
        assert back.interval is None
    else:
        assert back.interval == (-there.interval[1], -there.interval[0])
        assert there.interval[0] <= there.value <= there.interval[1]


def test_a_run_does_not_differ_from_itself() -> None:
    steps = _array(list(range(40)))  # which as a drift shows nothing of any other run
    assert shift(steps, steps).interval == (0, 0)
    assert shift(steps, steps[::-1]).interval is None
    assert shift(steps[:4], steps[:4]).interval is None  # too few, as for the mean


def test_the_interval_is_that_of_a_test() -> None:
    """What lies well outside is rejected at 5 %, and what lies well within is not.

    A test of independent steps rejects more than the interval leaves out, which is wider.
    """
    from scipy import stats  # which takes a second

    random = np.random.default_rng(2)
    a, b = (np.rint(random.normal(1e4, 300, 30)).astype(np.int64) for _ in range(2))
    interval = shift(a, b).interval
    assert interval is not None
    width = interval[1] - interval[0]
    for place, is_rejected in ((-0.2, True), (0.35, False), (0.65, False), (1.2, True)):
        moved = b - (interval[0] + place * width)
        assert (stats.mannwhitneyu(a, moved).pvalue < 0.05) == is_rejected


def test_of_many_steps_some_are_taken() -> None:
    random = np.random.default_rng(4)
    a, b = (np.rint(random.normal(mean, 30, 5000)).astype(np.int64) for mean in (1000, 1020))
    found = shift(a, b)
    assert found.value == pytest.approx(20, abs=3)
    assert found.interval is not None
    assert 0 < found.interval[0] < found.value < found.interval[1] < 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", by_day(["normal", "lognormal", "stalls", "turns"], "stalls", "turns")
)
def test_intervals_are_seldom_wrong(kind: str) -> None:
    random = np.random.default_rng(6)
    wrong = 0
    for _ in range(200):
        a, b = random.normal(100, 2, (2, 30))
        if kind == "lognormal":
            a, b = 95 + 5 * random.lognormal(0, 0.5, (2, 30))
        if kind == "stalls":
            a, b = (each + 100 * (random.random(30) < 0.05) for each in (a, b))
        if kind == "turns":
            a, b = (each + 40 * (np.arange(30) % 2) for each in (a, b))
        found = shift(*(np.rint(1e4 * each).astype(np.int64) for each in (a, b))).interval
        wrong += found is not None and not found[0] <= 0 <= found[1]
    assert wrong / 200 <= 0.08


# -- outliers and modes ------------------------------------------------------------------------


def _noted(*runs: list[int], first: int = 0, devices: int = 1) -> list[str]:
    """Return the notes on the steps of two runs, or of one beside one without steps."""
    a, b = (_array(each) for each in (*runs, [])[:2])
    rows = [
        (side, first + place, steps[place] / devices, steps[place] / np.median(steps), "why")
        for side, steps in zip("AB", (a, b), strict=True)
        for place in outliers(steps)
    ]
    steps = Steps((a, b), (devices, devices), (regularly_slow(a), regularly_slow(b)))
    return step_notes(steps, pl.DataFrame(rows, OUTLIERS, orient="row"))


def test_outliers_are_named() -> None:
    a = [3100, 1500, *_calm(1000, 20)]
    b = [*_calm(1000, 12), 2400, *_calm(1000, 9)]
    median = [np.median(each) for each in (a, b)]
    assert _noted(a, b, first=2) == [
        f"step 2 of A: {3100 / median[0]:.2g} times the median (why)",
        f"step 3 of A: {1500 / median[0]:.2g} times the median (why)",
        f"step 14 of B: {2400 / median[1]:.2g} times the median (why)",
    ]
    assert outliers(_array([1000] * 4 + [5000])) == [4]
    assert outliers(_array([1000] * 9 + [1100])) == []  # a tenth more is no outlier
    assert outliers(_array([1000] * 5)) == outliers(_array([1, 100, 1])) == []


def test_a_short_step_is_an_outlier() -> None:
    steps = [100, *_calm(1000, 20)]
    (note,) = _noted(steps)
    assert note == "step 0 of A: 0.099 times the median (why)"


def test_many_outliers_are_counted() -> None:
    steps = _calm(1000, 60)
    for place in (10, 20, 30, 40, 50):
        steps[place] = 3000 + 900 * place
    notes = _noted(steps)
    assert len(notes) == 4
    assert notes[-1] == "2 more steps of A are outliers"


def test_slow_steps_that_come_regularly_are_a_kind_of_their_own() -> None:
    """Every 20th step takes 4 times as long, less than a tenth of all; in B all take longer."""
    a, b = (
        [4 * length if n % 20 == 7 else length for n, length in enumerate(_calm(usual, 80))]
        for usual in (1000, 1100)
    )
    notes = _noted(a, b)
    for side, steps, note in zip("AB", (a, b), notes, strict=False):
        slow, quick = np.median(steps[7::20]) / 1000, np.median(np.delete(steps, [7, 27, 47, 67]))
        assert note == (
            f"steps of {side} are of two kinds: 76 of {quick / 1000:.2f} us and 4 of {slow:.2f} us "
            "(medians); a slow one every 20 steps"
        )
    assert notes[2].startswith("quick steps, B less A: typically +100 ns (+")
    assert notes[3].startswith("slow steps, B less A: typically +4")
    a[47], a[48] = a[48], a[47]
    irregular = _noted(a)
    assert irregular[0].startswith("step 7 of A: 4")


def test_short_steps_that_come_regularly_are_outliers() -> None:
    steps = [length // 4 if n % 20 == 7 else length for n, length in enumerate(_calm(1000, 80))]
    notes = _noted(steps)
    assert [each.partition(":")[0] for each in notes] == [
        "step 7 of A", "step 27 of A", "step 47 of A", "1 more step of A is an outlier",
    ]  # fmt: skip


def test_two_kinds_of_steps_are_named_and_are_no_outliers() -> None:
    steps = [length * (1 if n % 3 else 4) for n, length in enumerate(_calm(2000, 21))]
    (note,) = _noted(steps, devices=2)
    quick = sorted(steps)[:14]
    assert f"14 of {np.median(quick) / 2000:.2f} us and 7 of 4.0" in note


def test_steps_of_two_kinds_are_compared_kind_by_kind() -> None:
    """Quick steps are 100 ns longer in B, slow ones 300 ns shorter, whatever their shares are."""
    a = [length + (5000 if n % 2 else 0) for n, length in enumerate(_calm(2000, 30))]
    b = [length + (4700 if n % 3 else 100) for n, length in enumerate(_calm(2000, 30))]
    notes = _noted(a, b)
    assert len(notes) == 4
    quick = [_array([length for length in each if length < 4000]) for each in (a, b)]
    found = shift(*quick)
    assert found.value == pytest.approx(100, abs=10)
    assert found.interval is not None
    low, high = found.interval
    assert notes[2] == (
        f"quick steps, B less A: typically +{found.value:.0f} ns (+{low:.0f} ns to +{high:.0f} ns)"
    )
    assert notes[3].startswith("slow steps, B less A: typically -")


# -- what is judged ----------------------------------------------------------------------------


def _step(low: float | None, high: float | None, verdict: str | None) -> dict[str, object]:
    nothing = {"shift_low_ns": None, "shift_high_ns": None, "shift_verdict": "unknown"}
    ends = {"low_ns": low, "high_ns": high, "verdict": verdict}
    sizes = {f"{side}_{name}": 1000.0 for side in "ab" for name in ("ns", "median_ns")}
    return {**sizes, **ends, **nothing}


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(11, 20, "slower"), (-20, -11, "faster"), (-9, 9, "same"), (-9, 11, "unknown"),
     (5, 9, "same"), (5, 15, "unknown"), (0, 0, "same")],
)  # fmt: skip
def test_a_least_change(low: float, high: float, told: str) -> None:
    found = judged(_step(low, high, "no difference shown"), "mean", 1.0)
    assert found["verdict"] == told
    expected = "same within 1 %" if told == "same" else f"{told} (least 1 %)"
    assert found["sentence"] == f"by mean: {expected}"


def test_the_same_is_what_tables_call_too_small_to_matter() -> None:
    """1 % of A is 10, of B 9.9: an interval between them is the same in neither, either way."""
    for sizes in ((1000.0, 990.0), (990.0, 1000.0)):
        step = {**_step(-9.95, 9.95, "no difference shown"), "a_ns": sizes[0], "b_ns": sizes[1]}
        assert judged(step, "mean", 1.0)["verdict"] == "unknown"


def test_what_is_not_known_stays_so() -> None:
    assert judged(_step(None, None, "not enough iterations"), "mean", 1.0)["verdict"] == (
        "not enough iterations"
    )
    assert judged(_step(1, 2, None), "mean", 1.0)["sentence"] == "by mean: no verdict (least 1 %)"
    assert judged(_step(1, 2, "slower"), "median", 1.0)["verdict"] == "unknown"
    assert judged(_step(1, 2, "slower"), "mean", None)["sentence"] == "by mean: slower"


def test_steps_of_two_kinds_that_are_as_many_have_no_typical_one() -> None:
    """31 of 132 ms and 28 of 1.41 s: the median of all, 201 ms, is a length that no step has."""
    even = _array([length * (1 + 9 * (n % 2)) for n, length in enumerate(_calm(1000, 59))])
    few = _array([length * (10 if n % 5 == 0 else 1) for n, length in enumerate(_calm(1000, 59))])
    one = _array(_calm(1000, 59))
    assert [has_typical(steps) for steps in (even, few, one)] == [False, True, True]
    mixed, usual = (
        change(Steps((a, one), (1, 1), (regularly_slow(a), None)), has_verdict=True)
        for a in (even, few)
    )
    assert (mixed["shift_ns"], mixed["shift_verdict"]) == (None, "unknown")
    assert usual["shift_ns"] is not None


def test_steps_of_three_kinds() -> None:
    """About 72, 132 and 1,400 ms by turns; in B the middle ones are 5 ms longer."""
    million = 10**6

    def drawn(middle: int) -> list[int]:
        base = (72, 132 + middle, 1400)
        return [base[n % 3] * million + noise * 1000 for n, noise in enumerate(_calm(0, 36))]

    a, b = drawn(0), drawn(5)
    assert [len(mode) for mode in modes(_array(a))] == [12, 12, 12]
    notes = _noted(a, b)
    assert notes[0].startswith("steps of A are of three kinds: 12 of 72.")
    assert len(notes) == 5
    middle = next(note for note in notes[2:] if note.startswith("132"))
    assert "typically +5.00 ms" in middle
    others = [note for note in notes[2:] if not note.startswith("132")]
    assert all("typically +0 ns" in note or "typically -0" in note for note in others)


@pytest.mark.parametrize(
    ("low", "high", "steps", "verdict"),
    [
        (0.5, 2.0, ENOUGH, "slower"),
        (0.0, 2.0, ENOUGH, "no difference shown"),
        (-2.0, 0.0, ENOUGH, "no difference shown"),
        (-2.0, -0.5, ENOUGH, "faster"),
        (None, None, ENOUGH, "unknown"),
        (None, None, ENOUGH - 1, "not enough iterations"),
    ],
)
def test_a_typical_step_changed_where_zero_lies_outside_of_the_interval(
    low: float | None, high: float | None, steps: int, verdict: str
) -> None:
    assert _typical_verdict(low, high, steps) == verdict


def test_the_first_line_says_of_a_typical_step_what_the_mean_does_not() -> None:
    ends = {"shift_low_ns": -1.0, "shift_high_ns": 1.0, "shift_verdict": "no difference shown"}
    same = {**ends, "verdict": "no difference shown", "delta_ns": 5.0, "shift_ns": 4.0}
    assert _typical({**same, "delta_ns": 0.0, "shift_ns": 0.0}, "median") == ""
    assert _typical({**same, "shift_low_ns": None}, "median") == ""
    assert _typical(same, "mean") == ""
    assert _typical(same, "median").startswith("median step ")
    assert _typical({**same, "shift_ns": -4.0}, "mean").endswith("the other way than the mean")
    assert _typical({**same, "shift_verdict": "slower"}, "mean").startswith("median step ")
    assert _typical({**same, "verdict": "slower", "shift_verdict": "slower"}, "mean") == ""
