"""Read whole columns of an SQLite file, which is never written to and never trusted.

The file is opened read-only and immutable, so that no journal, lock or shared-memory file appears
beside it.
"""

from __future__ import annotations

import errno
import gzip
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import DamagedTraceError, InputError
from tracekit.sources._reading import SqlType, Where
from tracekit.sources._times import FIRST_ROWS, Times
from tracekit.sources.sqlite._leaf_spans import Table, spans
from tracekit.sources.sqlite._library import DTYPE, Connections, Library, Rows, quoted
from tracekit.sources.sqlite._sqlite_header import (
    HEADER_BYTES,
    MAGIC,
    is_utf8,
    page_size,
    pages_counted,
    same_case,
)
from tracekit.support.spool import Workspace

BATCH_ROWS = 1 << 20
"""Default number of rows of a batch."""
_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 22


class SqliteFile:
    """A read-only view of an SQLite file.

    Parameters
    ----------
    path
        The file, which must begin with SQLite's header.
    unpacked
        File with the unpacked content if `path` is gzipped, else None.

    Raises
    ------
    DamagedTraceError
        If the file is cut short, still being written, or its schema cannot be read.
    """

    def __init__(self, path: Path, unpacked: Path | None = None) -> None:
        self.path = path
        self._content = unpacked or path
        self.kind = "SQLite"
        """Storage format of the export."""
        self.uri = f"{self._content.resolve().as_uri()}?mode=ro&immutable=1"
        self.coerced: dict[str, int] = {}
        """``table.column`` -> number of values dropped because they did not fit the type."""
        self.warnings: list[str] = []
        """Sentences for the user on how the file was read."""
        self.times = Times(path)
        """Times that rows may have; `batches` drops rows with others."""
        with self._content.open("rb") as file:
            header = file.read(HEADER_BYTES)
        self._library = Library(path, self.uri, is_utf8(header), self._content)
        self._connections = Connections(partial(_connected, self.uri))
        self._check_complete(header)

    def _check_complete(self, header: bytes) -> None:
        size = self._content.stat().st_size
        expected = page_size(header) * (pages_counted(header) or 0)
        if size < expected:
            raise DamagedTraceError(
                f"{self.path} is cut short ({size:,} of {expected:,} bytes)",
                "copy it again, or export the report again",
            )
        target = (
            self._content.resolve()
        )  # SQLite keeps these beside the file, not beside a link to it
        for suffix in ("-wal", "-journal"):
            side = target.with_name(target.name + suffix)
            if side.exists() and side.stat().st_size:
                raise DamagedTraceError(
                    f"{self.path} is still being written ({side.name} is beside it)",
                    "wait until the export has finished; if it was interrupted, export again",
                )

    @property
    def size(self) -> int:
        """Size of the file, bytes."""
        return self.path.stat().st_size

    @cached_property
    def _tables(self) -> Mapping[str, set[str]]:
        """Table -> names of its columns, in lower case."""
        rows = self._rows(
            # Columns that are computed are columns; those that only virtual tables hide are none.
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_xinfo(m.name) c"
            # A virtual table may ask for a module that is not installed here.
            " WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%' AND c.hidden != 1"
        )
        tables: dict[str, set[str]] = {}
        for table, column in rows:
            tables.setdefault(same_case(table), set()).add(same_case(column))
        return tables

    @property
    def names(self) -> list[str]:
        """Names of the tables in the file, in lower case."""
        return list(self._tables)

    @cached_property
    def _views(self) -> set[str]:
        """Names, in lower case, of the views in the file about which no warning was given yet."""
        rows = self._rows("SELECT name FROM sqlite_master WHERE type='view'")
        return {same_case(name) for (name,) in rows}

    def has(self, table: str, *columns: str) -> bool:
        """Test whether `table` exists and has all `columns`."""
        if same_case(table) in self._views:
            self._views.discard(same_case(table))
            self.warnings.append(
                f"{table} is a view, which is not read: queries in a trace are not run"
            )
        there = self._tables.get(same_case(table))
        return there is not None and there.issuperset(map(same_case, columns))

    def holds_rows(self, table: str) -> bool:
        """Test whether `table` exists and is not empty."""
        sql = f"SELECT EXISTS (SELECT 1 FROM {quoted(table)})"  # noqa: S608
        return self.has(table) and bool(self._rows(sql)[0][0])

    def holds_values(self, table: str, column: str) -> bool:
        """Test whether `column` of `table` exists and has a value that is not null."""
        condition = f"{quoted(column)} IS NOT NULL"
        sql = f"SELECT EXISTS (SELECT 1 FROM {quoted(table)} WHERE {condition})"  # noqa: S608
        return self.has(table, column) and bool(self._rows(sql)[0][0])

    def count(self, table: str) -> int:
        """Return the number of rows of an existing table."""
        return int(self._rows(f"SELECT count(*) FROM {quoted(table)}")[0][0])  # noqa: S608

    def first_times(self, columns: Mapping[str, str]) -> list[int]:
        """Return the first value of a time column of each table; `columns`: table -> column."""
        parts = [
            f"SELECT * FROM (SELECT {quoted(name)} FROM {quoted(table)} LIMIT {FIRST_ROWS})"  # noqa: S608
            for table, name in columns.items()
            if self.has(table, name)
        ]
        rows = self._rows(" UNION ALL ".join(parts)) if parts else []
        return [time for (time,) in rows if isinstance(time, int)]

    def _rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query with few rows."""
        try:
            with self._connections.lent() as connection:
                rows: list[tuple[Any, ...]] = connection.execute(sql, parameters).fetchall()
                return rows
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._library.damaged(error) from error

    def read(
        self, table: str, columns: Mapping[str, SqlType], where: Sequence[Where] = ()
    ) -> pl.DataFrame:
        """Return `columns` of `table` in rowid order; absent tables and columns give nulls.

        Parameters
        ----------
        table, columns
            Name of the table, and column name -> type to return; names are constants of this
            program, never text from a file.
        where
            Conditions on existing columns; a row must fulfil all.

        Raises
        ------
        DamagedTraceError
            If SQLite cannot read the table.
        """
        empty = pl.DataFrame(schema={name: DTYPE[kind] for name, kind in columns.items()})
        present = self._present(table, columns)
        if not present:
            return empty
        if not where:
            return pl.concat([empty, *self.batches(table, columns)], how="vertical_relaxed")
        rows = self._library.read(table, present, _condition(table, where))
        self._note(table, rows.lost)
        return _completed(rows.frame, columns)

    def batches(
        self, table: str, columns: Mapping[str, SqlType], rows: int = BATCH_ROWS
    ) -> Iterator[pl.DataFrame]:
        """Yield `columns` of `table` in rowid order, at most `rows` rows at a time.

        All batches but the last have at least ``rows / 2`` rows. Large tables are read on all
        cores, a little ahead of the consumer. An absent table yields nothing, and absent columns
        are null.

        Parameters
        ----------
        table, columns
            Name of the table, and column name -> type to return; names are constants of this
            program, never text from a file.
        rows
            Largest number of rows of a batch.

        Raises
        ------
        DamagedTraceError
            If the table cannot be read.
        """
        present = self._present(table, columns)
        if not present:
            return
        lost: Counter[str] = Counter()
        timed = present.keys() & {"start", "end"}
        within_times = self.times.within(f"rows of {table}") if timed else lambda rows: rows

        def noted(part: Rows) -> pl.DataFrame:
            lost.update(part.lost)
            self._note(table, lost)
            return _completed(within_times(part.frame), columns)

        parts = spans(self._library, self._rows, Table(table, present), rows, self.warnings)
        with closing(parts):
            yield from regrouped(map(noted, parts), rows)

    def _present(self, table: str, columns: Mapping[str, SqlType]) -> dict[str, SqlType]:
        return {name: kind for name, kind in columns.items() if self.has(table, name)}

    def _note(self, table: str, lost: Mapping[str, int]) -> None:
        self.coerced.update({f"{table}.{name}": number for name, number in lost.items()})


def _connected(uri: str) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(uri, uri=True, check_same_thread=False))


def _condition(table: str, where: Sequence[Where]) -> str:
    """Return SQL for all conditions joined by AND; its texts are constants of this program."""
    return " AND ".join(_in_sql(table, each) for each in where)


def _in_sql(table: str, where: Where) -> str:
    column = quoted(where.column)
    texts = ["'" + text.replace("'", "''") + "'" for text in where.texts]
    match where.how:
        case "is":
            return f"{column} IN ({', '.join(texts)})"
        case "starts":
            return _either((f"substr({column}, 1, {len(text)})" for text in where.texts), texts)
        case "ends":
            return _either((f"substr({column}, -{len(text)})" for text in where.texts), texts)
        case "first":
            firsts = f"SELECT min(rowid) FROM {quoted(table)} GROUP BY {column}"  # noqa: S608
            return f"rowid IN ({firsts})"


def _either(parts: Iterable[str], texts: Sequence[str]) -> str:
    """Return SQL that is true if any of the expressions `parts` equals its text in `texts`."""
    return f"({' OR '.join(map(' = '.join, zip(parts, texts, strict=True)))})"


def _completed(frame: pl.DataFrame, columns: Mapping[str, SqlType]) -> pl.DataFrame:
    """Return all `columns`; those that `frame` lacks become null."""
    if frame.columns == list(columns):
        return frame
    present = {column.name: column for column in frame}
    return pl.DataFrame(
        [present.get(name, _nulls(name, kind, frame.height)) for name, kind in columns.items()]
    )


def _nulls(name: str, kind: SqlType, rows: int) -> pl.Series:
    return pl.Series(name, [None], dtype=DTYPE[kind]).new_from_index(0, rows)


def regrouped(frames: Iterator[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of `frames` in frames of `rows / 2` to `rows` rows; the last may have fewer.

    If the integer type of a column differs between joined frames, the widest is used.
    """
    pending: list[pl.DataFrame] = []
    for frame in frames:
        pending.append(frame)
        while 2 * sum(each.height for each in pending) >= rows:
            joined = _together(pending)
            yield joined[:rows]
            pending = [joined[rows:]] if joined.height > rows else []
    if pending and (left := _together(pending)).height:
        yield left


