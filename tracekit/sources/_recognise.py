"""What a file is, and reading it with the module that knows its format."""

from __future__ import annotations

from pathlib import Path

from tracekit.errors import DamagedTraceError, InputError, NotATraceError
from tracekit.model import Recording, Trace
from tracekit.sources._format import Opening
from tracekit.sources._formats import FORMATS
from tracekit.sources._others import READS, refusal
from tracekit.sources.columnar import table_files
from tracekit.sources.sqlite import MAGIC
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace


def read(path: Path, progress: Progress = lambda *_: None) -> Trace:
    """Return the canonical tables of a trace file in memory; as for `open_report`."""
    return open_report(path, Workspace(), progress).trace()


def content_files(path: Path) -> list[Path]:
    """Return the files that a trace is made of: those of a columnar export, else `path` itself."""
    return table_files(path) if path.is_dir() else [path]


def open_report(
    path: Path,
    workspace: Workspace,
    progress: Progress = lambda *_: None,
    nsys_tool: str | None = None,
) -> Recording:
    """Return the canonical tables of a trace file; nothing is attributed yet.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export.
    workspace
        Where its tables wait, which has to be there as long as they are read.
    progress
        Told what is being done.
    nsys_tool
        The nsys that exports reports; by default ``TRACEKIT_NSYS``, else the one on the path.

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
    one = Opening(path, workspace, progress, nsys_tool)
    for each in FORMATS:
        if each.begins(path) and (recording := each.read(one)) is not None:
            return recording
    if path.is_dir():
        raise NotATraceError(f"the strings in {path} are none of nsys", READS)
    head = _head(path)
    if not head.startswith(MAGIC):
        raise refusal(path)
    raise NotATraceError(
        f"{path} is an SQLite database, but no trace (no table StringIds or StringTable)",
        READS,
    )


def check_readable(path: Path) -> None:
    """Raise an `InputError` that says why `path` is no file that a trace could be in."""
    try:
        if path.is_dir():
            table_files(path)
            return
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise NotATraceError(f"{path} is no regular file", "give the file of a trace")
        head = _head(path)
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
    if any(each.begins(path) for each in FORMATS):
        return
    raise refusal(path)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)
