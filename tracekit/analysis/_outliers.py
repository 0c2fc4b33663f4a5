"""Steps that are unlike all others: warm-up, cut ends, stalls, and steps of two kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.analysis._dependence import ENOUGH, Numbers
from tracekit.analysis._headline import length_text
from tracekit.analysis._modes import mode_edges
from tracekit.analysis._shift import spread_of

_SPREADS = 5.0
_LEAST = 0.2
"""An outlier is so many standard deviations, and such a share of the median, off the median."""
_FEW = 3
"""So many are named."""


def outliers(steps: Numbers) -> list[int]:
    """Return the places of steps that are unlike the others.

    They are 5 robust standard deviations and a fifth of the median off the median, or more. Where
    steps are of two kinds none is.
    """
    if len(steps) < ENOUGH or not np.isnan(mode_edges(steps[np.newaxis, :])[0]):
        return []
    median = float(np.median(steps))
    least = max(_SPREADS * float(spread_of(steps)), _LEAST * median)
    off = np.abs(steps - median)
    return [int(place) for place in np.flatnonzero((off >= least) & (off > 0))]


def step_notes(sides: Sequence[tuple[Numbers, Sequence[int], int]], skip: int) -> list[str]:
    """Name what is unlike the rest among the steps of each run.

    Parameters
    ----------
    sides
        Of each run: its steps, their numbers, and on how many devices their time is added.
    skip
        How many steps were left out at the beginning.
    """
    return [
        note
        for side, (steps, numbers, devices) in zip("AB", sides, strict=True)
        for note in (*_outlier_notes(side, steps, numbers, skip), *_modes(side, steps, devices))
    ]


def _outlier_notes(side: str, steps: Numbers, numbers: Sequence[int], skip: int) -> list[str]:
    found = outliers(steps)
    median = float(np.median(steps)) if found else 1.0
    early = sum(place == at and steps[at] > median for at, place in enumerate(found))
    told = [
        f"step {numbers[place]} of {side}: {steps[place] / median:.2g} times the median"
        for place in found
    ]
    if early:
        first = "; ".join(told[:early][:_FEW])
        told = [f"{first}, probably warm-up; --skip {skip + early}", *told[early:]]
    more = len(told) - _FEW
    return [*told[:_FEW], *([f"{more} more steps of {side} are outliers"] if more > 0 else [])]


def _modes(side: str, steps: Numbers, devices: int) -> list[str]:
    edge = mode_edges(steps[np.newaxis, :])[0] if len(steps) >= ENOUGH else np.nan
    if np.isnan(edge):
        return []
    parts = [steps[steps < edge], steps[steps > edge]]
    told = [f"{len(part)} of {length_text(float(np.median(part)) / devices)}" for part in parts]
    return [f"steps of {side} are of two kinds: {' and '.join(told)} (medians)"]
