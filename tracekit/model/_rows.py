"""Which rows of an answer are wanted, in which order: `where`, `sort` and `top`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.errors import UsageError
from tracekit.support.quantities import parse_count, parse_duration, parse_size
from tracekit.support.spelling import choose_among

_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|!~|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_UNITS = ("_ns", "_bytes", "_gb_s", "_percent")
_TRUTH = {"yes": "true", "no": "false"}
_ORDERED = frozenset({"<", ">", "<=", ">="})


_PLACE = "\x00place"


def places(
    rows: pl.DataFrame, where: Sequence[str], sort: str | None, top: int | None
) -> pl.Series:
    """Return the numbers of the rows that are wanted, in their order.

    Raises
    ------
    UsageError
        If a condition cannot be read, a column does not exist, or no row is to be kept.
    """
    if top is not None and top < 1:
        raise UsageError(f"{top} rows cannot be listed", "give 1 or more")
    rows = rows.with_row_index(_PLACE)
    for condition in where:
        rows = rows.filter(_condition(condition, rows))
    if sort is not None:
        rows = _sorted(rows, sort)
    return (rows if top is None else rows.head(top))[_PLACE]


def _sorted(rows: pl.DataFrame, sort: str) -> pl.DataFrame:
    name = _column(sort.removeprefix("-"), rows)
    descending = rows[name].dtype.is_numeric() != sort.startswith("-")
    return rows.sort(name, descending=descending, nulls_last=True, maintain_order=True)


def _column(name: str, rows: pl.DataFrame) -> str:
    """Return the column that a name means, with or without its unit."""
    known = [column for column in rows.columns if column != _PLACE]
    for unit in ("", *_UNITS):
        if name + unit in known:
            return name + unit
    raise UsageError(f"there is no column {name!r}", choose_among(name, known))


def _condition(text: str, rows: pl.DataFrame) -> pl.Expr:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text!r} is no condition", "write it as stage=BP, mean>1ms, share>=5% or name~gemm"
        )
    name, sign = _column(found[1], rows), found[2]
    dtype = rows[name].dtype
    if dtype.is_nested():
        raise UsageError(
            f"{name} holds lists, which no condition is about", "choose another column"
        )
    column = pl.col(name)
    if sign in ("~", "!~"):
        return _pattern(column.cast(pl.String), found[3], is_negated=sign == "!~")
    value: float | str = found[3]
    if dtype.is_numeric():
        value = _number(name, found[3])
    elif sign in _ORDERED:
        raise UsageError(f"{name} holds texts, which {sign} does not order", "use =, != or ~")
    else:
        column = column.cast(pl.String)
        value = _TRUTH.get(found[3], found[3]) if dtype == pl.Boolean else found[3]
    compared: pl.Expr = _COMPARED[sign](column, value)
    return compared


def _pattern(column: pl.Expr, pattern: str, *, is_negated: bool) -> pl.Expr:
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"{pattern!r} is no pattern", "write a regular expression") from error
    matches = column.str.contains(pattern)
    return ~matches if is_negated else matches


_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


def _number(column: str, text: str) -> float:
    """Return the number that a text means for a column: with the column's unit, or as it is."""
    try:
        return float(text)
    except ValueError:
        pass
    if text.endswith("%"):
        share = _plain_number(text.removesuffix("%"), text)
        return share if column.endswith("_percent") else share / 100
    if column.endswith("_ns"):
        return parse_duration(text)
    if column.endswith("bytes"):
        return parse_size(text)
    return parse_count(text)


def _plain_number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{whole!r} is no number", "write it as 5%, 1.5ms, 4MiB or 60M") from None
