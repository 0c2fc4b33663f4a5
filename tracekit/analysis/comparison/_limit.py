"""Test whether a run is slower than another by more than a limit: yes, no or unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracekit.analysis.comparison._headline import Metric, length_text
from tracekit.analysis.comparison._recordings import least_enough, reach_of
from tracekit.analysis.statistics import (
    ENOUGH,
    LEVEL,
    Flags,
    Floats,
    Regular,
    mean_errors,
    quantile,
    regularly_slow,
    shift,
    welch_error,
)
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis.comparison._prepared import Comparison

_MOST_STEPS = 100_000
"""Largest practical number of steps."""
_FEW = 3
"""Maximum number of outliers that are named."""


@dataclass(frozen=True)
class Limit:
    """Result of the test whether run B is slower than A by more than a limit."""

    outcome: Literal["within", "above", "unknown"]
    """``within`` or ``above`` the limit, each with 95 % confidence, or ``unknown``."""
    sentence: str
    """The result in words; if unknown, also the number of steps that would decide it."""


@dataclass(frozen=True)
class _Excess:
    """Excess of B's time over the limit: ``b - (1 + limit) a``, with its one-sided interval."""

    subject: str
    change: float
    """Relative change, B / A - 1; `what` is the beginning of the printed sentence on it."""
    base: float
    """A's time, ns. The ends of the interval are printed as percentages of it."""
    middle: float
    low: float
    high: float
    """The excess (estimate) and its one-sided bounds at 95 %, in ns."""
    closer: Callable[[int], float]
    """Function: number of additional `noun` (steps, recordings) -> expected distance from `middle`
    to the bound, ns."""
    noun: str


def check_limit(
    comparison: Comparison, percent: float, *, metric: Metric = "mean", anyway: bool = False
) -> Limit:
    """Test whether B's steps are slower than A's by more than `percent` of A's.

    Let a and b be the mean steps of A and B without outliers, or, by `metric`, their median steps.
    ``b - (1 + percent / 100) a`` is tested against 0, one-sided at 95 %: significantly below 0 is
    ``within`` the limit, above 0 is ``above``. For several recordings per side, the test is Welch's
    t test on their means. The outcome is unknown if steps drift.

    Parameters
    ----------
    percent
        The limit, in percent of A's step.
    metric
        ``mean``: the mean step; ``median``: the typical step, compared by the median difference of
        all pairs of steps (Hodges-Lehmann).
    anyway
        Whether to test runs that are not comparable.

    Raises
    ------
    UsageError
        If `percent` is not a valid limit.
    """
    if not (math.isfinite(percent) and percent >= 0):
        raise UsageError(f"the limit is {percent} %", "give 0 or more")
    meta = comparison.meta
    step, limit = meta["step"], f"{percent:g} %"
    cannot = f"cannot decide whether it is within {limit}"
    if meta["not_comparable"] and not anyway:
        return Limit("unknown", f"{cannot}: {'; '.join(meta['not_comparable'])}")
    factor = 1 + percent / 100
    if "a_runs" in step and step["a_ns"]:
        return _judged(_of_recordings(step, factor, metric), limit, [])
    of_a, of_b = (_steps(comparison, side) for side in "AB")
    if min(len(of_a.every), len(of_b.every)) < ENOUGH or not step["a_ns"]:
        need = f"record {ENOUGH} or more in each run"
        few = f"{len(of_a.every)} and {len(of_b.every)} steps are too few"
        return Limit("unknown", f"{cannot}: {few}, {need}")
    return _of_steps(of_a, of_b, percent, metric)


def _of_steps(a: _Steps, b: _Steps, percent: float, metric: Metric) -> Limit:
    factor = 1 + percent / 100
    if metric == "median":
        excess, left_out = _of_typical(a.every, b.every, factor), []
    else:
        excess, left_out = _of_means(a, b, factor), [*a.outliers, *b.outliers]
    if excess is None:
        drift = "steps drift through the recording, and have no mean that more would approach"
        return Limit("unknown", f"cannot decide whether it is within {percent:g} %: {drift}")
    return _judged(excess, f"{percent:g} %", left_out)


@dataclass(frozen=True)
class _Steps:
    """The steps of a run, with and without outliers, and the outliers' names."""

    every: Floats
    kept: Floats
    outliers: list[str]
    regular: Regular | None
    """Regularly slow steps among the kept ones, or None."""


def _steps(comparison: Comparison, side: str) -> _Steps:
    rows = comparison.tables["steps"].filter(side=side)
    lengths, is_outlier = rows["step_ns"].to_numpy(), rows["is_outlier"].to_numpy()
    return _named(lengths, is_outlier, rows["iteration"].to_list(), side)


