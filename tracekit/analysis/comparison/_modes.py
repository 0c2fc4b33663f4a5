"""Steps of two kinds: quick ones and slow ones, with a gap between them that nothing fills."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]

_LEAST_STEPS = 10
"""Fewer steps have no modes that could be told from chance."""
_LEAST_SHARE = 0.1
_LEAST_OF_A_MODE = 3
"""Fewer steps, or a smaller share of them, are outliers and no mode."""
_GAP = 4.0
"""How many times as far apart the modes are as the steps of either spread."""
NEVER = np.iinfo(np.int64).max


def mode_edges(sample: Numbers) -> Floats:
    """Return what parts the quick steps of each row from its slow ones; NaN where all are alike.

    Modes are parted at the widest gap between steps, in order of their lengths, that leaves a
    tenth of the steps and three at least on either side. They are modes where the gap is wider
    than 4 times the standard deviation within them: steps of one kind leave no such gap.

    Parameters
    ----------
    sample
        A row per group, a column per step.
    """
    number = sample.shape[1]
    edges = np.full(len(sample), np.nan)
    least = max(_LEAST_OF_A_MODE, int(np.ceil(_LEAST_SHARE * number)))
    if number < _LEAST_STEPS or not len(sample):
        return edges
    ordered = np.sort(sample, axis=1).astype(np.float64)
    gaps = np.diff(ordered, axis=1)[:, least - 1 : number - least]
    at = gaps.argmax(axis=1)
    gap = np.take_along_axis(gaps, at[:, np.newaxis], axis=1)[:, 0]
    upper = np.take_along_axis(ordered, (at + least)[:, np.newaxis], axis=1)[:, 0]
    are_modes = gap > _GAP * _within(ordered, at + least)
    return np.where(are_modes, upper - gap / 2, np.nan)


def _within(ordered: Floats, first: NDArray[np.int64]) -> Floats:
    """Return the standard deviation within two parts, of which the second begins at `first`."""
    number = ordered.shape[1]
    is_slow = np.arange(number) >= first[:, np.newaxis]
    squares = np.zeros(len(ordered))
    for part in (is_slow, ~is_slow):
        mean = (ordered * part).sum(axis=1) / part.sum(axis=1)
        squares += (((ordered - mean[:, np.newaxis]) ** 2) * part).sum(axis=1)
    spread: Floats = np.sqrt(squares / (number - 2))
    return spread


def switches(sample: Numbers) -> Numbers:
    """Return how often each row changes from one mode to the other; `NEVER` where it has none."""
    edges = mode_edges(sample)
    is_slow = sample > np.nan_to_num(edges)[:, np.newaxis]
    changes = (is_slow[:, 1:] != is_slow[:, :-1]).sum(axis=1)
    return np.where(np.isnan(edges), NEVER, changes)
