"""Find the backward passes (bursts) of a single thread by kernels named after gradients.

Within a backward pass few ops lie between two gradient kernels; between two passes lie a forward
pass, input or an update. So the distances between successive gradient kernels, in ops, fall into
two groups with a break between them. Not all kernels of a backward pass are named after gradients:
the mirror symmetry of launch sizes in forward and backward pass helps to find its start, and its
end is its last kernel with such a name.
"""

from __future__ import annotations

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._pair import Pair
from tracekit.attribution.structure._sequences import total_in
from tracekit.attribution.structure._step import find_turn
from tracekit.attribution.structure._work import D2H, H2D, MEMSET, Array

_TURNS = 16
"""Number of kinds of passes whose mirror image is examined."""
_MOST = 2500
"""Largest number of kernels of these passes."""
_BEFORE = 12
"""Number of ops before a pass's first gradient in which the gradient of the loss is searched."""


def find_bursts(lane: Lane) -> Pair | None:
    """Find the backward passes of the thread that launches most kernels, by kernel names.

    Returns masks of that thread's ops outside and inside of backward passes; None if too few
    kernels are named after backward passes, or their launch sizes are not recorded.
    """
    launched = lane.work.thread[lane.kernel]
    if not launched.size:
        return None
    threads, count = np.unique(launched, return_counts=True)
    main = lane.work.thread == threads[count.argmax()]
    rows = np.flatnonzero(main)
    of_thread = lane.take(rows)
    named = np.flatnonzero(of_thread.backward)
    if named.size < THRESHOLDS.named or np.unique(of_thread.symbol[named]).size < THRESHOLDS.named:
        return None
    bursts = _bursts(of_thread, named)
    if len(bursts) < THRESHOLDS.bursts:
        return None
    layers = np.array([of_thread.layer[begin:end].sum() for begin, end in bursts])
    few = np.median(layers) * len(bursts) < THRESHOLDS.backward_named * of_thread.layer.sum()
    sized = (of_thread.work.size >= 0)[of_thread.kernel].mean() >= THRESHOLDS.sized
    if few or not sized:
        return None
    backward = np.zeros(len(lane), bool)
    for begin, end in bursts:
        backward[rows[begin:end]] = True
    return Pair(main & ~backward, backward, len(bursts), 1.0, {}, by_names=True)


def has_unfed(lane: Lane, pair: Pair) -> bool:
    """Test whether layers follow a backward pass directly, without a sign of a new step.

    "Directly" means with hardly any kernel before the first layer kernel. A sign of a new step is
    an input copy, optimizer kernel, copy to the host or collective before the next backward pass.
    Without one, the layers may be another forward pass, or a recomputed one.
    """
    rows = np.flatnonzero(pair.main | pair.backward)
    of_pair, backward = lane.take(rows), pair.backward[rows]
    work = of_pair.work
    edges = np.flatnonzero(np.diff(backward.astype(np.int8)))
    ends, begins = edges[backward[edges]] + 1, edges[~backward[edges]] + 1
    begins = begins[begins > ends[0]]
    ends = ends[: begins.size]
    layers = np.append(np.flatnonzero(of_pair.layer), len(of_pair))
    first = np.minimum(layers[np.searchsorted(layers, ends)], begins)
    parts = of_pair.batch | of_pair.optimizer | (work.kind == D2H) | (work.collective > 0)
    computes = total_in(of_pair.kernel & ~of_pair.fill, ends, first) > THRESHOLDS.barely
    return bool((~computes & (total_in(parts, ends, begins) == 0)).any())


def _bursts(lane: Lane, named: Array) -> list[tuple[int, int]]:
    """Return for each backward pass its first op and the op after its last one.

    `named` has the indices of the ops that are named after gradients.
    """
    fed = lane.batch & (lane.work.kind == H2D)
    fences = fed | lane.optimizer
    apart, fenced = np.diff(named), total_in(fences, named[:-1], named[1:]) > 0
    if (
        fenced.any()
        and fenced.mean() > THRESHOLDS.hooks
        and np.median(apart[fenced]) < THRESHOLDS.near
    ):
        # Optimizers in backward's hooks part nothing.
        fences, fenced = fed, total_in(fed, named[:-1], named[1:]) > 0
    new = np.flatnonzero(fenced | (apart > _break(np.sort(apart[~fenced])))) + 1
    new = new[fenced[new - 1] | ~_within_a_pass(lane, named, new, fences)]
    groups = np.split(named, new)
    usual = float(np.median([group.size for group in groups]))
    groups = [group for group in groups if group.size >= max(3, THRESHOLDS.few_named * usual)]
    found: list[tuple[int, int]] = []
    begins: dict[bytes, int] = {}
    stops = np.flatnonzero(fences | (lane.work.kind == D2H))
    walls = np.flatnonzero(fences)
    for number, group in enumerate(groups):
        first, last = int(group[0]), int(group[-1])
        wall = int(np.searchsorted(walls, first))
        since = max(int(walls[wall - 1]) + 1 if wall else 0, found[-1][1] if found else 0)
        key = lane.symbol[since : last + 1].tobytes()
        if key not in begins:
            begins[key] = _begin(lane, since, first, last, mirrored=len(begins) < _TURNS) - since
        begin = since + begins[key]
        stop = int(np.searchsorted(stops, last + 1))
        until = min(
            int(stops[stop]) if stop < stops.size else len(lane),
            int(groups[number + 1][0]) if number + 1 < len(groups) else len(lane),
        )
        alike = np.isin(lane.symbol[last + 1 : until], np.unique(lane.symbol[begin : last + 1]))
        alike |= lane.layer[last + 1 : until] | (lane.work.kind[last + 1 : until] == MEMSET)
        more = min(int(np.append(alike, values=False).argmin()), int(np.diff(group).max(initial=4)))
        found.append((begin, last + 1 + more))
    return found


