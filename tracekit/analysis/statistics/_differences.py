"""Differences of means, and of typical (median) steps, between two runs, with intervals.

Student's t distribution is computed here, since importing scipy.special takes longer than a whole
comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

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

LEVEL = 0.95
OF_ROWS = (
    "adjusted for the number of rows (Benjamini-Yekutieli); p_value: of the same t, adjusted "
    "(Benjamini-Hochberg); a verdict where the interval excludes 0, and so p_value is below 0.05"
)
METHOD = (
    "interval: Student's t for the difference of means, degrees of freedom by Welch, 95 %, from "
    "variances at the four lowest frequencies (equal-weighted cosines), within kinds where slow "
    "steps come regularly, widened by 1.2 (of fewer than 8 steps 1.3); where one run has at most "
    "half the steps of the other, they are taken to vary at least as much as those; "
    f"{OF_ROWS}, unknown where steps drift through the run"
)
_AT_MOST = 2_000
"""Largest number of steps of a run for `shift`, evenly chosen: all pairs of steps are kept."""


@dataclass(frozen=True)
class _Differences:
    """Confidence intervals and p values of ``mean(b) - mean(a)``, one per row of the samples."""

    low: Floats
    high: Floats
    p_value: Floats
    is_unknown: Flags
    """Whether the steps of a row drift; its other values are then NaN."""


def differences(
    a: Numbers,
    b: Numbers,
    *,
    related: bool = True,
    regular: tuple[Regular | None, Regular | None] = (None, None),
    tables: int = 1,
    scales: tuple[Numbers, Numbers] | None = None,
) -> _Differences:
    """Compare the means of two samples row by row; each row is one group (such as a kernel).

    Intervals and p values use Student's t with the standard errors of `long_run`. P values are
    adjusted for the false discovery rate (Benjamini and Hochberg 1995), since of hundreds of
    kernels some differ by chance; intervals are adjusted to match (`adjusted_p_values`). Swapping
    the samples only flips the sign of the interval, to the last bit; a sample compared with itself
    differs by exactly 0.

    Parameters
    ----------
    a, b
        Integers: one row per group, one column per iteration, at least five columns.
    related
        Whether to adjust p values and intervals for the number of rows.
    regular
        For each run, the slow steps if every n-th step is slow, else None. If given, the variance
        of a mean comes from the deviations of slow steps from the mean slow step, and of other
        steps from the mean other step: the share of slow steps is known to be 1 / n.
    tables
        Number of tables that are tested together; p values and intervals are adjusted for it
        (Bonferroni).
    scales
        Factors by which the rows of `a` and of `b` are multiplied; 1 by default.
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
        p_value[is_tried], level = adjusted_p_values(p_value[is_tried])
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
    """Return the difference of the means of each row (``apart``), and what its test needs.

    In order: the ``variance`` of the difference, and its degrees of ``freedom``; ``apart``, the
    mean of `b` minus that of `a`; ``off``, the part of it that may come from recording one
    regularly slow step more or less; ``is_same``, whether `a` and `b` agree in each step;
    ``is_unknown``, whether a sample drifts (see `LongRun`), so that no test is possible.
    """
    variances, off, drifts = mean_errors((a, b), regular)
    variance, freedom = welch_error(variances)
    apart = b.sum(axis=1) / b.shape[1] - a.sum(axis=1) / a.shape[1]
    is_same = (a == b).all(axis=1) if a.shape == b.shape else np.zeros(len(a), dtype=bool)
    variance[is_same] = 0
    is_unknown = drifts & ~is_same & ~_is_one_sided(a, b)
    return variance, freedom, apart, np.where(is_same, 0, off), is_same, is_unknown


