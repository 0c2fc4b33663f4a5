"""Stretches of time, by a sweep over their ends: slow, plain, and the simulator's own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that touch or overlap."""
    made: list[Interval] = []
    for start, end in sorted(intervals):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made


def length(intervals: Iterable[Interval]) -> int:
    """Return how long the union of intervals is."""
    return sum(end - start for start, end in union(intervals))


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return the parts of intervals that lie in a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]


def gaps(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Return what of a window no interval covers."""
    made, at = [], window[0]
    for start, end in union(clip(intervals, window)):
        if start > at:
            made.append((at, start))
        at = end
    return [*made, (at, window[1])] if at < window[1] else made


def sweep(
    by_name: Mapping[str, list[Interval]], window: Interval
) -> Iterator[tuple[set[str], int]]:
    """Cut a window wherever something begins or ends; yield who is busy in a piece, and its ns."""
    changes: dict[int, list[tuple[str, int]]] = {window[0]: [], window[1]: []}
    for name, intervals in by_name.items():
        for start, end in union(clip(intervals, window)):
            changes.setdefault(start, []).append((name, 1))
            changes.setdefault(end, []).append((name, -1))
    busy: set[str] = set()
    moments = sorted(changes)
    for moment, following in itertools.pairwise(moments):
        for name, step in changes[moment]:
            (busy.add if step > 0 else busy.discard)(name)
        yield set(busy), following - moment
