"""Which times of a run can be compared with each other."""

from __future__ import annotations

import polars as pl


def with_clocks(rows: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Add ``clock``: rows with the same one have times that can be compared.

    Reports of one run have been set to one clock where that is known; others are on their own.
    """
    known = reports.select("report", "clock")
    joined = rows.join(known, on="report", how="left", maintain_order="left")
    return joined.with_columns(clock=pl.coalesce("clock", pl.format("report {}", "report")))
