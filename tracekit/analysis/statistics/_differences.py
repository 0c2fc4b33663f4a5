"""Differences of means, and of typical steps, between two samples of steps, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.statistics._kinds_of_steps import Regular, within_kinds
from tracekit.analysis.statistics._long_run import (
    AT_ONCE,
    COSINES,
    ENOUGH,
    Flags,
    Floats,
    Numbers,
    long_run,
)
from tracekit.analysis.statistics._student import quantile, tail

LEVEL = 0.95
OF_ROWS = (
    "adjusted for the number of rows (Benjamini-Yekutieli); p_value: of the same t, adjusted "
    "(Benjamini-Hochberg); a verdict where the interval excludes 0, and so p_value is below 0.05"
)
METHOD = (
    "interval: Student's t for the difference of means, degrees of freedom by Welch, 95 %, from "
    "variances at the four lowest frequencies (equal-weighted cosines), within kinds where slow "
    "steps come regularly, widened by 1.2 (of fewer than 8 steps 1.3), "
    f"{OF_ROWS}, unknown where steps drift through the run"
)
_AT_MOST = 2_000
"""Of more steps of a run, so many are taken, evenly: the differences of all pairs are held."""


@dataclass(frozen=True)
class _Differences:
    """Estimates of ``mean(b) - mean(a)``, row by row."""

    low: Floats
    high: Floats
    p_value: Floats
    is_unknown: Flags
    """Where steps drift, so that nothing is known; all else is NaN."""


def differences(
    a: Numbers,
    b: Numbers,
    *,
    related: bool = True,
    regular: tuple[Regular | None, Regular | None] = (None, None),
    tables: int = 1,
    scales: tuple[Numbers, Numbers] | None = None,
) -> _Differences:
    """Compare the means of two samples, row by row.

    Interval and p value are Student's, of the errors that `long_run` measures. P values control the
    share of false ones among the rows that are told to differ (Benjamini and Hochberg 1995), since
    of hundreds of kernels some differ by chance, and intervals go with them (`told`). Samples that
    change places give the same interval with the other sign, to the last bit, and one compared with
    itself differs by exactly nothing.

    Parameters
    ----------
    a, b
        Whole numbers: a row per group, a column per iteration, five or more of these.
    related
        Whether the rows are one table, for the number of which p values are adjusted.
    regular
        The slow steps of either run that come regularly: means are then as certain as those of
        either kind, whose shares are known.
    tables
        Number of such tables that are judged together, for which p values and intervals are
        adjusted as well (Bonferroni).
    scales
        What to multiply each row of `a` and of `b` by; 1 by default.
    """
    rows = max(1, AT_ONCE // max(a.shape[1], b.shape[1]))
    blocks = (slice(at, at + rows) for at in range(0, max(1, len(a)), rows))
    of_a, of_b = scales or (np.ones(len(a), np.int64),) * 2
    parts = [
        _errors(a[some] * of_a[some, np.newaxis], b[some] * of_b[some, np.newaxis], regular)
        for some in blocks
    ]
    variance, freedom, apart, off, is_same, is_unknown = map(
        np.concatenate, zip(*parts, strict=True)
    )
    p_value = p_values(np.maximum(np.abs(apart) - off, 0), variance, freedom)
    # What is the same step by step is no trial that chance could decide.
    is_tried = ~is_unknown & ~is_same
    level = LEVEL
    if related:
        p_value[is_tried], level = told(p_value[is_tried])
    if tables > 1:
        p_value, level = np.minimum(p_value * tables, 1), 1 - (1 - level) / tables
    reach = quantile(freedom, (1 + level) / 2) * np.sqrt(variance) + off
    low, high = apart - reach, apart + reach
    for each in (low, high, p_value):
        each[is_unknown] = np.nan
    return _Differences(low, high, p_value, is_unknown)


def _errors(
    a: Numbers, b: Numbers, regular: tuple[Regular | None, Regular | None]
) -> tuple[Floats, Floats, Floats, Floats, Flags, Flags]:
    """Return ``variance, freedom, apart, off, is_same, is_unknown`` of some rows."""
    (within_a, off_a), (within_b, off_b) = (
        within_kinds(each, own) for each, own in zip((a, b), regular, strict=True)
    )
    of_a, of_b = long_run(within_a), long_run(within_b)
    free = np.full(len(a), float(COSINES))
    variance, freedom = welch_error((of_a.variance, of_b.variance), (free, free))
    apart = b.sum(axis=1) / b.shape[1] - a.sum(axis=1) / a.shape[1]
    is_same = (a == b).all(axis=1) if a.shape == b.shape else np.zeros(len(a), dtype=bool)
    variance[is_same] = 0
    is_unknown = (of_a.drifts | of_b.drifts) & ~is_same & ~_is_one_sided(a, b)
    off = np.where(is_same, 0, np.abs(off_b - off_a))
    return variance, freedom, apart, off, is_same, is_unknown


def _is_one_sided(a: Numbers, b: Numbers) -> Flags:
    """Tell what takes time in all steps of one run and in none of the other: that is no drift."""
    sides = [(one == 0).all(axis=1) & (other > 0).all(axis=1) for one, other in ((a, b), (b, a))]
    found: Flags = sides[0] | sides[1]
    return found


def welch_error(
    variances: tuple[Floats, Floats], freedoms: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return the variance of a difference of two means, and its degrees of freedom by Welch."""
    variance = variances[0] + variances[1]
    below = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.ones_like(variance)
    np.divide(variance**2, below, out=freedom, where=below > 0)
    return variance, freedom


