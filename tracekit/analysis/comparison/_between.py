"""Compare the mean steps of two programs, each recorded several times.

Steps of one recording know nothing of how recordings differ as a whole: clocks, neighbours, where
memory came to lie. Only several recordings of a side do, each of which counts as one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.statistics import (
    LEVEL,
    OF_ROWS,
    Floats,
    p_values,
    quantile,
    told,
    welch_error,
)

_MOST = 1_000
"""More recordings than this are none that anyone makes."""
METHOD = (
    "interval: Student's t for the difference of means, where each recording counts as one number, "
    f"its mean (or median) step, degrees of freedom by Welch, 95 %, {OF_ROWS}"
)


@dataclass(frozen=True)
class Between:
    """Differences between the means of two groups of recordings, row by row."""

    low: Floats
    high: Floats
    p_value: Floats


def between(a: Floats, b: Floats, *, related: bool = True) -> Between:
    """Compare the means of recordings, row by row.

    Parameters
    ----------
    a, b
        A row per group, a column per recording; two columns or more on either side or both.
    related
        Whether the rows are one table, for the number of which p values and intervals are adjusted.
    """
    variance, freedom = difference_error(a, b)
    apart = b.mean(axis=1) - a.mean(axis=1)
    p_value, level = p_values(apart, variance, freedom), LEVEL
    is_tried = (a != a[:, :1]).any(axis=1) | (b != a[:, :1]).any(axis=1)
    if related:
        p_value[is_tried], level = told(p_value[is_tried])
    reach = quantile(freedom, (1 + level) / 2) * np.sqrt(variance)
    return Between(apart - reach, apart + reach, p_value)


def difference_error(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the variance of the difference of means of recordings, and its degrees of freedom.

    The scatter of one recording is not known, and is taken for that of the other side's.
    """
    numbers = (a.shape[1], b.shape[1])
    if min(numbers) > 1:
        of_a, of_b = (each.var(axis=1, ddof=1) / each.shape[1] for each in (a, b))
        freedoms = [np.full(len(a), number - 1.0) for number in numbers]
        return welch_error((of_a, of_b), (freedoms[0], freedoms[1]))
    several = a if numbers[0] > 1 else b
    variance: Floats = several.var(axis=1, ddof=1) * (1 / numbers[0] + 1 / numbers[1])
    return variance, np.full(len(a), several.shape[1] - 1.0)


def reach_of(spreads: tuple[float, float], numbers: tuple[int, int], level: float) -> float:
    """Return half the width of the two-sided interval of a difference of means.

    Parameters
    ----------
    spreads
        Standard deviations of the recordings of either side.
    numbers
        How many recordings either side has. Of one alone the scatter is taken for known as well as
        that of the other side is.
    level
        How often the interval is to hold the truth.
    """
    most = max(numbers)
    variances = [np.array([s**2 / n]) for s, n in zip(spreads, numbers, strict=True)]
    freedoms = [np.array([n - 1.0 if n > 1 else most - 1.0]) for n in numbers]
    variance, freedom = welch_error((variances[0], variances[1]), (freedoms[0], freedoms[1]))
    if min(numbers) == 1:
        freedom = np.array([most - 1.0])
    return float(quantile(freedom[0], (1 + level) / 2) * np.sqrt(variance[0]))


def enough_recordings(spreads: tuple[float, float], change: float) -> int | None:
    """Return how many recordings a side would show a change, given their scatter.

    Returns
    -------
    None, where no number that anyone records does.
    """
    low, high = 1, 2
    while reach_of(spreads, (high, high), LEVEL) >= change:
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = reach_of(spreads, (middle, middle), LEVEL) < change
        low, high = (low, middle) if is_enough else (middle, high)
    return high
