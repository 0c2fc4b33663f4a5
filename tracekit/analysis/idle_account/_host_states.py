"""Intervals in which host threads wait, allocate, compile, sleep, or are in a range or step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.idle_account._timeline import covered, merged, overlapping, split_at, states
from tracekit.engine import host_marks, innermost_stretches
from tracekit.support.batches import at_least_one

if TYPE_CHECKING:
    from tracekit.model import Trace

_ALLOCATING = (
    r"^((cuda|hip)(Ext)?(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister)|MemPool)|"
    r"(cu|hip)Mem(Alloc|Free|Host(Alloc|Register|Unregister)|Create|Release|Map|Unmap|"
    r"AddressReserve))"
)
_WAITING = r"Synchronize(_v\d+)?$|^(cu(da)?|hip)Memcpy"
_LOADING = r"^(cu(da)?|hip)(Module|Library)Load"
_LOADING_AT_FIRST = r"^(cu(da)?|hip(Ext)?(Module)?)Launch(Kernel|Cooperative|Grid|$)|GetFunction"
_NOT_WAITING = r"Async|Query"
_STAGED_NS = 100_000
"""Length of a copying call above which the host copies or waits in it, ns."""
ITEM = "copy of a number to the host (as by .item())"
BLOCKING_COPY = "copy from the host that it waits for"
"""Names of copies in which the host waits."""
_NUMBER_BYTES = 64
_LINKING = r"^(cu|hip)Link(Create|Add|Complete)"
QUEUED_NS = 100_000
"""Time after launch above which a queued op waits for something else, and length above which a
launching call (a launch takes a few us) must have loaded code, ns."""
_OFF = "off the CPU"
_LOCKED = f"{_OFF} 5 ms at a time while its process ran, as who waits for Python's lock"
_LOCK_NS = (4_900_000, 5_500_000)
"""Length of waits for CPython's lock, ns: a thread asks every 5 ms (`sys.getswitchinterval`)."""
_LONG_AGO = -(1 << 62)
_NAME = pl.col("name").cast(pl.String)
_IS_WAIT = _NAME.str.contains(_WAITING) & ~_NAME.str.contains(_NOT_WAITING)
_IS_OF_CODE = _NAME.str.contains(f"{_LINKING}|{_LOADING}")


