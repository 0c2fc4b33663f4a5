"""Columns packed into arrays of few bytes, and arrays in files.

Times in a chunk are close together and most other integers are small, so each value is stored as
its difference from the column's minimum. Null values are not stored. Texts with few distinct values
are integers already (categories).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

_Read: TypeAlias = Callable[[str, int, int], NDArray[Any]]
"""Function that returns numbers of an array: its name, the first index, the number."""
_CODES, _PLACES = "codes", "places"
"""Names of the arrays: the values, and their rows if some rows are null."""
_NARROW = (np.uint8, np.uint16, np.uint32)
_Place: TypeAlias = "tuple[int, int, np.dtype[Any]]"


@dataclass(frozen=True)
class Packing:
    """Description of a packed column, needed to unpack it."""

    like: pl.Series
    """Column of the original type without rows, which keeps the categories of texts."""
    numbers: np.dtype[Any]
    """Integer type of the values."""
    least: int | None
    """Minimum, subtracted from all values; None if nothing was subtracted."""
    kept: int
    height: int
    """Number of rows with a value, and number of all rows."""

    def undo(self, name: str, read: _Read, first: int, count: int) -> pl.Series:
        """Return `count` rows of the column as it was before packing, from row `first` on.

        `read` returns a slice of one of the packed arrays.
        """
        if self.kept == self.height:
            column = pl.Series(name, self._values(read(_CODES, first, count)))
        else:
            column = self._spread(name, read).slice(first, count)
        dtype = self.like.dtype
        return column if column.dtype == dtype else column.cat.to(dtype)

    def _values(self, codes: NDArray[Any]) -> NDArray[Any]:
        if self.least is None:
            return codes
        values: NDArray[Any] = np.add(codes, self.numbers.type(self.least), dtype=self.numbers)
        return values

    def _spread(self, name: str, read: _Read) -> pl.Series:
        """Return the column with all rows, nulls included, from its packed non-null values."""
        places = read(_PLACES, 0, self.kept)
        values, absent = np.zeros(self.height, self.numbers), np.ones(self.height, np.bool_)
        values[places], absent[places] = self._values(read(_CODES, 0, self.kept)), False
        return pl.Series(name, values).set(pl.Series(absent), None)


@dataclass(frozen=True)
class Packed:
    """A packed column: its arrays, and the description needed to unpack it."""

    packing: Packing
    arrays: Mapping[str, NDArray[Any]]

    @property
    def size(self) -> int:
        """Size of the packed arrays, bytes."""
        return size_of(self.arrays)

    def slice(self, name: str, first: int, count: int) -> pl.Series:
        """Return `count` rows of the column, unpacked, from row `first` on."""

        def read(array: str, first: int, count: int) -> NDArray[Any]:
            return self.arrays[array][first : first + count]

        return self.packing.undo(name, read, first, count)


def packed(column: pl.Series, least_gain: int = 0) -> Packed | None:
    """Pack a column.

    Parameters
    ----------
    least_gain
        Factor by which the packed column has to be smaller.

    Returns
    -------
    The packed column; None if it is not small enough, or its values are not stored as numbers.
    """
    # What a number is of is asked of columns alone that are none: polars takes long to say so.
    numbers = column if column.dtype.is_numeric() else column.to_physical()
    if not numbers.dtype.is_numeric():
        return None
    arrays = {}
    if numbers.null_count():
        there = numbers.is_not_null()
        arrays[_PLACES] = there.arg_true().to_numpy()
        numbers = numbers.filter(there)
    values = np.ascontiguousarray(numbers.to_numpy())
    arrays[_CODES], least = _narrowed(values, max(least_gain, 2))
    if least_gain * size_of(arrays) > len(column) * values.itemsize:
        return None
    packing = Packing(column.clear(), values.dtype, least, values.size, len(column))
    return Packed(packing, arrays)


def size_of(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of arrays in bytes."""
    return sum(array.nbytes for array in arrays.values())


def _narrowed(values: NDArray[Any], least_gain: int) -> tuple[NDArray[Any], int | None]:
    """Return values minus their minimum in a narrower type, and the minimum.

    If that does not make them smaller by the factor `least_gain`, return the values and None.
    """
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


@dataclass(frozen=True)
class ArrayFile:
    """A file of arrays: offset, length and type of each array by name."""

    path: Path
    places: Mapping[str, _Place]

    @classmethod
    def of(cls, path: Path, arrays: Mapping[str, NDArray[Any]]) -> ArrayFile:
        """Write arrays into a new file."""
        places = {}
        with path.open("wb") as file:
            for name, array in arrays.items():
                places[name] = (file.tell(), array.size, array.dtype)
                file.write(np.ascontiguousarray(array).data)
        return cls(path, places)

    def read(self, name: str, first: int = 0, count: int | None = None) -> NDArray[Any]:
        """Return an array, or `count` of its values starting at index `first`.

        Raises
        ------
        OSError
            If the file has become shorter since it was written.
        """
        begin, size, dtype = self.places[name]
        count = size - first if count is None else count
        found = np.fromfile(self.path, dtype, count, offset=begin + first * dtype.itemsize)
        if found.size < count:
            raise OSError(errno.EIO, "it has become shorter", str(self.path))
        return found

    def remove(self) -> None:
        """Remove the file; arrays that were read stay valid."""
        self.path.unlink()


class Bits:
    """List of arrays of booleans, stored as bits; each array is read or written as a whole.

    Parameters
    ----------
    sizes
        Length of each array; all values start as false.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._sizes = list(sizes)
        self._bits = [np.zeros((size + 7) // 8, np.uint8) for size in self._sizes]

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> NDArray[np.bool_]:
        bits = np.unpackbits(self._bits[number], count=self._sizes[number])
        return bits.view(np.bool_)

    def __setitem__(self, number: int, values: NDArray[np.bool_]) -> None:
        self._bits[number] = np.packbits(values)