def mean_errors(
    samples: tuple[Numbers | Floats, Numbers | Floats],
    regular: tuple[Regular | None, Regular | None],
) -> tuple[tuple[Floats, Floats], Floats, Flags]:
    """Return how uncertain the difference of the means of two samples is, for each row.

    If one sample has at most half as many steps as the other, its steps are assumed to vary at
    least as much as the other's: rare slow steps may be lacking in the short sample by chance.

    Returns
    -------
    The variances of both means; ``off``, the part of the difference that may come from recording
    one regularly slow step more or less; and whether either sample drifts.
    """
    within, offs = zip(*map(within_kinds, samples, regular), strict=True)
    found = [long_run(each) for each in within]
    variances = [each.variance for each in found]
    for this, other in ((0, 1), (1, 0)):
        if 2 * (steps := samples[this].shape[1]) <= samples[other].shape[1]:
            longer = samples[other] if regular[this] is None else within[other]
            spread = (longer - longer[:, :1]).var(axis=1, ddof=1)  # exactly 0 of what never varies
            variances[this] = np.maximum(variances[this], spread / steps)
    off: Floats = np.abs(offs[1] - offs[0])
    return (variances[0], variances[1]), off, found[0].drifts | found[1].drifts


def _is_one_sided(a: Numbers, b: Numbers) -> Flags:
    """Test per row whether one sample is positive in all its steps and the other 0 in all."""
    sides = [(one == 0).all(axis=1) & (other > 0).all(axis=1) for one, other in ((a, b), (b, a))]
    found: Flags = sides[0] | sides[1]
    return found


def welch_error(
    variances: tuple[Floats, Floats],
    freedoms: tuple[Floats | float, Floats | float] = (COSINES, COSINES),
) -> tuple[Floats, Floats]:
    """Return the variance of a difference of two means, and its Welch degrees of freedom.

    `freedoms` are the degrees of freedom of both means, by default those of `long_run`.
    """
    variance = variances[0] + variances[1]
    below = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.ones_like(variance)
    np.divide(variance**2, below, out=freedom, where=below > 0)
    return variance, freedom


def p_values(difference: Floats, variance: Floats, freedom: Floats) -> Floats:
    """Return two-sided p values of differences by Student's t; 0 or 1 where the variance is 0."""
    apart = np.abs(difference)
    reach = np.where(apart > 0, np.inf, 0.0)
    np.divide(apart, np.sqrt(variance), out=reach, where=variance > 0)
    found: Floats = 2 * tail(freedom, reach)
    return found


def adjusted_p_values(p_values: Floats) -> tuple[Floats, float]:
    """Adjust p values for multiple tests, and return the confidence level of matching intervals.

    If R of m rows differ significantly, intervals of level 1 - 0.05 R / m exclude 0 in exactly
    these rows, and on average at most 5 % of these intervals miss the true value (Benjamini and
    Yekutieli, False Discovery Rate-Adjusted Multiple Confidence Intervals, Journal of the American
    Statistical Association 100, 2005).
    """
    found = _adjusted(p_values)
    differ = int((found <= 1 - LEVEL).sum())
    return found, 1 - (1 - LEVEL) * max(1, differ) / max(1, len(found))


def _adjusted(p_values: Floats) -> Floats:
    """Adjust p values for multiple tests by Benjamini and Hochberg's procedure."""
    number = len(p_values)
    order = np.argsort(p_values)
    scaled = p_values[order] * (number / np.arange(1, number + 1))
    found = np.empty(number)
    # Each is at most what the next larger one is adjusted to.
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.clip(found, 0, 1)


@dataclass(frozen=True)
class Shift:
    """By how much steps of run B are typically longer than steps of run A (Hodges-Lehmann)."""

    value: float
    """Median over all pairs of a step of B and a step of A of their difference in length, B - A
    (Hodges, Lehmann 1963)."""
    interval: tuple[float, float] | None
    """Its confidence interval; None for fewer than `ENOUGH` steps, or if the steps of a run
    drift."""


