"""What the host did, thread by thread: calls that wait or allocate, ranges, the profiler, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._host_time import innermost_stretches
from tracekit.analysis._launch_groups import host_marks
from tracekit.analysis.idle_time._timeline import covered, merged, split_at, states

if TYPE_CHECKING:
    from tracekit.model import Trace

_ALLOCATING = (
    r"^(cudaMalloc|cudaFree|cudaHost(Alloc|Register|Unregister)|cudaMemPool|cuMem(Alloc|Free|"
    r"Host(Alloc|Register|Unregister)|Create|Release|Map|Unmap|AddressReserve))"
)
_WAITING = r"Synchronize(_v\d+)?$|^cu(da)?Memcpy"
_LOADING = r"^cu(da)?(Module|Library)Load"
_LOADING_AT_FIRST = r"^cu(da)?Launch(Kernel|Cooperative|Grid|$)|GetFunction"
_NOT_WAITING = r"Async|Query"
_STAGED_NS = 100_000
"""A call that copies takes a few us; in one of more than this the host copies, or waits."""
ASLEEP = "asleep in "
"""How it is said that the operating system lets a thread wait."""
_LONG_AGO = -(1 << 62)
_NAME = pl.col("name").cast(pl.String)


def pairs_of(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return which threads are looked at: the one that launches, and the one that drives its steps.

    Returns
    -------
    ``pair, process, launch_thread, driver``; ``driver`` is the launching thread where the process
    has no iterations.
    """
    driving = (
        trace["iterations"].group_by("process", "thread").len().collect()
        .sort("process", "len", "thread", descending=[False, True, False])
        .unique("process", keep="first", maintain_order=True)
        .select("process", driver="thread")
    )  # fmt: skip
    return (
        gaps.select("process", "launch_thread")
        .unique(maintain_order=True)
        .join(driving, on="process", how="left", maintain_order="left")
        .with_columns(driver=pl.coalesce("driver", "launch_thread"))
        .with_row_index("pair")
    )


