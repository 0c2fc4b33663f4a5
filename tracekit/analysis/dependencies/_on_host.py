"""What holds host threads: their own order, each other, and the data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._launch_groups import host_marks
from tracekit.analysis.dependencies._edges import edges
from tracekit.analysis.dependencies._moments import MOMENT
from tracekit.analysis.idle_time._timeline import covered, merged

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

HANDED_NS = 30_000
"""A thread that makes no call for as long as this may wait for another one."""
AT_ONCE_NS = 100_000
"""A thread that goes on no later than this after another one recorded an event waited for it."""
AWAITED_NS = 100_000
"""Time of a driving thread in input ranges or between steps that is a wait for the loader."""
AWAITED_SHARE = 0.1
"""A loader that works ahead and is waited for is waited for long: it takes longer than the rest."""
_MOST_THREADS = 64
_LENGTH = pl.col("end") - pl.col("start")


def host_edges(trace: Trace, moments: Moments, events: pl.DataFrame) -> pl.DataFrame:
    """Return the edges of calls in order, from thread to thread, and of the loader.

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
    awaited = _awaited(trace, gaps)
    own = (
        gaps.join(handed.select("target", waited=True).unique(), on="target", how="left")
        .join(awaited.select("target", "loading"), on="target", how="left")
        .with_columns(
            weight=pl.when(pl.col("waited").is_not_null()).then(0)
            .otherwise(_LENGTH - pl.col("loading").fill_null(0))
        )
    )  # fmt: skip
    return pl.concat(
        [
            edges(own, "source", "target", "host", "weight"),
            edges(handed, "giver", "target", "handover", "lag"),
            edges(awaited, "before", "target", "loader", "lag"),
        ]
    )


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

    A thread that only loads input gives nothing: whoever waits for it is found by `_awaited`.
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


def _awaited(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of driving threads for input but the first, with the one before each.

    A loader that is waited for works all the time: a batch comes a time after the one before.

    Returns
    -------
    ``thread, end, target, loading, before, lag``.
    """
    iterations = trace.read("iterations")
    driving = gaps.join(iterations.select("thread").unique(), on="thread", how="semi")
    ranges = trace["ranges"].filter(pl.col("stage") == "IO").select("thread", "start", "end")
    outside = _between(iterations)
    blocks = merged(pl.concat([ranges.collect(), outside]), ["thread"])
    if blocks.is_empty():
        none = pl.lit(None, pl.Int64)
        return driving.clear().with_columns(loading=none, before=pl.lit(None, MOMENT), lag=none)
    known = covered(driving.filter(_LENGTH >= AWAITED_NS), blocks, ["thread"], "loading")
    waits = known.filter(pl.col("loading") >= AWAITED_NS).sort("thread", "end")
    before = {"before": pl.col("target").shift(), "lag": pl.col("end") - pl.col("end").shift()}
    chained = waits.with_columns(value.over("thread").alias(name) for name, value in before.items())
    long = pl.col("loading") >= AWAITED_SHARE * pl.col("lag")
    return chained.drop_nulls("before").filter(long)


def _between(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return ``thread, start, end`` of the time between steps, where ranges tell them."""
    told = iterations.filter(pl.col("source") == "ranges")
    threads = told.select("process", "thread").unique("process")
    marks = host_marks(told).sort("process", "time")
    spans = marks.with_columns(end=pl.col("time").shift(-1).over("process"))
    empty = spans.filter(pl.col("iteration").is_null()).drop_nulls("end")
    return empty.join(threads, on="process").select("thread", start="time", end="end")
