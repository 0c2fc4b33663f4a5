"""Loops that are compiled if there is enough work for them.

A loop that carries state from row to row cannot be a polars expression. Such loops are written in
the part of Python that Numba compiles, over NumPy arrays. With few rows they run as plain Python;
with many they are compiled, once per installation, as the compiled code is cached, and loaded
without the compiler (see `native`). They release the interpreter's lock, so several threads can run
them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from tracekit.support.inner import plain

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from tracekit.support.compiler import Compiled

P = ParamSpec("P")
R = TypeVar("R")

FEW_ROWS = 20_000
"""Number of rows below which a plain Python loop is faster than compiling it."""
FEWEST_ROWS = 2_000
"""Number of rows below which a plain Python loop is faster than loading compiled code."""
_WORTH_CALLING = 300
"""Number of rows below which a plain Python loop is faster than a call of loaded code."""
ALWAYS = 1 << 62
"""A number of rows for which a loop is always compiled."""

_rows: Counter[Callable[..., Any]] = Counter()
"""Loop -> number of rows that it was given in this process."""


def compiled(loop: Callable[P, R], rows: int) -> Callable[P, R]:
    """Return `loop`, compiled by Numba if it is to process many `rows`.

    From `FEW_ROWS` rows on, in this call or with earlier ones, the loop is always compiled. From
    `FEWEST_ROWS` on it runs as machine code only if this is cached; so do calls with fewer rows
    once the loop has had as many. Otherwise it runs as plain Python.
    """
    _rows[loop] += rows
    if rows < min(FEWEST_ROWS, FEW_ROWS):
        may_be_loaded = rows >= _WORTH_CALLING and _rows[loop] >= FEWEST_ROWS
        return cast("Callable[P, R]", _compiled(loop).if_kept if may_be_loaded else plain(loop))
    either = _compiled(loop)
    either.rows += rows
    return cast("Callable[P, R]", either if either.rows >= FEW_ROWS else either.if_kept)


@cache
def _compiled(loop: Callable[..., Any]) -> Compiled:
    from tracekit.support.compiler import Compiled  # noqa: PLC0415 - not needed by small traces

    return Compiled(loop)


def given(column: pl.Series, dtype: Any = None, null: int | None = None) -> NDArray[Any]:
    """Return a column as an array for loops, with `null` in place of null values.

    The array may share memory with other columns, so no loop may write to it.
    """
    import numpy as np  # noqa: PLC0415 - not needed by every command

    if null is not None and column.null_count():
        column = column.fill_null(null)

    array = np.ascontiguousarray(column.to_numpy(), dtype)
    array.flags.writeable = False
    return array
