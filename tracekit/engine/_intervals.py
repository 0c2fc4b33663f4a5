"""Lengths of unions of intervals, for frames in any order.

An interval is [start, end) in ns. Intervals of one group may overlap, touch, repeat or be empty.
The ops of a whole run are added up by `StageTally` and `GroupTally` instead, in one pass by start;
a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

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
    if len(keys) == 1 and isinstance(ordered.schema[keys[0]], pl.Enum):
        return _of_values(ordered, keys[0])
    length = COVERED.alias("length")
    return ordered.group_by(keys).agg(length) if keys else ordered.select(length)


def layered_lengths(
    intervals: pl.DataFrame, layer: str, layers: Sequence[str], by: Sequence[str]
) -> pl.DataFrame:
    """Return the covered length of each layer, and the part that no higher layer covers.

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
    ordered = _by_start(intervals.select(*by, layer, "start", "end"))
    present = set(ordered[layer].unique())
    names = [name for name in layers if name in present]
    wanted = layers_down(layer, names)
    found = covered_by(ordered, wanted, by).lazy()
    layered = [
        found.select(
            *by,
            pl.lit(name).cast(intervals.schema[layer]).alias(layer),
            busy_ns=f"busy {name}",
            exposed_ns=pl.col(f"down to {name}")
            - (pl.col(f"down to {above}").fill_null(0) if above is not None else 0),
        )
        for above, name in zip([None, *names], names, strict=False)
    ]
    nothing = intervals.lazy().clear().select(*by, layer, busy_ns="start", exposed_ns="end")
    return pl.concat([nothing, *layered]).drop_nulls("busy_ns").collect()


def layers_down(layer: str, names: Sequence[str]) -> dict[str, pl.Expr]:
    """Return masks of the intervals of each layer, and of each layer with all above it.

    Parameters
    ----------
    layer
        Name of the column with an interval's layer.
    names
        The layers, the highest first.

    Returns
    -------
    Two masks per layer: ``busy NAME`` and ``down to NAME`` -> expression.
    """
    wanted: dict[str, pl.Expr] = {}
    together = None
    for name in names:
        own = pl.col(layer) == name
        together = own if together is None else together | own
        wanted |= {f"busy {name}": own, f"down to {name}": together}
    return wanted


def covered_by(
    ordered: pl.DataFrame, wanted: Mapping[str, pl.Expr], by: Sequence[str]
) -> pl.DataFrame:
    """Return the lengths of several unions at once.

    Parameters
    ----------
    ordered
        Intervals ordered by start.
    wanted
        Unions to measure: name of the new column -> mask of the intervals.
    by
        Columns that define a group.

    Returns
    -------
    The columns `by` and those of `wanted`, ns; null if a group has no interval in the union.
    """
    distinct: dict[str, pl.Expr] = {}
    same = {}
    for name, where in wanted.items():
        same[name] = next((n for n, known in distinct.items() if known.meta.eq(where)), name)
        distinct.setdefault(same[name], where)
    # To pick rows first takes less time than to pick values in each of several expressions.
    picked = [
        ordered.lazy().filter(where).group_by(by).agg(COVERED.alias(name)) if by
        else ordered.lazy().filter(where).select(COVERED.alias(name))
        for name, where in distinct.items()
    ]  # fmt: skip
    lengths = pl.collect_all(picked)
    if by:
        table = ordered.select(by).unique()
        for length in lengths:
            table = table.join(length, on=list(by), how="left", nulls_equal=True)
    else:
        table = pl.concat(lengths, how="horizontal") if lengths else pl.DataFrame()
    return table.select(*by, *(pl.col(known).alias(name) for name, known in same.items()))


def _by_start(intervals: pl.DataFrame) -> pl.DataFrame:
    # Looking costs a tenth of sorting what is in order.
    return intervals if intervals["start"].is_sorted() else intervals.sort("start")


def _of_values(ordered: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return the union per value of a column with few values; filtering is faster than grouping."""
    values = ordered[key].unique()
    wanted = {
        f"{number}": pl.col(key).eq_missing(pl.lit(value, values.dtype))
        for number, value in enumerate(values)
    }
    found = covered_by(ordered, wanted, ())
    return pl.DataFrame(
        {key: values, "length": [found[name].item() for name in wanted]},
        schema={key: values.dtype, "length": pl.Int64},
    )
