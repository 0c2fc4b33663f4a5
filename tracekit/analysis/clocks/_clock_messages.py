"""Which messages of two reports are the same ones, beyond doubt, and which arrive before they left.

Messages of MPI from one rank to another, of one tag on one communicator, are received in the order
in which they were sent. So where both sides were recorded from MPI_Init on, the n-th that is sent
is the n-th that is received. So it is with those of NCCL, which have no tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.analysis.clocks._clock_fit import ENOUGH, MOST_VIOLATIONS, SLACK
from tracekit.analysis.clocks._clock_nccl import nccl_messages
from tracekit.analysis.communication._mpi_order import from_the_start
from tracekit.model import Clock, Trace

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


@dataclass(frozen=True)
class Arrivals:
    """How messages that match beyond doubt arrive.

    Parameters
    ----------
    messages
        How many there are whose receiver waits for them.
    early
        How many of these are received, by more than 2 us, before they begin to be sent.
    """

    messages: int
    early: int

    @property
    def refused(self) -> str | None:
        """Why a clock under which they arrive so is not believed; None where it may be."""
        if self.messages < ENOUGH or self.early <= MOST_VIOLATIONS * self.messages:
            return None
        return (
            f"{self.early:,} of {self.messages:,} messages that match beyond doubt are received"
            " before they are sent"
        )


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


def arrivals(own: pl.DataFrame, others: pl.DataFrame, clock: Clock) -> Arrivals | None:
    """Return how messages between two reports arrive; None where none match beyond doubt.

    Parameters
    ----------
    own, others
        Of `messages`.
    clock
        What sets the times of the other report to those of this one.
    """
    if own.is_empty() or others.is_empty():
        return None
    moved = others.with_columns(clock.moved(name).alias(name) for name in ("start", "end"))
    pairs = pl.concat([_pairs(own, moved), _pairs(moved, own)])
    if pairs.is_empty():
        return None
    early = pairs["received"] < pairs["sent_at"] - SLACK
    return Arrivals(pairs.height, int(early.sum()))


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
    """Return the processes of which some calls may take part in any message."""
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
