"""The turns that two sides take: bursts of backward, and the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._kernel_hints import Lane
from tracekit.attribution.structure._pair import Pair
from tracekit.attribution.structure._sequences import kinds_of, total_in
from tracekit.attribution.structure._work import Array


@dataclass(frozen=True)
class Turns:
    """Gap 0, burst 0, gap 1, burst 1, ..., and a last gap; the first and the last may be empty.

    Parameters
    ----------
    lane
        The ops that the pair launches, in order.
    bursts, ends
        Where each burst begins and ends. Gap n ends where burst n begins.
    """

    lane: Lane
    bursts: Array
    ends: Array

    @cached_property
    def first(self) -> Array:
        """Begin of each gap."""
        return np.concatenate(([0], self.ends))

    @cached_property
    def stop(self) -> Array:
        """End of each gap."""
        return np.concatenate((self.bursts, [len(self.lane)]))

    @cached_property
    def kinds(self) -> Array:
        """A number for each gap, the same for gaps of the same ops."""
        return kinds_of(self.lane.symbol, self.first, self.stop)

    @cached_property
    def passes(self) -> Array:
        """A number for each burst, the same for bursts of the same ops."""
        return kinds_of(self.lane.symbol, self.bursts, self.ends)

    @cached_property
    def drained(self) -> Array:
        """Tell which launches found nothing left to run on the device."""
        work = self.lane.work
        ended = np.maximum.accumulate(work.end)
        return np.append(False, work.launch[1:] >= ended[:-1])

    def gap(self, number: int) -> slice:
        """Return the place of a gap."""
        return slice(int(self.first[number]), int(self.stop[number]))


def take_turns(lane: Lane, pair: Pair) -> tuple[Turns, Array]:
    """Return the turns of a pair, and which ops of the lane they are made of."""
    rows = np.flatnonzero(pair.main | pair.backward)
    own = lane.take(rows)
    backward = np.concatenate(([False], pair.backward[rows], [False]))
    edges = np.flatnonzero(backward[1:] != backward[:-1])
    begins, ends = edges[::2], edges[1::2]
    between, until = ends[:-1], begins[1:]
    stray = (until - between <= THRESHOLDS.stray) & (total_in(own.layer, between, until) == 0)
    kept = np.concatenate(([True], ~stray))
    return Turns(own, begins[kept], ends[np.append(kept[1:], True)]), rows
