"""Which calls of two reports are the same ones, beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.clocks._clock_fit import Fit, Ints, Pairs, fit, in_order
from tracekit.analysis.communication._collective_calls import participants
from tracekit.analysis.communication._mpi_calls import annotated_calls

if TYPE_CHECKING:
    from tracekit.model import Trace

_JOINT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives in which every participant waits for something of every other one."""
_MOST = 4096
"""So many calls of a group tell what there is to tell."""
_LANE = ("process", "device", "context", "stream")
_NUMBER = ("group", "operation", "call_sequence")
_TIMES = ("start", "end")
_JOINT_CALLS = {
    "library": pl.String, "operation": pl.String, "communicator": pl.String, "ranks": pl.Int32,
    "call_sequence": pl.Int64, "message_bytes": pl.Int64, "process": pl.Int32,
    "device": pl.Int32, "context": pl.Int32, "stream": pl.Int64, "start": pl.Int64,
    "end": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True)
class Calls:
    """Joint calls of a report: all in groups, and once each those that carry their number."""

    grouped: pl.DataFrame
    numbered: pl.DataFrame


def clock_calls(trace: Trace) -> Calls:
    """Return the calls of a report by which its clock may be told."""
    calls = grouped(joint_calls(trace))
    return Calls(calls, _once(calls))


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


def grouped(calls: pl.DataFrame) -> pl.DataFrame:
    """Return `joint_calls` of a report with their ``group``, which other reports call the same.

    That is the communicator of NCCL; of MPI, whose handles mean something in one process only, the
    number of its ranks; and nothing where it is not known. Of several streams or processes that
    may be the same group, the one is kept that has most calls.
    """
    named = pl.when(pl.col("library") == "mpi").then(
        pl.format("{} ranks", pl.col("ranks"))
    ).otherwise("communicator")  # fmt: skip
    known = calls.with_columns(group=pl.format("{} {}", "library", named.fill_null("unknown")))
    is_sure = (pl.col("library") == "nccl") & pl.col("communicator").is_not_null()
    lane = pl.when(~is_sure).then(pl.struct(_LANE).rank("dense")).otherwise(0)
    # Participants may differ in the sizes of other operations.
    size = pl.when(pl.col("operation") == "all_reduce").then("message_bytes")
    lanes = known.with_columns(lane=lane, size=size)
    largest = (
        lanes.group_by("group", "lane")
        .len()
        .sort(-pl.col("len").cast(pl.Int64), "lane")
        .unique("group", keep="first", maintain_order=True)
    )
    return lanes.join(largest, on=["group", "lane"], how="semi", maintain_order="left")


def best_fit(calls: Calls, others: Calls) -> tuple[Fit, Pairs] | str:
    """Return how far two reports' clocks are apart, by the group that tells it best.

    Returns
    -------
    The fit, which may be refused, with the calls that it is of; or why there are none.
    """
    found, why = _all_pairs(calls, others)
    if not found:
        return why
    fits = [(fit(pairs), pairs) for pairs in found]
    return min(fits, key=lambda each: (each[0].refused is not None, -each[0].calls))


def _all_pairs(calls: Calls, others: Calls) -> tuple[list[Pairs], str]:
    numbered = _numbered(calls.numbered, others.numbered)
    if numbered is not None:
        return [numbered], ""
    found: list[Pairs] = []
    why = "they have no calls in common that all ranks make together"
    theirs = others.grouped.partition_by("group", as_dict=True)
    for group, own in calls.grouped.partition_by(
        "group", as_dict=True, maintain_order=True
    ).items():
        if group not in theirs:
            continue
        matched = _by_order(own.head(_MOST), theirs[group].head(_MOST))
        if isinstance(matched, str):
            why = matched
        else:
            found.append(matched)
    return found, why


def _numbered(calls: pl.DataFrame, others: pl.DataFrame) -> Pairs | None:
    """Match calls that carry their number in a communicator."""
    if calls.is_empty() or others.is_empty():
        return None
    same_size = pl.col("size").eq_missing(pl.col("size_right"))
    both = calls.join(others, on=_NUMBER).filter(same_size).sort("end")
    return _pairs(both) if both.height else None


def _once(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that carry their number; participants of one report are one."""
    return (
        calls.drop_nulls("call_sequence")
        .filter(pl.col("library") == "nccl", pl.col("operation") != "send_recv")
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


def _pairs(both: pl.DataFrame) -> Pairs:
    return Pairs(*(_ints(both, f"{name}{side}") for side in ("", "_right") for name in _TIMES))
