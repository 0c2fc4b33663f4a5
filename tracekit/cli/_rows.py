"""Which rows of an answer are written, in which order: `--where`, `--sort` and `--top`."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._options import parse_count, parse_duration, parse_size
from tracekit.errors import UsageError
from tracekit.support.spelling import choose_among

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer

_PANEL = "Rows"
_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|!~|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_UNITS = ("_ns", "_bytes", "_gb_s", "_percent")
_TRUTH = {"yes": "true", "no": "false"}
_ORDERED = frozenset({"<", ">", "<=", ">="})

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Rows that meet it, such as stage=BP, mean>1ms, share>=5% or name~gemm (a pattern); "
        "may be given several times.",
        rich_help_panel=_PANEL,
    ),
]
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Order by a column: largest first, texts by the alphabet; -COLUMN is the reverse.",
        rich_help_panel=_PANEL,
    ),
]
TopOption = Annotated[
    int | None,
    typer.Option("--top", min=1, metavar="N", help="The first N rows.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True)
class Rows:
    """Which rows to write.

    Parameters
    ----------
    where
        Conditions that each row must meet, as they were typed.
    sort
        Column to order by, with `-` before it for the reverse; None keeps the order.
    top
        How many rows to keep; None keeps all.
    """

    where: Sequence[str] = ()
    sort: str | None = None
    top: int | None = None

    def of(self, answer: "Answer") -> "Answer":
        """Return an answer with these rows alone, and say in its title that they are.

        Raises
        ------
        UsageError
            If a condition cannot be read, or a column does not exist.
        """
        if not self.where and self.sort is None and self.top is None:
            return answer
        chosen = self._chosen(answer.rows.with_row_index(_PLACE))
        places = chosen[_PLACE]
        people = answer.people
        said = [
            *([f"{places.len():,} of {answer.rows.height:,} rows"] if self._leaves_out else []),
            *([f"by {self.sort}"] if self.sort is not None else []),
        ]
        return replace(
            answer,
            rows=answer.rows[places],
            people=None if people is None else people[places],
            is_whole=not self._leaves_out,
            title=" · ".join(filter(None, [answer.title, *said])),
            empty=f"no row meets {', '.join(self.where)}" if self.where else answer.empty,
        )

    @property
    def _leaves_out(self) -> bool:
        return bool(self.where) or self.top is not None

    def _chosen(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        for condition in self.where:
            rows = rows.filter(_condition(condition, rows))
        if self.sort is not None:
            name = _column(self.sort.removeprefix("-"), rows)
            is_number = rows[name].dtype.is_numeric()
            rows = rows.sort(
                name,
                descending=is_number != self.sort.startswith("-"),
                nulls_last=True,
                maintain_order=True,
            )
        return rows if self.top is None else rows.head(self.top)


_PLACE = "\x00place"


def _column(name: str, rows: "pl.DataFrame") -> str:
    """Return the column that a name means, with or without its unit."""
    known = [column for column in rows.columns if column != _PLACE]
    for unit in ("", *_UNITS):
        if name + unit in known:
            return name + unit
    raise UsageError(f"there is no column {name!r}", choose_among(name, known))


def _condition(text: str, rows: "pl.DataFrame") -> "pl.Expr":
    import polars as pl

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


def _pattern(column: "pl.Expr", pattern: str, *, is_negated: bool) -> "pl.Expr":
    import polars as pl

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
