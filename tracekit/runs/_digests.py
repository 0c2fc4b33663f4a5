"""Digests of a run's files, computed beside other work, or in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Self

from tracekit import sources
from tracekit.errors import InputError
from tracekit.store import file_digest, file_size
from tracekit.support.ahead import cores
from tracekit.support.progress import Progress

_STEP = "check content"
_SECONDS = 0.1
"""How often to tell how far a digest is."""


class DigestBeside:
    """Digest of a trace, computed in a thread while the trace is read.

    Leaving the context ends it, whether or not it is done.

    Parameters
    ----------
    path
        The trace.
    progress
        Told how much of it is read, while that is waited for.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._size = file_size(path)
        self._done = 0
        self._is_wanted = True

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1, "digest")
        self._digest = self._pool.submit(file_digest, self._path, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_wanted = False
        self._pool.shutdown(cancel_futures=True)

    def wait(self) -> str:
        """Return the digest as soon as it is there.

        Raises
        ------
        InputError
            If the trace cannot be read.
        """
        while wait([self._digest], _SECONDS).not_done:
            self._progress(_STEP, self._done, self._size)
        digest = self._digest.result()
        self._progress(_STEP, self._size, self._size)
        return digest

    def _note(self, done: int) -> None:
        _check_wanted(self._path, self._is_wanted)
        self._done = done


class DigestsSideBySide:
    """Digests of many files, made in threads, in the order of the files.

    Parameters
    ----------
    files
        The files.
    progress
        Told how much of all of them is read.
    """

    def __init__(self, files: Sequence[Path], progress: Progress) -> None:
        self._files = files
        self._progress = progress
        self._lock = threading.Lock()
        self._done: dict[Path, int] = {}
        self._total = sum(map(file_size, files))
        self._is_wanted = True

    def __enter__(self) -> Iterator[tuple[Path, str | InputError]]:
        self._pool = ThreadPoolExecutor(min(cores(), len(self._files)))
        return zip(self._files, self._pool.map(self._digest, self._files), strict=True)

    def __exit__(self, *_: object) -> None:
        self._is_wanted = False
        self._pool.shutdown(cancel_futures=True)

    def _digest(self, path: Path) -> str | InputError:
        try:
            sources.check_readable(path)
            return file_digest(path, partial(self._tell, path))
        except InputError as error:
            return error

    def _tell(self, path: Path, done: int) -> None:
        _check_wanted(path, self._is_wanted)
        with self._lock:
            self._done[path] = done
            self._progress(_STEP, sum(self._done.values()), self._total)


def _check_wanted(path: Path, is_wanted: bool) -> None:  # noqa: FBT001
    """End a thread that reads a file if its result is no longer wanted."""
    if not is_wanted:
        raise InputError(f"{path} was not read to its end")
