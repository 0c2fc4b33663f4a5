"""SQLite files in the schema of an nsys version, written by whole columns."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from nsys_writer import load_schema
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

Columns = Mapping[str, NDArray[Any] | int | float]
"""Columns of equal length by name; a number stands for a column that holds nothing else."""


class BulkFile:
    """An SQLite file that is filled by whole columns and is of no use until it is closed."""

    def __init__(self, path: Path, schema: str) -> None:
        self.rows: Counter[str] = Counter()
        self._tables = load_schema(schema).tables
        self._file = sqlite3.connect(path, isolation_level=None)
        # A crash loses the file, which can be made again.
        for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            self._file.execute(f"PRAGMA {setting}")
        self._file.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.execute("COMMIT")
        self._file.close()

    def append(self, table: str, columns: Columns) -> None:
        """Add rows; columns that are not given are null, or zero where null is not allowed.

        Columns of equal length, or one value for all rows. Columns that the schema version lacks
        are left out, and so are tables.
        """
        if table not in self._tables:
            return
        if table not in self.rows:
            self._create(table)
        declared = {name.split()[0]: name for name in self._tables[table]}
        given = {name: value for name, value in columns.items() if name in declared}
        cells = [_cell(name, rest, given) for name, rest in declared.items()]
        varying = [given[name] for name, cell in zip(declared, cells, strict=True) if cell == "?"]
        lists = [value.tolist() for value in varying if isinstance(value, np.ndarray)]
        sql = f"INSERT INTO {table} VALUES ({', '.join(cells)})"
        self._file.executemany(sql, zip(*lists, strict=True))
        self.rows[table] += len(lists[0])

    def _create(self, table: str) -> None:
        columns = ", ".join(
            f'"{name}" {rest}' for name, rest in (c.split(" ", 1) for c in self._tables[table])
        )
        self._file.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")


def _cell(name: str, declaration: str, given: Columns) -> str:
    """Return what stands for a column in an INSERT: a parameter, or the value of all rows."""
    value = given.get(name)
    if isinstance(value, np.ndarray):
        return "?"
    if value is None:
        return "0" if "NOT NULL" in declaration and "PRIMARY" not in declaration else "NULL"
    return str(value)
