"""Group backward passes into steps, and make the table of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._gaps import Parts, has_update
from tracekit.attribution.structure._pair import Turns
from tracekit.attribution.structure._sequences import ranges_of, total_in
from tracekit.attribution.structure._work import D2D, D2H, H2D, STEPS, Array

STEP_READINGS = {
    "update": "an update ends a step",
    "input": "new input begins a step",
    "period": "updates that repeat together are a step",
}
"""Definitions of a step that a user may choose between, if several are right."""


@dataclass(frozen=True)
class Numbered:
    """Backward passes (bursts) grouped into steps."""

    bursts: Array
    """Per backward pass: number of its step."""
    several: str | None = None
    """Evidence, in words, that a step has several weight updates; None if steps have one update."""
    steady: bool = True
    """Whether all steps have equally many updates."""
    unfed: str | None = None
    """Evidence, in words, that steps might have more or fewer updates than assumed, or None."""
    reading: str = "update"
    """Definition of a step in use, one of `STEP_READINGS`."""
    others: tuple[str, ...] = ()
    """Names of other definitions that would give different steps."""


def number_bursts(turns: Turns, parts: Parts, reading: str | None = None) -> Numbered:
    """Assign backward passes to steps, and name the evidence.

    A step ends with an update; with gradient accumulation it has further backward passes without an
    update. Several updates are one step in these cases: new input follows every n-th update;
    different networks are updated in turn (as in a GAN); or new input follows only one of the
    updates, and the host fetches a result in each other one (as L-BFGS does). `reading` is what the
    user takes for a step (field `step` of `Rules`), and overrides this.
    """
    count = turns.bursts.size
    updates = has_update(turns, parts)
    of_gaps = total_in(turns.lane.optimizer, turns.first, turns.stop)
    named = of_gaps[1:count]
    if not updates[parts.template] and not named.any():
        # Each backward pass is a step, unless all accumulate for an update at the end: then no gap
        # before launches more than the forward pass that the recording begins with.
        in_passes = total_in(turns.lane.optimizer, turns.bursts, turns.ends).any()
        alike = (turns.kinds[:count] == turns.kinds[0]).all()
        return Numbered(np.arange(count) * int(in_passes or not of_gaps[count] or not alike))
    if parts.accumulating and named.any():  # what others begin with is of their forward pass
        updates[1:count] &= named > 0
    begins = np.flatnonzero(updates[1:count]) + 1
    # Input that a forward pass begins with: evaluation before it has input of its own.
    begin, stop = (turns.first + parts.front)[begins], turns.stop[begins]
    fed = total_in(turns.lane.batch, begin, stop) > 0
    networks = networks_of(turns)[np.append(begins[1:] - 1, count - 1)]  # a step's last one's
    size = _rhythm(2 * networks + fed, THRESHOLDS.updates_of_step)
    once = abs(int(fed.sum()) - begins.size / max(size, 1)) <= 1
    if size and (once or np.unique(networks).size > 1):
        first, several = _begins(turns, parts, begins, fed, size, once=once)
        both = "each update has separate input, though several networks take turns"
        unfed = both if fed.all() else None
        found = Numbered(
            _counted(first, count), several, unfed=unfed, reading="input" if once else "period"
        )
        return _read(found, {"update": begins, "input": begins[fed], "period": first}, reading)
    inputs = begins[fed]
    unfed = _unfed(turns, begins, inputs)
    found = Numbered(_counted(begins, count), unfed=unfed)
    if not inputs.size and _searches(turns, parts, begins, inputs):
        reason = "the host decides by results in the midst of updates, and copies no input"
        found = replace(found, unfed=reason)
    elif unfed and _searches(turns, parts, begins, inputs):
        several = f"{unfed}, and the host decides by results in each: those between are one step"
        found = Numbered(_counted(inputs, count), several, steady=False, reading="input")
    return _read(found, {"update": begins, "input": inputs if unfed else begins}, reading)


def _read(found: Numbered, readings: Mapping[str, Array], reading: str | None) -> Numbered:
    """Return the steps by the definition that the user asked for if it gives any, else those found.

    `readings` has for each definition (such as `update`: an update ends a step) the backward passes
    that begin a step. The names of definitions that give different steps are added.
    """
    count = found.bursts.size
    steps = {name: _counted(begins, count) for name, begins in readings.items() if begins.size}
    if reading == found.reading:
        found = replace(found, unfed=None)
    elif reading in steps:
        reason = None if reading == "update" else f"{STEP_READINGS[reading]}, as asked"
        found = Numbered(steps[reading], reason, steady=reading != "input", reading=reading)
    others = (name for name, each in steps.items() if (each != found.bursts).any())
    return replace(found, others=tuple(others))


def _counted(begins: Array, count: int) -> Array:
    """Return the step of each of `count` backward passes; `begins` are those that begin one."""
    new = np.zeros(count, np.int64)
    new[begins] = 1
    return np.cumsum(new)


def _unfed(turns: Turns, begins: Array, inputs: Array) -> str | None:
    """Return a sentence if new input follows only some of the updates, else None.

    `begins` are the passes that follow an update, `inputs` those before which new input comes. None
    as well if any of the other updates is followed by another copy to the GPU.
    """
    lane, others = turns.lane, np.setdiff1d(begins, inputs)
    copies = np.isin(lane.work.kind, (H2D, D2D))
    if min(inputs.size, others.size) < THRESHOLDS.fed_gaps:
        return None
    if total_in(copies, turns.first[others], turns.stop[others]).any():
        return None
    return f"new input follows {inputs.size:,} of {begins.size:,} updates only"


def _searches(turns: Turns, parts: Parts, begins: Array, inputs: Array) -> bool:
    """Test whether an optimizer itself calls forward and backward passes (as L-BFGS does).

    Such an optimizer has no named kernels. In each of its updates the host copies a result computed
    from gradients from the GPU, and decides by it whether to continue. Its steps have several
    updates; only new input shows where a step begins.
    """
    lane, others = turns.lane, np.setdiff1d(begins, inputs)
    each = np.diff(np.searchsorted(begins, inputs)) if inputs.size else np.array([2])
    if lane.optimizer.any() or each.min() <= 1 or each.max() > THRESHOLDS.updates_of_step:
        return False
    place = turns.gap(parts.template)
    kernels = np.flatnonzero((lane.kernel & ~lane.fill)[place])
    fetched = np.flatnonzero(lane.work.kind[place] == D2H)  # the loss of before may be the first
    fetched = fetched[np.searchsorted(fetched, kernels[:1].sum()) :]
    alike = turns.kinds[others] == turns.kinds[parts.template]
    first = int(np.append(lane.layer[place], values=True).argmax())
    # Of a loss that is read between an update and the next step little of the update follows.
    more = THRESHOLDS.barely if not inputs.size else -1
    return bool(
        alike.mean() >= THRESHOLDS.rhythm
        and kernels.size
        and fetched.size
        and fetched[0] < first
        and ((kernels > fetched[0]) & (kernels < first)).sum() > more
    )


def _begins(
    turns: Turns, parts: Parts, begins: Array, fed: Array, size: int, *, once: bool
) -> tuple[Array, str]:
    """Return the updates after which a new step begins, and why, if `size` updates are one step.

    A step begins at the only update that new input follows, or the first of several in a row; if
    unclear, where the host waits longest. With `once`, each step has exactly one such update.
    """
    several = f"{size} updates in turn are taken as one step"
    if once:
        return begins[fed], f"every {size} updates share one input: they are taken as one step"
    phases = [float(fed[phase::size].mean()) >= THRESHOLDS.rhythm for phase in range(size)]
    starts = [phase for phase in range(size) if phases[phase] and not phases[phase - 1]]
    if len(starts) == 1:
        return begins[starts[0] :: size], f"{several}, which begins with input"
    at = turns.first[begins] + parts.head[begins]
    pauses = turns.lane.work.launch[at] - turns.lane.work.launch[at - 1]
    longest = int(np.argmax([np.median(pauses[phase::size]) for phase in range(size)]))
    return begins[longest::size], f"{several}, which begins where the host waits longest"


def networks_of(turns: Turns) -> Array:
    """Return the network of each backward pass; passes of one network have similar kernels.

    Passes are taken in order. A pass that shares too few kernels with the first pass of every
    network so far starts a new network; other passes join the network with which they share the
    most kernels.
    """
    lane, kinds = turns.lane, turns.passes
    numbers, example = np.unique(kinds, return_index=True)
    order = np.argsort(example)
    places, owner = ranges_of(turns.bursts[example[order]], turns.ends[example[order]])
    most = int(lane.symbol.max(initial=0)) + 1
    some = lane.kernel[places]
    each, count = np.unique(owner[some] * most + lane.symbol[places[some]], return_counts=True)
    owner, symbol = np.divmod(each, most)
    begins = np.searchsorted(owner, np.arange(numbers.size + 1))
    size = np.bincount(owner, count, numbers.size)
    nearest, share = np.zeros(numbers.size, np.int64), np.full(numbers.size, -1.0)
    known, at = 0, 0
    while at < numbers.size:
        first = np.zeros(most, np.int64)
        span = slice(begins[at], begins[at + 1])
        first[symbol[span]] = count[span]
        later = slice(begins[at], None)
        common = np.bincount(
            owner[later], np.minimum(count[later], first[symbol[later]]), numbers.size
        )
        found = common / np.maximum(np.maximum(size, size[at]), 1)
        found[:at], found[at] = -1, np.inf
        closer = found > share
        nearest[closer], share[closer] = known, found[closer]
        unlike = np.flatnonzero(share[at:] < THRESHOLDS.same_network)
        known, at = known + 1, at + int(unlike[0]) if unlike.size else numbers.size
    networks = np.empty(numbers.size, np.int64)
    networks[order] = nearest
    return networks[kinds]


def _rhythm(values: Array, most: int) -> int:
    """Return the period of a sequence, up to `most`; 0 if it has none, or all values are equal."""
    if not values.size or (values == values[0]).all():
        return 0
    for size in range(1, min(most, values.size // 3) + 1):
        if (values[size:] == values[:-size]).mean() >= THRESHOLDS.rhythm:
            return size if size > 1 else 0
    return 0


def table_of(step: Array, launch: Array, is_complete: Array) -> pl.DataFrame:
    """Return ``step, start, end, whole`` of steps, ns; each step ends where the next one starts.

    Parameters
    ----------
    step
        Per op, in order of launch: its step, -1 for none; steps are numbered 0, 1, ... without
        gaps.
    launch
        Per op: time of its launch, ns.
    is_complete
        Per step: whether it was recorded in full.
    """
    in_steps = np.flatnonzero(step >= 0)
    _, first = np.unique(step[in_steps], return_index=True)
    # Of several devices one may be ahead: a step begins no earlier than the one before.
    start = np.maximum.accumulate(launch[in_steps[first]])
    end = np.concatenate((start[1:], launch[in_steps[-1:]] + 1))
    columns = (np.arange(start.size), start, end, is_complete)
    return pl.DataFrame(dict(zip(STEPS, columns, strict=True)), schema=STEPS)
