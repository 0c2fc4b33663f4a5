"""Read columns of a table with the SQLite library, whatever types the values have.

Columns are read in bulk through ADBC. ADBC takes a column's type from its first values, but SQLite
types each value by itself. So every query starts with an extra row that fixes the types; a later
value of another type is then an error, and the columns are read again value by value with SQLite's
own `typeof`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import adbc_driver_sqlite
import polars as pl
from adbc_driver_manager import AdbcConnection, AdbcStatement, Error

from tracekit.errors import DamagedTraceError
from tracekit.sources._reading import SqlType

DTYPE = {
    "int": pl.Int64, "narrow": pl.Int64, "real": pl.Float64, "text": pl.String, "blob": pl.Binary,
}  # fmt: skip
"""Type of a requested column -> polars type; a narrow column may have fewer bits."""
_SEED = {"int": "0", "narrow": "0", "real": "0.0", "blob": "x''"}
_UNTYPED = ("text", "blob")
"""Types of columns to which SQLite can convert a value of any type."""


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


class Connections:
    """Connections to an SQLite file: opened when needed, kept for later queries.

    They are closed with this object. Opening one, and reading the file's schema with it, takes ten
    times as long as a small query.

    Parameters
    ----------
    connect
        Function that opens a connection, as a context that closes it.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Any]]) -> None:
        self._connect = connect
        self._idle: list[Any] = []
        self._opened = ExitStack()
        weakref.finalize(self, self._opened.close)

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """Yield a connection for exclusive use by this thread; after an error it is discarded."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._opened.enter_context(self._connect())
        yield connection
        self._idle.append(connection)


@dataclass(frozen=True)
class Rows:
    """Rows read from a table, and per column the number of values of wrong type (now null)."""

    frame: pl.DataFrame
    lost: Mapping[str, int]


@dataclass(frozen=True)
class Library:
    """Reads tables of an SQLite file through the SQLite library."""

    path: Path
    uri: str
    """The file, and the URI with which SQLite opens it."""
    utf8: bool
    """Whether the file stores texts as UTF-8. These are read as bytes, since they may be invalid;
    texts in other encodings are converted by SQLite."""
    content: Path | None = None
    """The unpacked file if `path` is gzipped, else None."""

    @cached_property
    def _connections(self) -> Connections:
        return Connections(partial(_connected, self.uri))

    def read(self, table: str, columns: Mapping[str, SqlType], *where: str) -> Rows:
        """Return columns of the rows of a table that meet one of the conditions `where`.

        Parameters
        ----------
        table, columns
            Name of the table, and name of each column -> type to return. All columns must exist.
        where
            Conditions in SQL. First come the rows that meet the first condition, in rowid order,
            then the rows that meet the second, and so on. Without conditions all rows are returned.

        Raises
        ------
        DamagedTraceError
            If SQLite cannot read the table.
        """
        rows = self._read_typed(table, columns, where or ("1",))
        if rows is None:
            rows = self._read_coerced(table, columns, where or ("1",))
        blobs = [name for name, kind in columns.items() if kind == "blob"]
        return Rows(decoded(rows.frame, blobs), rows.lost)

    def _read_typed(
        self, table: str, columns: Mapping[str, SqlType], where: Sequence[str]
    ) -> Rows | None:
        """Read columns fast; None if any value has another type than requested."""
        values = [
            self._cast(name, kind) if kind in _UNTYPED else quoted(name)
            for name, kind in columns.items()
        ]
        frame = self._query(self._select(table, columns, values, where))
        if frame is None:
            return None
        wanted = [pl.Binary if kind == "text" else DTYPE[kind] for kind in columns.values()]
        return Rows(frame, {}) if frame.dtypes == wanted else None

    def _read_coerced(
        self, table: str, columns: Mapping[str, SqlType], where: Sequence[str]
    ) -> Rows:
        """Read columns with mixed types: integers stay exact, values of wrong type become null."""
        values = [
            self._cast(name, kind) if kind in _UNTYPED else _coerced(name, kind)
            for name, kind in columns.items()
        ]
        frame = self._query(self._select(table, columns, values, where))
        flags: dict[str, SqlType] = dict.fromkeys(columns, "int")
        present = [f"{quoted(name)} IS NOT NULL" for name in columns]
        stored = self._query(self._select(table, flags, present, where))
        if frame is None or stored is None:
            raise self.damaged(f"table {table} has values of unexpected types")
        lost = {name: int(stored[name].sum()) - frame[name].count() for name in columns}
        typed = frame.cast({n: DTYPE[k] for n, k in columns.items() if k not in _UNTYPED})
        return Rows(typed, {name: number for name, number in lost.items() if number})

    def _cast(self, name: str, kind: SqlType) -> str:
        return f"CAST({quoted(name)} AS {'BLOB' if self.utf8 or kind == 'blob' else 'TEXT'})"

    def _select(
        self,
        table: str,
        columns: Mapping[str, SqlType],
        values: Sequence[str],
        where: Sequence[str],
    ) -> str:
        seeds = _SEED | {"text": "x''" if self.utf8 else "''"}
        seed = ", ".join(f"{seeds[kind]} AS {quoted(name)}" for name, kind in columns.items())
        # Every name and condition is a constant of this program, quoted all the same. An index,
        # such as `nsys stats` adds, would give the rows in another order.
        source = f"SELECT {', '.join(values)} FROM {quoted(table)} NOT INDEXED"  # noqa: S608
        return " UNION ALL ".join([f"SELECT {seed}", *(f"{source} WHERE {one}" for one in where)])

    def _query(self, sql: str) -> pl.DataFrame | None:
        """Run `sql`, whose first row only fixes the columns' types, and drop that row.

        None if a value has another type.
        """
        try:
            with self._connections.lent() as connection, AdbcStatement(connection) as statement:
                statement.set_sql_query(sql)
                frame = pl.DataFrame(statement.execute_query()[0]).slice(1)
                if pl.String not in frame.dtypes:
                    return frame
                # Of half a character of UTF-16, SQLite makes what is no UTF-8.
                return frame.with_columns(pl.col(pl.String).cast(pl.Binary))
        except (Error, pl.exceptions.ComputeError) as error:
            if "Type mismatch" in str(error):
                return None
            raise self.damaged(error) from error

    def damaged(self, cause: object) -> DamagedTraceError:
        """Return the error that tells that the file cannot be read, and why (`cause`)."""
        return DamagedTraceError(
            f"{self.path} cannot be read ({cause})", "copy it again, or export the report again"
        )


@contextmanager
def _connected(uri: str) -> Iterator[AdbcConnection]:
    # ADBC's `dbapi` would import pyarrow and pandas where they are: 80 MiB.
    with adbc_driver_sqlite.connect(uri) as database, AdbcConnection(database) as connection:
        yield connection


def _coerced(name: str, kind: SqlType) -> str:
    column = quoted(name)
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


def decoded(frame: pl.DataFrame, blobs: Collection[str] = ()) -> pl.DataFrame:
    """Decode columns of bytes, except `blobs`, as UTF-8; invalid bytes become U+FFFD."""
    texts = {s.name for s in frame if s.dtype == pl.Binary}.difference(blobs)
    return pl.DataFrame([_decoded(s) if s.name in texts else s for s in frame]) if texts else frame


def _decoded(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        distinct = column.unique().drop_nulls()
        texts = [value.decode("utf-8", "replace") for value in distinct.to_list()]
        return column.replace_strict(distinct, texts, return_dtype=pl.String)
