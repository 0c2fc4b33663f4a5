"""Kinds of steps: outliers, modes, and slow steps that come regularly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.statistics._long_run import ENOUGH, Flags, Floats, Numbers

_SPREADS = 5.0
_LEAST = 0.2
"""An outlier is so many standard deviations, and such a share of the median, off the median."""
_LEAST_STEPS = 10
"""Fewer steps have no modes that could be told from chance."""
_LEAST_SHARE = 0.1
_LEAST_OF_A_MODE = 3
"""Fewer steps, or a smaller share of them, are outliers and no mode."""
_GAP = 4.0
"""How many times as far apart the modes are as the steps of either spread."""
_BY_CHANCE = 3
"""Beside so many regular slow steps one may be slow by chance."""


@dataclass(frozen=True)
class Regular:
    """Slow steps at regular distances, such as those that write a checkpoint.

    Parameters
    ----------
    is_slow
        Which steps these are.
    period
        Every how many steps one comes.
    """

    is_slow: Flags
    period: int


def within_kinds(
    sample: Numbers | Floats, regular: Regular | None
) -> tuple[Numbers | Floats, Floats]:
    """Split a sample's variance into that within kinds of steps and that of their shares.

    Parameters
    ----------
    sample
        A row per group, a column per step.
    regular
        The slow steps that come regularly, if there are any.

    Returns
    -------
    Distances from the mean of the own kind, as wide as few steps let expect of many (Bessel); and
    by how much each mean is off for one slow step more or less than comes in the long run.
    """
    if regular is None:
        return sample, np.zeros(len(sample))
    apart, means = np.empty(sample.shape), []
    for kind in (regular.is_slow, ~regular.is_slow):
        first = sample[:, kind][:, :1]
        own = (sample[:, kind] - first).astype(np.float64)  # exactly 0 of what never varies
        mean = own.mean(axis=1, keepdims=True)
        apart[:, kind] = (own - mean) * np.sqrt(kind.sum() / (kind.sum() - 1))
        means.append(first[:, 0] + mean[:, 0])
    return apart, (regular.is_slow.mean() - 1 / regular.period) * (means[0] - means[1])


def outliers(steps: Numbers | Floats) -> list[int]:
    """Return the places of steps that are unlike the others.

    They are 5 robust standard deviations and a fifth of the median off the median, or more, and do
    not come regularly. Where steps are of two kinds none is.
    """
    far_off = _far_off(steps)
    regular = lattice(_slow(steps, far_off), len(steps))
    return far_off if regular is None else [at for at in far_off if not regular.is_slow[at]]


def regularly_slow(steps: Numbers | Floats) -> Regular | None:
    """Return the slow steps of a run at regular distances; None if there are none."""
    parts = modes(steps)
    if parts:
        slow = np.flatnonzero(steps >= parts[-1].min()).tolist()
    else:
        slow = _slow(steps, _far_off(steps))
    return lattice(slow, len(steps))


def kinds_of(steps: Numbers | Floats) -> list[Numbers | Floats]:
    """Return the modes of steps; or the usual ones and the slow ones where these come regularly."""
    regular = regularly_slow(steps)
    return modes(steps) or ([steps[~regular.is_slow], steps[regular.is_slow]] if regular else [])


def _slow(steps: Numbers | Floats, places: list[int]) -> list[int]:
    median = np.median(steps) if places else 0.0
    return [place for place in places if steps[place] > median]


def _far_off(steps: Numbers | Floats) -> list[int]:
    if len(steps) < ENOUGH or not np.isnan(mode_edges(steps[np.newaxis, :])[0]):
        return []
    median = float(np.median(steps))
    off = np.abs(steps - median)
    spread = 1.4826 * float(np.median(off))  # which outliers do not move
    least = max(_SPREADS * spread, _LEAST * median)
    return [int(place) for place in np.flatnonzero((off >= least) & (off > 0))]


def lattice(places: list[int], number: int) -> Regular | None:
    """Return those of some places that stand equally far apart, through all of so many steps.

    There are three or more, and of others at most one for three of them.
    """
    for period in sorted(set(np.diff(places).tolist()) - {1}):
        phase = int(np.bincount(np.array(places) % period).argmax())
        regular = range(phase, number, period)
        by_chance = len(places) - len(regular)
        if (
            len(regular) >= _LEAST_OF_A_MODE
            and 0 <= by_chance <= len(regular) // _BY_CHANCE
            and set(regular) <= set(places)
        ):
            return Regular(np.arange(number) % period == phase, int(period))
    return None


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


def modes(steps: Numbers | Floats) -> list[Numbers | Floats]:
    """Return the steps of each kind, the quickest first; nothing where all are of one kind.

    Either kind is parted again as long as it is of several.
    """
    edge = mode_edges(steps[np.newaxis, :])[0] if len(steps) else np.nan
    if np.isnan(edge):
        return []
    parts = (steps[steps < edge], steps[steps > edge])
    return [mode for part in parts for mode in (modes(part) or [part])]
