"""Takes every gap between backward passes apart: end of an update, forward alone, forward.

The usual gap is cut once, and all that hold the same ops with it. Others are compared to it: they
begin as it does (an update) and end as it does (a forward pass); what is between is evaluation, if
it holds layers, else a longer update, such as the first one, which makes the optimizer's state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.attribution.structure._cut import Cut, cut_gap
from tracekit.attribution.structure._sequences import (
    alike,
    common_prefix,
    common_suffix,
    total_in,
)
from tracekit.attribution.structure._turns import Turns
from tracekit.attribution.structure._work import Array

_OFTEN = 0.05
"""Share of the gaps that a kind has to make up, besides two, to count as often."""
_KIND_OF_ITS_OWN = 0.15
"""Share of the gaps from which on a kind that ends in another forward pass is cut by itself."""
_SAME_FORWARD = 0.5
_MOSTLY = 0.8
_SOME = 3
_BARELY = 2
"""Kernels that an update must exceed."""


@dataclass(frozen=True)
class Parts:
    """Where each gap is cut.

    Parameters
    ----------
    head
        How many of its ops, the first ones, end the step before.
    front
        How many come before the forward pass that its backward pass follows.
    template
        Number of the usual gap; None where there is none, with a single backward pass.
    cut
        Where the usual gap is cut.
    usual
        How many of the inner gaps are of the usual kind (or of both, where gradients are
        accumulated).
    accumulating
        How many of the inner gaps hold a forward pass alone.
    """

    head: Array
    front: Array
    template: int
    cut: Cut
    usual: int
    accumulating: int


def part_gaps(turns: Turns) -> Parts:
    """Take all gaps apart. There are two backward passes at least."""
    last = turns.first.size - 1
    kinds, example, count = _counted(turns)
    template, plain = _templates(turns, example, count)
    cut = cut_gap(turns, template)
    kind_heads, kind_fronts = np.zeros((2, int(turns.kinds.max()) + 1), np.int64)
    own = count >= max(_SOME, _KIND_OF_ITS_OWN * (last - 1))
    for kind, number, may_differ in zip(kinds, example.tolist(), own, strict=True):
        cuts = _cut_kind(turns, number, template, cut, may_differ=bool(may_differ))
        kind_heads[kind], kind_fronts[kind] = _mended(turns, number, *cuts)
    head, front = kind_heads[turns.kinds], kind_fronts[turns.kinds]
    size = turns.stop - turns.first
    forward = int(size[template]) - cut.at
    head[0], front[0] = 0, max(int(size[0]) - forward, 0)
    head[last], front[last] = _end(turns, template, cut), size[last]
    usual = count[np.isin(kinds, turns.kinds[[template, *plain]])].sum()
    return Parts(head, front, template, cut, int(usual), int(sum(_count_of(turns, plain))))


def _counted(turns: Turns) -> tuple[Array, Array, Array]:
    """Return the kinds of inner gaps, an example and the number of each, most frequent first."""
    kinds, example, count = np.unique(turns.kinds[1:-1], return_index=True, return_counts=True)
    sizes = (turns.stop - turns.first)[example + 1]
    order = np.lexsort((example, sizes, -count))
    return kinds[order], example[order] + 1, count[order]


def _count_of(turns: Turns, numbers: list[int]) -> list[int]:
    return [int((turns.kinds[1:-1] == turns.kinds[number]).sum()) for number in numbers]


def _templates(turns: Turns, example: Array, count: Array) -> tuple[int, list[int]]:
    """Return the usual gap, and the one that is its forward pass alone, if gradients accumulate.

    They do if a frequent gap ends others that are frequent, and what these begin with holds no
    layer: it is the update.
    """
    often = example[count >= max(2, _OFTEN * count.sum())]
    if often.size <= 1:
        return int(example[0]), []
    lane, sizes = turns.lane, (turns.stop - turns.first)[often]
    short = int(often[sizes.argmin()])
    plain = lane.symbol[turns.gap(short)]
    longer = [int(number) for number in often if _ends_in(turns, int(number), plain)]
    if longer:
        return max(longer, key=lambda number: turns.gap(number).stop - turns.first[number]), [short]
    named = [bool(lane.optimizer[turns.gap(int(number))].any()) for number in often]
    if named[0] or not any(named):
        return int(example[0]), []
    # Updates are named, and most gaps hold none: several passes to each update.
    return int(often[named.index(True)]), often[~np.array(named)].tolist()


def _ends_in(turns: Turns, number: int, plain: Array) -> bool:
    """Tell whether a gap is an update and then the forward pass `plain`."""
    place, lane = turns.gap(number), turns.lane
    tail = common_suffix(plain, lane.symbol[place])
    front = slice(place.start, place.stop - tail)
    updates = int((lane.kernel[front] & ~lane.fill[front]).sum())
    return tail >= _MOSTLY * plain.size and updates > _BARELY and not lane.layer[front].any()


def _cut_kind(
    turns: Turns, number: int, template: int, cut: Cut, *, may_differ: bool
) -> tuple[int, int]:
    """Return head and front of an inner gap."""
    if turns.kinds[number] == turns.kinds[template]:
        return cut.at, cut.at
    lane, place, usual = turns.lane, turns.gap(number), turns.gap(template)
    symbol, layer = lane.symbol[place], lane.layer[place]
    weights, forward = np.split(lane.symbol[usual], [cut.at])
    size = symbol.size
    body = min(forward.size, size)
    if alike(symbol[size - body :], forward[forward.size - body :]) < _SAME_FORWARD:
        if may_differ:  # another network that takes turns with the first one
            own = cut_gap(turns, number).at
            return own, own
        # Another shape or algorithm: up to the first layer, if it is about as long.
        near = size < _MOSTLY * usual.stop - _MOSTLY * usual.start
        tail = common_suffix(symbol, forward)
        body = size if near else max(tail, min(forward.size, size - weights.size))
    front = size - body
    return _head(symbol[:front], layer[:front], lane.optimizer[place][:front], weights), front


def _mended(turns: Turns, number: int, head: int, front: int) -> tuple[int, int]:
    """Keep optimizer kernels in the update, and the input right before forward with it."""
    lane, place = turns.lane, turns.gap(number)
    layers = np.flatnonzero(lane.layer[place])
    early = np.flatnonzero(lane.optimizer[place][: int(layers[0]) if layers.size else None])
    if early.size:
        head = max(head, int(early[-1]) + 1)
        front = max(head, front)
    other = np.flatnonzero(~(lane.batch | lane.fill)[place][head:front])
    return head, head + int(other[-1]) + 1 if other.size else head


def _head(symbol: Array, layer: Array, optimizer: Array, weights: Array) -> int:
    """Return how much of what comes before a forward pass is the end of the update."""
    size = weights.size
    if symbol.size >= size > 0 and alike(symbol[:size], weights) >= _MOSTLY:
        return size
    if not layer.any():
        return symbol.size
    updates = np.flatnonzero(optimizer[: int(layer.argmax())])
    return int(updates[-1]) + 1 if updates.size else common_prefix(symbol, weights)


def _end(turns: Turns, template: int, cut: Cut) -> int:
    """Return how much of what comes after the last backward pass is an update."""
    lane, place, usual = turns.lane, turns.gap(turns.first.size - 1), turns.gap(template)
    weights = lane.symbol[usual][: cut.at]
    head = _head(lane.symbol[place], lane.layer[place], lane.optimizer[place], weights)
    return _mended(turns, turns.first.size - 1, head, head)[0]


def has_update(turns: Turns, parts: Parts) -> Array:
    """Tell which gaps begin with an update: more than cleared gradients and copies."""
    lane = turns.lane
    return total_in(lane.kernel & ~lane.fill, turns.first, turns.first + parts.head) > 0
