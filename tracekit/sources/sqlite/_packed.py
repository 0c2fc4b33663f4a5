"""SQLite files that are packed with gzip, as RPDs are shared."""

from __future__ import annotations

import errno
import gzip
import zlib
from pathlib import Path

from tracekit.errors import DamagedTraceError, InputError
from tracekit.sources.sqlite._layout import HEADER_BYTES, MAGIC, page_size, pages_counted
from tracekit.support.spool import Workspace

_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 22


def is_packed(path: Path) -> bool:
    """Tell whether a file is an SQLite file packed with gzip."""
    with path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            return False
        file.seek(0)
        try:
            return zlib.decompressobj(wbits=31).decompress(file.read(1 << 10), len(MAGIC)) == MAGIC
        except zlib.error:
            return False


def unpack(path: Path, workspace: Workspace) -> Path:
    """Unpack a file into the workspace, up to the size in its header.

    Raises
    ------
    DamagedTraceError
        If it cannot be unpacked.
    InputError
        If there is no room for it.
    """
    target = workspace.new_folder() / "unpacked.sqlite"
    try:
        with gzip.open(path) as packed, target.open("wb") as file:
            header = packed.read(HEADER_BYTES)
            file.write(header)
            left = max(page_size(header) * (pages_counted(header) or 1 << 32) - len(header), 0)
            while left and (block := packed.read(min(_BLOCK, left))):
                file.write(block)
                left -= len(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedTraceError(f"{path} cannot be unpacked ({error})", "copy it again") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise InputError(
            f"there is no room to unpack {path} ({error.strerror})", "free space for it"
        ) from error
    return target
