"""Steps of runs one by one, for figures of their distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.statistics import Skip, outliers
from tracekit.analysis.step_sums import Measured, per_iteration, steps_of

if TYPE_CHECKING:
    from tracekit.model import Trace

STEPS = pl.Schema(
    {
        "side": pl.String,
        "run": pl.String,
        "iteration": pl.Int64,
        "step_ns": pl.Float64,
        "is_outlier": pl.Boolean,
    }
)
"""Columns of a table of steps."""


def step_rows(found: Measured, run: str, side: str | None = None) -> pl.DataFrame:
    """Return the steps of a run, in their order.

    Parameters
    ----------
    found
        What was measured of it.
    run, side
        What it is called, and of which side of a comparison it is.

    Returns
    -------
    ``side, run, iteration, step_ns`` (mean over devices) and ``is_outlier``, of steps that are
    unlike the others. None of a run without iterations.
    """
    if not found.iterations:
        return STEPS.to_frame()
    steps = steps_of(found)
    is_outlier = np.zeros(len(steps), dtype=bool)
    is_outlier[outliers(steps)] = True
    return pl.DataFrame(
        {
            "side": [side] * len(steps),
            "run": [run] * len(steps),
            "iteration": list(found.iterations),
            "step_ns": steps / max(1, found.devices),
            "is_outlier": is_outlier,
        },
        schema=STEPS,
    )


def steps_of_run(trace: Trace, run: str, *, skip: Skip = 0) -> pl.DataFrame:
    """Return the steps of a run (`step_rows`); none if it has no iterations."""
    if trace["iterations"].head(1).collect().is_empty():
        return STEPS.to_frame()
    return step_rows(per_iteration(trace, ("stage",), skip=skip), run)
