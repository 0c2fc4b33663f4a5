"""Cut the usual gap between two backward passes into weight update and next forward pass.

Kernel names give two bounds: the cut lies after the last optimizer kernel, and before the first
layer or embedding look-up. Between the bounds the cut is put at the input of the next step, or
where the host waits. Only the bounds are certain, so the stage of the busy time between them is in
doubt. If no kernel name shows an update, a few kernels alone do not count as one.

Updates may contain matrix products, which count as layers. Layers before the last optimizer kernel,
or before the input of the forward pass, belong to such an update, unless they also occur in the
network's forward pass or are preceded by separate input: then they are a forward pass without
backward.

The cut depends on the gap itself wherever possible, so that it does not change with the start and
end of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._pair import Turns
from tracekit.attribution.structure._sequences import (
    alike,
    common_prefix,
    common_suffix,
    grams_of,
    runs_of,
)
from tracekit.attribution.structure._work import D2D, D2H, H2D, Array
from tracekit.support.wording import count

_SAMPLE = 50
"""Number of gaps in which pauses are measured."""


@dataclass(frozen=True)
class Cut:
    """Where a gap between two backward passes is cut into update and forward pass, as op counts."""

    at: int
    """Number of ops in the gap before the forward pass."""
    low: int
    high: int
    """The least and the largest number that `at` may be."""
    why: str
    """Evidence for `at`, in words."""
    head: int
    """Number of ops at the start of the gap that are the update. Ops between these and `at` are a
    forward pass without backward."""
    multiplies: bool = False
    """Whether the update contains layers."""
    fed: str = ""
    """Evidence, in words, for where the forward pass begins (layers before that belong to an
    update); empty if there is none."""


def cut_gap(turns: Turns, number: int) -> Cut:
    """Find where gap `number`, between two backward passes, is cut into update and forward pass."""
    lane, place = turns.lane, turns.gap(number)
    size = place.stop - place.start
    layers = np.flatnonzero(lane.layer[place])
    found = find_front(turns, number)
    if found is not None and layers[0] < found[0]:
        return _cut_before(turns, number, *found)
    high = int(layers[0]) if layers.size else size
    updates = np.flatnonzero(lane.optimizer[place][: high + 1])
    low = int(updates[-1]) + 1 if updates.size else 0
    low = min(low, high)
    layer = f"first layer at {high}"
    looked_up = np.flatnonzero(lane.lookup[place][low:high])
    if looked_up.size:
        high = low + int(looked_up[0])
        layer = f"first look-up at {high}"
    at, why = _by_input(lane, place, low, high)
    least, most, is_shown = _by_edges(turns, number, low, high)
    if at is None:
        low, high = least, most
        at, why = _by_result(lane, place, low, high)
    elif is_shown and at != least:
        at, why = least, f"the recording ends and begins so: at {least}"
    if at is None and not updates.size:
        for ask in (_by_drain, _by_pause):
            if at is None:
                at, why = ask(turns, number, low, high)
        if at is None and low == 0 and _is_too_little(turns, place, high):
            at, why = 0, f"{count(high, 'op')} before: too few for an update"
    if at is None:
        at, why = low or high, f"no better evidence between, so at {low or high}"
    at = _before_lead(lane, place, at, low)
    named = f"optimizer kernels until {low}, " if updates.size else ""
    fed = found[1] if found is not None else ""
    return Cut(at, low, high, f"{named}{layer}, {why}", at, fed=fed)


def _cut_before(turns: Turns, number: int, front: int, why: str) -> Cut:
    """Cut gap `number` between backward passes, with layers before its last forward pass.

    That pass begins at op `front`, for the reason `why`. The layers before are part of the update,
    or a forward pass without backward.
    """
    lane, place = turns.lane, turns.gap(number)
    layer, optimizer = lane.layer[place], np.flatnonzero(lane.optimizer[place][:front])
    low = int(optimizer[-1]) + 1 if optimizer.size else 0
    head = min(max(_lone(turns, number, low, front), low), front)
    multiplies = bool(layer[:head].any())
    inside = ", with layers in the update" if multiplies else ""
    alone = f", a pass alone from {head} on" if head < front else ""
    named = f"optimizer kernels until {low}, " if low else ""
    evidence = f"{named}{why}{inside}{alone}"
    return Cut(front, low, front, evidence, head, multiplies, fed=why)


def find_front(turns: Turns, number: int) -> tuple[int, str] | None:
    """Return the op of gap `number` at which its forward pass begins, and why; None if unknown.

    The pass begins after the last kernel named after an optimizer, at the first of these ops that
    is found:

    - the last input copy before the last layer, or an earlier one for the same pass (`belongs`);
    - the op after a copy of a result to the host, if the layers before the copy recur after it;
    - the op between an update that equals the last gap (only an update) and a forward pass that
      equals the first gap (only a forward pass): see `_both_edges`;
    - the op after the last optimizer kernel, if a layer precedes it.
    """
    lane, place = turns.lane, turns.gap(number)
    kind, layer = lane.work.kind[place], np.flatnonzero(lane.layer[place])
    if not layer.size:
        return None
    named = np.flatnonzero(lane.optimizer[place][: layer[-1]])
    low = int(named[-1]) + 1 if named.size else 0
    feeds = [
        begin for begin, end in runs_of(np.isin(kind, (H2D, D2D)))
        if low < end <= layer[-1] and (lane.batch[place] & (kind == H2D))[begin:end].any()
    ]  # fmt: skip
    if feeds:
        front = feeds[-1]
        for begin in feeds[-2::-1]:
            if not belongs(turns, number, begin, front):
                break
            front = begin
        return max(front, low), f"copy from the host at {max(front, low)}"
    for fetched in (np.flatnonzero(kind[low : layer[-1]] == D2H) + low + 1)[::-1].tolist():
        if not belongs(turns, number, low, fetched):
            return fetched, f"result fetched before {fetched}, and the same layers after it"
    both = _both_edges(turns, number)
    if both is not None and both > max(low, int(layer[0])):
        return both, f"the recording ends and begins so: at {both}"
    return (low, f"last optimizer kernel before {low}") if low > layer[0] else None


def belongs(turns: Turns, number: int, begin: int, end: int) -> bool:
    """Test whether ops `begin` to `end` belong to the forward pass that ends gap `number`.

    A gap is the ops between two backward passes. The ops belong to the pass unless their layers
    occur again after `end`. If the layers do, their number decides: the next backward pass should
    have about twice as many layers as the forward pass. The ops belong to the forward pass if it
    comes closer to that ratio with the ops than without them.
    """
    layer, first = turns.lane.layer, int(turns.first[number])
    if not _comes_again(turns, number, begin, end):
        return True
    part = int(layer[first + begin : first + end].sum())
    rest = int(layer[first + end : turns.stop[number]].sum())
    backward = max(1, int(layer[turns.bursts[number] : turns.ends[number]].sum()))
    both, alone = (
        abs(np.log(backward / layers / THRESHOLDS.backward_layers))
        for layers in (part + rest, rest)
    )
    return bool(both < alone)


def _comes_again(turns: Turns, number: int, begin: int, end: int) -> bool:
    """Test if the layers from `begin` to `end` of gap `number` occur again after `end`, in order.

    The gap is the ops between two backward passes, the layers its layer kernels.

    Batch norms are ignored, since evaluation uses other kernels for them.
    """
    place, lane = turns.gap(number), turns.lane
    layer, symbol = (lane.layer & ~lane.batch_norm)[place], lane.symbol[place]
    one, other = symbol[begin:end][layer[begin:end]], symbol[end:][layer[end:]]
    size = min(one.size, other.size)
    if size <= THRESHOLDS.barely or one.size < THRESHOLDS.whole_pass * other.size:
        return False
    return alike(one[:size], other[:size]) >= THRESHOLDS.evaluated_again


def _lone(turns: Turns, number: int, low: int, front: int) -> int:
    """Return the op before `front` at which a forward pass without backward begins, else `front`.

    The forward pass of the gap `number` (ops between two backward passes) begins at `front`. The
    other one begins at a copy of its input, or where the sequence of ops equals that of the forward
    pass from `front` on. Layers before op `low` are an update's.
    """
    lane, place = turns.lane, turns.gap(number)
    symbol, layer, kind = lane.symbol[place], lane.layer[place], lane.work.kind[place]
    begins = [
        begin for begin, end in runs_of(np.isin(kind[:front], (H2D, D2D)))
        if end > low and layer[end:front].any() and lane.batch[place][begin:end].any()
    ]  # fmt: skip
    size = THRESHOLDS.lone_gram
    known = np.isin(grams_of(symbol[low:front], size), grams_of(symbol[front:], size))
    covered = np.zeros(front - low, bool)
    for offset in range(size):
        covered[np.flatnonzero(known) + offset] = True
    layers = layer[low:front]
    if layers.any() and covered[layers].mean() >= THRESHOLDS.evaluated_again:
        begins.append(low + int(covered.argmax()))
    elif layers.any() and not belongs(turns, number, low, front):
        begins.append(low or int(layers.argmax()))
    return min(begins, default=front)


def _both_edges(turns: Turns, number: int) -> int | None:
    """Return the op at which gap `number` is cut, by comparison with the first and the last gap.

    A gap is the ops between two backward passes. The first gap must be a forward pass without an
    update and equal the end of this gap; the last gap must be an update without a forward pass and
    equal its start. None if this gap does not begin with that update and end with that forward
    pass, or has kernels between them.
    """
    symbol, kind = turns.lane.symbol, turns.lane.work.kind
    gap, last = symbol[turns.gap(number)], turns.gap(turns.first.size - 1)
    body = np.flatnonzero(kind[last] != D2H)
    update = symbol[last][: int(body[-1]) + 1 if body.size else 0]
    forward = symbol[turns.gap(0)]
    if not update.size or common_prefix(update, gap) < update.size:
        return None
    if common_suffix(forward, gap) < forward.size or forward.size + update.size > gap.size:
        return None
    between = slice(turns.first[number] + update.size, turns.stop[number] - forward.size)
    return int(update.size) if not turns.lane.kernel[between].any() else None


def least_update(turns: Turns) -> int:
    """Return the kernel count above which ops count as an update if no kernel name shows one."""
    passes = float(np.median(turns.ends - turns.bursts))
    return max(THRESHOLDS.barely, round(THRESHOLDS.update * passes))


def _is_too_little(turns: Turns, place: slice, high: int) -> bool:
    lane, before = turns.lane, slice(place.start, place.start + high)
    return int((lane.kernel & ~lane.fill)[before].sum()) <= least_update(turns)


def _by_input(lane: Lane, place: slice, low: int, high: int) -> tuple[int | None, str]:
    """Cut a gap at the first input copy in ops `low` to `high`.

    A gap (`place`) is the ops between two backward passes. Returns the op at which to cut and the
    evidence; None and an empty text without such copies.
    """
    kind, batch = lane.work.kind[place], lane.batch[place]
    for copy, name in ((H2D, "copy from the host"), (D2D, "copy on the device")):
        found = np.flatnonzero(batch[low : high + 1] & (kind[low : high + 1] == copy))
        if found.size:
            at = low + int(found[0])
            return at, f"{name} at {at}"
    return None, ""


def _by_result(lane: Lane, place: slice, low: int, high: int) -> tuple[int | None, str]:
    """Cut a gap after the last copy to the host in ops `low` to `high`; returns as `_by_input`."""
    fetched = np.flatnonzero(lane.work.kind[place][low:high] == D2H)
    if not fetched.size:
        return None, ""
    at = low + int(fetched[-1]) + 1
    return at, f"result fetched before {at}"


def _by_edges(turns: Turns, number: int, low: int, high: int) -> tuple[int, int, bool]:
    """Narrow the bounds `low, high` of gap `number`'s cut, by the first and the last gap.

    The third result is whether both gaps show the cut, so that the bounds are equal.

    A gap is the ops between two backward passes, or before the first or after the last one; it is
    cut into update and forward pass. A complete recording begins with a forward pass without an
    update before it, and ends with an update without a forward pass after it. One that begins with
    what follows its end, up to the first layer, shows the cut even if later layers differ.
    """
    symbol = turns.lane.symbol
    gap = symbol[turns.gap(number)]
    last = turns.first.size - 1
    first_gap, last_gap = symbol[turns.gap(0)], symbol[turns.gap(last)]
    ended = common_prefix(last_gap, gap)
    if low <= ended == last_gap.size <= high and ended:
        if common_prefix(first_gap, gap[ended:]) > high - ended:
            return ended, ended, True
        low = low or ended
    forward = common_suffix(first_gap, gap)
    if 0 < forward < gap.size and first_gap.size < 2 * forward and low <= gap.size - forward:
        high = min(high, gap.size - forward)
    return low, high, False


def _by_drain(turns: Turns, number: int, low: int, high: int) -> tuple[int | None, str]:
    """Cut gap `number`, in ops `low` to `high`, at a launch that found the GPU idle.

    A gap is the ops between two backward passes. Returns the op and the evidence in words; None and
    an empty text without such a launch. The host had waited there. The next launches find an idle
    GPU too, until the host is ahead again. If most launches of the gap find an idle GPU, none of
    them is distinct. A wait at the start of the gap counts only if no op of an update follows the
    last backward pass.
    """
    drained = np.median(turns.drained[_places(turns, number)], axis=0) > 0
    begins = np.flatnonzero(drained & ~np.append(False, drained[:-1]))
    symbol = turns.lane.symbol
    last_gap = symbol[turns.gap(turns.first.size - 1)]
    if common_prefix(last_gap, symbol[turns.gap(number)]):
        low = max(low, 1)
    begins = begins[(begins >= low) & (begins <= high)]
    if not begins.size or 2 * drained.sum() > drained.size:
        return None, ""
    at = int(begins[-1])
    return at, f"the GPU was drained before {at}"


def _places(turns: Turns, number: int) -> Array:
    """Return op indices of gaps of the same kind as gap `number`: a row per sampled gap.

    A gap is the ops between two backward passes; gaps of one kind launch the same ops.
    """
    same = np.flatnonzero(turns.kinds[1:-1] == turns.kinds[number]) + 1
    some = same[np.linspace(0, same.size - 1, min(same.size, _SAMPLE)).astype(np.int64)]
    size = int(turns.stop[number] - turns.first[number])
    places: Array = turns.first[some][:, None] + np.arange(size)
    return places


def _by_pause(turns: Turns, number: int, low: int, high: int) -> tuple[int | None, str]:
    """Cut a gap between backward passes where the host paused by far the longest between launches.

    Candidates are the launches `low` to `high` of gap `number`. Returns the op after the pause and
    the evidence in words; None and an empty text if no pause stands out.
    """
    places = _places(turns, number)
    size = places.shape[1]
    within = np.arange(max(low, 1), min(high + 1, size))
    if not places.size or within.size <= 1:
        return None, ""
    launch, at = turns.lane.work.launch, places[:, within]
    pauses: Array = np.median(launch[at] - launch[at - 1], axis=0)
    if pauses.max() <= THRESHOLDS.pause * np.median(pauses):
        return None, ""
    found = int(within[pauses.argmax()])
    return found, f"longest pause of the host before {found}"


def _before_lead(lane: Lane, place: slice, at: int, low: int) -> int:
    """Move a cut back over the input copies and the fills (clearing gradients) just before it.

    A cut divides the ops between two backward passes (a gap, `place`) into update and forward pass.
    It stays at `low` or later, and after the gap's first op, which follows the backward pass.
    """
    other = np.flatnonzero(~(lane.batch | lane.fill)[place][max(low, 1) : at])
    return max(low, 1) + int(other[-1]) + 1 if other.size else min(max(low, 1), at)
