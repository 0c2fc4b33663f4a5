"""Split a single thread's step: find its start, the start of backward, and the update.

Launches of a layer have the same sizes in forward and backward pass, and backward begins with the
last layer. So launches of equal size form nested pairs, like brackets; the middle of the set of
nested pairs with the largest weight is the turn to backward. This is so within a training step
only: any program that repeats launch sizes has nested pairs, so they are no evidence of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._sequences import alike, kinds_of
from tracekit.attribution.structure._work import (
    BP,
    D2D,
    D2H,
    FP,
    H2D,
    IO,
    ME,
    NOTHING,
    WU,
    Array,
)
from tracekit.support.wording import percent


@dataclass(frozen=True)
class Usual:
    """One occurrence of the usual (repeating) step in a launch sequence."""

    rows: Array
    """Indices of its ops in the sequence."""
    symbol: Array
    """Symbols (integers for kernel names) of its ops."""
    lead: int
    """Number of ops at its start that bring input or clear gradients."""
    low: int
    high: int
    """Number of ops at its start that may belong to the previous update, and number of ops at its
    end that may belong to the next step."""
    why: str
    """Evidence for its start, in words."""


def usual_step(lane: Lane, first: int, size: int) -> Usual:
    """Choose the start of a step in a sequence that repeats every `size` ops from `first` on.

    Between the last optimizer kernel and the next layer, the step begins at a copy of input, else
    after a copy of a result to the host, else where the host waits longest.
    """
    ring = np.arange(first, first + size)
    candidates = _candidates(lane.optimizer[ring], lane.layer[ring])
    chosen, why = _chosen(lane, ring, candidates)
    begin = int(ring[candidates[chosen]])
    if begin + size > len(lane):
        begin -= size
    rows = np.arange(begin, begin + size)
    kind = lane.work.kind[rows]
    body = ~(np.isin(kind, (H2D, D2D, D2H)) | lane.fill[rows])
    lead = int(body.argmax()) if body.any() else 0
    return Usual(rows, lane.symbol[rows], lead, chosen, candidates.size - 1 - chosen, why)


def _candidates(optimizer: Array, layer: Array) -> Array:
    """Return the ops of a repeating step at which it may begin, in order of launch.

    These lie between the last optimizer kernel and the next layer; if the step lacks either, all
    ops qualify.
    """
    size = optimizer.size
    marks = np.flatnonzero(optimizer | layer)
    after = np.roll(marks, -1)
    turns = np.flatnonzero(optimizer[marks] & layer[after])
    if not turns.size:
        return np.arange(size)
    # Of several, the one after the most optimizer kernels.
    runs = np.diff(np.concatenate(([turns[-1] - marks.size], turns)))
    turn = turns[runs.argmax()]
    first, last = int(marks[turn]) + 1, int(after[turn])
    return np.arange(first, last + 1 + (size if last < first else 0)) % size


def _chosen(lane: Lane, ring: Array, candidates: Array) -> tuple[int, str]:
    at = ring[candidates]
    for copy, name in ((H2D, "copy from the host"), (D2D, "copy on the device")):
        found = np.flatnonzero(lane.batch[at] & (lane.work.kind[at] == copy))
        if found.size:
            return int(found[0]), name
    fetched = np.flatnonzero(lane.work.kind[ring[candidates - 1]] == D2H)
    if fetched.size:
        return int(fetched[-1]), "fetched result"
    return int(_pauses(lane, at, ring.size).argmax()), "long pause of the host"


def _pauses(lane: Lane, at: Array, size: int) -> Array:
    """Return the host's median pause before the launches at positions `at` of a step, ns.

    The step has `size` ops.
    """
    launch = lane.work.launch
    rounds = np.arange(-(int(at.min()) // size), (len(lane) - 1 - int(at.max())) // size + 1)
    places = np.maximum(at + rounds[:, None] * size, 1)
    return np.asarray(np.median(launch[places] - launch[places - 1], axis=0))


@dataclass(frozen=True)
class Step:
    """A step split into stages, with the uncertainty of each cut."""

    stage: Array
    """Per op of the step: its stage, as index in the list of stages."""
    turn: int
    update: int
    """Index of the first op of backward, and of the first op of the update."""
    mirror: float
    """Share of the launches that form nested pairs of equal size (mirror symmetry of forward and
    backward). A launch weighs less the more launches have its size."""
    sized: bool
    """Whether the sizes (number of threads) of most launches are known."""
    recomputed: float
    """Share of backward's layers that occur in the same order as in forward."""
    fed_again: bool
    """Whether a batch is copied from the host during backward."""
    signs: dict[str, bool]
    """Sign of training -> whether the step shows it: optimizer kernels, gradient kernels after the
    start of backward, an exchange of gradients, the mirror symmetry."""
    evidence: tuple[str, ...]
    contradictions: tuple[str, ...]
    doubts: tuple[tuple[str, int, int], ...]
    """Kind of cut between two stages, and busy time before and after it, in one step, that may
    belong to the other stage, ns."""


