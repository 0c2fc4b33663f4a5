"""Check that the stored files of a recording are unchanged since they were written.

The folder of an ingested recording has a list of its files' sizes, modification times and
checksums. A file whose size and modification time match the list counts as unchanged; any other is
read and its checksum compared. A thorough check compares the checksums of all files, since a
failing disk changes content without a new modification time.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tracekit.support.files import read_plain, status_of

_LIST = "checks.json"
_PART = re.compile(r"\w+[/\\]\d+\.parquet")
"""Form of a path in the list; any other path could lead out of the folder."""
Status: TypeAlias = Callable[[str], os.stat_result | None]


class Check(NamedTuple):
    """State of a file when it was written: size (bytes), modification time (ns), CRC-32."""

    size: int
    changed: int
    checksum: int

    @classmethod
    def of(cls, path: Path, checksum: int | None = None) -> Check:
        """Return the state of a file; the file is read if its checksum is not given."""
        status = path.stat()
        if checksum is None:
            checksum = zlib.crc32(read_plain(path))
        return cls(status.st_size, status.st_mtime_ns, checksum)


def write_checks(folder: Path, checks: Mapping[str, Check]) -> None:
    """Write the list of states that files had when written, by path relative to `folder`.

    Later these sizes, times and checksums show whether a file has changed.
    """
    text = json.dumps(dict(sorted(checks.items())))
    content = f'{{"checksum": {zlib.crc32(text.encode())}, "files": {text}}}\n'
    (folder / _LIST).write_text(content, encoding="utf-8")


def read_checks(folder: Path) -> dict[str, Check]:
    """Return the state of each file when it was written: path -> size, time and checksum.

    Raises
    ------
    OSError, ValueError
        If the list is missing or damaged.
    """
    content = json.loads(read_plain(folder / _LIST))
    try:
        files = content["files"]
        if zlib.crc32(json.dumps(files).encode()) == content["checksum"] and all(
            map(_PART.fullmatch, files)
        ):
            return {name: Check(*check) for name, check in files.items()}
    except (KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{folder / _LIST} is damaged")


def damaged_files(folder: Path, status: Status = status_of, *, thorough: bool = False) -> list[str]:
    """Return the files in a folder of stored tables that changed since they were written.

    Missing files are not among them.

    Parameters
    ----------
    folder
        The folder with the tables of one trace file.
    status
        Function of a path that returns its status, None if it does not exist.
    thorough
        Whether to read all files, and not only those whose size or time has changed.
    """
    try:
        checks = read_checks(folder)
    except (OSError, ValueError, RecursionError):
        return [_LIST]
    # Paths of texts, for runs of a thousand reports have 20,000 files.
    within = f"{folder}/"
    return [
        name
        for name, check in checks.items()
        if (found := status(path := within + name)) and _is_damaged(path, found, check, thorough)
    ]


def _is_damaged(path: str, status: os.stat_result, check: Check, thorough: bool) -> bool:  # noqa: FBT001
    if not stat.S_ISREG(status.st_mode):
        return True
    if not thorough and (status.st_size, status.st_mtime_ns) == check[:2]:
        return False
    try:
        return status.st_size != check.size or Check.of(Path(path)).checksum != check.checksum
    except OSError:
        return True