def p_values(difference: Floats, variance: Floats, freedom: Floats) -> Floats:
    """Return p values of differences by Student's t; without variance 0 or 1."""
    apart = np.abs(difference)
    reach = np.where(apart > 0, np.inf, 0.0)
    np.divide(apart, np.sqrt(variance), out=reach, where=variance > 0)
    found: Floats = 2 * tail(freedom, reach)
    return found


def told(p_values: Floats) -> tuple[Floats, float]:
    """Adjust p values for their number, and return the level of intervals that go with them.

    If of m rows R are told to differ, intervals of level 1 - 0.05 R / m exclude 0 in these alone,
    and of those of these rows 5 % at most miss the truth, on average (Benjamini and Yekutieli,
    False Discovery Rate-Adjusted Multiple Confidence Intervals, Journal of the American Statistical
    Association 100, 2005).
    """
    found = _adjusted(p_values)
    differ = int((found <= 1 - LEVEL).sum())
    return found, 1 - (1 - LEVEL) * max(1, differ) / max(1, len(found))


def _adjusted(p_values: Floats) -> Floats:
    """Adjust p values for their number by Benjamini and Hochberg's procedure."""
    number = len(p_values)
    order = np.argsort(p_values)
    scaled = p_values[order] * (number / np.arange(1, number + 1))
    found = np.empty(number)
    # Each is at most what the next larger one is adjusted to.
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.clip(found, 0, 1)


@dataclass(frozen=True)
class Shift:
    """Difference between typical steps of B and A.

    Parameters
    ----------
    value
        The median of the differences of all pairs (Hodges and Lehmann 1963).
    interval
        Its 95 % interval; None for too few steps, or where these depend on each other too much.
    """

    value: float
    interval: tuple[float, float] | None


def shift(a: Numbers | Floats, b: Numbers | Floats, *, level: float = LEVEL) -> Shift:
    """Estimate the difference between typical steps of `b` and `a`.

    The interval holds the shifts that a Wilcoxon-Mann-Whitney test would not reject, by its normal
    approximation with the error that `long_run` measures of ranks, and Student's quantile.

    Parameters
    ----------
    a, b
        The steps of either run, in their order.
    level
        How often the interval is to hold the truth.
    """
    few = [_thinned(each) for each in (a, b)]
    apart = np.sort((few[1][np.newaxis, :] - few[0][:, np.newaxis]).ravel()).astype(np.float64)
    value = float(np.median(apart))
    same = np.array_equal(a, b)
    if same or min(len(a), len(b)) < ENOUGH:
        return Shift(value, (0.0, 0.0) if same else None)
    errors = [_error(each) for each in (a, b)]
    if np.isnan(errors).any():
        return Shift(value, None)
    outside = _outside([len(each) for each in few], errors, level)
    last = len(apart) - 1 - outside
    # Mirrored to the bit if the runs change places: the ends are differences themselves.
    return Shift(value, (float(apart[outside]), float(apart[last])))


def _thinned(steps: Numbers | Floats) -> Numbers | Floats:
    if len(steps) <= _AT_MOST:
        return steps
    taken: Numbers | Floats = steps[
        np.linspace(0, len(steps) - 1, _AT_MOST).round().astype(np.int64)
    ]
    return taken


def _error(steps: Numbers | Floats) -> float:
    """Return the variance of the mean rank of steps, as a share of a rank's; NaN if steps drift.

    It is half that of independent ones at least: ranks of steps that take turns say little of a
    median.
    """
    ordered = np.sort(steps)
    ranks = np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right")
    if long_run(steps[np.newaxis, :]).drifts[0]:
        return float("nan")
    spread = float(ranks.var(ddof=1))
    measured = float(long_run(ranks[np.newaxis, :]).variance[0])
    return max(0.5 / len(steps), measured / spread if spread else 0.0)


def _outside(steps: list[int], errors: list[float], level: float) -> int:
    """Return how many differences lie outside of the interval on either side."""
    of_a, of_b = (np.array([each]) for each in errors)
    free = np.full(1, float(COSINES))
    variance, freedom = welch_error((of_a, of_b), (free, free))
    pairs = steps[0] * steps[1]
    spread = pairs * np.sqrt(variance[0] * (1 + 1 / sum(steps)) / 12)
    reach = float(quantile(freedom[0], (1 + level) / 2)) * spread
    return max(0, int(np.floor(pairs / 2 - reach)) - 1)
