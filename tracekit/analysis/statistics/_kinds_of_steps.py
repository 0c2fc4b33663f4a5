"""Kinds of steps: cold ones at the beginning, outliers, modes, and slow steps that come regularly.

The first steps of a run load data, choose kernels and compile code. They differ from the others,
and are left out of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.statistics._long_run import ENOUGH, Flags, Floats, Numbers

_SPREADS = 5.0
_LEAST = 0.2
"""Least distance of an outlier from the median: robust standard deviations, share of the median."""
_LEAST_STEPS = 10
"""Least number of steps in which modes are found; with fewer they could be chance."""
_LEAST_SHARE = 0.1
_LEAST_OF_A_MODE = 3
"""Least share of the steps, and least number of steps, that form a mode; fewer are outliers."""
_GAP = 4.0
"""Least gap between modes, over the standard deviation within them."""
_BY_CHANCE = 3
"""Number of regularly slow steps per other slow step that may be chance."""
Skip: TypeAlias = int | Literal["auto"]
"""Number of iterations to leave out at the beginning; ``auto``: the cold ones."""
_FEWEST, _ANY = 5, 3
"""Fewest other steps for a robust spread, and fewest to compare the first step with."""
_FAR = 1.5
"""Ratio to the longest other step above which the first one of few steps is cold."""
_COLD_SPREADS, _LEAST_COLD = 5.0, 0.05
"""Distance of cold steps above the median: robust standard deviations, share of the median."""
_AS_LONG, _NEARLY = 20, 0.9
"""At most one in `_AS_LONG` later steps lasts `_NEARLY` as long as a cold step, or longer: more
form a kind of steps, such as those that write a checkpoint."""
_LOWERED = 0.99
"""Share of the shortest other step, and of their mean, below which a last step and the mean of all
lie if it lacks what ends the others."""
_FEW = 4
"""Largest number of runs that are listed by name."""
_OTHERS = 2
"""Least number of other steps that are as long as a regularly slow step."""


@dataclass(frozen=True)
class Regular:
    """Slow steps at regular intervals, such as steps that write a checkpoint."""

    is_slow: Flags
    """True for the slow steps, one flag per step."""
    period: int
    """Number of steps from one slow step to the next."""


def within_kinds(
    sample: Numbers | Floats, regular: Regular | None
) -> tuple[Numbers | Floats, Floats]:
    """Split the scatter of step times: within slow and within other steps, and between the two.

    Parameters
    ----------
    sample
        One row per group, one column per step.
    regular
        The slow steps that come regularly; None if there are none.

    Returns
    -------
    Each step's deviation from the mean of its kind (slow, or not slow), scaled by Bessel's
    correction; and how far each row's mean is off because the sample's share of slow steps is not
    exactly one per period. Without `regular`, the sample itself, and zeros.
    """
    if regular is None:
        return sample, np.zeros(len(sample))
    apart, means = np.empty(sample.shape), []
    for kind in (regular.is_slow, ~regular.is_slow):
        first = sample[:, kind][:, :1]
        lengths = (sample[:, kind] - first).astype(np.float64)  # exactly 0 of what never varies
        mean = lengths.mean(axis=1, keepdims=True)
        apart[:, kind] = (lengths - mean) * np.sqrt(kind.sum() / (kind.sum() - 1))
        means.append(first[:, 0] + mean[:, 0])
    return apart, (regular.is_slow.mean() - 1 / regular.period) * (means[0] - means[1])


def outliers(steps: Numbers | Floats) -> list[int]:
    """Return the positions of outliers among steps.

    An outlier is at least 5 robust standard deviations and a fifth of the median away from the
    median, and does not come regularly. If steps are of two kinds (modes), there are no outliers.
    """
    far_off = _far_off(steps)
    regular = _lattice(_slow(steps, far_off), len(steps))
    return far_off if regular is None else [at for at in far_off if not regular.is_slow[at]]


def regularly_slow(steps: Numbers | Floats) -> Regular | None:
    """Return the slow steps of a run that come at regular intervals; None if there are none."""
    parts = modes(steps)
    if parts:
        slow = np.flatnonzero(steps >= parts[-1].min()).tolist()
    else:
        slow = _slow(steps, _far_off(steps))
    return _lattice(slow, len(steps))


def kinds_of(steps: Numbers | Floats) -> list[Numbers | Floats]:
    """Return step lengths by mode; with one mode, the regularly slow steps and the other steps.

    Empty if there are neither several modes nor regularly slow steps.
    """
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


def _lattice(places: list[int], number: int) -> Regular | None:
    """Return the slow steps (at `places`) if these are equally spaced over all `number` steps.

    None unless at least three slow steps are equally spaced. For every three of these, one further
    slow step between them is tolerated, as chance.
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
    """Return the threshold between fast and slow steps of each row; NaN if there are no two modes.

    Steps are split at the widest gap between their sorted lengths that leaves at least three steps
    and a tenth of all steps on each side. Both sides are modes if the gap exceeds 4 times the
    standard deviation within them, which does not happen for steps of one kind.

    Parameters
    ----------
    sample
        One row per group, one column per step.
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
    """Return each row's pooled standard deviation in two groups, split at `first`."""
    number = ordered.shape[1]
    is_slow = np.arange(number) >= first[:, np.newaxis]
    squares = np.zeros(len(ordered))
    for part in (is_slow, ~is_slow):
        mean = (ordered * part).sum(axis=1) / part.sum(axis=1)
        squares += (((ordered - mean[:, np.newaxis]) ** 2) * part).sum(axis=1)
    spread: Floats = np.sqrt(squares / (number - 2))
    return spread


