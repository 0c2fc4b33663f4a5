"""Owner and permissions of a store's files: private, or shared with a group.

A store may come from elsewhere: unpacked, mounted, or found above the working directory. So its
contents are opened only as plain files, and no link in it is followed.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tracekit.errors import StoreError, UsageError
from tracekit.support.files import is_plain_file, is_real_folder, mode_of, read_plain

ID_FILE = "store.json"
_GROUP = "group"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_MISPLACED = "restore it from a copy, or name another store with --store"


class Access(NamedTuple):
    """Permissions of a store's files and folders, and their owner if that is not the writing user.

    Files that root creates in another user's store, as in a container, are given to that user.
    """

    file: int
    folder: int
    owner: tuple[int, int] | None = None

    def give(self, path: Path) -> None:
        """Set permissions and owner of a file or a folder; a link is left as it is."""
        if not hasattr(os, "fchmod"):  # on Windows
            return
        if stat.S_ISLNK(path.lstat().st_mode):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK)
        try:
            self.give_open(descriptor)
        finally:
            os.close(descriptor)

    def shared(self, *, is_shared: bool) -> Access:
        """Return a copy with the permissions of a shared store, or of a private one."""
        modes = _SHARED if is_shared else PRIVATE
        return self._replace(file=modes.file, folder=modes.folder)

    def give_open(self, descriptor: int) -> None:
        """Set permissions and owner of an open file or folder."""
        status = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        # A file of another name as well might be somebody's whom this would take it from.
        if self.owner and self.owner[0] != status.st_uid and (is_folder or status.st_nlink == 1):
            os.fchown(descriptor, *self.owner)
        mode = self.folder if is_folder else self.file
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(descriptor, mode)


PRIVATE = Access(0o600, 0o700)
"""Modes of a private store: traces contain names of programs, hosts and folders."""
_SHARED = Access(0o660, 0o2770)
"""Modes of a shared store: new files in such a folder get the folder's group (setgid)."""


def settings(root: Path) -> dict[str, Any]:
    """Return the contents of ``store.json``.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    OSError, ValueError, TypeError
        If the file is unreadable or invalid.
    """
    return dict(json.loads(read_plain(root / ID_FILE)))


def access_of(root: Path) -> Access:
    """Return permissions and owner that new files of the store at `root` get."""
    access = PRIVATE
    with suppress(OSError, ValueError, TypeError, RecursionError):
        access = access.shared(is_shared=bool(settings(root).get(_GROUP)))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        status = root.stat()
        access = access._replace(owner=(status.st_uid, status.st_gid) if status.st_uid else None)
    return access


def settings_of(root: Path, identity: str, version: int) -> tuple[bytes, Access]:
    """Return the content of a new ``store.json`` in place of a lost one, and its permissions.

    `identity` is the store's id, `version` that of its format.
    """
    status = root.stat()
    is_shared = stat.S_IMODE(status.st_mode) == _SHARED.folder
    content = {"format": version, "id": identity} | (
        {_GROUP: str(status.st_gid)} if is_shared else {}
    )
    access = access_of(root).shared(is_shared=is_shared)
    return (json.dumps(content) + "\n").encode(), access


def put_file(folder: Path, name: str, content: bytes, access: Access) -> None:
    """Write a file into a store folder, completely or not at all, and sync it to disk.

    No link is followed: a link of that name is replaced; a link in place of the folder is an error.
    """
    is_named = os.open not in os.supports_dir_fd  # on Windows
    inside = None if is_named else os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    part, target = f".{name}.{secrets.token_hex(4)}.part", name
    if is_named:
        part, target = str(folder / part), str(folder / target)
    try:
        descriptor = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, PRIVATE.file, dir_fd=inside
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                if hasattr(os, "fchmod"):
                    access.give_open(descriptor)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(part, target, src_dir_fd=inside, dst_dir_fd=inside)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=inside)
            raise
    finally:
        if inside is not None:
            os.close(inside)


def database_files(path: Path) -> list[Path]:
    """Return the files that SQLite may use for a database, whether they exist or not."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-journal", "-wal", "-shm")]


def check_database(path: Path, hint: str) -> None:
    """Raise `StoreError` with the hint `hint` if a file of the database is a link or a device."""
    for each in database_files(path):
        # Looked at once: a journal comes and goes while another process writes.
        if (mode := mode_of(each)) and not stat.S_ISREG(mode):
            raise StoreError(f"{each} is a link or a device, not a file", hint)


def make_database(path: Path) -> None:
    """Create an empty file for SQLite, whose journals inherit its permissions."""
    with suppress(FileExistsError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
        os.close(os.open(path, flags, PRIVATE.file))
        access_of(path.parent).give(path)


def check_folder(folder: Path) -> None:
    """Raise `StoreError` if the path exists and is no folder."""
    if (mode := mode_of(folder)) and not stat.S_ISDIR(mode):
        raise StoreError(f"{folder} is a link or a file, not a folder", _MISPLACED)


def check_owner(root: Path, start: Path) -> None:
    """Raise `StoreError` if a store found upward from `start` belongs to another user.

    The superuser (root in a container) may also use a store that the owner of `start` owns.
    """
    if not hasattr(os, "geteuid") or not root.exists():
        return
    own_users = {os.geteuid()} | ({start.stat().st_uid} if os.geteuid() == 0 else set())
    owners = {root.stat().st_uid} | ({root.lstat().st_uid} if root.is_symlink() else set())
    for owner in owners - own_users:
        raise StoreError(
            f"the store {root} belongs to {_user(owner)}",
            f"name it if you trust it, with --store {root} or TRACEKIT_STORE",
        )


def _user(number: int) -> str:
    import pwd  # noqa: PLC0415 - which Windows lacks, as it lacks owners

    try:
        return f"user {pwd.getpwuid(number).pw_name!r}"
    except KeyError:
        return f"user {number}"


def group_number(group: str) -> int:
    """Return the number of a group by its name or number.

    Raises
    ------
    UsageError
        If the group does not exist.
    """
    try:
        import grp  # noqa: PLC0415 - as above

        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except (ImportError, KeyError) as error:
        raise UsageError(f"no group {group!r} is known here", "`id` lists yours") from error


def share(root: Path, files: Iterable[Path], group: str | None) -> None:
    """Share a store, and its `files`, with a group; None makes it private again.

    Files that other group members added are not changed, as only their owners may change them.
    """
    owner, me = root.stat().st_uid, os.geteuid() if hasattr(os, "geteuid") else 0
    if me not in (0, owner):
        raise StoreError(f"the store {root} belongs to {_user(owner)}", "ask them to share it")
    number = -1 if group is None else group_number(group)
    content = {key: value for key, value in settings(root).items() if key != _GROUP}
    content |= {} if group is None else {_GROUP: group}
    # First, so that what an ingest makes meanwhile is shared too.
    access = access_of(root).shared(is_shared=group is not None)
    put_file(root, ID_FILE, (json.dumps(content) + "\n").encode(), access)
    for path in files:
        if is_plain_file(path) or is_real_folder(path):
            if me not in (0, path.lstat().st_uid):
                continue
            if number >= 0:
                os.chown(path, -1, number, follow_symlinks=False)
            access.give(path)