def shift(a: Numbers | Floats, b: Numbers | Floats, *, level: float = LEVEL) -> Shift:
    """Estimate by how much steps of run B are typically longer than steps of run A.

    The estimate is the median of b - a over all pairs of steps; the interval has the shifts that a
    Wilcoxon-Mann-Whitney test would not reject (normal approximation, with the standard error of
    ranks from `long_run` and Student's quantile).

    Parameters
    ----------
    a, b
        Lengths of the steps of each run, in order.
    level
        Confidence level of the interval.
    """
    few = [_thinned(each) for each in (a, b)]
    apart = np.sort((few[1][np.newaxis, :] - few[0][:, np.newaxis]).ravel()).astype(np.float64)
    value = float(np.median(apart))
    if min(len(a), len(b)) < ENOUGH:
        return Shift(value, None)
    if np.array_equal(a, b):
        return Shift(value, (0.0, 0.0))
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
    """Return the variance of the mean rank of steps, as a multiple of the variance of one rank.

    NaN if steps drift. It is at least 0.5 / n, half that of n independent steps: a lower value, as
    long and short steps in turn give, shows little about a median.
    """
    ordered = np.sort(steps)
    ranks = np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right")
    if long_run(steps[np.newaxis, :]).drifts[0]:
        return float("nan")
    spread = float(ranks.var(ddof=1))
    measured = float(long_run(ranks[np.newaxis, :]).variance[0])
    return max(0.5 / len(steps), measured / spread if spread else 0.0)


def _outside(steps: list[int], errors: list[float], level: float) -> int:
    """Return how many of the sorted differences lie outside of `shift`'s interval on each side.

    `steps` are the runs' numbers of steps, `errors` their results of `_error`.
    """
    of_a, of_b = (np.array([each]) for each in errors)
    variance, freedom = welch_error((of_a, of_b))
    pairs = steps[0] * steps[1]
    spread = pairs * np.sqrt(variance[0] * (1 + 1 / sum(steps)) / 12)
    reach = float(quantile(freedom[0], (1 + level) / 2)) * spread
    return max(0, int(np.floor(pairs / 2 - reach)) - 1)


# -- Student's t distribution ------------------------------------------------------------------


_NORMAL = 1e7
"""Degrees of freedom from which on the distribution is the normal one, to six digits."""
_CLOSE = 1e-14
_MOST_TERMS = 10_000
_MOST_STEPS = 1_000
_SMALL_STEP = 1e-8
"""Relative size of a Newton step after which the next one is below the precision of numbers."""
_SERIES = 30.0
"""Argument from which on the series of the ratio of two gamma functions is exact."""
_TINY = 1e-300


def tail(freedom: ArrayLike, reach: ArrayLike) -> Floats:
    """Return the probability that Student's t is at least `reach` (0 or more).

    `freedom` is the degrees of freedom; NaN if there are none.
    """
    free, far = (np.array(each, np.float64) for each in np.broadcast_arrays(freedom, reach))
    found = np.full(free.shape, np.nan)
    is_told = (free > 0) & (far >= 0)
    found[is_told & np.isinf(far)] = 0.0
    finite = is_told & np.isfinite(far)
    normal, other = finite & (free >= _NORMAL), finite & (free < _NORMAL)
    found[normal] = [math.erfc(each / math.sqrt(2)) / 2 for each in far[normal]]
    found[other] = _exact(free[other], far[other])
    return found


def quantile(freedom: ArrayLike, level: float) -> Floats:
    """Return the quantile of Student's t at probability `level` (at least 1/2).

    Results are cached, since a comparison asks for the same degrees of freedom with each table.
    """
    free = np.array(freedom, np.float64, ndmin=1)
    found = np.frombuffer(_quantile(free.tobytes(), level))
    return found.copy().reshape(np.shape(freedom))


