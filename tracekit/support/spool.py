"""Where tables wait that are too large to hold: in memory while they fit, in files beyond that."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
DEFAULT_MEMORY = 4 * GIB
"""What an ingest may use, bytes."""

_SHARE = 8
"""What part of that the waiting tables may fill; working on a few chunks needs the rest."""
_BYTES_PER_ROW = 12_000
"""What the work on one row of a chunk may take at most: some hundred bytes in each of the tables,
of which several are in the works, with what is read ahead and what is being written."""
_MOST_ROWS = 1 << 18
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
        self._left = memory // _SHARE
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.rows = min(max(memory // _BYTES_PER_ROW, _FEWEST_ROWS), _MOST_ROWS)
        """How many rows of a table to work on at once."""

    def new_folder(self) -> Path:
        """Return a new folder, for this user alone, which lasts as long as this and its folder."""
        made = Path(tempfile.mkdtemp(dir=self._folder))
        if self._folder is None:
            weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def take(self, frame: pl.DataFrame) -> Path | None:
        """Return the file that `frame` has to go to, or None and reserve the memory it takes."""
        size = int(frame.estimated_size())
        with self._lock:
            if self._folder is None or size <= self._left:
                self._left -= size
                return None
            return self._folder / f"{next(self._numbers)}.arrow"

    def give_back(self, frame: pl.DataFrame) -> None:
        """Free the memory that was reserved for `frame`."""
        with self._lock:
            self._left += int(frame.estimated_size())


class Spool:
    """Chunks of a table that can be read as often as needed until they are dropped.

    Parameters
    ----------
    workspace
        Where they wait.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._chunks: list[pl.DataFrame | Path] = []
        self.heights: list[int] = []

    def append(self, frame: pl.DataFrame) -> None:
        """Add a chunk."""
        path = self._workspace.take(frame)
        if path is not None:
            frame.write_ipc(path, compression="uncompressed")
        self._chunks.append(frame if path is None else path)
        self.heights.append(frame.height)

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        """Return a chunk, or some columns of it."""
        chunk = self._chunks[number]
        if isinstance(chunk, Path):
            return pl.read_ipc(chunk, columns=list(columns) or None)
        return pl.DataFrame([chunk[name] for name in columns]) if columns else chunk

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (self.read(number) for number in range(len(self)))

    def drop(self, number: int) -> None:
        """Let go of a chunk that is not needed any more."""
        chunk = self._chunks[number]
        if isinstance(chunk, Path):
            chunk.unlink()
        else:
            self._workspace.give_back(chunk)
        self._chunks[number] = pl.DataFrame()
