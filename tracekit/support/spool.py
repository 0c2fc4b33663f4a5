"""Out-of-core tables (spools): kept in memory while they fit, and in files beyond that."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
from numpy.typing import NDArray

from tracekit.support.arrays import ArrayFile, Packed, Packing, packed

GIB = 1 << 30
DEFAULT_MEMORY = 4 * GIB
"""Default memory of an ingest, bytes."""

_LIBRARIES = 128 << 20
"""Bytes that Python, polars and compiled loops take: 118 MiB before any row is read."""
_COMPILER = 128 << 20
"""Further bytes that Numba takes, permanently, once it has compiled a loop."""
_SHARE = 10
"""Waiting tables may fill one part in this many of the remaining memory; work needs the rest."""
_BYTES_PER_ROW = 12_000
"""Largest number of bytes that work on one row of a chunk takes: some hundred in each of several
tables, with data read ahead and being written."""
_LEAST_GAIN = 4
"""Factor by which a column has to be smaller to be packed in memory: times, which would be halved
and are read most often, are not. In files columns always are as small as possible."""
_MOST_ROWS = 1 << 19
_FEWEST_ROWS = 1 << 14


class Workspace:
    """Memory limit and folder for temporary data.

    Parameters
    ----------
    folder
        Existing folder for files; None keeps everything in memory.
    memory
        Limit of memory for the whole work, bytes.
    """

    def __init__(self, folder: Path | None = None, memory: int = DEFAULT_MEMORY) -> None:
        self._folder = folder
        self.memory = memory if folder is not None else sys.maxsize
        """Limit of memory for the work; without a folder for files, all there is."""
        free = max(memory - _LIBRARIES, 0)
        self._left = free // _SHARE
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.rows = min(max(free // _BYTES_PER_ROW, _FEWEST_ROWS), _MOST_ROWS)
        """Number of rows of a table to process at once."""

    def new_folder(self) -> Path:
        """Return a new private folder inside the workspace's folder.

        A workspace without a folder returns a temporary one, which is removed with the workspace.
        """
        made = Path(tempfile.mkdtemp(dir=self._folder))
        if self._folder is None:
            weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def take(self, size: int) -> Path | None:
        """Reserve `size` bytes and return None; if memory is full, return a file to write to."""
        with self._lock:
            left = self._left - _COMPILER * ("numba" in sys.modules)
            if self._folder is None or size <= left:
                self._left -= size
                return None
            return self._folder / f"{next(self._numbers)}.raw"

    def give_back(self, size: int) -> None:
        """Release `size` bytes of memory that were reserved."""
        with self._lock:
            self._left += size


class Spool:
    """Chunks of a table that can be read repeatedly until they are dropped.

    Columns are stored in as few bytes as possible (see `packed`).

    Parameters
    ----------
    workspace
        Memory limit and folder for the chunks.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._chunks: list[list[_InMemory | _InFile]] = []
        self.columns: list[tuple[str, ...]] = []
        """Names of the columns of each chunk."""
        self.heights: list[int] = []
        """Number of rows of each chunk."""

    def append(self, frame: pl.DataFrame) -> None:
        """Add a chunk of rows."""
        self._chunks.append([self._kept(frame)])
        self.columns.append(tuple(frame.columns))
        self.heights.append(frame.height)

    def change(self, number: int, without: Collection[str], added: pl.DataFrame) -> None:
        """Remove the columns `without` from chunk `number`, and add those of `added`."""
        left = [name for name in self.columns[number] if name not in without]
        self._chunks[number].append(self._kept(added))
        self.columns[number] = (*left, *added.columns)

    def _kept(self, frame: pl.DataFrame) -> _InMemory | _InFile:
        columns = {column.name: _kept_in_memory(column) for column in frame}
        size = sum(map(_size, columns.values()))
        path = self._workspace.take(size)
        return _InMemory(columns, size) if path is None else _InFile(columns, path)

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, number: int, *columns: str, rows: slice = slice(None)) -> pl.DataFrame:
        """Return chunk `number`: its rows `rows`, and the columns `columns` or, by default, all."""
        first, end, _ = rows.indices(self.heights[number])
        found = []
        for name in columns or self.columns[number]:
            # What was added last is what the name stands for.
            part = next(part for part in reversed(self._chunks[number]) if name in part.columns)
            found.append(part.read(name, first, max(end - first, 0)))
        return pl.DataFrame(found)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (self.read(number) for number in range(len(self)))

    def drop(self, number: int) -> None:
        """Release chunk `number`, which is no longer needed."""
        for part in self._chunks[number]:
            if isinstance(part, _InFile):
                part.remove()
            else:
                self._workspace.give_back(part.size)
        self._chunks[number], self.columns[number], self.heights[number] = [], (), 0


_Kept: TypeAlias = "pl.Series | Packed"


def _kept_in_memory(column: pl.Series) -> _Kept:
    """Return a column unchanged, or packed if that is much smaller and the column is long."""
    # Texts of which there are few kinds take longer to be made of numbers.
    may_gain = column.dtype.is_numeric() or column.null_count()
    made = packed(column, _LEAST_GAIN) if may_gain and len(column) >= _FEWEST_ROWS else None
    return made or column


def _size(column: _Kept) -> int:
    return column.size if isinstance(column, Packed) else int(column.estimated_size())


@dataclass(frozen=True)
class _InMemory:
    """A chunk of rows in memory: its columns, and their size in bytes."""

    columns: Mapping[str, _Kept]
    size: int

    def read(self, name: str, first: int, count: int) -> pl.Series:
        column = self.columns[name]
        if isinstance(column, Packed):
            return column.slice(name, first, count)
        return column.slice(first, count)


class _InFile:
    """A chunk of rows on disk: packed columns in one file, and all others in a second file."""

    def __init__(self, columns: Mapping[str, _Kept], path: Path) -> None:
        self.columns: dict[str, Packing | None] = {}
        arrays: dict[str, NDArray[Any]] = {}
        others: list[pl.Series] = []
        for name, column in columns.items():
            made = column if isinstance(column, Packed) else packed(column)
            self.columns[name] = made.packing if made else None
            if made:
                arrays |= {_array(name, array): numbers for array, numbers in made.arrays.items()}
            elif isinstance(column, pl.Series):
                others.append(column)
        self._numbers = ArrayFile.of(path, arrays)
        self._others = path.with_suffix(".arrow")
        if others:
            pl.DataFrame(others).write_ipc(self._others, compression="uncompressed")

    def read(self, name: str, first: int, count: int) -> pl.Series:
        packing = self.columns[name]
        if packing is None:
            return pl.read_ipc(self._others, columns=[name]).to_series().slice(first, count)

        def read(array: str, first: int, count: int) -> NDArray[Any]:
            return self._numbers.read(_array(name, array), first, count)

        return packing.undo(name, read, first, count)

    def remove(self) -> None:
        self._numbers.remove()
        self._others.unlink(missing_ok=True)


def _array(column: str, array: str) -> str:
    """Return the name, in a file, of one of the arrays that a packed column consists of."""
    return f"{array} {column}"
