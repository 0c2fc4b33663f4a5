"""What a row of the catalogue holds, whichever database it is in, and what is wrong with some."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tracekit.errors import StoreError
from tracekit.store._record import Entry, RunRecord
from tracekit.store._staging import FREE_SPACE

SCHEMA = 1
FILE = "catalogue.sqlite"
"""The catalogue that a store has in its own folder."""
WAIT_SECONDS = 30
"""How long one writer waits for another."""
META, RUNS = "tracekit_meta", "tracekit_runs"
"""The tables of a catalogue."""

REBUILT = (
    "`tracekit runs check --repair` makes it anew, or move it away and ingest the reports again"
)
_OTHER = "see that the file and its folder are readable and writable"
_SQLITE_HINTS = {
    "locked": "another process keeps it busy, try again when it is done",
    "disk is full": FREE_SPACE,
    "not a database": REBUILT,
    "malformed": REBUILT,
}


class UnreadableRowError(Exception):
    """A row of the catalogue is not what tracekit writes."""


def entry_of(row: Mapping[Any, Any]) -> Entry:
    """Return what a row of the catalogue says.

    Raises
    ------
    UnreadableRowError
        If it makes no sense.
    """
    try:
        record = RunRecord(
            id=row["id"],
            name=row["name"],
            created=datetime.fromisoformat(row["created"]),
            digest=row["digest"],
            options=row["options"],
            labels=json.loads(row["labels"]),
            files=tuple(json.loads(row["files"])),
            warnings=tuple(json.loads(row["warnings"])),
            summary=json.loads(row["summary"]),
        )
    except ValueError as error:
        raise UnreadableRowError from error
    return Entry(record, row["folder"])


def values_of(entry: Entry) -> dict[str, str]:
    """Return the row of the catalogue that says this."""
    record = entry.record
    return {
        "id": record.id,
        "name": record.name,
        "created": record.created.isoformat(),
        "digest": record.digest,
        "options": record.options,
        "labels": json.dumps(dict(record.labels)),
        "files": json.dumps(record.files),
        "warnings": json.dumps(record.warnings),
        "summary": json.dumps(dict(record.summary), allow_nan=False),
        "folder": entry.folder,
    }


def identity_of(meta: Mapping[str, str], where: str) -> str:
    """Return the id of the catalogue that says this of itself.

    Raises
    ------
    StoreError
        If it makes no sense, or a newer tracekit wrote it.
    """
    try:
        version, identity = int(meta["schema"]), meta["id"]
    except (KeyError, ValueError) as error:
        raise damaged(where) from error
    if version > SCHEMA:
        raise StoreError(
            f"the catalogue {where} was written by a newer tracekit", "upgrade tracekit"
        )
    return identity


def damaged(where: str) -> StoreError:
    """Return the error of a catalogue whose rows make no sense."""
    return StoreError(f"the catalogue {where} is damaged", REBUILT)


def unusable(where: str, error: Exception, hint: str | None = None) -> StoreError:
    """Return the error of a catalogue whose database fails, with a hint if it is no SQLite file."""
    cause = " ".join(str(error).strip().splitlines())
    what = f"the catalogue {where} cannot be used ({cause})"
    found = (advice for symptom, advice in _SQLITE_HINTS.items() if symptom in what)
    return StoreError(what, hint or next(found, _OTHER))
