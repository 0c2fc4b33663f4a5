"""Pack columns into arrays of as few bytes as possible, and unpack them.

Times of a chunk lie close together and most other numbers are small: each is kept as its distance
from the least one. Where rows have no value, only those are kept that have one. Texts of which
there are few kinds are numbers already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Read: TypeAlias = Callable[[str, int, int], NDArray[Any]]
"""Returns so many numbers of an array of some name, from the first one that is wanted on."""
CODES, PLACES = "codes", "places"
"""The names of the arrays: what is kept, and of which rows if not of all."""
_NARROW = (np.uint8, np.uint16, np.uint32)


@dataclass(frozen=True)
class Packing:
    """Packed form of a column.

    Parameters
    ----------
    like
        A column of its type without rows. Polars forgets texts that no column may have.
    numbers
        The type of the numbers that its values are.
    least
        By what they are larger than the codes; None if these are as they are.
    kept, height
        How many rows have a value, of how many.
    """

    like: pl.Series
    numbers: np.dtype[Any]
    least: int | None
    kept: int
    height: int

    def undo(self, name: str, read: Read, first: int, count: int) -> pl.Series:
        """Return a number of rows of the column, from the first wanted one on."""
        if self.kept == self.height:
            column = pl.Series(name, self._values(read(CODES, first, count)))
        else:
            column = self._spread(name, read).slice(first, count)
        dtype = self.like.dtype
        return column if column.dtype == dtype else column.cat.to(dtype)

    def _values(self, codes: NDArray[Any]) -> NDArray[Any]:
        if self.least is None:
            return codes
        values: NDArray[Any] = np.add(codes, self.numbers.type(self.least), dtype=self.numbers)
        return values

    def _spread(self, name: str, read: Read) -> pl.Series:
        """Return the whole column, with nulls in rows without a value."""
        places = read(PLACES, 0, self.kept)
        values, absent = np.zeros(self.height, self.numbers), np.ones(self.height, np.bool_)
        values[places], absent[places] = self._values(read(CODES, 0, self.kept)), False
        return pl.Series(name, values).set(pl.Series(absent), None)


@dataclass(frozen=True)
class Packed:
    """A column as arrays."""

    packing: Packing
    arrays: Mapping[str, NDArray[Any]]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return size_of(self.arrays)

    def slice(self, name: str, first: int, count: int) -> pl.Series:
        """Return a number of rows of the column, from the first wanted one on."""

        def read(array: str, first: int, count: int) -> NDArray[Any]:
            return self.arrays[array][first : first + count]

        return self.packing.undo(name, read, first, count)


def packed(column: pl.Series, least_gain: int = 0) -> Packed | None:
    """Pack a column.

    Parameters
    ----------
    column
        The column.
    least_gain
        How many times less it has to take.

    Returns
    -------
    Its arrays; None for one that takes more, or is not one of numbers.
    """
    # What a number is of is asked of columns alone that are none: polars takes long to say so.
    numbers = column if column.dtype.is_numeric() else column.to_physical()
    if not numbers.dtype.is_numeric():
        return None
    arrays = {}
    if numbers.null_count():
        there = numbers.is_not_null()
        arrays[PLACES] = there.arg_true().to_numpy()
        numbers = numbers.filter(there)
    values = np.ascontiguousarray(numbers.to_numpy())
    arrays[CODES], least = _narrowed(values, max(least_gain, 2))
    if least_gain * size_of(arrays) > len(column) * values.itemsize:
        return None
    packing = Packing(column.clear(), values.dtype, least, values.size, len(column))
    return Packed(packing, arrays)


def size_of(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of arrays in bytes."""
    return sum(array.nbytes for array in arrays.values())


def _narrowed(values: NDArray[Any], least_gain: int) -> tuple[NDArray[Any], int | None]:
    """Return numbers as distances from the least one, and that one, if these take less."""
    narrow = [one for one in _NARROW if least_gain * one().itemsize <= values.itemsize]
    if not narrow or not values.size or values.dtype.kind == "f":
        return values, None
    least, most = int(values.min()), int(values.max())
    fitting = next((one for one in narrow if most - least <= np.iinfo(one).max), None)
    if fitting is None:
        return values, None
    codes: NDArray[Any] = np.empty(values.size, fitting)
    # What exceeds the type of the values comes round to what it is as a code.
    np.subtract(values, values.dtype.type(least), out=codes, casting="unsafe")
    return codes, least
