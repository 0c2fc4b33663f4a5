"""Interface of an export for makers of canonical tables, however it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.sources._times import Times

SqlType = Literal["int", "narrow", "real", "text", "blob"]
"""What a column is read as; ``narrow`` are whole numbers that may come in fewer than 64 bits."""


@dataclass(frozen=True)
class Where:
    """A condition on a column of texts, or that a row is the first of its value in a column.

    Parameters
    ----------
    column
        Name of the column, which the table has.
    how
        Whether its text is one of `texts`, starts or ends with one of them, or the row is the
        ``first`` in the table of those with the same value.
    texts
        Constants of this program.
    """

    column: str
    how: Literal["is", "starts", "ends", "first"]
    texts: tuple[str, ...] = ()


class ExportFile(Protocol):
    """Tables of an export, by the names that nsys gives them in SQLite."""

    path: Path
    coerced: dict[str, int]
    """Values that were dropped because they had no place in their column, by table.column."""
    warnings: list[str]
    """What a user should know of how the export was read."""
    times: Times
    """Which times rows may have; those with others are left out of `batches`."""

    @property
    def kind(self) -> str:
        """Storage format: ``SQLite``, ``parquetdir`` or ``arrowdir``."""

    @property
    def size(self) -> int:
        """Size of all of it, bytes."""

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether `table` exists and has all `columns`."""

    def holds_rows(self, table: str) -> bool:
        """Tell whether `table` exists and is not empty."""

    def holds_values(self, table: str, column: str) -> bool:
        """Tell whether `table` has `column` with any value."""

    def count(self, table: str) -> int:
        """Return the number of rows of `table`, which exists."""

    def first_times(self, columns: Mapping[str, str]) -> list[int]:
        """Return the first values of a column of whole numbers of each of some tables."""

    def read(
        self, table: str, columns: Mapping[str, SqlType], where: Sequence[Where] = ()
    ) -> pl.DataFrame:
        """Return `columns` of the rows of `table` that fulfil all of `where`, in their order."""

    def batches(
        self, table: str, columns: Mapping[str, SqlType], rows: int = ...
    ) -> Iterator[pl.DataFrame]:
        """Yield `columns` of `table` in the order of its rows, at most `rows` at a time."""


def coercions(file: ExportFile) -> tuple[str, ...]:
    """Say how many values of each column were left out for a wrong type."""
    return tuple(
        f"{count:,} values of {column} are not of its type and were left out"
        for column, count in file.coerced.items()
    )


def check_columns(file: ExportFile, required: Mapping[str, Sequence[str]], hint: str) -> None:
    """Raise `MissingDataError` if a table that is there lacks a necessary column."""
    for table, columns in required.items():
        absent = [column for column in columns if not file.has(table, column)]
        if absent and file.has(table):
            raise MissingDataError(
                f"{table} has no column {', '.join(absent)} in {file.path}", hint
            )
