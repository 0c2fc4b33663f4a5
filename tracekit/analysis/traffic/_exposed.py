"""Exposed transfers: the time in which a transfer runs and its GPU computes nothing."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.model import Trace, with_clocks

_OF_GPU = ["device", "clock"]


def computing_times(trace: Trace) -> pl.DataFrame:
    """Return the intervals in which GPUs compute.

    Returns
    -------
    ``device, clock, start, end``, sorted by start; intervals of one device and clock neither
    overlap nor touch. A device that never computes has one interval of length 0 on its file's
    clock.
    """
    reports = trace.read("reports")
    ops = trace["ops"].filter(pl.col("kind").cast(pl.String) == "compute")
    ran = ops.select("report", "device", "start", "end").collect()
    zero = pl.lit(0, pl.Int64)
    known = trace.read("devices").select("report", "device", start=zero, end=zero)
    timed = with_clocks(pl.concat([ran, known], how="vertical_relaxed"), reports).sort("start")
    reach = pl.col("end").cum_max().shift(1).over(_OF_GPU)
    begins = (pl.col("start") > reach).fill_null(value=True)
    return (
        timed.with_columns(number=begins.cast(pl.Int64).cum_sum().over(_OF_GPU))
        .group_by(*_OF_GPU, "number")
        .agg(pl.col("start").min(), pl.col("end").max())
        .select(*_OF_GPU, "start", "end")
        .sort("start")
    )


def exposed_parts(intervals: pl.DataFrame, computing: pl.DataFrame) -> pl.DataFrame:
    """Subtract from intervals the time in which their GPU computes.

    Parameters
    ----------
    intervals
        ``device, clock, start, end`` and other columns.
    computing
        Result of `computing_times`.

    Returns
    -------
    The columns of `intervals`, one row per remaining part; ``start`` and ``end`` are null if the
    GPU is on another clock, or unknown.
    """
    own = computing.partition_by(_OF_GPU, as_dict=True)
    parts = [
        _left(rows, own[gpu]) if gpu in own else rows.with_columns(start=None, end=None)
        for gpu, rows in intervals.partition_by(_OF_GPU, as_dict=True).items()
    ]
    return pl.concat([intervals.clear(), *parts], how="vertical_relaxed")


def _left(rows: pl.DataFrame, computing: pl.DataFrame) -> pl.DataFrame:
    """Return what computing leaves of one GPU's intervals: parts before, between and after it."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    begins, ends = computing["start"].to_numpy(), computing["end"].to_numpy()
    first = np.searchsorted(ends, start, side="right")
    number = np.maximum(np.searchsorted(begins, end, side="left") - first, 0)
    row = np.repeat(np.arange(rows.height), number + 1)
    place = np.arange(row.size) - np.repeat(np.cumsum(number + 1) - number - 1, number + 1)
    after = (first[row] + place).clip(0, begins.size - 1)
    before = (first[row] + place - 1).clip(0, ends.size - 1)
    return (
        rows[row]
        .with_columns(
            start=pl.Series(np.where(place == 0, start[row], ends[before])),
            end=pl.Series(np.where(place == number[row], end[row], begins[after])),
        )
        .filter(pl.col("start") < pl.col("end"))
    )
