"""Tells what backward passes compute again, because its results were not kept."""

from __future__ import annotations

import numpy as np

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution.structure._sequences import grams_of
from tracekit.attribution.structure._signs import Lane
from tracekit.attribution.structure._work import BP, FP, Array

_SIZES = 1 << 42
"""More threads than a kernel is launched with."""


def recomputed(lane: Lane, stage: Array) -> Array:
    """Tell which ops of backward passes are part of a forward pass that is launched again.

    Backward undoes layers in reverse order: kernels that come in the order and in the sizes of a
    forward pass, and of which none computes gradients, are that pass again, with what is set or
    copied between them. Fewer kernels in a row than `Chosen.again` are not told apart.
    """
    computes = lane.kernel & ~lane.fill
    forward, backward = (np.flatnonzero(computes & (stage == each)) for each in (FP, BP))
    what = lane.symbol * _SIZES + lane.work.size
    ran = grams_of(what[forward], CHOSEN.again)[_shared(lane.symbol, forward, backward)]
    starts = _shared(lane.symbol, backward, forward)
    starts = starts[np.isin(grams_of(what[backward], CHOSEN.again)[starts], np.unique(ran))]
    runs = backward[starts[:, None] + np.arange(CHOSEN.again)]
    several = 1 + (np.diff(np.sort(what[runs])) != 0).sum(axis=1) >= CHOSEN.again_kinds
    differentiates = (lane.backward | lane.input_gradient)[runs].any(axis=1)
    runs = runs[several & lane.layer[runs].any(axis=1) & ~differentiates]
    edges = np.bincount(runs[:, 0], minlength=len(lane) + 1)
    edges = edges - np.bincount(runs[:, -1] + 1, minlength=len(lane) + 1)
    return np.asarray((np.cumsum(edges)[:-1] > 0) & (stage == BP))


def _shared(symbol: Array, own: Array, other: Array) -> Array:
    """Return where as many ops of one pass as make a run begin that the other has as well."""
    shared = np.zeros(int(symbol.max(initial=0)) + 1, np.bool_)
    shared[symbol[other]] = True
    until = np.concatenate(([0], np.cumsum(shared[symbol[own]])))
    return np.flatnonzero(until[CHOSEN.again :] - until[: -CHOSEN.again] == CHOSEN.again)
