"""Ranges around some steps of a long program, which a profiler records alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ._spans import Ranges

WINDOWS = "TRACEKIT_WINDOWS"
"""Variable that says every how many steps a window begins, and how many it has: ``1000:3``."""
_NAME = "window"
WINDOW = f"{_NAME}@tracekit"
"""Range around a window, with its domain, as nsys takes it."""
_NO_HANDLE = -1


class Schedule(Protocol):
    """Tells which steps begin a window: `Every` by their number, `Requests` when asked."""

    def length_at(self, number: int) -> int:
        """Return how many steps the window has that begins with this one; 0 if none does."""

    def done(self, number: int) -> None:
        """Take note that a window has ended before a step."""


class Every:
    """Windows at regular distances, the first one after so many steps.

    Parameters
    ----------
    text
        Number of steps from the beginning of a window to that of the next one, and number of steps
        of a window: ``1000:3``.
    """

    def __init__(self, text: str) -> None:
        every, _, length = text.partition(":")
        self._every, self._length = int(every), int(length)

    def length_at(self, number: int) -> int:
        """Return how many steps the window has that begins with this one; 0 if none does."""
        return 0 if not number or number % self._every else self._length

    def done(self, number: int) -> None:
        """Go on: nobody waits."""


class Windows:
    """Windows of a program.

    Where several threads train, a window is of the one that reaches its first step first.

    Parameters
    ----------
    ranges
        Where their ranges are written to.
    schedule
        Which steps begin a window.
    """

    def __init__(self, ranges: Ranges, schedule: Schedule) -> None:
        self._ranges = ranges
        self._schedule = schedule
        self._open: tuple[Any, int, int] | None = None
        self._next: Any = None
        """The thread whose next step begins a window."""
        self.rests = False
        """True while nothing is written, nor seen of a step but that of its optimizers."""
        self.on_rest: Callable[..., None] | None = None
        """Switches hooks, but those that count steps, off or on; None where hooks never rest."""

    @property
    def is_open(self) -> bool:
        """True within a window."""
        return self._open is not None

    def begin(self, owner: Any, number: int) -> bool:
        """Open a window where a step begins it, and tell whether it did."""
        if self._open is not None or self.rests:
            return False
        length = self._schedule.length_at(number)
        if not length:
            return False
        self._open, self._next = (owner, number + length, self._ranges.start(_NAME)), None
        return True

    def end(self, owner: Any, number: int, *, is_told: bool) -> None:
        """Close the window that a thread opened, where the next step would be beyond it.

        Until the next one hooks may rest, if optimizers tell steps.
        """
        if self._open is not None and self._open[0] is owner and number >= self._open[1]:
            self._ranges.end(self._open[2])
            self._open = None
            self._schedule.done(number)
        if self._open is None and self._next in {None, owner}:
            is_next = bool(self._schedule.length_at(number))
            self._next = owner if is_next else None
            self.rest(wanted=is_told and not is_next)

    def count(self, owner: Any, number: int) -> None:
        """Switch resting hooks on again if the next step begins a window."""
        if self._schedule.length_at(number):
            self._next = owner
            self.rest(wanted=False)

    def rest(self, *, wanted: bool) -> None:
        """Switch hooks off to rest, or on again."""
        if self.on_rest is not None and wanted != self.rests:
            self.rests = wanted
            self.on_rest(wanted=wanted)

    def rest_no_more(self) -> None:
        """Keep hooks on from now on."""
        self.rest(wanted=False)
        self.on_rest = None


class WithinWindows:
    """Ranges that are written within windows, and dropped between them.

    Parameters
    ----------
    ranges
        Where they are written to.
    windows
        The windows.
    """

    def __init__(self, ranges: Ranges, windows: Windows) -> None:
        self._ranges = ranges
        self._windows = windows
        self._local = _Written()

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        is_open = self._windows.is_open
        self._local.open.append(is_open)
        if is_open:
            self._ranges.push(name)

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        if self._local.open.pop():
            self._ranges.pop()

    def start(self, name: str) -> int:
        """Open a range of the process, and return what closes it."""
        return self._ranges.start(name) if self._windows.is_open else _NO_HANDLE

    def start_once(self, name: str) -> int:
        """Open a range of the process with a unique name."""
        return self._ranges.start_once(name) if self._windows.is_open else _NO_HANDLE

    def end(self, opened: int) -> None:
        """Close a range of the process."""
        if opened != _NO_HANDLE:
            self._ranges.end(opened)

    def mark(self, name: str) -> None:
        """Write a mark."""
        if self._windows.is_open:
            self._ranges.mark(name)


class _Written(threading.local):
    """For each range that the calling thread has open, whether its start was written."""

    def __init__(self) -> None:
        self.open: list[bool] = []
