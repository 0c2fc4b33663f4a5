"""Which of some marks was the latest, for times that come in nearly any order.

A join would sort both sides, and carry all columns along; marks are few, and times that follow each
other have mostly the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import compiled, given

_Ints = NDArray[np.int64]


def latest(rows: pl.DataFrame, time: str, marks: pl.DataFrame, owners: Sequence[str]) -> pl.Series:
    """Find the latest mark that comes no later than each row, of the same owner.

    Parameters
    ----------
    rows, time
        The rows, and their column of times, without nulls.
    marks
        ``time``, without nulls; of marks at one time the last one counts.
    owners
        Columns of both that hold small numbers; where one is null nothing is found.

    Returns
    -------
    The row of the mark, null where there is none.
    """
    if rows.is_empty() or marks.is_empty():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    sizes = [1 + max(_most(rows[name]), _most(marks[name])) for name in owners]
    lines = _lines(marks, owners, sizes)
    order = np.lexsort((marks["time"].to_numpy(), lines))
    order = order[lines[order] >= 0]
    first = np.searchsorted(lines[order], np.arange(math.prod(sizes) + 1))
    found = np.empty(rows.height, np.int64)
    compiled(find_latest, rows.height)(
        _lines(rows, owners, sizes), given(rows[time]), first, marks["time"].to_numpy()[order],
        first[:-1].copy(), found,
    )  # fmt: skip
    there = found >= 0
    if not order.size or not there.any():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    places = pl.Series(order[np.maximum(found, 0)])
    return places if there.all() else places.set(pl.Series(~there), None)


def _most(numbers: pl.Series) -> int:
    most: Any = numbers.max()
    return -1 if most is None else int(most)


def _lines(frame: pl.DataFrame, owners: Sequence[str], sizes: Sequence[int]) -> _Ints:
    """Return one number per owner, -1 where a column is null."""
    line = np.zeros(frame.height, np.int64)
    unknown = np.zeros(frame.height, np.bool_)
    for name, size in zip(owners, sizes, strict=True):
        if frame[name].null_count():
            unknown |= frame[name].is_null().to_numpy()
        line *= size
        line += frame[name].fill_null(0).to_numpy()
    line[unknown] = -1
    return line


def find_latest(
    lines: NDArray[Any],
    times: NDArray[Any],
    first: NDArray[Any],
    begins: NDArray[Any],
    near: NDArray[Any],
    found: NDArray[Any],
) -> None:
    """Find the last of the marks of each row's line that begins no later than the row.

    Parameters
    ----------
    lines, times
        Of the rows; of no line where that is negative.
    first, begins
        The marks of line n are those from ``first[n]`` to ``first[n + 1]``, by time.
    near
        For each line a mark to begin the search with; updated.
    found
        Becomes the mark of each row, -1 where there is none.
    """
    for row in range(lines.size):
        line, now = lines[row], times[row]
        found[row] = -1
        if line < 0:
            continue
        low, high = first[line], first[line + 1]
        place = near[line]
        if low <= place < high and begins[place] <= now:
            low = place + 1
            if low < high and now < begins[low]:
                high = low
        while low < high:
            middle = (low + high) // 2
            if begins[middle] <= now:
                low = middle + 1
            else:
                high = middle
        if low > first[line]:
            found[row] = near[line] = low - 1
