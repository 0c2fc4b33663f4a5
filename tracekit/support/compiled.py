"""Loops that are compiled when there is enough for them to do.

A loop that carries state from row to row cannot be an expression over columns. Such loops are
written in the part of Python that Numba compiles, over NumPy arrays. Over few rows they run as they
stand; over many they are compiled, once per installation, for what was compiled is kept, and loaded
without the compiler (see `native`). They hold no lock on the interpreter, so several threads run
them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from tracekit.support.compiler import Compiled

P = ParamSpec("P")
R = TypeVar("R")

FEW_ROWS = 20_000
"""Below this, a loop takes less time as it stands than compiling it does."""
FEWEST_ROWS = 2_000
"""Below this, it takes less than what was compiled before takes to load."""
ALWAYS = 1 << 62
"""A number of rows for which a loop is always compiled."""


def compiled(loop: Callable[P, R], rows: int) -> Callable[P, R]:
    """Return `loop`, compiled if it is to go over many rows, or over some and that was done."""
    if rows < min(FEWEST_ROWS, FEW_ROWS):
        return loop
    either = _compiled(loop)
    return cast("Callable[P, R]", either if rows >= FEW_ROWS else either.if_kept)


@cache
def _compiled(loop: Callable[..., Any]) -> Compiled:
    from tracekit.support.compiler import Compiled  # noqa: PLC0415 - not needed by small traces

    return Compiled(loop)


def given(column: pl.Series, dtype: Any = None, null: int | None = None) -> NDArray[Any]:
    """Return a column as an array for loops, with `null` in place of nulls.

    Its memory may be that of other columns, so no loop may write to it.
    """
    import numpy as np  # noqa: PLC0415 - not needed by every command

    if null is not None and column.null_count():
        column = column.fill_null(null)

    array = np.ascontiguousarray(column.to_numpy(), dtype)
    array.flags.writeable = False
    return array


_SLOTS = 64
"""How many values `locate` remembers; there are seldom more threads that take turns."""


def remembered(known: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return room for values that were looked for, and for where they were found: nothing else."""
    import numpy as np  # noqa: PLC0415 - not needed by every command

    value, place = (known[0], 0) if known.size else (0, -1)
    return np.full(_SLOTS, value, np.int64), np.full(_SLOTS, place, np.int32)


def locate(
    values: NDArray[Any],
    known: NDArray[Any],
    recent: NDArray[Any],
    places: NDArray[Any],
    found: NDArray[Any],
) -> None:
    """Find where each value is in `known`, which is sorted; -1 where it is not.

    A binary search, but for values that came not long ago, as ids of threads and processes do: each
    value has a slot in `recent`, and `places` holds where the slot's last value was found. The bits
    that tell ids apart may be low, or those of a process above its 24 or 32 bits of others.
    """
    for row in range(values.size):
        value = values[row]
        slot = (value ^ (value >> 24) ^ (value >> 32)) & (_SLOTS - 1)
        if recent[slot] != value:
            low, high = 0, known.size
            while low < high:
                middle = (low + high) // 2
                if known[middle] < value:
                    low = middle + 1
                else:
                    high = middle
            recent[slot] = value
            places[slot] = low if low < known.size and known[low] == value else -1
        found[row] = places[slot]
