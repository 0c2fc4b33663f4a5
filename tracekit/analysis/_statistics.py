"""Whether two samples of iterations differ in their means, and by how much.

Resampling draws whole iterations, so that the rows of a sample (stages, kernels, ...) keep what
they have to do with each other. Random numbers are seeded by what a sample holds and not by where
it stands: a sample compared with itself differs by exactly nothing, and samples that change places
give the same interval with the other sign.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]

ENOUGH = 5
"""Iterations of either run below which no verdict is given: fewer cannot show a difference."""
LEVEL = 0.95
METHOD = (
    "interval: bootstrap of the difference of means, 9,999 resamples of iterations, expanded "
    "percentiles, 95 %; p_value: Welch's t test, adjusted for the number of rows by "
    "Benjamini-Hochberg; a verdict where the interval excludes 0 and p_value is at most 0.05"
)

_RESAMPLES = 9_999
_AT_ONCE = 1 << 22
"""Numbers that are drawn at once, and rows times resamples that are held at once."""


@dataclass(frozen=True)
class Differences:
    """What is known of ``mean(b) - mean(a)``, row by row."""

    low: Floats
    high: Floats
    p_value: Floats


def differences(a: Numbers, b: Numbers) -> Differences:
    """Compare the means of two samples, row by row.

    The interval is the percentile bootstrap's, with percentiles moved outward by the factor by
    which an interval of Student's is wider than a normal one (T. Hesterberg, What Teachers Should
    Know about the Bootstrap, The American Statistician 69, 2015, section 4.1): plain percentiles
    are too narrow for few iterations. P values are of Welch's t test, and control the share of
    false ones among the rows that are told to differ (Benjamini and Hochberg 1995), since of
    hundreds of kernels some differ by chance.

    Parameters
    ----------
    a, b
        Whole numbers: a row per group, a column per iteration, two or more of these.
    """
    first, second = _digest(a), _digest(b)
    if first > second:  # one order, so that the other one is its mirror image to the last bit
        mirrored = differences(b, a)
        # Nothing is without sign: 0.0 - 0.0 is 0.0, and -0.0 would be printed as such.
        return Differences(0.0 - mirrored.high, 0.0 - mirrored.low, mirrored.p_value)
    tail = _tail(min(a.shape[1], b.shape[1]))
    rows = max(1, _AT_ONCE // _RESAMPLES)
    parts = [
        _interval(a[at : at + rows], b[at : at + rows], (first, second), tail)
        for at in range(0, len(a), rows)
    ]
    low, high = (np.concatenate([np.zeros(0), *(part[side] for part in parts)]) for side in (0, 1))
    return Differences(low, high, adjusted(welch(a, b)))


def _digest(sample: Numbers) -> int:
    content = np.ascontiguousarray(sample, dtype="<i8").tobytes()
    shape = repr(sample.shape).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, person=shape[:16]).digest())


def _tail(iterations: int) -> float:
    """Return which share of the resamples lies outside the interval on either side."""
    from scipy import special  # noqa: PLC0415 - not needed by every command

    reach = special.stdtrit(iterations - 1, (1 + LEVEL) / 2)
    return float(special.ndtr(-reach * np.sqrt(iterations / (iterations - 1))))


def _interval(a: Numbers, b: Numbers, seeds: tuple[int, int], tail: float) -> tuple[Floats, Floats]:
    resampled = _resampled_means(b, seeds[1]) - _resampled_means(a, seeds[0])
    outside = max(0, int(tail * (_RESAMPLES + 1)) - 1)
    ends = (outside, _RESAMPLES - 1 - outside)
    ordered = np.partition(resampled, ends, axis=0)
    return ordered[ends[0]], ordered[ends[1]]


def _resampled_means(sample: Numbers, seed: int) -> Floats:
    """Return the means of resamples: a row per resample, a column per row of the sample."""
    random, number = np.random.default_rng(seed), sample.shape[1]
    values = sample.T.astype(np.float64)
    at_once = max(1, _AT_ONCE // number)
    sums = [
        _draws(random, min(at_once, _RESAMPLES - done), number) @ values
        for done in range(0, _RESAMPLES, at_once)
    ]
    # Counts times whole numbers are exact up to 2^53, in whatever order they are added.
    means: Floats = np.concatenate(sums) / number
    return means


def _draws(random: np.random.Generator, resamples: int, number: int) -> Floats:
    """Return how often each iteration is drawn in each resample."""
    drawn = random.integers(0, number, size=(resamples, number))
    drawn += np.arange(resamples)[:, np.newaxis] * number
    counts = np.bincount(drawn.ravel(), minlength=resamples * number)
    return counts.reshape(resamples, number).astype(np.float64)


def welch(a: Numbers, b: Numbers) -> Floats:
    """Return the p value of Welch's t test of each row; what never varies differs or does not."""
    # The t distribution alone: all of scipy.stats takes twice as long to load.
    from scipy import special  # noqa: PLC0415

    means = [sample.mean(axis=1) for sample in (a, b)]
    spreads = [sample.std(axis=1, ddof=1) for sample in (a, b)]
    varies = (spreads[0] > 0) | (spreads[1] > 0)
    found = np.where(means[0] == means[1], 1.0, 0.0).astype(np.float64)
    if varies.any():
        parts = [
            spread[varies] ** 2 / each.shape[1]
            for spread, each in zip(spreads, (a, b), strict=True)
        ]
        variance = parts[0] + parts[1]
        freedom = variance**2 / (
            parts[0] ** 2 / (a.shape[1] - 1) + parts[1] ** 2 / (b.shape[1] - 1)
        )
        reach = (means[0][varies] - means[1][varies]) / np.sqrt(variance)
        found[varies] = 2 * special.stdtr(freedom, -np.abs(reach))
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
