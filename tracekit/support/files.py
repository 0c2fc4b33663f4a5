"""Atomic writing of files, checks of paths, and the place of tracekit's data files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

StrPath = str | os.PathLike[str]
"""Types of a path."""
_PACKAGE = Path(__file__).parents[1]


def is_plain_file(path: StrPath) -> bool:
    """Test whether a path is a regular file, and not a link, pipe or device."""
    return stat.S_ISREG(mode_of(path))


def is_real_folder(path: StrPath) -> bool:
    """Test whether a path is a folder and no link."""
    return stat.S_ISDIR(mode_of(path))


def mode_of(path: StrPath) -> int:
    """Return type and permissions of a path, as `os.lstat` does; 0 if it does not exist."""
    status = status_of(path)
    return status.st_mode if status else 0


def status_of(path: StrPath) -> os.stat_result | None:
    """Return the status of a path (of a link itself, not its target); None if it does not exist."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_plain(path: StrPath) -> bytes:
    """Read a regular file without following links or waiting for pipes.

    Raises
    ------
    OSError
        If the file cannot be read, or is no regular file.
    """
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | safely)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
        return file.read()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: completely, or not at all."""
    target = path.resolve()
    # A device or a pipe is written to; only a file may be replaced by another one.
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the old one only once it is complete."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def schemas() -> Path:
    """Return the folder `schemas`: inside an installed package, or beside it in a checkout."""
    shipped = _PACKAGE / "schemas"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "schemas"
