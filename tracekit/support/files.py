"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

StrPath = str | os.PathLike[str]
"""How callers may name a file."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is either there as a whole or as it was before."""
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
    """Open a file to be written piece by piece, which is there as a whole or as it was before."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
