"""Lengths of unions of intervals; the one place where busy time comes from.

An interval is [start, end) in ns. Intervals of one group may overlap, touch, repeat or be empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def union_length(intervals: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the length of the union of the intervals of each group.

    In order of start, each interval adds what lies beyond the furthest end before it; the sum of
    these additions is the length of the union.

    Parameters
    ----------
    intervals
        ``start, end`` (Int64, ns) and the columns `by`.
    by
        What forms a group; without any, all intervals are one.

    Returns
    -------
    The columns `by` and ``length`` (Int64, ns), one row per group.
    """
    keys = list(by)
    reached = pl.col("end").cum_max().shift(1)
    added = pl.col("end") - pl.max_horizontal("start", reached.over(keys) if keys else reached)
    lengths = intervals.select(*keys, "start", "end").sort("start").with_columns(length=added)
    total = pl.col("length").clip(lower_bound=0).sum()
    if not keys:
        return lengths.select(total)
    return lengths.group_by(keys).agg(total)


def layered_lengths(
    intervals: pl.DataFrame, layer: str, layers: Sequence[str], by: Sequence[str]
) -> pl.DataFrame:
    """Return what each layer covers, and what it covers that no layer before it does.

    Parameters
    ----------
    intervals
        ``start, end``, the column `layer` and the columns `by`.
    layer
        Column that says which layer an interval is of.
    layers
        All layers, the uppermost first.
    by
        What forms a group.

    Returns
    -------
    The columns `by`, `layer`, ``busy_ns`` and ``exposed_ns``; a row per group and layer that occur
    together. In each group the exposed lengths add up to the length of the union of all.
    """
    names = pl.col(layer).cast(pl.String)
    covered = pl.concat(
        union_length(intervals.filter(names.is_in(layers[: depth + 1])), by).with_columns(
            pl.lit(name).cast(intervals.schema[layer]).alias(layer)
        )
        for depth, name in enumerate(layers)
    )
    above = pl.col("length").shift(1)
    exposed = covered.select(
        *by,
        layer,
        exposed_ns=pl.col("length") - (above.over(by) if by else above).fill_null(0),
    )
    busy = union_length(intervals, [*by, layer]).rename({"length": "busy_ns"})
    return busy.join(exposed, on=[*by, layer], how="left", nulls_equal=True)
