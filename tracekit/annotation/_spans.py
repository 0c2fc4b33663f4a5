"""Open spans of one thread, and the ranges made of them."""

from __future__ import annotations

from typing import Protocol


class Ranges(Protocol):
    """Where ranges are written to, as `NvtxRanges` does."""

    def push(self, name: str) -> None:
        """Open a range on this thread."""

    def pop(self) -> None:
        """Close the range that this thread opened last."""

    def start(self, name: str) -> int:
        """Open a range of the process, and return the function that closes it."""

    def start_once(self, name: str) -> int:
        """Open a range of the process with a unique name."""

    def end(self, opened: int) -> None:
        """Close a range of the process."""

    def mark(self, name: str) -> None:
        """Write a mark."""


class _Span:
    """Something that is open: `yields` tells whether its range is closed while others are open.

    ``handle`` is what ends a range of the process, None of one of this thread.
    """

    __slots__ = ("handle", "is_written", "name", "yields")

    def __init__(self, name: str, *, yields: bool) -> None:
        self.name = name
        self.yields = yields
        self.is_written = True
        self.handle: int | None = None


class Spans:
    """The stages that a thread is in, each within the one before.

    An optimizer that runs whole passes, or a loss that is computed while gradients are cleared, is
    no stage of what lies within it: such a span yields, and is written as the pieces around that.

    Parameters
    ----------
    ranges
        Where they are written to.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._open: list[_Span] = []

    @property
    def depth(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def last(self) -> str | None:
        """Name of the innermost one."""
        return self._open[-1].name if self._open else None

    def enter(self, name: str, *, yields: bool = False) -> None:
        """Open one on this thread."""
        self._interrupt()
        self._ranges.push(name)
        self._open.append(_Span(name, yields=yields))

    def enter_process(self, name: str) -> None:
        """Open one that counts for all threads of the process."""
        self._interrupt()
        span = _Span(name, yields=False)
        span.handle = self._ranges.start(name)
        self._open.append(span)

    def leave(self, depth: int) -> None:
        """Close all but `depth`; what yielded to them is open again."""
        while len(self._open) > depth:
            span = self._open.pop()
            if span.handle is not None:
                self._ranges.end(span.handle)
            elif span.is_written:
                self._ranges.pop()
        if self._open and not self._open[-1].is_written:
            self._ranges.push(self._open[-1].name)
            self._open[-1].is_written = True

    def _interrupt(self) -> None:
        if self._open and self._open[-1].yields and self._open[-1].is_written:
            self._ranges.pop()
            self._open[-1].is_written = False
