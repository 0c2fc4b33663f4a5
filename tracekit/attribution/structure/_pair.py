"""Find the two groups of threads that run forward and backward passes, with evidence.

Autograd runs the backward of an operator on the stream of its forward, from a separate thread,
while the calling thread waits. So both threads use the same stream, they alternate, and each run of
backward launches begins at one of a few points of the launch sequence. Data pipelines use other
streams, and their launches can begin anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._sequences import distinct, kinds_of, total_in
from tracekit.attribution.structure._work import D2H, GRAPH, H2D, REDUCTIONS, SEND_RECV, Array

_TWO = 2
_CANDIDATES = 8
"""Number of threads that are tried as one side of a pair: those with most kernels."""
_SPOKEN = ("optimizer kernels", "kernels of gradients", "gradient collectives")
"""Votes that indicate training: inference and its input also alternate."""


@dataclass(frozen=True)
class Pair:
    """Two groups of threads ("sides"): one launches forward passes and updates, one backward."""

    main: Array
    backward: Array
    """Masks of the ops that each side launches."""
    turns: int
    """Number of turns, that is, uninterrupted runs of launches, of the backward side."""
    steady: float
    """Share of these turns that begin at one of the most frequent pairs of kernels (last one of the
    other side, first one of the turn)."""
    votes: dict[str, int]
    """Kind of evidence -> 1 if it supports this assignment of roles, -1 if it contradicts it."""
    by_names: bool = False
    """Whether one thread launches everything, and kernel names show its backward passes."""

    @property
    def agreed(self) -> int:
        """Number of kinds of evidence for the roles of the two sides, minus the number against."""
        return sum(self.votes.values())

    @property
    def trains(self) -> bool:
        """Whether names or collectives indicate training with these roles, and none contradict."""
        spoken = [self.votes.get(name, 0) for name in _SPOKEN]
        return sum(spoken) >= 1 and min(spoken) >= 0


def find_pair(lane: Lane) -> Pair | None:
    """Return the two groups of threads whose launches alternate most clearly; None if none do."""
    pairs = [pair for sides in _sides(lane) if (pair := _judge(lane, *sides)) is not None]
    clear = [
        pair
        for pair in pairs
        if pair.steady >= THRESHOLDS.begin_share and pair.agreed >= THRESHOLDS.votes
    ]
    return max(
        clear, key=lambda pair: (pair.agreed, int((pair.main | pair.backward).sum())), default=None
    )


def _sides(lane: Lane) -> Iterator[tuple[Array, Array]]:
    """Yield candidate pairs: masks of the ops of one thread and of all others on a shared stream.

    Each pair comes twice, with either group as the forward side.

    The stream is the one with the most kernels of both sides, or any on which each side launches
    many: cuDNN runs the layers of a recurrent network on streams it creates. All other threads form
    one side, since DataParallel creates threads for every forward pass, and autograd has several
    for passes within passes.
    """
    work = lane.work
    threads, thread = distinct(work.thread)
    streams, stream = distinct(work.context_stream)
    some = lane.kernel & (work.thread >= 0)
    pairs, kernels = np.unique(thread[some] * streams.size + stream[some], return_counts=True)
    # Sorted by kernels, so that of a thread's streams the one with most is written last.
    order = np.argsort(kernels, kind="stable")
    of, on = np.divmod(pairs[order], streams.size)
    many = kernels[order] >= THRESHOLDS.side_kernels
    main_stream = np.full(threads.size, -1)
    main_stream[of] = on
    launched = np.bincount(thread[some], minlength=threads.size)
    for which in np.argsort(-launched, kind="stable")[:_CANDIDATES]:
        together = (main_stream == main_stream[which]) & (main_stream >= 0)
        together[of[many & np.isin(on, on[many & (of == which)])]] = True
        if together.sum() <= 1:
            continue
        alone = thread == which
        others = together[thread] & ~alone
        yield others, alone
        if together.sum() > _TWO:
            yield alone, others


def _judge(lane: Lane, main: Array, backward: Array) -> Pair | None:
    # A graph that was recorded as a whole holds many kernels.
    worth = np.where(lane.work.kind == GRAPH, THRESHOLDS.side_kernels, lane.kernel)
    if min(int(worth[side].sum()) for side in (main, backward)) < THRESHOLDS.side_kernels:
        return None
    both = np.flatnonzero(main | backward)
    turn = backward[both]
    begins = np.flatnonzero(turn[1:] & ~turn[:-1]) + 1
    if begins.size <= 1:
        return None
    symbol = lane.symbol[both]
    places = symbol[begins - 1] * (int(symbol.max()) + 1) + symbol[begins]
    usual = np.sort(np.unique(places, return_counts=True)[1])[::-1]
    steady = float(usual[: THRESHOLDS.begin_places].sum() / begins.size)
    return Pair(main, backward, int(begins.size), steady, _votes(lane, main, backward))


def _votes(lane: Lane, main: Array, backward: Array) -> dict[str, int]:
    work = lane.work
    signs = (
        ("optimizer kernels", lane.optimizer, 1),
        ("copies from the host", work.kind == H2D, 1),
        ("copies to the host", work.kind == D2H, 1),
        ("kernels of gradients", lane.backward, -1),
        ("gradient collectives", np.isin(work.collective, REDUCTIONS), -1),
    )
    votes = {}
    for name, mask, sign in signs:
        one, other = int((mask & main).sum()), int((mask & backward).sum())
        if one + other and max(one, other) >= THRESHOLDS.one_sided * (one + other):
            votes[name] = sign if one > other else -sign
    if votes.get("optimizer kernels") == -1 and votes.get("kernels of gradients") == 1:
        votes["optimizer kernels"] = 0  # it is called by hooks as soon as gradients are there
    if votes.get("gradient collectives") == -1 and votes.get("kernels of gradients") == 1:
        votes["gradient collectives"] = 0  # gradients are exchanged once the passes have ended
    votes["who launches first"] = 1 if main.argmax() < backward.argmax() else -1
    first = work.main_thread
    if first is not None and bool(((work.thread == first) & (main | backward)).any()):
        votes["the process' first thread"] = 1 if (work.thread[main] == first).any() else -1
    return votes


@dataclass(frozen=True)
class Turns:
    """Launches of two thread groups, split into bursts (backward passes) and the gaps around them.

    A burst is an uninterrupted run of launches of the backward side, that is, a backward pass; a
    gap is the sequence that the main side launches between two bursts: gap 0, burst 0, gap 1 and so
    on. The first and the last gap may be empty.
    """

    lane: Lane
    """The ops that the pair launches, in order."""
    bursts: Array
    ends: Array
    """First op of each burst and op after its last, as indices in the lane. Gap n ends where burst
    n begins."""

    @cached_property
    def first(self) -> Array:
        """Index of the first op of each gap, in launch order."""
        return np.concatenate(([0], self.ends))

    @cached_property
    def stop(self) -> Array:
        """Index after the last op of each gap, in launch order."""
        return np.concatenate((self.bursts, [len(self.lane)]))

    @cached_property
    def kinds(self) -> Array:
        """Kind of each gap between bursts: an integer, equal for gaps that launch the same ops."""
        return kinds_of(self.lane.symbol, self.first, self.stop)

    @cached_property
    def passes(self) -> Array:
        """Kind of each burst: an integer, equal for bursts that launch the same ops."""
        return kinds_of(self.lane.symbol, self.bursts, self.ends)

    @cached_property
    def drained(self) -> Array:
        """Mask launches at which all earlier work of the device had ended (the GPU was idle)."""
        work = self.lane.work
        ended = np.maximum.accumulate(work.end)
        return np.append(False, work.launch[1:] >= ended[:-1])

    def gap(self, number: int) -> slice:
        """Return the range of op indices, in launch order, of the gap `number` between bursts."""
        return slice(int(self.first[number]), int(self.stop[number]))


def take_turns(lane: Lane, pair: Pair) -> tuple[Turns, Array]:
    """Split the launches of a pair of thread groups into backward passes and the gaps between them.

    Also return the rows of these ops in `lane`, the ops of the whole device in order of launch.
    """
    rows = np.flatnonzero(pair.main | pair.backward)
    of_pair = lane.take(rows)
    backward = np.concatenate(([False], pair.backward[rows], [False]))
    edges = np.flatnonzero(backward[1:] != backward[:-1])
    begins, ends = edges[::2], edges[1::2]
    between, until = ends[:-1], begins[1:]
    parts = of_pair.layer | (of_pair.work.collective == SEND_RECV)
    stray = (until - between <= THRESHOLDS.stray) & (total_in(parts, between, until) == 0)
    kept = np.concatenate(([True], ~stray))
    return Turns(of_pair, begins[kept], ends[np.append(kept[1:], True)]), rows
