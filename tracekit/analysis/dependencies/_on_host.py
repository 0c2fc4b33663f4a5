"""Edges into calls: from the same thread, from other threads, from the data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.dependencies._edges import HOLDS_NOTHING, edges
from tracekit.analysis.dependencies._input import Batches, batches_of
from tracekit.analysis.dependencies._moments import MOMENT

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

HANDED_NS = 30_000
"""A thread that makes no call for as long as this may wait for another one."""
AT_ONCE_NS = 100_000
"""A thread that goes on no later than this after another one recorded an event waited for it."""
_MOST_THREADS = 64
_LENGTH = pl.col("end") - pl.col("start")


def host_edges(
    trace: Trace, moments: Moments, events: pl.DataFrame
) -> tuple[pl.DataFrame, Batches]:
    """Return the edges of calls in order, from thread to thread, and of the loader; and batches.

    A thread's call comes after the one before it and what the thread did in between. Two threads of
    a process hand over where one falls silent while the other is, and that goes on before the first
    one does: as main and backward thread do. What is received so is waited for; the receiver's own
    time before is no work of its own.

    Parameters
    ----------
    trace, moments
        The run.
    events
        As `wait_edges` returns them: a call that waits for another thread's event follows at once.
    """
    gaps = _gaps(moments)
    handed = pl.concat(
        [_handed(moments, gaps), _released(moments, gaps), _at_once(gaps, events)]
    ).unique(["giver", "target"], keep="first", maintain_order=True)
    batches = batches_of(trace, moments, gaps)
    is_handed = pl.col("waited").is_not_null()
    waits = batches.taken.filter("waited")
    own = (
        gaps.join(handed.select("target", waited=True).unique(), on="target", how="left")
        .join(waits.select("target", "loading"), on="target", how="left")
        .with_columns(
            weight=pl.when(is_handed).then(0).otherwise(_LENGTH - pl.col("loading").fill_null(0))
        )
    )
    # A loader that never rests holds the next batch; else its waits are as long as they were.
    rhythmic, free = batches.rhythmic, pl.lit(HOLDS_NOTHING, pl.Int64)
    asleep = waits.join(rhythmic.select("target", chained=True), on="target", how="left").join(
        handed.select("target"), on="target", how="anti"
    ).with_columns(weight=pl.when("chained").then(free).otherwise("length"))  # fmt: skip
    done = moments.ops.select("process", time="end", work="finish").sort("time")
    # What the GPU had done by then comes first as well: a loader rests until batches are taken.
    after = (
        asleep.sort("end")
        .join_asof(done, left_on="end", right_on="time", by="process", check_sortedness=False)
        .drop_nulls("work")
        .with_columns(
            weight=pl.when("chained").then(free).otherwise(pl.col("end") - pl.col("time"))
        )
    )
    found = pl.concat(
        [
            edges(own, "source", "target", "host", "weight"),
            edges(handed, "giver", "target", "handover", "lag"),
            edges(asleep.drop_nulls("source"), "source", "target", "wait", "weight"),
            edges(after, "work", "target", "wait", "weight"),
            edges(rhythmic, "first", "target", "loader", "since"),
            edges(batches.paced.with_columns(weight=free), "before", "target", "pace", "weight"),
        ]
    )
    return found, batches


def _gaps(moments: Moments) -> pl.DataFrame:
    """Return when threads make no call: ``process, thread, start, end, source, target``."""
    calls = moments.calls
    before = {name: pl.col(name).shift().over("thread") for name in ("end", "finish")}
    return (
        calls.select(
            "process", "thread", start=before["end"].cum_max().over("thread"), end="start",
            source=before["finish"], target="begin",
        )
        .drop_nulls("source")
        .with_columns(start=pl.min_horizontal("start", "end"))
    )  # fmt: skip


def _handed(moments: Moments, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``target, giver, lag``: whom a thread waited for before it went on, and how long ago.

    A thread that only loads input gives nothing: whoever waits for it is found by `batches_of`.
    """
    loaders = moments.loaders().implode()
    silent = gaps.filter(_LENGTH >= HANDED_NS)
    silent = pl.concat([silent, _edges_of_threads(moments)])
    givers = silent.filter(~pl.col("thread").is_in(loaders)).drop_nulls("source")
    threads = givers.select("process", giver="thread").unique().sort("process", "giver")
    few = threads.group_by("process").agg(pl.len()).filter(pl.col("len") <= _MOST_THREADS)
    takers = silent.drop_nulls("target").join(
        threads.join(few, on="process", how="semi"), on="process"
    ).filter(pl.col("giver") != pl.col("thread"))  # fmt: skip
    fell_silent = givers.select(
        giver_thread="thread", silent="start", resumed="end", giver="source"
    ).sort("silent")
    found = (
        takers.rename({"giver": "giver_thread"})
        .sort("end")
        .join_asof(
            fell_silent, left_on="end", right_on="silent", by="giver_thread",
            check_sortedness=False,
        )
        .filter(
            (pl.col("silent") > pl.col("start"))
            & (pl.col("resumed").is_null() | (pl.col("resumed") > pl.col("end")))
        )
    )  # fmt: skip
    last = pl.col("end") - pl.col("silent").max().over("target")
    return found.with_columns(lag=last).select("target", "giver", "lag")


def _released(moments: Moments, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return whom a thread that loads input waited for: it works ahead until it is full.

    Returns
    -------
    As `_handed`, for the last call of another thread in the silence of a loading one.
    """
    loads = pl.col("thread").is_in(moments.loaders().implode())
    consumed = moments.calls.filter(~loads).select("process", time="end", giver="finish")
    waits = gaps.filter(loads & (_LENGTH >= HANDED_NS)).sort("end")
    found = waits.join_asof(
        consumed.sort("time"), left_on="end", right_on="time", by="process",
        check_sortedness=False,
    ).filter(pl.col("time") > pl.col("start"))  # fmt: skip
    return found.select("target", "giver", lag=pl.col("end") - pl.col("time"))


def _at_once(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return, as `_handed`, whose event a thread waited for that went on soon after its record."""
    silent = gaps.filter(_LENGTH >= HANDED_NS).with_columns(length=_LENGTH)
    soon = (pl.col("lag") <= AT_ONCE_NS) & (pl.col("lag") < pl.col("length"))
    found = events.join(silent.select("target", "length"), on="target").filter(soon)
    return found.select("target", "giver", "lag")


def _edges_of_threads(moments: Moments) -> pl.DataFrame:
    """Return the silence of each thread before its first call, and after its last one."""
    never = 1 << 61
    nothing = pl.lit(None, MOMENT)
    of_thread = moments.calls.group_by("process", "thread", maintain_order=True)
    first = of_thread.first().select(
        "process", "thread", start=pl.lit(-never), end="start", source=nothing, target="begin"
    )
    last = of_thread.last().select(
        "process", "thread", start="end", end=pl.lit(never), source="finish", target=nothing
    )
    return pl.concat([first, last])