@lru_cache(maxsize=1_000)
def _quantile(freedom: bytes, level: float) -> bytes:
    """Return the values of `quantile` as bytes, for the cache.

    Newton's method from below: the distribution function is concave there, so no step overshoots.
    """
    free = np.frombuffer(freedom)
    found = np.full(free.shape, np.nan)
    found[free > 0] = NormalDist().inv_cdf(level)  # of all these distributions the narrowest
    open_ = free > 0
    for _ in range(_MOST_STEPS):
        if not open_.any():
            break
        here, last = np.minimum(free[open_], _NORMAL), found[open_]
        found[open_] = last + (tail(here, last) - (1 - level)) / _density(here, last)
        open_[open_] = found[open_] > last * (1 + _SMALL_STEP)
    return found.tobytes()


def _exact(free: Floats, far: Floats) -> Floats:
    """Return Student's tail probability: half of the regularised incomplete beta function.

    The beta function's arguments are x = f / (f + t²), a = f / 2 and b = 1 / 2, for f degrees of
    freedom; it is computed as a continued fraction times `_front`.
    """
    square = far * far
    low, high = free / (free + square), square / (free + square)  # x, and 1 - x without a loss
    a, half = free / 2, np.full(free.shape, 0.5)
    front = _front(free, square, high)
    found = np.empty(free.shape)
    near = low < (a + 1) / (a + 2.5)  # where the fraction converges fast; else that of the rest
    found[near] = front[near] / a[near] * _fraction(a[near], half[near], low[near]) / 2
    rest = ~near
    far_off = _fraction(half[rest], a[rest], high[rest])
    found[rest] = 0.5 - front[rest] / half[rest] * far_off / 2
    return found


def _front(free: Floats, square: Floats, high: Floats) -> Floats:
    """Return x^a (1 - x)^b / B(a, b) for b = 1 / 2, where B is the beta function."""
    power = -(free / 2) * np.log1p(square / free)
    found: Floats = np.exp(power + _log_ratio(free / 2)) * np.sqrt(high / np.pi)
    return found


def _density(free: Floats, far: Floats) -> Floats:
    power = -(free + 1) / 2 * np.log1p(far * far / free)
    found: Floats = np.exp(power + _log_ratio(free / 2)) / np.sqrt(np.pi * free)
    return found


def _log_ratio(a: Floats) -> Floats:
    """Return the logarithm of Γ(a + 1/2) / Γ(a) without cancellation for large a."""
    with np.errstate(over="ignore"):
        series = 0.5 * np.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    small = a < _SERIES
    series[small] = [math.lgamma(each + 0.5) - math.lgamma(each) for each in a[small]]
    return series


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the continued fraction in the incomplete beta function at x, by Lentz's method."""
    found = upper = np.ones(a.shape)
    lower = 1 / _apart(1 - (a + b) * x / (a + 1))
    found, is_open = lower, np.ones(a.shape, dtype=bool)
    for number in range(1, _MOST_TERMS):
        for term in (
            number * (b - number) * x / ((a + 2 * number - 1) * (a + 2 * number)),
            -(a + number) * (a + b + number) * x / ((a + 2 * number) * (a + 2 * number + 1)),
        ):
            upper = _apart(1 + term / upper)
            lower = 1 / _apart(1 + term * lower)
            change = upper * lower
            found = np.where(is_open, found * change, found)
        is_open &= np.abs(change - 1) >= _CLOSE
        if not is_open.any():
            break
    return found


def _apart(numbers: Floats) -> Floats:
    """Return the values, each 0 replaced by a tiny number (divisors in Lentz's method)."""
    return np.where(np.abs(numbers) < _TINY, _TINY, numbers)


# -- conditions under which one link is named as slow among its peers


FAR = 2
"""Least time of a slow link over that of any peer in the median step, and over that of the median
link in most steps (at most 1.3 for links of the published jobs)."""
STEADY = 0.9
"""Least share of steps in which a slow link is slow."""
NO_SLOWER = 1.1
"""Largest computing time of the ranks at a slow link, over the mean."""
