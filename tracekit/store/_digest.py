"""Recognising a report by its content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tracekit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_CHUNK = 4 << 20


def file_digest(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Parameters
    ----------
    path
        The file; it is only read.
    progress
        Called after each chunk with the number of bytes read so far.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
                done += size
                if progress is not None:
                    progress(done)
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error
    return digest.hexdigest()


def run_digest(digests: Sequence[str]) -> str:
    """Return the digest of a run by those of its reports, in whatever order; of one, its own."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
