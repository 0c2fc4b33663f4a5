"""Stacks that share their room."""

from __future__ import annotations

import numpy as np

from tracekit.attribution._loops import Arrays

_ROOM = 1 << 10
"""How much may lie on all stacks together before room for more is made."""


class Stacks:
    """What is open on each of several lines, such as threads; see `close` and `put`.

    They take room for what is open on all together: one deep stack among many costs no more.

    Parameters
    ----------
    lines
        How many stacks there are.
    values
        How many values are kept with each thing.
    """

    def __init__(self, lines: int, values: int) -> None:
        self._tops = np.full(lines, -1, np.int64)
        self._free = np.full(1, -1, np.int64)
        self._rows = np.zeros((2 + values, 0), np.int64)
        self._widen(_ROOM)

    def arrays(self) -> Arrays:
        """Return ``until, below, tops, free`` and the values, for the loops.

        `until` when something is open and what is `below` it (-1: nothing) are of each place, of
        free places the next free one; `tops` is the place on top of each line, `free` one that is
        free (-1: none).
        """
        until, below, *values = self._rows
        return until, below, self._tops, self._free, *values

    def make_room(self) -> None:
        """Make room for twice as much where there is none left."""
        if self._free[0] < 0:
            self._widen(self._rows.shape[1])

    def _widen(self, by: int) -> None:
        """Add free places, of which there are none."""
        first = self._rows.shape[1]
        added = np.zeros((len(self._rows), by), np.int64)
        added[1] = np.append(np.arange(first + 1, first + by), -1)
        self._rows = np.hstack([self._rows, added])
        self._free[0] = first
