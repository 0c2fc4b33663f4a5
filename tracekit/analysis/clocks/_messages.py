"""Match messages between two reports, beyond doubt.

Messages of MPI from one rank to another, of one tag on one communicator, are received in the order
in which they were sent. So where both sides were recorded from MPI_Init on, the n-th that is sent
is the n-th that is received. So it is with those of NCCL, which have no tags: the n-th send of a
rank to another one is the n-th receive there from it. A message is not received whole before the
call or kernel that sends it has begun.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analysis.calls import (
    collective_kernels,
    from_the_start,
    made_communicators,
    read_calls,
    with_kernels,
)
from tracekit.analysis.clocks._fit import Messages
from tracekit.model import Trace

_OWN = ("process", "communicator")
_NCCL_LANE = (*_OWN, "direction", "peer")
NCCL_MESSAGE = {
    "communicator": pl.String, "source": pl.Int64, "target": pl.Int64, "number": pl.Int64,
    "bytes": pl.Int64, "start": pl.Int64, "end": pl.Int64, "sent": pl.Boolean,
}  # fmt: skip
_SEND = r"^P?MPI_(I[brs]?send|[BRS]?[Ss]end)(_c)?$"
_RECEIVE = r"^P?MPI_I?[Rr]ecv(_c)?$"
_WAITS = r"^P?MPI_Recv(_c)?$"
"""A function that returns once the message has arrived."""
_PROBE = r"^P?MPI_I?[Pp]robe$"
"""Functions that neither send nor receive."""
_PERSISTENT = r"^P?MPI_Start(all)?$"
_WITHIN = ["source", "target", "tag"]
_LANE = ["communicator", *_WITHIN]
_MESSAGE = [*_LANE, "number"]
_NONE = pl.DataFrame(
    schema={"communicator": pl.String,
            **dict.fromkeys((*_WITHIN, "number", "bytes", "start", "end"), pl.Int64),
            "sent": pl.Boolean, "waits": pl.Boolean}
)  # fmt: skip


def messages(traces: Sequence[Trace]) -> list[pl.DataFrame]:
    """Return the messages of MPI and NCCL that each report sends and receives, numbered.

    None are where it is not beyond doubt what they are; of NCCL see `nccl_messages`.

    Returns
    -------
    Of each report ``communicator, source, target, tag, number, bytes, start, end, sent, waits``.
    """
    of_mpi = _mpi_messages(traces)
    return [
        pl.concat([_NONE, own, _with_tag(nccl_messages(trace))])
        for trace, own in zip(traces, of_mpi, strict=True)
    ]


def _with_tag(found: pl.DataFrame) -> pl.DataFrame:
    """Return messages of NCCL, which have no tag, and are there when their kernel has ended."""
    return found.with_columns(tag=pl.lit(0, pl.Int64), waits=pl.lit(value=True)).select(
        _NONE.columns
    )


def _mpi_messages(traces: Sequence[Trace]) -> list[pl.DataFrame]:
    """Return those of MPI.

    None are where a rank of the job is not there or was not recorded from MPI_Init on, or where a
    process receives from any source or of any tag, both sends and receives in one call, starts
    persistent requests, or has several communicators of all ranks. Messages within that
    communicator alone count, since ranks mean the same there.
    """
    begun = [from_the_start(trace) for trace in traces]
    ranks = pl.concat([each["rank"] for each in begun]).sort().to_list()
    if len(ranks) < 2 or ranks != list(range(len(ranks))):  # noqa: PLR2004
        return [_NONE for _ in traces]
    return [_numbered(trace, own, len(ranks)) for trace, own in zip(traces, begun, strict=True)]


def passed(own: pl.DataFrame, others: pl.DataFrame) -> Messages:
    """Return messages between two reports that match beyond doubt and were waited for.

    Parameters
    ----------
    own, others
        Of `messages`.
    """
    if own.is_empty() or others.is_empty():
        return Messages.none()
    there, back = _pairs(own, others), _pairs(others, own)
    columns = there["sent_at"], there["received"], back["received"], back["sent_at"]
    return Messages(*(times.to_numpy() for times in columns))


def _pairs(senders: pl.DataFrame, receivers: pl.DataFrame) -> pl.DataFrame:
    """Return when messages begin to be sent and when they have been received."""
    sent, received = senders.filter("sent"), receivers.filter(~pl.col("sent"))
    both = sent.join(received, on=_MESSAGE, suffix="_received")
    alike = pl.col("bytes").eq(pl.col("bytes_received")).fill_null(value=False)
    # One that differs tells that others of its lane may be mistaken as well.
    sure = both.filter(alike.all().over(_LANE), pl.col("waits_received"))
    return sure.select(sent_at="start", received="end_received")


def _numbered(trace: Trace, begun: pl.DataFrame, ranks: int) -> pl.DataFrame:
    calls = _calls(trace).join(begun.rename({"rank": "here"}), on="process")
    if calls.is_empty():
        return _NONE
    ours = calls.filter(pl.col("ranks") == ranks)
    alone = pl.col("communicator").n_unique().over("process") == 1
    clear = ours.join(_doubtful(calls), on="process", how="anti").filter(alone)
    peer = pl.col("remote_rank")
    placed = clear.with_columns(
        sent=pl.col("name").str.contains(_SEND), waits=pl.col("name").str.contains(_WAITS)
    ).with_columns(
        source=pl.when("sent").then("here").otherwise(peer).cast(pl.Int64),
        target=pl.when("sent").then(peer).otherwise("here").cast(pl.Int64),
    )
    return (
        placed.filter("sent" | pl.col("name").str.contains(_RECEIVE))
        .sort("start", "end")
        .with_columns(
            number=pl.int_range(pl.len()).over("sent", *_WITHIN), communicator=pl.lit("mpi")
        )
        .select(_NONE.columns)
    )


def _doubtful(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the processes with calls that may match any message."""
    name = pl.col("name")
    plain = name.str.contains(_SEND) | name.str.contains(_RECEIVE)
    known = pl.all_horizontal(pl.col("tag", "remote_rank").is_not_null())
    return calls.filter(
        ~((plain & known) | name.str.contains(_PROBE))
    ).select("process").unique()  # fmt: skip


def _calls(trace: Trace) -> pl.DataFrame:
    """Return the calls of MPI that have to do with messages."""
    of_messages = (pl.col("group") == "p2p") | pl.col("name").str.contains(_PERSISTENT)
    return (
        trace["host"]
        .filter(pl.col("library") == "mpi", of_messages)
        .select("process", "start", "end", "name", "bytes", "tag", "remote_rank", "communicator",
                "ranks")
        .collect()
    )  # fmt: skip


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
    numbered = clear.sort("start").with_columns(number=pl.int_range(pl.len()).over(_NCCL_LANE))
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
    apart = pl.col("start") >= pl.col("end").shift(1).over(_NCCL_LANE, order_by="start")
    return pl.all_horizontal(named, alone, apart.fill_null(value=True))
