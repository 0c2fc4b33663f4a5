"""Folders of a store: staged while being written, then published; leftovers are removed.

An ingest has a lock on a file from before its folder exists until after its row is committed. So a
folder whose lock is free belongs to an ingest that has ended, and the catalogue, read *while the
lock is held*, shows definitely whether the folder belongs to a run. The kernel frees the lock of a
process that dies, however it dies. Names are random and never reused.

A user may name any folder as a store, and other tools may write to `runs/` and `staging/`. So only
folders with a name of the store's pattern and its marker file inside are ever moved or removed, and
never a link.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import polars as pl

from tracekit.errors import StoreError
from tracekit.store._access import ID_FILE, PRIVATE, Access, access_of, check_folder, database_files
from tracekit.support.files import is_plain_file, is_real_folder, mode_of

_ON_WINDOWS = os.name == "nt"
_LOCK_SUFFIX = ".lock"
_DROPPED = ".dropped"
DATABASE = "catalogue.sqlite"
"""Name of the catalogue in a store's own folder."""
_SYNCED_AT_ONCE = 16
"""Number of files synced to disk together: many take little longer than one."""
FREE_SPACE = "free some space"
"""Hint in errors about a full disk."""
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
    """Convert failures to read or write the store's files to `StoreError`."""
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


_OWN_NAME = "[0-9a-f]{8}-[0-9a-f]{16}"
OWN_NAME = re.compile(_OWN_NAME)
"""Form of the name of a run's folder: a prefix for its catalogue, and random digits."""
_STAGED_NAME = re.compile(
    f"(?P<stem>(?:{_OWN_NAME}|(?:first|store)-[0-9a-f]{{16}})(?:\\.dropped)?)(?:\\.lock)?"
)
_AT_ROOT = re.compile(
    r"staging|runs|store\.json|\.store\.json\.\w+\.part|catalogue\.(?:damaged|sqlite)(?:-journal|-wal|-shm)?"
)
MARK = "made-by-tracekit"
"""Mark: a file in each folder that an ingest makes. No folder is removed without it, or a copy of
its row."""
_MARK_TEXT = b"tracekit made this folder, and removes it once no run needs it.\n"
ROW_COPY = "run.json"
"""A copy of the run's row; the folders of earlier versions have no other mark."""


