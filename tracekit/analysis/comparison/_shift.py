"""By how much a typical step of two runs differs: a reading that few long steps do not move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis._student import quantile
from tracekit.analysis.comparison._dependence import ENOUGH, Floats, Numbers, dependence

_LEVEL = 0.95
_AT_MOST = 2_000
"""Of more steps of a run, so many are taken, evenly: the differences of all pairs are held."""


@dataclass(frozen=True)
class Shift:
    """By how much a step of B is typically longer than one of A.

    Parameters
    ----------
    value
        The median of the differences of all pairs (Hodges and Lehmann 1963).
    interval
        Its 95 % interval; None for too few steps, or where these depend on each other too much.
    """

    value: float
    interval: tuple[float, float] | None


def shift(a: Numbers, b: Numbers) -> Shift:
    """Tell by how much a step of `b` is typically longer than one of `a`.

    The interval holds the shifts that a Wilcoxon-Mann-Whitney test would not reject, by its normal
    approximation with a quantile of Student's. How steps depend on each other is told from their
    ranks, and stretches it as in `differences`.

    Parameters
    ----------
    a, b
        The steps of either run, in their order.
    """
    few = [_thinned(each) for each in (a, b)]
    apart = np.sort((few[1][np.newaxis, :] - few[0][:, np.newaxis]).ravel()).astype(np.float64)
    value = float(np.median(apart))
    same = np.array_equal(a, b)
    worth = [_worth(each) for each in (a, b)]
    if same or min(len(a), len(b)) < ENOUGH or None in worth:
        return Shift(value, (0.0, 0.0) if same else None)
    outside = _outside([len(each) for each in few], [float(each or 0) for each in worth])
    last = len(apart) - 1 - outside
    # Mirrored to the bit if the runs change places: the ends are differences themselves.
    return Shift(value, (float(apart[outside]), float(apart[last])))


def _thinned(steps: Numbers) -> Numbers:
    if len(steps) <= _AT_MOST:
        return steps
    taken: Numbers = steps[np.linspace(0, len(steps) - 1, _AT_MOST).round().astype(np.int64)]
    return taken


def _worth(steps: Numbers) -> float | None:
    """Return how many independent steps these are worth by their ranks; None if that is too few.

    They are worth no more than they are: ranks of steps that take turns say little of a median.
    """
    ordered = np.sort(steps)
    ranks = np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right")
    found = dependence(ranks[np.newaxis, :].astype(np.int64))
    is_unknown = found.is_too_much[0] or dependence(steps[np.newaxis, :]).persists[0]
    return None if is_unknown else min(len(steps), float(found.effective[0]))


def _outside(steps: list[int], worth: list[float]) -> int:
    """Return how many differences lie outside of the interval on either side."""
    pairs = steps[0] * steps[1]
    spread = pairs * np.sqrt(_inverse(worth) * (1 + 1 / sum(steps)) / 12)
    reach = float(quantile(min(worth) - 1, (1 + _LEVEL) / 2)) * spread
    return max(0, int(np.floor(pairs / 2 - reach)) - 1)


def _inverse(numbers: list[float]) -> float:
    return sum(1 / number for number in numbers)


def spread_of(steps: Numbers) -> Floats:
    """Return a standard deviation that outliers do not move: 1.4826 times the median deviation."""
    found: Floats = 1.4826 * np.median(np.abs(steps - np.median(steps)))
    return found