def _together(frames: list[pl.DataFrame]) -> pl.DataFrame:
    if len(frames) == 1:
        return frames[0]
    return pl.concat(frames, how="vertical_relaxed", rechunk=True)


def is_packed(path: Path) -> bool:
    """Test whether a file is a gzipped SQLite file."""
    with path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            return False
        file.seek(0)
        try:
            return zlib.decompressobj(wbits=31).decompress(file.read(1 << 10), len(MAGIC)) == MAGIC
        except zlib.error:
            return False


def unpack(path: Path, workspace: Workspace) -> Path:
    """Unpack a gzipped SQLite file into the workspace, up to the size in its SQLite header.

    Raises
    ------
    DamagedTraceError
        If it cannot be unpacked.
    InputError
        If there is no room for it.
    """
    target = workspace.new_folder() / "unpacked.sqlite"
    try:
        with gzip.open(path) as packed, target.open("wb") as file:
            header = packed.read(HEADER_BYTES)
            file.write(header)
            left = max(page_size(header) * (pages_counted(header) or 1 << 32) - len(header), 0)
            while left and (block := packed.read(min(_BLOCK, left))):
                file.write(block)
                left -= len(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedTraceError(f"{path} cannot be unpacked ({error})", "copy it again") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise InputError(
            f"there is no room to unpack {path} ({error.strerror})", "free space for it"
        ) from error
    return target