def _within_a_pass(lane: Lane, named: Array, new: Array, fences: Array) -> Array:
    """Test which breaks between groups of gradient kernels divide no two backward passes.

    `new` has the first of each group but the first, as indices in `named`; `fences` masks ops that
    part passes. Where kernels of some groups are named after the gradient of the loss, what lies
    before these, since a fence, is forward pass. A group without any goes on with the pass before
    if all layers between them have names that occur within groups, or none has a name of forward.
    """
    begins, ends = named[np.append(0, new)], named[np.append(new - 1, -1)] + 1
    lost = total_in(lane.loss_gradient, begins, ends) > 0

    def layers_in(first: Array, stop: Array) -> Array:
        edges = np.bincount(first, minlength=len(lane) + 1) - np.bincount(
            stop, minlength=len(lane) + 1
        )
        return np.unique(lane.symbol[lane.layer & (np.cumsum(edges)[:-1] > 0)])

    since = np.maximum.accumulate(np.where(fences, np.arange(len(lane)) + 1, 0))[begins]
    since = np.maximum(since, np.append(0, ends[:-1]))
    forward = layers_in(since[lost], begins[lost])
    other = ~np.isin(lane.symbol, layers_in(begins, ends))
    between = [
        total_in(lane.layer & mask, ends[:-1], begins[1:])
        for mask in (np.isin(lane.symbol, forward), other)
    ]
    return np.asarray(lost.any() & ~lost[1:] & (np.minimum(*between) == 0))


def _break(apart: Array) -> float:
    """Return the distance, in ops, above which two gradient kernels are of different passes.

    `apart` has the distances between successive gradient kernels, sorted.
    """
    if apart.size <= THRESHOLDS.named:
        return THRESHOLDS.far
    least = max(THRESHOLDS.least_break, 2 * float(np.median(apart)))
    ladder = np.concatenate(([least], np.unique(apart[apart >= least])))
    ratio = ladder[1:] / ladder[:-1]
    if ratio.size and ratio.max() > THRESHOLDS.broken:
        return float(ladder[int(ratio.argmax())])
    return max(THRESHOLDS.far, float(apart[-1]))


def _begin(lane: Lane, since: int, first: int, last: int, *, mirrored: bool) -> int:
    """Return a backward pass's first op: a gradient kernel, or the centre of mirrored sizes.

    `first` and `last` are the first and last gradient kernel of the pass, `since` the op from which
    on it may begin. With `mirrored`, the mirror symmetry of launch sizes in forward and backward
    pass is used. A few kernels of the forward pass may be named like gradients, but not like that
    of the loss. A backward pass begins with the gradient of the loss, before which is a fill; many
    fills before that clear gradients.
    """
    body = np.flatnonzero(lane.kernel[since : last + 1]) + since
    named = lane.backward[body]
    begin = first
    if mirrored and body.size <= _MOST:
        inner, outer, share = find_turn(lane.work.size[body])
        turn = (inner + outer + 1) // 2
        early = int(named[:turn].sum())
        if share and early and lane.layer[first : body[turn]].any():
            few = early <= THRESHOLDS.named_before * named.sum()
            begin = int(body[turn]) if few else _dense(body, named, first)
            begin = min([begin, *body[lane.loss_gradient[body]].tolist()])
    near = np.arange(max(begin - _BEFORE, since), begin)
    near = near[np.flatnonzero(np.append(True, lane.layer[near]))[-1] :]
    fills = near[lane.fill[near]]
    if not fills.size:
        return begin
    return int(fills[-1] if fills.size >= THRESHOLDS.cleared else fills[0])


def _dense(body: Array, named: Array, first: int) -> int:
    """Return the op of a backward pass from which on gradient kernels are frequent.

    That is, more frequent than on average in the pass. `body` has the indices of its ops, `named`
    is true for gradient kernels among them; the result is `first` or later.
    """
    at = np.flatnonzero(named)
    before = np.cumsum(named - named.mean())[at] - 1 + named.mean()
    return max(first, int(body[at[before <= before.min() + 1][0]]))
