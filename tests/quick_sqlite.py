"""Databases that tests write: nobody waits until they are on the disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def writing(path: Path, isolation_level: str | None = "") -> closing[sqlite3.Connection]:
    """Connect to a database to write to it."""
    connection = sqlite3.connect(path, isolation_level=isolation_level)
    connection.execute("PRAGMA synchronous = OFF")
    return closing(connection)