def modes(steps: Numbers | Floats) -> list[Numbers | Floats]:
    """Return the steps of each mode, fastest first; empty if there is one mode only.

    Each mode is split again as long as it has several modes.
    """
    edge = mode_edges(steps[np.newaxis, :])[0] if len(steps) else np.nan
    if np.isnan(edge):
        return []
    parts = (steps[steps < edge], steps[steps > edge])
    return [mode for part in parts for mode in (modes(part) or [part])]


def cold_steps(steps: NDArray[Any] | Sequence[float]) -> int:
    """Return the number of cold steps at the beginning; at most a third of all steps.

    A cold step is many median absolute deviations longer than the median; both come from the steps
    after the first third, which warm-up does not affect. The usual criterion (MSER, White 1997:
    least error of the mean) takes noise at the beginning of most runs for cold steps; this one
    hardly ever does. If every n-th step is slow, the first of them is not cold, however large n.
    With only four or five steps, the first is cold if it is far longer than each other step.
    """
    lengths = np.asarray(steps, np.float64)
    if _ANY <= len(lengths) - 1 < _FEWEST:
        return int(lengths[0] > _FAR * lengths[1:].max())
    limit = min(len(lengths) // 3, len(lengths) - _FEWEST)
    if limit < 1:
        return 0
    rest = np.sort(lengths[limit:])
    median = float(np.median(rest))
    spread = 1.4826 * float(np.median(np.abs(rest - median)))
    fence = median + max(_COLD_SPREADS * spread, _LEAST_COLD * median)
    first = lengths[:limit]
    as_long = len(rest) - np.searchsorted(rest, np.maximum(_NEARLY * first, fence), "right")
    is_usual = (first <= fence) | (as_long > len(rest) // _AS_LONG)
    cold = int(is_usual.argmax()) if is_usual.any() else limit
    regular = (
        at
        for at in np.flatnonzero(as_long[:cold] >= _OTHERS).tolist()
        if _comes_regularly(lengths, at, fence)
    )
    return next(regular, cold)


def before_a_short_end(lengths: Sequence[float]) -> float | None:
    """Return the mean of all steps but the last if the last one was cut short, else None.

    The last step ends with its last GPU work, as no step follows. It counts as cut short if it is
    at least 1 % shorter than every other step, and lowers the mean of all steps by at least 1 %.
    """
    *others, last = lengths or [0.0]
    if not others or last > _LOWERED * min(others):
        return None
    before = sum(others) / len(others)
    return before if sum(lengths) / len(lengths) <= _LOWERED * before else None


def _comes_regularly(lengths: NDArray[np.float64], at: int, fence: float) -> bool:
    """Test if step `at` and all steps about as long (at least `fence`) are equally spaced."""
    is_as_long = lengths >= max(_NEARLY * lengths[at], fence)
    found = _lattice(np.flatnonzero(is_as_long).tolist(), len(lengths))
    return found is not None and bool(found.is_slow[at])


def left_out_notes(skipped: Mapping[str, int]) -> list[str]:
    """Return notes: how many first iterations of each run are left out (run -> number)."""
    some = {name: number for name, number in skipped.items() if number}
    text = ", ".join(f"{number} of {name}" for name, number in some.items())
    if len(some) > _FEW:
        least, most = min(some.values()), max(some.values())
        of_each = f"{least}" if least == most else f"{least} to {most}"
        text = f"{of_each} of each of {len(some)} runs"
    return [f"left out at the beginning: {text}; --skip 0 keeps all"] if some else []
