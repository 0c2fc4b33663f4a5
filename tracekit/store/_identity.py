"""Id of a store, which separates stores in a shared catalogue."""

from __future__ import annotations

import contextlib
import json
import secrets

from tracekit.errors import StoreError
from tracekit.store._access import ID_FILE, access_of, put_file, settings, settings_of
from tracekit.store._staging import Folders, file_errors

_FORMAT = 1
_MENDED = "`tracekit runs check --repair` makes it anew"


def read_id(folders: Folders) -> str | None:
    """Return the store's id; None where nothing was written to it yet.

    Raises
    ------
    StoreError
        If the folder is no store, or the file that holds the id is gone, cannot be read, makes no
        sense, or is of a newer tracekit.
    """
    folders.check()
    path = folders.root / ID_FILE
    with file_errors(folders.root):
        try:
            content = settings(folders.root)
            identity, version = str(content["id"]), int(content["format"])
        except FileNotFoundError as error:
            if folders.has_rows():
                raise StoreError(f"{path} is gone", _MENDED) from error
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged", _MENDED) from error
    if version > _FORMAT:
        raise StoreError(
            f"the store {folders.root} was written by a newer tracekit", "upgrade tracekit"
        )
    return identity


def make_id(folders: Folders) -> str:
    """Return the store's id, giving it one where it has none; its folders exist."""
    identity = read_id(folders)
    if identity is not None:
        return identity
    with folders.claim("store-") as staged, file_errors(folders.root):
        content = json.dumps({"format": _FORMAT, "id": secrets.token_hex(16)}) + "\n"
        put_file(staged, ID_FILE, content.encode(), access_of(folders.root))
        # A link appears whole or not at all, and fails where another process was first.
        with contextlib.suppress(FileExistsError):
            (folders.root / ID_FILE).hardlink_to(staged / ID_FILE)
    return make_id(folders)


def put_id(folders: Folders, identity: str) -> None:
    """Give a store an id that it had; the file that held it is gone, or damaged."""
    with file_errors(folders.root):
        content, access = settings_of(folders.root, identity, _FORMAT)
        put_file(folders.root, ID_FILE, content, access)
