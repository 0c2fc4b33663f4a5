"""Numbers, from 0 on, of what occurs in columns, in the order in which it comes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracekit.support.compiled import compiled
from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]
_ROOM = 256
_LOW = 0xFFFF_FFFF
_FACTORS = 3
_LARGE = 1 << 27
_SHIFT = 24
"""Factors are above 2^27, so what differs by one lies eight places apart or more."""


class Pairs(NamedTuple):
    """The pairs that are known, by number, and a hash table of their numbers."""

    first: Array
    last: Array
    rows: Array
    """Where each came first, among the rows that it came with."""
    slots: Array
    """A power of two of places, -1 where one is free; at least half of them are."""
    factors: Array
    """Odd numbers below 2^28, drawn at random, so that no trace can be made to crowd a place."""


class Numbers:
    """Numbers pairs of whole numbers as they come.

    Parameters
    ----------
    known
        Pairs that are known from the beginning, in their order; others are not numbered then.
    """

    def __init__(self, known: tuple[Array, Array] | None = None) -> None:
        self._is_open = True
        self._count = 0
        self._pairs = _pairs(_ROOM)
        if known is not None:
            self.of(*known)
            self._is_open = False

    def __len__(self) -> int:
        return self._count

    @property
    def known(self) -> tuple[Array, Array]:
        """The pairs, in the order of their numbers."""
        return self._pairs.first[: self._count], self._pairs.last[: self._count]

    def of(self, first: Array, last: Array) -> tuple[Array, Array]:
        """Give each pair of two columns its number.

        Parameters
        ----------
        first, last
            The columns, of 32-bit and of 64-bit numbers.

        Returns
        -------
        The number of each row's pair, -1 where no new ones are numbered and it is one; and of each
        new one, in the order of their numbers, the first row that it stands in.
        """
        found = np.empty(first.size, np.int32)
        before, begin = self._count, np.zeros(1, np.int64)
        run = compiled(number_pairs, first.size)
        while True:
            self._count = run(
                first, last, self._pairs, self._count, int(self._is_open), begin, found
            )
            if begin[0] == first.size:
                return found, self._pairs.rows[before : self._count]
            self._pairs = _with_room(self._pairs)


def _pairs(room: int) -> Pairs:
    factors = np.frombuffer(os.urandom(4 * _FACTORS), np.uint32) >> 5 | _LARGE | 1
    return Pairs(
        np.zeros(room, np.int32), np.zeros(room, np.int64), np.zeros(room, np.int64),
        np.full(2 * room, -1, np.int32), factors.astype(np.int64),
    )  # fmt: skip


def _with_room(pairs: Pairs) -> Pairs:
    """Return the same pairs, where all room is taken, in four times as much."""
    known = pairs.first.size
    more = _pairs(4 * known)
    begin, found = np.zeros(1, np.int64), np.empty(known, np.int32)
    compiled(number_pairs, known)(pairs.first, pairs.last, more, 0, 1, begin, found)
    more.rows[:known] = pairs.rows
    return more


@inner
def place_of(first: int, last: int, pairs: Pairs) -> int:
    """Return the place of a pair in the hash table, or the free one that it would take."""
    mask = pairs.slots.size - 1
    factors = pairs.factors
    mixed = first * factors[0] + (last & _LOW) * factors[1] + ((last >> 32) & _LOW) * factors[2]
    place = (mixed >> _SHIFT) & mask
    while pairs.slots[place] >= 0 and (
        pairs.last[pairs.slots[place]] != last or pairs.first[pairs.slots[place]] != first
    ):
        place = (place + 1) & mask
    return int(place)


def number_pairs(
    first: Array, last: Array, pairs: Pairs, count: int, is_open: int, begin: Array, found: Array
) -> int:  # fmt: skip
    """Give each pair of two columns its number, as long as there is room for new ones.

    Parameters
    ----------
    first, last
        The columns.
    pairs
        What is known.
    count
        How many pairs are.
    is_open
        Whether new ones are numbered.
    begin
        The row to begin at; becomes the first one that is left, the number of rows without any.
    found
        Becomes the number of each row's pair.

    Returns
    -------
    How many pairs are known then.
    """
    for row in range(begin[0], first.size):
        place = place_of(first[row], last[row], pairs)
        number = pairs.slots[place]
        if number < 0 and is_open:
            if count == pairs.first.size:
                begin[0] = row
                return count
            number = count
            pairs.first[count], pairs.last[count], pairs.rows[count] = first[row], last[row], row
            pairs.slots[place] = count
            count += 1
        found[row] = number
    begin[0] = first.size
    return count
