"""Group ops that agree in everything that decides their stage.

Those are few cases against ops, and hardly more in a report than in a chunk of it. So the ops of a
chunk are told apart by a loop, and its cases from those that came before.
"""

from __future__ import annotations

import numpy as np

from tracekit.attribution._columns import Array, CaseKeys, Told
from tracekit.attribution._op_loops import tell_apart
from tracekit.support.compiled import compiled

_ROOM = 1 << 10
"""How many cases there is room for at first."""


def told_apart(keys: CaseKeys, took_ns: Array, height: int) -> Told:
    """Return which of some ops are alike.

    Parameters
    ----------
    keys
        The ops.
    took_ns
        How long they take.
    height
        How many ops there are, or if these stand for others, how many of those.
    """
    case, room = np.empty(took_ns.size, np.uint32), _ROOM
    while True:
        who, what, ops, total_ns = np.zeros((4, room), np.int64)
        slots = np.full(4 * room, -1, np.int32)
        told = Told(case, CaseKeys(who, what), ops, total_ns)
        count = compiled(tell_apart, height)(keys, took_ns, slots, told)
        if count >= 0:
            return Told(case, CaseKeys(who[:count], what[:count]), ops[:count], total_ns[:count])
        room *= 8


class Cases:
    """Cases of a report, collected chunk by chunk."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.keys = CaseKeys(none, none)
        """What is the same in all ops of a case."""
        self.ops = none
        """How many ops each has."""
        self.total_ns = none
        """How long these take together."""

    def add(self, told: Told) -> Array:
        """Return the case numbers of a chunk, and add up its evidence."""
        both = CaseKeys(*map(np.concatenate, zip(self.keys, told.keys, strict=True)))
        known = self.ops.size
        took_ns = np.concatenate([self.total_ns, told.total_ns])
        # A case that came before has its number already, for they are numbered as they come.
        again = told_apart(both, took_ns, told.case.size)
        numbers = again.case[known:]
        self.keys, self.total_ns = again.keys, again.total_ns
        self.ops = np.pad(self.ops, (0, again.ops.size - known))
        np.add.at(self.ops, numbers, told.ops)
        return numbers
