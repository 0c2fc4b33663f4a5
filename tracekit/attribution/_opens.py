"""Which start/end ranges are open in a process."""

from __future__ import annotations

import polars as pl


def is_open(launches: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Tell for each ``process, time`` whether any of some ranges is open in the process."""
    changes = (
        pl.concat(
            [
                ranges.select("process", time="start", change=1),
                ranges.select("process", time="end", change=-1),
            ]
        )
        .group_by("process", "time")
        .agg(pl.col("change").sum())
        .sort("time")
        .with_columns(count=pl.col("change").cum_sum().over("process"))
    )
    return (
        launches.with_row_index("row")
        .sort("time")
        .join_asof(changes, on="time", by="process", check_sortedness=False)
        .sort("row")
        .select((pl.col("count") > 0).fill_null(value=False))
        .to_series()
    )
