"""Find the latest of some marks, for times that come in nearly any order.

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
    """Find the latest mark of the same owner that is no later than each row.

    Parameters
    ----------
    rows, time
        The rows, and their column of times, without nulls.
    marks
        ``time``, without nulls; of marks at one time the last one counts.
    owners
        Columns of both that hold numbers, few in the marks; where one is null nothing is found.

    Returns
    -------
    The row of the mark, null where there is none.
    """
    if rows.is_empty() or marks.is_empty():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    known = [np.unique(marks[name].drop_nulls().to_numpy()) for name in owners]
    lines = _lines(marks, owners, known)
    order = np.lexsort((marks["time"].to_numpy(), lines))
    order = order[lines[order] >= 0]
    first = np.searchsorted(lines[order], np.arange(math.prod(map(len, known)) + 1))
    found = np.empty(rows.height, np.int64)
    compiled(find_latest, rows.height)(
        _lines(rows, owners, known), given(rows[time]), first, marks["time"].to_numpy()[order],
        first[:-1].copy(), found,
    )  # fmt: skip
    there = found >= 0
    if not order.size or not there.any():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    places = pl.Series(order[np.maximum(found, 0)])
    return places if there.all() else places.set(pl.Series(~there), None)


def _lines(frame: pl.DataFrame, owners: Sequence[str], known: Sequence[NDArray[Any]]) -> _Ints:
    """Return one number per owner, -1 where a column is null or no mark has what it says."""
    line = np.zeros(frame.height, np.int64)
    unknown = np.zeros(frame.height, np.bool_)
    for name, numbers in zip(owners, known, strict=True):
        if frame[name].null_count():
            unknown |= frame[name].is_null().to_numpy()
        place, is_none = _places(frame[name].fill_null(0).to_numpy(), numbers)
        unknown |= is_none
        line *= len(numbers)
        line += place
    line[unknown] = -1
    return line


def _places(values: NDArray[Any], known: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return where each value is among the sorted ones that are known, and whether it is not."""
    count = known.size
    if count and known[0] == 0 and known[-1] == count - 1:  # as devices and processes mostly are
        return values, (values < 0) | (values >= count)
    place = np.minimum(np.searchsorted(known, values), max(count - 1, 0))
    return place, (known[place] != values) if count else np.ones(values.size, np.bool_)


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
