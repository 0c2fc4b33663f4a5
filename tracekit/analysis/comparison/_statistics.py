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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis._student import normal_tail, quantile, tail
from tracekit.analysis.comparison._dependence import Flags, Floats, Numbers, dependence, mean_error
from tracekit.analysis.comparison._resample_loops import add_up_drawn
from tracekit.support.compiled import compiled

Counts = NDArray[Any]
"""How often each iteration is drawn: a row per iteration, a column per resample."""
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
_KEPT = 1 << 28
"""Numbers of draws that are kept, at most, rather than drawn again: a byte each."""
_MANY = 1 << 18
"""Fewer numbers are all multiplied: that takes no longer than to load a loop."""
_RARE = 0.2
"""Rows that are not 0 in a smaller share of the steps are added up sooner by a loop over these."""


class _Moments(NamedTuple):
    """Of each row of a sample."""

    mean: Floats
    sd: Floats
    steps: int
    """How many steps there are."""


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
    low, high = _joined(_intervals(a, b, (first, second)))
    moments, told = (_moments(a), _moments(b)), _joined(_effective(a, b))
    is_unknown, effective = told[0], (told[1], told[2])
    middle = moments[1].mean - moments[0].mean
    low, high = _stretched(low, high, middle, _stretch(moments, effective))
    p_value = p_values(middle, *_difference_error(moments, effective))
    if related:
        p_value[~is_unknown] = adjusted(p_value[~is_unknown])
    for each in (low, high, p_value):
        each[is_unknown] = np.nan
    return Differences(low, high, p_value, is_unknown)


def interval_of_means(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the bootstrap's interval of the difference of means of independent columns."""
    whole = [np.rint(each * _PARTS_OF_NS).astype(np.int64) for each in (a, b)]
    seeds = [_digest(each) for each in whole]
    low, high = _joined(_intervals(whole[0], whole[1], (seeds[0], seeds[1])))
    return low / _PARTS_OF_NS, high / _PARTS_OF_NS


def _digest(sample: Numbers) -> int:
    content = np.ascontiguousarray(sample, dtype="<i8").reshape(-1).view(np.uint8).data
    shape = repr(sample.shape).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, person=shape[:16]).digest())


def _tail(iterations: int) -> float:
    """Return which share of the resamples lies outside the interval on either side."""
    reach = float(quantile(iterations - 1, (1 + LEVEL) / 2))
    return normal_tail(reach * np.sqrt(iterations / (iterations - 1)))


def _intervals(a: Numbers, b: Numbers, seeds: tuple[int, int]) -> Iterator[tuple[Floats, Floats]]:
    """Yield the ends of the intervals of each of `_blocks`."""
    tail = _tail(min(a.shape[1], b.shape[1]))
    blocks = _blocks(a)
    in_a, in_b = (
        _resamples(seed, each.shape[1], len(blocks))
        for seed, each in zip(seeds, (a, b), strict=True)
    )
    for rows in blocks:
        yield _interval(a[rows], b[rows], in_a, in_b, tail)


