"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

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