def take_apart(lane: Lane, usual: Usual) -> Step:
    """Split the ops of a usual (repeating) step into stages: input, forward, backward, update."""
    layers = np.flatnonzero(lane.layer)
    last = int(layers[-1]) if layers.size else len(lane) - 1
    late = np.flatnonzero(lane.optimizer[last + 1 :])
    update = last + 1 + int(late[0]) if late.size else last + 1
    turn, low, high, mirror, why = _turn(lane, update)
    named = int(lane.backward[:turn].sum()), int(lane.backward[turn:update].sum())
    fed_again = bool((lane.batch & (lane.work.kind == H2D))[turn:update].any())
    signs = {
        "optimizer kernels": bool(lane.optimizer.any()),
        "kernels of gradients": named[1] >= THRESHOLDS.named
        and named[1] > THRESHOLDS.named * named[0],
        "mirror image": mirror >= THRESHOLDS.mirror,
    }
    spent = np.concatenate(([0], np.cumsum(lane.work.end - lane.work.start)))

    def between(first: int, stop: int) -> int:
        return int(spent[max(stop, first)] - spent[first])

    size = len(lane)
    doubts = (
        ("update | input", between(size - usual.low, size), between(0, usual.high)),
        ("forward | backward", between(low, turn), between(turn, high)),
        ("backward | update", between(last + 1, update), 0 if late.size else between(update, size)),
    )
    evidence = (
        f"by the order of one thread's launches a step of {size:,} ops begins at a {usual.why}",
        f"backward is taken to begin at {turn:,} ({why}) and the update at {update:,}",
        f"kernels named for gradients: {named[0]:,} before that place, {named[1]:,} after",
    )
    against = () if named[1] >= named[0] else ("more kernels of gradients in forward",)
    return Step(
        _stages(lane, turn, update), turn, update, mirror, _sized(lane, update),
        _recomputed(lane, turn, update), fed_again, signs, evidence, against, doubts,
    )  # fmt: skip


def refusal(step: Step) -> str:
    """Explain why a step's stages are unreliable; empty if they are reliable.

    Kernel names alone do not show where backward begins: not all of its kernels are named after
    gradients, and the first ones may be unnamed.
    """
    if not step.sized:
        return "sizes of launches are not known, so that no step shows where it turns back"
    named = step.signs["optimizer kernels"] or step.signs["kernels of gradients"]
    if not named or sum(step.signs.values()) < THRESHOLDS.signs:
        missing = ", ".join(name for name, seen in step.signs.items() if not seen)
        return f"a step shows no {missing}"
    if (
        not THRESHOLDS.earliest_turn * step.update
        < step.turn
        < THRESHOLDS.latest_turn * step.update
    ):
        return "a step does not turn back between its beginning and its end"
    if step.fed_again:
        return "a step takes input again after it has turned back: it has several passes"
    if step.recomputed > THRESHOLDS.recomputed:
        return f"{percent(step.recomputed)} of its backward pass looks like forward computed again"
    return ""


