"""Tables of a columnar nsys export, with the column types of SQLite exports."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import DamagedTraceError, InputError, NotATraceError
from tracekit.sources._reading import Where
from tracekit.sources._times import FIRST_ROWS, Times
from tracekit.sources.sqlite import BATCH_ROWS, DTYPE, SqlType, decoded, regrouped
from tracekit.support.batches import in_batches

if TYPE_CHECKING:
    from tracekit.sources.columnar._arrow import ArrowTable

_KINDS = {".parquet": "parquetdir", ".arrow": "arrowdir"}
"""File ending -> kind of folder; the first ending that occurs is read."""
_STRINGS = "StringIds"
"""Table of strings, which every export has."""


def _arrow_table(file: Path) -> ArrowTable:
    # What reads Arrow takes a while to load, and most traces are no Arrow.
    from tracekit.sources.columnar._arrow import ArrowTable  # noqa: PLC0415

    return ArrowTable(file)


def table_files(folder: Path) -> list[Path]:
    """Return the table files of a columnar nsys export, sorted by name.

    Raises
    ------
    NotATraceError
        If the folder is no columnar export.
    InputError
        If the folder cannot be read.
    """
    try:
        suffix = next((s for s in _KINDS if (folder / (_STRINGS + s)).is_file()), None)
        files = [file for file in folder.iterdir() if file.suffix == suffix and file.is_file()]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror})") from error
    if suffix is None:
        raise NotATraceError(
            f"{folder} is a directory without an export of nsys (no file {_STRINGS}.parquet)",
            "give the file of a trace, or a folder of nsys export --type parquetdir",
        )
    return sorted(files, key=lambda file: file.name)


class ColumnarExport:
    """A folder with the tables of an nsys export, read like an SQLite export.

    Raises
    ------
    NotATraceError
        If the folder contains no export.
    InputError
        If the folder cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.coerced: dict[str, int] = {}
        """``table.column`` -> number of values dropped because they did not fit the type."""
        self.warnings: list[str] = []
        """Sentences for the user on how the export was read."""
        self.times = Times(path)
        """Times that rows may have; `batches` drops rows with others."""
        self._files = {file.stem: file for file in table_files(path)}
        self.kind = _KINDS[self._files[_STRINGS].suffix]
        """Storage format: ``parquetdir`` or ``arrowdir``."""
        self._opened: dict[str, ArrowTable | ParquetTable] = {}

    @cached_property
    def size(self) -> int:
        """Size of all tables, bytes."""
        return sum(file.stat().st_size for file in self._files.values())

    def has(self, table: str, *columns: str) -> bool:
        """Test whether `table` exists and has all `columns`."""
        return table in self._files and set(columns) <= set(self._columns(table))

    def holds_rows(self, table: str) -> bool:
        """Test whether `table` exists and is not empty."""
        return table in self._files and self.count(table) > 0

    def holds_values(self, table: str, column: str) -> bool:
        """Test whether `column` of `table` exists and has a value that is not null."""
        parts = self._parts(table, [column], BATCH_ROWS) if self.has(table, column) else ()
        return any(part[column].count() for part in parts)

    def count(self, table: str) -> int:
        """Return the number of rows of an existing table."""
        with self._damage(table):
            return self._open(table).count()

    def first_times(self, columns: Mapping[str, str]) -> list[int]:
        """Return the first value of a time column of each table; `columns`: table -> column."""
        times: list[int] = []
        for table, name in columns.items():
            if self.has(table, name):
                for part in islice(self._parts(table, [name], FIRST_ROWS), 1):
                    times += typed(part, {name: "int"})[0][name].drop_nulls().to_list()
        return times

    def read(
        self, table: str, columns: Mapping[str, SqlType], where: Sequence[Where] = ()
    ) -> pl.DataFrame:
        """Return `columns` (name -> type) of the rows of `table` that fulfil all of `where`.

        Rows stay in order. Absent tables and columns give nulls, as in
        `tracekit.sources.sqlite.SqliteFile.read`.

        Raises
        ------
        DamagedTraceError
            If the table cannot be read.
        """
        condition_types: dict[str, SqlType] = {
            each.column: "int" if each.how == "first" else "text" for each in where
        }
        both = {**condition_types, **columns}
        found = typed(pl.DataFrame(), both)[0].clear()
        for part in self.batches(table, both):
            found = _chosen(pl.concat([found, _fulfilling(part, where)]), where)
        return found.select(list(columns))

    def batches(
        self, table: str, columns: Mapping[str, SqlType], rows: int = BATCH_ROWS
    ) -> Iterator[pl.DataFrame]:
        """Yield `columns` of `table` in the order of its rows, at most `rows` at a time.

        An absent table yields nothing, and absent columns are null.

        Raises
        ------
        DamagedTraceError
            If the table cannot be read.
        """
        present = [name for name in columns if self.has(table, name)]
        lost: Counter[str] = Counter()
        within_times = self.times.within(f"rows of {table}")

        def noted(part: pl.DataFrame) -> pl.DataFrame:
            frame, fell = typed(part, columns)
            lost.update(fell)
            self.coerced.update({f"{table}.{name}": number for name, number in lost.items()})
            return within_times(frame)

        if present:
            yield from regrouped(map(noted, self._parts(table, present, rows)), rows)

    def _parts(self, table: str, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        with self._damage(table):
            yield from self._open(table).batches(columns, rows)

    def _columns(self, table: str) -> tuple[str, ...]:
        with self._damage(table):
            return self._open(table).columns

    def _open(self, table: str) -> ArrowTable | ParquetTable:
        file = self._files[table]
        is_parquet = file.suffix == ".parquet"
        opened = ParquetTable(file) if is_parquet else _arrow_table(file)
        return self._opened.setdefault(table, opened)

    @contextmanager
    def _damage(self, table: str) -> Iterator[None]:
        """Turn any failure to read `table` into the error that its file is damaged."""
        try:
            yield
        except PermissionError as error:
            raise InputError(
                f"{self._files[table]} may not be read", "check its permissions: ls -l"
            ) from error
        except _FAULTS as error:
            text = " ".join(str(error).split())[:_LONGEST]
            raise DamagedTraceError(
                f"{self._files[table]} cannot be read ({text})",
                "copy it again, or export the report again",
            ) from error


_LONGEST = 200
"""Largest number of characters of a library's message on a damaged file."""
_FAULTS = (
    OSError,
    ValueError,
    OverflowError,
    struct.error,
    RuntimeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
"""Exceptions that libraries raise for damaged files."""


def _fulfilling(frame: pl.DataFrame, where: Sequence[Where]) -> pl.DataFrame:
    tests = [test for each in where if (test := _test(each)) is not None]
    return frame.filter(tests) if tests else frame


def _test(where: Where) -> pl.Expr | None:
    column = pl.col(where.column)
    match where.how:
        case "is":
            return column.is_in(where.texts)
        case "starts":
            return pl.any_horizontal(column.str.starts_with(text) for text in where.texts)
        case "ends":
            return pl.any_horizontal(column.str.ends_with(text) for text in where.texts)
        case "first":
            return None


def _chosen(frame: pl.DataFrame, where: Sequence[Where]) -> pl.DataFrame:
    """Apply the conditions ``first`` in `where`: keep the first row with each value of a column."""
    firsts = [each.column for each in where if each.how == "first"]
    return frame.unique(firsts, keep="first", maintain_order=True) if firsts else frame


class ParquetTable:
    """Columns of a Parquet file, read in batches of rows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def _rows(self) -> pl.LazyFrame:
        return pl.scan_parquet(self._path, glob=False, hive_partitioning=False)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the file's columns."""
        return tuple(self._rows.collect_schema())

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._rows.select(pl.len()).collect().item())

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the columns `columns`, which must exist, about `rows` rows at a time."""
        return in_batches(self._rows.select(columns), rows)


_WHOLE = 2.0**63
"""First number that does not fit into 64 bits."""
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def typed(
    frame: pl.DataFrame, columns: Mapping[str, SqlType]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return `columns` of `frame`, converted to the requested types.

    Also returned: column -> number of values that did not fit the type and became null.

    Parameters
    ----------
    frame
        Columns as in the file; those that it lacks become null.
    columns
        Column name -> type to return.
    """
    present = {name: kind for name, kind in columns.items() if name in frame.columns}
    texts = decoded(frame, [name for name, kind in present.items() if kind == "blob"])
    done = texts.select(_typed(texts[name], kind) for name, kind in present.items())
    lost = {name: texts[name].count() - done[name].count() for name in present}
    # What is no number, SQLite stores as null: nothing of it is lost here.
    numbers = (name for name in present if texts[name].dtype.is_float())
    for name in numbers:
        lost[name] -= int(texts[name].is_nan().sum())
    absent = [pl.lit(None, DTYPE[kind]).alias(n) for n, kind in columns.items() if n not in present]
    return (
        done.with_columns(absent).select(list(columns)),
        {name: number for name, number in lost.items() if number > 0},
    )


def _typed(column: pl.Series, kind: SqlType) -> pl.Series:
    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int64)
    if column.dtype in _TEXTS:
        column = column.cast(pl.String)
    return _CASTS[kind](column)


