"""Estimate stages and steps from the order of launches, if one thread launches all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._assumptions import of_period
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._period import (
    Period,
    Repeats,
    find_period,
    find_repeats,
    period_between,
)
from tracekit.attribution.structure._sequences import distinct
from tracekit.attribution.structure._step import Step, refusal, take_apart, usual_step
from tracekit.attribution.structure._work import (
    D2H,
    H2D,
    ME,
    MEMSET,
    NOTHING,
    Array,
    DeviceStages,
    Doubt,
    nothing,
)
from tracekit.support.wording import count, percent

_LAYERS = 3
"""Mean number of occurrences of a kernel in a pass from which the pass repeats layers, and is no
layer itself."""
_SCALAR = 8
"""Bytes of the largest number type."""


def by_order(lane: Lane) -> DeviceStages:
    """Estimate stages of a device's ops from launch order; if impossible, `evidence` says why."""
    rows = _main_sequence(lane)
    kernels = int(lane.kernel[rows].sum())
    if kernels < THRESHOLDS.order_kernels:
        return _without(lane, f"{count(kernels, 'kernel')}: too few to find a period")
    sequence = lane.take(rows)
    period, first, span = _repeated(sequence)
    kept = rows[~_scalars(sequence)]
    if not _trains(lane) and kept.size < rows.size:
        # What is fetched every few steps, as for a log, makes these repeat together.
        others = lane.take(kept)
        shorter = _repeated(others)
        if 0 < 2 * shorter[0].size <= period.size:
            rows, sequence, (period, first, span) = kept, others, shorter
    if not period.size:
        return _without(
            lane, f"no period: {percent(period.share)} of the launches agree with a later one"
        )
    result = _of_period(_Sequence(lane, rows, sequence, span, period), first)
    if result.method != "refused":
        return result
    # Epochs repeat more exactly than the steps that they are made of.
    inner = find_period(sequence.symbol[first : first + period.size])
    if not inner.size:
        return result
    within = _of_period(_Sequence(lane, rows, sequence, span, inner), first + period.size // 2)
    return within if within.training else result


def _of_period(sequence: _Sequence, first: int) -> DeviceStages:
    """Find stages in a repeating launch sequence, from two periods that begin at op `first`."""
    lane, sequence_lane = sequence.lane, sequence.own
    step = usual_step(sequence_lane, first, sequence.period.size)
    found = find_repeats(sequence_lane.symbol, step.symbol, step.lead)
    if not _trains(lane):
        return _iterates(sequence, _all_whole(sequence) or found, step.symbol)
    apart = take_apart(sequence_lane.take(step.rows), step)
    refused = sequence.too_few or refusal(apart) or _too_few(found, sequence.repeats)
    if refused:
        result = _without(lane, sequence.text, refused)
        return replace(
            result, period=sequence.period.size, repeats=sequence.repeats,
            recomputes=apart.recomputed > THRESHOLDS.recomputed,
        )  # fmt: skip
    return _estimated(sequence, apart, found, step.symbol)


@dataclass(frozen=True)
class _Sequence:
    """Ops that the busiest thread launches on its main stream, and the period of repetition."""

    lane: Lane
    """All work of the device."""
    rows: Array
    own: Lane
    """Indices in `lane` of the ops in the sequence, and the ops themselves."""
    span: slice
    """The part of the sequence in which the period was found, such as from the first update to the
    last."""
    period: Period
    """The period: number of ops after which the sequence repeats."""

    @property
    def repeats(self) -> float:
        """Number of periods in the sequence."""
        return round(int(self.span.stop - self.span.start) / self.period.size, 1)

    @property
    def text(self) -> str:
        """The period as a sentence."""
        return (
            f"launches repeat after {self.period.size:,}, {self.repeats} times"
            f" ({percent(self.period.share)} agree)"
        )

    @property
    def too_few(self) -> str:
        """Sentence that the period repeats too rarely; empty if it repeats often enough."""
        return "too few periods" if self.repeats < THRESHOLDS.order_repeats else ""


def _main_sequence(lane: Lane) -> Array:
    """Return the ops that the busiest thread launches on its main stream, without collectives.

    If several threads alternate on that stream in a process that does not train, all ops of the
    stream are returned.
    """
    work = lane.work
    chosen = lane.kernel.copy()
    thread = work.thread if _trains(lane) else np.zeros_like(work.thread)
    for column in (thread, work.context_stream):
        values, which = distinct(column)
        if chosen.any():
            chosen &= which == np.bincount(which[chosen], minlength=values.size).argmax()
    if not chosen.any():
        return np.zeros(0, np.int64)
    one = int(chosen.argmax())
    same = (thread == thread[one]) & (work.context_stream == work.context_stream[one])
    return np.flatnonzero(same & (work.collective == 0) & (work.kind != MEMSET))


def _scalars(lane: Lane) -> Array:
    """Mask ops that copy a single number (scalar) to the host."""
    work = lane.work
    return np.asarray((work.kind == D2H) & (work.bytes > 0) & (work.bytes <= _SCALAR))


def _repeated(sequence: Lane) -> tuple[Period, int, slice]:
    """Return a sequence's period, the start of a period near its middle, and the part examined.

    If kernel names show at least a few updates, the ops between successive updates are compared: a
    step has one update. Without this help a longer or shorter repetition could be taken for the
    step, as epochs repeat more exactly than steps, and layers more often.
    """
    marks = np.flatnonzero(sequence.optimizer | sequence.layer)
    starts = marks[np.diff(sequence.optimizer[marks].astype(np.int8), prepend=0) == 1]
    span, near = slice(0, len(sequence)), 0.0
    if starts.size >= THRESHOLDS.order_updates:
        near = float(np.median(np.diff(starts)))
        last = int(np.flatnonzero(sequence.optimizer)[-1])
        span = slice(max(int(starts[0] - near), 0), last + 1)
        known = period_between(sequence.symbol, starts)
        if known is not None:
            return *known, span
    period = find_period(sequence.symbol[span], near)
    return period, max(0, (span.start + span.stop) // 2 - period.size), span


def _trains(lane: Lane) -> bool:
    return bool(lane.optimizer.any() or lane.backward.any())


def _without(lane: Lane, *why: str) -> DeviceStages:
    """Return a result without stages, for the reasons `why`.

    Its method is ``refused`` if kernel names are signs of training, else ``none``.
    """
    signs = ", ".join(
        f"{int(mask.sum()):,} {name}"
        for name, mask in (
            ("optimizer kernels", lane.optimizer),
            ("kernels of gradients", lane.backward),
            ("collectives that may exchange gradients", lane.exchange),
        )
        if mask.any()
    )
    if _trains(lane) or (signs and lane.kernel.sum() >= THRESHOLDS.order_kernels):
        why = (*why, f"signs of training ({signs}), but stages cannot be found")
        return nothing(len(lane), *why, training=None)
    return nothing(len(lane), *why, "no sign of training")


def _too_few(found: Repeats, expected: float) -> str:
    steps = found.begins.size
    if steps >= THRESHOLDS.order_steps and steps >= THRESHOLDS.order_alike * expected:
        return ""
    return f"only {steps:,} of about {expected:.0f} steps are like the usual one"


def _all_whole(sequence: _Sequence) -> Repeats | None:
    """Return the repetitions of the period if the sequence is whole periods only; else None."""
    symbols, size = sequence.own.symbol, sequence.period.size
    if symbols.size % size or (symbols[size:] != symbols[:-size]).any():
        return None
    return find_repeats(symbols, symbols[:size], 0)


def _iterates(sequence: _Sequence, found: Repeats, usual: Array) -> DeviceStages:
    """Return the iterations of a process without training; `usual` is one iteration's sequence."""
    size, launches = sequence.period.size, sequence.rows.size
    result = replace(_without(sequence.lane, sequence.text), period=size, repeats=sequence.repeats)
    covered = (found.number >= 0).mean()
    different = np.unique(sequence.own.symbol).size
    refused = result.training is None or bool(sequence.too_few)
    if refused or covered < THRESHOLDS.iterates or different < THRESHOLDS.iterated_symbols:
        return result
    step = result.step.copy()
    step[sequence.rows] = found.number
    # Scalars that the sequence leaves out are of the step in which they are fetched.
    stream = sequence.lane.work.context_stream
    left = _scalars(sequence.lane) & (stream == stream[sequence.rows[0]])
    scalars = np.flatnonzero(left & (step == NOTHING))
    before = np.searchsorted(sequence.rows, scalars) - 1
    step[scalars] = np.where(before < 0, NOTHING, found.number[before])
    steps = int(found.begins.size)
    lane = sequence.lane
    # A layer of experts copies the indices of its tokens; a batch is larger.
    is_small = (lane.work.bytes >= 0) & (lane.work.bytes < THRESHOLDS.batch_bytes)
    batches = (lane.work.kind == H2D) & ~is_small
    inputs = int(batches.sum())
    is_told = 2 * inputs >= steps or not lane.layer.any() or _LAYERS * np.unique(usual).size <= size
    reading = None if is_told else (
        f"steps may be layers of one pass: {size:,} launches that repeat {steps:,} times, without "
        f"a copy of {THRESHOLDS.batch_bytes >> 10} KiB to the GPU in each or shorter repeats inside"
    )  # fmt: skip
    fetched, fed = (
        _copied(lane, sequence.rows, of) / max(steps, 1) for of in (lane.work.kind == D2H, batches)
    )
    if reading is None and max(fetched, fed) >= THRESHOLDS.results_per_step:
        reading = (
            f"a step may be several: {fed:.1f} batches are copied to the GPU"
            if fed > fetched
            else "a step may contain several passes, as requests of a server do: "
            f"{fetched:.1f} results are fetched"
        ) + " in each, after about as many layers"
    return replace(result, step=step, whole=found.whole(size, launches), reading=reading)


def _copied(lane: Lane, rows: Array, copied: Array) -> int:
    """Count the copies, of those in the mask `copied`, that follow a complete pass on one stream.

    `rows` are the ops of that stream. A pass is complete if it has at least half as many layers as
    the largest number between two copies. An inference engine fetches the tokens of each of its
    steps before it launches the next one. Copies on streams with passes of their own, such as those
    of another replica, and copies by other threads are not counted.
    """
    work = lane.work
    on_stream = work.context_stream == work.context_stream[rows[0]]
    others = np.unique(work.context_stream[lane.layer & ~on_stream])
    copies = copied & ~np.isin(work.context_stream, others)
    layers = np.cumsum(lane.layer & on_stream)[copies & np.isin(work.thread, work.thread[rows])]
    passed = np.diff(layers, prepend=0)
    return int((passed >= max(1, passed.max(initial=0) / 2)).sum())


def _estimated(sequence: _Sequence, apart: Step, found: Repeats, usual: Array) -> DeviceStages:
    """Give all ops of the sequence the stages of one step, where steps repeat the same kernels.

    `apart` has the stages of the ops of that step, `usual` their kernel names, and `found` the
    place of each op of the sequence in it.
    """
    lane, rows = sequence.lane, sequence.rows
    stage, step = np.full((2, len(lane)), NOTHING)
    stage[rows] = _stages(sequence.own, apart, found)
    step[rows] = found.number
    _memsets(lane, rows, stage)
    spent, at = sequence.own.work.end - sequence.own.work.start, found.offset
    other = (at >= 0) & (sequence.own.symbol != usual[np.maximum(at, 0)])
    assumed = of_period(
        lane, stage, thread=int(lane.work.thread[rows[0]]), differ_ns=int(spent[other].sum()),
        recomputed=apart.recomputed, steps=int(found.begins.size),
    )  # fmt: skip
    count, is_complete = int(found.begins.size), found.whole(sequence.period.size, rows.size)
    return DeviceStages(
        stage=stage.astype(np.int8),
        step=step.astype(np.int32),
        core=np.isin(lane.work.thread, lane.work.thread[rows[:1]]),
        method="order",
        training=True,
        whole=is_complete,
        evidence=(sequence.text, *apart.evidence),
        contradictions=apart.contradictions,
        usual_gaps=count,
        gaps=max(round(sequence.repeats), count),
        doubts=tuple(
            Doubt(cut, before * count, after * count) for cut, before, after in apart.doubts
        ),
        assumptions=tuple(assumed),
        cut_begin=int(not is_complete[0] or found.pieces[0]),
        cut_end=int(not is_complete[-1] or found.pieces[1]),
        period=sequence.period.size,
        repeats=sequence.repeats,
    )


def _stages(sequence: Lane, apart: Step, found: Repeats) -> Array:
    """Return the stage of each op: that of the corresponding op (by `found`) in the step `apart`.

    Runs of ops between repetitions of that step are evaluation (ME) if they contain layers and no
    kernel of training; else they get no stage.
    """
    stage = np.full(len(sequence), NOTHING)
    result = found.offset >= 0
    stage[result] = apart.stage[found.offset[result]]
    layers = np.concatenate(([0], np.cumsum(sequence.layer)))
    trains = np.concatenate(([0], np.cumsum(sequence.backward | sequence.optimizer)))
    for begin, end in found.between():
        if not layers[end] - layers[begin]:
            stage[begin:end] = NOTHING
        elif trains[end] == trains[begin]:  # else it is a step that differs
            stage[begin:end] = ME
    return stage


def _memsets(lane: Lane, rows: Array, stage: Array) -> None:
    """Give each memset on the stream of the ops `rows` the stage of the op of `rows` before it."""
    stream = lane.work.context_stream[rows[0]]
    sets = np.flatnonzero((lane.work.kind == MEMSET) & (lane.work.context_stream == stream))
    before = np.searchsorted(rows, sets) - 1
    known = before >= 0
    stage[sets[known]] = stage[rows[before[known]]]
