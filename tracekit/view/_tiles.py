"""Tiles: a lane's spans summed in bins, at several levels, each four times as coarse as the last.

A bin has, for each stage, the time in which any span of the lane runs, the number of spans that
start in it, and the longest of these. Bins of one level never overlap partly with bins of another,
so sums are exact, and equal on all levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.analysis.idle_account import CAUSES
from tracekit.model import STAGES

Ints: TypeAlias = npt.NDArray[np.int64]

FACTOR = 4
_FINEST = 1_024
"""Length of the finest possible bins, ns."""
_FULL, _FULL_OF_FEW = 16, 4
"""Mean number of spans in a bin of the finest level, at least; and the same for a level of few
bins."""
_FEW_BINS = 4_096
_FEW = 64
"""Number of bins of a level below which there is no coarser level."""
NO_STAGE, COMMUNICATION = "no stage", "communication"
LOOKS = (*STAGES, NO_STAGE, COMMUNICATION, *CAUSES.values())
"""Styles of spans, in words: their stage, or none; communication; and causes of idle time."""


class Covered:
    """Union of intervals: the time in which at least one of several spans runs.

    Parameters
    ----------
    start, end
        Spans, ns, in any order.
    """

    def __init__(self, start: Ints, end: Ints) -> None:
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        begins = np.flatnonzero(np.r_[True, start[1:] > reach[:-1]]) if len(start) else order
        self.start: Ints = start[begins]
        self.end: Ints = reach[np.r_[begins[1:] - 1, len(reach) - 1]] if len(start) else reach
        self._before: Ints = np.r_[0, np.cumsum(self.end - self.start)]

    def until(self, times: Ints) -> Ints:
        """Return the covered time before each of `times`, ns."""
        last = np.searchsorted(self.start, times, "right") - 1
        if not len(self.start):
            return np.zeros_like(times)
        begun = np.maximum(last, 0)
        inside = np.minimum(times, self.end[begun]) - self.start[begun]
        return np.where(last < 0, 0, self._before[begun] + inside)

    def holds(self, times: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask: which of `times` lie inside an interval."""
        last = np.searchsorted(self.start, times, "right") - 1
        return (last >= 0) & (times < self.end[np.maximum(last, 0)]) if len(self.end) else last > 0


@dataclass(frozen=True)
class Spans:
    """Spans of a lane: start and end in ns, and the index of each span's style in `LOOKS`."""

    start: Ints
    end: Ints
    look: Ints

    def by_look(self) -> dict[str, Covered]:
        """Return style (stage) -> union of its spans; styles of higher precedence come first."""
        every = {number: self.look == number for number in np.unique(self.look)}
        return {
            LOOKS[number]: Covered(self.start[at], self.end[at]) for number, at in every.items()
        }

    def exposed(self) -> Spans:
        """Return spans without overlap: of the styles (stages) at a time only the first remains.

        The order of styles is that of `LOOKS`.
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
        return Spans(start[kept], end[kept], look[changes][kept])


@dataclass(frozen=True)
class Level:
    """Sums of a lane in bins of one length.

    Parameters
    ----------
    width
        Length of a bin, ns.
    busy
        For each style, the time in which any of its spans runs, per bin, ns.
    count, longest
        Number of spans that start in each bin, and the length of the longest, ns.
    """

    width: int
    busy: Mapping[str, Ints]
    count: Ints
    longest: Ints

    def coarser(self) -> Level:
        """Return the sums in bins four times as long."""
        return Level(
            self.width * FACTOR,
            {look: small(reduce(np.add, _in_fours(each))) for look, each in self.busy.items()},
            small(reduce(np.add, _in_fours(self.count))),
            small(reduce(np.maximum, _in_fours(self.longest))),
        )


def small(values: Ints) -> Ints:
    """Return non-negative integers in the smallest type that fits, to save memory."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _in_fours(values: Ints) -> Ints:
    """Return the first of each four values, the second, and so on: sums of these are quick."""
    fours = np.zeros((-(-len(values) // FACTOR), FACTOR), np.int64)
    fours.reshape(-1)[: len(values)] = values
    return fours.T


def width_below(most: float) -> int:
    """Return the greatest bin length of at most `most` ns; the shortest if all are greater."""
    width = _FINEST
    while width * FACTOR <= most:
        width *= FACTOR
    return width


def first_width(spans: int, length: int) -> int:
    """Return the bin length of the finest level of a lane, ns.

    `spans` is the number of spans on the lane; `length` is the length of the run, ns.
    """
    width = _FINEST
    while width * _FEW < length:
        bins = length // width
        if spans >= bins * (_FULL if bins > _FEW_BINS else _FULL_OF_FEW):
            break
        width *= FACTOR
    return width


class Summing:
    """Counts and sums the spans of a lane in bins, from one interval of time after the other.

    Parameters
    ----------
    spans
        Number of spans on the lane.
    origin, end
        Begin and end of the run, ns; all spans are in between.
    width
        Length of the bins, ns; None chooses it by the number of spans.
    adds_lengths
        Whether a bin has the sum of the lengths of spans that start in it, instead of the longest.
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
        """Add an interval of time; intervals must not overlap.

        Parameters
        ----------
        spans
            Spans. Only spans that start in the interval are counted.
        busy
            Style -> time in which any of its spans runs; complete only inside the interval.
        begin, until
            The interval, ns; its end is excluded.
        """
        width = self._width
        first, last = (begin - self._origin) // width, -((self._origin - until) // width)
        last = min(last, self._bins)
        edges = self._origin + width * np.arange(first, last + 1)
        edges = np.clip(edges, begin, until)
        for look, covered in busy.items():
            of_look = self._busy.setdefault(look, self._zeros())
            of_look[first:last] += np.diff(covered.until(edges)).astype(of_look.dtype)
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
        """Return per bin: busy time (ns), number of spans starting there, their summed lengths."""
        busy = self._busy.get("", self._count)
        return small(busy), small(self._count), small(self._longest)

    def tiles(self) -> Tiles:
        """Return the sums in bins of several lengths (levels of zoom)."""
        busy = {look: small(self._busy[look]) for look in LOOKS if look in self._busy}
        return Tiles(
            self._origin, Level(self._width, busy, small(self._count), small(self._longest))
        )


@dataclass(frozen=True)
class Tiles:
    """The spans of a lane in bins at several resolutions, like the zoom levels of a map.

    Parameters
    ----------
    origin
        Start of the first bin of every level, ns.
    first
        The finest level; the only level if the lane has too few spans for more.
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
        """Return the coarsest level with bins of at most `width` ns; None if all are longer."""
        fitting = [each for each in self.levels if each.width <= width]
        return fitting[-1] if fitting else None

    def count(self, start: int, end: int) -> int:
        """Return how many spans start in an interval, widened to bins of the finest level."""
        first, last = self.bins(self.first, start, end)
        return int(self.first.count[first:last].sum(dtype=np.int64))

    def bins(self, level: Level, start: int, end: int) -> tuple[int, int]:
        """Return the index of the first bin that overlaps an interval, and of the last plus 1."""
        first = (start - self.origin) // level.width
        last = -((self.origin - end) // level.width)
        most = len(level.count)
        return min(max(first, 0), most), min(max(last, 0), most)
