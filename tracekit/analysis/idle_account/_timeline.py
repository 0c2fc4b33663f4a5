"""Timelines of states (such as "waiting"), and intervals that are split where a state changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine import Numbers, latest
from tracekit.support.batches import at_least_one
from tracekit.support.compiled import compiled, given

Array: TypeAlias = NDArray[Any]
_LENGTH = pl.col("end") - pl.col("start")
_NEVER = -(1 << 62)
_NO_KEY = -(1 << 31)


def states(intervals: pl.DataFrame, key: str, state: str) -> pl.DataFrame:
    """Turn intervals into state changes: `key`, ``time`` (ns), and the `state` from then on.

    The state is null while no interval is open; of several open intervals, the last begun counts.

    Parameters
    ----------
    intervals
        ``start, end``, and the columns `key` and `state`.
    key
        Name of the column that identifies a timeline, such as the thread.
    state
        Name of the column with the state.
    """
    if intervals.is_empty():
        return intervals.select(key, pl.col("start").alias("time"), state)
    known = intervals.filter(pl.col("end") > pl.col("start"))
    nothing = pl.lit(None, intervals.schema[state]).alias(state)
    if not known[state].null_count() and follow(known, key):
        return _one_by_one(known, key, state, nothing)
    begins = known.select(key, state, time="start", step=pl.lit(1, pl.Int64))
    ends = known.select(key, nothing, time="end", step=pl.lit(-1, pl.Int64))
    changes = pl.any_horizontal(pl.col(key, "time").ne_missing(pl.col(key, "time").shift(-1)))
    return (
        pl.concat([begins, ends])
        .sort(key, "time", "step")
        # What begins in a key ends there, so that none is open where the next one begins.
        .with_columns(pl.col(state).forward_fill().over(key), level=pl.col("step").cum_sum())
        .filter(changes)
        .select(key, "time", pl.when(pl.col("level") > 0).then(state).alias(state))
    )


def _one_by_one(intervals: pl.DataFrame, key: str, state: str, nothing: pl.Expr) -> pl.DataFrame:
    """Return the result of `states` for intervals that do not overlap, which is quicker.

    The state in the gaps between them is `nothing`, a null.
    """
    goes_on = (pl.col(key).shift(-1) == pl.col(key)) & (pl.col("start").shift(-1) == pl.col("end"))
    ends = intervals.filter(~goes_on.fill_null(value=False)).select(key, "end", nothing)
    marks = [intervals.select(key, state, time="start"), ends.select(key, state, time="end")]
    return pl.concat(marks).sort(key, "time").select(key, "time", state)


def follow(intervals: pl.DataFrame, key: str) -> bool:
    """Test if rows are grouped by `key`, each group's intervals sorted and without overlap."""
    is_next = pl.col(key).shift() != pl.col(key)
    found = intervals.select(
        (is_next | (pl.col("start") >= pl.col("end").shift())).all().alias("in_order"),
        (is_next.sum() + 1 == pl.col(key).n_unique()).alias("together"),
    )
    return all(found.row(0))


def split_at(pieces: pl.DataFrame, marks: pl.DataFrame, key: str, state: str) -> pl.DataFrame:
    """Split intervals (`pieces`) where a state changes, and add the state.

    Parameters
    ----------
    pieces
        ``start, end`` (ns), the column `key`, and others; no piece has length 0.
    marks
        ``key, time, state``; a time occurs once in each key.
    key
        Name of the column that identifies a timeline, such as the thread.
    state
        Name of the column with the state.

    Returns
    -------
    The columns of `pieces`, and `state`; null before the first mark.
    """
    if marks.is_empty():
        return pieces.with_columns(pl.lit(None, marks.schema[state]).alias(state))
    always = marks.select(
        key, pl.lit(_NEVER).alias("time"), pl.lit(None, marks.schema[state]).alias(state)
    )
    ordered = pl.concat([always.unique(key), marks.select(always.columns)]).sort(key, "time")
    before_end = pieces.select(key, time=pl.col("end") - 1)
    first, last = (
        latest(pieces, "start", ordered, [key]),
        latest(before_end, "time", ordered, [key]),
    )
    exploded = (
        pieces.with_row_index("piece")
        .with_columns(first=first, last=last)
        .with_columns(turn=pl.int_ranges("first", pl.col("last") + 1))
        .explode("turn")
    )
    met = ordered.select(pl.col("time", state).gather(exploded["turn"]))
    goes_on = (pl.col("piece").shift(-1) == pl.col("piece")).fill_null(value=False)
    return (
        exploded.with_columns(met)
        .with_columns(start=pl.max_horizontal("start", "time"))
        .with_columns(end=pl.when(goes_on).then(pl.col("start").shift(-1)).otherwise("end"))
        .select(*pieces.columns, state)
    )


