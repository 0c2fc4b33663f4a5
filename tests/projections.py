"""The GPU time of each range, which `inclusive_ranges` adds up by path, for tests against nsys."""

from __future__ import annotations

import polars as pl

from tracekit.engine import Work
from tracekit.engine._inclusive import SUMS, _work_in_ranges
from tracekit.model import Trace


def projected_ranges(trace: Trace) -> pl.DataFrame:
    """Return the GPU time of each range, from its first op to its last, nested ranges included.

    Parameters
    ----------
    trace
        The run.

    Returns
    -------
    ``range``, the number of a range that launched work; ``ops`` and ``total_ns``, number and summed
    durations of its ops; ``kernels`` and ``kernel_ns``, the same of its kernels; ``gpu_start`` and
    ``gpu_end``, the first start and last end of its ops on any device.
    """
    held = _work_in_ranges(Work(trace), skip=0)
    columns = ("range", *SUMS, pl.col("first").alias("gpu_start"), pl.col("last").alias("gpu_end"))
    both = pl.concat([some.select(columns) for some in (held.pushed, held.opened)])
    return both.drop_nulls("gpu_start").sort("range")
