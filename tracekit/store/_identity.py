"""The id of a store, by which a catalogue tells the stores apart that it serves."""

from __future__ import annotations

import contextlib
import json
import secrets

from tracekit.errors import StoreError
from tracekit.store._staging import Folders, file_errors, sync
from tracekit.support.files import write_whole

ID_FILE = "store.json"
_FORMAT = 1


def read_id(folders: Folders) -> str | None:
    """Return the store's id; None where nothing was written to it yet.

    Raises
    ------
    StoreError
        If the file that holds it cannot be read, makes no sense, or is of a newer tracekit.
    """
    path = folders.root / ID_FILE
    with file_errors(folders.root):
        if folders.root.exists() and not folders.root.is_dir():
            raise StoreError(f"the store {folders.root} is not a folder", "give another --store")
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        content = json.loads(text)
        identity, version = str(content["id"]), int(content["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is damaged", "`tracekit runs check --repair` makes it anew"
        ) from error
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
        new = staged / ID_FILE
        new.write_text(json.dumps({"format": _FORMAT, "id": secrets.token_hex(16)}) + "\n")
        sync(new)
        # A link appears whole or not at all, and fails where another process was first.
        with contextlib.suppress(FileExistsError):
            (folders.root / ID_FILE).hardlink_to(new)
    return make_id(folders)


def put_id(folders: Folders, identity: str) -> None:
    """Give a store an id that it had; the file that held it is gone, or damaged."""
    with file_errors(folders.root):
        content = {"format": _FORMAT, "id": identity}
        write_whole(folders.root / ID_FILE, (json.dumps(content) + "\n").encode())
