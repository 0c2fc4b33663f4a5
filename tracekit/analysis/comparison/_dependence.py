"""How far the steps of a recording depend on each other, and how many independent ones they are.

A step that is slow because the one before it was slow tells nothing new: the mean of such steps is
less certain than their number says. Where slow and fast ones take turns it is more certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.comparison._modes import switches

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ENOUGH = 5
"""Steps of either run, and independent ones that they are worth, below which nothing is shown."""
SURE = 20
"""Steps from which on a correlation that was found counts, even if it may be chance."""
_BOUNDS = (-0.85, 0.99)
"""No correlation makes steps worth more than twelve times as many, or less than a part of one."""
_WALK = 8
"""A random walk looks like steps of which not one in so many is independent."""


@dataclass(frozen=True)
class Dependence:
    """What is known of the steps of a sample, row by row.

    Parameters
    ----------
    correlation
        Of each step with the next one, less the bias of few steps; NaN where none is defined: of
        fewer than five steps, or of ones that never vary.
    effective
        So many independent steps would tell as much of the mean.
    walks, persists
        Whether it may be a random walk, and whether steps are of two kinds in a few long blocks.
    """

    correlation: Floats
    effective: Floats
    walks: Flags
    persists: Flags

    @property
    def is_too_much(self) -> Flags:
        """Whether too few steps are independent to say anything of the mean."""
        return self.walks | (self.effective < ENOUGH)


def dependence(sample: Numbers) -> Dependence:
    """Tell how far the steps of a sample depend on each other.

    The correlation r of a step with the next one is too small by about ``(1 + 4 r) / n`` (Marriott
    and Pope 1954), and is put right. Of n steps that are correlated by r as those of an
    autoregressive process are, ``n (1 - r) / (1 + r)`` are worth as much as independent ones. What
    is within the noise of independent steps is not counted: below 0 at any number of steps, and
    above 0 for fewer than 20, whose correlation is not known well enough to count.

    Parameters
    ----------
    sample
        A row per group, a column per step.
    """
    number = sample.shape[1]
    found, is_noise = _correlation(sample.astype(np.float64))
    counted = np.where(np.isnan(found) | is_noise, 0.0, np.clip(found, *_BOUNDS))
    effective = number * (1 - counted) / (1 + counted)
    persists = switches(sample) < ENOUGH
    return Dependence(found, effective, (counted > 0) & (effective * _WALK < number), persists)


def _correlation(values: Floats) -> tuple[Floats, Flags]:
    """Return the correlation of steps with the next one, and whether it may be taken for none."""
    number = values.shape[1]
    apart = values - values.mean(axis=1, keepdims=True)
    squares = (apart**2).sum(axis=1)
    products = (apart[:, 1:] * apart[:, :-1]).sum(axis=1)
    is_known = (values.max(axis=1) > values.min(axis=1)) & (number >= ENOUGH)
    plain = np.full(len(values), np.nan)
    np.divide(products, squares, out=plain, where=is_known)
    # Of independent steps it is -1/n on average, and spreads by 1/sqrt(n) around that.
    reach = 1.96 / np.sqrt(number)
    centred = plain + 1 / number
    is_noise = (centred > -reach) & ((centred < 0) | ((number < SURE) & (centred < reach)))
    return (number * plain + 1) / max(1, number - 4), is_noise


def mean_error(sd: Floats, steps: int, effective: Floats) -> tuple[Floats, Floats]:
    """Return the variance of a mean of dependent steps, and its degrees of freedom.

    Dependent steps spread less around their own mean than around the true one: by a factor of
    ``n (m - 1) / (m (n - 1))`` in the variance, for n steps that are worth m. That is put right.

    Parameters
    ----------
    sd
        Standard deviation of the steps.
    steps, effective
        How many there are, and how many independent ones they are worth.
    """
    worth = np.maximum(effective, 1 + 1e-9)
    return sd**2 * (steps - 1) / (steps * (worth - 1)), np.minimum(worth, steps) - 1
