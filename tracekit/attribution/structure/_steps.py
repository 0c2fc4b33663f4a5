"""Which backward passes make up a step, and the table of steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.attribution.structure._gaps import Parts, has_update
from tracekit.attribution.structure._sequences import kinds_of, total_in
from tracekit.attribution.structure._turns import Turns
from tracekit.attribution.structure._work import STEPS, Array

_AGREE = 0.9
"""Share of updates that must follow a rhythm for it to count."""
_UPDATES = 0.05
"""In fewer of the gaps than this an update is not seen, and each backward pass is a step."""
_MOST = 64
"""How many updates one step may have, told by its input."""
_NETWORKS = 4
"""How many networks may be trained in turns."""


def number_bursts(turns: Turns, parts: Parts) -> tuple[Array, str | None]:
    """Return the step of each backward pass, and what was seen if steps have several updates.

    A step ends with an update. Gradients that are accumulated have backward passes without one.
    """
    count = turns.bursts.size
    updates = has_update(turns, parts)
    if updates[1:count].mean() < _UPDATES:
        return np.arange(count), None
    begins = np.flatnonzero(updates[1:count]) + 1
    begins, note = _in_turns(turns, parts, begins)
    new = np.zeros(count, np.int64)
    new[begins] = 1
    return np.cumsum(new), note


def _in_turns(turns: Turns, parts: Parts, begins: Array) -> tuple[Array, str | None]:
    """Keep of the gaps with an update those that begin a step.

    Several updates are one step if only one of them is followed by new input, in a steady rhythm
    (LBFGS and its closure), or if different networks take turns (the two of a GAN).
    """
    fed = total_in(turns.lane.batch, turns.first[begins] + parts.head[begins], turns.stop[begins])
    size = _rhythm(fed > 0, _MOST)
    if size and abs(int((fed > 0).sum()) - begins.size / size) <= 1:
        return begins[fed > 0], f"every {size} updates share one input: they are taken as one step"
    layer = turns.lane.layer
    until = np.concatenate(([0], np.cumsum(layer)))
    networks = kinds_of(turns.lane.symbol[layer], until[turns.bursts], until[turns.ends])[begins]
    size = _rhythm(networks, _NETWORKS)
    if not size or np.unique(networks[:size]).size < size:
        return begins, None
    at = turns.first[begins] + parts.head[begins]
    pauses = turns.lane.work.launch[at] - turns.lane.work.launch[at - 1]
    longest = int(np.argmax([np.median(pauses[phase::size]) for phase in range(size)]))
    return begins[longest::size], f"{size} networks are trained in turns: taken as one step"


def _rhythm(values: Array, most: int) -> int:
    """Return after how many places a sequence repeats; 0 if it does not, or is all the same."""
    if not values.size or (values == values[0]).all():
        return 0
    for size in range(1, min(most, values.size // 3) + 1):
        if (values[size:] == values[:-size]).mean() >= _AGREE:
            return size if size > 1 else 0
    return 0


def table_of(step: Array, launch: Array, whole: Array) -> pl.DataFrame:
    """Return the table of steps, which each end where the next one begins.

    Parameters
    ----------
    step
        The step of each op in order of launch, -1 for none; all numbers from 0 on occur.
    launch
        When each op was launched.
    whole
        Whether each step is whole.
    """
    own = np.flatnonzero(step >= 0)
    _, first = np.unique(step[own], return_index=True)
    start = launch[own[first]]
    end = np.concatenate((start[1:], launch[own[-1:]] + 1))
    columns = (np.arange(start.size), start, end, whole)
    return pl.DataFrame(dict(zip(STEPS, columns, strict=True)), schema=STEPS)
