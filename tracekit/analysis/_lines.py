"""Lines: numbers, from 0 on, of what has windows of its own, a device or a process on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import compiled, given

Array: TypeAlias = NDArray[Any]
_ROOM = 64
_SLOTS = 256
"""How many owners are found without a search; there are seldom more, and then joins find them."""


class Lines:
    """Numbers owners as they come.

    Parameters
    ----------
    columns
        The columns of ops that say who the owner is, one or two.
    known
        The owners, in their order, where no others matter.
    """

    def __init__(self, columns: Sequence[str], known: pl.DataFrame | None = None) -> None:
        self._columns = (columns[0], columns[-1])
        self._is_open = known is None
        room = _ROOM if known is None else known.height
        self._known = np.zeros((2, room), np.int32)
        self._count = 0 if known is None else known.height
        for numbers, name in zip(self._known, self._columns, strict=True):
            if known is not None:
                numbers[:] = known[name].to_numpy()

    def __len__(self) -> int:
        return self._count

    @property
    def owners(self) -> pl.DataFrame:
        """The owners, in the order of their numbers."""
        columns = dict(zip(self._columns, self._known, strict=True))
        return pl.DataFrame({name: numbers[: self._count] for name, numbers in columns.items()})

    def of(self, rows: pl.DataFrame) -> Array:
        """Return the line of each row; -1 where its owner is not known and does not matter."""
        if self._count > _SLOTS:
            return self._of_many(rows)
        first, last = (given(rows[name], np.int32) for name in self._columns)
        found = np.empty(rows.height, np.int32)
        recent = np.zeros(_SLOTS, np.int32)
        while True:
            count = compiled(number_owners, rows.height)(
                first, last, self._known, self._count, int(self._is_open), recent, found
            )
            if count >= 0:
                self._count = count
                return found
            if self._known.shape[1] > _SLOTS:
                return self._of_many(rows)
            self._known = np.concatenate([self._known, self._known], axis=1)

    def _of_many(self, rows: pl.DataFrame) -> Array:
        """Do the same by joins, which take no longer for each row however many owners there are."""
        names = list(dict.fromkeys(self._columns))
        asked = rows.select(pl.col(names).cast(pl.Int32))
        known = self.owners
        if self._is_open:
            known = pl.concat([known, asked]).unique(maintain_order=True)
            self._known = np.stack([known[name].to_numpy() for name in self._columns])
            self._count = known.height
        lines = known.with_columns(line=pl.int_range(pl.len(), dtype=pl.Int32))
        found = asked.join(lines, on=names, how="left", maintain_order="left")
        return found["line"].fill_null(-1).to_numpy()


def number_owners(
    first: Array, last: Array, known: Array, count: int, is_open: int, recent: Array, found: Array
) -> int:  # fmt: skip
    """Find the place of each pair among `count` known ones, to which new ones are added if open.

    `recent` is room for places, by what pairs have in common with few others.

    Returns
    -------
    How many pairs are known then; -1 if there is no room for them.
    """
    for row in range(first.size):
        one, other = first[row], last[row]
        slot = (one ^ (other << 4)) & (recent.size - 1)
        place = recent[slot]
        if place >= count or known[0, place] != one or known[1, place] != other:
            place = 0
            while place < count and (known[0, place] != one or known[1, place] != other):
                place += 1
            if place == count and not is_open:
                found[row] = -1
                continue
            if place == known.shape[1]:
                return -1
            if place == count:
                known[0, place], known[1, place] = one, other
                count += 1
            recent[slot] = place
        found[row] = place
    return count