def pairs_of(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the two threads whose activity explains each idle gap of a GPU: launcher and driver.

    The launching thread launched the op that came late and so ended the gap; the driver is the
    thread on which the training steps of the same process run.

    Returns
    -------
    ``pair`` (number of the pair), ``process, launch_thread, driver``; ``driver`` is the launching
    thread if the process has no iterations.
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
    """Return ``thread, start, end`` (ns), ``name``: calls in which a thread waits for GPU work.

    These are synchronisations; copy calls that return only when the copy is done, or that take long
    (from memory that is not pinned, the host copies first); and calls that the profiler marks as
    waiting.
    """
    calls = trace.once(_telling_calls, of_all=True)
    by_name = calls.filter(_is_named(calls, _IS_WAIT))
    waited = trace["syncs"].filter(pl.col("type") != "stream_wait_event").select(
        "process", "correlation"
    ).drop_nulls("correlation").unique().collect()  # fmt: skip
    by_records = trace["calls"].filter(
        pl.col("correlation").is_in(waited["correlation"].unique().implode())
    ).join(waited.lazy(), on=["process", "correlation"], how="semi").collect()  # fmt: skip
    is_wait = ~_is_named(by_records, _NAME.str.contains("Query"))  # these return at once
    by_records = by_records.filter(is_wait)
    is_copy = pl.col("copy_kind").is_not_null()
    takes_long = pl.col("launch_end") - pl.col("launch_start") > _STAGED_NS
    copies = trace["ops"].filter(is_copy & (takes_long | (pl.col("launch_end") >= pl.col("end"))))
    long = copies.select(
        thread="launch_thread", start="launch_start", end="launch_end",
        name=_copy_name(),
    )  # fmt: skip
    named = [rows.select("thread", "start", "end", _NAME) for rows in (by_name, by_records)]
    found = pl.concat([*named, long.collect()])
    return found.unique(["thread", "start", "end"], keep="first", maintain_order=True)


def _copy_name() -> pl.Expr:
    is_number = (pl.col("kind") == "d2h") & (pl.col("bytes") <= _NUMBER_BYTES)
    return (
        pl.when(is_number).then(pl.lit(ITEM))
        .when(pl.col("kind") == "d2h").then(pl.lit("copy to the host that it waits for"))
        .when(pl.col("kind") == "h2d").then(pl.lit(BLOCKING_COPY))
        .otherwise(pl.lit("copy that the host waits for"))
    )  # fmt: skip


def allocations(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name`` (times in ns): calls that allocate or free memory."""
    calls = trace.once(_telling_calls, of_all=True)
    found = calls.filter(_is_named(calls, _NAME.str.contains(_ALLOCATING)))
    return found.select("thread", "start", "end", _NAME)


def loads(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end, name``: calls that load GPU code, and launches that do so.

    A launching call longer than `QUEUED_NS` is taken to load code if the op that it launches starts
    more than `QUEUED_NS` after the begin of the call, or is unknown.
    """
    calls = trace.once(_telling_calls, of_all=True).select("thread", "start", "end", "name")
    known = calls.filter(_is_named(calls, _NAME.str.contains(_LOADING)))
    launches = calls.filter(_is_long_launch(calls))
    prompt = trace["ops"].filter(
        pl.col("launch_start").is_in(launches["start"].implode()),
        pl.col("start") - pl.col("launch_start") <= QUEUED_NS,
    ).select(thread="launch_thread", start="launch_start").collect()  # fmt: skip
    loaded = launches.join(prompt, on=["thread", "start"], how="anti")
    return pl.concat([known, loaded]).with_columns(_NAME)


def builds(trace: Trace) -> pl.DataFrame:
    """Return ``process, start, end`` (ns), ``name``: calls that link or load GPU code."""
    calls = trace.once(_telling_calls, of_all=True)
    found = calls.filter(_is_named(calls, _IS_OF_CODE))
    return found.select("process", "start", "end", _NAME)


def _telling_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls whose names tell what a thread does, and launches that may load code."""
    telling = _IS_WAIT | _IS_OF_CODE | _NAME.str.contains(_ALLOCATING)
    columns = ("process", "thread", "start", "end", "name")
    return pl.concat(
        calls.filter(_is_named(calls, telling) | _is_long_launch(calls))
        for calls in at_least_one(trace["calls"].select(columns))
    )


def _is_long_launch(calls: pl.DataFrame) -> pl.Expr:
    is_long = pl.col("end") - pl.col("start") > QUEUED_NS
    return is_long & _is_named(calls, _NAME.str.contains(_LOADING_AT_FIRST))


def _is_named(calls: pl.DataFrame, condition: pl.Expr) -> pl.Expr:
    """Return an expression, true for calls whose name meets `condition` (tested once per name)."""
    names = calls["name"].unique().to_frame().filter(condition)["name"]
    return pl.col("name").is_in(names.implode())


def host_rows(trace: Trace, library: str, *conditions: pl.Expr) -> pl.DataFrame:
    """Return ``thread, start, end`` (ns), ``name`` of the host's events of a library."""
    found = trace["host"].filter(pl.col("library") == library, *conditions)
    return found.select("thread", "start", "end", "name").collect()


def off_cpu(trace: Trace) -> pl.DataFrame:
    """Return ``thread, start, end`` (ns), ``name``: when a thread was not on any CPU core.

    ``name`` is whether an interval looks like waiting for Python's lock (GIL), or only that the
    thread was off the CPU.
    """
    length = pl.col("end") - pl.col("start")
    is_lock = (pl.col("name") != _OFF) & length.is_between(*_LOCK_NS)
    name = pl.when(is_lock).then(pl.lit(_LOCKED)).otherwise(pl.lit(_OFF))
    return host_rows(trace, "os", pl.col("group") == "off_cpu").with_columns(name=name)


def is_locked() -> pl.Expr:
    """Return an expression that is true for `off_cpu` intervals like waits for Python's lock."""
    return pl.col("off_cpu") == _LOCKED


def of_both(intervals: pl.DataFrame, asleep: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return ``pair, start, end`` (ns), ``name``: when both threads of each pair sleep.

    A launching thread that sleeps while the steps' driver thread works only waits for that thread,
    so its sleep is left out.

    Parameters
    ----------
    intervals
        ``thread, start, end, name``: sleeps of launching threads.
    asleep
        The same columns: sleeps of all threads.
    pairs
        Pairs of threads (launching and driving) that explain gaps, from `pairs_of`.
    """
    columns = ["pair", "start", "end", "name"]
    alone = (pl.col("driver") == pl.col("launch_thread")).fill_null(value=True)
    known = intervals.rename({"thread": "launch_thread"}).join(pairs, on="launch_thread")
    if known.is_empty():
        return known.select(columns)
    of_driver = asleep.rename({"thread": "driver"}).join(pairs, on="driver")
    beside = name_states(of_driver.filter(~alone).select(columns), "beside")
    cut = split_at(known.filter(~alone).select(columns), beside, "pair", "beside")
    both = cut.drop_nulls("beside").select(columns)
    return pl.concat([known.filter(alone).select(columns), both])


def compilations(
    trace: Trace, gaps: pl.DataFrame, built: pl.DataFrame, asleep: pl.DataFrame
) -> pl.DataFrame:
    """Return ``pair, start, end`` (ns), ``name``: the part of each gap taken as compilation.

    This part goes from the start of the gap to the gap's last call that links GPU code. If the
    process started another program (a compiler) in the gap, the last later call that loads code
    counts, too. Time before the program started is left out while all threads of the process sleep.

    Parameters
    ----------
    gaps
        ``pair`` (of threads, see `pairs_of`), ``process, start, end`` (ns).
    built
        Calls that link or load GPU code, from `builds`.
    asleep
        ``thread, start, end``: sleeps of all threads.
    """
    if built.is_empty():
        return gaps.select("pair", "start", "end", name=pl.lit(None, pl.String)).clear()
    is_link = pl.col("name").str.contains(_LINKING)
    children = trace["host"].filter(
        pl.col("library") == "os", pl.col("group") == "child", pl.col("name") != "fork"
    )  # loaders fork their workers; compilers are other programs
    born = children.select("process", "start", since="start").collect()
    links = built.filter(is_link).with_columns(since="start")
    loaded = _with_latest(built.filter(~is_link), "start", born, "start").select(links.columns)
    wanted = gaps.select("pair", "process", "end", begin="start")
    found = pl.concat(
        _with_latest(wanted, "end", each.select("process", "since", "name", until="end"), "until")
        for each in (links, loaded)
    )
    inside = found.filter(pl.col("since") >= pl.col("begin")).sort("begin").join_asof(
        born.select("process", child="since").sort("child"),
        left_on="begin", right_on="child", by="process", strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    rows = inside.select("pair", "process", "name", "child", start="begin", end="until")
    if rows.is_empty():
        return rows.select("pair", "start", "end", "name")
    still = states(_all_asleep(trace, asleep), "process", "threads")
    joined = split_at(rows, still, "process", "threads")
    end = pl.col("end")
    first = pl.coalesce(pl.col("child").clip(pl.col("start"), end), "end")
    begin = pl.when(pl.col("threads").is_null()).then("start").otherwise(first)
    return joined.select("pair", "end", "name", start=begin).select(
        "pair", "start", "end", "name"
    ).filter(pl.col("start") < end)  # fmt: skip


def _all_asleep(trace: Trace, asleep: pl.DataFrame) -> pl.DataFrame:
    """Return when all known threads of a process sleep: ``process, start, end`` (ns), ``threads``.

    ``threads`` is their number.
    """
    keys = ["process", "thread"]
    of_os = trace["host"].filter(pl.col("library") == "os")
    known = pl.concat([table.select(keys).unique() for table in (trace["calls"], of_os)])
    threads = known.unique().drop_nulls().collect()
    number = threads.group_by("process").agg(threads=pl.len().cast(pl.Int64))
    blocks = merged(asleep, ["thread"]).join(threads, on="thread")
    edges = [
        blocks.select("process", time=edge, step=pl.lit(step, pl.Int64))
        for edge, step in (("start", 1), ("end", -1))
    ]
    counted = pl.concat(edges).sort("process", "time", "step").with_columns(
        level=pl.col("step").cum_sum().over("process"),
        end=pl.col("time").shift(-1).over("process"),
    ).join(number, on="process", maintain_order="left")  # fmt: skip
    return counted.filter(
        pl.col("level") == pl.col("threads"), pl.col("end") > pl.col("time")
    ).select("process", "end", "threads", start="time")  # fmt: skip


def _with_latest(
    rows: pl.DataFrame, time: str, events: pl.DataFrame, event_time: str
) -> pl.DataFrame:
    """Add to each row the last event of its process up to the row's `time`; drop rows without one.

    `event_time` is the column of `events` with their time.
    """
    of_event = events.with_columns(event=event_time).sort("event")
    known = rows.sort(time).join_asof(
        of_event.drop(event_time) if event_time in rows.columns else of_event,
        left_on=time, right_on="event", by="process", check_sortedness=False,
    )  # fmt: skip
    return known.drop_nulls("event")


def threads_of(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return ``pair, thread``: one row for each thread of each pair (see `pairs_of`)."""
    sides = [pairs.select("pair", thread=side) for side in ("launch_thread", "driver")]
    return pl.concat(sides).drop_nulls().unique(maintain_order=True)


def of_pairs(intervals: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return ``pair, start, end`` (ns), ``name``: intervals of either thread of a pair.

    `pairs_of` explains pairs.
    """
    return intervals.join(threads, on="thread").select("pair", "start", "end", "name")


def in_ranges(trace: Trace, pieces: pl.DataFrame, pairs: pl.DataFrame, column: str) -> pl.DataFrame:
    """Split idle intervals where the innermost NVTX range on the driver thread changes.

    Parameters
    ----------
    pieces
        ``pair, start, end`` (ns) and any other columns.
    pairs
        Pairs of threads (launcher and driver) that explain gaps, from `pairs_of`.
    column
        Property of that range to add, ``name`` or ``stage``; ranges without it are ignored.

    Returns
    -------
    The columns of `pieces`, and `column`; null outside of all ranges.
    """
    drivers = pairs.select("pair", thread="driver").drop_nulls()
    nested = trace["ranges"].filter(
        pl.col("style") == "push_pop", pl.col("end") > pl.col("start"),
        pl.col("thread").is_in(drivers["thread"].unique().implode()), pl.col(column).is_not_null(),
        # Files say when the ranges of their pieces are, and so which of these to read.
        pl.col("start") < pl.lit(pieces["end"].max(), pl.Int64),
        pl.col("end") > pl.lit(pieces["start"].min(), pl.Int64),
    )  # fmt: skip
    ranges = nested.select("range", "process", "thread", "domain", "start", "end", column).collect()
    near = ranges.filter(overlapping(ranges, pieces))
    inside = states(innermost_stretches(near).join(drivers, on="thread"), "pair", "range")
    cut = split_at(pieces, inside, "pair", "range")
    labels = near.select("range", column)
    return cut.join(labels, on="range", how="left", maintain_order="left").drop("range")


def sampled(trace: Trace, pieces: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the functions in which CPU samples caught the host during intervals of idle gaps.

    Parameters
    ----------
    pieces
        ``gap, pair, start, end, cause`` (times in ns).
    pairs
        Pairs of threads (launching and driving) that explain gaps, from `pairs_of`.

    Returns
    -------
    ``gap, cause, name``: one row per sample of either thread of the pair.
    """
    threads = threads_of(pairs)
    samples = trace["host"].filter(
        pl.col("library") == "sample", pl.col("thread").is_in(threads["thread"].implode())
    ).select("thread", "name", time="start").collect()  # fmt: skip
    met = samples.join(threads, on="thread").sort("time").join_asof(
        pieces.select("gap", "pair", "cause", "end", begin="start").sort("begin"),
        left_on="time", right_on="begin", by="pair", check_sortedness=False,
    )  # fmt: skip
    return met.filter(pl.col("time") < pl.col("end")).select("gap", "cause", "name")


def step_states(trace: Trace) -> pl.DataFrame:
    """Return ``process, time`` (ns), ``in_step``: when the host enters (true) or leaves a step."""
    marks = host_marks(trace.read("iterations"))
    return marks.select("process", "time", in_step=pl.col("iteration").is_not_null())


def name_states(intervals: pl.DataFrame, state: str) -> pl.DataFrame:
    """Turn intervals into state changes of pairs of threads: ``pair, time`` (ns) and `state`.

    The state is the name of the interval that is open from then on, or null.
    """
    return states(intervals.rename({"name": state}), "pair", state)


def waited_before(gaps: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """Return ``gap, ahead, credit`` (ns): how long the host waited for the GPU before each gap.

    ``ahead`` is the end of the last launch whose op was queued for long. ``credit`` is the time in
    waiting calls from ``ahead`` to the start of the gap: without these calls, the host would have
    been earlier by that time. `gaps` has ``gap, pair`` (of threads, see `pairs_of`), ``start,
    ahead``; `waiting` has ``pair, start, end``.
    """
    blocks = merged(waiting, ["pair"])
    since = pl.min_horizontal(pl.col("ahead").fill_null(_LONG_AGO), "start")
    rows = gaps.select("gap", "pair", "ahead", start=since, end="start")
    return covered(rows, blocks, ["pair"], "credit").select("gap", "ahead", "credit")
