"""What may be added up over ops as they pass, and what they are counted and named by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import polars as pl

_LENGTH = pl.col("end") - pl.col("start")


@dataclass(frozen=True)
class Counting:
    """How ops are counted among the pieces that windows cut them into."""

    is_op: pl.Expr | None
    """Whether a piece stands for its op; all do, if nothing is cut."""
    duration: pl.Expr
    """Length of the whole op."""
    window: tuple[str, ...]
    """The column `window`, where a line has several."""
    columns: tuple[str, ...] = ()
    """Columns of ops that tell whether a piece stands for its op."""

    def ops(self, where: pl.Expr) -> pl.Expr:
        """Narrow down which pieces are meant to those that stand for their ops."""
        return where if self.is_op is None else where & self.is_op


WHOLE = Counting(None, _LENGTH, ())
"""Every piece is an op, and every line is a window."""
CUT = Counting(pl.col("counts"), pl.col("duration_ns"), ("window",))
_IS_FIRST = pl.col("is_first")
HOST_WHOLE = replace(WHOLE, is_op=_IS_FIRST, columns=("is_first",))
"""Of several stretches of a range the first one stands for it."""
HOST_CUT = replace(CUT, is_op=pl.col("counts") & _IS_FIRST, columns=("is_first",))
_ALL = pl.col("start").is_not_null()


class Tally(Protocol):
    """Something that is added up over segments."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""

    def clear(self) -> None:
        """Begin anew."""

    def add(self, rows: pl.DataFrame) -> None:
        """Count in one or more segments of a line."""


class Sweep(Protocol):
    """Something that is added up over whole ops, by start, in windows."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""

    def begin(self, windows: pl.DataFrame | None) -> None:
        """Begin anew, in windows as `LinesInWindows` takes them."""

    def add(self, rows: pl.DataFrame) -> bool:
        """Count ops; tell whether those of each line still come by start."""

    def windows(self) -> pl.DataFrame:
        """Return the windows; of devices, when they began and ended."""


@dataclass(frozen=True)
class Named:
    """A key of ops that stands in another table.

    Parameters
    ----------
    columns
        The columns of ops that tell which row of the table is an op's.
    number
        That row.
    values
        What stands there.
    """

    columns: tuple[str, ...]
    number: pl.Expr
    values: pl.Series
