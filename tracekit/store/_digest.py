"""Recognising a report by its content."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tracekit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NOT_YET = ""
"""Stands for the digest of a trace that is still being made."""
_CHUNK = 4 << 20


def file_digest(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a trace's content, in hexadecimal.

    That of a folder is the digest of the names, the sizes and the content of its tables' files.

    Parameters
    ----------
    path
        The file or folder; it is only read.
    progress
        Called after each chunk with the number of bytes read so far.

    Raises
    ------
    InputError
        If a file cannot be read.
    """
    digest = hashlib.sha256()
    is_folder = path.is_dir()
    done = 0
    for file in _content(path):
        if is_folder:
            digest.update(b"%s\0%d\0" % (os.fsencode(file.name), file_size(file)))
        for size in _fed(file, digest):
            done += size
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def file_state(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and time of a trace's files, which show a change; empty if gone."""
    try:
        found = [file.stat() for file in _content(path)]
    except (InputError, OSError):
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def file_size(path: Path) -> int:
    """Return the size of a trace, bytes; 0 where there is none that can be read."""
    try:
        return sum(file.stat().st_size for file in _content(path) if file.is_file())
    except (InputError, OSError):
        return 0


def _content(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    from tracekit.sources import content_files  # noqa: PLC0415 - not every command reads traces

    return content_files(path)


def _fed(path: Path, digest: hashlib._Hash) -> Iterator[int]:
    """Feed the content of a file to a digest, and yield how much of it, bit by bit."""
    buffer = memoryview(bytearray(_CHUNK))
    try:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
                yield size
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error


def run_digest(digests: Sequence[str]) -> str:
    """Return the digest of a run from those of its reports, in any order."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
