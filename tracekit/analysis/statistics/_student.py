"""Student's t distribution: how likely so much is by chance, and how far chance reaches.

Two functions of scipy.special, whose import takes longer than a comparison does in all.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_MANY = 1_000.0
"""With so many degrees of freedom the density falls fast, and is summed; with fewer it is not."""
_NORMAL = 1e13
"""With so many it is the normal distribution, to the last digit."""
_CLOSE = 1e-14
_MOST_TERMS = 10_000
_MOST_STEPS = 1_000
_SMALL_STEP = 1e-8
"""After such a step the next would be smaller than a number can tell."""
_SERIES = 30.0
"""From here on the series of the ratio of two gamma functions is exact."""
_TINY = 1e-300


def tail(freedom: ArrayLike, reach: ArrayLike) -> Floats:
    """Return the probability of a value of at least `reach` (0 or more), by degrees of freedom.

    Not told (NaN) is what has no degrees of freedom.
    """
    free, far = (np.array(each, np.float64) for each in np.broadcast_arrays(freedom, reach))
    found = np.full(free.shape, np.nan)
    is_told = (free > 0) & (far >= 0)
    found[is_told & np.isinf(far)] = 0.0
    told = is_told & np.isfinite(far)
    for some, tail_of in ((told & (free < _MANY), _exact), (told & (free >= _MANY), _summed)):
        if some.any():
            found[some] = tail_of(np.minimum(free[some], _NORMAL), far[some])
    return found


def quantile(freedom: ArrayLike, level: float) -> Floats:
    """Return the value that is not exceeded with probability `level`, which is 1/2 or more.

    What was asked before is told again: numbers of iterations are few, and those of a comparison
    are asked for with each of its tables.
    """
    free = np.array(freedom, np.float64, ndmin=1)
    found = np.frombuffer(_quantile(free.tobytes(), level))
    return found.copy().reshape(np.shape(freedom))


@lru_cache(maxsize=1_000)
def _quantile(freedom: bytes, level: float) -> bytes:
    """Return the numbers of `quantile` as they lie in memory.

    Newton's method from below: there the distribution function is concave, so no step goes too far.
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


def _summed(free: Floats, far: Floats) -> Floats:
    """Return the tail as the integral of the density, as far as there is any."""
    length = 60 / ((free + 1) * far / (free + far * far) + 6)
    nodes, weights = _gauss_legendre()
    places = far[:, None] + length[:, None] * (nodes + 1) / 2
    found: Floats = _density(free[:, None], places) @ weights * length / 2
    return found


@cache
def _gauss_legendre() -> tuple[Floats, Floats]:
    """Return where a function is asked for its integral from -1 to 1, and with what weights."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return nodes, weights


def _exact(free: Floats, far: Floats) -> Floats:
    """Return the tail as half of the regularised incomplete beta function.

    That of x = f / (f + t²), a = f / 2 and b = 1 / 2: a continued fraction times `_front`.
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
    """Return x to the a, times 1 - x to the b, by the beta function of a and b = 1 / 2."""
    power = -(free / 2) * np.log1p(square / free)
    found: Floats = np.exp(power + _log_ratio(free / 2)) * np.sqrt(high / np.pi)
    return found


def _density(free: Floats, far: Floats) -> Floats:
    power = -(free + 1) / 2 * np.log1p(far * far / free)
    found: Floats = np.exp(power + _log_ratio(free / 2)) / np.sqrt(np.pi * free)
    return found


def _log_ratio(a: Floats) -> Floats:
    """Return the logarithm of Γ(a + 1/2) / Γ(a); of large numbers nothing is subtracted."""
    with np.errstate(over="ignore"):
        series = 0.5 * np.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    small = a < _SERIES
    series[small] = [math.lgamma(each + 0.5) - math.lgamma(each) for each in a[small]]
    return series


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    found = upper = np.ones(a.shape)
    lower = 1 / _apart(1 - (a + b) * x / (a + 1))
    found = lower
    for number in range(1, _MOST_TERMS):
        for term in (
            number * (b - number) * x / ((a + 2 * number - 1) * (a + 2 * number)),
            -(a + number) * (a + b + number) * x / ((a + 2 * number) * (a + 2 * number + 1)),
        ):
            upper = _apart(1 + term / upper)
            lower = 1 / _apart(1 + term * lower)
            change = upper * lower
            found = found * change
        if np.all(np.abs(change - 1) < _CLOSE):
            break
    return found


def _apart(numbers: Floats) -> Floats:
    """Return the numbers, none of them 0."""
    return np.where(np.abs(numbers) < _TINY, _TINY, numbers)
