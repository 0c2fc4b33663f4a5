"""Change of the typical step: a robust estimate that few long steps do not move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.statistics._long_run import COSINES, ENOUGH, Floats, Numbers, long_run
from tracekit.analysis.statistics._statistics import LEVEL, welch_error
from tracekit.analysis.statistics._student import quantile

_AT_MOST = 2_000
"""Of more steps of a run, so many are taken, evenly: the differences of all pairs are held."""


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
