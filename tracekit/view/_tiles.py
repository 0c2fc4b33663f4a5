"""Tiles: a lane summed up in bins, at levels of which each is four times as coarse as the last.

A bin holds, by stage, the time in which anything of the lane runs, the number of spans that start
in it, and the longest of these. Bins of a level meet bins of all others at their edges, so sums of
a level are exact, and equal on all levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.model import STAGES

Ints: TypeAlias = npt.NDArray[np.int64]

FACTOR = 4
_FINEST = 1_024
"""Length of the finest bins there may be, ns."""
_FULL, _FULL_OF_FEW = 16, 4
"""Spans that a bin of the first level holds in the mean, or more; of one of few bins."""
_FEW_BINS = 4_096
_FEW = 64
"""There is no coarser level than one of so many bins."""
NO_STAGE = "none"
LOOKS = (*STAGES, NO_STAGE)
"""What spans are told apart by: their stages, and none."""


class Covered:
    """Time in which at least one of some spans lasts.

    Parameters
    ----------
    start, end
        The spans, ns, in any order.
    """

    def __init__(self, start: Ints, end: Ints) -> None:
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        begins = np.flatnonzero(np.r_[True, start[1:] > reach[:-1]]) if len(start) else order
        self.start: Ints = start[begins]
        self.end: Ints = reach[np.r_[begins[1:] - 1, len(reach) - 1]] if len(start) else reach
        self._before: Ints = np.r_[0, np.cumsum(self.end - self.start)]

    def until(self, times: Ints) -> Ints:
        """Return the length of what is covered before each time."""
        last = np.searchsorted(self.start, times, "right") - 1
        if not len(self.start):
            return np.zeros_like(times)
        begun = np.maximum(last, 0)
        inside = np.minimum(times, self.end[begun]) - self.start[begun]
        return np.where(last < 0, 0, self._before[begun] + inside)

    def holds(self, times: Ints) -> npt.NDArray[np.bool_]:
        """Tell which times are covered."""
        last = np.searchsorted(self.start, times, "right") - 1
        return (last >= 0) & (times < self.end[np.maximum(last, 0)]) if len(self.end) else last > 0

    def with_more(self, other: Covered) -> Covered:
        """Return what either covers."""
        return Covered(np.r_[self.start, other.start], np.r_[self.end, other.end])


@dataclass(frozen=True)
class Spans:
    """Spans of a lane: start and end in ns, and which of `LOOKS` each has."""

    start: Ints
    end: Ints
    look: Ints

    def by_look(self) -> dict[str, Covered]:
        """Return what spans of each look cover, by precedence."""
        every = {number: self.look == number for number in np.unique(self.look)}
        return {
            LOOKS[number]: Covered(self.start[own], self.end[own]) for number, own in every.items()
        }

    def exposed(self) -> tuple[Spans, dict[str, Covered]]:
        """Return when spans of a stage last while none of higher precedence does.

        As spans, of which no two overlap, and by stage.
        """
        every = self.by_look()
        edges = np.unique(np.concatenate([[], *(np.r_[c.start, c.end] for c in every.values())]))
        edges = edges.astype(np.int64)
        look = np.full(max(len(edges) - 1, 0), -1)
        for name, covered in every.items():
            look[(look < 0) & covered.holds(edges[:-1])] = LOOKS.index(name)
        changes = np.flatnonzero(np.r_[True, look[1:] != look[:-1]]) if len(look) else look
        start, end = (
            edges[changes],
            edges[np.r_[changes[1:], len(edges) - 1]] if len(look) else edges,
        )
        kept = look[changes] >= 0
        found = Spans(start[kept], end[kept], look[changes][kept])
        return found, found.by_look()


@dataclass(frozen=True)
class Level:
    """Sums of a lane in bins of one length.

    Parameters
    ----------
    width
        Length of a bin, ns.
    busy
        By look: how long anything of it runs in each bin, ns.
    count, longest
        How many spans start in each bin, and the length of the longest of these, ns.
    """

    width: int
    busy: Mapping[str, Ints]
    count: Ints
    longest: Ints

    def coarser(self) -> Level:
        """Return the next level."""
        return Level(
            self.width * FACTOR,
            {look: _in_fours(each).sum(axis=1) for look, each in self.busy.items()},
            _in_fours(self.count).sum(axis=1),
            _in_fours(self.longest).max(axis=1),
        )


def _is_full(spans: int, bins: int) -> bool:
    return spans >= bins * (_FULL if bins > _FEW_BINS else _FULL_OF_FEW)


def _in_fours(values: Ints) -> Ints:
    return np.pad(values, (0, -len(values) % FACTOR)).reshape(-1, FACTOR)


@dataclass(frozen=True)
class Tiles:
    """The levels of a lane.

    Parameters
    ----------
    origin
        Where the first bin of all levels begins, ns.
    first
        The finest of its levels; where it holds too few spans for any, that is the coarsest, too.
    """

    origin: int
    first: Level

    @classmethod
    def of(cls, spans: Spans, busy: Mapping[str, Covered], origin: int, end: int) -> Tiles:
        """Sum up a lane.

        Parameters
        ----------
        spans
            What is counted.
        busy
            When anything runs, by look.
        origin, end
            From when to when the run takes, ns; all spans lie between.
        """
        length = max(end - origin, 1)
        width = _FINEST
        while not _is_full(len(spans.start), length // width) and width * _FEW < length:
            width *= FACTOR
        bins = -(-length // width)
        edges = origin + width * np.arange(bins + 1)
        place = np.minimum((spans.start - origin) // width, bins - 1)
        longest = np.zeros(bins, np.int64)
        np.maximum.at(longest, place, spans.end - spans.start)
        return cls(
            origin,
            Level(
                width,
                {look: np.diff(each.until(edges)) for look, each in busy.items()},
                np.bincount(place, minlength=bins).astype(np.int64),
                longest,
            ),
        )

    @cached_property
    def levels(self) -> Sequence[Level]:
        """All levels, the finest first."""
        levels = [self.first]
        while len(levels[-1].count) > _FEW:
            levels.append(levels[-1].coarser())
        return levels

    def level(self, width: float) -> Level | None:
        """Return the coarsest level whose bins are no longer; None where each is longer."""
        fitting = [each for each in self.levels if each.width <= width]
        return fitting[-1] if fitting else None

    def count(self, start: int, end: int) -> int:
        """Return how many spans start in the bins of the first level that a time touches."""
        first, last = self.bins(self.first, start, end)
        return int(self.first.count[first:last].sum())

    def bins(self, level: Level, start: int, end: int) -> tuple[int, int]:
        """Return the first of the bins that a time touches, and the one behind the last."""
        first = (start - self.origin) // level.width
        last = -((self.origin - end) // level.width)
        most = len(level.count)
        return min(max(first, 0), most), min(max(last, 0), most)
