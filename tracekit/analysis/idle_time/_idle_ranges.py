"""In which range the host was while nothing ran inside a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._host_time import innermost_stretches
from tracekit.analysis._steps import by_host, counted_steps, split, with_steps
from tracekit.analysis._windows import chosen_windows, cut
from tracekit.analysis._work import Work, work_of

if TYPE_CHECKING:
    from tracekit.model import Trace

_OWNER = ["process", "device"]
_NUMBERED = (r", (?:seq|op_id|sizes|input_op_ids) = .*$", r"\d+$")
_WHEN = [*_OWNER, "start", "end"]
_OPS = [*_WHEN, "launch_start", "stage", "iteration"]


def idle_ranges(
    trace: Trace, *, skip: int = 0, windows: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return in which range the host was while nothing ran inside a step.

    Looked at is the thread that holds the iterations, and there the innermost push/pop range.

    Parameters
    ----------
    trace
        The run; it has iterations.
    skip
        How many iterations to leave out at the beginning.
    windows
        What time is cut into, where that is known: ``process, device, iteration, start, end,
        on_host``; `iteration` is null outside of the steps that count.

    Returns
    -------
    ``range`` (its name without numbers at its end; null outside of all) and ``idle_ns``, added over
    devices and the steps that count, the longest first: they add up to the part ``idle`` of a
    comparison.
    """
    work = work_of(trace)
    steps = _steps(work, skip) if windows is None else windows
    inside = steps.filter(pl.col("iteration").is_not_null() & pl.col("on_host"))
    ops = work.trace["ops"].select(_WHEN).collect()
    idle = _gaps(cut(ops, steps), steps, inside)
    found = split(idle, _marks(trace), "range")
    names = trace["ranges"].select("range", "name").collect()
    return (
        found.join(names, on="range", how="left")
        .group_by(range=plain_name(pl.col("name")))
        .agg(idle_ns=(pl.col("end") - pl.col("start")).sum())
        .filter(pl.col("idle_ns") > 0)
        .sort(-pl.col("idle_ns"), "range")
    )


def _steps(work: Work, skip: int) -> pl.DataFrame:
    """Return what time is cut into, with the numbers of the steps that count."""
    ops = work.trace["ops"].select(_OPS).collect()
    cutter = by_host(work.cutter)
    windows = chosen_windows(work.trace, ops, skip=0, per_iteration=True, cutter=cutter)
    return counted_steps(with_steps(windows), work.trace.read("iterations"), skip).windows


def plain_name(name: pl.Expr) -> pl.Expr:
    """Return the names of ranges without the numbers at their ends."""
    return name.str.replace(_NUMBERED[0], "").str.replace(_NUMBERED[1], "N")


def _gaps(pieces: pl.DataFrame, windows: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, device, start, end``: when nothing runs in some of the windows."""
    numbered = windows.with_row_index("window")
    chosen = numbered.join(inside, on=[*_OWNER, "start", "end"], how="semi").filter(
        pl.col("end") > pl.col("start")
    )
    spans = chosen.select("window", *_OWNER, window_start="start", window_end="end")
    # What is of no length at either end of a window closes the gaps there.
    edges = [
        spans.select("window", start=edge, end=edge) for edge in ("window_start", "window_end")
    ]
    busy = pieces.select("window", "start", "end").join(spans, on="window", how="semi")
    ordered = pl.concat([busy, *edges]).sort("window", "start", "end")
    since = pl.col("end").cum_max().shift().over("window")
    gaps = ordered.with_columns(since=since).filter(pl.col("start") > pl.col("since"))
    return gaps.join(spans, on="window").select(*_OWNER, start="since", end="start")


def _marks(trace: Trace) -> pl.DataFrame:
    """Return ``process, time, range``: from when on the training thread is in which range."""
    threads = trace.read("iterations").select("process", "thread").unique()
    ranges = trace["ranges"].filter(pl.col("style") == "push_pop", pl.col("end") > pl.col("start"))
    own = ranges.select("range", "report", "process", "thread", "domain", "start", "end")
    stretches = innermost_stretches(own.collect().join(threads, on=["process", "thread"]))
    begins = stretches.select("process", "range", time="start", order=1)
    ends = stretches.select("process", time="end", order=0).with_columns(
        range=pl.lit(None, pl.Int64)
    )
    together = pl.concat([begins, ends.select(begins.columns)]).sort("process", "time", "order")
    last = together.unique(["process", "time"], keep="last", maintain_order=True)
    return last.sort("time").select("process", "time", "range")
