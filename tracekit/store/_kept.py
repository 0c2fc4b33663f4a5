"""Cache in a run's folder of what is made of its tables, so that asking again reads none of them.

Whatever is missing, damaged or of other code is made again. A run's folder is
never written to otherwise once it is published, so its name stands for what its tables hold.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracekit.store._access import PRIVATE, access_of, put_file
from tracekit.support.files import is_real_folder, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = "kept"
_DIGEST_BYTES = hashlib.sha256().digest_size
_UNREADABLE = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError)
_ROOMS = ("analysis", "engine", "model", "view")
"""Of tracekit, those whose code makes it."""


class Kept:
    """Cache of what is made of the tables of a run: sums of its parts, and tiles of the view.

    Parameters
    ----------
    root, folder
        The folder of the store, and that of the run.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder / _FOLDER

    def read(self, key: str) -> bytes | None:
        """Return what was kept by a key; None where nothing is, or it is damaged."""
        with suppress(OSError):
            if is_real_folder(self._folder):
                content = read_plain(self._path(key))
                digest, rest = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                return rest if hashlib.sha256(rest).digest() == digest else None
        return None

    def write(self, key: str, content: bytes) -> None:
        """Keep something by a key, where that can be written."""
        with suppress(OSError):
            access = access_of(self._root)
            if not is_real_folder(self._folder):
                self._folder.mkdir(PRIVATE.folder)
                access.give(self._folder)
            whole = hashlib.sha256(content).digest() + content
            put_file(self._folder, self._path(key).name, whole, access)

    def find(self, key: str) -> dict[str, pl.DataFrame] | None:
        """Return frames that were kept by a key; None where none are, or they are damaged."""
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

    def keep(self, key: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Keep some frames by a key, where that can be written."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as file:
            for name, frame in frames.items():
                own = io.BytesIO()
                frame.write_ipc(own, compression="zstd")
                file.writestr(name, own.getvalue())
        self.write(key, content.getvalue())

    def stale(self) -> list[Path]:
        """Return the files that other code made, which nothing reads any more."""
        files = self._folder.iterdir() if is_real_folder(self._folder) else ()
        return sorted(file for file in files if not file.name.startswith(_code()))

    def _path(self, key: str) -> Path:
        return self._folder / f"{_code()}-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


@cache
def _code() -> str:
    """Return a digest of the code that adds up: an installation may change without its version."""
    package, found = Path(__file__).parents[1], hashlib.sha256(pl.__version__.encode())
    for file in sorted(each for room in _ROOMS for each in (package / room).rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
