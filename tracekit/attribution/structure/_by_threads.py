"""Infer stages and steps if separate threads launch the backward passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._assumptions import of_turns
from tracekit.attribution.structure._gaps import Parts, has_update, part_gaps
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._pair import Pair, Turns, take_turns
from tracekit.attribution.structure._sequences import (
    alike,
    common_suffix,
    kinds_of,
    ranges_of,
    total_in,
)
from tracekit.attribution.structure._step_table import STEP_READINGS, Numbered, number_bursts
from tracekit.attribution.structure._work import (
    BP,
    D2D,
    D2H,
    FP,
    H2D,
    IO,
    KERNELS,
    ME,
    MEMSET,
    NOTHING,
    SEND_RECV,
    WU,
    Array,
    DeviceStages,
    Doubt,
    nothing,
)
from tracekit.support.wording import percent


def by_threads(lane: Lane, pair: Pair, reading: str | None = None) -> DeviceStages:
    """Infer stages and steps of a device's ops from two groups of threads that alternate.

    `pair` has the groups: one launches forward passes and updates, the other backward passes.
    `reading` is what the user takes for a step: the field `step` of `Rules`.
    """
    copied, launch = lane.work.kind == H2D, lane.work.launch
    fed = bool((lane.batch & copied & (launch > launch[pair.backward].min())).any())
    if not fed:  # batches may be small
        small = copied & (lane.work.bytes >= THRESHOLDS.relayed_bytes)
        lane = replace(lane, batch=lane.batch | small)
    turns, rows = take_turns(lane, pair)
    if turns.bursts.size == 1:
        return nothing(len(lane), "a single backward pass", training=None)
    parts = part_gaps(turns)
    numbered = number_bursts(turns, parts, reading)
    bursts = numbered.bursts
    # Forward passes that fill a pipeline are not evaluation. Processes send activations, as they do
    # to experts, and backward passes that empty the pipeline have no layers between them.
    layers = total_in(turns.lane.layer, turns.first, turns.stop)[1:-1]
    is_pipeline = bool((lane.work.collective == SEND_RECV).any() and not layers.all())
    found_stages = _stages(turns, parts, bursts, pipeline=is_pipeline)
    doubts = _doubts(turns, parts, pair)
    assumed = of_turns(turns, parts, pair, numbered, found_stages.stage, fed=fed)
    stage, step = np.full((2, len(lane)), NOTHING)
    stage[rows], step[rows] = found_stages.stage, found_stages.step
    first, last = _edges(turns, parts, numbered)
    is_complete = np.ones(int(bursts[-1]) + 1, bool)
    is_complete[[0, -1]] = is_complete[[0, -1]] & [first, last]
    if is_complete.size == 1:
        is_complete[0] = first and last
    return DeviceStages(
        stage=stage.astype(np.int8),
        step=step.astype(np.int32),
        core=pair.main | pair.backward,
        method="order" if pair.by_names else "threads",
        training=True,
        whole=is_complete,
        evidence=_evidence(turns, parts, pair, numbered),
        contradictions=_contradictions(turns, parts, pair, numbered, doubts[0].before_ns),
        usual_gaps=parts.usual,
        gaps=turns.bursts.size - 1,
        doubts=doubts,
        assumptions=assumed,
        cut_begin=int(not first or found_stages.begins_in_update),
        cut_end=int(not last or found_stages.ends_in_forward),
        reading=_reading(numbered, reading),
    )


def _reading(numbered: Numbered, reading: str | None) -> str | None:
    """Return a sentence: which definition of a step is in use; `reading` is the user's, or None.

    None if no other definition gives different steps, and the user did not choose a definition.
    """
    taken, others = STEP_READINGS[numbered.reading], numbered.others
    if reading is not None and reading != numbered.reading:
        return f"steps are counted so that {taken}: `--step {reading}` finds none here"
    if not others:
        return None if reading is None else f"steps are counted so that {taken}, as asked"
    instead = ", ".join(f"{STEP_READINGS[name]} (`--step {name}`)" for name in others)
    return f"steps are counted so that {taken}; other steps result if {instead}"


def in_hooks(turns: Turns) -> bool:
    """Test whether weights are updated in hooks, during most backward passes.

    Then optimizer kernels run within these passes.
    """
    return bool(
        (total_in(turns.lane.optimizer, turns.bursts, turns.ends) > THRESHOLDS.barely).mean()
        > THRESHOLDS.order_alike
    )


@dataclass(frozen=True)
class _Stages:
    stage: Array
    step: Array
    begins_in_update: bool
    ends_in_forward: bool


def _stages(turns: Turns, parts: Parts, bursts: Array, *, pipeline: bool) -> _Stages:
    """Return stage and step of each op that the forward and the backward threads launch.

    `bursts` has the step of each backward pass. In a `pipeline`, forward passes before those of the
    next backward pass are of later ones, unless the step has enough without them.
    """
    lane, first, last = turns.lane, turns.first, turns.first.size - 1
    stage, step = np.full((2, len(lane)), NOTHING)
    before = np.concatenate(([NOTHING], bursts))
    after = np.append(bursts, NOTHING)

    def put(begin: Array, end: Array, code: int, steps: Array) -> None:
        places, owner = ranges_of(begin, end)
        stage[places], step[places] = code, steps[owner]

    heads, fronts = first + parts.head, first + parts.front
    fed = _input_at_end(turns, parts)
    heads[last] -= fed
    put(first, heads, WU, before)
    put(fronts, turns.stop, FP, after)
    put(turns.bursts, turns.ends, BP, bursts)
    _place_messages(turns, stage, pipeline=pipeline)
    if in_hooks(turns):
        stage[lane.optimizer & (stage == BP)] = WU
    _lead(lane, stage, fronts, turns.stop)
    tail = _gap_at_start(turns, parts)
    alone = slice(fronts[0] - min(tail, parts.cut.at - parts.cut.head), fronts[0])
    fronts[0] -= tail
    stage[fronts[0] : alone.start] = WU
    if pipeline:
        fills = ~_complete(turns, parts, bursts)
        put(heads[1:-1][fills], fronts[1:-1][fills], FP, after[1:-1][fills])
        heads[1:-1][fills] = fronts[1:-1][fills]
        heads[0] = fronts[0]
    evaluates = _evaluates_at_end(turns, heads, fronts)
    partial = 0 if fed or evaluates else _forward_at_end(turns, parts)
    stage[heads[last] : heads[last] + partial] = FP
    _lead(lane, stage, heads[-1:], heads[-1:] + partial)
    heads[last] += partial
    if pipeline and not evaluates:
        heads[last] = fronts[last]
    _evaluate(turns, parts, stage, heads, fronts)
    usual_front = int(fronts[parts.template])
    stage[alone] = stage[usual_front - (alone.stop - alone.start) : usual_front]
    stage[turns.stop[last] - fed : turns.stop[last]] = IO
    copied = (lane.work.kind == H2D) & (lane.work.bytes >= THRESHOLDS.relayed_bytes)
    stage[(stage == FP) & (copied | _prepares(lane, copied, stage))] = IO
    return _Stages(stage, step, fronts[0] < alone.start, bool(partial))


def _complete(turns: Turns, parts: Parts, bursts: Array) -> Array:
    """Mask gaps of a pipeline whose steps have a forward pass for each backward pass without them.

    The layers right before backward passes, divided by the number of these, are then no fewer than
    in the usual step. `bursts` has the step of each backward pass. The first and the last gap are
    left out, and gaps of the usual kind are not masked.
    """
    layers = total_in(turns.lane.layer, turns.first + parts.front, turns.stop)[:-1]
    passes, forward = np.bincount(bursts), np.bincount(bursts, layers)
    usual = bursts[parts.template]
    complete = (forward * passes[usual] >= forward[usual] * passes)[bursts]
    return np.asarray((complete & (turns.kinds[:-1] != turns.kinds[parts.template]))[1:])


def _evaluates_at_end(turns: Turns, heads: Array, fronts: Array) -> bool:
    """Test whether the recording ends with an evaluation, not within a step's forward passes.

    These are the ops between a gap's update (up to ``heads[n]``) and its last forward pass (from
    ``fronts[n]`` on). Those after the last update either occur in another gap, or hold more layers
    than are launched before any backward pass.
    """
    begin, end = heads[1:], np.append(fronts[1:-1], turns.stop[-1])
    kinds = kinds_of(turns.lane.symbol, begin, end)
    forward = np.append(fronts[:-1], heads[-1])
    layers = total_in(turns.lane.layer, forward, turns.stop)
    again = (kinds[:-1] == kinds[-1]).any() and begin[-1] < end[-1]
    return bool(again or layers[-1] > layers[:-1].max())


def _prepares(lane: Lane, copied: Array, stage: Array) -> Array:
    """Mask the ops of streams to which batches are copied, and on which no layer or update runs."""
    on = np.unique(lane.work.context_stream, return_inverse=True)[1]
    passes = lane.layer | np.isin(stage, (BP, WU))
    fed, computes = (np.bincount(on, each)[on] > 0 for each in (copied, passes))
    prepares: Array = fed & ~computes
    return prepares


def _place_messages(turns: Turns, stage: Array, *, pipeline: bool) -> None:
    """Set the stage of messages between processes that are not known to be of a forward pass.

    In a `pipeline`, those with no kernel but backward passes around them are BP, and those between
    the kernels of a forward and a backward pass are of either, so that their stage is unknown.

    Messages that begin before the kernel before them ends send no result of it. If no layer comes
    before the next backward pass, that waits for them (BP). If none came since the last one, but a
    copy on another stream, and the forward pass sends as well, they are of the next batch (IO); in
    a `pipeline` they may be received.
    """
    lane, work = turns.lane, turns.lane.work
    is_sent = work.collective == SEND_RECV
    sent = np.flatnonzero(is_sent)
    gap = np.searchsorted(turns.first, sent, side="right") - 1
    begin, stop = turns.first[gap], np.maximum(turns.stop[gap], sent)
    kernel = np.maximum.accumulate(np.where(lane.kernel, np.arange(len(lane)), NOTHING))[sent]
    is_early = (stop > sent) & ((kernel < begin) | (work.end[kernel] > work.start[sent]))
    layered = np.unique(work.context_stream[lane.layer])
    copied = (work.kind == H2D) & ~np.isin(work.context_stream, layered)
    layer = lane.layer | lane.lookup
    is_last = (total_in(layer, sent, stop) == 0) & (gap < turns.bursts.size)
    is_fed = (total_in(layer, begin, sent) == 0) & (total_in(copied, begin, sent) > 0)
    is_fed &= (total_in(is_sent, sent, stop) > 1) & (not pipeline)
    if pipeline:
        follows = (stop > sent) & (gap > 0) & (total_in(lane.kernel, begin, sent) == 0)
        precedes = (stop > sent) & (total_in(lane.kernel, sent, stop) == 0)
        precedes &= gap < turns.bursts.size
        stage[sent[follows ^ precedes]] = NOTHING
        stage[sent[follows & precedes]] = BP
    stage[sent[is_early & is_fed]] = IO
    stage[sent[is_early & is_last]] = BP


def _lead(lane: Lane, stage: Array, begin: Array, end: Array) -> None:
    """Set stages of copies and fills (memsets, fill kernels) at the start of forward passes.

    Copies bring input (IO); if there are enough fills, they clear gradients (WU). `begin` and `end`
    are the first op of each forward pass and the op after its last.
    """
    kind = lane.work.kind
    fill = lane.fill | (kind == MEMSET)
    copy = np.isin(kind, (H2D, D2D, D2H))
    places, owner = ranges_of(begin, end)
    # How far each forward pass consists of nothing else.
    other = np.append(np.flatnonzero(~(fill | copy)), len(lane))
    until = np.minimum(other[np.searchsorted(other, begin)], end)
    lead = places[places < until[owner]]
    cleared = total_in(fill, begin, until) >= THRESHOLDS.cleared
    stage[lead[kind[lead] == D2H]] = NOTHING
    stage[lead[np.isin(kind[lead], (H2D, D2D))]] = IO
    rows, of = ranges_of(begin, until)
    stage[rows[cleared[of] & fill[rows]]] = WU


def _input_at_end(turns: Turns, parts: Parts) -> int:
    """Count the input copies at the end of the recording, after its last weight update."""
    lane, last = turns.lane, turns.first.size - 1
    end = int(turns.first[last] + parts.head[last])
    if end < turns.stop[last]:
        return 0
    copied = lane.batch & np.isin(lane.work.kind, (H2D, D2D))
    usual, end_part = (
        copied[turns.gap(parts.template)][: parts.cut.at],
        copied[turns.first[last] : end],
    )
    lengths = [int(np.append(~part[::-1], values=True).argmax()) for part in (usual, end_part)]
    return max(0, lengths[1] - lengths[0])


def _gap_at_start(turns: Turns, parts: Parts) -> int:
    """Count the ops before the recording's first forward pass with which the usual gap ends, too.

    The usual gap (between two backward passes) is an update, and passes without a backward pass if
    any, before its forward pass.
    """
    if not parts.cut.at:
        return 0
    usual, symbol = turns.gap(parts.template), turns.lane.symbol
    start = symbol[: int(parts.front[0])]
    tail = common_suffix(start, symbol[usual][: parts.cut.at])
    return tail if tail >= min(start.size, max(1, parts.cut.at // 2)) else 0


def _forward_at_end(turns: Turns, parts: Parts) -> int:
    """Count the ops at the end of the recording that begin a forward pass cut off there."""
    last = turns.first.size - 1
    usual, symbol = turns.gap(parts.template), turns.lane.symbol
    forward = symbol[usual][parts.cut.at :]
    rest = symbol[turns.gap(last)][int(parts.head[last]) :]
    known = (
        rest.size < forward.size and alike(rest, forward[: rest.size]) > THRESHOLDS.partial_forward
    )
    return rest.size if known else 0


def _evaluate(turns: Turns, parts: Parts, stage: Array, begin: Array, end: Array) -> None:
    """Set the stage of the ops between a gap's weight update and its last forward pass.

    The ops of gap n (between two backward passes) are those from ``begin[n]`` up to ``end[n]``. If
    they contain layers, they are forward passes without a backward pass, that is, evaluation (ME);
    else copies of input among them are IO.
    """
    lane = turns.lane
    layers = total_in(lane.layer, begin, end) > 0
    usual = turns.gap(parts.template)
    network = np.isin(lane.symbol, np.unique(lane.symbol[usual][parts.cut.at :]))
    known = total_in(network, begin, end) > THRESHOLDS.known_network * (end - begin)
    layers[0] &= known[0]  # at its start a program may try its layers out
    places, owner = ranges_of(begin, end)
    stage[places[layers[owner]]] = ME
    copies = ~layers[owner] & (owner > 0) & lane.batch[places] & (lane.work.kind[places] == H2D)
    stage[places[copies]] = IO


def _edges(turns: Turns, parts: Parts, numbered: Numbered) -> tuple[bool, bool]:
    """Test whether the first step was recorded from its start and the last step to its end.

    If steps differ in their number of backward passes, the first step must begin with input, and
    the last must have as many passes as the step with the most.
    """
    size, lengths = turns.stop - turns.first, turns.ends - turns.bursts
    passes = np.bincount(numbered.bursts)
    usual = int(np.median(passes) if numbered.steady else passes.max())
    if numbered.steady:
        first = _begins_whole(turns, parts, numbered) and bool(passes[0] >= usual)
    else:
        first = bool(turns.lane.batch[turns.gap(0)].any())
    updates = has_update(turns, parts)
    if updates[parts.template]:
        ends = np.flatnonzero(np.diff(numbered.bursts)) + 1
        update = np.median(parts.head[ends]) if ends.size else parts.cut.head
        last = bool(size[-1] >= update and updates[-1] and passes[-1] >= usual)
    else:
        # Where an update is seen once only, at the end, it is not known how long one is.
        last = bool(lengths[-1] >= THRESHOLDS.short_pass * np.median(lengths)) and not updates[-1]
    return first, last


def _begins_whole(turns: Turns, parts: Parts, numbered: Numbered) -> bool:
    """Test whether the first forward pass begins as those of later steps: with input, or kernels.

    With input if as many layers follow it as in the shortest of these passes, for a program may try
    kernels first. With all kernels that the usual one begins with, though fills and copies may be
    missing: the first step has no gradients to clear, and its input may have been copied before the
    recording began.
    """
    lane, begins = turns.lane, np.flatnonzero(np.diff(numbered.bursts)) + 1
    copied = lane.batch & (lane.work.kind == H2D)
    fed = np.flatnonzero(copied[: turns.stop[0]])
    if begins.size and fed.size:
        front = (turns.first + parts.front)[begins]
        layers = total_in(lane.layer, np.append(front, fed[0]), turns.stop[np.append(begins, 0)])
        if layers[-1] >= layers[:-1].min() and total_in(copied, front, turns.stop[begins]).all():
            return True
    place = turns.gap(parts.template)
    usual = slice(place.start + parts.cut.at, place.stop)
    lead = int(np.append(lane.layer[usual], values=True).argmax())
    first = slice(0, int(turns.stop[0]) - (usual.stop - usual.start - lead))
    if first.stop < 0:
        return False
    lead_of_usual = slice(usual.start, usual.start + lead)
    fills = [int(lane.fill[part].sum()) for part in (first, lead_of_usual)]
    counts = np.isin(lane.work.kind, KERNELS) & ~lane.fill
    rest = [lane.symbol[part][counts[part]] for part in (first, lead_of_usual)]
    if fills[0] and not fills[1] and not parts.cut.at:
        return False  # of steps with several passes it is not known how many are cleared
    return (not fills[0] or fills[0] >= fills[1]) and common_suffix(*rest) == rest[1].size


def _doubts(turns: Turns, parts: Parts, pair: Pair) -> tuple[Doubt, ...]:
    """Return per pair of adjacent stages the busy time next to their cut whose stage is in doubt.

    At the cut between update and forward pass, this is the time between the earliest and latest
    possible cut, summed over all gaps of the usual kind. If backward passes were found by kernel
    names, their time before the first and after the last gradient kernel is in doubt as well.
    """
    place, work = turns.gap(parts.template), turns.lane.work
    same = turns.kinds[1:-1] == turns.kinds[parts.template]
    starts = turns.first[1:-1][same]
    spent, cut = work.end - work.start, parts.cut
    edges = [starts + place for place in (cut.low, cut.at, cut.high)]
    before, after = (int(total_in(spent, *two).sum()) for two in (edges[:2], edges[1:]))
    fed = bool(turns.lane.batch[place][cut.at : cut.high].any())
    name = "update | input" if fed else "update | forward"
    update = Doubt(name, before, after)
    first = last = 0
    if pair.by_names:
        named = np.flatnonzero(turns.lane.backward)
        begin = named[np.minimum(np.searchsorted(named, turns.bursts), named.size - 1)]
        end = named[np.maximum(np.searchsorted(named, turns.ends) - 1, 0)] + 1
        first = int(total_in(spent, turns.bursts, begin).sum())
        last = int(total_in(spent, end, turns.ends).sum())
    return (update, Doubt("forward | backward", 0, first), Doubt("backward | update", last, 0))


def _evidence(turns: Turns, parts: Parts, pair: Pair, numbered: Numbered) -> tuple[str, ...]:
    cut, gaps = parts.cut, turns.bursts.size - 1
    size = int(turns.stop[parts.template] - turns.first[parts.template])
    speaks = [name for name, vote in pair.votes.items() if vote > 0]
    launched = (
        f"backward is launched by a separate thread: {pair.turns:,} turns on the stream of the"
        f" others, {percent(pair.steady)} of them begin at the same places"
    )
    lines = [launched, f"roles of threads are known by {', '.join(speaks)}"]
    if pair.by_names:
        lines = [f"one thread launches all: names of gradients show {pair.turns:,} backward passes"]
    usual = (
        f"{parts.usual:,} of {gaps:,} gaps between backward passes are the usual {size:,} ops,"
        f" cut after {cut.at:,}: {cut.why}"
    )
    lines.append(usual)
    if parts.accumulating:
        lines.append(
            f"gradients are accumulated: {parts.accumulating:,} gaps contain no update, "
            f"and {turns.bursts.size:,} backward passes make {int(numbered.bursts[-1]) + 1:,} steps"
        )
    if numbered.several:
        lines.append(numbered.several)
    if in_hooks(turns):
        lines.append("weights are updated within backward passes, by kernels with known names")
    return tuple(lines)


def _contradictions(
    turns: Turns, parts: Parts, pair: Pair, numbered: Numbered, doubtful: int
) -> tuple[str, ...]:
    """Return what speaks against the stages; `doubtful` is the time before cuts of updates, ns."""
    several = numbered.several
    gaps, lengths = turns.bursts.size - 1, turns.ends - turns.bursts
    short = int((lengths[1:-1] < THRESHOLDS.short_pass * np.median(lengths)).sum())
    against = [name for name, vote in pair.votes.items() if vote < 0]
    found = []
    work, place, cut = turns.lane.work, turns.gap(parts.template), parts.cut
    rest = slice(place.start + cut.low, place.start + cut.at)
    fetched = np.flatnonzero(work.kind[rest] == D2H)
    between = fetched.size and turns.lane.kernel[rest][fetched[0] :].any()
    if cut.low and between and doubtful > THRESHOLDS.left * (work.end - work.start).sum():
        found.append(
            "between updates and forward passes the host fetches results, and launches more: what"
            f" counts as update there ({doubtful / 1e6:,.3f} ms) may prepare input, or measure"
        )
    if against:
        found.append(f"against these roles speaks: {', '.join(against)}")
    if short and not several:
        found.append(
            f"{short:,} of {lengths.size:,} backward passes are shorter than the others: steps"
            " differ, or the recording has holes"
        )
    if parts.usual < THRESHOLDS.few_usual * gaps and not several:
        found.append(
            f"only {parts.usual:,} of {gaps:,} gaps between backward passes have the same ops"
        )
    return tuple(found)