class Folders:
    """The folders of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / "staging"
        self.runs = root / "runs"

    def check(self) -> None:
        """Raise an error unless the root is a store, or can become one.

        Raises
        ------
        StoreError
            If a path that should be a folder is something else, or a folder has foreign contents,
            as these could have names that a store uses.
        """
        with file_errors(self.root):
            if os.path.lexists(self.root) and not self.root.is_dir():
                raise StoreError(f"the store {self.root} is not a folder", "give another --store")
            for folder in (self.staging, self.runs):
                check_folder(folder)
            if os.path.lexists(self.root / ID_FILE) or self.has_rows():
                return
            other = next(self._others(), None)
            if other is not None:
                raise StoreError(
                    f"{self.root} is not a store, and not empty (it has {other})",
                    f"give a store an empty folder: --store {self.root / '.tracekit'}",
                )

    def has_rows(self) -> bool:
        """Test whether any run's folder has a copy of the run's catalogue row."""
        return any(is_plain_file(folder / ROW_COPY) for folder in self.published())

    def _others(self) -> Iterator[str]:
        """Yield paths in the root, ``staging/`` and ``runs/`` with names that no store uses."""
        for folder, form in (
            (self.root, _AT_ROOT),
            (self.staging, _STAGED_NAME),
            (self.runs, OWN_NAME),
        ):
            for path in _inside(folder):
                if not form.fullmatch(path.name):
                    yield str(path.relative_to(self.root))

    def published(self) -> list[Path]:
        """Return the folders in ``runs/`` with a valid folder name and the store's marker file."""
        return [path for path in self._called_so() if self._is_own(path)]

    def unmarked(self) -> list[Path]:
        """Return folders in ``runs/`` and ``staging/`` with a valid name but no marker file."""
        staged = (path for path in _inside(self.staging) if _STAGED_NAME.fullmatch(path.name))
        folders = (path for path in (*self._called_so(), *staged) if is_real_folder(path))
        return [path for path in folders if not self._is_own(path)]

    def _called_so(self) -> list[Path]:
        return sorted(path for path in _inside(self.runs) if OWN_NAME.fullmatch(path.name))

    def _is_own(self, folder: Path) -> bool:
        """Test whether a folder belongs to the store: it has the marker file, or is empty.

        The marker is written first and removed last, so an empty folder is new, or nearly removed.
        Instead of the marker, folders of earlier versions have a lock or a copy of their run's row.
        """
        if not is_real_folder(folder):
            return False
        marks = (folder / MARK, folder / ROW_COPY, self._lock_of(folder.name))
        return any(map(is_plain_file, marks)) or not _inside(folder)

    def _lock_of(self, name: str) -> Path:
        return self.staging / f"{name.removesuffix(_DROPPED)}{_LOCK_SUFFIX}"

    def create(self) -> None:
        """Create the store's folders (root, ``runs/``, ``staging/``) that do not exist yet."""
        self.check()
        with file_errors(self.root):
            for folder in (self.root, self.staging, self.runs):
                with suppress(FileExistsError):
                    folder.mkdir(PRIVATE.folder, parents=folder is self.root)
                    access_of(self.root).give(folder)
            sync(self.root)

    @contextmanager
    def claim(self, prefix: str) -> Iterator[Path]:
        """Yield a new folder in ``staging/``, and hold a lock so that no clean-up removes it.

        The lock is held until the context ends, even if the folder is published before. A folder
        still in ``staging/`` is then removed.
        """
        with file_errors(self.root):
            access = access_of(self.root)
            lock = _Lock.fresh(self.staging, prefix, access)
        folder = self.staging / lock.name
        try:
            with file_errors(self.root):
                folder.mkdir(PRIVATE.folder)
                access.give(folder)
                (folder / MARK).write_bytes(_MARK_TEXT)
                access.give(folder / MARK)
            yield folder
        finally:
            _drop(folder)
            lock.release()

    def publish(self, staged: Path) -> None:
        """Move a complete folder from ``staging/`` to ``runs/``, synced to disk."""
        with file_errors(self.root):
            access = access_of(self.root)

            def settle(path: Path) -> None:
                access.give(path)
                sync(path)

            with ThreadPoolExecutor(_SYNCED_AT_ONCE, "sync") as threads:
                for _ in threads.map(settle, (*staged.rglob("*"), staged)):
                    pass
            staged.rename(self.runs / staged.name)
            sync(self.runs)

    def drop_empty(self) -> None:
        """Remove the store's folders if they are empty and no other process fills them."""
        folders = (self.staging, self.runs)
        with suppress(OSError):
            if set(self.root.iterdir()) <= set(folders):
                for folder in (*folders, self.root):
                    folder.rmdir()

    def discard(self, name: str) -> None:
        """Remove a folder of ``runs/`` if possible; other processes may do so too."""
        _remove(self.runs / name)

    def discard_dead(
        self, name: str, named: Callable[[], set[str]], *, dry_run: bool = False
    ) -> bool:
        """Remove a folder of ``runs/`` that no run or ingest uses; return whether it is gone.

        `named` returns the folders of all runs. With `dry_run` the folder is not removed; the
        result is whether it could be removed.
        """
        with ExitStack() as locks:
            # Asked last: an ingest may have committed the run meanwhile.
            is_free = self._hold(name, locks, keep=dry_run) and name not in named()
            if is_free and not dry_run:
                self.discard(name)
        return is_free if dry_run else not (self.runs / name).exists()

    def sweep(
        self,
        prefix: str,
        named: Callable[[], set[str]],
        is_owned: Callable[[Path], bool] = lambda _: False,
        *,
        dry_run: bool = False,
    ) -> list[Path]:
        """Remove the folders that no run and no running ingest uses, and return them.

        Parameters
        ----------
        prefix
            Prefix of the folder names of this catalogue. Folders of other catalogues stay, as they
            may be in use.
        named
            Function that returns the folders of all runs in the catalogue.
        is_owned
            Function of a folder: whether it has a copy of its catalogue row. Such a folder stays,
            as the catalogue may have lost its run.
        dry_run
            Whether only to return the folders, without removing them.
        """
        staged = self._staged()
        published = {path.name for path in self.published() if path.name.startswith(prefix)}
        # Asked after listing, so that the folder of a finished ingest is not taken for left over.
        unnamed = published - named() if published else published
        left = staged | {name for name in unnamed if not is_owned(self.runs / name)}
        found: list[Path] = []
        with ExitStack() as locks:
            dead = [name for name in sorted(left) if self._hold(name, locks, keep=dry_run)]
            needed = named() if dead else set()
            for name in dead:
                if name in staged and is_real_folder(self.staging / name):
                    found.append(self.staging / name)
                if name in published and name not in needed:
                    found.append(self.runs / name)
            for path in () if dry_run else found:
                (_drop if path.parent == self.staging else _remove)(path)
        return found

    def _staged(self) -> set[str]:
        """Return the names of folders, and of locks even without a folder, in ``staging/``."""
        found = set()
        for path in _inside(self.staging):
            form = _STAGED_NAME.fullmatch(path.name)
            is_lock = path.name.endswith(_LOCK_SUFFIX) and is_plain_file(path)
            if form and (is_lock or self._is_own(path)):
                found.add(form["stem"])
        return found

    def _hold(self, name: str, locks: ExitStack, *, keep: bool = False) -> bool:
        if not self.staging.is_dir():
            return True
        keep = keep and (self.staging / f"{name}{_LOCK_SUFFIX}").exists()
        lock = _Lock.take(self.staging, name, access_of(self.root))
        if lock is not None:
            locks.callback(lock.release, keep=keep)
        return lock is not None

    def own_files(self) -> Iterator[Path]:
        """Yield the files and folders that belong to the store."""
        yield from (self.root, self.root / ID_FILE, *database_files(self.root / DATABASE))
        yield from (self.staging, self.runs)
        names = self._staged()
        yield from map(self._lock_of, names)
        for folder in (*(self.staging / name for name in names), *self.published()):
            yield folder
            yield from folder.rglob("*")


