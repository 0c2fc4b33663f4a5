"""Stacks that share their room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from tracekit.attribution._columns import OpenAround, OpenRanges, OpenStages, Stack

_ROOM = 1 << 10
"""How much may lie on all stacks together before room for more is made."""

Kind = TypeVar("Kind", OpenRanges, OpenStages, OpenAround)


class Stacks(Generic[Kind]):
    """Open items on each of several lines, such as threads; see `close` and `put`.

    They take room for what is open on all together: one deep stack among many costs no more.

    Parameters
    ----------
    lines
        How many stacks there are.
    kind
        What is open: its stack and the values that are kept with each thing.
    """

    def __init__(self, lines: int, kind: type[Kind]) -> None:
        self._kind: Callable[..., Kind] = kind
        self._tops = np.full(lines, -1, np.int64)
        self._free = np.full(1, -1, np.int64)
        self._rows = np.zeros((1 + len(kind._fields), 0), np.int64)
        self._widen(_ROOM)

    def arrays(self) -> Kind:
        """Return the arrays for the loops."""
        until, below, *values = self._rows
        return self._kind(Stack(until, below, self._tops, self._free), *values)

    def make_room(self) -> None:
        """Make room for twice as much where there is none left."""
        if self._free[0] < 0:
            self._widen(self._rows.shape[1])

    def _widen(self, by: int) -> None:
        """Add free places where none are left."""
        first = self._rows.shape[1]
        added = np.zeros((len(self._rows), by), np.int64)
        added[1] = np.append(np.arange(first + 1, first + by), -1)
        self._rows = np.hstack([self._rows, added])
        self._free[0] = first
