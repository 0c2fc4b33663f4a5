"""The input formats, in the order in which they are tried on a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracekit.model import Recording
from tracekit.sources import kineto, nsys, nvprof, rings, rocprof, rpd, xplane
from tracekit.sources._nsys_tool import is_report, read_report
from tracekit.sources.columnar import ColumnarExport
from tracekit.sources.sqlite import MAGIC, SqliteFile, is_packed, unpack
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace


@dataclass(frozen=True)
class Opening:
    """A request to read a trace: its path, and everything else that a format's reader needs."""

    path: Path
    """The file, or the folder of a columnar export."""
    workspace: Workspace
    """Folder and memory budget for its tables."""
    progress: Progress
    """Callback that receives progress."""
    nsys: str | None = None
    """The nsys program that exports reports; None: ``TRACEKIT_NSYS``, else the one on PATH."""
    captures: Sequence[Path] = ()
    """Further traces, recorded during the capture of the CUDA graphs that this trace replays."""

    @cached_property
    def sqlite(self) -> SqliteFile:
        """The file as an SQLite database; it is opened (and gunzipped) once for all formats."""
        packed = is_packed(self.path)
        return SqliteFile(self.path, unpack(self.path, self.workspace) if packed else None)


@dataclass(frozen=True)
class Format:
    """An input format: its name, the test that recognises it, and its reader."""

    name: str
    """Name of the format in messages and docs."""
    begins: Callable[[Path], bool]
    """Function: whether an existing file or folder begins like this format."""
    read: Callable[[Opening], Recording | None]
    """Reader; it returns None if the content is something else, such as another database."""


def _is_sqlite(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(len(MAGIC)) == MAGIC
    return begins or is_packed(path)


def _report(one: Opening) -> Recording:
    return read_report(one.path, one.workspace, one.progress, one.nsys)


def _nsys(one: Opening) -> Recording | None:
    file = ColumnarExport(one.path) if one.path.is_dir() else one.sqlite
    return nsys.read(file, one.workspace, one.progress) if nsys.is_nsys(file) else None


def _nvprof(one: Opening) -> Recording | None:
    file = one.sqlite
    return nvprof.read(file, one.workspace, one.progress) if nvprof.is_nvprof(file) else None


def _rpd(one: Opening) -> Recording | None:
    return rpd.read(one.sqlite, one.workspace, one.progress) if rpd.is_rpd(one.sqlite) else None


def _rocpd(one: Opening) -> Recording | None:
    file = one.sqlite
    return rocprof.read_rocpd(file, one.workspace, one.progress) if rocprof.is_rocpd(file) else None


FORMATS = [
    Format("nsys reports", lambda path: path.is_file() and is_report(path), _report),
    Format("SQLite exports of nsys", _is_sqlite, _nsys),
    Format("Parquet and Arrow exports of nsys", Path.is_dir, _nsys),
    Format("databases of nvprof", _is_sqlite, _nvprof),
    Format("databases of rocprofv3", _is_sqlite, _rocpd),
    Format("RPDs of rocmProfileData", _is_sqlite, _rpd),
    Format(
        "rings of ranges",
        lambda path: path.is_file() and rings.is_ring(path),
        lambda one: rings.read(one.path, one.progress),
    ),
    Format(
        "PyTorch traces",
        lambda path: path.is_file() and kineto.is_kineto(path),
        lambda one: kineto.read(one.path, one.workspace, one.progress, one.captures),
    ),
    Format(
        "JSON of rocprofv3",
        lambda path: path.is_file() and rocprof.is_rocprof(path),
        lambda one: rocprof.read(one.path, one.workspace, one.progress),
    ),
    Format(
        "profiles of XLA",
        lambda path: path.is_file() and xplane.is_xplane(path),
        lambda one: xplane.read(one.path, one.workspace, one.progress),
    ),
    Format(
        "CSV of nvprof",
        lambda path: path.is_file() and nvprof.is_csv(path),
        lambda one: nvprof.read_csv(one.path, one.workspace, one.progress),
    ),
]
"""The formats, in order of recognition; a format whose beginning is more specific comes first. A
new format is a folder here, and one entry. The modules of the last ones are loaded only if a file
is none of the others."""