class _Lock:
    """Exclusive lock on the file ``<name>.lock``; releasing it removes the file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = path.name.removesuffix(_LOCK_SUFFIX)
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str, access: Access = PRIVATE) -> _Lock | None:
        """Take the lock `name`; None if another process has it, or the path is no plain file."""
        path = folder / f"{name}{_LOCK_SUFFIX}"
        from filelock import lock_descriptor  # noqa: PLC0415 - what is only read is not locked

        if (mode := mode_of(path)) and not stat.S_ISREG(mode):
            return None
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, PRIVATE.file)
        try:
            # Its last holder may have removed the file after it was opened here: that lock is void.
            if lock_descriptor(descriptor, blocking=False) and _is(path, descriptor):
                with suppress(PermissionError):  # that of another who shares the store
                    access.give(path)
                return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @classmethod
    def fresh(cls, folder: Path, prefix: str, access: Access) -> _Lock:
        """Take a lock with a new random name."""
        while True:
            # None where a sweep has caught the new file before it was locked.
            lock = cls.take(folder, f"{prefix}{secrets.token_hex(8)}", access)
            if lock is not None:
                return lock

    def release(self, *, keep: bool = False) -> None:
        """Remove the lock file, unless `keep`, and unlock it; waiting processes see the removal.

        Windows cannot remove a file that any process has open. A file that cannot be removed is
        unlocked nevertheless; the next `sweep` removes it.
        """
        if not _ON_WINDOWS and not keep:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        if _ON_WINDOWS and not keep:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def _is(path: Path, descriptor: int) -> bool:
    """Test whether a path refers to the same file as the open `descriptor`."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _inside(folder: Path) -> list[Path]:
    """Return the paths in a folder; empty if another process has just removed the folder."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return []


def _drop(folder: Path) -> None:
    """Remove a staged folder, even while a worker is writing into it."""
    # Under another name nothing is added to it any more while it is emptied.
    if folder.suffix != _DROPPED:
        with suppress(OSError):
            folder = folder.rename(folder.with_name(f"{folder.name}{_DROPPED}"))
    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder if possible, its marker file last, to recognise a partly removed folder."""
    if not is_real_folder(folder):
        return
    with suppress(OSError):
        for path in folder.iterdir():
            if is_real_folder(path):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != MARK:
                with suppress(OSError):
                    path.unlink()
        if [path.name for path in folder.iterdir()] == [MARK]:
            (folder / MARK).unlink(missing_ok=True)
        folder.rmdir()


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    if _ON_WINDOWS and path.is_dir():  # which cannot be opened there, nor need be
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