def _blocks(sample: Numbers) -> list[slice]:
    """Return which rows are looked at together, none of them where there are none."""
    rows = max(1, _AT_ONCE // max(_RESAMPLES, sample.shape[1]))
    return [slice(at, at + rows) for at in range(0, max(1, len(sample)), rows)]


def _joined(parts: Iterable[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """Return what was found of all of `_blocks`."""
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def _moments(sample: Numbers) -> _Moments:
    """Return the means of the rows of a sample, and by how much these vary, a block at a time."""
    real = (sample[rows].astype(np.float64) for rows in _blocks(sample))
    mean, sd = _joined((each.mean(axis=1), each.std(axis=1, ddof=1)) for each in real)
    return _Moments(mean, sd, sample.shape[1])


def _interval(
    a: Numbers, b: Numbers, in_a: Resamples, in_b: Resamples, tail: float
) -> tuple[Floats, Floats]:
    resampled = _resampled_means(b, in_b())
    resampled -= _resampled_means(a, in_a())
    outside = max(0, int(tail * (_RESAMPLES + 1)) - 1)
    ends = (outside, _RESAMPLES - 1 - outside)
    resampled.partition(ends, axis=1)
    return resampled[:, ends[0]].copy(), resampled[:, ends[1]].copy()


def _resampled_means(sample: Numbers, resamples: Iterable[Counts]) -> Floats:
    """Return the means of resamples: a row per row of the sample, a column per resample.

    Counts times whole numbers are exact up to 2^53, in whatever order they are added: so rows that
    are 0 in most steps, as kernels are that run now and then, are added up by a loop over the
    others, and the rest by multiplying matrices.
    """
    rows, number = sample.shape
    is_rare = (np.count_nonzero(sample, axis=1) < _RARE * number) & (sample.size >= _MANY)
    rare, often = np.flatnonzero(is_rare), np.flatnonzero(~is_rare)
    some = sample[rare]
    # NumPy gives columns of one array, and a loop takes arrays whose numbers follow each other.
    at, steps = map(np.ascontiguousarray, np.nonzero(some))
    first = np.searchsorted(at, np.arange(rare.size + 1))
    values = some[at, steps].astype(np.float64)
    others = sample[often].astype(np.float64)
    sums = np.empty((rows, _RESAMPLES))
    add, done = compiled(add_up_drawn, values.size * _RESAMPLES), 0
    for counts in resamples:
        drawn = counts.astype(np.float64)
        added = np.zeros((rare.size, drawn.shape[1]))
        add(first, steps, values, drawn, added)
        into = sums[:, done : done + drawn.shape[1]]
        into[rare], into[often] = added, others @ drawn
        done += drawn.shape[1]
    sums /= number
    return sums


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
        parts = [
            _counts(random, min(drawn, until - at), number) for at in range(done, until, drawn)
        ]
        yield np.ascontiguousarray(np.concatenate(parts).T)


def _counts(random: np.random.Generator, resamples: int, number: int) -> Counts:
    drawn = random.integers(0, number, size=(resamples, number), dtype=np.int32)
    drawn += np.arange(0, resamples * number, number, dtype=np.int32)[:, np.newaxis]
    counts = np.bincount(drawn.ravel(), minlength=resamples * number)
    return counts.astype(np.min_scalar_type(counts.max())).reshape(resamples, number)


def _is_plain(a: Numbers, b: Numbers) -> Flags:
    """Tell where nothing is open: the same steps, or work in all steps of one run alone."""
    one_sided = [
        (one == 0).all(axis=1) & (other > 0).all(axis=1) for one, other in ((a, b), (b, a))
    ]
    same = (a == b).all(axis=1) if a.shape == b.shape else np.zeros(len(a), dtype=bool)
    plain: Flags = same | one_sided[0] | one_sided[1]
    return plain


def _effective(a: Numbers, b: Numbers) -> Iterator[tuple[Flags, Floats, Floats]]:
    """Yield of each block where nothing can be told, and how many independent steps others have."""
    for rows in _blocks(a):
        yield _effective_of(a[rows], b[rows])


def _effective_of(a: Numbers, b: Numbers) -> tuple[Flags, Floats, Floats]:
    depend, plain = (dependence(a), dependence(b)), _is_plain(a, b)
    is_unknown = (depend[0].is_too_much | depend[1].is_too_much) & ~plain
    # However often modes occur, means of runs that have no lengths in common are in this order.
    is_apart = (a.max(axis=1) < b.min(axis=1)) | (b.max(axis=1) < a.min(axis=1))
    is_unknown |= (depend[0].persists | depend[1].persists) & ~plain & ~is_apart
    in_a, in_b = (
        np.where(plain | is_unknown, each.shape[1], found.effective)
        for each, found in zip((a, b), depend, strict=True)
    )
    return is_unknown, in_a, in_b


def _stretch(moments: tuple[_Moments, _Moments], effective: Effective) -> Floats:
    """Return how many times as wide as for independent steps Student's interval is."""
    reaches = []
    for worth in (effective, None):
        variance, freedom = _difference_error(moments, worth)
        reaches.append(quantile(freedom, (1 + LEVEL) / 2) * np.sqrt(variance))
    factor = np.ones_like(reaches[0])
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


def _difference_error(
    moments: tuple[_Moments, _Moments], effective: Effective | None
) -> tuple[Floats, Floats]:
    """Return the variance of the difference of means, and Welch's degrees of freedom.

    There is one degree of freedom where nothing varies.
    """
    worth = effective or tuple(np.full_like(each.mean, each.steps) for each in moments)
    of_a, of_b = (
        mean_error(each.sd, each.steps, own) for each, own in zip(moments, worth, strict=True)
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


def welch(a: Numbers, b: Numbers) -> Floats:
    """Return the p value of Welch's t test of each row; what never varies differs or does not.

    Parameters
    ----------
    a, b
        As for `differences`; all steps are taken for independent.
    """
    moments = _moments(a), _moments(b)
    return p_values(moments[1].mean - moments[0].mean, *_difference_error(moments, None))


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
