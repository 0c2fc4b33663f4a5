"""Messages of NCCL: what one rank sends to another one by ncclSend, and that receives by ncclRecv.

NCCL pairs them by communicator and order: the n-th send of a rank to another one is the n-th
receive there from it. A message is not received whole before the kernel that sends it has begun.
"""

from __future__ import annotations

import polars as pl

from tracekit.analysis.communication._nccl_calls import (
    collective_kernels,
    made_communicators,
    read_calls,
    with_kernels,
)
from tracekit.model import Trace

_OWN = ("process", "communicator")
_LANE = (*_OWN, "direction", "peer")
NCCL_MESSAGE = {
    "communicator": pl.String, "source": pl.Int64, "target": pl.Int64, "number": pl.Int64,
    "bytes": pl.Int64, "start": pl.Int64, "end": pl.Int64, "sent": pl.Boolean,
}  # fmt: skip


def nccl_messages(trace: Trace) -> pl.DataFrame:
    """Return the messages of NCCL that a report's processes send and receive, numbered.

    Those of communicators alone that were made while their process was recorded, for else it is not
    known which message is the first. None are of a communicator in a process where a send or
    receive names no peer, has several kernels, or was made while another one to the same peer was;
    or of a process that replays collectives in CUDA graphs, which repeat messages without a call.

    Returns
    -------
    The columns of `NCCL_MESSAGE`: when the kernel runs, and whether it sends.
    """
    made = made_communicators(trace).rename({"rank": "here"})
    if made.is_empty():
        return pl.DataFrame(schema=NCCL_MESSAGE)
    kernels = collective_kernels(trace)
    calls = with_kernels(read_calls(trace), kernels)
    sends = calls.filter(pl.col("direction").is_not_null()).join(made, on=_OWN)
    replays = kernels.filter(pl.col("graph_node").is_not_null())
    clear = sends.filter(_is_clear().all().over(_OWN)).join(replays, on="process", how="anti")
    numbered = clear.sort("start").with_columns(number=pl.int_range(pl.len()).over(_LANE))
    is_sent = pl.col("direction") == "send"
    return numbered.join(kernels.select("op", began="start", ended="end"), on="op").select(
        pl.col("communicator"),
        source=pl.when(is_sent).then("here").otherwise("peer").cast(pl.Int64),
        target=pl.when(is_sent).then("peer").otherwise("here").cast(pl.Int64),
        number=pl.col("number").cast(pl.Int64),
        bytes="message_bytes",
        start="began",
        end="ended",
        sent=is_sent,
    )


def _is_clear() -> pl.Expr:
    """Tell of a call which message it is, beyond doubt."""
    named = pl.col("peer", "message_bytes").is_not_null()
    alone = pl.col("ops").list.len().fill_null(0) <= 1
    apart = pl.col("start") >= pl.col("end").shift(1).over(_LANE, order_by="start")
    return pl.all_horizontal(named, alone, apart.fill_null(value=True))
