"""Buffer for chunks of integer columns that a phase of attribution keeps for a later phase.

Chunks stay in memory while they fit, else they are written to files in their memory layout, so that
reading a column costs no more than a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.attribution._arrays import Array
from tracekit.support.arrays import ArrayFile, size_of
from tracekit.support.spool import Workspace


class Waiting:
    """Buffer of chunks of integer columns, in memory or in files, until they are dropped.

    Parameters
    ----------
    workspace
        Memory budget and folder for the chunks.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._chunks: list[Mapping[str, Array] | ArrayFile] = []

    def append(self, columns: Mapping[str, Array]) -> None:
        """Add a chunk: columns of equal length."""
        self._chunks.append(self._kept(columns))

    def replace(self, number: int, columns: Mapping[str, Array]) -> None:
        """Replace the columns of chunk `number`."""
        self.drop(number)
        self._chunks[number] = self._kept(columns)

    def _kept(self, columns: Mapping[str, Array]) -> Mapping[str, Array] | ArrayFile:
        path = self._workspace.take(size_of(columns))
        return dict(columns) if path is None else ArrayFile.of(path, columns)

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, number: int, *columns: str) -> list[Array]:
        """Return the named columns of chunk `number`, in the order of the names."""
        chunk = self._chunks[number]
        read = chunk.read if isinstance(chunk, ArrayFile) else chunk.__getitem__
        return [read(name) for name in columns]

    def drop(self, number: int) -> None:
        """Drop chunk `number`, which is not needed any more."""
        chunk = self._chunks[number]
        if isinstance(chunk, ArrayFile):
            chunk.remove()
        else:
            self._workspace.give_back(size_of(chunk))
        self._chunks[number] = {}
