"""Ranges that are kept instead of being written, on a clock that counts events."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field


@dataclass(eq=False)
class Kept:
    """A range."""

    name: str
    style: str
    thread: int
    start: int
    end: int | None = None


@dataclass
class KeptRanges:
    """Takes the place of `NvtxRanges`."""

    all: list[Kept] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    _open: dict[int, list[Kept]] = field(default_factory=dict)
    _clock: itertools.count[int] = field(default_factory=itertools.count)

    def push(self, name: str) -> None:
        thread = threading.get_ident()
        self._open.setdefault(thread, []).append(self._begin(name, "push_pop"))

    def pop(self) -> None:
        self._open[threading.get_ident()].pop().end = next(self._clock)

    def start(self, name: str) -> int:
        self._begin(name, "start_end")
        return len(self.all) - 1

    start_once = start

    def mark(self, name: str) -> None:
        self.marks.append(name)

    def end(self, opened: int) -> None:
        assert self.all[opened].end is None
        self.all[opened].end = next(self._clock)

    def names(self) -> list[str]:
        """Return the names of all, in the order in which they begin."""
        return [each.name for each in self.all]

    def tree(self) -> str:
        """Return all as text: what lies within a range behind it, in brackets."""
        ends = [each.end for each in self.all]
        assert None not in ends, [each.name for each in self.all if each.end is None]
        return _tree(self.all)

    def _begin(self, name: str, style: str) -> Kept:
        self.all.append(Kept(name, style, threading.get_ident(), next(self._clock)))
        return self.all[-1]


def _tree(ranges: list[Kept]) -> str:
    parts, left = [], list(ranges)
    while left:
        first = left.pop(0)
        inside = [each for each in left if each.start < (first.end or 0)]
        left = left[len(inside) :]
        parts.append(first.name + (f"({_tree(inside)})" if inside else ""))
    return " ".join(parts)
