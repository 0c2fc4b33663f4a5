"""Split the ops between two backward passes (a gap) into weight update, evaluation, forward pass.

Gaps that launch the same ops are of one kind, and each kind is cut once. Gaps of other kinds are
compared to the most frequent (usual) kind: their start equals its update, and their end its forward
pass. The ops between these are evaluation (forward passes without backward) if they contain layers,
else part of a longer update, such as the first one, which creates the optimizer's state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._cut import Cut, belongs, cut_gap, least_update
from tracekit.attribution.structure._pair import Turns
from tracekit.attribution.structure._sequences import (
    alike,
    common_prefix,
    common_suffix,
    total_in,
)
from tracekit.attribution.structure._work import D2D, D2H, H2D, MEMSET, Array


@dataclass(frozen=True)
class Parts:
    """Where each gap (the ops between two backward passes) is cut into update and forward pass."""

    head: Array
    """Per gap: number of ops at its start that are the weight update."""
    front: Array
    """Per gap: number of its ops before the forward pass that belongs to the next backward pass."""
    template: int
    """Index of a gap of the most frequent (usual) kind."""
    cut: Cut
    """Where the gap `template` is cut."""
    usual: int
    """Number of gaps of the usual kind, without the recording's first and last gap; if gradients
    are accumulated, of both usual kinds, with and without an update."""
    accumulating: int
    """Number of gaps with a forward pass but no update, without the first and last gap."""


def part_gaps(turns: Turns) -> Parts:
    """Return where each gap between backward passes is cut; at least two such passes are needed."""
    last = turns.first.size - 1
    kinds, example, count = _counted(turns)
    template, plain = _templates(turns, example, count)
    cut = cut_gap(turns, template)
    kind_cuts = np.zeros((2, int(turns.kinds.max()) + 1), np.int64)
    is_frequent = count >= max(THRESHOLDS.own_gaps, THRESHOLDS.own_kind * (last - 1))
    first = _like_first(turns, [template, *example[is_frequent].tolist()])
    cuts = [
        _cut_kind(turns, number, template, cut, may_differ=may_differ)
        for number, may_differ in zip(example.tolist(), is_frequent.tolist(), strict=True)
    ]
    kind_cuts[:, kinds] = _mended(turns, example, *np.array(cuts, np.int64).T)
    head, front = kind_cuts[:, turns.kinds]
    size = turns.stop - turns.first
    head[0], front[0] = 0, _begin(turns, first, cut if first == template else cut_gap(turns, first))
    head[last], front[last] = _end(turns, template, cut), size[last]
    usual, accumulating = (
        int(count[np.isin(kinds, turns.kinds[gaps])].sum()) for gaps in ([template, *plain], plain)
    )
    return Parts(head, front, template, cut, usual, accumulating)


def _counted(turns: Turns) -> tuple[Array, Array, Array]:
    """Return the kind of each gap, an example of each kind, and how many gaps are of each kind.

    A gap is the ops between two backward passes; gaps of one kind launch the same ops. The most
    frequent kind comes first.
    """
    kinds, example, count = np.unique(turns.kinds[1:-1], return_index=True, return_counts=True)
    sizes = (turns.stop - turns.first)[example + 1]
    order = np.lexsort((example, sizes, -count))
    return kinds[order], example[order] + 1, count[order]


def _templates(turns: Turns, example: Array, count: Array) -> tuple[int, list[int]]:
    """Return a frequent gap with an update, and frequent gaps without one (gradient accumulation).

    A gap is the ops between two backward passes. `example` has a gap of each kind (same ops),
    `count` the number of gaps of that kind.
    """
    often = example[count >= max(2, THRESHOLDS.often * count.sum())].tolist()
    if turns.lane.optimizer.any():
        return _by_names(turns, example.tolist(), often)
    return _by_forward(turns, often) if often else (int(example[0]), [])


def _by_names(turns: Turns, example: list[int], often: list[int]) -> tuple[int, list[int]]:
    """Return the most frequent gap with optimizer kernels, and frequent gaps without such kernels.

    A gap is the ops between two backward passes. `example` has a gap of each kind (same ops), the
    most frequent first; `often` those of frequent kinds. If the most frequent kind of all has no
    optimizer kernels, there are several backward passes per update.
    """
    named = [number for number in example if turns.lane.optimizer[turns.gap(number)].any()]
    if not named or named[0] == example[0]:
        return example[0], []
    known = [n for n in named if n in often or _ends_in(turns, n, example[0], THRESHOLDS.barely)]
    if not known:
        return example[0], []
    return known[0], [number for number in often if number not in named]


def _by_forward(turns: Turns, often: list[int]) -> tuple[int, list[int]]:
    """Return a frequent gap that is an update followed by the same ops as the shortest gap.

    A gap is the ops between two backward passes; `often` has one of each frequent kind (same ops).
    The shortest frequent gap is then a forward pass without an update; it is returned as well. The
    update must contain no layers, and a number of kernels in proportion to the backward pass.
    """
    short = min(often, key=lambda number: int(turns.stop[number] - turns.first[number]))
    longer = [n for n in often if _ends_in(turns, n, short, least_update(turns))]
    return (longer[0], [short]) if longer else (often[0], [])


def _ends_in(turns: Turns, number: int, plain: int, least: int) -> bool:
    """Test if gap `number` is an update (over `least` kernels, no layers), then a forward pass.

    A gap is the ops between two backward passes. The forward pass must equal that of the gap
    `plain` from its first kernel on; input copies and fills before that kernel may vary.
    """
    lane, place, other = turns.lane, turns.gap(number), turns.gap(plain)
    tail = common_suffix(lane.symbol[other], lane.symbol[place])
    front = slice(place.start, place.stop - tail)
    computes = lane.kernel & ~lane.fill
    updates = int(computes[front].sum())
    forward = other.stop - other.start - int(computes[other].argmax())
    return tail >= forward and updates > least and not lane.layer[front].any()


def _cut_kind(
    turns: Turns, number: int, template: int, cut: Cut, *, may_differ: bool
) -> tuple[int, int]:
    """Return how many ops of a gap are its weight update, and how many precede its forward pass.

    The gap `number` is compared to the usual gap `template`, which is cut at `cut`. With
    `may_differ` a gap with another forward pass is cut by itself.
    """
    if turns.kinds[number] == turns.kinds[template]:
        return cut.head, cut.at
    if cut.multiplies:
        parts = cut_gap(turns, number)
        return parts.head, parts.at
    lane, place, usual = turns.lane, turns.gap(number), turns.gap(template)
    symbol, layer = lane.symbol[place], lane.layer[place]
    weights, forward = lane.symbol[usual][: cut.head], lane.symbol[usual][cut.at :]
    size = symbol.size
    body = min(forward.size, size)
    if alike(symbol[size - body :], forward[forward.size - body :]) < THRESHOLDS.same_forward:
        if may_differ:  # another network that takes turns with the first one
            parts = cut_gap(turns, number)
            return parts.head, parts.at
        # Another shape or algorithm: up to the first layer, if it is about as long.
        near = size < THRESHOLDS.same_update * (usual.stop - usual.start)
        tail = common_suffix(symbol, forward)
        body = size if near else max(tail, min(forward.size, size - weights.size))
    front = size - body
    if not layer[:front].any():
        front = min(front, _first_input(turns, number, front, template, cut))
    elif not _same_pass(turns, number, template, body) and (may_differ or _fed(turns, number)):
        # What it has more of may be its forward pass' own, and its input says where that begins.
        parts = cut_gap(turns, number)
        return parts.head, parts.at
    return _head(symbol[:front], layer[:front], lane.optimizer[place][:front], weights), front


def _first_input(turns: Turns, number: int, front: int, template: int, cut: Cut) -> int:
    """Return the first input copy of gap `number` before op `front`: its forward pass begins there.

    Returns `front` if there is no such copy; if the update of the usual gap, `template`, contains
    input copies too; or if the backward pass or the update copies data as large as a batch to the
    host, so that the host may compute the update.
    """
    work, first = turns.lane.work, int(turns.first[number])
    update = slice(turns.first[template], turns.first[template] + cut.head)
    since_pass = slice(turns.bursts[number - 1], first + front)
    to_host = work.kind[since_pass] == D2H
    if _input(turns, update).any():
        return front
    if (to_host & (work.bytes[since_pass] >= THRESHOLDS.batch_bytes)).any():
        return front
    return int(np.append(_input(turns, slice(first, first + front)), values=True).argmax())


def _input(turns: Turns, ops: slice) -> Array:
    """Return for each of the ops `ops` whether it copies a batch from the host."""
    return np.asarray(turns.lane.batch[ops] & (turns.lane.work.kind[ops] == H2D))


def _same_pass(turns: Turns, number: int, template: int, body: int) -> bool:
    """Test if the last `body` ops of gap `number` between backward passes are its forward pass.

    They are if the next backward pass is the same as after the usual gap `template`, and both gaps
    end with the same ops. They also are if the layers before these ops occur again in them, and the
    next backward pass has as many layers as belong to one forward pass, not two.
    """
    symbol, stop = turns.lane.symbol, turns.stop
    if turns.passes[number] == turns.passes[template]:
        gap_end, usual = (symbol[stop[gap] - body : stop[gap]] for gap in (number, template))
        if alike(gap_end, usual) >= THRESHOLDS.evaluated_again:
            return True
    return not belongs(turns, number, 0, int(stop[number] - turns.first[number]) - body)


def _fed(turns: Turns, number: int) -> bool:
    """Test if gap `number` between backward passes has input copies, and layers only after them."""
    place = turns.gap(number)
    fed, layers = np.flatnonzero(_input(turns, place)), np.flatnonzero(turns.lane.layer[place])
    return bool(fed.size and layers.size and fed[-1] < layers[0])


def _mended(turns: Turns, numbers: Array, head: Array, front: Array) -> tuple[Array, Array]:
    """Move cuts of gaps so that optimizer kernels are in the update, input in the forward pass.

    A gap is the ops between two backward passes; `head` and `front` are its cuts, as in `Parts`.
    """
    lane, first, stop = turns.lane, turns.first[numbers], turns.stop[numbers]
    layer = np.minimum(_next(lane.layer, first), stop)  # the first one, or the gap's end
    early = _last(lane.optimizer, layer) - first + 1
    head = np.maximum(head, early)
    front = np.where(early > 0, np.maximum(head, front), front)
    other = _last(~(lane.batch | lane.fill), first + np.maximum(front, head)) - first + 1
    return head, np.maximum(head, other)


def _next(mask: Array, places: Array) -> Array:
    """Return per index of `places` the first index from it on where `mask` is true.

    It is the length of `mask` if there is none.
    """
    found = np.flatnonzero(mask)
    return np.append(found, mask.size)[np.searchsorted(found, places)]


def _last(mask: Array, places: Array) -> Array:
    """Return per index of `places` the last index before it where `mask` is true; -1 if none."""
    found = np.flatnonzero(mask)
    return np.append(found, -1)[np.searchsorted(found, places) - 1]


def _head(symbol: Array, layer: Array, optimizer: Array, weights: Array) -> int:
    """Return how many ops at the start of a gap belong to the weight update.

    A gap is the ops between two backward passes. `symbol`, `layer` and `optimizer` have, for each
    of its ops before its forward pass, the name (as an integer), whether it is a layer kernel, and
    whether it is an optimizer kernel. `weights` has the names of the usual update's ops.
    """
    size = weights.size
    if symbol.size >= size > 0 and alike(symbol[:size], weights) >= THRESHOLDS.same_update:
        return size
    if not layer.any() or common_prefix(symbol, weights) == symbol.size:
        return symbol.size
    updates = np.flatnonzero(optimizer[: int(layer.argmax())])
    return int(updates[-1]) + 1 if updates.size else common_prefix(symbol, weights)


def _like_first(turns: Turns, numbers: list[int]) -> int:
    """Return the one of the gaps `numbers` that shares the longest end with the first gap.

    A gap is the ops between two backward passes. Networks may alternate, so gaps differ.
    """
    symbol = turns.lane.symbol
    first = symbol[turns.gap(0)]
    fits = [common_suffix(first, symbol[turns.gap(number)]) for number in numbers]
    return numbers[fits.index(max(fits))]


def _begin(turns: Turns, template: int, cut: Cut) -> int:
    """Return the op at which the recording's first forward pass begins.

    That pass is as long as the usual one (that of the gap `template`), except that more or fewer
    fills may clear gradients. So if only copies and fills precede the first layer of the usual one,
    the first pass begins with the same number of copies before its first layer, and all fills
    between these.
    """
    lane, place = turns.lane, turns.gap(template)
    copy = np.isin(lane.work.kind, (H2D, D2D, D2H, MEMSET))
    usual = slice(place.start + cut.at, place.stop)
    lead = int(np.append(lane.layer[usual], values=True).argmax())
    begin = int(turns.stop[0]) - (usual.stop - usual.start)
    if lane.layer[: max(begin, 0)].any() and _fed(turns, 0):  # longer than the usual one
        begin = int((lane.batch & (lane.work.kind == H2D))[: begin + 1].argmax()) - lead
    plain = bool((copy | lane.fill)[usual][:lead].all())
    if begin + lead <= 0 or not plain:
        return int(max(begin, 0))
    before = np.flatnonzero(~(copy | lane.fill)[: begin + lead])
    first = int(before[-1]) + 1 if before.size else 0
    at = first + np.flatnonzero(copy[first : begin + lead])
    more = at.size - int(copy[usual][:lead].sum())
    return int(at[more - 1]) + 1 if more > 0 else first


def _end(turns: Turns, template: int, cut: Cut) -> int:
    """Return how many ops after the recording's last backward pass are a weight update.

    The gap `template` (ops between two backward passes), cut at `cut`, shows the usual update.
    """
    lane, place, usual = turns.lane, turns.gap(turns.first.size - 1), turns.gap(template)
    weights = lane.symbol[usual][: cut.head]
    head = _head(lane.symbol[place], lane.layer[place], lane.optimizer[place], weights)
    last = np.array([turns.first.size - 1])
    return int(_mended(turns, last, np.array([head]), np.array([head]))[0][0])


def has_update(turns: Turns, parts: Parts) -> Array:
    """Mask gaps between backward passes whose update has kernels other than fills."""
    lane = turns.lane
    return total_in(lane.kernel & ~lane.fill, turns.first, turns.first + parts.head) > 0
