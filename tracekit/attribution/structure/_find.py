"""Infer stages and steps of a process from its launches: device by device, then joined.

Work that the training threads do not launch comes last: collectives, input pipelines, and ops
without a known call.

Ops that do not fit in memory are examined in pieces. A piece of the ops ends in the middle of a
step. So its last two steps are examined again with the next piece: the last step because it is cut,
the step before it because ops launched in it may start later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import polars as pl

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._assumptions import failures, merged
from tracekit.attribution.structure._bursts import find_bursts, has_unfed
from tracekit.attribution.structure._by_order import by_order
from tracekit.attribution.structure._by_threads import by_threads
from tracekit.attribution.structure._kernel_hints import Lane, look_at
from tracekit.attribution.structure._pair import find_pair
from tracekit.attribution.structure._sequences import distinct, grams_of
from tracekit.attribution.structure._step_table import table_of
from tracekit.attribution.structure._work import (
    BP,
    FP,
    H2D,
    IO,
    ME,
    NOTHING,
    P2P,
    STEPS,
    WU,
    Array,
    Assumption,
    DeviceStages,
    Doubt,
    Structure,
    Work,
)

READINGS = "names of gradients and the period of launches give the same stages"
METHODS = ("threads", "order", "refused", "none")
"""Methods, from the best evidence to none."""
_SIZES = 1 << 42
"""A number larger than the threads of any launch."""


def find_structure(work: Work, reading: str | None = None) -> Structure:
    """Infer stages and steps of a process from the threads and the order of its launches.

    A pure function; it takes time linear in the ops, except for sorting. If stages stay unknown the
    result has method ``refused`` and the reason. `reading` is the user's definition of a step, see
    `STEP_READINGS`, or None.
    """
    devices = np.unique(work.device)
    rows = [np.flatnonzero(work.device == device) for device in devices]
    return _joined(work, devices, rows, [_stages(work.take(part), reading) for part in rows])


def _stages(work: Work, reading: str | None = None) -> DeviceStages:
    """Infer stages and steps of the ops on one device.

    `reading` is the user's definition of a step, see `STEP_READINGS`, or None.
    """
    lane = look_at(work)
    pair = find_pair(lane)
    if pair is not None and pair.trains:
        result = by_threads(lane, pair, reading)
    else:
        result = _of_one_thread(lane, reading)
    if not result.training:
        return result
    result = _with_others(lane, result)
    stage, step, brought = tell_rest(lane, result)
    assumed = merged((*result.assumptions, *brought))
    known = " ".join(result.contradictions)
    failed = (text for text in failures(assumed) if text.partition(": ")[2] not in known)
    return replace(
        result, stage=stage, step=step, assumptions=assumed,
        # Names alone do not part a forward pass between two backward passes from one run again.
        again=recomputed(lane, stage) if result.method == "threads" else result.again,
        contradictions=(*result.contradictions, *failed),
    )  # fmt: skip


def _of_one_thread(lane: Lane, reading: str | None) -> DeviceStages:
    """Infer stages of one thread's launches from their period and from names of gradient kernels.

    The two methods rest on different evidence. If they agree, both are combined: the period gives
    the start of a pass more exactly, and names also cover ops that do not repeat. Otherwise names
    decide, since the method by period fails for updates with layers, input in the middle of a
    forward pass, or several passes in a step. `reading` is the user's definition of a step, or
    None.
    """
    by_period, bursts = by_order(lane), find_bursts(lane)
    if by_period.training is False or bursts is None:
        return by_period
    by_names = by_threads(lane, bursts, reading)
    again = by_period.recomputes and has_unfed(lane, bursts)
    if not by_names.training or again:
        return by_period
    by_names = replace(by_names, period=by_period.period, repeats=by_period.repeats)
    if not by_period.training:
        return by_names
    spent = lane.work.end - lane.work.start
    both = (by_period.stage != NOTHING) & (by_names.stage != NOTHING)
    differ = int(spent[both & (by_period.stage != by_names.stage)].sum())
    contradiction = f"by the period of its launches {differ / 1e6:,.3f} ms are of other stages"
    if differ > THRESHOLDS.readings * spent.sum():
        apart = Assumption(READINGS, "fails", differ, contradiction)
        return replace(by_names, assumptions=(*by_names.assumptions, apart))
    stage = np.where(by_period.stage != NOTHING, by_period.stage, by_names.stage)
    # Names looked for what the period takes for granted.
    tested = {each.name for each in by_names.assumptions}
    left = (each for each in by_period.assumptions if each.name not in tested)
    agree = Assumption(READINGS, "holds", differ, contradiction)
    return replace(
        by_names if reading else _steadier(by_period, by_names), stage=stage,
        doubts=by_period.doubts, assumptions=(*by_names.assumptions, *left, agree),
        reading=by_names.reading,
    )  # fmt: skip


def _steadier(by_period: DeviceStages, by_names: DeviceStages) -> DeviceStages:
    """Choose between two results for the same ops: by the period, or by kernel names.

    The result by period is chosen if both have equally many steps, else that by names, which also
    finds steps that do not repeat. If few steps repeat, a sentence against the result is added: a
    step may be part of a longer one.
    """
    steps, others = by_names.whole.size, by_period.whole.size
    if steps == others:
        return by_period
    if others >= THRESHOLDS.order_alike * steps:
        return by_names
    note = f"{others:,} of {steps:,} steps repeat: what counts as a step may be part of one"
    return replace(by_names, contradictions=(*by_names.contradictions, note))


def _with_others(lane: Lane, result: DeviceStages) -> DeviceStages:
    """Return `result` with the stages of further training loops, run by other threads."""
    beside = 0
    while result.method == "threads":
        rest = np.flatnonzero(~result.core)
        if lane.kernel[rest].sum() < 2 * THRESHOLDS.side_kernels:
            break
        remaining = lane.take(rest)
        pair = find_pair(remaining)
        if pair is None or not pair.trains:
            break
        other = by_threads(remaining, pair)
        stage, core = result.stage.copy(), result.core.copy()
        stage[rest[other.core]] = other.stage[other.core]
        core[rest[other.core]] = True
        beside += other.whole.size
        result = replace(
            result, stage=stage, core=core, doubts=summed_doubts([result, other]),
            assumptions=(*result.assumptions, *other.assumptions),
        )  # fmt: skip
        if not other.core.any():
            break
    if not beside:
        return result
    sentence = (
        f"several trainings run beside each other: steps are those of the largest, and {beside:,}"
        " steps of others lie within these"
    )
    return replace(result, contradictions=(*result.contradictions, sentence))


def _joined(
    work: Work, devices: Array, rows: Sequence[Array], results: Sequence[DeviceStages]
) -> Structure:
    """Join the inferred stages and steps of all devices of a process.

    The steps are taken from the device with the best method (by threads, else by launch order); if
    several are equal, from the one with the most steps.
    """
    stage = np.full(len(work), NOTHING, np.int8)
    step = np.full(len(work), NOTHING, np.int32)
    again = np.zeros(len(work), bool)
    if not results:
        empty = pl.DataFrame(schema=STEPS)
        return Structure(
            stage=stage, step=step, again=again, steps=empty, method="none", training=False
        )
    order = sorted(
        range(len(results)),
        key=lambda n: (METHODS.index(results[n].method), -results[n].whole.size, -rows[n].size),
    )
    leader = results[order[0]]
    same = [n for n in order if results[n].method == leader.method]
    for number in same:
        stage[rows[number]] = results[number].stage
        if results[number].again.size:
            again[rows[number]] = results[number].again
    step[rows[order[0]]] = leader.step
    steps = table_of(step, work.launch, leader.whole)
    for number in same[1:]:
        step[rows[number]] = _numbered(results[number].step, work.launch[rows[number]], steps)
    # What else these threads launch within a step, on any GPU, is part of it.
    drives = np.isin(work.thread, work.thread[step >= 0])
    _surrounded(work, step, drives & (step == NOTHING))
    steps = table_of(step, work.launch, leader.whole)
    joined = [results[number] for number in same]
    by_device = [(int(devices[n]), results[n]) for n in order]
    return Structure(
        stage=stage,
        step=step,
        again=again,
        steps=steps,
        method=leader.method,
        training=leader.training,
        evidence=_texts(by_device, lambda each: each.evidence),
        contradictions=_texts(by_device, lambda each: each.contradictions),
        usual_gaps=sum(each.usual_gaps for each in joined),
        gaps=sum(each.gaps for each in joined),
        doubts=summed_doubts(joined),
        assumptions=merged(chain.from_iterable(each.assumptions for each in joined)),
        cut_begin=leader.cut_begin,
        cut_end=leader.cut_end,
        period=leader.period,
        repeats=leader.repeats,
        reading=leader.reading,
    )


def _numbered(step: Array, launch: Array, steps: pl.DataFrame) -> Array:
    """Renumber a device's steps: each becomes the row in `steps` that contains its middle launch.

    `steps` is the table of the process's steps. `step` and `launch` are the step and the launch
    time, ns, of each op of the device.
    """
    in_steps = np.flatnonzero(step >= 0)
    if not in_steps.size or not steps.height:
        return np.full_like(step, NOTHING)
    _, which = np.unique(step[in_steps], return_inverse=True)
    # The middle launch of a step: at its beginning devices are launched one after the other.
    order = np.argsort(which, kind="stable")
    count = np.bincount(which)
    middle = launch[in_steps[order[np.cumsum(count) - count + count // 2]]]
    place = np.searchsorted(steps["start"].to_numpy(), middle, "right") - 1
    out = np.full_like(step, NOTHING)
    out[in_steps] = np.maximum(place, 0)[which]
    return out


def summed_doubts(joined: Sequence[DeviceStages | Structure]) -> tuple[Doubt, ...]:
    """Add up the doubtful busy time of several results, for each kind of cut (`Doubt.cut`)."""
    before, after = Counter[str](), Counter[str]()
    for doubt in chain.from_iterable(result.doubts for result in joined):
        before[doubt.cut] += doubt.before_ns
        after[doubt.cut] += doubt.after_ns
    return tuple(Doubt(cut, before[cut], after[cut]) for cut in before)


def _texts(
    by_device: Sequence[tuple[int, DeviceStages]], of: Callable[[DeviceStages], tuple[str, ...]]
) -> tuple[str, ...]:
    """Return sentences of all devices' results, each with its device if there are several.

    `of` takes the sentences from a result.
    """
    if len(by_device) == 1:
        return of(by_device[0][1])
    return tuple(
        chain.from_iterable(
            (f"device {device}: {text}" for text in of(result)) for device, result in by_device
        )
    )


INPUT = "a thread that copies to the GPU, on separate streams, brings input"


def tell_rest(lane: Lane, result: DeviceStages) -> tuple[Array, Array, tuple[Assumption, ...]]:
    """Infer stages and steps of those ops of a device that training threads did not launch.

    `result` has the stages and steps of ops that training threads launched. Returned are the stage
    of every op, the step of every op, and the tested assumptions about the other threads.
    """
    stage, step = result.stage.copy(), result.step.copy()
    exchange = lane.exchange | (lane.work.kind == P2P)
    stage[exchange & (stage != ME)] = WU
    brought = _pipelines(lane, result.core, exchange, stage)
    _without_call(lane, stage)
    _surrounded(lane.work, step, step == NOTHING)
    return stage, step, brought


def _pipelines(lane: Lane, core: Array, exchange: Array, stage: Array) -> tuple[Assumption, ...]:
    """Find stages of threads that copy input on streams of their own; return tested assumptions.

    These threads launch neither ops of training (`core`) nor collectives (`exchange`). Their copies
    are input (or evaluation, if no training kernel runs meanwhile and evaluation follows). If these
    threads launch layers of a network, their ops are forward passes without backward.
    """
    work = lane.work
    trained = np.unique(work.context_stream[core & lane.kernel])
    other = ~core & ~exchange & (work.thread >= 0)
    on_trained = np.unique(work.thread[other & np.isin(work.context_stream, trained)])
    fed = np.setdiff1d(np.unique(work.thread[other & (work.kind == H2D)]), on_trained)
    beside = other & np.isin(work.thread, fed)
    stage[beside] = IO
    # What a pipeline computes on the GPU is ahead of what it is for.
    computes = np.isin(work.thread, work.thread[beside & lane.kernel])
    copies = np.flatnonzero(beside & ~computes)
    stage[copies[_evaluation_waits(work, np.flatnonzero(core & lane.kernel), stage, copies)]] = ME
    known, forward = np.unique(lane.symbol[core & lane.layer]), 0
    for thread in fed.tolist():
        of_thread = beside & (work.thread == thread)
        layers = lane.layer & of_thread
        several = (
            np.unique(lane.symbol[layers]).size > 1 or np.isin(lane.symbol[layers], known).any()
        )
        if several and layers.sum() >= THRESHOLDS.layers_beside * (lane.kernel & of_thread).sum():
            stage[of_thread] = ME
            forward += int((work.end - work.start)[of_thread].sum())
    if not beside.any():
        return ()
    layers = int((work.end - work.start)[beside & lane.layer].sum())
    if not forward:
        return (Assumption(INPUT, "holds", layers, f"{layers / 1e6:,.3f} ms of layers on these"),)
    sentence = (
        f"threads that copy from the host run layers on separate streams ({forward / 1e6:,.3f}"
        " ms): taken for forward passes without backward (ME), not for input"
    )
    return (Assumption(INPUT, "fails", forward, sentence),)


def _evaluation_waits(work: Work, trained: Array, stage: Array, copies: Array) -> Array:
    """Mask input copies during which no op of training runs, and which evaluation follows.

    `copies` and `trained` are indices of ops, `stage` is the stage of each op; `trained` are ops of
    training threads, of which the next one to start must be evaluation (ME).
    """
    trained = trained[np.argsort(work.start[trained], kind="stable")]
    place = np.searchsorted(work.start[trained], work.start[copies])
    ended = np.concatenate(([work.start.min()], np.maximum.accumulate(work.end[trained])))[place]
    begun = np.append(work.start[trained], work.end.max())[place]
    evaluates = np.append(stage[trained] == ME, values=False)[place]
    return evaluates & (ended <= work.start[copies]) & (work.end[copies] <= begun)


def _without_call(lane: Lane, stage: Array) -> None:
    """Give ops without a known call the stage of nearly all other ops on their stream.

    They stay without a stage if no stage has the share `Thresholds.alone_on_stream` of these ops,
    and keep a stage that they have already.
    """
    lost = lane.work.thread < 0
    if not lost.any() or lost.all():
        return
    streams, stream = distinct(lane.work.context_stream)
    width = int(stage.max()) + 2
    known = np.bincount(
        stream[~lost] * width + stage[~lost] + 1, minlength=streams.size * width
    ).reshape(streams.size, width)
    clear = known.max(axis=1) >= np.maximum(THRESHOLDS.alone_on_stream * known.sum(axis=1), 1)
    usual = np.where(clear, known.argmax(axis=1) - 1, NOTHING)
    free = lost & (stage == NOTHING)
    stage[free] = usual[stream[free]]


def _surrounded(work: Work, step: Array, free: Array) -> None:
    """Give each op in the mask `free` the step between whose first and last launch it is launched.

    An op that is launched between two steps keeps none.
    """
    in_steps = np.flatnonzero(step >= 0)
    if not in_steps.size:
        return
    launch = work.launch
    numbers, first = np.unique(step[in_steps], return_index=True)
    last = in_steps.size - 1 - np.unique(step[in_steps][::-1], return_index=True)[1]
    begin, end = launch[in_steps[first]], launch[in_steps[last]]
    rows = np.flatnonzero(free)
    place = np.searchsorted(begin, launch[rows], "right") - 1
    inside = (place >= 0) & (launch[rows] <= end[place])
    step[rows[inside]] = numbers[place[inside]]


def recomputed(lane: Lane, stage: Array) -> Array:
    """Mask ops of backward passes that recompute a part of a forward pass.

    A backward pass runs through the layers in reverse. So kernels in the order and with the launch
    sizes of a forward pass are a recomputation, if at least `Thresholds.again` follow each other,
    with a layer and no gradient kernel among them. Memsets and copies between them are marked, too.
    """
    computes = lane.kernel & ~lane.fill
    forward, backward = (np.flatnonzero(computes & (stage == each)) for each in (FP, BP))
    keys = lane.symbol * _SIZES + lane.work.size
    ran = grams_of(keys[forward], THRESHOLDS.again)[_shared(lane.symbol, forward, backward)]
    starts = _shared(lane.symbol, backward, forward)
    starts = starts[np.isin(grams_of(keys[backward], THRESHOLDS.again)[starts], np.unique(ran))]
    runs = backward[starts[:, None] + np.arange(THRESHOLDS.again)]
    several = 1 + (np.diff(np.sort(keys[runs])) != 0).sum(axis=1) >= THRESHOLDS.again_kinds
    differentiates = (lane.backward | lane.input_gradient)[runs].any(axis=1)
    runs = runs[several & lane.layer[runs].any(axis=1) & ~differentiates]
    edges = np.bincount(runs[:, 0], minlength=len(lane) + 1)
    edges = edges - np.bincount(runs[:, -1] + 1, minlength=len(lane) + 1)
    return np.asarray((np.cumsum(edges)[:-1] > 0) & (stage == BP))


def _shared(symbol: Array, ops: Array, other: Array) -> Array:
    """Return the starts of runs of ops in `ops` whose kernel names all occur in `other`.

    A run is `Thresholds.again` successive ops; `symbol` has the name of each op as an integer.
    """
    shared = np.zeros(int(symbol.max(initial=0)) + 1, np.bool_)
    shared[symbol[other]] = True
    until = np.concatenate(([0], np.cumsum(shared[symbol[ops]])))
    return np.flatnonzero(
        until[THRESHOLDS.again :] - until[: -THRESHOLDS.again] == THRESHOLDS.again
    )


# -- a process whose ops do not fit in memory

_OPEN = 2
"""Number of steps at the end of a piece that are examined again."""
_MOST_OPEN = 0.5
"""Largest share of a piece that these may take: with longer steps a piece is too short."""


class Pieces:
    """Collects the stages and steps found in successive pieces of a process's ops.

    A piece is as many ops as fit in memory.
    """

    def __init__(self) -> None:
        self.open: list[pl.DataFrame] = []
        """Ops with which the next piece begins."""
        self._found: list[Structure] = []
        self._ops: Counter[int] = Counter()
        self._steps = 0

    def add(
        self, ops: pl.DataFrame, found: Structure, *, is_last: bool
    ) -> tuple[Array, dict[str, Array]]:
        """Add the stages and steps inferred in a piece of the ops; return those that are final.

        Parameters
        ----------
        ops
            Ops of the piece: ``op`` and the columns that the next piece needs, in the order in
            which `find_structure` got them.
        found
            Stages and steps inferred in the piece.
        is_last
            Whether this is the last piece.

        Returns
        -------
        The ids of the ops whose result is final; and of each its ``stage``, its ``step``, and
        whether it recomputes a part of a forward pass (``again``).
        """
        complete = found.steps.height - (0 if is_last else _OPEN)
        is_open = found.step >= complete
        if complete > 0 and not is_last:
            is_open |= (found.step == NOTHING) & (
                ops["launch"].to_numpy() >= found.steps["start"][complete]
            )
        if complete <= 0 or is_open.mean() > _MOST_OPEN:
            complete, is_open = found.steps.height, np.zeros(len(ops), np.bool_)
        self.open = [ops.filter(pl.Series(is_open))] if is_open.any() else []
        step = np.where(found.step >= 0, found.step + self._steps, NOTHING)[~is_open]
        self._ops.update(dict(zip(*_counted(step), strict=True)))
        steps = found.steps[:complete].with_columns(pl.col("step") + self._steps)
        self._steps += complete
        nothing = np.empty(0, np.int8)
        self._found.append(replace(found, stage=nothing, step=nothing, again=nothing, steps=steps))
        is_told = (found.stage != NOTHING) & (found.method == "threads")
        again = np.where(is_told, found.again, NOTHING)[~is_open].astype(np.int8)
        columns = {"stage": found.stage[~is_open], "step": step, "again": again}
        return ops["op"].to_numpy()[~is_open], columns

    def joined(self, most: int) -> Structure:
        """Join the results of all pieces, each of up to `most` ops.

        Steps have a further column ``ops``, the number of ops. Evidence is taken from the pieces
        with the best method. Stages and steps of single ops are left out, since the method `add`
        returned them.
        """
        best = min(METHODS.index(found.method) for found in self._found)
        same = [found for found in self._found if found.method == METHODS[best]]
        steps = pl.concat([found.steps for found in self._found])
        ops = [self._ops[step] for step in steps["step"].to_list()]
        joined = replace(same[0], steps=steps.with_columns(ops=pl.Series(ops, dtype=pl.Int64)))
        if len(self._found) == 1:
            return joined
        texts = chain.from_iterable(found.contradictions for found in same)
        evidence = f"looked at in {len(self._found)} pieces of up to {most:,} ops, for --memory"
        return replace(
            joined,
            evidence=(*joined.evidence, evidence),
            contradictions=tuple(dict.fromkeys(texts)),
            usual_gaps=sum(found.usual_gaps for found in same),
            gaps=sum(found.gaps for found in same),
            doubts=summed_doubts(same),
            assumptions=merged(chain.from_iterable(found.assumptions for found in same)),
            cut_begin=self._found[0].cut_begin,
            cut_end=self._found[-1].cut_end,
            period=next((found.period for found in same if found.period), None),
            repeats=round(sum(found.repeats or 0 for found in same), 1) or None,
        )


def _counted(step: Array) -> tuple[list[int], list[int]]:
    """Return the distinct steps, and the number of ops of each."""
    steps, counts = np.unique(step[step >= 0], return_counts=True)
    return steps.tolist(), counts.tolist()
