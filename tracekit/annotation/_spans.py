"""Stack of the stages that a thread is in, and the ranges that are written for them."""

from __future__ import annotations

from typing import Protocol


class Ranges(Protocol):
    """Interface of a writer of ranges, such as `NvtxRanges`."""

    def push(self, name: str) -> None:
        """Open a range on this thread."""

    def pop(self) -> None:
        """Close the innermost range of this thread."""

    def start(self, name: str) -> int:
        """Open a start/end range, which applies to all threads; return its handle."""

    def start_once(self, name: str) -> int:
        """Open a start/end range whose name is used only once; return its handle."""

    def end(self, opened: int) -> None:
        """Close the start/end range with the handle `opened`."""

    def mark(self, name: str) -> None:
        """Write an instantaneous marker."""


class _Span:
    """A stage on the stack of `Spans`; `yields`: its range is closed while stages inside run.

    ``handle`` is that of a start/end range of the process; None for a push/pop range.
    """

    __slots__ = ("handle", "is_written", "name", "yields")

    def __init__(self, name: str, *, yields: bool) -> None:
        self.name = name
        self.yields = yields
        self.is_written = True
        self.handle: int | None = None


class Spans:
    """Stack of the training stages that a thread is in, each inside the one before.

    Usually a stage covers all that runs inside it. Passes that an optimizer runs (as L-BFGS does),
    and a loss computed while gradients are cleared, have a stage of their own: the range of the
    stage around them is interrupted there, and written as several pieces.

    Parameters
    ----------
    ranges
        Writer of the ranges.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._open: list[_Span] = []

    @property
    def depth(self) -> int:
        """Number of stages open on this thread."""
        return len(self._open)

    @property
    def last(self) -> str | None:
        """Name of the innermost open stage; None if none is open."""
        return self._open[-1].name if self._open else None

    def enter(self, name: str, *, yields: bool = False) -> None:
        """Open a stage on this thread; `yields`: stages inside interrupt its range."""
        self._interrupt()
        self._ranges.push(name)
        self._open.append(_Span(name, yields=yields))

    def enter_process(self, name: str) -> None:
        """Open a stage whose range applies to all threads of the process."""
        self._interrupt()
        span = _Span(name, yields=False)
        span.handle = self._ranges.start(name)
        self._open.append(span)

    def leave(self, depth: int) -> None:
        """Close stages until `depth` are open; resume the innermost one if it was interrupted."""
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
