"""Exposed communication of a step: time in which only communication runs."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.idle_account import merged
from tracekit.engine import inside_steps, layered_lengths
from tracekit.model import Trace
from tracekit.support.batches import at_least_one

_KINDS = ("collective", "p2p", "staged")
_OPS = ("process", "device", "start", "end")
_OWNER = ("process", "device", "iteration")


def exposed_communication(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the time in which only communication runs on a GPU, step by step.

    Communication is kernels of collectives, and copies between GPUs, through the host or not. It is
    exposed while nothing else runs on its GPU.

    Parameters
    ----------
    trace
        The run.
    spans
        As `step_spans` returns them.

    Returns
    -------
    ``process, device, iteration, step_ns, communication_ns, exposed_ns``: a row for each of
    `spans`; lengths of unions.
    """
    layer = pl.when(pl.col("kind").is_in(_KINDS)).then(pl.lit("communication"))
    ops = trace["ops"].select(*_OPS, layer=layer.otherwise(pl.lit("work")))
    windows = spans.select(*_OWNER, "start", "end", counts=pl.lit(value=True))
    ordered = windows.sort("process", "device", "start")
    pieces = pl.concat(
        merged(inside_steps(batch, ordered), ["window", "layer"]) for batch in at_least_one(ops)
    )
    numbered = ordered.with_row_index("window")
    lengths = layered_lengths(pieces, "layer", ("work", "communication"), ("window",))
    found = lengths.filter(layer="communication").select(
        "window", "exposed_ns", communication_ns="busy_ns"
    )
    return (
        numbered.join(found, on="window", how="left", maintain_order="left")
        .select(
            *_OWNER,
            pl.col("communication_ns", "exposed_ns").fill_null(0),
            step_ns=pl.col("end") - pl.col("start"),
        )
        .select(*_OWNER, "step_ns", "communication_ns", "exposed_ns")
    )
