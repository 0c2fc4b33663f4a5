"""Declaration of an input format: how to recognise it, and its reader."""

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
    """A trace that is to be read.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export.
    workspace
        Where its tables wait.
    progress
        Told what is being done.
    nsys
        The nsys that exports reports; by default ``TRACEKIT_NSYS``, else the one on the path.
    captures
        Traces that were recorded while CUDA graphs were captured that this one replays.
    """

    path: Path
    workspace: Workspace
    progress: Progress
    nsys: str | None = None
    captures: Sequence[Path] = ()

    @cached_property
    def sqlite(self) -> SqliteFile:
        """The file as a database, unpacked once for all formats that may be in one."""
        packed = is_packed(self.path)
        return SqliteFile(self.path, unpack(self.path, self.workspace) if packed else None)


@dataclass(frozen=True)
class Format:
    """An input format.

    Parameters
    ----------
    name
        What messages and docs call it.
    begins
        Whether a file or folder that is there begins as one of this format does.
    read
        Reads it; None if it is something else after all, such as another kind of database.
    """

    name: str
    begins: Callable[[Path], bool]
    read: Callable[[Opening], Recording | None]
