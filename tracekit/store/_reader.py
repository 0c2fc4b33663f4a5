"""Reading a catalogue that is an SQLite file.

Most commands only look a run up, and SQLAlchemy takes longer to import than they take in all. What
writes, and what reads of a server, goes through `tracekit.store._catalogue`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.store._access import check_database
from tracekit.store._record import Entry
from tracekit.store._rows import (
    COLUMNS,
    META,
    READING,
    REBUILT,
    RUNS,
    WAIT_SECONDS,
    UnreadableRowError,
    begin,
    check_tables,
    damaged,
    entry_of,
    identity_of,
    unusable,
)


def read_entries(path: Path, store: str) -> list[Entry]:
    """Return the runs of a store, oldest first; none where the catalogue was never written.

    Raises
    ------
    StoreError
        If the file cannot be read, makes no sense, or is of a newer tracekit.
    """
    with _errors(str(path)):
        check_database(path, REBUILT)
        if not path.exists():
            return []  # where connecting would create the file
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            begin(connection, READING, str(path), WAIT_SECONDS)
            return _entries(connection, store, str(path))
        finally:
            connection.close()


def _entries(connection: sqlite3.Connection, store: str, where: str) -> list[Entry]:
    kinds = connection.execute("SELECT name, type FROM sqlite_master")
    if not check_tables(dict(map(tuple, kinds)), where):
        return []
    identity_of(dict(map(tuple, connection.execute(f"SELECT key, value FROM {META}"))), where)  # noqa: S608
    query = f"SELECT {', '.join(COLUMNS)} FROM {RUNS} WHERE store = ? ORDER BY number"  # noqa: S608 - our own names
    return [entry_of(row) for row in connection.execute(query, (store,))]


@contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise unusable(where, error) from error
    except UnreadableRowError as error:
        raise damaged(where) from error
