"""Columns of whatever type, as the types that SQLite exports have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from tracekit.sources.sqlite import DTYPE, decoded

if TYPE_CHECKING:
    from tracekit.sources.sqlite import SqlType

_WHOLE = 2.0**63
"""The first number beyond those of 64 bits."""
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def typed(
    frame: pl.DataFrame, columns: Mapping[str, SqlType]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return `columns` in their types, and how many values had no place in each.

    Parameters
    ----------
    frame
        Columns of a table as its file has them; those that it lacks are null.
    columns
        The columns to return, and their types.
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
