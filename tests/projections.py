"""The GPU time of each range, which `inclusive_ranges` adds up by path, for tests against nsys."""

from __future__ import annotations

import polars as pl

from tracekit.engine._inclusive import SUMS, _work_in_ranges
from tracekit.model import KERNEL_KINDS, Trace


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
    kernels = trace.with_lazy({"ops": trace["ops"].filter(pl.col("kind").is_in(KERNEL_KINDS))})
    found, of_kernels = (
        pl.concat([held.pushed, held.opened], how="diagonal").drop_nulls("first")
        for held in (_work_in_ranges(each, skip=0) for each in (trace, kernels))
    )
    of_kernels = of_kernels.select("range", kernels="ops", kernel_ns="total_ns")
    return found.join(of_kernels, on="range", how="left").select(
        "range", *SUMS, pl.col("kernels", "kernel_ns").fill_null(0), gpu_start="first",
        gpu_end="last",
    ).sort("range")  # fmt: skip
