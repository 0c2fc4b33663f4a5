"""Decide whether a run is a pipeline: numbered parts of passes, or activations sent on."""

from __future__ import annotations

import polars as pl

from tracekit.engine import has_ops
from tracekit.model import Trace

WAITING = r"(?i)(^|[^a-z])(send|recv|receive|isend|irecv)([^a-z]|$)"
"""Ranges on the host in which a stage of a pipeline sends or waits for what it is to work on."""

_PASSES = ("FP", "BP")
_COPIES = ("p2p", "staged")
_SENDS = r"(?i)send|recv"
_MICRO_BATCH = r"(?i)micro[ _-]?batch[ _-]?(\d+)"


def is_pipeline(trace: Trace, waiting: str = WAITING) -> bool:
    """Tell whether anything shows that a run is a pipeline: passes in parts, or handed on."""
    counted = counted_micro_batches(trace) is not None
    return counted or _hands_on(trace, waiting, is_gpu=has_ops(trace))


def _hands_on(trace: Trace, waiting: str, *, is_gpu: bool) -> bool:
    """Tell whether a pass sends to or receives from another stage."""
    if not is_gpu:
        talks = trace["ranges"].filter(pl.col("name").cast(pl.String).str.contains(waiting))
        return not talks.head(1).collect().is_empty()
    passes = trace["ops"].filter(pl.col("stage").is_in(_PASSES))
    copies = passes.filter(pl.col("kind").is_in(_COPIES)).head(1).collect()
    collectives = passes.filter(pl.col("kind") == "collective").select("name").unique().collect()
    sends = collectives["name"].cast(pl.String).str.contains(_SENDS).any()
    return sends or not copies.is_empty()


def counted_micro_batches(trace: Trace) -> int | None:
    """Return how many numbers the micro-batches of forward ranges have."""
    number = pl.col("name").cast(pl.String).str.extract(_MICRO_BATCH)
    forward = trace["ranges"].filter(pl.col("stage") == "FP").select(number)
    found = forward.select(pl.col("name").drop_nulls().n_unique()).collect().item()
    return int(found) or None