def waits(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls in which a thread waits for GPU work.

    These synchronise, or copy and do not return before the copy is done or for long (from memory
    that is not pinned, the host copies first), or are said to wait by the recorder.
    """
    calls = trace["calls"]
    waiting = _NAME.str.contains(_WAITING) & ~_NAME.str.contains(_NOT_WAITING)
    by_name = calls.filter(_is_named(calls, waiting))
    waited = trace["syncs"].filter(pl.col("type") != "stream_wait_event").select(
        "process", "correlation"
    ).drop_nulls("correlation").unique()  # fmt: skip
    asking = _is_named(calls, _NAME.str.contains("Query"))  # they return at once
    told = calls.filter(~asking).join(waited, on=["process", "correlation"], how="semi")
    is_copy = pl.col("copy_kind").is_not_null()
    takes_long = pl.col("launch_end") - pl.col("launch_start") > _STAGED_NS
    copies = trace["ops"].filter(is_copy & (takes_long | (pl.col("launch_end") >= pl.col("end"))))
    long = copies.select(
        thread="launch_thread", start="launch_start", end="launch_end",
        name=pl.lit("copy that the host waits for"),
    )  # fmt: skip
    named = [own.select("thread", "start", "end", _NAME) for own in (by_name, told)]
    found = pl.concat([*named, long]).collect()
    return found.unique(["thread", "start", "end"], keep="first", maintain_order=True)


def allocations(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls that allocate or free memory."""
    calls = trace["calls"]
    own = calls.filter(_is_named(calls, _NAME.str.contains(_ALLOCATING)))
    return own.select("thread", "start", "end", _NAME).collect()


def loads(trace: Trace, least: int) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls that load code, and launches that take longer.

    Parameters
    ----------
    trace
        The run.
    least
        A call that launches takes a few us; one of more than so many ns loads what it launches.
    """
    calls = trace["calls"]
    is_long = pl.col("end") - pl.col("start") > least
    loading = _is_named(calls, _NAME.str.contains(_LOADING))
    own = calls.filter(
        loading | (is_long & _is_named(calls, _NAME.str.contains(_LOADING_AT_FIRST)))
    )
    return own.select("thread", "start", "end", _NAME).collect()


def _is_named(calls: pl.LazyFrame, condition: pl.Expr) -> pl.Expr:
    """Return which calls have a name that meets a condition; each name is looked at once."""
    names = calls.select("name").unique().collect().filter(condition)["name"]
    return pl.col("name").is_in(names.implode())


def messages(trace: Trace, *, is_collective: bool) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls of MPI, collectives or all others."""
    own = trace["host"].filter(
        pl.col("library") == "mpi", (pl.col("group") == "collective") == is_collective
    )
    return own.select("thread", "start", "end", "name").collect()


def profiling(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name``: time that the profiler took."""
    own = trace["host"].filter(pl.col("library") == "profiler")
    return own.select("thread", "start", "end", "name").collect()


def sleeps(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls in which the operating system lets it wait."""
    own = trace["host"].filter(pl.col("library") == "os")
    return own.select("thread", "start", "end", "name").collect()


def threads_of(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return ``pair, thread``: both threads of each pair."""
    sides = [pairs.select("pair", thread=side) for side in ("launch_thread", "driver")]
    return pl.concat(sides).drop_nulls().unique(maintain_order=True)


def of_pairs(intervals: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return ``pair, start, end, name`` of intervals on the threads of each pair."""
    return intervals.join(threads, on="thread").select("pair", "start", "end", "name")


def in_ranges(trace: Trace, pieces: pl.DataFrame, pairs: pl.DataFrame, column: str) -> pl.DataFrame:
    """Cut pieces where a driver's innermost range changes, and say what it is.

    Parameters
    ----------
    trace
        The run.
    pieces
        ``pair, start, end``, and others.
    pairs
        As `pairs_of` gives them.
    column
        What is said of ranges, ``name`` or ``stage``; ranges of which that is not known do not
        count.

    Returns
    -------
    The columns of `pieces`, and `column`; null outside of all ranges.
    """
    drivers = pairs.select("pair", thread="driver").drop_nulls()
    nested = trace["ranges"].filter(
        pl.col("style") == "push_pop", pl.col("end") > pl.col("start"),
        pl.col("thread").is_in(drivers["thread"].unique().implode()), pl.col(column).is_not_null(),
    )  # fmt: skip
    own = nested.select("range", "process", "thread", "domain", "start", "end").collect()
    inside = states(innermost_stretches(own).join(drivers, on="thread"), "pair", "range")
    cut = split_at(pieces, inside, "pair", "range")
    met = pl.col("range").is_in(cut["range"].drop_nulls().unique().implode())
    told = trace["ranges"].filter(met).select("range", column).collect()
    return cut.join(told, on="range", how="left", maintain_order="left").drop("range")


def step_states(trace: Trace) -> pl.DataFrame:
    """Return ``process, time, in_step``: from when on each process's host is in an iteration."""
    marks = host_marks(trace.read("iterations"))
    return marks.select("process", "time", in_step=pl.col("iteration").is_not_null())


def name_states(intervals: pl.DataFrame, state: str) -> pl.DataFrame:
    """Return ``pair, time`` and `state`: the name of what is open."""
    return states(intervals.rename({"name": state}), "pair", state)


def waited_before(gaps: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """Return ``gap, ahead, credit``: for how long the host had waited since it was last ahead.

    It would have been earlier by as much, had it not waited.

    Parameters
    ----------
    gaps
        ``gap, pair, start, ahead``.
    waiting
        ``pair, start, end``.
    """
    blocks = merged(waiting, ["pair"])
    since = pl.min_horizontal(pl.col("ahead").fill_null(_LONG_AGO), "start")
    rows = gaps.select("gap", "pair", "ahead", start=since, end="start")
    return covered(rows, blocks, ["pair"], "credit").select("gap", "ahead", "credit")