def _turn(lane: Lane, update: int) -> tuple[int, int, int, float, str]:
    """Return the op at which backward starts, its bounds, the mirrored share, and what decided.

    `update` is the first op of the update. The mirrored share is the weight of launches that form
    nested pairs of equal size; see `find_turn`.

    The centre of the mirrored launch sizes decides, unless the gradient of the loss, or too many
    gradient kernels, come before it: pairs within the backward pass may weigh more. Fills of equal
    size also form pairs: these clear gradients, and the last one sets the gradient of the loss.
    """
    body = np.flatnonzero(lane.kernel[:update])
    if not body.size:
        return 0, 0, 0, 0.0, "no kernel before the update"
    named, fill = lane.backward[body], lane.fill[body]
    inner, outer, share = find_turn(lane.work.size[body])
    turn = (inner + outer + 1) // 2
    if fill[inner : outer + 1].all():
        inner -= int(np.append(fill[inner:0:-1], values=False).argmin())
        outer += int(np.append(fill[outer:-1], values=False).argmin())
        turn = max(outer - 1, 0)
    lost = np.flatnonzero(lane.loss_gradient[body[:turn]])
    if lost.size and lane.layer[body[lost[0] : turn]].any():
        begin = int(body[max(lost[0] - int(fill[lost[0] - 1]), 0)])
        return begin, begin, begin, share, "gradient of the loss"
    if share and named[:turn].sum() <= THRESHOLDS.named_before * named.sum():
        centre = int(body[turn]), int(body[inner]) + 1, int(body[outer])
        return *centre, share, f"mirror image {share:.2f}"
    early, plain = (int(body[place]) for place in _named_turn(named))
    return early, early, plain, share, "names of gradients"


def _sized(lane: Lane, update: int) -> bool:
    """Test whether the sizes (threads) of most launches before the update are known."""
    size = lane.work.size[:update][lane.kernel[:update]]
    return not size.size or bool((size >= 0).mean() >= THRESHOLDS.sized)


def _named_turn(backward: Array) -> tuple[int, int]:
    """Return two ops from which on gradient kernels are frequent: an early one, a later one.

    Not all kernels of backward have such names. The later op is the gradient kernel up to which the
    count of gradient kernels falls furthest below that expected from their average frequency; the
    early op is the first gradient kernel where this shortfall is at most one kernel smaller.
    """
    named = np.flatnonzero(backward)
    if not named.size:
        return 0, 0
    above = np.cumsum(backward - backward.mean())
    before = above[named] - 1 + backward.mean()
    early, plain = int(named[before <= before.min() + 1][0]), int(named[before.argmin()])
    return early, plain


def _stages(lane: Lane, turn: int, update: int) -> Array:
    stage = np.full(len(lane), WU)
    stage[:turn] = FP
    stage[turn:update] = BP
    evaluated = _evaluated(lane, turn)
    stage[:evaluated] = ME
    kind = lane.work.kind
    body = ~(np.isin(kind, (H2D, D2D, D2H)) | lane.fill)
    body[:evaluated] = False
    lead = slice(evaluated, int(body.argmax()))
    stage[lead][np.isin(kind[lead], (H2D, D2D))] = IO
    stage[lead][kind[lead] == D2H] = NOTHING
    if lane.fill[lead].sum() >= THRESHOLDS.cleared:
        stage[lead][lane.fill[lead]] = WU
    stage[(stage == FP) & lane.batch & (kind == H2D)] = IO
    return stage


