"""What the threads that train do not launch: collectives, input pipelines, work without a call."""

from __future__ import annotations

import numpy as np

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution.structure._sequences import distinct
from tracekit.attribution.structure._signs import Lane
from tracekit.attribution.structure._told import Told
from tracekit.attribution.structure._work import (
    H2D,
    IO,
    ME,
    NOTHING,
    P2P,
    WU,
    Array,
    Assumption,
)

INPUT = "a thread that copies to the GPU, to streams of its own, brings input"


def tell_rest(lane: Lane, told: Told) -> tuple[Array, Array, tuple[Assumption, ...]]:
    """Return the stages and steps of all ops of a device whose training is told.

    The third is what is assumed of threads beside it.
    """
    stage, step = told.stage.copy(), told.step.copy()
    exchange = lane.exchange | (lane.work.kind == P2P)
    stage[exchange & (stage != ME)] = WU
    brought = _pipelines(lane, told.core, exchange, stage)
    _without_call(lane, stage)
    _surrounded(lane, step)
    return stage, step, brought


def _pipelines(lane: Lane, core: Array, exchange: Array, stage: Array) -> tuple[Assumption, ...]:
    """Tell what threads do that copy from the host to streams on which nothing is trained.

    They bring input; but where they run layers as a network does, forward passes without backward.
    """
    work = lane.work
    trained = np.unique(work.context_stream[core & lane.kernel])
    other = ~core & ~exchange & (work.thread >= 0)
    on_trained = np.unique(work.thread[other & np.isin(work.context_stream, trained)])
    fed = np.setdiff1d(np.unique(work.thread[other & (work.kind == H2D)]), on_trained)
    beside = other & np.isin(work.thread, fed)
    stage[beside] = IO
    known, forward = np.unique(lane.symbol[core & lane.layer]), 0
    for thread in fed.tolist():
        own = beside & (work.thread == thread)
        layers = lane.layer & own
        several = (
            np.unique(lane.symbol[layers]).size > 1 or np.isin(lane.symbol[layers], known).any()
        )
        if several and layers.sum() >= CHOSEN.layers_beside * (lane.kernel & own).sum():
            stage[own] = ME
            forward += int((work.end - work.start)[own].sum())
    if not beside.any():
        return ()
    layers = int((work.end - work.start)[beside & lane.layer].sum())
    if not forward:
        return (Assumption(INPUT, "holds", layers, f"{layers / 1e6:,.3f} ms of layers on these"),)
    said = (
        f"threads that copy from the host run layers on streams of their own ({forward / 1e6:,.3f}"
        " ms): taken for forward passes without backward (ME), not for input"
    )
    return (Assumption(INPUT, "fails", forward, said),)


def _without_call(lane: Lane, stage: Array) -> None:
    """Ops of which no call is known are of the stage that is alone on their stream."""
    lost = lane.work.thread < 0
    if not lost.any() or lost.all():
        return
    streams, stream = distinct(lane.work.context_stream)
    width = int(stage.max()) + 2
    known = np.bincount(
        stream[~lost] * width + stage[~lost] + 1, minlength=streams.size * width
    ).reshape(streams.size, width)
    clear = known.max(axis=1) >= np.maximum(CHOSEN.alone_on_stream * known.sum(axis=1), 1)
    usual = np.where(clear, known.argmax(axis=1) - 1, NOTHING)
    free = lost & (stage == NOTHING)
    stage[free] = usual[stream[free]]


def _surrounded(lane: Lane, step: Array) -> None:
    """Work beside the steps is of the step whose launches surround its own."""
    own = np.flatnonzero(step >= 0)
    if not own.size:
        return
    launch = lane.work.launch
    numbers, first = np.unique(step[own], return_index=True)
    last = own.size - 1 - np.unique(step[own][::-1], return_index=True)[1]
    begin, end = launch[own[first]], launch[own[last]]
    free = np.flatnonzero(step < 0)
    place = np.searchsorted(begin, launch[free], "right") - 1
    inside = (place >= 0) & (launch[free] <= end[place])
    step[free[inside]] = numbers[place[inside]]
