"""Lengths of unions of intervals, for frames in any order.

An interval is [start, end) in ns. Intervals of one group may overlap, touch, repeat or be empty.
The ops of a whole run are added up by `StageTally` and `GroupTally` instead, in one pass by start;
a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

_ALL = ""
"""A column that has one value, so that there is a group without columns that define any."""
_GAPS = pl.max_horizontal(pl.col("start") - pl.col("end").cum_max().shift(1), pl.lit(0))
"""Gaps of intervals ordered by start: the time from the furthest end so far to a later start."""

COVERED = (pl.col("end").max() - pl.col("start").min() - _GAPS.sum()).fill_null(0)
"""Length of the union of intervals ordered by start: from the first start to the furthest end, less
the gaps."""


def union_length(intervals: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the length of the union of the intervals of each group.

    Parameters
    ----------
    intervals
        ``start, end`` (Int64, ns) and the columns `by`.
    by
        Columns that define a group; without any, all intervals are one group.

    Returns
    -------
    The columns `by` and ``length`` (Int64, ns), one row per group.
    """
    keys = list(by)
    ordered = _by_start(intervals.select(*keys, "start", "end"))
    length = COVERED.alias("length")
    return ordered.group_by(keys).agg(length) if keys else ordered.select(length)


def layered_lengths(
    intervals: pl.DataFrame, layer: str, layers: Sequence[str], by: Sequence[str]
) -> pl.DataFrame:
    """Return the time that each layer of intervals covers, and the part no higher layer covers.

    Layers, such as stages, have an order of precedence.

    Parameters
    ----------
    intervals
        ``start, end``, the column `layer` and the columns `by`.
    layer
        Name of the column with an interval's layer.
    layers
        All layers, the highest first.
    by
        Columns that define a group.

    Returns
    -------
    The columns `by`, `layer`, ``busy_ns`` (covered length) and ``exposed_ns`` (the part that no
    higher layer covers); one row per group and layer that occur together. The exposed lengths of a
    group add up to the length of the union of all its intervals.
    """
    keys = [*by, _ALL]
    ordered = _by_start(intervals.select(*by, layer, "start", "end", pl.lit(0).alias(_ALL)))
    present = set(ordered[layer].unique())
    names = [name for name in layers if name in present]
    # To pick rows first takes less time than to pick values in each of several expressions.
    found = pl.collect_all(
        ordered.lazy().filter(pl.col(layer).is_in(some)).group_by(keys).agg(COVERED.alias(name))
        for number in range(len(names))
        for some, name in ((names[number : number + 1], "busy_ns"), (names[: number + 1], "down"))
    )
    lengths = [intervals.clear().select(*by, layer, busy_ns="start", exposed_ns="end")]
    above = ordered.clear().select(*keys, above="start")
    for name, covered, down in zip(names, found[::2], found[1::2], strict=True):
        both = covered.join(down, on=keys, nulls_equal=True)
        beside = both.join(above, on=keys, how="left", nulls_equal=True)
        exposed = pl.col("down") - pl.col("above").fill_null(0)
        kind = pl.lit(name).cast(intervals.schema[layer]).alias(layer)
        lengths.append(beside.select(*by, kind, "busy_ns", exposed_ns=exposed))
        above = down.rename({"down": "above"})
    return pl.concat(lengths)


def _by_start(intervals: pl.DataFrame) -> pl.DataFrame:
    # Looking costs a tenth of sorting what is in order.
    return intervals if intervals["start"].is_sorted() else intervals.sort("start")
