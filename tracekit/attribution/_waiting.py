"""Numbers that one step of attribution finds and a later one wants, chunk by chunk.

They wait in memory while they fit, else in files, each column as it lies in memory: what is read
again and again then costs no more than copying it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array
from tracekit.support.spool import Workspace


class Waiting:
    """Chunks of columns of numbers that can be read as often as needed until they are dropped.

    Parameters
    ----------
    workspace
        Where they wait.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._chunks: list[_InMemory | _InFile] = []

    def append(self, columns: Mapping[str, Array]) -> None:
        """Add a chunk, whose columns are of one length."""
        frame = pl.DataFrame({name: pl.Series(column) for name, column in columns.items()})
        path = self._workspace.take(frame)
        held = _InMemory(frame, columns)
        self._chunks.append(held if path is None else _InFile.of(path, columns))

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, number: int, *columns: str) -> list[Array]:
        """Return some columns of a chunk, in this order."""
        return [self._chunks[number].read(name) for name in columns]

    def drop(self, number: int) -> None:
        """Let go of a chunk that is not needed any more."""
        chunk = self._chunks[number]
        if isinstance(chunk, _InFile):
            chunk.path.unlink()
        else:
            self._workspace.give_back(chunk.frame)
        self._chunks[number] = _InMemory(pl.DataFrame(), {})


@dataclass(frozen=True)
class _InMemory:
    """A chunk, and what memory was reserved for."""

    frame: pl.DataFrame
    columns: Mapping[str, Array]

    def read(self, name: str) -> Array:
        return self.columns[name]


@dataclass(frozen=True)
class _InFile:
    """A chunk in a file: where each column begins, of so many numbers of what type."""

    path: Path
    places: Mapping[str, tuple[int, int, np.dtype[np.generic]]]

    @classmethod
    def of(cls, path: Path, columns: Mapping[str, Array]) -> _InFile:
        places = {}
        with path.open("wb") as file:
            for name, column in columns.items():
                places[name] = (file.tell(), column.size, column.dtype)
                file.write(np.ascontiguousarray(column).data)
        return cls(path, places)

    def read(self, name: str) -> Array:
        begin, count, dtype = self.places[name]
        return np.fromfile(self.path, dtype, count, offset=begin)
