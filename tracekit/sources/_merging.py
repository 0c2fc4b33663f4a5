"""Rows brought into the order of time: by start, of those that start together the longest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import compiled
from tracekit.support.inner import inner

FEW_ROWS = 20_000
"""So many are sorted sooner than a loop is loaded."""
MOST_MOVES = 4
"""By how many places a row may be off, on average, not to be sorted sooner."""
MOST_PARTS = 16
"""Of more parts it takes longer to find the one that goes on than to sort all rows."""
RUN_ROWS = 1 << 10
"""Runs of so many rows, on average, are put together sooner as such than row by row."""


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows in order; of those that start and end together, the first one is first."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    if frame.height < FEW_ROWS:
        return frame if _are_in_order(start, end) else _arranged([frame], _sorted(start, end))
    order = np.empty(frame.height, np.uint32)
    moves = compiled(insert, order.size)(start, end, MOST_MOVES * order.size, order)
    return _arranged([frame], _sorted(start, end) if moves < 0 else order) if moves else frame


def merged(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of parts, each of which is in order, in order."""
    if len(parts) == 1:
        return parts[0]
    start, end = (np.concatenate([part[name] for part in parts]) for name in ("start", "end"))
    if len(parts) > MOST_PARTS or start.size < FEW_ROWS:
        return _arranged(parts, _sorted(start, end))
    bounds = _bounds(parts)
    order = np.empty(start.size, np.uint32)
    compiled(merge, order.size)(start, end, bounds[:-1].copy(), bounds[1:], order)
    return _arranged(parts, order)


def _arranged(parts: Sequence[pl.DataFrame], order: NDArray[Any]) -> pl.DataFrame:
    """Return rows of parts in an order that tells their places in all parts together.

    Runs that follow each other in it stay in the memory in which they are.
    """
    follows = np.diff(order) == 1
    if np.count_nonzero(~follows) * RUN_ROWS < order.size:
        return pl.concat(_runs(parts, order, follows), how="diagonal_relaxed")
    rows = pl.concat(parts, how="diagonal_relaxed", rechunk=True)
    return rows[pl.Series(order.astype(np.uint32, copy=False))]  # as polars takes rows by


def _runs(
    parts: Sequence[pl.DataFrame], order: NDArray[Any], follows: NDArray[np.bool_]
) -> Iterator[pl.DataFrame]:
    """Yield rows of one part, each of which `follows` the one before, run by run."""
    bounds = _bounds(parts)
    begins = np.append(0, np.flatnonzero(~follows) + 1)
    for place, height in zip(begins, np.diff(begins, append=order.size), strict=True):
        first, left = int(order[place]), int(height)
        while left:  # the rows of the next part may follow
            part = int(np.searchsorted(bounds, first, "right")) - 1
            yield (some := parts[part][first - int(bounds[part]) :][:left])
            first, left = first + some.height, left - some.height


def _bounds(parts: Sequence[pl.DataFrame]) -> NDArray[np.int64]:
    return np.cumsum([0, *(part.height for part in parts)])


def _are_in_order(start: NDArray[Any], end: NDArray[Any]) -> bool:
    tied = (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return bool(((start[1:] > start[:-1]) | tied).all())


def _sorted(start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Return the order of rows."""
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    tied = ordered[1:] == ordered[:-1]
    among = np.append(tied, False) | np.append(False, tied)
    rows = order[among]
    # Inverting all bits turns the order of whole numbers round, and the least has no negative.
    order[among] = rows[np.lexsort((~end[rows], start[rows]))]
    return order


@inner
def _is_before(start: NDArray[Any], end: NDArray[Any], row: int, other: int) -> bool:
    """Tell whether a row comes before another one whatever parts they are of."""
    if start[row] == start[other]:
        return bool(end[row] > end[other])
    return bool(start[row] < start[other])


@inner
def _first_of(
    start: NDArray[Any], end: NDArray[Any], at: NDArray[Any], ends: NDArray[Any], but: int
) -> int:
    """Return the part whose next row is first, other than part `but`; -1 if there is none."""
    first = -1
    for part in range(ends.size):
        if (
            part != but
            and at[part] < ends[part]
            and (first < 0 or _is_before(start, end, at[part], at[first]))
        ):
            first = part
    return first


def insert(start: NDArray[Any], end: NDArray[Any], most: int, order: NDArray[Any]) -> int:
    """Bring rows that are nearly in order into order, each by moving it up.

    Parameters
    ----------
    start, end
        Of the rows.
    most
        How many moves may be made; more rows out of place are better sorted.
    order
        Becomes the rows in order.

    Returns
    -------
    How many moves were made, -1 if too many would be.
    """
    moves = 0
    for row in range(order.size):
        place = row
        while place > 0 and _is_before(start, end, row, order[place - 1]):
            order[place] = order[place - 1]
            place -= 1
            moves += 1
            if moves > most:
                return -1
        order[place] = row
    return moves


def merge(
    start: NDArray[Any],
    end: NDArray[Any],
    at: NDArray[Any],
    ends: NDArray[Any],
    order: NDArray[Any],
) -> None:
    """Merge parts of rows, each of which is in order.

    Parameters
    ----------
    start, end
        Of the rows of all parts, part by part.
    at, ends
        The first row of each part, and the one after its last one; the former move on.
    order
        Becomes the rows in order.
    """
    placed = 0
    while placed < order.size:
        part = _first_of(start, end, at, ends, -1)
        other = _first_of(start, end, at, ends, part)
        row, stop = at[part], ends[part]
        # What the other one has first ends the run; of equal rows, that of the part in front.
        rival = row if other < 0 else at[other]
        while row < stop:
            is_over = other >= 0 and (
                _is_before(start, end, rival, row)
                or (other < part and not _is_before(start, end, row, rival))
            )
            if is_over:
                break
            order[placed] = row
            placed += 1
            row += 1
        at[part] = row
