"""What lies inside some spans of GPUs: their ops, and the ranges of those who launch them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracekit.model import Trace

_OWNER = ["process", "device"]


def ops_inside(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that start in a span of their process and GPU, in order of time.

    Parameters
    ----------
    trace
        The run.
    spans
        ``process, device, start, end``; no two of one GPU and process overlap.

    Returns
    -------
    The columns of ``ops``.
    """
    bounds = spans.select(*_OWNER, span_start="start", span_end="end").lazy()
    inside = (pl.col("start") >= pl.col("span_start")) & (pl.col("start") < pl.col("span_end"))
    found = trace["ops"].join(bounds, on=_OWNER).filter(inside).drop("span_start", "span_end")
    return found.sort("start", "op").collect()


def ranges_inside(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the NVTX ranges that are open while their process is in one of some spans.

    Parameters
    ----------
    trace
        The run.
    spans
        ``process, start, end``, one row per process.

    Returns
    -------
    The columns of ``ranges``, in order of time; those around others first.
    """
    bounds = spans.select("process", span_start="start", span_end="end").lazy()
    touches = (pl.col("start") < pl.col("span_end")) & (pl.col("end") > pl.col("span_start"))
    found = trace["ranges"].join(bounds, on="process").filter(touches)
    return found.drop("span_start", "span_end").sort("start", "depth").collect()
