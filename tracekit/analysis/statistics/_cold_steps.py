"""Number of cold steps at the beginning of a run.

Data are loaded, kernels chosen and code compiled in the first steps of a run. They lie outside of
the others, and belong into no mean of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.statistics._kinds_of_steps import lattice

Skip: TypeAlias = int | Literal["auto"]
"""How many iterations to leave out at the beginning: a number, or as many as are cold."""
_FEWEST, _ANY = 5, 3
"""Fewest other steps for a robust spread, and fewest to compare the first step with."""
_FAR = 1.5
"""Of few steps the first is cold if it takes so many times as long as the longest of the others."""
_SPREADS, _LEAST = 5.0, 0.05
"""A cold step is so many robust standard deviations above the others' median, and such a share."""
_AS_LONG, _NEARLY = 20, 0.9
"""Outside of the rest and nearly as long as a cold step is one in so many of the others at most:
more are a kind of steps, as those that write a checkpoint."""
_FEW = 4
"""So many runs are called by their names."""
_OTHERS = 2
"""A slow step that comes regularly has so many others as long at least."""


def cold_steps(steps: NDArray[Any] | Sequence[float]) -> int:
    """Return how many steps at the beginning lie outside of the rest; a third of all at most.

    The rest are the steps after the first third, whose median and median deviation no warm-up
    moves. A cut that minimises the error of the mean (MSER, White 1997) finds one in the noise of
    most runs; this one in hardly any. A step that is the first of slow ones that come regularly is
    not cold, however seldom these come. Of four or five steps, which have no spread to speak of,
    the first is cold if it is far longer than each of the others.
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
    fence = median + max(_SPREADS * spread, _LEAST * median)
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


def _comes_regularly(lengths: NDArray[np.float64], at: int, fence: float) -> bool:
    """Tell whether the step at a place and those as long stand equally far apart."""
    is_as_long = lengths >= max(_NEARLY * lengths[at], fence)
    found = lattice(np.flatnonzero(is_as_long).tolist(), len(lengths))
    return found is not None and bool(found.is_slow[at])


def left_out_notes(skipped: Mapping[str, int]) -> list[str]:
    """Name the runs whose first iterations are left out, and how many."""
    some = {name: number for name, number in skipped.items() if number}
    told = ", ".join(f"{number} of {name}" for name, number in some.items())
    if len(some) > _FEW:
        least, most = min(some.values()), max(some.values())
        of_each = f"{least}" if least == most else f"{least} to {most}"
        told = f"{of_each} of each of {len(some)} runs"
    return [f"left out at the beginning: {told}; --skip 0 keeps all"] if some else []