def _int(column: pl.Series) -> pl.Series:
    if column.dtype == pl.UInt64:  # an exporter to SQLite stores the same bits
        return column.reinterpret(signed=True)
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    if column.dtype.is_float():
        is_whole = (column == column.round()) & (column >= -_WHOLE) & (column < _WHOLE)
        return _where(column, is_whole).cast(pl.Int64)
    if column.dtype == pl.String:
        numbers = column.cast(pl.Int64, strict=False)
        return _where(numbers, numbers.cast(pl.String) == column)
    return _nothing(column, "int")


def _real(column: pl.Series) -> pl.Series:
    if column.dtype.is_integer() or column.dtype.is_float():
        return column.cast(pl.Float64).fill_nan(None)
    return _nothing(column, "real")


def _text(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String or column.dtype.is_integer() or column.dtype.is_float():
        return column.cast(pl.String)
    return _nothing(column, "text")


def _blob(column: pl.Series) -> pl.Series:
    return column if column.dtype == pl.Binary else _text(column).cast(pl.Binary)


_CASTS = {"int": _int, "narrow": _int, "real": _real, "text": _text, "blob": _blob}


def _where(column: pl.Series, mask: pl.Series) -> pl.Series:
    """Return `column` with nulls where `mask` is not true."""
    return column.set(~mask.fill_null(value=False), None)


def _nothing(column: pl.Series, kind: SqlType) -> pl.Series:
    return pl.repeat(None, len(column), dtype=DTYPE[kind], eager=True).alias(column.name)
