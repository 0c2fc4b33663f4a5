"""Whether two samples of iterations differ in their means, and by how much.

Resampling draws whole iterations, so that the rows of a sample (stages, kernels, ...) keep what
they have to do with each other. Random numbers are seeded by what a sample holds and not by where
it stands: a sample compared with itself differs by exactly nothing, and samples that change places
give the same interval with the other sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis._student import normal_tail, quantile, tail
from tracekit.analysis.comparison._dependence import Flags, Floats, Numbers, dependence, mean_error

Counts = NDArray[Any]
"""How often each iteration is drawn, a row per resample."""
Resamples = Callable[[], Iterable[Counts]]
Effective = tuple[Floats, Floats]
"""How many independent steps those of either run are worth, row by row."""
LEVEL = 0.95
METHOD = (
    "interval: bootstrap of the difference of means, 9,999 resamples of iterations, expanded "
    "percentiles, 95 %, stretched as Student's t with an effective number of steps (lag-1 "
    "autocorrelation, bias-corrected) is; p_value: Welch's t test with that number, adjusted for "
    "the number of rows by Benjamini-Hochberg; a verdict where the interval excludes 0 and p_value "
    "is at most 0.05, unknown with fewer than 5 effective steps, steps like a random walk, or "
    "modes that persist"
)

_RESAMPLES = 9_999
_PARTS_OF_NS = 1_000
"""Means are rounded to thousandths of a ns, for whole numbers add up alike in any order."""
_AT_ONCE = 1 << 22
"""Rows times resamples that are held at once."""
_DRAWN_AT_ONCE = 1 << 16
"""Numbers that are drawn at once: those of a resample or of several, which stay in the cache."""
_MULTIPLIED_AT_ONCE = 1 << 19
"""Numbers of draws that are added up at once, for what is drawn of has to be laid out for that."""
_KEPT = 1 << 25
"""Numbers of draws that are kept, at most, rather than drawn again."""


@dataclass(frozen=True)
class Differences:
    """What is known of ``mean(b) - mean(a)``, row by row."""

    low: Floats
    high: Floats
    p_value: Floats
    is_unknown: Flags
    """Where steps depend on each other so much that nothing is known; all else is NaN."""


def differences(a: Numbers, b: Numbers, *, related: bool = True) -> Differences:
    """Compare the means of two samples, row by row.

    The interval is the percentile bootstrap's, with percentiles moved outward by the factor by
    which an interval of Student's is wider than a normal one (T. Hesterberg, What Teachers Should
    Know about the Bootstrap, The American Statistician 69, 2015, section 4.1): plain percentiles
    are too narrow for few iterations. It supposes that steps are independent. Where they are not,
    its ends are moved by the factor by which Student's interval with an effective number of steps
    (see `dependence`) is wider than with all of them. P values are of Welch's t test with effective
    numbers, and control the share of false ones among the rows that are told to differ (Benjamini
    and Hochberg 1995), since of hundreds of kernels some differ by chance.

    Parameters
    ----------
    a, b
        Whole numbers: a row per group, a column per iteration, two or more of these.
    related
        Whether the rows are one table, for the number of which p values are adjusted.
    """
    first, second = _digest(a), _digest(b)
    if first > second:  # one order, so that the other one is its mirror image to the last bit
        back = differences(b, a, related=related)
        # Nothing is without sign: 0.0 - 0.0 is 0.0, and -0.0 would be printed as such.
        return Differences(0.0 - back.high, 0.0 - back.low, back.p_value, back.is_unknown)
    low, high = _intervals(a, b, (first, second))
    is_unknown, effective = _effective(a, b)
    low, high = _stretched(low, high, b.mean(axis=1) - a.mean(axis=1), _stretch(a, b, effective))
    p_value = welch(a, b, effective)
    if related:
        p_value[~is_unknown] = adjusted(p_value[~is_unknown])
    for each in (low, high, p_value):
        each[is_unknown] = np.nan
    return Differences(low, high, p_value, is_unknown)


def interval_of_means(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the bootstrap's interval of the difference of means of independent columns."""
    whole = [np.rint(each * _PARTS_OF_NS).astype(np.int64) for each in (a, b)]
    seeds = [_digest(each) for each in whole]
    low, high = _intervals(whole[0], whole[1], (seeds[0], seeds[1]))
    return low / _PARTS_OF_NS, high / _PARTS_OF_NS


def _digest(sample: Numbers) -> int:
    content = np.ascontiguousarray(sample, dtype="<i8").tobytes()
    shape = repr(sample.shape).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, person=shape[:16]).digest())


def _tail(iterations: int) -> float:
    """Return which share of the resamples lies outside the interval on either side."""
    reach = float(quantile(iterations - 1, (1 + LEVEL) / 2))
    return normal_tail(reach * np.sqrt(iterations / (iterations - 1)))


