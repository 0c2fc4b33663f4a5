"""What the folder of a run says of it: a copy of its row in the catalogue.

It is written once the row is there. Of these copies a lost catalogue can be made anew, and a folder
that has one is nothing that an ingest has left over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tracekit.store._record import Entry
from tracekit.store._rows import UnreadableRowError, entry_of, values_of
from tracekit.store._staging import sync
from tracekit.support.files import write_whole

_FILE = "run.json"


class Known(NamedTuple):
    """A run, and the id of the store that it is of."""

    store: str
    entry: Entry


def write_run(folder: Path, store: str, entry: Entry) -> None:
    """Write what a run is into its folder, as a whole or not at all."""
    path = folder / _FILE
    write_whole(path, (json.dumps({"store": store, **values_of(entry)}) + "\n").encode())
    sync(path)


def forget_run(folder: Path) -> None:
    """Have a folder say nothing of its run, which does not need it any more."""
    (folder / _FILE).unlink(missing_ok=True)


def read_run(folder: Path) -> Known | None:
    """Return what a folder says of its run; None where it says nothing that makes sense."""
    try:
        content = json.loads((folder / _FILE).read_bytes())
        return Known(content["store"], entry_of({**content, "folder": folder.name}))
    except (OSError, ValueError, KeyError, TypeError, UnreadableRowError):
        return None
