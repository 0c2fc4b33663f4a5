"""Windows: the steps of a long program to record, in ranges that start and stop the profiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ._spans import Ranges

WINDOWS = "TRACEKIT_WINDOWS"
"""Environment variable with distance and length of windows, in steps: ``1000:3``."""
_NAME = "window"
WINDOW = f"{_NAME}@tracekit"
"""Range around a window, with its domain, in the form for nsys."""
_NO_HANDLE = -1


class Schedule(Protocol):
    """Interface: decides at which steps recording windows begin. See `Every` and `Requests`."""

    def length_at(self, number: int) -> int:
        """Return the number of steps of the window that begins at step `number`; 0 if none does."""

    def done(self, number: int) -> None:
        """Note that a window has ended before step `number`."""


class Every:
    """Schedule of recording windows at equal distances; the first begins after one distance.

    Parameters
    ----------
    text
        Distance between the starts of windows, and length of a window, in steps: ``1000:3``.
    """

    def __init__(self, text: str) -> None:
        every, _, length = text.partition(":")
        self._every, self._length = int(every), int(length)

    def length_at(self, number: int) -> int:
        """Return the number of steps of the window that begins at step `number`; 0 if none does."""
        return 0 if not number or number % self._every else self._length

    def done(self, number: int) -> None:
        """Do nothing: no program waits for the end of a window at a fixed distance."""


class Windows:
    """Recording windows (steps to record) of a program: opens and closes their ranges.

    If several threads train, a window belongs to the thread that reaches its first step first.

    Parameters
    ----------
    ranges
        Writer of the windows' ranges.
    schedule
        Decides which steps begin a window.
    """

    def __init__(self, ranges: Ranges, schedule: Schedule) -> None:
        self._ranges = ranges
        self._schedule = schedule
        self._open: tuple[Any, int, int] | None = None
        self._next: Any = None
        """The thread whose next step begins a window."""
        self.rests = False
        """True while hooks are removed: then nothing is written, and only optimizer steps are
        seen."""
        self.on_rest: Callable[..., None] | None = None
        """Removes or installs all hooks but those that count steps; None if hooks stay
        installed."""

    @property
    def is_open(self) -> bool:
        """True while the program is inside a recording window."""
        return self._open is not None

    def begin(self, owner: Any, number: int) -> bool:
        """Open a window if step `number` begins one; return whether it did."""
        if self._open is not None or self.rests:
            return False
        length = self._schedule.length_at(number)
        if not length:
            return False
        self._open, self._next = (owner, number + length, self._ranges.start(_NAME)), None
        return True

    def end(self, owner: Any, number: int, *, is_told: bool) -> None:
        """Close this thread's window if step `number` is the first one after it.

        If optimizers' steps count iterations (`is_told`), hooks are removed until the next window.
        """
        if self._open is not None and self._open[0] is owner and number >= self._open[1]:
            self._ranges.end(self._open[2])
            self._open = None
            self._schedule.done(number)
        if self._open is None and self._next in {None, owner}:
            is_next = bool(self._schedule.length_at(number))
            self._next = owner if is_next else None
            self.rest(removed=is_told and not is_next)

    def count(self, owner: Any, number: int) -> None:
        """Note that the thread's `Steps` (`owner`) begin step `number`, while hooks are removed.

        If a window begins there, the hooks are installed again.
        """
        if self._schedule.length_at(number):
            self._next = owner
            self.rest(removed=False)

    def rest(self, *, removed: bool) -> None:
        """Remove the hooks not needed to count optimizer steps; without `removed`, restore them."""
        if self.on_rest is not None and removed != self.rests:
            self.rests = removed
            self.on_rest(removed=removed)

    def rest_no_more(self) -> None:
        """Install all hooks, and keep them installed from now on."""
        self.rest(removed=False)
        self.on_rest = None


class WithinWindows:
    """Writer of ranges that passes ranges on to another writer inside recording windows only.

    Parameters
    ----------
    ranges
        The other writer.
    """

    def __init__(self, ranges: Ranges, windows: Windows) -> None:
        self._ranges = ranges
        self._windows = windows
        self._local = _Written()

    def push(self, name: str) -> None:
        """Open a range on this thread, if inside a window."""
        is_open = self._windows.is_open
        self._local.open.append(is_open)
        if is_open:
            self._ranges.push(name)

    def pop(self) -> None:
        """Close the innermost range of this thread, if its start was passed on."""
        if self._local.open.pop():
            self._ranges.pop()

    def start(self, name: str) -> int:
        """Open a start/end range, if inside a window; return its handle."""
        return self._ranges.start(name) if self._windows.is_open else _NO_HANDLE

    def start_once(self, name: str) -> int:
        """Open a start/end range whose name is used only once, if inside a window."""
        return self._ranges.start_once(name) if self._windows.is_open else _NO_HANDLE

    def end(self, opened: int) -> None:
        """Close the start/end range with the handle `opened`, if its start was passed on."""
        if opened != _NO_HANDLE:
            self._ranges.end(opened)

    def mark(self, name: str) -> None:
        """Pass on an instantaneous marker, if inside a window."""
        if self._windows.is_open:
            self._ranges.mark(name)


class _Written(threading.local):
    """For each open range of the calling thread, whether its start was written (in a window)."""

    def __init__(self) -> None:
        self.open: list[bool] = []
