"""Ranges around some steps of a long program, which a profiler records alone."""

from __future__ import annotations

from typing import Any

from ._spans import Ranges

WINDOWS = "TRACEKIT_WINDOWS"
"""Variable that says every how many steps a window begins, and how many it has: ``1000:3``."""
_NAME = "window"
WINDOW = f"{_NAME}@tracekit"
"""Range around a window, with its domain, as nsys takes it."""


class Windows:
    """Windows of a program: the first one begins after `every` steps.

    Where several threads train, a window is of the one that reaches its first step first.

    Parameters
    ----------
    ranges
        Where their ranges are written to.
    every
        Number of steps from the beginning of a window to that of the next one.
    length
        Number of steps of a window.
    """

    def __init__(self, ranges: Ranges, every: int, length: int) -> None:
        self._ranges = ranges
        self._every = every
        self._length = length
        self._open: tuple[Any, int, int] | None = None

    @classmethod
    def of(cls, ranges: Ranges, text: str) -> Windows | None:
        """Return the windows that the variable asks for, None where it is not set."""
        every, _, length = text.partition(":")
        return cls(ranges, int(every), int(length)) if text else None

    @property
    def is_open(self) -> bool:
        """True within a window."""
        return self._open is not None

    def begin(self, owner: Any, number: int) -> bool:
        """Open a window where a step begins it, and tell whether it did."""
        if self._open is not None or not number or number % self._every:
            return False
        self._open = owner, number + self._length, self._ranges.start(_NAME)
        return True

    def end(self, owner: Any, number: int) -> None:
        """Close the window that a thread opened, where the next step would be beyond it."""
        if self._open is not None and self._open[0] is owner and number >= self._open[1]:
            self._ranges.end(self._open[2])
            self._open = None
