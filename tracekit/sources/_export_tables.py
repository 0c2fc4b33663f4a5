"""Interface to the tables of an nsys export, the same for SQLite, Parquet and Arrow exports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.sources.columnar import ColumnarExport
    from tracekit.sources.sqlite import SqliteFile

ExportFile: TypeAlias = "SqliteFile | ColumnarExport"
"""An nsys export in any storage format, with tables named as in SQLite exports."""


class Strings:
    """Lookup of texts by the integer ids with which other tables of a file refer to them.

    Parameters
    ----------
    table, number, text
        Name of the table of texts, of its column of ids, and of its column of texts.
    none
        Id that means "no text"; None if there is no such id.
    """

    def __init__(
        self, file: ExportFile, table: str, number: str, text: str, none: int | None = None
    ) -> None:
        texts = file.read(table, {number: "int", text: "text"}).select(id=number, text=text)
        known = texts.filter(pl.col("id").ne_missing(none))
        self._texts = known.unique("id", keep="first", maintain_order=True)

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id; null if there is none."""
        wanted = ids.alias("id").to_frame()
        return wanted.join(self._texts, on="id", how="left", maintain_order="left")["text"]

    def like(self, pattern: str) -> pl.Series:
        """Return the ids of the texts that match a regular expression."""
        return self._texts.filter(pl.col("text").str.contains(pattern))["id"].drop_nulls()


def coercions(file: ExportFile) -> tuple[str, ...]:
    """Return warnings, one per column: how many values had a wrong type and became null."""
    return tuple(
        f"{count:,} values of {column} are not of its type and were left out"
        for column, count in file.coerced.items()
    )


def check_columns(file: ExportFile, required: Mapping[str, Sequence[str]], hint: str) -> None:
    """Raise `MissingDataError` if an existing table lacks a required column.

    Parameters
    ----------
    file
        The export.
    required
        Table -> its required columns.
    hint
        What the error advises the user to do.
    """
    for table, columns in required.items():
        absent = [column for column in columns if not file.has(table, column)]
        if absent and file.has(table):
            raise MissingDataError(
                f"{table} has no column {', '.join(absent)} in {file.path}", hint
            )


@dataclass(frozen=True)
class Feature:
    """A kind of recorded data: its tables in an export, what it is used for, how to record it."""

    name: str
    tables: tuple[str, ...]
    tells: str
    record_with: str
    counted: bool = True
    """Whether rows are counted; not for large tables that nothing reads."""
    part: str = ""
    """The part of the table's rows that belong to the feature."""


def read_contents(
    file: ExportFile, features: Iterable[Feature], known: Mapping[str, int]
) -> pl.DataFrame:
    """Return the table ``contents``: per kind of data (feature), if it is there, and its row count.

    Parameters
    ----------
    file
        The export.
    features
        The kinds of data to look for.
    known
        Row counts that are known already: by table, or by feature if only some of a table's rows
        belong to the feature.
    """
    rows = [_row(file, feature, known) for feature in features]
    return pl.DataFrame(rows, schema_overrides={"rows": pl.Int64}, infer_schema_length=None)


def _row(file: ExportFile, feature: Feature, known: Mapping[str, int]) -> dict[str, object]:
    part = known.get(feature.name)
    present = [
        table for table in feature.tables if (file.holds_rows(table) if part is None else part)
    ]
    rows = part
    if part is None and (feature.counted or not present):
        rows = sum(known.get(table) or file.count(table) for table in present)
    return {
        "feature": feature.name,
        "source_table": ", ".join(present or feature.tables) + feature.part,
        "present": bool(present),
        "rows": rows,
        "tells": feature.tells,
        "record_with": feature.record_with,
    }
