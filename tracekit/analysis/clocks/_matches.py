"""Match calls and messages between two trace files where the match is certain.

Messages of MPI from one rank to another, of one tag on one communicator, are received in the order
in which they were sent. So if both sides were recorded from MPI_Init on, the n-th message sent is
the n-th received. NCCL has no tags: the n-th send of one rank to another is the n-th receive there
from it. A message is not complete at the receiver before the call or kernel that sends it has
begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from tracekit.analysis.calls import (
    TOGETHER,
    annotated_calls,
    collective_kernels,
    ends_by_arrivals,
    from_the_start,
    made_communicators,
    participants,
    read_calls,
    with_kernels,
)
from tracekit.analysis.clocks._fit import SLACK, Fit, Ints, Messages, Pairs, fit, in_order
from tracekit.model import Trace

_JOINT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives in which every participant waits for something of every other one."""
_MOST = 4096
"""Maximum number of calls compared per lane."""
_MOST_LANES = 64
"""Maximum number of streams compared per report, those with most calls."""
_MOST_TRIES = 48
"""Maximum number of pairs of streams compared for two reports."""
_NUMBER = ("group", "operation", "call_sequence")
_TIMES = ("start", "end")
_JOINT_CALLS = {
    "library": pl.String, "operation": pl.String, "communicator": pl.String, "ranks": pl.Int32,
    "call_sequence": pl.Int64, "message_bytes": pl.Int64, "process": pl.Int32,
    "device": pl.Int32, "context": pl.Int32, "stream": pl.Int64, "start": pl.Int64,
    "end": pl.Int64,
}  # fmt: skip
_NO_CALLS = "they have no calls in common that all ranks make together"
_OWN = ("process", "communicator")
_NCCL_LANE = (*_OWN, "direction", "peer")
_NCCL_MESSAGE = {
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


@dataclass(frozen=True)
class Calls:
    """Collective calls of one trace file that can align clocks (`joint_calls`), in two tables."""

    lanes: pl.DataFrame
    """``group, lane, place, stream, operation, size, start, end`` (ns), sorted by time. A group of
    ranks has the same name in all files; ``lane`` is the id of a participant or its stream,
    ``place`` the number of the (process, GPU) pair in the file."""
    numbered: pl.DataFrame
    """Calls with a sequence number: ``group, operation, call_sequence, start, end, size``."""
    numbers_messages: bool
    """Whether `messages` can number the file's messages: an MPI_Init or the creation of an NCCL
    communicator was recorded."""

    def of_groups(self, names: Mapping[str, str]) -> Calls:
        """Return all calls of groups in `names` (old -> new name), renamed, in table `lanes`."""
        numbered = self.numbered.with_columns(
            lane=-1 - pl.col("group").rank("dense").cast(pl.Int64), place=pl.lit(0, pl.Int64),
            stream=pl.lit(None, pl.Int64),
        ).sort("start")  # fmt: skip
        rows = pl.concat([self.lanes, numbered.select(self.lanes.columns)], how="vertical_relaxed")
        known = rows.filter(pl.col("group").is_in(list(names)))
        lanes = known.with_columns(pl.col("group").replace(names))
        return replace(self, lanes=lanes, numbered=self.numbered.clear())

    @cached_property
    def groups(self) -> frozenset[str]:
        """Names of all groups of ranks."""
        return frozenset(pl.concat([self.lanes["group"], self.numbered["group"]]).unique())

    @cached_property
    def named(self) -> frozenset[str]:
        """Names, as ``nccl 0x...``, of the communicators with a known id in this trace file."""
        return frozenset(name for name in self.groups if name.startswith("nccl 0x"))

    @cached_property
    def counted(self) -> pl.DataFrame:
        """``group, lane, place, stream, len``: number of calls (``len``) per participant or stream.

        ``place`` is the number of the (process, GPU) pair.
        """
        lanes = self.lanes.group_by("group", "lane", "place", "stream", maintain_order=True)
        return lanes.agg(pl.len())

    @cached_property
    def by_lane(self) -> dict[tuple[object, ...], pl.DataFrame]:
        """Calls of each lane (participant or stream); a key is its id, as a tuple of one number."""
        return self.lanes.partition_by("lane", as_dict=True)


def named_alike(
    calls: Calls, others: Calls, same: Callable[[], pl.DataFrame]
) -> tuple[Calls, Calls]:
    """Rename groups of ranks so that both files' calls use the same name for the same group.

    nsys and PyTorch number calls and name groups differently: if one file is of nsys and the other
    of PyTorch, only groups matched by `same()` (see `same_groups`) are kept, without call numbers.
    """
    of_pytorch, of_others = (
        any(name.startswith("nccl pg ") for name in each.groups) for each in (calls, others)
    )
    if of_pytorch == of_others or not (calls.named or others.named):
        return calls, others
    prefixed = same().select(pl.format("nccl {}", pl.all()).name.keep())
    names = dict(prefixed.rows()) | {name: name for name in prefixed["communicator"]}
    return calls.of_groups(names), others.of_groups(names)


def clock_calls(trace: Trace) -> Calls:
    """Return one trace file's calls from which its clock offset to others can be computed."""
    calls = _grouped(joint_calls(trace))
    columns = ["group", "lane", "place", "stream", "operation", "size", *_TIMES]
    counts = not (made_communicators(trace).is_empty() and from_the_start(trace).is_empty())
    return Calls(calls.filter(~_is_numbered()).select(columns), _once(calls), counts)


def joint_calls(trace: Trace) -> pl.DataFrame:
    """Return one file's collective calls that no participant leaves before all have entered.

    These are all_reduce, all_gather, reduce_scatter, all_to_all and barriers, and kernels of NCCL
    that both send and receive.

    Returns
    -------
    ``library, operation, communicator, ranks, call_sequence, message_bytes, process, device,
    context, stream, start, end`` (ns), in order of time.
    """
    if not _may_have_calls(trace):
        return pl.DataFrame(schema=_JOINT_CALLS)
    rows = participants(trace)
    both = (pl.col("sends") > 0) & (pl.col("sends") < pl.col("api_calls"))
    is_joint = pl.col("collective").is_in(_JOINT) | (both & (pl.col("kind") == "send_recv"))
    return (
        rows.filter(is_joint.fill_null(value=False))
        .rename({"collective": "operation"})
        .select(_JOINT_CALLS.keys())
        .sort("start", "end")
    )


def _may_have_calls(trace: Trace) -> bool:
    """Test quickly if a file has collectives or MPI calls, without which `joint_calls` is empty."""
    places = (
        trace["ops"].filter(pl.col("kind") == "collective"),
        trace["host"].filter(pl.col("library") == "mpi"),
        annotated_calls(trace),
    )
    return any(rows.select("process").head(1).collect().height for rows in places)


def _is_numbered() -> pl.Expr:
    return pl.col("call_sequence").is_not_null() & (
        (pl.col("library") == "nccl") & (pl.col("operation") != "send_recv")
    )


def _grouped(calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``group`` (of ranks), ``lane`` and ``size`` to the `joint_calls` of a trace file.

    ``group`` is the NCCL communicator; for MPI, whose handles are valid in one process only, its
    number of ranks; else ``unknown``. ``lane`` numbers the participants (process, GPU) of a known
    NCCL communicator, of which only the one with most calls is kept; elsewhere it numbers streams.
    """
    named = pl.when(pl.col("library") == "mpi").then(
        pl.format("{} ranks", pl.col("ranks"))
    ).otherwise("communicator")  # fmt: skip
    known = calls.with_columns(group=pl.format("{} {}", "library", named.fill_null("unknown")))
    is_sure = (pl.col("library") == "nccl") & pl.col("communicator").is_not_null()
    of_lane = pl.struct("group", "process", "device", *(
        pl.when(~is_sure).then(name).alias(name) for name in ("context", "stream")
    ))  # fmt: skip
    # Participants may differ in the sizes of other operations.
    size = pl.when(pl.col("operation") == "all_reduce").then("message_bytes")
    lanes = known.with_columns(
        lane=of_lane.rank("dense").cast(pl.Int64), size=size, is_sure=is_sure,
        place=pl.struct("process", "device").rank("dense").cast(pl.Int64),
    )  # fmt: skip
    largest = (
        lanes.group_by("group", "is_sure", "lane")
        .len()
        .sort(-pl.col("len").cast(pl.Int64), "lane")
        .filter(~pl.col("is_sure") | pl.col("group").is_first_distinct())
        .head(_MOST_LANES)
    )
    keep = pl.col("lane").is_in(largest["lane"].implode()) | _is_numbered()
    return lanes.filter(keep.fill_null(value=False))


def best_fit(calls: Calls, others: Calls, messages: Messages) -> tuple[Fit, Pairs] | str:
    """Estimate the difference of two files' clocks from matched calls and from `messages`.

    Possible matches of calls are tried, surest first, until a fit is accepted (not refused).

    Returns
    -------
    A fit and its matched calls: the accepted fit, else the refused fit with most calls. If no calls
    match, the accepted fit to messages alone, else a sentence with the reason.
    """
    best: tuple[Fit, Pairs] | None = None
    why = _NO_CALLS
    for pairs in _all_pairs(calls, others):
        if isinstance(pairs, str):
            why = pairs
            continue
        found = fit(pairs, messages)
        if found.refused is None:
            return found, pairs
        if best is None or found.calls > best[0].calls:
            best = found, pairs
    if best is None and len(messages):
        found = fit(Pairs.none(), messages)
        return (found, Pairs.none()) if found.refused is None else why
    return best or why


def _all_pairs(calls: Calls, others: Calls) -> Iterator[Pairs | str]:
    """Yield candidate matches of two files' calls, surest first.

    For two streams that do not match it yields the reason instead.
    """
    numbered = _numbered(calls.numbered, others.numbered)
    if numbered is not None:
        yield numbered
    for stream, other_stream, is_one_of_several in _lanes(calls, others):
        pairs = _by_order(stream, other_stream)
        if isinstance(pairs, str) or not is_one_of_several or _end_together(pairs):
            yield pairs
        else:
            yield "their calls do not end together"


def _lanes(calls: Calls, others: Calls) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, bool]]:
    """Yield pairs of streams, one per file, that may run one group of ranks' calls.

    The third value is whether the group has further pairs of streams. Streams with the same number,
    on the n-th process and GPU in both files, come first.
    """
    both = calls.counted.join(others.counted, on="group", suffix="_other")
    shorter = pl.min_horizontal("len", "len_other").cast(pl.Int64)
    order = both.with_columns(
        several=(pl.len().over("group") > 1),
        alike=(pl.col("stream") == pl.col("stream_other")).cast(pl.Int8)
        + (pl.col("place") == pl.col("place_other")).cast(pl.Int8),
    ).sort(pl.col("group").str.contains("unknown"), -pl.col("alike"), -shorter, "lane",
           "lane_other", nulls_last=True)  # fmt: skip
    chosen = order.head(_MOST_TRIES).select("lane", "lane_other", "several")
    for lane, other, several in chosen.iter_rows():
        yield calls.by_lane[lane,].head(_MOST), others.by_lane[other,].head(_MOST), several


def _end_together(pairs: Pairs) -> bool:
    """Test if the ends of calls differ far less than their starts, as in a collective."""
    ends, starts = (
        times - np.median(times)
        for times in (pairs.end - pairs.other_end, pairs.start - pairs.other_start)
    )
    # Ends that differ by less than times are known to set a clock as well, whoever arrives when.
    return bool(np.abs(ends).max() <= SLACK or ends_by_arrivals(ends, starts) <= TOGETHER)


def _numbered(calls: pl.DataFrame, others: pl.DataFrame) -> Pairs | None:
    """Match two files' calls by sequence number in a communicator; None if none match."""
    if calls.is_empty() or others.is_empty():
        return None
    same_size = pl.col("size").eq_missing(pl.col("size_right"))
    both = calls.join(others, on=_NUMBER).filter(same_size).sort("end")
    (start, end), (other_start, other_end) = (
        [_ints(both, f"{name}{side}") for name in _TIMES] for side in ("", "_right")
    )
    if not both.height:
        return None
    ordered = _by_order(*(side.sort("start").head(_MOST) for side in (calls, others)))
    if not isinstance(ordered, str):
        first = (end == ordered.end[0]) & (other_end == ordered.other_end[0])
        if not first.any():  # numbers were counted past calls that a recording lost
            return ordered
    return Pairs(start, end, other_start, other_end, numbered=True)


def _once(calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row per numbered call of a file: latest start, earliest end of participants."""
    return (
        calls.filter(_is_numbered())
        .group_by(_NUMBER)
        .agg(pl.col("start").max(), pl.col("end").min(), size=pl.col("size").max())
    )


def _by_order(stream: pl.DataFrame, others: pl.DataFrame) -> Pairs | str:
    label = pl.struct("group", "operation", "size").rank("dense").alias("label")
    labels = _ints(pl.concat([stream, others]).select(label), "label")
    one, other = labels[: stream.height], labels[stream.height :]
    return in_order(one, _times(stream), other, _times(others))


def _times(calls: pl.DataFrame) -> tuple[Ints, Ints]:
    return _ints(calls, "start"), _ints(calls, "end")


def _ints(frame: pl.DataFrame, column: str) -> Ints:
    return frame[column].to_numpy().astype(np.int64, copy=False)


def messages(traces: Sequence[Trace]) -> list[pl.DataFrame]:
    """Return each file's MPI and NCCL messages between two ranks, numbered alike at both ends.

    Messages whose number is uncertain are left out; see `nccl_messages` for NCCL.

    Returns
    -------
    One table per file: ``communicator, source, target`` (ranks), ``tag, number, bytes, start, end``
    (ns); ``sent``, whether the row is the send or the receive; ``waits``, whether its call waits
    for completion.
    """
    of_mpi = _mpi_messages(traces)
    return [
        pl.concat([_NONE, mpi, _with_tag(nccl_messages(trace))])
        for trace, mpi in zip(traces, of_mpi, strict=True)
    ]


def _with_tag(found: pl.DataFrame) -> pl.DataFrame:
    """Add ``tag`` (0) and ``waits`` (true) to NCCL messages, for the columns of MPI messages."""
    return found.with_columns(tag=pl.lit(0, pl.Int64), waits=pl.lit(value=True)).select(
        _NONE.columns
    )


def _mpi_messages(traces: Sequence[Trace]) -> list[pl.DataFrame]:
    """Return the MPI messages of each trace file, numbered per sender, receiver and tag.

    There are none if a rank of the job is missing or was not recorded from MPI_Init on, or if a
    process receives from any source or any tag, sends and receives in one call, starts persistent
    requests, or has several communicators of all ranks. Only messages in the communicator of all
    ranks count, since ranks mean the same there.
    """
    begun = [from_the_start(trace) for trace in traces]
    ranks = pl.concat([each["rank"] for each in begun]).sort().to_list()
    if len(ranks) < 2 or ranks != list(range(len(ranks))):  # noqa: PLR2004
        return [_NONE for _ in traces]
    return [
        _numbered_messages(trace, calls, len(ranks))
        for trace, calls in zip(traces, begun, strict=True)
    ]


def passed(senders: pl.DataFrame, others: pl.DataFrame) -> Messages:
    """Return the times of messages between two files that surely match and whose receiver waited.

    Parameters
    ----------
    senders, others
        Two of the tables from `messages`, one per trace file.
    """
    if senders.is_empty() or others.is_empty():
        return Messages.none()
    there, back = _pairs(senders, others), _pairs(others, senders)
    columns = there["sent_at"], there["received"], back["received"], back["sent_at"]
    return Messages(*(times.to_numpy() for times in columns))


def _pairs(senders: pl.DataFrame, receivers: pl.DataFrame) -> pl.DataFrame:
    """Match sent with received messages; return when sending began and receiving ended."""
    sent, received = senders.filter("sent"), receivers.filter(~pl.col("sent"))
    both = sent.join(received, on=_MESSAGE, suffix="_received")
    alike = pl.col("bytes").eq(pl.col("bytes_received")).fill_null(value=False)
    # One that differs tells that others of its lane may be mistaken as well.
    sure = both.filter(alike.all().over(_LANE), pl.col("waits_received"))
    return sure.select(sent_at="start", received="end_received")


def _numbered_messages(trace: Trace, begun: pl.DataFrame, ranks: int) -> pl.DataFrame:
    calls = _calls(trace).join(begun.rename({"rank": "here"}), on="process")
    if calls.is_empty():
        return _NONE
    of_all_ranks = calls.filter(pl.col("ranks") == ranks)
    alone = pl.col("communicator").n_unique().over("process") == 1
    clear = of_all_ranks.join(_doubtful(calls), on="process", how="anti").filter(alone)
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
    """Return processes with receives from any source or any tag, which can match any message."""
    name = pl.col("name")
    plain = name.str.contains(_SEND) | name.str.contains(_RECEIVE)
    known = pl.all_horizontal(pl.col("tag", "remote_rank").is_not_null())
    return calls.filter(
        ~((plain & known) | name.str.contains(_PROBE))
    ).select("process").unique()  # fmt: skip


def _calls(trace: Trace) -> pl.DataFrame:
    """Return MPI calls that send or receive between two ranks, blocking or not."""
    of_messages = (pl.col("group") == "p2p") | pl.col("name").str.contains(_PERSISTENT)
    return (
        trace["host"]
        .filter(pl.col("library") == "mpi", of_messages)
        .select("process", "start", "end", "name", "bytes", "tag", "remote_rank", "communicator",
                "ranks")
        .collect()
    )  # fmt: skip


def nccl_messages(trace: Trace) -> pl.DataFrame:
    """Return the numbered NCCL messages that the processes of one trace file send and receive.

    Only communicators created during the recording count; otherwise the first message is unknown. A
    process's messages in a communicator are left out if any of them lacks a peer or size, has
    several kernels, or overlaps another call to the same peer. Processes that replay collectives in
    CUDA graphs are left out, too, since a replay repeats messages without a call.

    Returns
    -------
    The columns of `_NCCL_MESSAGE`: ``start, end`` are the times of the kernel, ``sent`` is whether
    the kernel sends (rather than receives) the message.
    """
    made = made_communicators(trace).rename({"rank": "here"})
    if made.is_empty():
        return pl.DataFrame(schema=_NCCL_MESSAGE)
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
    """Return an expression, true for calls for which the number of the message is certain."""
    named = pl.col("peer", "message_bytes").is_not_null()
    alone = pl.col("ops").list.len().fill_null(0) <= 1
    apart = pl.col("start") >= pl.col("end").shift(1).over(_NCCL_LANE, order_by="start")
    return pl.all_horizontal(named, alone, apart.fill_null(value=True))
