"""Number of cold steps at the beginning of a run.

Data are loaded, kernels chosen and code compiled in the first steps of a run. They lie outside of
the others, and belong into no mean of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Skip: TypeAlias = int | Literal["auto"]
"""How many iterations to leave out at the beginning: a number, or as many as are cold."""
_FEWEST = 5
"""So few steps are no sample that others could lie outside of."""
_SPREADS, _LEAST = 5.0, 0.05
"""A cold step is so many robust standard deviations above the others' median, and such a share."""
_AS_LONG, _NEARLY = 20, 0.9
"""Outside of the rest and nearly as long as a cold step is one in so many of the others at most:
more are a kind of steps, as those that write a checkpoint."""


def cold_steps(steps: NDArray[Any] | Sequence[float]) -> int:
    """Return how many steps at the beginning lie outside of the rest; a third of all at most.

    The rest are the steps after the first third, whose median and median deviation no warm-up
    moves. A cut that minimises the error of the mean (MSER, White 1997) finds one in the noise of
    most runs; this one in hardly any.
    """
    lengths = np.asarray(steps, np.float64)
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
    return int(is_usual.argmax()) if is_usual.any() else limit
