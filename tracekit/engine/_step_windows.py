"""The steps of each device as windows, and what of some spans lies inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.engine._steps import counted_steps, with_steps
from tracekit.engine._windows import chosen_windows, cut

if TYPE_CHECKING:
    from tracekit.model import Trace

_OWNER = ["process", "device"]


def step_windows(trace: Trace, ops: pl.DataFrame, skip: int = 0) -> pl.DataFrame:
    """Return the windows of each device; without iterations, from its first op to its last one.

    Parameters
    ----------
    trace
        The run, its iterations numbered alike.
    ops
        Its ops: ``process, device, start, end, launch_start, launch_thread, stage, iteration``.
    skip
        How many iterations to leave out at the beginning.

    Returns
    -------
    ``process, device, iteration, start, end, counts``: whether it is part of a step that counts, or
    the whole of a run without any.
    """
    columns = [*_OWNER, "iteration", "start", "end", "counts"]
    iterations = trace.read("iterations")
    if iterations.is_empty() and not skip:
        whole = ops.group_by(_OWNER).agg(pl.col("start").min(), pl.col("end").max()).sort(_OWNER)
        return whole.with_columns(
            iteration=pl.lit(None, pl.Int64), counts=pl.lit(value=True)
        ).select(columns)
    windows = chosen_windows(trace, ops, skip=0, per_iteration=True)
    steps = counted_steps(with_steps(windows), iterations, skip).windows
    return steps.with_columns(counts=pl.col("iteration").is_not_null()).select(columns)


def inside_steps(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of spans that lie in windows that count.

    Parameters
    ----------
    spans
        ``process, device, start, end``, and others.
    windows
        As `step_windows` returns them.
    """
    counted = windows.with_row_index("window").filter("counts")["window"]
    pieces = cut(spans, windows.drop("counts"))
    return pieces.filter(pl.col("window").is_in(counted.implode()))
