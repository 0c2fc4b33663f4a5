"""The file in a run's folder that copies its row in the catalogue.

It is written once the row is there. Of these copies a lost catalogue can be made anew, and a folder
that has one is nothing that an ingest has left over.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tracekit.store._access import Access, put_file
from tracekit.store._record import Entry
from tracekit.store._rows import UnreadableRowError, entry_of, values_of
from tracekit.store._staging import MARK, ROW_COPY
from tracekit.support.files import is_real_folder, read_plain


class Known(NamedTuple):
    """A run, and the id of the store that it is of."""

    store: str
    entry: Entry


def write_run(folder: Path, store: str, entry: Entry, access: Access) -> None:
    """Write a run's entry into its folder, completely or not at all."""
    content = json.dumps({"store": store, **values_of(entry)}) + "\n"
    put_file(folder, ROW_COPY, content.encode(), access)


def forget_run(folder: Path) -> None:
    """Remove the run's entry from a folder that no longer needs it.

    What it said is left as a mark that the folder is the store's: earlier versions made none, and
    on a full disk there is no room for another file.
    """
    if is_real_folder(folder):
        with suppress(FileNotFoundError):
            (folder / ROW_COPY).replace(folder / MARK)


def read_run(folder: Path) -> Known | None:
    """Read the entry of a run from its folder; None if there is no valid one."""
    try:
        content = json.loads(read_plain(folder / ROW_COPY))
        if is_real_folder(folder) and isinstance(content["store"], str):
            return Known(content["store"], entry_of({**content, "folder": folder.name}))
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UnreadableRowError):
        pass
    return None
