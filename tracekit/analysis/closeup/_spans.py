"""Place of each step on each GPU, and the typical and the longest step."""

from __future__ import annotations

import polars as pl

from tracekit.engine import launch_groups, numbered_alike, step_windows
from tracekit.model import Trace, with_clocks

_LENGTH = pl.col("end") - pl.col("start")


def step_spans(trace: Trace) -> pl.DataFrame:
    """Return the span of each step on each GPU; without steps, of the whole run.

    Returns
    -------
    ``process, device, iteration, start, end, clock``; `iteration` is null where no step is known.
    Times of rows with the same `clock` can be compared.
    """
    trace = numbered_alike(trace)
    windows = step_windows(trace, launch_groups(trace))
    known = windows.filter("counts")
    if known.is_empty() and not windows.is_empty():
        known = windows.group_by("process", "device", maintain_order=True).agg(
            pl.col("start").min(), pl.col("end").max(), iteration=pl.lit(None, pl.Int64)
        )
    steps = known.group_by("process", "device", "iteration", maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max()
    )
    processes = with_clocks(trace.read("processes"), trace.read("reports"))
    return steps.join(
        processes.select("process", "clock"), on="process", how="left", maintain_order="left"
    )


def step_lengths(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the length of each step, as the mean over its GPUs.

    Parameters
    ----------
    spans
        As `step_spans` returns them.

    Returns
    -------
    ``iteration, step_ns``, in order of steps; no rows without steps.
    """
    return (
        spans.drop_nulls("iteration")
        .group_by("iteration")
        .agg(step_ns=_LENGTH.mean())
        .sort("iteration")
    )


def median_step(lengths: pl.DataFrame) -> int | None:
    """Return the number of the step of median length, the first of equals; None without steps."""
    if lengths.is_empty():
        return None
    typical = pl.col("step_ns").quantile(0.5, "nearest")
    return int(lengths.filter(pl.col("step_ns") == typical)["iteration"][0])


def slowest_step(lengths: pl.DataFrame) -> int | None:
    """Return the number of the longest step, the first of equals; None without steps."""
    found = lengths.sort("step_ns", "iteration", descending=[True, False])["iteration"]
    return None if found.is_empty() else int(found[0])
