"""Cache in a run's folder of values computed from its tables.

A cached value that is missing, damaged or written by another version of the code is computed again.
Apart from this cache, a published folder is never changed, so the folder's name identifies the
content of its tables.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import polars as pl

from tracekit.store._access import PRIVATE, access_of, put_file
from tracekit.support.files import is_real_folder, read_plain

_FOLDER = "kept"
_DIGEST_BYTES = hashlib.sha256().digest_size
_UNREADABLE = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError)
_ROOMS = ("analysis", "engine", "model", "view")
"""Subpackages of tracekit whose code computes cached values."""


class Kept:
    """Cache of values computed from a run's tables: sums, and binned data of the interactive view.

    Parameters
    ----------
    root, folder
        Folder of the store, and folder of the run.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder / _FOLDER

    def read(self, key: str) -> bytes | None:
        """Return the value cached under a key; None if there is none, or it is damaged."""
        with suppress(OSError):
            if is_real_folder(self._folder):
                content = read_plain(self._path(key))
                digest, rest = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                return rest if hashlib.sha256(rest).digest() == digest else None
        return None

    def write(self, key: str, content: bytes) -> bool:
        """Cache a value under a key; return False if the folder cannot be written."""
        with suppress(OSError):
            access = access_of(self._root)
            if not is_real_folder(self._folder):
                self._folder.mkdir(PRIVATE.folder)
                access.give(self._folder)
            with_digest = hashlib.sha256(content).digest() + content
            put_file(self._folder, self._path(key).name, with_digest, access)
            return True
        return False

    def find(self, key: str) -> dict[str, pl.DataFrame] | None:
        """Return the frames cached under a key; None if there are none, or they are damaged."""
        content = self.read(key)
        if content is None:
            return None
        try:  # whoever wrote here can write a digest, too
            with zipfile.ZipFile(io.BytesIO(content)) as file:
                if any(each.file_size > len(content) for each in file.infolist()):
                    return None
                return {name: pl.read_ipc(file.read(name)) for name in file.namelist()}
        except (*_UNREADABLE, pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None

    def keep(self, key: str, frames: Mapping[str, pl.DataFrame]) -> bool:
        """Cache frames under a key; return False if the folder cannot be written."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as file:
            for name, frame in frames.items():
                buffer = io.BytesIO()
                frame.write_ipc(buffer, compression="zstd")
                file.writestr(name, buffer.getvalue())
        return self.write(key, content.getvalue())

    def stale(self) -> list[Path]:
        """Return the cache files that other versions of the code wrote, which are not read."""
        files = self._folder.iterdir() if is_real_folder(self._folder) else ()
        return sorted(file for file in files if not file.name.startswith(_code()))

    def _path(self, key: str) -> Path:
        return self._folder / f"{_code()}-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


@cache
def _code() -> str:
    """Return a digest of the code that computes cached values, to notice when it has changed."""
    package, found = Path(__file__).parents[1], hashlib.sha256(pl.__version__.encode())
    for file in sorted(each for room in _ROOMS for each in (package / room).rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
