"""Standard error of the mean of dependent steps (long-run variance).

Neighbouring steps are often alike (the machine drifts), so each adds less information than an
independent one. The error of the mean follows from slow variation, over the whole recording,
measured here as the variance at low frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ENOUGH = 5
"""Least number of steps of each run for a verdict."""
COSINES = 4
"""Number of lowest frequencies used: degrees of freedom of the error of a mean."""
WIDER, WIDER_OF_FEW = 1.2, 1.3
"""Factors that widen errors, since slow drifts vary more at frequency 0 than at the lowest ones."""
_FEW = 8
"""Number of steps below which `WIDER_OF_FEW` applies: they hardly show dependence."""
_DRIFT, _CHANCE = 0.7, 0.01
"""Steps drift if the two lowest frequencies have more than `_DRIFT` of the variance, as happens by
chance in fewer than `_CHANCE` of recordings of independent steps."""
_MOST, _STILL, _HARDLY = 0.6, 12.0, 0.001
"""Steps drift, too, if all four frequencies have more than `_MOST`, as happens by chance in fewer
than `_HARDLY` of recordings of independent steps, and neighbours are alike: the sum of squared
changes between them, over that of distances from the mean, is below `_STILL` over the number of
steps. So it is in most recordings of a random walk (Sargan and Bhargava 1983); for independent
steps that ratio is 2."""
SHOW_DRIFT, SLOW = 200, 0.25
"""With fewer steps than `SHOW_DRIFT`, drift under noise is hardly found; and a mean that is less
certain than that of a share `SLOW` of its steps would be, if they were independent, is seldom so by
chance. Intervals then hold if there is no drift."""
AT_ONCE = 1 << 20
"""Number of values that are processed at once."""


@dataclass(frozen=True)
class LongRun:
    """Certainty of the mean of each row of a sample."""

    variance: Floats
    """Variance of the mean of each row; it has `COSINES` degrees of freedom."""
    effective: Floats
    """Number of independent steps whose mean would be equally certain; the number of steps if none
    varies. For independent steps it is correct only on average."""
    drifts: Flags
    """Whether most of the variation is a drift through the recording, like a random walk: more
    steps would then not make the mean more certain."""


def long_run(sample: Numbers | Floats) -> LongRun:
    """Measure the certainty of the mean of each row of a sample.

    The long-run variance is the mean square of the first four coefficients of the type II cosine
    transform of the steps (equal-weighted cosines: Müller 2007; Lazarus, Lewis, Stock and Watson,
    HAR Inference: Recommendations for Practice, Journal of Business & Economic Statistics 36,
    2018), so that the mean over its error follows Student's t with four degrees of freedom. For
    five steps it is the plain variance. Drifts slower than these cosines are covered by a wider
    error (after Dou, Optimal HAR Inference, 2019); the factor comes from the trials in
    ``docs/evidence/verdicts.md``.

    Parameters
    ----------
    sample
        One row per group, one column per step; at least five columns.
    """
    rows = max(1, AT_ONCE // sample.shape[1])
    parts = [_of_block(sample[at : at + rows]) for at in range(0, max(1, len(sample)), rows)]
    return LongRun(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _of_block(sample: Numbers | Floats) -> tuple[Floats, Floats, Flags]:
    number = sample.shape[1]
    apart = (sample - sample[:, :1]).astype(np.float64)  # exactly 0 of steps that never vary
    apart -= apart.mean(axis=1, keepdims=True)
    total = (apart**2).sum(axis=1)
    powers = np.stack([(apart * each).sum(axis=1) ** 2 for each in _cosines(number)])
    plain = powers.mean(axis=0) / number
    effective = np.full(len(sample), float(number))
    np.divide(total / (number - 1), plain, out=effective, where=plain > 0)
    wider = WIDER_OF_FEW if number < _FEW else WIDER
    return wider**2 * plain, effective, _drift(apart, powers, total)


def _drift(apart: Floats, powers: Floats, total: Floats) -> Flags:
    number = apart.shape[1]
    share, most = np.zeros(len(apart)), np.zeros(len(apart))
    np.divide(powers[:2].sum(axis=0), total, out=share, where=total > 0)
    np.divide(powers.sum(axis=0), total, out=most, where=total > 0)
    # Two, and four, of n - 1 equal parts hold so large a share of independent steps by this chance.
    rest, rest_of_most = np.clip(1 - share, 0, 1), np.clip(1 - most, 0, 1)
    chance = rest ** ((number - 3) / 2)
    chance_of_most = rest_of_most ** ((number - 5) / 2) * (1 + (number - 5) / 2 * most)
    changes = (np.diff(apart, axis=1) ** 2).sum(axis=1)
    is_still = (changes * number < _STILL * total) & (most > _MOST) & (chance_of_most < _HARDLY)
    found: Flags = ((share > _DRIFT) & (chance < _CHANCE)) | is_still
    return found


@lru_cache(maxsize=16)
def _cosines(number: int) -> Floats:
    """Return the lowest-frequency cosines at `number` steps, each scaled to Euclidean norm 1."""
    places = (np.arange(number) + 0.5) * np.pi / number
    orders = np.arange(1, COSINES + 1)[:, np.newaxis]
    found: Floats = np.sqrt(2 / number) * np.cos(orders * places)
    return found
