"""Test the assumptions behind inferred stages and steps: true, false, or not testable.

The doubt of an assumption is the busy time that is assigned to a wrong stage if it fails; it is
unknown, not 0, where no other assignment was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._gaps import Parts
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._pair import Pair, Turns
from tracekit.attribution.structure._sequences import total_in
from tracekit.attribution.structure._step_table import Numbered
from tracekit.attribution.structure._work import (
    BP,
    D2H,
    FP,
    H2D,
    ME,
    NOTHING,
    WU,
    Array,
    Assumption,
)
from tracekit.model import TESTED
from tracekit.support.wording import percent

LAUNCHED = "one thread launches forward passes, others launch backward passes"
NAMED = "kernels that are named after gradients are of backward passes"
LOSS = "a backward pass begins with the gradient of the loss"
LAYERS = "an update contains no layer"
ALONE = "a forward pass that no backward pass follows is evaluation"
LEADS = "what precedes the first layer of a forward pass belongs to it"
UPDATE = "an update ends a step"
SEVERAL = "several updates make a step"
ACCUMULATED = "backward passes without an update accumulate gradients"
PERIOD = "each step launches the same kernels"
ALL = "one thread launches all layers"
NEW = "backward computes no layer of forward again"


def merged(assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """Merge assumptions of the same name: the worst test result counts; doubtful time adds up."""
    by_name: dict[str, list[Assumption]] = {}
    for each in assumptions:
        by_name.setdefault(each.name, []).append(each)
    return tuple(_worst(each) for each in by_name.values())


def _worst(same: list[Assumption]) -> Assumption:
    worst = max(same, key=lambda each: TESTED.index(each.result))
    known = sum(each.doubt_ns or 0 for each in same)
    return replace(worst, doubt_ns=None if worst.doubt_ns is None else known)


def failures(assumptions: Iterable[Assumption]) -> tuple[str, ...]:
    """Return a sentence for each assumption that fails."""
    return tuple(
        f"assumed that {each.name}: {each.said}" for each in assumptions if each.result == "fails"
    )


def of_turns(
    turns: Turns, parts: Parts, pair: Pair, numbered: Numbered, stage: Array, *, fed: bool
) -> tuple[Assumption, ...]:
    """Test the assumptions behind stages inferred from alternating forward and backward threads.

    Parameters
    ----------
    turns
        The ops, split into bursts (backward passes) and gaps between these.
    parts
        Where each gap is cut into weight update and forward pass.
    pair
        The two groups of threads.
    numbered
        Step of each backward pass.
    stage
        Stage of each op of the device, as index in the list of stages.
    fed
        Whether any thread copies large batches to the device after the first backward pass.
    """
    return (
        _who_launches(turns.lane, pair, stage),
        *(_before_losses(turns) if pair.by_names else ()),
        _layers_in_updates(turns, parts, stage),
        *_leads(turns, parts, stage, fed=fed),
        passes_alone(turns.lane, stage, int(numbered.bursts[-1]) + 1),
        _steps(turns, numbered),
        *_accumulated(turns, parts, numbered, stage),
    )


def _who_launches(lane: Lane, pair: Pair, stage: Array) -> Assumption:
    """Test that kernels named after gradients run in the backward passes, not in forward passes."""
    spent = lane.work.end - lane.work.start
    named = lane.backward & ~lane.optimizer
    outside = int(spent[named & np.isin(stage, (FP, ME))].sum())
    inside = int(spent[named & (stage == BP)].sum())
    name = NAMED if pair.by_names else LAUNCHED
    if not outside + inside:
        return Assumption(name, "untested", None, "no kernel is named after gradients")
    evidence = (
        f"of the time of kernels that have names of backward passes alone {outside / 1e6:,.3f} of "
        f"{(outside + inside) / 1e6:,.3f} ms are in forward passes"
    )
    fails = outside > THRESHOLDS.named_before * (outside + inside)
    return Assumption(name, "fails" if fails else "holds", outside, evidence)


def _before_losses(turns: Turns) -> Iterator[Assumption]:
    """Test that no layers of a backward pass lie before a kernel named after the loss's gradient.

    Such layers may be gradients that a forward pass computes, as of an energy (forces).
    """
    lane = turns.lane
    losses = np.append(np.flatnonzero(lane.loss_gradient), len(lane))
    first = losses[np.searchsorted(losses, turns.bursts)]
    has_loss = first < turns.ends
    begin, stop = turns.bursts[has_loss], first[has_loss]
    if not begin.size:
        return
    spent = lane.work.end - lane.work.start
    wrong = total_in(lane.layer, begin, stop) > 0
    before = int(total_in(spent, begin, stop)[wrong].sum())
    evidence = (
        f"layers of {int(wrong.sum()):,} of {begin.size:,} backward passes come before it"
        f" ({before / 1e6:,.3f} ms)"
    )
    fails = before > THRESHOLDS.readings * spent.sum()
    yield Assumption(LOSS, "fails" if fails else "holds", before, evidence)


def _layers_in_updates(turns: Turns, parts: Parts, stage: Array) -> Assumption:
    """Test that weight updates contain no layer kernels (such as matrix products).

    Ops after a backward pass and before the next forward pass count as the update. The assumption
    stays untested if neither input nor a fetched result shows where forward passes begin. If then
    no update was found, and at least as many layers run between backward passes as in them, all
    time between them is in doubt: without frozen weights, a forward pass runs fewer layers.
    """
    lane, spent = turns.lane, turns.lane.work.end - turns.lane.work.start
    first = turns.first[1:]
    wrong = total_in(lane.layer & (stage == WU), first, first + parts.head[1:]) > 0
    length = total_in(spent * lane.layer * (stage == WU), first, first + parts.head[1:])
    if wrong.any():
        evidence = (
            f"{int(wrong.sum()):,} updates contain layers ({int(length.sum()) / 1e6:,.3f} ms), by"
            f" what forward passes begin with ({parts.cut.fed}): an optimizer that multiplies, or"
            " passes alone"
        )
        return Assumption(LAYERS, "fails", int(length.sum()), evidence)
    if parts.cut.fed:
        return Assumption(LAYERS, "holds", 0, f"none before {parts.cut.fed}")
    evidence = "neither input nor a fetched result comes before forward passes"
    between, backward = (
        int(total_in(lane.layer, *edges).sum())
        for edges in ((first, turns.stop[1:]), (turns.bursts, turns.ends))
    )
    if parts.head[1:].any() or between < backward:
        return Assumption(LAYERS, "untested", None, evidence)
    doubt = int(total_in(spent * (stage == FP), first, turns.stop[1:]).sum())
    evidence += (
        f", no update was found, and {between:,} layers lie between backward passes, which run "
        f"{backward:,}: there may be updates that multiply matrices among them"
    )
    return Assumption(LAYERS, "untested", doubt, evidence)


def _leads(turns: Turns, parts: Parts, stage: Array, *, fed: bool) -> Iterator[Assumption]:
    """Doubt kernels before the first layer of forward passes, if they take much time.

    They may prepare input, and make it if no large batch is copied (`fed`): random data, samples of
    a graph that lies on the GPU.
    """
    lane, spent = turns.lane, turns.lane.work.end - turns.lane.work.start
    layers = np.append(np.flatnonzero(lane.layer | lane.lookup), len(lane))
    begin = turns.first + parts.front
    until = np.minimum(layers[np.searchsorted(layers, begin)], turns.stop)
    prepares = lane.kernel & ~lane.fill & (stage == FP)
    length = int(total_in(spent * prepares, begin, until).sum())
    if length <= THRESHOLDS.left * spent.sum():
        return
    evidence = f"{length / 1e6:,.3f} ms of kernels before it count as forward pass"
    if fed or length <= THRESHOLDS.readings * spent.sum():
        yield Assumption(LEADS, "untested", length, f"{evidence}: they may prepare input")
    else:
        made = "no large batch is copied to the GPU in steps: these kernels may make it"
        yield Assumption(LEADS, "fails", length, f"{evidence}, and {made}")


def passes_alone(lane: Lane, stage: Array, steps: int) -> Assumption:
    """Test that forward passes without a backward pass are evaluation, by number and input size.

    `steps` is the number of steps. The result is "untested" if such passes are not far fewer than
    steps: they may be part of each step. The result is also "untested" if the host fetches a result
    for each input copy of the passes, and these copies are much smaller than the median input copy
    of training steps: the passes may choose actions (rollouts of reinforcement learning).
    """
    alone = np.flatnonzero(stage == ME)
    if not alone.size:
        return Assumption(ALONE, "holds", 0, "there is none")
    spent = int((lane.work.end - lane.work.start)[alone].sum())
    times = 1 + int((np.diff(alone) > 1).sum())
    often = "once" if times == 1 else f"{times:,} times"
    evidence = f"found {often}, {spent / 1e6:,.3f} ms, beside {steps:,} steps"
    if times >= THRESHOLDS.few_usual * steps:
        return Assumption(ALONE, "untested", spent, f"{evidence}: they may be part of each step")
    inputs, fetches = lane.work.kind == H2D, int((lane.work.kind[alone] == D2H).sum())
    fed = lane.work.bytes[alone][inputs[alone]]
    batches = lane.work.bytes[lane.batch & inputs & (stage != ME)]
    most, usual = int(fed.max(initial=0)), int(np.median(batches)) if batches.size else 0
    is_less = most < THRESHOLDS.acting_input * usual
    if not is_less or fetches < max(int((fed == most).sum()), 1):
        return Assumption(ALONE, "holds", None, evidence)  # they may be of no evaluation
    evidence += (
        f", with copies of input of at most {most:,} bytes, usual ones of steps {usual:,} bytes"
    )
    return Assumption(ALONE, "untested", spent, f"{evidence}: they may choose actions")


def _steps(turns: Turns, numbered: Numbered) -> Assumption:
    """Test that steps begin with input: a batch is copied from the host before nearly each step."""
    if numbered.unfed:
        return Assumption(UPDATE, "fails", None, numbered.unfed)
    if numbered.several:
        return Assumption(SEVERAL, "holds", None, numbered.several)
    begins = np.flatnonzero(np.diff(numbered.bursts)) + 1
    fed = total_in(turns.lane.batch & (turns.lane.work.kind == H2D), turns.first, turns.stop) > 0
    if not begins.size or not fed[begins].any():
        return Assumption(UPDATE, "untested", None, "its threads copy no input from the host")
    evidence = f"input is copied before {int(fed[begins].sum()):,} of {begins.size:,} steps"
    holds = fed[begins].mean() >= THRESHOLDS.rhythm
    return Assumption(UPDATE, "holds" if holds else "untested", None, evidence)


def _accumulated(
    turns: Turns, parts: Parts, numbered: Numbered, stage: Array
) -> Iterator[Assumption]:
    """Test, with gradient accumulation, that no step has more backward passes than the median step.

    Additional passes may be evaluation that computes gradients.
    """
    if not parts.accumulating or not numbered.steady:
        return
    passes = np.bincount(numbered.bursts)
    usual = int(np.median(passes))
    more = np.flatnonzero(passes > usual)
    if not more.size:
        yield Assumption(ACCUMULATED, "holds", None, f"no step has more than {usual}")
        return
    # Which of its passes are more than usual is not known.
    begin = turns.first[np.searchsorted(numbered.bursts, more)]
    end = turns.ends[np.searchsorted(numbered.bursts, more, side="right") - 1]
    spent = np.where(np.isin(stage, (FP, BP)), turns.lane.work.end - turns.lane.work.start, 0)
    evidence = f"{more.size:,} of {passes.size:,} steps have more than the usual {usual}"
    yield Assumption(ACCUMULATED, "untested", int(total_in(spent, begin, end).sum()), evidence)


def _others_launch(lane: Lane, thread: int) -> Assumption:
    """Test that threads other than `thread` launch little of the GPU time of layer kernels."""
    spent = np.where(lane.layer, lane.work.end - lane.work.start, 0)
    known = lane.work.thread != NOTHING
    layers, unknown = int(spent.sum()), int(spent[~known].sum())
    beside = int(spent[known & (lane.work.thread != thread)].sum())
    evidence = f"other threads launch {beside / 1e6:,.3f} of {layers / 1e6:,.3f} ms of layers"
    if beside > THRESHOLDS.readings * layers:
        return Assumption(ALL, "fails", beside, evidence)
    if beside + unknown > THRESHOLDS.readings * layers:
        return Assumption(
            ALL, "untested", None, f"{evidence}, unknown ones {unknown / 1e6:,.3f} ms"
        )
    return Assumption(ALL, "holds", beside, evidence)


def of_period(
    lane: Lane, stage: Array, *, thread: int, differ_ns: int, recomputed: float, steps: int
) -> Iterator[Assumption]:
    """Yield the tested assumptions behind stages inferred from the period of one thread's launches.

    `differ_ns` is the busy time of kernels that differ from the usual step's at their position;
    `recomputed`, the share of backward's layers in the same order as in forward; `steps`, the
    number of steps.
    """
    yield _others_launch(lane, thread)
    evidence = f"{differ_ns / 1e6:,.3f} ms of other kernels than the usual step has at their place"
    yield Assumption(PERIOD, "holds", differ_ns, evidence)
    share = percent(recomputed)
    backward = int((lane.work.end - lane.work.start)[stage == BP].sum())
    order = f"{share} of the layers of a backward pass are in the same order as in forward"
    yield Assumption(NEW, "holds", int(recomputed * backward), order)
    yield Assumption(LAYERS, "untested", None, "a step is taken to end after its last layer")
    yield passes_alone(lane, stage, steps)
    yield Assumption(UPDATE, "untested", None, "a step is taken to be what repeats")
