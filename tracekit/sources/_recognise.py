"""What a file is, and reading it with the module that knows its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracekit._spool import Workspace
from tracekit.errors import (
    DamagedTraceError,
    InputError,
    NotATraceError,
    UnsupportedTraceError,
)  # fmt: skip
from tracekit.model import Recording, Trace
from tracekit.sources import nsys
from tracekit.sources.sqlite import MAGIC, SqliteFile

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_EXPORT_IT = "export it where nsys is installed: nsys export --type sqlite {path}"
_USE_SQLITE = "tracekit reads nsys SQLite exports: nsys export --type sqlite REPORT"

# How other files begin that people have beside an export, and what to do with each.
_OTHERS = (
    (b"NVIDIA Tegra Profiler Report", "an Nsight Systems report, not an export of one", _EXPORT_IT),
    (b"PAR1", "a Parquet file", _USE_SQLITE),
    (b"ARROW1", "an Arrow file", _USE_SQLITE),
    (b"\xff\xff\xff\xff", "an Arrow stream", _USE_SQLITE),
    (b"\x89HDF", "an HDF5 file", _USE_SQLITE),
    (b"\x1f\x8b", "a gzip archive", "unpack it first: gunzip {path}"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first: unzstd {path}"),
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip {path}"),
)


def read(path: Path, progress: Progress = lambda *_: None) -> Trace:
    """Return the canonical tables of a trace file in memory; as for `open_report`."""
    return open_report(path, Workspace(), progress).trace()


def open_report(
    path: Path, workspace: Workspace, progress: Progress = lambda *_: None
) -> Recording:
    """Return the canonical tables of a trace file; nothing is attributed yet.

    Parameters
    ----------
    path
        The file.
    workspace
        Where its tables wait, which has to be there as long as they are read.
    progress
        Told what is being done.

    Raises
    ------
    InputError
        If there is no such file, or it cannot be read.
    NotATraceError, UnsupportedTraceError
        If it is not a trace, or one of a kind that is not read.
    DamagedTraceError, MissingDataError
        If it is cut short or corrupt, or holds nothing to analyse.
    """
    check_readable(path)
    file = SqliteFile(path)
    if nsys.is_nsys(file):
        return nsys.read(file, workspace, progress)
    if file.has("StringTable"):
        raise UnsupportedTraceError(
            f"{path} is an nvprof database", f"this version does not read these; {_USE_SQLITE}"
        )
    raise NotATraceError(
        f"{path} is an SQLite database, but no trace (no table StringIds)", _USE_SQLITE
    )


def check_readable(path: Path) -> None:
    """Raise an `InputError` that says why `path` is no file that a trace could be in."""
    try:
        if path.is_dir():
            raise NotATraceError(f"{path} is a directory", "give the file of a trace")
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise NotATraceError(f"{path} is no regular file", "give the file of a trace")
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError as error:
        raise InputError(f"no file {path}", "check the path") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read", "check its permissions: ls -l") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not head:
        raise NotATraceError(f"{path} is empty", "export the report again")
    if not any(head):
        raise DamagedTraceError(
            f"{path} begins with zeros, as an export does that was interrupted",
            "export the report again",
        )
    if not head.startswith(MAGIC):
        raise _other(path, head)


def _other(path: Path, head: bytes) -> InputError:
    for magic, what, hint in _OTHERS:
        if head.startswith(magic):
            return UnsupportedTraceError(f"{path} is {what}", hint.format(path=path))
    if head.lstrip()[:1] in (b"{", b"["):
        what = "JSON; PyTorch traces are not read by this version"
        return UnsupportedTraceError(f"{path} is {what}", _USE_SQLITE)
    return NotATraceError(f"{path} is not a trace", _USE_SQLITE)
