"""Which ops are alike in all that decides their stages.

Those are few cases against ops, and hardly more in a report than in a chunk of it. So the ops of a
chunk are told apart by a loop, and its cases from those that came before.
"""

from __future__ import annotations

import numpy as np

from tracekit.attribution._columns import Array, CaseRows, Told
from tracekit.attribution._loops import tell_apart
from tracekit.support.compiled import compiled

_ROOM = 1 << 10
"""How many cases there is room for at first."""


def told_apart(rows: CaseRows, took_ns: Array, height: int) -> Told:
    """Return which of some ops are alike.

    Parameters
    ----------
    rows
        The ops.
    took_ns
        How long they take.
    height
        How many ops there are, or if these stand for others, how many of those.
    """
    case, room = np.empty(took_ns.size, np.uint32), _ROOM
    while True:
        example, ops, total_ns = np.zeros((3, room), np.int64)
        slots = np.full(4 * room, -1, np.int32)
        told = Told(case, example, ops, total_ns)
        count = compiled(tell_apart, height)(rows, took_ns, slots, told)
        if count >= 0:
            return Told(case, *(values[:count] for values in told[1:]))
        room *= 8


class Cases:
    """The cases of a report, as chunk after chunk goes by."""

    def __init__(self) -> None:
        narrow, wide, truth = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_)
        structure = np.empty(0, np.int8)
        self.rows = CaseRows(narrow, narrow, narrow, wide, wide, structure, truth, truth)
        """What is the same in all ops of a case."""
        self.ops = wide
        """How many ops each has."""
        self.total_ns = wide
        """How long these take together."""

    def add(self, rows: CaseRows, told: Told) -> Array:
        """Return the numbers of the cases of a chunk, having added up what is told of them."""
        some = (column[told.example] for column in rows)
        both = CaseRows(*map(np.concatenate, zip(self.rows, some, strict=True)))
        known = self.ops.size
        took_ns = np.concatenate([self.total_ns, told.total_ns])
        # A case that came before has its number already, for they are numbered as they come.
        again = told_apart(both, took_ns, told.case.size)
        numbers = again.case[known:]
        self.rows = CaseRows(*(column[again.example] for column in both))
        self.ops = np.pad(self.ops, (0, again.ops.size - known))
        np.add.at(self.ops, numbers, told.ops)
        self.total_ns = again.total_ns
        return numbers
