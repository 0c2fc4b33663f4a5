"""Store arrays in a file, one after the other, in their memory layout."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Place: TypeAlias = "tuple[int, int, np.dtype[Any]]"


@dataclass(frozen=True)
class ArrayFile:
    """Arrays in a file: offset, length and type of each."""

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
        """Return an array, or `count` of its numbers from the `first` one on.

        Raises
        ------
        OSError
            If the file has fewer than were written.
        """
        begin, size, dtype = self.places[name]
        count = size - first if count is None else count
        found = np.fromfile(self.path, dtype, count, offset=begin + first * dtype.itemsize)
        if found.size < count:
            raise OSError(errno.EIO, "it has become shorter", str(self.path))
        return found

    def remove(self) -> None:
        """Remove the file; arrays that were read stay."""
        self.path.unlink()


class Bits:
    """Arrays of truth values, each of a bit, which are read and written whole.

    Parameters
    ----------
    sizes
        Length of each; all values are false at first.
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
