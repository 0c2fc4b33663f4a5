"""The folders of a store: columns are staged, published, and swept away when nothing needs them.

An ingest holds a lock file from before its folder exists until after its row is committed, so a
folder whose lock is free belongs to an ingest that has ended, and the catalogue, when asked *while
the lock is held*, says for good whether the folder is a run's. The kernel frees the lock of a
process that dies, however it dies. Names are random and never used twice.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PRIVATE = 0o700
_ON_WINDOWS = os.name == "nt"
_LOCK_SUFFIX = ".lock"
_SYNCED_AT_ONCE = 16
"""Files that the disk is asked for together: many take it little longer than one."""
FREE_SPACE = "free some space"
"""The hint of errors of a full disk."""
_MAY_NOT_GROW = "files may not grow that large here: see `ulimit -f`"
_NO_LOCKS = "its file system has no locks: put the store elsewhere with --store or TRACEKIT_STORE"
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FREE_SPACE),
    errno.EFBIG: _MAY_NOT_GROW,
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP), _NO_LOCKS),
}
_OTHER_HINT = "choose another folder with --store or TRACEKIT_STORE"


@contextmanager
def file_errors(root: Path) -> Iterator[None]:
    """Turn failures to read or write the store's own files into `StoreError`."""
    try:
        yield
    except OSError as error:
        # Errors of polars carry their text, and neither number nor file.
        cause = error.strerror or str(error)
        file = f" of {error.filename}" if error.filename else ""
        hint = _HINTS.get(error.errno or 0, _OTHER_HINT)
        raise StoreError(f"the store {root} cannot be used ({cause}{file})", hint) from error
    except pl.exceptions.ComputeError as error:
        # So polars reports a full disk; an error of any other origin is not the store's.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        hint = _HINTS.get(int(number[1]), FREE_SPACE)
        raise StoreError(f"the store {root} cannot be written ({error})", hint) from error


class Folders:
    """The folders of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / "staging"
        self.runs = root / "runs"

    def create(self) -> None:
        """Make the folders that are not there yet."""
        with file_errors(self.root):
            # A new store is its owner's: traces name programs, hosts and folders.
            self.root.mkdir(_PRIVATE, parents=True, exist_ok=True)
            self.staging.mkdir(exist_ok=True)
            self.runs.mkdir(exist_ok=True)
            sync(self.root)

    @contextmanager
    def claim(self, prefix: str) -> Iterator[Path]:
        """Yield a new folder in ``staging/`` that no sweep touches, nor the one it is published to.

        What is still in ``staging/`` at the end is removed.
        """
        with file_errors(self.root):
            lock = _Lock.fresh(self.staging, prefix)
        folder = self.staging / lock.name
        try:
            with file_errors(self.root):
                folder.mkdir()
            yield folder
        finally:
            _drop(folder)
            lock.release()

    def publish(self, staged: Path) -> None:
        """Move a complete folder from ``staging/`` to ``runs/``, all of it safely on disk."""
        with file_errors(self.root):
            with ThreadPoolExecutor(_SYNCED_AT_ONCE, "sync") as threads:
                for _ in threads.map(sync, (*staged.rglob("*"), staged)):
                    pass
            staged.rename(self.runs / staged.name)
            sync(self.runs)

    def drop_empty(self) -> None:
        """Remove the folders if nothing was ever put into them, nor is now by another process."""
        mine = (self.staging, self.runs)
        with suppress(OSError):
            if set(self.root.iterdir()) <= set(mine):
                for folder in (*mine, self.root):
                    folder.rmdir()

    def discard(self, name: str) -> None:
        """Remove a folder of ``runs/`` where possible; another process may be doing the same."""
        shutil.rmtree(self.runs / name, ignore_errors=True)

    def discard_dead(self, name: str) -> bool:
        """Remove a folder of ``runs/`` unless an ingest holds it, and say whether it is gone."""
        with ExitStack() as held:
            if self._hold(name, held):
                self.discard(name)
        return not (self.runs / name).exists()

    def sweep(
        self,
        prefix: str,
        named: Callable[[], set[str]],
        is_owned: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        """Remove the folders that no run has and no living ingest holds.

        Parameters
        ----------
        prefix
            What the names of the folders of this catalogue begin with. Those of another catalogue
            stay: this one cannot know whether they are needed.
        named
            Asks the catalogue for the folders of its runs.
        is_owned
            Whether a folder says of which run it is: then the catalogue may have lost it.
        """
        staged = {_stem(path) for path in self.staging.iterdir()}
        published = {path.name for path in self.runs.iterdir() if path.name.startswith(prefix)}
        # Asked after listing, so that the folder of a finished ingest is not taken for left over.
        left = staged | {n for n in published - named() if not is_owned(self.runs / n)}
        if not left:
            return
        with ExitStack() as held:
            dead = [name for name in left if self._hold(name, held)]
            needed = named()
            for name in dead:
                _drop(self.staging / name)
                if name in published and name not in needed:
                    self.discard(name)

    def _hold(self, name: str, held: ExitStack) -> bool:
        lock = _Lock.take(self.staging, name)
        if lock is not None:
            held.callback(lock.release)
        return lock is not None


class _Lock:
    """An exclusive lock on the file ``<name>.lock``, which exists no longer than the lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = _stem(path)
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str) -> _Lock | None:
        """Take the lock of that name; None where another holds it."""
        path = folder / f"{name}{_LOCK_SUFFIX}"
        from filelock import lock_descriptor  # noqa: PLC0415 - what is only read is not locked

        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Its last holder may have removed the file after it was opened here: that lock is void.
            if lock_descriptor(descriptor, blocking=False) and _is(path, descriptor):
                return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @classmethod
    def fresh(cls, folder: Path, prefix: str) -> _Lock:
        """Take a lock of a name that was never used."""
        while True:
            # None where a sweep has caught the new file before it was locked.
            lock = cls.take(folder, f"{prefix}{secrets.token_hex(8)}")
            if lock is not None:
                return lock

    def release(self) -> None:
        """Remove the file, then let go: whoever waits for it finds it void.

        Windows removes no file that is open, and none that another has opened meanwhile. What
        cannot be removed is let go all the same, and left to the next sweep.
        """
        if not _ON_WINDOWS:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        if _ON_WINDOWS:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def _is(path: Path, descriptor: int) -> bool:
    """Whether a file is still the one that was opened."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _drop(folder: Path) -> None:
    """Remove a staged folder, though a worker may still be writing into it."""
    if folder.is_symlink():  # which no ingest makes
        folder.unlink(missing_ok=True)
        return
    # Under another name nothing is added to it any more while it is emptied.
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f"{folder.name}.dropped"))
    shutil.rmtree(folder, ignore_errors=True)


def _stem(path: Path) -> str:
    return path.name.removesuffix(_LOCK_SUFFIX)


def sync(path: Path) -> None:
    """Have the operating system put a file, or the entries of a folder, on disk."""
    if _ON_WINDOWS and path.is_dir():  # which cannot be opened there, nor need be
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
