"""Decide whether a run is a pipeline: numbered parts of passes, or activations sent on."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.engine import has_ops
from tracekit.model import Trace

WAITING = r"(?i)(^|[^a-z])(send|recv|receive|isend|irecv)([^a-z]|$)"
"""Ranges on the host in which a stage of a pipeline sends or waits for what it is to work on."""

_PASSES = ("FP", "BP")
_COPIES = ("p2p", "staged")
_SENDS = r"(?i)send|recv"
_GROUPS = ("all_to_all", "gather", "scatter")
"""Collectives that NCCL runs as sends and receives of all ranks."""
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
    return _sends(trace, passes) or not copies.is_empty()


def _sends(trace: Trace, passes: pl.LazyFrame) -> bool:
    """Tell whether a pass sends or receives, other than in a collective of all ranks."""
    collectives = passes.filter(pl.col("kind") == "collective").select("op", "name").collect()
    sending = collectives.filter(pl.col("name").cast(pl.String).str.contains(_SENDS))
    if sending.is_empty():
        return False
    calls = collective_calls(trace).select("op", pl.col("collective").cast(pl.String))
    others = calls.filter(pl.col("collective").is_in(_GROUPS))
    return not sending.join(others, on="op", how="anti").is_empty()


def counted_micro_batches(trace: Trace) -> int | None:
    """Return how many numbers the micro-batches of forward ranges have."""
    number = pl.col("name").cast(pl.String).str.extract(_MICRO_BATCH)
    forward = trace["ranges"].filter(pl.col("stage") == "FP").select(number)
    found = forward.select(pl.col("name").drop_nulls().n_unique()).collect().item()
    return int(found) or None
