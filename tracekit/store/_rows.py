"""Rows of the catalogue in any database: validation, conversion, and copies in run folders.

A copy is written once the row is committed. A lost catalogue can be rebuilt from the copies, and a
folder with a copy is never a leftover of an ingest.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from tracekit.errors import StoreError
from tracekit.store._access import Access, put_file
from tracekit.store._run_record import Entry, RunRecord
from tracekit.store._staging import FREE_SPACE, MARK, OWN_NAME, ROW_COPY
from tracekit.support.files import is_real_folder, read_plain

_LOG = logging.getLogger("tracekit")

SCHEMA = 1
WAIT_SECONDS = 30
"""Seconds that a writer waits for another one."""
_QUIET_SECONDS = 1
"""Seconds of this wait before a message is printed."""
WRITING = ("BEGIN IMMEDIATE",)
READING = ("BEGIN", "SELECT 1 FROM sqlite_master")
"""Statements that begin a transaction of SQLite for reading."""
META, RUNS = "tracekit_meta", "tracekit_runs"
"""Names of the tables of a catalogue."""
COLUMNS = (
    "id", "name", "created", "digest", "options",
    "labels", "files", "warnings", "summary", "folder",
)  # fmt: skip
_BEYOND = 1 << 63
_IDENTITY = re.compile("[0-9a-f]{8}")
_SIZE = "size"
"""Key of the summary for the size of a run's reports: catalogues of earlier versions have no
column for it."""

REBUILT = (
    "`tracekit runs check --repair` makes it anew, or move it away and ingest the reports again"
)
_ELSEWHERE = "restore its tables from a copy, or let TRACEKIT_CATALOG name an empty database"
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
    **dict.fromkeys(("malformed", "no such table", "no such column", "Could not decode"), REBUILT),
}


class UnreadableRowError(Exception):
    """A row of the catalogue has unexpected or invalid values."""


def entry_of(row: Mapping[Any, Any]) -> Entry:
    """Return the catalogue entry in a row of the database.

    Raises
    ------
    UnreadableRowError
        If the row is invalid.
    """
    try:
        texts = {key: _checked(row[key], str) for key in COLUMNS}
        summary = _listed(texts["summary"], dict, int, float, str, NoneType)
        record = RunRecord(
            id=texts["id"],
            name=texts["name"],
            created=datetime.fromisoformat(texts["created"]).astimezone(UTC),
            digest=texts["digest"],
            options=texts["options"],
            labels=_listed(texts["labels"], dict, str),
            files=tuple(_listed(texts["files"], list, str)),
            warnings=tuple(_listed(texts["warnings"], list, str)),
            size=_checked(summary.pop(_SIZE, None), int, NoneType),
            summary=summary,
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise UnreadableRowError from error
    # A folder of another form could lead out of the store, to be written to and removed.
    if not OWN_NAME.fullmatch(texts["folder"]) or not record.files:
        raise UnreadableRowError
    return Entry(record, texts["folder"])


def _checked(value: Any, *kinds: type) -> Any:
    """Return a value if it has one of the types `kinds`; numbers must be finite and in range."""
    if type(value) not in kinds:
        raise TypeError(value)
    if type(value) in (int, float) and not -_BEYOND <= value < _BEYOND:
        raise ValueError(value)
    return value


def _listed(text: str, container: type, *kinds: type) -> Any:
    """Return the list or dictionary in a JSON text if its values are of the types `kinds`."""
    found = _checked(json.loads(text), container)
    for value in found.values() if container is dict else found:
        _checked(value, *kinds)
    return found


def values_of(entry: Entry) -> dict[str, str]:
    """Return a catalogue entry as a row of the database: column -> value."""
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
    """Begin a transaction of SQLite; print a message if other writers delay it.

    Parameters
    ----------
    connection
        Open connection of SQLite.
    statements
        Statements that begin the transaction and take its lock.
    where
        Name of the catalogue in messages.
    wait
        Longest time to wait, seconds.
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
    """Return the id of a catalogue from its table of settings `meta`; `where` names it in messages.

    Raises
    ------
    StoreError
        If the settings are invalid, or written by a newer tracekit.
    """
    try:
        version, identity = int(meta["schema"]), meta["id"]
        is_one = _IDENTITY.fullmatch(identity)  # with which names of folders begin
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(where) from error
    if not is_one:
        raise damaged(where, "its id is none")
    if version > SCHEMA:
        raise StoreError(
            f"the catalogue {where} was written by a newer tracekit", "upgrade tracekit"
        )
    return identity


def check_tables(kinds: Mapping[str, str], where: str) -> bool:
    """Test whether a database with these tables and views (name -> kind) contains a catalogue.

    Raises
    ------
    StoreError
        If only some tables of a catalogue exist, or a view has the name of one.
    """
    catalogue_tables = {name: kinds[name] for name in (META, RUNS) if name in kinds}
    for name in (META, RUNS) if catalogue_tables else ():
        if catalogue_tables.get(name) != "table":
            raise damaged(where, f"it has no table {name}")
    return bool(catalogue_tables)


def damaged(where: str, why: str | None = None) -> StoreError:
    """Return the error for a catalogue with invalid rows, named `where`."""
    message = f"the catalogue {where} is damaged" + (f" ({why})" if why else "")
    return StoreError(message, _ELSEWHERE if "://" in where else REBUILT)


def unusable(where: str, error: Exception, hint: str | None = None) -> StoreError:
    """Return the error for a failing database, named `where`.

    Without a `hint` the advice follows from the message of `error`.
    """
    cause = " ".join(str(error).strip().splitlines())
    message = f"the catalogue {where} cannot be used ({cause})"
    found = (advice for symptom, advice in _SQLITE_HINTS.items() if symptom in message)
    return StoreError(message, hint or next(found, _OTHER))


class Known(NamedTuple):
    """Copy of a run's catalogue entry in the run's folder, and the id of the store."""

    store: str
    entry: Entry


def write_run(folder: Path, store: str, entry: Entry, access: Access) -> None:
    """Write a run's entry into its folder, completely or not at all."""
    content = json.dumps({"store": store, **values_of(entry)}) + "\n"
    put_file(folder, ROW_COPY, content.encode(), access)


def forget_run(folder: Path) -> None:
    """Remove the copy of a run's catalogue row from its folder.

    The copy is renamed to the marker file, which shows that the folder belongs to the store:
    earlier versions wrote no marker, and renaming works on a full disk.
    """
    if is_real_folder(folder):
        with suppress(FileNotFoundError):
            (folder / ROW_COPY).replace(folder / MARK)


def read_run(folder: Path) -> Known | None:
    """Read the catalogue entry of a run from its folder; None if there is no valid one."""
    try:
        content = json.loads(read_plain(folder / ROW_COPY))
        if is_real_folder(folder) and isinstance(content["store"], str):
            return Known(content["store"], entry_of({**content, "folder": folder.name}))
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UnreadableRowError):
        pass
    return None
