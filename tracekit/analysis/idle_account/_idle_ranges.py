"""Idle time of GPUs inside steps, by the NVTX range in which the host was meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.facts import work_of
from tracekit.analysis.idle_account._timeline import follow, merged_in_batches
from tracekit.engine import cut, innermost_stretches, split

if TYPE_CHECKING:
    from tracekit.model import Trace

_OWNER = ["process", "device"]
_WHEN = [*_OWNER, "start", "end"]


def lulls(ops: pl.LazyFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the lulls (intervals without ops) inside time windows such as steps.

    Parameters
    ----------
    ops
        ``process, device, start, end`` (ns).
    windows
        The same columns; windows of one process on a device do not overlap.

    Returns
    -------
    The same columns: the lulls between ops, and between ops and the ends of windows.
    """
    spans = windows.filter(pl.col("end") > pl.col("start")).select(_WHEN)
    edges = spans.group_by(_OWNER).agg(pl.col("start").min(), until=pl.col("end").max())
    # The begin of the first window counts as an op without length: a lull may follow it.
    begins = edges.select(*_OWNER, "start", end="start")
    busy = pl.concat([begins, merged_in_batches(ops, _OWNER)]).sort("start")
    reached, following = pl.col("end").cum_max(), pl.col("start").shift(-1)
    found = busy.join(edges.drop("start"), on=_OWNER, maintain_order="left").select(
        *_OWNER, start=reached.over(_OWNER), end=following.over(_OWNER).fill_null(pl.col("until"))
    )
    between = found.filter(pl.col("start") < pl.col("end"))
    return between if between.is_empty() else cut(between, spans).select(_WHEN)


_NUMBERED = (r", (?:seq|op_id|sizes|input_op_ids) = .*$", r"\d+$|\b(step_num=)\d+")
_NOWHERE = pl.lit(None, pl.Int64).alias("range")


def idle_ranges(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the GPUs' idle time inside steps, by the NVTX range in which the host was meanwhile.

    The range is the innermost push/pop range of the thread on which iterations run.

    Parameters
    ----------
    trace
        The run, which must have iterations.
    windows
        Steps and times between them: ``process, device, iteration, start, end`` (ns), ``on_host``
        (whether the host is in an iteration); `iteration` is null outside of the compared steps.

    Returns
    -------
    ``range`` (its name without trailing numbers; null outside of all ranges) and ``idle_ns``,
    summed over devices and the compared steps, largest first. The sum is the row ``idle`` in a
    comparison of runs.
    """
    inside = windows.filter(pl.col("iteration").is_not_null() & pl.col("on_host"))
    found = split(lulls(work_of(trace).trace["ops"], inside), _marks(trace), "range")
    names = trace["ranges"].select("range", "name").collect()
    idle = pl.col("idle_ns").sum()
    return (
        found.group_by("range")
        .agg(idle_ns=(pl.col("end") - pl.col("start")).sum())
        .join(names, on="range", how="left")
        .group_by("name")
        .agg(idle)
        .group_by(range=plain_name(pl.col("name")))
        .agg(idle)
        .filter(pl.col("idle_ns") > 0)
        .sort(-pl.col("idle_ns"), "range")
    )


def plain_name(name: pl.Expr) -> pl.Expr:
    """Return names of ranges without sizes, with ``N`` for digits at the end or of JAX's step."""
    return name.str.replace(_NUMBERED[0], "").str.replace(_NUMBERED[1], "${1}N")


def _marks(trace: Trace) -> pl.DataFrame:
    """Return ``process, time`` (ns), ``range``: the training thread's innermost range from then."""
    threads = trace.read("iterations").select("process", "thread").unique()
    ranges = trace["ranges"].filter(
        pl.col("style") == "push_pop",
        pl.col("end") > pl.col("start"),
        pl.col("thread").is_in(threads["thread"].implode()),
    )
    columns = ranges.select("range", "report", "process", "thread", "domain", "start", "end")
    stretches = innermost_stretches(columns.collect().join(threads, on=["process", "thread"]))
    if not follow(stretches, "process"):
        return _latest_marks(stretches)
    is_last = pl.col("process").shift(-1) != pl.col("process")
    leaves = (is_last | (pl.col("start").shift(-1) != pl.col("end"))).fill_null(value=True)
    begins = stretches.select("process", "range", time="start")
    ends = stretches.filter(leaves).select("process", _NOWHERE, time="end")
    return pl.concat([begins, ends]).sort("time").select("process", "time", "range")


def _latest_marks(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, time`` (ns), ``range``: innermost range of a process's training threads.

    Where several threads have ranges, the one that changed last counts.
    """
    begins = stretches.select("process", "range", time="start", order=1)
    ends = stretches.select("process", _NOWHERE, time="end", order=0)
    together = pl.concat([begins, ends]).sort("process", "time", "order")
    last = together.unique(["process", "time"], keep="last", maintain_order=True)
    return last.sort("time").select("process", "time", "range")
