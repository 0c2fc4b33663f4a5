"""Tracks of a run: spans of each stage on each GPU, and causes of idle time."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.idle_account import idle_pieces, merged
from tracekit.engine import cut, inside_steps
from tracekit.model import Trace

_OWNER = ["process", "device"]


def whole_spans(trace: Trace) -> pl.DataFrame:
    """Return the whole working time of each GPU by process: ``process, device, start, end``."""
    edges = trace["ops"].group_by(_OWNER).agg(pl.col("start").min(), pl.col("end").max())
    return edges.sort(_OWNER).collect()


def stage_spans(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans of each GPU covered by ops of each stage, inside some spans.

    Parameters
    ----------
    trace
        The run.
    spans
        ``process, device, start, end``; no two of one process and GPU overlap.

    Returns
    -------
    ``device, stage, start, end``; no two of one GPU and stage overlap or touch, so that their
    lengths add up to its busy time.
    """
    ops = trace["ops"].select(*_OWNER, "stage", "start", "end").collect()
    windows = spans.select(
        *_OWNER, "start", "end", iteration=pl.lit(None, pl.Int64), counts=pl.lit(value=True)
    )
    pieces = inside_steps(ops, windows.sort(*_OWNER, "start"))
    return merged(pieces.filter(pl.col("end") > pl.col("start")), ["device", "stage"])


def idle_spans(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return idle spans of each GPU inside some spans, with their causes.

    Parameters
    ----------
    trace
        The run.
    spans
        ``device, start, end``.

    Returns
    -------
    ``device, start, end, cause``, in order of time on each GPU.
    """
    windows = spans.group_by("device").agg(pl.col("start").min(), pl.col("end").max())
    windows = windows.sort("device").select(
        "device",
        "start",
        "end",
        process=pl.lit(None, pl.Int32),
        iteration=pl.lit(None, pl.Int64),
    )
    _, pieces = idle_pieces(trace, windows)
    inside = cut(pieces, windows).filter(pl.col("end") > pl.col("start"))
    return inside.select("device", "start", "end", pl.col("cause").cast(pl.String)).sort(
        "device", "start"
    )
