"""Declaration of an input format: how it is recognised, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracekit.model import Recording
from tracekit.sources.sqlite import SqliteFile, is_packed, unpack
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace


@dataclass(frozen=True)
class Opening:
    """A trace that is about to be read, with everything that a reader needs.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export.
    workspace
        Folder and memory budget for its tables.
    progress
        Callback that receives progress.
    nsys
        The nsys program that exports reports; None: ``TRACEKIT_NSYS``, else the one on PATH.
    captures
        Further traces, recorded during the capture of the CUDA graphs that this trace replays.
    """

    path: Path
    workspace: Workspace
    progress: Progress
    nsys: str | None = None
    captures: Sequence[Path] = ()

    @cached_property
    def sqlite(self) -> SqliteFile:
        """The file as an SQLite database, unpacked once for all formats that may be in one."""
        packed = is_packed(self.path)
        return SqliteFile(self.path, unpack(self.path, self.workspace) if packed else None)


@dataclass(frozen=True)
class Format:
    """An input format.

    Parameters
    ----------
    name
        Name of the format in messages and docs.
    begins
        Function: whether an existing file or folder begins like this format.
    read
        Reader; it returns None if the content is something else, such as another database.
    """

    name: str
    begins: Callable[[Path], bool]
    read: Callable[[Opening], Recording | None]
