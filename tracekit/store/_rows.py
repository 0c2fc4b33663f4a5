"""What a row of the catalogue holds, whichever database it is in, and what is wrong with some."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tracekit.errors import StoreError
from tracekit.store._record import Entry, RunRecord
from tracekit.store._staging import FREE_SPACE

_LOG = logging.getLogger("tracekit")

SCHEMA = 1
FILE = "catalogue.sqlite"
"""The catalogue that a store has in its own folder."""
WAIT_SECONDS = 30
"""How long one writer waits for another."""
_QUIET_SECONDS = 1
"""How long it does so without a word."""
WRITING = ("BEGIN IMMEDIATE",)
READING = ("BEGIN", "SELECT 1 FROM sqlite_master")
"""What begins a transaction of SQLite."""
META, RUNS = "tracekit_meta", "tracekit_runs"
"""The tables of a catalogue."""
_SIZE = "size"
"""Where the size of a run's reports stands, in the summary: catalogues of earlier versions have no
column for it."""

REBUILT = (
    "`tracekit runs check --repair` makes it anew, or move it away and ingest the reports again"
)
_OTHER = "see that the file and its folder are readable and writable"
NO_LOCKS = (
    "its file system may have no locks: put the store on a local disk, or the catalogue into a"
    " PostgreSQL database (TRACEKIT_CATALOG)"
)
_SQLITE_HINTS = {
    "locked": "another process keeps it busy, try again when it is done",
    "locking protocol": NO_LOCKS,
    "disk I/O error": f"its disk fails, files may not grow so large (`ulimit -f`), or {NO_LOCKS}",
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
        summary = json.loads(row["summary"])
        record = RunRecord(
            id=row["id"],
            name=row["name"],
            created=datetime.fromisoformat(row["created"]),
            digest=row["digest"],
            options=row["options"],
            labels=json.loads(row["labels"]),
            files=tuple(json.loads(row["files"])),
            warnings=tuple(json.loads(row["warnings"])),
            size=summary.pop(_SIZE, None),
            summary=summary,
        )
    except (ValueError, AttributeError) as error:
        raise UnreadableRowError from error
    return Entry(record, row["folder"])


def values_of(entry: Entry) -> dict[str, str]:
    """Return the row of the catalogue that says this."""
    record = entry.record
    size = {} if record.size is None else {_SIZE: record.size}
    return {
        "id": record.id,
        "name": record.name,
        "created": record.created.isoformat(),
        "digest": record.digest,
        "options": record.options,
        "labels": json.dumps(dict(record.labels)),
        "files": json.dumps(record.files),
        "warnings": json.dumps(record.warnings),
        "summary": json.dumps({**record.summary, **size}, allow_nan=False),
        "folder": entry.folder,
    }


def begin(
    connection: sqlite3.Connection, statements: Sequence[str], where: str, wait: float
) -> None:
    """Begin a transaction of SQLite, and say so where others keep it waiting.

    Parameters
    ----------
    connection
        What runs the statements.
    statements
        What begins the transaction, and takes the lock that it needs.
    where
        What messages call the catalogue.
    wait
        How long to wait, seconds.
    """
    quiet = min(_QUIET_SECONDS, wait)
    connection.execute(f"PRAGMA busy_timeout = {round(1000 * quiet)}")
    for statement in statements:
        try:
            connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or quiet == wait:
                raise
            _LOG.warning(
                "tracekit: the catalogue %s is kept busy by another process: waiting up to %d s",
                where,
                wait,
            )
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * (wait - quiet))}")
            connection.execute(statement).fetchall()
    connection.execute(f"PRAGMA busy_timeout = {round(1000 * wait)}")


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
