"""Match calls of two reports that are the same collective, beyond doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.analysis.calls import TOGETHER, annotated_calls, ends_by_arrivals, participants
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


@dataclass(frozen=True)
class Calls:
    """Joint calls of a report: by lane, and those with a number of their own.

    Parameters
    ----------
    lanes
        ``group, lane, place, stream, operation, size, start, end``, in order of time. The group is
        called the same by other reports; a lane holds calls of one group.
    numbered
        ``group, operation, call_sequence, start, end, size``.
    """

    lanes: pl.DataFrame
    numbered: pl.DataFrame

    @property
    def named(self) -> frozenset[str]:
        """Communicators that the report takes part in."""
        known = pl.concat([self.lanes["group"], self.numbered["group"]])
        return frozenset(known.filter(known.str.starts_with("nccl 0x")))


def clock_calls(trace: Trace) -> Calls:
    """Return the calls of a report that can set its clock."""
    calls = _grouped(joint_calls(trace))
    columns = ["group", "lane", "place", "stream", "operation", "size", *_TIMES]
    return Calls(calls.filter(~_is_numbered()).select(columns), _once(calls))


def joint_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls that no participant leaves before all have entered, unmatched.

    These are all_reduce, all_gather, reduce_scatter, all_to_all and barriers, and kernels of NCCL
    that both send and receive.

    Returns
    -------
    ``library, operation, communicator, ranks, call_sequence, message_bytes, process, device,
    context, stream, start, end``, in order of time.
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
    """Tell whether a report holds anything to look for calls in: looking takes many queries."""
    places = (
        trace["ops"].filter(pl.col("kind") == "collective"),
        trace["host"].filter(pl.col("library") == "mpi"),
        annotated_calls(trace),
    )
    some = pl.collect_all([rows.select("process").head(1) for rows in places])
    return any(rows.height for rows in some)


def _is_numbered() -> pl.Expr:
    return pl.col("call_sequence").is_not_null() & (
        (pl.col("library") == "nccl") & (pl.col("operation") != "send_recv")
    )


def _grouped(calls: pl.DataFrame) -> pl.DataFrame:
    """Return `joint_calls` of a report with their ``group``, ``lane`` and ``size``.

    The group is the communicator of NCCL; of MPI, whose handles mean something in one process only,
    the number of its ranks; and nothing where it is not known. Of several participants in one
    communicator the one is kept that has most calls. Of streams that name none each is a lane.
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
    """Return the offset between two reports' clocks, by the best evidence.

    Returns
    -------
    The fit, which may be refused, with the calls that it is of; or why there are none.
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
    """Yield calls that may be the same ones, surest first, or why those of two lanes are not."""
    numbered = _numbered(calls.numbered, others.numbered)
    if numbered is not None:
        yield numbered
    for own, theirs, is_one_of_several in _lanes(calls, others):
        pairs = _by_order(own, theirs)
        if isinstance(pairs, str) or not is_one_of_several or _end_together(pairs):
            yield pairs
        else:
            yield "their calls do not end together"


def _lanes(calls: Calls, others: Calls) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, bool]]:
    """Yield lanes of one group, and whether the calls of one may be those of another lane.

    Those come first that are alike in stream and place, as the most likely ones.
    """
    key = ["group", "lane", "place", "stream"]
    mine, theirs = (
        side.lanes.group_by(key, maintain_order=True).agg(pl.len()) for side in (calls, others)
    )
    both = mine.join(theirs, on="group", suffix="_other")
    shorter = pl.min_horizontal("len", "len_other").cast(pl.Int64)
    order = both.with_columns(
        several=(pl.len().over("group") > 1),
        alike=(pl.col("stream") == pl.col("stream_other")).cast(pl.Int8)
        + (pl.col("place") == pl.col("place_other")).cast(pl.Int8),
    ).sort(pl.col("group").str.contains("unknown"), -pl.col("alike"), -shorter, "lane",
           "lane_other", nulls_last=True)  # fmt: skip
    parts = [
        {lane: rows for (lane,), rows in side.lanes.partition_by("lane", as_dict=True).items()}
        for side in (calls, others)
    ]
    chosen = order.head(_MOST_TRIES).select("lane", "lane_other", "several")
    for lane, other, several in chosen.iter_rows():
        yield parts[0][lane].head(_MOST), parts[1][other].head(_MOST), several


def _end_together(pairs: Pairs) -> bool:
    """Tell whether ends differ far less than arrivals do, as those of calls of one group."""
    ends, starts = (
        times - np.median(times)
        for times in (pairs.end - pairs.other_end, pairs.start - pairs.other_start)
    )
    # Ends that differ by less than times are known to set a clock as well, whoever arrives when.
    return bool(np.abs(ends).max() <= SLACK or ends_by_arrivals(ends, starts) <= TOGETHER)


def _numbered(calls: pl.DataFrame, others: pl.DataFrame) -> Pairs | None:
    """Match calls that carry their number in a communicator."""
    if calls.is_empty() or others.is_empty():
        return None
    same_size = pl.col("size").eq_missing(pl.col("size_right"))
    both = calls.join(others, on=_NUMBER).filter(same_size).sort("end")
    (start, end), (other_start, other_end) = (
        [_ints(both, f"{name}{side}") for name in _TIMES] for side in ("", "_right")
    )
    return Pairs(start, end, other_start, other_end, numbered=True) if both.height else None


def _once(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that carry their number; participants of one report are one."""
    return (
        calls.filter(_is_numbered())
        .group_by(_NUMBER)
        .agg(pl.col("start").max(), pl.col("end").min(), size=pl.col("size").max())
    )


def _by_order(own: pl.DataFrame, others: pl.DataFrame) -> Pairs | str:
    label = pl.struct("operation", "size").rank("dense").cast(pl.Int64)
    both = pl.concat([own.with_columns(side=0), others.with_columns(side=1)])
    both = both.with_columns(label=label)
    one, other = (both.filter(side=side) for side in (0, 1))
    return in_order(_ints(one, "label"), _times(one), _ints(other, "label"), _times(other))


def _times(calls: pl.DataFrame) -> tuple[Ints, Ints]:
    return _ints(calls, "start"), _ints(calls, "end")


def _ints(frame: pl.DataFrame, column: str) -> Ints:
    return frame[column].to_numpy().astype(np.int64, copy=False)
