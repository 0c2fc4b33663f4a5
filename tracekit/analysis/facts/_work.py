"""Choose the basis of a run's times: GPU work, or ranges on the host if there is none."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analysis.facts._needs import how_to_record
from tracekit.engine import Work, has_ops, on_host
from tracekit.errors import MissingDataError
from tracekit.model import Trace

HOST = "host, from NVTX ranges: the run holds no GPU work"
"""What is said of numbers that are not of GPU time."""
_KEYS = ("stage", "iteration", "rank", "node", "range")
"""What ranges on the host can be laid out by."""


def work_of(trace: Trace, keys: Sequence[str] = ("stage",)) -> Work:
    """Return the GPU work of a run, or without any, its ranges on the host.

    Raises
    ------
    MissingDataError
        If the run has neither, or a key is one of GPU work alone.
    """
    if has_ops(trace):
        return Work(trace)
    host = on_host(trace, by_range="range" in keys)
    if not has_ops(host):
        raise MissingDataError(
            f"this run holds neither GPU work nor NVTX ranges that are stages{_held(trace)}",
            f"run the program on a GPU, and record with {how_to_record(trace, 'ops')}; or name your"
            " ranges with --rules",
        )
    for key in keys:
        if key not in _KEYS:
            raise MissingDataError(
                f"this run holds no GPU work, so there is nothing by {key}",
                f"record with {how_to_record(trace, 'ops')}; ranges can be laid out by"
                f" {', '.join(_KEYS)}",
            )
    return Work(host, is_host=True)


def _held(trace: Trace) -> str:
    """Say what a recording holds of a program that used no GPU, the most first."""
    contents = trace.read("contents").filter(pl.col("rows") > 0).sort("rows", descending=True)
    rows = contents.select("rows", "feature").unique("feature", maintain_order=True).head(3)
    held = ", ".join(f"{count:,} rows of {feature}" for count, feature in rows.iter_rows())
    return f", but {held}" if held else ""
