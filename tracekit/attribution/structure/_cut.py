"""Cut the usual gap between two backward passes into update and next forward pass.

Two bounds come from names: no update before the last optimizer kernel has ended, and no forward
later than the first layer, or look-up. Between these the input of the next step decides, or what
the host did: what is certain is only that the cut lies between the bounds, so the busy time there
is the doubt. Where no name tells an update, what is too little for one is none.

That no layer is of an update is not taken for granted: layers before the last optimizer kernel, or
before the input of the forward pass, belong to an update that multiplies, unless they are the
network's, or fed with input of their own; then they are a forward pass that stands alone.
What a cut rests on is in the gap itself wherever possible: what it is does not change then with
where the recording begins and ends.
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

_SAMPLE = 50
"""In how many gaps pauses are measured."""


@dataclass(frozen=True)
class Cut:
    """Place at which a gap is cut.

    Parameters
    ----------
    at
        How many of its ops come before the forward pass.
    low, high
        The bounds between which the cut lies.
    why
        What decided.
    head
        How many of its ops, the first ones, are the update; what lies between these and the forward
        pass is a pass that stands alone.
    multiplies
        Whether there are layers in the update.
    fed
        What the forward pass is seen to begin with, so that layers before it would be of an update;
        empty where nothing is.
    """

    at: int
    low: int
    high: int
    why: str
    head: int
    multiplies: bool = False
    fed: str = ""


def cut_gap(turns: Turns, number: int) -> Cut:
    """Cut a usual gap, given by its number."""
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
    at, why = _by_copies(lane, place, low, high)
    if at is None and not updates.size:
        low, high = _by_edges(turns, number, low, high)
        for ask in (_by_drain, _by_pause):
            if at is None:
                at, why = ask(turns, number, low, high)
        if at is None and low == 0 and _is_too_little(turns, place, high):
            at, why = 0, f"the {high} ops before are too few for an update"
    if at is None:
        at, why = low or high, f"nothing between says more, so at {low or high}"
    at = _before_lead(lane, place, at, low)
    named = f"optimizer kernels until {low}, " if updates.size else ""
    fed = found[1] if found is not None else ""
    return Cut(at, low, high, f"{named}{layer}, {why}", at, fed=fed)


def _cut_before(turns: Turns, number: int, front: int, why: str) -> Cut:
    """Cut a gap in which layers come before the forward pass: part of an update, or a pass."""
    lane, place = turns.lane, turns.gap(number)
    layer, optimizer = lane.layer[place], np.flatnonzero(lane.optimizer[place][:front])
    low = int(optimizer[-1]) + 1 if optimizer.size else 0
    head = min(max(_lone(turns, number, low, front), low), front)
    multiplies = bool(layer[:head].any())
    inside = ", with layers in the update" if multiplies else ""
    alone = f", a pass alone from {head} on" if head < front else ""
    named = f"optimizer kernels until {low}, " if low else ""
    said = f"{named}{why}{inside}{alone}"
    return Cut(front, low, front, said, head, multiplies, fed=why)


def find_front(turns: Turns, number: int) -> tuple[int, str] | None:
    """Return where the forward pass begins, if layers may come before it, and the evidence.

    It begins after the last kernel that is named for an optimizer: at the last input that layers
    follow, or the first of several with which one pass is fed; or after a result that is fetched,
    if the same pass follows; or where both edges of the recording say so.
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
    """Tell whether a part of a gap is of the forward pass that begins where it ends.

    It is, unless its layers come again. Then backward tells, which runs about twice the layers of
    its forward pass: are these the layers of both, or of the rest alone?
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
    """Tell whether the layers of a part of a gap come again, in order, after it.

    Batch norms are left out, whose kernels are others in evaluation.
    """
    place, lane = turns.gap(number), turns.lane
    layer, symbol = (lane.layer & ~lane.batch_norm)[place], lane.symbol[place]
    one, other = symbol[begin:end][layer[begin:end]], symbol[end:][layer[end:]]
    size = min(one.size, other.size)
    if size <= THRESHOLDS.barely or one.size < THRESHOLDS.whole_pass * other.size:
        return False
    return alike(one[:size], other[:size]) >= THRESHOLDS.evaluated_again


def _lone(turns: Turns, number: int, low: int, front: int) -> int:
    """Return where a pass that stands alone begins: with input, or as the forward pass does."""
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
    """Return where a gap is cut if the recording ends with its beginning, and begins with its end.

    It ends in an update without a forward pass then, and begins in a forward pass without one.
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
    """Return the number of unnamed kernels that an update must exceed."""
    passes = float(np.median(turns.ends - turns.bursts))
    return max(THRESHOLDS.barely, round(THRESHOLDS.update * passes))