def overlapping(rows: pl.DataFrame, pieces: pl.DataFrame) -> pl.Series:
    """Return true for each of `rows` (``start, end``) that overlaps any interval of `pieces`."""
    ordered = pieces.select("start", "end").sort("start").with_columns(pl.col("end").cum_max())
    begun = ordered["start"].search_sorted(rows["end"], "left").cast(pl.Int64) - 1
    until = ordered["end"].gather(begun.set(begun < 0, None))
    return (until > rows["start"]).fill_null(value=False)


def _join_up(
    groups: Array, starts: Array, ends: Array, latest: Array, first: Array, furthest: Array
) -> int:
    """Merge intervals of the same group that overlap or touch.

    Parameters
    ----------
    groups, starts, ends
        Group, start and end of each interval, sorted by start.
    latest
        Index of the latest merged interval of each group, -1 at first; updated.
    first, furthest
        Output arrays, with room for all intervals: the row with which a merged interval begins, and
        its end, ns.

    Returns
    -------
    Number of merged intervals.
    """
    count = 0
    for row in range(len(groups)):
        place = latest[groups[row]]
        if place >= 0 and starts[row] <= furthest[place]:
            furthest[place] = max(furthest[place], ends[row])
        else:
            latest[groups[row]], first[count], furthest[count] = count, row, ends[row]
            count += 1
    return count


def merged(intervals: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Merge overlapping intervals of each group: the columns `by`, ``start, end`` (ns), by start.

    `by` are the columns of `intervals` that form a group.
    """
    wanted = intervals.select(*by, "start", "end")
    ordered = wanted if wanted["start"].is_sorted() else wanted.sort("start")
    groups, count = _numbered(ordered.select(by))
    first, ends = (np.empty(ordered.height, np.int64) for _ in range(2))
    found = compiled(_join_up, ordered.height)(
        groups, given(ordered["start"]), given(ordered["end"]), np.full(count, -1), first, ends
    )
    return ordered[first[:found]].with_columns(end=pl.Series(ends[:found]))


def _numbered(keys: pl.DataFrame) -> tuple[Array, int]:
    """Return a number from 0 for each row, equal for equal rows only, and one above the largest."""
    groups, count, rest = np.zeros(keys.height, np.int32), 1, keys.get_columns()
    if len(rest) > 1 and rest[0].dtype == pl.Int32:  # as it is, it makes pairs with the next one
        groups = given(rest.pop(0), null=_NO_KEY)
    for key in rest:
        codes = key.rank("dense") if key.dtype == pl.String else key.to_physical()
        numbers = Numbers()
        groups, _ = numbers.of(groups, given(codes.cast(pl.Int64), null=_NEVER))
        count = len(numbers)
    return groups.astype(np.int64), count


def merged_in_batches(intervals: pl.LazyFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the result of `merged`, but read the intervals in batches, as there are many."""
    wanted = intervals.select(*by, "start", "end")
    some = [merged(batch, by) for batch in at_least_one(wanted)]
    return merged(pl.concat(some), by)


def covered(rows: pl.DataFrame, blocks: pl.DataFrame, by: Sequence[str], name: str) -> pl.DataFrame:
    """Add a column `name`: for how long the intervals `blocks` cover each row, ns.

    Parameters
    ----------
    rows
        ``start, end`` and the columns `by`.
    blocks
        Covering intervals, from `merged`.
    by
        Columns to join on.
    name
        Name of the column.
    """
    if blocks.is_empty():
        return rows.with_columns(pl.lit(0, pl.Int64).alias(name))
    summed = blocks.sort("start").with_columns(
        sum=_LENGTH.cum_sum().over(by) - _LENGTH, block_start="start", block_end="end"
    )
    known = summed.select(*by, "block_start", "block_end", "sum", time="start")

    def until(frame: pl.DataFrame, edge: str) -> pl.DataFrame:
        inside = pl.min_horizontal(edge, "block_end") - pl.col("block_start")
        found = frame.sort(edge).join_asof(
            known, left_on=edge, right_on="time", by=by, check_sortedness=False
        )
        length = (pl.col("sum") + inside).fill_null(0).alias(f"until {edge}")
        return found.with_columns(length).drop(
            "block_start", "block_end", "sum", "time", strict=False
        )

    both = until(until(rows.with_row_index("place"), "start"), "end").sort("place")
    length = pl.col("until end") - pl.col("until start")
    return both.with_columns(length.alias(name)).drop("place", "until start", "until end")