def _intervals(a: Numbers, b: Numbers, seeds: tuple[int, int]) -> tuple[Floats, Floats]:
    tail = _tail(min(a.shape[1], b.shape[1]))
    rows = max(1, _AT_ONCE // _RESAMPLES)
    places = range(0, len(a), rows)
    in_a, in_b = (
        _resamples(seed, each.shape[1], len(places))
        for seed, each in zip(seeds, (a, b), strict=True)
    )
    parts = [_interval(a[at : at + rows], b[at : at + rows], in_a, in_b, tail) for at in places]
    low, high = (np.concatenate([np.zeros(0), *(part[side] for part in parts)]) for side in (0, 1))
    return low, high


def _interval(
    a: Numbers, b: Numbers, in_a: Resamples, in_b: Resamples, tail: float
) -> tuple[Floats, Floats]:
    resampled = _resampled_means(b, in_b()) - _resampled_means(a, in_a())
    outside = max(0, int(tail * (_RESAMPLES + 1)) - 1)
    ends = (outside, _RESAMPLES - 1 - outside)
    ordered = np.partition(resampled, ends, axis=0)
    return ordered[ends[0]], ordered[ends[1]]


def _resampled_means(sample: Numbers, resamples: Iterable[Counts]) -> Floats:
    """Return the means of resamples: a row per resample, a column per row of the sample."""
    values = sample.T.astype(np.float64)
    sums = [counts.astype(np.float64) @ values for counts in resamples]
    # Counts times whole numbers are exact up to 2^53, in whatever order they are added.
    means: Floats = np.concatenate(sums) / sample.shape[1]
    return means


def _resamples(seed: int, number: int, times: int) -> Resamples:
    """Return what yields the resamples of so many iterations: kept if asked for several times."""
    if times == 1 or number * _RESAMPLES > _KEPT:
        return lambda: _drawn(seed, number)
    kept = list(_drawn(seed, number))
    return lambda: kept


def _drawn(seed: int, number: int) -> Iterator[Counts]:
    """Yield how often each of so many iterations is drawn in each resample, some at a time."""
    random = np.random.default_rng(seed)
    at_once, drawn = (max(1, most // number) for most in (_MULTIPLIED_AT_ONCE, _DRAWN_AT_ONCE))
    for done in range(0, _RESAMPLES, at_once):
        until = min(done + at_once, _RESAMPLES)
        yield np.concatenate(
            [_counts(random, min(drawn, until - at), number) for at in range(done, until, drawn)]
        )


def _counts(random: np.random.Generator, resamples: int, number: int) -> Counts:
    drawn = random.integers(0, number, size=(resamples, number), dtype=np.int32)
    drawn += np.arange(0, resamples * number, number, dtype=np.int32)[:, np.newaxis]
    counts = np.bincount(drawn.ravel(), minlength=resamples * number)
    dtype = np.uint16 if number <= np.iinfo(np.uint16).max else np.uint32
    return counts.astype(dtype).reshape(resamples, number)


def _is_plain(a: Numbers, b: Numbers) -> Flags:
    """Tell where nothing is open: the same steps, or work in all steps of one run alone."""
    one_sided = [
        (one == 0).all(axis=1) & (other > 0).all(axis=1) for one, other in ((a, b), (b, a))
    ]
    same = (a == b).all(axis=1) if a.shape == b.shape else np.zeros(len(a), dtype=bool)
    plain: Flags = same | one_sided[0] | one_sided[1]
    return plain


def _effective(a: Numbers, b: Numbers) -> tuple[Flags, Effective]:
    """Return where nothing can be told, and how many independent steps all the others are worth."""
    depend, plain = (dependence(a), dependence(b)), _is_plain(a, b)
    is_unknown = (depend[0].is_too_much | depend[1].is_too_much) & ~plain
    # However often modes occur, means of runs that have no lengths in common are in this order.
    is_apart = (a.max(axis=1) < b.min(axis=1)) | (b.max(axis=1) < a.min(axis=1))
    is_unknown |= (depend[0].persists | depend[1].persists) & ~plain & ~is_apart
    in_a, in_b = (
        np.where(plain | is_unknown, each.shape[1], found.effective)
        for each, found in zip((a, b), depend, strict=True)
    )
    return is_unknown, (in_a, in_b)


def _stretch(a: Numbers, b: Numbers, effective: Effective) -> Floats:
    """Return how many times as wide as for independent steps Student's interval is."""
    reaches = []
    for worth in (effective, None):
        variance, freedom = _difference_error(a, b, worth)
        reaches.append(quantile(freedom, (1 + LEVEL) / 2) * np.sqrt(variance))
    factor = np.ones(len(a))
    np.divide(reaches[0], reaches[1], out=factor, where=reaches[1] > 0)
    return factor


def _stretched(low: Floats, high: Floats, middle: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """Move the ends of an interval away from its middle; to the bit as they were by a factor of 1.

    No end passes the middle, so that the difference itself is never outside.
    """
    moves = factor != 1
    below, above = np.maximum(0, middle - low), np.maximum(0, high - middle)
    return (
        np.where(moves, middle - factor * below, low),
        np.where(moves, middle + factor * above, high),
    )


def _difference_error(a: Numbers, b: Numbers, effective: Effective | None) -> tuple[Floats, Floats]:
    """Return the variance of the difference of means, and Welch's degrees of freedom.

    There is one degree of freedom where nothing varies.
    """
    worth = effective or tuple(np.full(len(each), float(each.shape[1])) for each in (a, b))
    of_a, of_b = (
        mean_error(each.std(axis=1, ddof=1), each.shape[1], own)
        for each, own in zip((a, b), worth, strict=True)
    )
    return welch_error((of_a[0], of_b[0]), (of_a[1], of_b[1]))


def welch_error(
    variances: tuple[Floats, Floats], freedoms: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return the variance of a difference of two means, and its degrees of freedom by Welch."""
    variance = variances[0] + variances[1]
    below = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.ones_like(variance)
    np.divide(variance**2, below, out=freedom, where=below > 0)
    return variance, freedom


def welch(a: Numbers, b: Numbers, effective: Effective | None = None) -> Floats:
    """Return the p value of Welch's t test of each row; what never varies differs or does not.

    Parameters
    ----------
    a, b
        As for `differences`.
    effective
        How many independent steps those of each row are worth; without, as many as there are.
    """
    variance, freedom = _difference_error(a, b, effective)
    return p_values(b.mean(axis=1) - a.mean(axis=1), variance, freedom)


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