def _is_too_little(turns: Turns, place: slice, high: int) -> bool:
    lane, before = turns.lane, slice(place.start, place.start + high)
    return int((lane.kernel & ~lane.fill)[before].sum()) <= least_update(turns)


def _by_copies(lane: Lane, place: slice, low: int, high: int) -> tuple[int | None, str]:
    """Cut at the first copy of a batch; else after the last result that is fetched."""
    kind, batch = lane.work.kind[place], lane.batch[place]
    for copy, name in ((H2D, "copy from the host"), (D2D, "copy on the device")):
        found = np.flatnonzero(batch[low : high + 1] & (kind[low : high + 1] == copy))
        if found.size:
            at = low + int(found[0])
            return at, f"{name} at {at}"
    fetched = np.flatnonzero(kind[low:high] == D2H)
    if fetched.size:
        at = low + int(fetched[-1]) + 1
        return at, f"result fetched before {at}"
    return None, ""


def _by_edges(turns: Turns, number: int, low: int, high: int) -> tuple[int, int]:
    """Draw the bounds closer by what stands before the first backward pass and after the last.

    At the edges of a whole recording a forward pass stands without an update, and an update
    without a forward pass.
    """
    symbol = turns.lane.symbol
    gap = symbol[turns.gap(number)]
    last = turns.first.size - 1
    first_gap, last_gap = symbol[turns.gap(0)], symbol[turns.gap(last)]
    ended = common_prefix(last_gap, gap)
    if low == 0 and 0 < ended == last_gap.size <= high:
        low = ended
    forward = common_suffix(first_gap, gap)
    if 0 < forward < gap.size and first_gap.size < 2 * forward and low <= gap.size - forward:
        high = min(high, gap.size - forward)
    return low, high


def _by_drain(turns: Turns, number: int, low: int, high: int) -> tuple[int | None, str]:
    """Cut where the host had waited for all that it had launched before.

    The next launches find an idle GPU too, until the host is ahead again. Where it is late with
    most of its launches, none of them says more than others. If it waits for backward passes, an
    update may follow, unless nothing of that follows the last one.
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
    """Return the places of the ops of some gaps, row by row, that are like one of them."""
    same = np.flatnonzero(turns.kinds[1:-1] == turns.kinds[number]) + 1
    some = same[np.linspace(0, same.size - 1, min(same.size, _SAMPLE)).astype(np.int64)]
    size = int(turns.stop[number] - turns.first[number])
    places: Array = turns.first[some][:, None] + np.arange(size)
    return places


def _by_pause(turns: Turns, number: int, low: int, high: int) -> tuple[int | None, str]:
    """Cut where the host waits longest before a launch, if that stands out."""
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
    """Move a cut before what a step may begin with: copies of a batch, gradients that are cleared.

    Where no bound is known, the first op stays on this side: it is what backward is followed by.
    """
    other = np.flatnonzero(~(lane.batch | lane.fill)[place][max(low, 1) : at])
    return max(low, 1) + int(other[-1]) + 1 if other.size else min(max(low, 1), at)
