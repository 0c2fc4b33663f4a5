"""Spools for tables: in memory while they fit, in files beyond that."""

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
"""What an ingest may use, bytes."""

_LIBRARIES = 128 << 20
"""What Python, polars and the compiled loops take themselves: 118 MiB, before any row is read."""
_COMPILER = 128 << 20
"""What Numba takes on top, for good, once a loop had to be compiled."""
_SHARE = 10
"""What part of the rest the waiting tables may fill; working on a few chunks needs what is left."""
_BYTES_PER_ROW = 12_000
"""What the work on one row of a chunk may take at most: some hundred bytes in each of the tables,
of which several are in the works, with what is read ahead and what is being written."""
_LEAST_GAIN = 4
"""How many times less a column has to take to be packed in memory: times, which would take half and
are read most often, are not. Into files goes as little as can be."""
_MOST_ROWS = 1 << 19
_FEWEST_ROWS = 1 << 14


class Workspace:
    """Memory and a folder to work in.

    Parameters
    ----------
    folder
        Where files may be made, which exists; without one everything stays in memory.
    memory
        How much memory the whole work may use, bytes.
    """

    def __init__(self, folder: Path | None = None, memory: int = DEFAULT_MEMORY) -> None:
        self._folder = folder
        self.memory = memory if folder is not None else sys.maxsize
        """How much memory the work may use; where nothing can be put into files, what there is."""
        free = max(memory - _LIBRARIES, 0)
        self._left = free // _SHARE
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.rows = min(max(free // _BYTES_PER_ROW, _FEWEST_ROWS), _MOST_ROWS)
        """How many rows of a table to work on at once."""

    def new_folder(self) -> Path:
        """Return a new folder, for this user alone, which lasts as long as this and its folder."""
        made = Path(tempfile.mkdtemp(dir=self._folder))
        if self._folder is None:
            weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def take(self, size: int) -> Path | None:
        """Return the file for these bytes, or None after reserving memory for them."""
        with self._lock:
            left = self._left - _COMPILER * ("numba" in sys.modules)
            if self._folder is None or size <= left:
                self._left -= size
                return None
            return self._folder / f"{next(self._numbers)}.raw"

    def give_back(self, size: int) -> None:
        """Free memory that was reserved."""
        with self._lock:
            self._left += size


class Spool:
    """Chunks of a table that can be read as often as needed until they are dropped.

    Columns are kept in as few bytes as hold them (see `packed`).

    Parameters
    ----------
    workspace
        Where they wait.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._chunks: list[list[_InMemory | _InFile]] = []
        self.columns: list[tuple[str, ...]] = []
        """The columns that each chunk has."""
        self.heights: list[int] = []
        """How many rows each chunk has."""

    def append(self, frame: pl.DataFrame) -> None:
        """Add a chunk."""
        self._chunks.append([self._kept(frame)])
        self.columns.append(tuple(frame.columns))
        self.heights.append(frame.height)

    def change(self, number: int, without: Collection[str], added: pl.DataFrame) -> None:
        """Let columns of a chunk go, and add others."""
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
        """Return a chunk, or some columns of it, or some `rows` that follow each other."""
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
        """Let go of a chunk that is not needed any more."""
        for part in self._chunks[number]:
            if isinstance(part, _InFile):
                part.remove()
            else:
                self._workspace.give_back(part.size)
        self._chunks[number], self.columns[number], self.heights[number] = [], (), 0


_Kept: TypeAlias = "pl.Series | Packed"


def _kept_in_memory(column: pl.Series) -> _Kept:
    """Return a column as it is, or packed if that takes much less."""
    # Texts of which there are few kinds take longer to be made of numbers.
    may_gain = column.dtype.is_numeric() or column.null_count()
    made = packed(column, _LEAST_GAIN) if may_gain else None
    return made or column


def _size(column: _Kept) -> int:
    return column.size if isinstance(column, Packed) else int(column.estimated_size())


@dataclass(frozen=True)
class _InMemory:
    """Columns, and how much memory they take, bytes."""

    columns: Mapping[str, _Kept]
    size: int

    def read(self, name: str, first: int, count: int) -> pl.Series:
        column = self.columns[name]
        if isinstance(column, Packed):
            return column.slice(name, first, count)
        return column.slice(first, count)


class _InFile:
    """Columns in a file, and those that are no numbers in another one."""

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
    """Return what an array of a column is called."""
    return f"{array} {column}"
