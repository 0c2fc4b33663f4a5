"""Whether two samples of iterations differ in their means, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.statistics._long_run import COSINES, Flags, Floats, Numbers, long_run
from tracekit.analysis.statistics._student import quantile, tail

LEVEL = 0.95
METHOD = (
    "interval: Student's t for the difference of means, degrees of freedom by Welch, 95 %, from "
    "variances at the four lowest frequencies (equal-weighted cosines), widened by 1.2; p_value: "
    "of the same t, adjusted for the number of rows by Benjamini-Hochberg; a verdict where the "
    "interval excludes 0 and p_value is at most 0.05, unknown where steps drift through the run"
)


@dataclass(frozen=True)
class Differences:
    """What is known of ``mean(b) - mean(a)``, row by row."""

    low: Floats
    high: Floats
    p_value: Floats
    is_unknown: Flags
    """Where steps drift, so that nothing is known; all else is NaN."""


def differences(a: Numbers, b: Numbers, *, related: bool = True) -> Differences:
    """Compare the means of two samples, row by row.

    Interval and p value are Student's, of the errors that `long_run` measures. P values control the
    share of false ones among the rows that are told to differ (Benjamini and Hochberg 1995), since
    of hundreds of kernels some differ by chance. Samples that change places give the same interval
    with the other sign, to the last bit, and one compared with itself differs by exactly nothing.

    Parameters
    ----------
    a, b
        Whole numbers: a row per group, a column per iteration, five or more of these.
    related
        Whether the rows are one table, for the number of which p values are adjusted.
    """
    of_a, of_b = long_run(a), long_run(b)
    free = np.full(len(a), float(COSINES))
    variance, freedom = welch_error((of_a.variance, of_b.variance), (free, free))
    apart = b.sum(axis=1) / b.shape[1] - a.sum(axis=1) / a.shape[1]
    is_same = (a == b).all(axis=1) if a.shape == b.shape else np.zeros(len(a), dtype=bool)
    variance[is_same] = 0
    is_unknown = (of_a.drifts | of_b.drifts) & ~is_same & ~_is_one_sided(a, b)
    reach = quantile(freedom, (1 + LEVEL) / 2) * np.sqrt(variance)
    low, high, p_value = apart - reach, apart + reach, p_values(apart, variance, freedom)
    if related:
        p_value[~is_unknown] = adjusted(p_value[~is_unknown])
    for each in (low, high, p_value):
        each[is_unknown] = np.nan
    return Differences(low, high, p_value, is_unknown)


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
    """Return the p values of differences by Student's t; what never varies differs or does not."""
    apart = np.abs(difference)
    reach = np.where(apart > 0, np.inf, 0.0)
    np.divide(apart, np.sqrt(variance), out=reach, where=variance > 0)
    found: Floats = 2 * tail(freedom, reach)
    return found


def adjusted(p_values: Floats) -> Floats:
    """Adjust p values for their number by Benjamini and Hochberg's procedure."""
    number = len(p_values)
    order = np.argsort(p_values)
    scaled = p_values[order] * (number / np.arange(1, number + 1))
    found = np.empty(number)
    # Each is at most what the next larger one is adjusted to.
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.clip(found, 0, 1)
