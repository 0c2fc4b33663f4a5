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

from tracekit.analysis.idle_account import CAUSES
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
NO_STAGE, COMMUNICATION = "none", "communication"
LOOKS = (*STAGES, NO_STAGE, COMMUNICATION, *CAUSES)
"""What spans are told apart by: their stages, and none; communication of whatever stage; and causes
of idle time."""


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
            {look: small(_in_fours(each).sum(axis=1)) for look, each in self.busy.items()},
            small(_in_fours(self.count).sum(axis=1)),
            small(_in_fours(self.longest).max(axis=1)),
        )


def small(values: Ints) -> Ints:
    """Return numbers from zero on in the least bytes that hold them: tiles stay in memory."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _in_fours(values: Ints) -> Ints:
    padded = np.pad(values.astype(np.int64), (0, -len(values) % FACTOR))
    return padded.reshape(-1, FACTOR)


def width_below(most: float) -> int:
    """Return the greatest length of bins that is no longer, ns; that of the finest if all are."""
    width = _FINEST
    while width * FACTOR <= most:
        width *= FACTOR
    return width


def first_width(spans: int, length: int) -> int:
    """Return how long the bins of the first level of a lane are, ns.

    Parameters
    ----------
    spans
        How many it has.
    length
        How long the run takes, ns.
    """
    width = _FINEST
    while width * _FEW < length:
        bins = length // width
        if spans >= bins * (_FULL if bins > _FEW_BINS else _FULL_OF_FEW):
            break
        width *= FACTOR
    return width


class Summing:
    """Sums up a lane, a stretch of time after the other.

    Parameters
    ----------
    spans
        How many it has.
    origin, end
        From when to when the run takes, ns; all spans lie between.
    width
        Length of a bin, ns; by default as many spans have it.
    adds_lengths
        Whether lengths are added up in place of taking the longest.
    """

    def __init__(
        self, spans: int, origin: int, end: int, width: int | None = None, *,
        adds_lengths: bool = False,
    ) -> None:  # fmt: skip
        length = max(end - origin, 1)
        self._origin, self._width = origin, width or first_width(spans, length)
        self._bins = -(-length // self._width)
        self._busy: dict[str, Ints] = {}
        self._count, self._longest = self._zeros(), self._zeros()
        self._adds_lengths = adds_lengths
        if adds_lengths:
            self._longest = self._longest.astype(np.int64)

    def _zeros(self) -> Ints:
        return np.zeros(self._bins, np.int64 if self._width >> 31 else np.int32)

    def add(self, spans: Spans, busy: Mapping[str, Covered], begin: int, until: int) -> None:
        """Add a stretch of time, which no other overlaps.

        Parameters
        ----------
        spans
            Of these, those that start in the stretch are counted.
        busy
            When anything runs, by look, at least in the stretch.
        begin, until
            The stretch, ns; its end is not in it.
        """
        width = self._width
        first, last = (begin - self._origin) // width, -((self._origin - until) // width)
        last = min(last, self._bins)
        edges = self._origin + width * np.arange(first, last + 1)
        edges = np.clip(edges, begin, until)
        for look, covered in busy.items():
            own = self._busy.setdefault(look, self._zeros())
            own[first:last] += np.diff(covered.until(edges)).astype(own.dtype)
        inside = (spans.start >= begin) & (spans.start < until)
        start, length = spans.start[inside], (spans.end - spans.start)[inside]
        place = np.minimum((start - self._origin) // width, self._bins - 1)
        np.add.at(self._count, place, 1)
        if self._adds_lengths:
            np.add.at(self._longest, place, length)
            return
        if length.max(initial=0) >> 31:
            self._longest = self._longest.astype(np.int64)
        np.maximum.at(self._longest, place, length.astype(self._longest.dtype))

    def block(self) -> tuple[Ints, Ints, Ints]:
        """Return busy time of any look, counts and lengths."""
        busy = self._busy.get("", self._count)
        return small(busy), small(self._count), small(self._longest)

    def tiles(self) -> Tiles:
        """Return the sums."""
        busy = {look: small(self._busy[look]) for look in LOOKS if look in self._busy}
        return Tiles(
            self._origin, Level(self._width, busy, small(self._count), small(self._longest))
        )


@dataclass(frozen=True)
class Tiles:
    """The spans of a lane binned at several resolutions: levels of detail, as of a map.

    Parameters
    ----------
    origin
        Start of the first bin of every level, ns.
    first
        The finest level; it is also the coarsest if it holds too few spans for another.
    """

    origin: int
    first: Level

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
        return int(self.first.count[first:last].sum(dtype=np.int64))

    def bins(self, level: Level, start: int, end: int) -> tuple[int, int]:
        """Return the first of the bins that a time touches, and the one behind the last."""
        first = (start - self.origin) // level.width
        last = -((self.origin - end) // level.width)
        most = len(level.count)
        return min(max(first, 0), most), min(max(last, 0), most)
