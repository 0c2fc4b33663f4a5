"""A file beside a run's tables that is made of them, and made again where it is missing."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from tracekit.store._access import PRIVATE, access_of, put_file
from tracekit.support.files import is_real_folder, read_plain

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = "kept"
_CHECKS = "checks.json"
_VERSION = "tiles 1"
"""Raise it with any change of what `tracekit.view` keeps."""


class KeptFile:
    """A file in a run's folder, named by the digest of its format and of the run's tables.

    Parameters
    ----------
    root
        The store.
    folder
        The run's folder, with which it goes.
    reports
        How many reports the run has.
    """

    def __init__(self, root: Path, folder: Path, reports: int) -> None:
        self._root, self._place, self._reports = root, folder / _FOLDER, reports

    @cached_property
    def _name(self) -> str | None:
        """Its name; None where an earlier version wrote the tables without checksums."""
        digest = hashlib.sha256(_VERSION.encode())
        with suppress(OSError):
            for number in range(self._reports):
                digest.update(read_plain(self._place.with_name(str(number)) / _CHECKS))
            return digest.hexdigest()[:32]
        return None

    def read(self) -> bytes | None:
        """Return its content, which may be damaged; None where there is none."""
        with suppress(OSError):
            if self._name and is_real_folder(self._place):
                return read_plain(self._place / self._name)
        return None

    def write(self, content: bytes) -> None:
        """Write it as a whole; nothing where the store cannot be written, or has no room."""
        if self._name is None:
            return
        with suppress(OSError):
            access = access_of(self._root)
            if not is_real_folder(self._place):
                self._place.mkdir(PRIVATE.folder)
                access.give(self._place)
            put_file(self._place, self._name, content, access)
            self.drop_others()

    def drop_others(self, *, dry_run: bool = False) -> list[Path]:
        """Remove what is of other tables or formats, or half written; return what that is."""
        gone: list[Path] = []
        if not is_real_folder(self._place):
            return gone
        with suppress(OSError):
            for path in sorted(self._place.iterdir()):
                if path.name != self._name:
                    if not dry_run:
                        path.unlink()
                    gone.append(path)
        return gone
