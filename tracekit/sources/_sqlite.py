"""Whole columns out of an SQLite file, which is never written to and never trusted.

The file is opened read-only and immutable, so that no journal, lock or shared-memory file appears
beside it. Columns are read in bulk through ADBC. ADBC takes a column's type from its first values
and SQLite types each value by itself, so every query starts with one row of our own that fixes the
types; a value of another type later on then fails loudly, and the column is read again value by
value with SQLite's own `typeof`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import polars as pl

from tracekit.errors import DamagedTraceError

SqlType = Literal["int", "real", "text"]

MAGIC = b"SQLite format 3\x00"
_SEED = {"int": "0", "real": "0.0", "text": "x''"}
_DTYPE = {"int": pl.Int64, "real": pl.Float64, "text": pl.String}
_HEADER_BYTES = 100


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class SqliteFile:
    """A read-only view of an SQLite file.

    Parameters
    ----------
    path
        The file. Its header must be SQLite's.

    Raises
    ------
    DamagedTraceError
        If the file is cut short, still being written, or its schema cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self.coerced: dict[str, int] = {}
        """Values that were dropped because they had no place in their column, by table.column."""
        self._check_complete()

    def _check_complete(self) -> None:
        with self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        size = self.path.stat().st_size
        page = int.from_bytes(header[16:18], "big")
        expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
        counted = header[24:28] == header[92:96]  # else the page count in the header is stale
        if counted and size < expected:
            raise DamagedTraceError(
                f"{self.path} is cut short ({size:,} of {expected:,} bytes)",
                "copy it again, or export the report again",
            )
        target = self.path.resolve()  # SQLite keeps these beside the file, not beside a link to it
        for suffix in ("-wal", "-journal"):
            side = target.with_name(target.name + suffix)
            if side.exists() and side.stat().st_size:
                raise DamagedTraceError(
                    f"{self.path} is still being written ({side.name} lies beside it)",
                    "wait until the export has finished; if it was interrupted, export again",
                )

    @cached_property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Column names by table name."""
        rows = self._rows(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
            # A virtual table may ask for a module that is not installed here.
            " WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        tables: dict[str, list[str]] = {}
        for table, column in rows:
            tables.setdefault(table, []).append(column)
        return {table: tuple(columns) for table, columns in tables.items()}

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether `table` exists and has all `columns`."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def holds_rows(self, table: str) -> bool:
        """Tell whether `table` exists and is not empty."""
        sql = f"SELECT EXISTS (SELECT 1 FROM {_quoted(table)})"  # noqa: S608
        return table in self.tables and bool(self._rows(sql)[0][0])

    def count(self, table: str) -> int:
        """Return the number of rows of `table`, which exists."""
        return int(self._rows(f"SELECT count(*) FROM {_quoted(table)}")[0][0])  # noqa: S608

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query of few rows."""
        try:
            with closing(sqlite3.connect(self.uri, uri=True)) as connection:
                return connection.execute(sql).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def read(self, table: str, columns: Mapping[str, SqlType], where: str = "") -> pl.DataFrame:
        """Return `columns` of `table` in rowid order; absent tables and columns give nulls.

        Parameters
        ----------
        table, columns
            Names as this program knows them (never as a file spells them), and the types to give.
        where
            A constant SQL condition.

        Raises
        ------
        DamagedTraceError
            If SQLite cannot read the table.
        """
        present = {name: kind for name, kind in columns.items() if self.has(table, name)}
        schema = {name: _DTYPE[kind] for name, kind in columns.items()}
        if not present:
            return pl.DataFrame(schema=schema)
        frame = self._read_typed(table, present, where)
        if frame is None:
            frame = self._read_coerced(table, present, where)
        text = [name for name, kind in present.items() if kind == "text"]
        frame = frame.with_columns(_decoded(frame[name]) for name in text)
        absent = [pl.lit(None, dtype).alias(n) for n, dtype in schema.items() if n not in present]
        return frame.with_columns(absent).select(list(schema))

    def _read_typed(
        self, table: str, columns: Mapping[str, SqlType], where: str
    ) -> pl.DataFrame | None:
        """Read columns that hold what they should; None where a value has another type."""
        values = [
            f"CAST({_quoted(n)} AS BLOB)" if kind == "text" else _quoted(n)
            for n, kind in columns.items()
        ]
        frame = self._query(_select(table, columns, values, where))
        if frame is None:
            return None
        wanted = [pl.Binary if kind == "text" else _DTYPE[kind] for kind in columns.values()]
        return frame if frame.dtypes == wanted else None

    def _read_coerced(self, table: str, columns: Mapping[str, SqlType], where: str) -> pl.DataFrame:
        """Read columns of mixed types: whole numbers are kept exactly, what is none is null."""
        values = [_coerced(name, kind) for name, kind in columns.items()]
        frame = self._query(_select(table, columns, values, where))
        flags: dict[str, SqlType] = dict.fromkeys(columns, "int")
        given = self._query(
            _select(table, flags, [f"{_quoted(n)} IS NOT NULL" for n in columns], where)
        )
        if frame is None or given is None:
            raise self._damaged(f"table {table} holds values of unexpected types")
        for name in columns:
            lost = int(given[name].sum()) - frame[name].count()
            if lost:
                self.coerced[f"{table}.{name}"] = lost
        return frame.cast({n: _DTYPE[k] for n, k in columns.items() if k != "text"})

    def _query(self, sql: str) -> pl.DataFrame | None:
        """Run `sql` and drop its seed row; None where ADBC met a value of another type."""
        try:
            with (
                adbc_driver_sqlite.dbapi.connect(self.uri) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(sql)
                return pl.DataFrame(cursor.fetch_arrow()).slice(1)
        except (adbc_driver_manager.Error, pl.exceptions.ComputeError) as error:
            if "Type mismatch" in str(error):
                return None
            raise self._damaged(error) from error

    def _damaged(self, cause: object) -> DamagedTraceError:
        return DamagedTraceError(
            f"{self.path} cannot be read ({cause})", "copy it again, or export the report again"
        )


def _select(table: str, columns: Mapping[str, SqlType], values: Sequence[str], where: str) -> str:
    seed = ", ".join(f"{_SEED[kind]} AS {_quoted(name)}" for name, kind in columns.items())
    condition = f" WHERE {where}" if where else ""
    # Every name and condition is a constant of this program, quoted all the same. An index, such as
    # `nsys stats` adds, would give the rows in another order.
    source = f"{_quoted(table)} NOT INDEXED{condition}"
    return f"SELECT {seed} UNION ALL SELECT {', '.join(values)} FROM {source}"  # noqa: S608


def _coerced(name: str, kind: SqlType) -> str:
    column = _quoted(name)
    if kind == "text":
        return f"CAST({column} AS BLOB)"
    if kind == "real":
        return f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN CAST({column} AS REAL) END"
    # The text of a whole number survives a round trip through INTEGER, anything else does not.
    return (
        f"CASE WHEN typeof({column}) = 'integer' THEN {column}"
        f" WHEN typeof({column}) = 'real' AND CAST({column} AS INTEGER) = {column}"
        f" THEN CAST({column} AS INTEGER)"
        f" WHEN typeof({column}) = 'text' AND CAST(CAST({column} AS INTEGER) AS TEXT) = {column}"
        f" THEN CAST({column} AS INTEGER) END"
    )


def _decoded(column: pl.Series) -> pl.Series:
    """Decode UTF-8; bytes that are none become U+FFFD."""
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        distinct = column.unique().drop_nulls()
        texts = [value.decode("utf-8", "replace") for value in distinct.to_list()]
        return column.replace_strict(distinct, texts, return_dtype=pl.String)