def _named(lengths: Floats, is_outlier: Flags, numbers: Sequence[int], side: str) -> _Steps:
    """Return a run's steps with and without outliers (all, if too few others), and their names.

    A name is a text with the step's number, its run (`side`) and its length.
    """
    regular = regularly_slow(lengths)
    if (~is_outlier).sum() < ENOUGH:
        return _Steps(lengths, lengths, [], regular)
    names = [
        f"step {numbers[at]} of {side} ({length_text(lengths[at])})"
        for at in np.flatnonzero(is_outlier).tolist()
    ]
    if regular is not None:
        regular = replace(regular, is_slow=regular.is_slow[~is_outlier])
    return _Steps(lengths, lengths[~is_outlier], names, regular)


def _of_means(a: _Steps, b: _Steps, factor: float) -> _Excess | None:
    scaled = (factor * a.kept[np.newaxis, :], b.kept[np.newaxis, :])
    variances, off, drifts = mean_errors(scaled, (a.regular, b.regular))
    if drifts[0]:
        return None
    numbers = (len(a.kept), len(b.kept))

    def reach(more: int) -> float:
        of_a, of_b = (
            each * number / (number + more) for each, number in zip(variances, numbers, strict=True)
        )
        variance, freedom = welch_error((of_a, of_b))
        return float(quantile(freedom[0], LEVEL) * math.sqrt(variance[0]) + off[0])

    base, other = float(a.kept.mean()), float(b.kept.mean())
    middle, now = other - factor * base, reach(0)
    return _Excess("steps change", other / base - 1, base, middle, middle - now, middle + now,
                   reach, "steps of each")  # fmt: skip


def _of_typical(a: Floats, b: Floats, factor: float) -> _Excess | None:
    found = shift(factor * a, b, level=2 * LEVEL - 1)
    if found.interval is None:
        return None
    base, few = float(np.median(a)), min(len(a), len(b))
    low, high = found.interval

    def closer(more: int) -> float:
        now = high - found.value if found.value < 0 else found.value - low
        return now * math.sqrt(few / (few + more))

    change = factor - 1 + found.value / base
    return _Excess("the median step changes", change, base, found.value, low, high, closer,
                   "steps of each")  # fmt: skip


def _of_recordings(step: Mapping[str, Any], factor: float, metric: Metric) -> _Excess:
    """Return B's excess over A's time times `factor`, from the recordings' mean steps.

    By `metric` these are each recording's mean or median step. A side with a single recording is
    assumed to scatter as the recordings of the other side do.
    """
    column = "median_ns" if metric == "median" else "ns"
    base, other = step[f"a_{column}"], step[f"b_{column}"]
    a, b = step["a_sd_ns"], step["b_sd_ns"]
    spreads = (factor * (b if a is None else a), a if b is None else b)
    numbers = (step["a_runs"], step["b_runs"])

    def reach(more: int) -> float:
        return reach_of(spreads, (numbers[0] + more, numbers[1] + more), 2 * LEVEL - 1)

    middle, now = other - factor * base, reach(0)
    return _Excess("steps change", other / base - 1, base, middle, middle - now, middle + now,
                   reach, "recordings a side")  # fmt: skip


def _judged(excess: _Excess, limit: str, left_out: list[str]) -> Limit:
    change = f"{excess.subject} by {100 * excess.change:+.1f} %"
    if left_out:
        more = f" and {len(left_out) - _FEW} more" if len(left_out) > _FEW else ""
        change += f" without {', '.join(left_out[:_FEW])}{more}"
    moved = [(end - excess.middle) / excess.base for end in (excess.low, excess.high)]
    ends = [100 * (excess.change + each) for each in moved]
    if excess.low == excess.high == 0:
        return Limit("within", f"within {limit}: {change}, none varies")
    if excess.high < 0:
        return Limit("within", f"within {limit}: {change}, at most {ends[1]:+.1f} % at 95 %")
    if excess.low > 0:
        return Limit("above", f"above {limit}: {change}, at least {ends[0]:+.1f} % at 95 %")
    unknown = f"cannot decide whether it is within {limit}: {change}"
    span = f"{ends[0]:+.1f} % to {ends[1]:+.1f} %, one-sided 95 % each"
    return Limit("unknown", f"{unknown} ({span}); {_needed(excess)}")


def _needed(excess: _Excess) -> str:
    """Return a sentence: how many more steps or recordings would decide the test."""
    more = least_enough(lambda more: excess.closer(more) < abs(excess.middle), 1, _MOST_STEPS)
    if more is None:
        return f"no number of {excess.noun.split()[0]} would decide, this close to the limit"
    return f"about {more:,} more {excess.noun} would decide"
