"""Steps that are unlike all others: warm-up, cut ends, stalls, and steps of two kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.comparison._headline import length_text, signed_length
from tracekit.analysis.statistics import ENOUGH, Floats, Numbers, Shift, shift, spread_of

if TYPE_CHECKING:
    from tracekit.analysis.step_sums import Measured

_SPREADS = 5.0
_LEAST = 0.2
"""An outlier is so many standard deviations, and such a share of the median, off the median."""
_FEW = 3
"""So many are named."""
_LEAST_STEPS = 10
"""Fewer steps have no modes that could be told from chance."""
_LEAST_SHARE = 0.1
_LEAST_OF_A_MODE = 3
"""Fewer steps, or a smaller share of them, are outliers and no mode."""
_GAP = 4.0
"""How many times as far apart the modes are as the steps of either spread."""
_NUMBERS = {2: "two", 3: "three", 4: "four"}


def outliers(steps: Numbers | Floats) -> list[int]:
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


def step_notes(sides: Sequence[tuple[Numbers, Sequence[int], int]]) -> list[str]:
    """Name what is unlike the rest among the steps of each run.

    Parameters
    ----------
    sides
        Of each run: its steps, their numbers, and on how many devices their time is added.
    """
    notes = [
        note
        for side, (steps, numbers, devices) in zip("AB", sides, strict=True)
        for note in (*_outlier_notes(side, steps, numbers), *_modes(side, steps, devices))
    ]
    return [*notes, *_mode_by_mode([(steps, devices) for steps, _, devices in sides])]


def cold_notes(names: Sequence[str], measured: Sequence[Measured]) -> list[str]:
    """Say how many iterations are left out at the beginning, and how many others are cold."""
    skipped = [
        f"{run.skipped} of {name}" for name, run in zip(names, measured, strict=True) if run.skipped
    ]
    cold = [f"{run.cold} of {name}" for name, run in zip(names, measured, strict=True) if run.cold]
    told = f"left out at the beginning: {', '.join(skipped)}; --skip 0 keeps all"
    lie = f"cold steps at the beginning: {', '.join(cold)}; --skip auto leaves them out"
    return [*([told] if skipped else []), *([lie] if cold else [])]


def _outlier_notes(side: str, steps: Numbers, numbers: Sequence[int]) -> list[str]:
    regular = _regularly_slow(steps)
    found = [place for place in outliers(steps) if place not in regular]
    median = float(np.median(steps)) if found else 1.0
    told = [
        f"step {numbers[place]} of {side}: {steps[place] / median:.2g} times the median"
        for place in found
    ]
    more = len(told) - _FEW
    are = "step of {} is an outlier" if more == 1 else "steps of {} are outliers"
    return [*told[:_FEW], *([f"{more} more {are.format(side)}"] if more > 0 else [])]


def _modes(side: str, steps: Numbers, devices: int) -> list[str]:
    parts = _kinds(steps)
    told = [f"{len(part)} of {length_text(float(np.median(part)) / devices)}" for part in parts]
    if not told:
        return []
    number = _NUMBERS.get(len(told), str(len(told)))
    listed = f"{', '.join(told[:-1])} and {told[-1]}"
    period = _period(np.flatnonzero(steps >= parts[-1].min()).tolist(), len(steps))
    regular = f"; a slow one every {period} steps" if period else ""
    return [f"steps of {side} are of {number} kinds: {listed} (medians){regular}"]


def _kinds(steps: Numbers) -> list[Numbers]:
    """Return the modes of steps; or the usual ones and the slow ones where these come regularly."""
    slow = _regularly_slow(steps)
    return [np.delete(steps, slow), steps[slow]] if slow else modes(steps)


def _regularly_slow(steps: Numbers) -> list[int]:
    """Return the places of slow outliers that come regularly; none if they do not."""
    slow = [place for place in outliers(steps) if steps[place] > np.median(steps)]
    return slow if _period(slow, len(steps)) else []


def _period(places: Sequence[int], number: int) -> int | None:
    """Return every how many steps one of these places comes; None if they are not regular.

    Three or more of them stand equally far apart, from the beginning to the end.
    """
    apart = set(np.diff(places).tolist())
    if len(places) < _LEAST_OF_A_MODE or len(apart) > 1:
        return None
    [period] = apart
    begins, ends = places[0] < period, places[-1] + period >= number
    return int(period) if period > 1 and begins and ends else None


def mode_edges(sample: Numbers | Floats) -> Floats:
    """Return the threshold between the quick and the slow steps of each row; NaN without one.

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
    """Return the standard deviation within the two parts before and from `first`."""
    number = ordered.shape[1]
    is_slow = np.arange(number) >= first[:, np.newaxis]
    squares = np.zeros(len(ordered))
    for part in (is_slow, ~is_slow):
        mean = (ordered * part).sum(axis=1) / part.sum(axis=1)
        squares += (((ordered - mean[:, np.newaxis]) ** 2) * part).sum(axis=1)
    spread: Floats = np.sqrt(squares / (number - 2))
    return spread


def modes(steps: Numbers) -> list[Numbers]:
    """Return the steps of each kind, the quickest first; nothing where all are of one kind.

    Either kind is parted again as long as it is of several.
    """
    edge = mode_edges(steps[np.newaxis, :])[0] if len(steps) else np.nan
    if np.isnan(edge):
        return []
    parts = (steps[steps < edge], steps[steps > edge])
    return [mode for part in parts for mode in (modes(part) or [part])]


def _mode_by_mode(sides: Sequence[tuple[Numbers, int]]) -> list[str]:
    """Compare the steps of each kind with those of the same kind, if both runs have as many."""
    (a, of_a), (b, of_b) = ((_kinds(steps), devices) for steps, devices in sides)
    if not a or len(a) != len(b):
        return []
    shifts = [shift(one * of_b, other * of_a) for one, other in zip(a, b, strict=True)]
    kinds = ["quick", "slow"]
    if len(a) > len(kinds):
        kinds = [f"{length_text(float(np.median(mode)) / of_a)}" for mode in a]
    return [
        f"{kind} steps, B less A: typically {_shift_text(found, of_a * of_b)}"
        for kind, found in zip(kinds, shifts, strict=True)
    ]


def _shift_text(found: Shift, scale: int) -> str:
    if found.interval is None:
        return f"{signed_length(found.value / scale)} (interval unknown)"
    low, high = (signed_length(end / scale) for end in found.interval)
    return f"{signed_length(found.value / scale)} ({low} to {high})"