def _evaluated(lane: Lane, turn: int) -> int:
    """Return how many of a step's first ops are evaluation: a forward pass with a separate input.

    They are evaluation if input is copied again in the middle of the forward pass, and the layers
    before that copy equal those after it.
    """
    copies = np.flatnonzero(lane.batch[:turn])
    for begin in copies[::-1].tolist():
        before = lane.symbol[:begin][lane.layer[:begin]]
        after = lane.symbol[begin:turn][lane.layer[begin:turn]]
        fits = 0 < before.size <= after.size
        if fits and alike(before, after[: before.size]) >= THRESHOLDS.evaluated_again:
            return _first_of_run(lane.batch, begin)
    return 0


def _first_of_run(mask: Array, place: int) -> int:
    while place > 0 and mask[place - 1]:
        place -= 1
    return place


def _recomputed(lane: Lane, turn: int, update: int) -> float:
    """Return the share of backward's layers that occur in the same order as in forward."""
    size = update - THRESHOLDS.gram + 1
    if size <= turn or turn <= THRESHOLDS.gram:
        return 0.0
    first = np.arange(size)
    grams = kinds_of(lane.symbol, first, first + THRESHOLDS.gram)
    again = np.isin(grams[turn:], grams[: turn - THRESHOLDS.gram + 1])
    layers = lane.layer[turn:size]
    return float(again[layers].mean()) if layers.any() else 0.0


# -- the turn from forward to backward

_MOST = 1500
"""Largest number of launches in the nest; those with the rarest sizes are taken."""


def find_turn(size: Array) -> tuple[int, int, float]:
    """Pair launches of equal size so that the pairs are nested; return the innermost pair.

    The backward pass repeats the launch sizes of the forward pass in reverse, so this pair encloses
    the border between the passes. Returned are the indices of its two launches, and the weight of
    all pairs as a share of the weight of all launches: a launch weighs less, the more launches have
    its size. Only up to `_MOST` launches are paired, as time and memory grow with their square.
    """
    _, same, count = np.unique(size, return_inverse=True, return_counts=True)
    paired = np.flatnonzero((count[same] > 1) & (size >= 0))
    if paired.size > _MOST:
        # All launches of a size, or none; of equally rare ones, sizes from anywhere in the step.
        spread = np.random.default_rng(0).permutation(count.size)[same[paired]]
        rarest = np.lexsort((spread, count[same[paired]]))[:_MOST]
        paired = np.sort(paired[rarest])
    if (
        paired.size < THRESHOLDS.mirror_launches
        or np.unique(same[paired]).size < THRESHOLDS.mirror_sizes
    ):
        return 0, 0, 0.0
    codes = same[paired]
    weight = 1 / count[codes]
    table = _nests(codes, weight)
    inner, outer = paired[list(_middle(table, codes.size))]
    total_weight = float((1 / count[same]).sum())
    return int(inner), int(outer), float(2 * table[0, -1] / total_weight)


def _nests(codes: Array, weight: Array) -> Array:
    """Return a table: at [i, j] the largest weight of nested equal pairs in launches i to j - 1.

    A pair is two launches with equal `codes` (sizes); its weight is that of one of them.
    """
    size = codes.size
    table = np.zeros((size + 1, size + 1), np.float32)
    for width in range(2, size + 1):
        first = np.arange(size - width + 1)
        last = first + width - 1
        pair = np.where(codes[first] == codes[last], weight[first], 0)
        around = table[first + 1, last] + pair
        table[first, last + 1] = np.maximum(
            np.maximum(table[first + 1, last + 1], table[first, last]), around
        )
    return table


def _middle(table: Array, size: int) -> tuple[int, int]:
    """Return the innermost of the heaviest nested pairs of equal launches, among `size` launches.

    `table` has the largest weights, from `_nests`; the search goes inward from both ends.
    """
    first, last, found = 0, size, (0, size - 1)
    while first < last - 1:
        if table[first, last] == table[first + 1, last]:
            first += 1
        elif table[first, last] == table[first, last - 1]:
            last -= 1
        else:
            found = (first, last - 1)
            first, last = first + 1, last - 1
    return found
