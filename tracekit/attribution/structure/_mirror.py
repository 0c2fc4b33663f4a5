"""Find where a step turns from forward to backward: backward runs the layers in reverse.

Launches of a layer have the same sizes in forward and backward pass, and backward begins with the
last layer. So launches of equal size form nested pairs, like brackets; the middle of the set of
nested pairs with the largest weight is the turn. This is so within a training step only: any
program that repeats launch sizes has nested pairs, so they are no evidence of training.
"""

from __future__ import annotations

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._work import Array

_MOST = 1500
"""Largest number of launches in the nest; those with the rarest sizes are taken."""


def find_turn(size: Array) -> tuple[int, int, float]:
    """Return the innermost of nested pairs of equal launch sizes, and the paired share of weight.

    Time and memory grow with the square of the number of launches, up to `_MOST`. The weight of a
    launch is lower the more launches have its size.
    """
    _, same, count = np.unique(size, return_inverse=True, return_counts=True)
    paired = np.flatnonzero((count[same] > 1) & (size >= 0))
    if paired.size > _MOST:
        # All launches of a size, or none; of equally rare ones, sizes from anywhere in the step.
        spread = np.random.default_rng(0).permutation(count.size)[same[paired]]
        rarest = np.lexsort((spread, count[same[paired]]))[:_MOST]
        paired = np.sort(paired[rarest])
    if (
        paired.size < THRESHOLDS.mirror_launches
        or np.unique(same[paired]).size < THRESHOLDS.mirror_sizes
    ):
        return 0, 0, 0.0
    codes = same[paired]
    weight = 1 / count[codes]
    table = _nests(codes, weight)
    inner, outer = paired[list(_middle(table, codes.size))]
    whole = float((1 / count[same]).sum())
    return int(inner), int(outer), float(2 * table[0, -1] / whole)


def _nests(codes: Array, weight: Array) -> Array:
    """Return a table: at [i, j] the largest weight of nested equal pairs in launches i to j - 1."""
    size = codes.size
    table = np.zeros((size + 1, size + 1), np.float32)
    for width in range(2, size + 1):
        first = np.arange(size - width + 1)
        last = first + width - 1
        pair = np.where(codes[first] == codes[last], weight[first], 0)
        around = table[first + 1, last] + pair
        table[first, last + 1] = np.maximum(
            np.maximum(table[first + 1, last + 1], table[first, last]), around
        )
    return table


def _middle(table: Array, size: int) -> tuple[int, int]:
    """Return the innermost pair of the nested pairs with the largest weight, walking inward."""
    first, last, found = 0, size, (0, size - 1)
    while first < last - 1:
        if table[first, last] == table[first + 1, last]:
            first += 1
        elif table[first, last] == table[first, last - 1]:
            last -= 1
        else:
            found = (first, last - 1)
            first, last = first + 1, last - 1
    return found
