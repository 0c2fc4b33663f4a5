"""Waits of threads and streams: for GPU work, for events, and for input batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.dependencies._edges import (
    LANE,
    MOMENT,
    SLOW_CALL_NS,
    edges,
    near,
    same_lane,
    with_last_done,
)
from tracekit.analysis.idle_account import covered, merged, plain_name
from tracekit.engine import host_marks, latest

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._edges import Moments
    from tracekit.model import Trace

SYNCHRONISES = r"(Device|Ctx|Stream|Event)Synchronize"
_FREES = r"^(cu(da)?|hip)(Mem)?Free(_v\d+)?$"
_AT_ONCE_NS = 10_000
"""Longest time from the begin of a copy to the return of a call that waited for it, ns."""
_STREAM_WAITS = r"^(cu(da)?|hip)StreamWaitEvent"
_AWAITED_NS = 100_000
"""Time of a driving thread in input ranges or between steps that is a wait for the loader."""
_AWAITED_SHARE = 0.1
"""A loader that works ahead and is waited for is waited for long: it takes longer than the rest."""
_SEVERAL = 4
"""Least number of batches at which one wait with most of the time is doubted."""
_RHYTHM = 3
"""Minimum number of waits at equal distances, in batches, that make a rhythm."""
_LONG, _USUAL = 0.25, 0.9
"""A wait for a group of batches takes at least so much of this percentile of all waits."""
_MOST_WORKERS = 64
_ASLEEP = 0.9
"""Least share of time asleep at which a thread counts as waiting."""
_SLOWER = 1.25
"""Largest ratio of a batch's time to that of the first one, which includes the loader's start."""
_ALONE = "_SingleProcessDataLoaderIter"
"""Part of the name of PyTorch's ranges in which a loader without workers loads a batch."""
_LENGTH = pl.col("end") - pl.col("start")
_PAIR = pl.Schema({"source": MOMENT, "target": MOMENT})


def wait_edges(trace: Trace, moments: Moments) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return edges by which calls and streams wait for ops, and waits for other threads' events.

    The second table is ``giver, target, lag``: ``target`` is a call that makes a stream wait for an
    event, ``giver`` the call of another thread that recorded the event, ``lag`` the ns from the
    giver's end to the target's start.
    """
    syncs, event_waits = _syncs(trace, moments)
    fetches, sends = (_copies(moments, way) for way in ("d2h", None))
    calls = pl.concat([syncs, _by_name(moments, syncs), fetches])
    freeing = moments.calls_named(_FREES).filter(pl.col("end") - pl.col("start") >= SLOW_CALL_NS)
    freeing = freeing.select("process", "start", target="finish", ended="end")
    frees = _last_done(moments, freeing)
    blocked = pl.concat([sends, _begun(moments), frees]).unique(maintain_order=True)
    streams, handed = _events(trace, moments)
    followed = pl.concat([streams, _guessed_waits(moments, streams)]).unique(maintain_order=True)
    returning = pl.concat([calls, event_waits]).unique(maintain_order=True)
    unasked = blocked.join(returning, on=["source", "target"], how="anti")
    found = [
        edges(returning, "source", "target", "return"),
        edges(unasked, "source", "target", "block"),
        edges(followed, "source", "target", "event"),
    ]
    return pl.concat(found), handed


# -- calls that wait ---------------------------------------------------------------------------


def _syncs(trace: Trace, moments: Moments) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (op, waiting call) node pairs in two tables: for waits on streams, and on events."""
    waits = trace["syncs"].filter(pl.col("type") != "stream_wait_event").drop_nulls("correlation")
    rows = waits.with_columns(pl.col("context").fill_null(-1)).collect()
    calls = moments.calls.select("process", "correlation", "start", target="finish", ended="end")
    known = rows.drop("start", "end").join(calls, on=["process", "correlation"])
    of_event = known.filter(pl.col("type") == "event")
    events = _recorded(trace, moments, of_event.with_columns(
        known=pl.coalesce("recorded_by", "correlation")
    ))  # fmt: skip
    of_lanes = known.filter(pl.col("type") != "event").select(
        "process", "start", "target", "ended", on_device="device", on_context="context",
        on_stream="stream", one=pl.col("type") == "stream",
    ).join(moments.lanes, on="process").filter(
        (pl.col("on_device").is_null() | (pl.col("on_device") == pl.col("device")))
        & ((pl.col("on_context") < 0) | (pl.col("on_context") == pl.col("context")))
        & (~pl.col("one") | pl.col("on_stream").is_null()
           | (pl.col("on_stream") == pl.col("stream")))
    )  # fmt: skip
    return _last_launched(moments, of_lanes), events.select("source", "target")


def _last_launched(moments: Moments, waits: pl.DataFrame) -> pl.DataFrame:
    """Return nodes ``source, target``: last op launched on a stream before a wait; the wait.

    Parameters
    ----------
    moments
        The run.
    waits
        Waiting calls: ``start`` (ns), ``target`` (node of the end), ``ended`` (its time, ns), and
        the process, device, context and stream waited for.
    """
    if waits.is_empty():
        return pl.DataFrame(schema=_PAIR)
    ops = near(moments.ops, "launch_start", waits["start"], LANE)
    launched = ops.select(*LANE, "end", time="launch_start", source="finish")
    return (
        waits.sort("start")
        .join_asof(launched.sort("time"), left_on="start", right_on="time", by=LANE,
                   check_sortedness=False)
        .drop_nulls("source")
        .filter(pl.col("end") <= pl.col("ended"))
        .select("source", "target")
    )  # fmt: skip


def _by_name(moments: Moments, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return nodes ``source, target``: an op, and the call that by its name waits for it.

    Left out are calls in `syncs`, for which the profiler recorded what they wait for.
    """
    calls = moments.calls_named(SYNCHRONISES)
    untold = calls.join(syncs.select(finish="target"), on="finish", how="anti").select(
        "process", "start", target="finish", ended="end",
        device_wide=~pl.col("name").cast(pl.String).str.contains("Stream|Event"),
    )  # fmt: skip
    all_lanes = untold.filter("device_wide").join(moments.lanes, on="process")
    one = untold.filter(~pl.col("device_wide")).select("process", "start", "target", "ended")
    return pl.concat([_last_launched(moments, all_lanes), _last_done(moments, one)])


def _last_done(moments: Moments, waits: pl.DataFrame) -> pl.DataFrame:
    """Return nodes ``source, target``: last op of a process to end during a wait; wait's end."""
    if waits.is_empty():
        return pl.DataFrame(schema=_PAIR)
    inside = (pl.col("done_at") > pl.col("start")) & (pl.col("launched") <= pl.col("start"))
    done = with_last_done(waits, "ended", moments.ops).filter(inside)
    return done.select(source="done", target="target")


def _copies(moments: Moments, way: str | None) -> pl.DataFrame:
    """Return nodes ``source, target``: end of a copy, and of its call, which waits for the copy.

    `way` selects one kind of copy, such as ``d2h`` (to the host); None: all but ``d2h``.
    """
    kind = pl.col("kind").cast(pl.String)
    done = moments.copies.filter(
        (pl.col("launch_end") >= pl.col("end"))
        & ((kind != "d2h") if way is None else (kind == way))
    )
    return done.select(source="finish", target=pl.col("launch") + 1)


def _begun(moments: Moments) -> pl.DataFrame:
    """Return nodes ``source, target``: start of a copy, end of the long call that launched it.

    Such a call returns when the copy starts: pageable memory is passed on in chunks, once the
    stream is free.
    """
    slow = pl.col("launch_end") - pl.col("launch_start") >= SLOW_CALL_NS
    at_begin = (pl.col("launch_end") - pl.col("start")).is_between(0, _AT_ONCE_NS)
    copies = moments.copies.filter(slow & at_begin)
    return copies.select(source="begin", target=pl.col("launch") + 1)


# -- streams that wait -------------------------------------------------------------------------


def _events(trace: Trace, moments: Moments) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``source, target`` of ops that wait for events, and ``target, lag, giver`` of calls.

    First table: the next op on the waiting stream (target) waits for the last op before the event
    on the stream on which the event was recorded (source). Second table: the call that makes the
    stream wait (target) comes ``lag`` ns after the call of another thread that recorded the event
    (giver).
    """
    waits = trace["syncs"].filter(pl.col("type") == "stream_wait_event").with_columns(
        pl.col("context").fill_null(-1), pl.col("stream").fill_null(-1),
        known=pl.coalesce("recorded_by", "correlation"),
    ).drop_nulls(["known", "device"]).collect()  # fmt: skip
    if waits.is_empty():
        nothing = pl.DataFrame(
            schema={"source": MOMENT, "target": MOMENT, "lag": pl.Int64(), "giver": MOMENT}
        )
        return nothing.select("source", "target"), nothing.select("target", "lag", "giver")
    calls = moments.calls.select("process", "thread", "correlation", "begin", "finish",
                                 "end", call_start="start")  # fmt: skip
    launched = moments.ops.select(
        *LANE, target="begin", time="launch_start", began="start"
    ).drop_nulls("time")
    holding = waits.sort("start").join_asof(
        launched.sort("time"), left_on="start", right_on="time", by=LANE, strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    edges_found = _recorded(trace, moments, holding.drop_nulls("target").rename({"began": "ended"}))
    recorded = _records(trace, waits).rename({"record": "correlation"})
    events = recorded.select("process", "correlation", wait="wait").join(
        calls.select("process", "correlation", giver="thread", source="finish", given="end"),
        on=["process", "correlation"],
    ).join(
        calls.select("process", wait="correlation", taker="thread", target="begin",
                     taken="call_start"),
        on=["process", "wait"],
    )  # fmt: skip
    sound = (pl.col("giver") != pl.col("taker")) & (pl.col("given") <= pl.col("taken"))
    events = events.filter(sound)
    lag = pl.col("taken") - pl.col("given")
    return edges_found.select("source", "target"), events.select("target", lag=lag, giver="source")


def _records(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    """Add, to waits for an event, the last call that recorded the event before, and its stream."""
    records = trace["event_records"].drop_nulls("correlation").select(
        "process", "event", record="correlation", record_device="device",
        record_context=pl.col("context").fill_null(-1), record_stream=pl.col("stream").fill_null(-1)
    ).collect()  # fmt: skip
    named = waits.with_columns(wait="correlation").drop_nulls("known").sort("known")
    return named.drop("correlation").join_asof(
        records.sort("record"), left_on="known", right_on="record", by=["process", "event"],
        check_sortedness=False,
    ).drop_nulls("record")  # fmt: skip


def _recorded(trace: Trace, moments: Moments, waits: pl.DataFrame) -> pl.DataFrame:
    """Return nodes ``source, target``: last op launched before an event's recording; wait for it.

    Parameters
    ----------
    trace, moments
        The run.
    waits
        Waits: ``process, event, correlation``; ``known``, correlation id of the recording call or
        an upper limit of it; ``target, ended``, node and time (ns) of the wait's end.
    """
    if waits.is_empty():
        return pl.DataFrame(schema=_PAIR)
    ops = moments.ops.select(
        "process", "context", "stream", "end", number="correlation", source="finish"
    ).drop_nulls("number")
    recorded = _records(trace, waits).select(
        "process", "target", "record", "ended", context="record_context", stream="record_stream"
    )
    return (
        recorded.sort("record")
        .join_asof(ops.sort("number"), left_on="record", right_on="number",
                   by=["process", "context", "stream"], check_sortedness=False)
        .drop_nulls("source")
        .filter(pl.col("end") <= pl.col("ended"))
    )  # fmt: skip


def _guessed_waits(moments: Moments, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return nodes ``source, target``: guessed waits between streams; none if `syncs` has any.

    The next op of the calling thread, and the next op of its process, are taken to wait for the
    last op that the process had launched on each other stream of that GPU, if they did start after
    it: the thread that ends a backward pass makes the optimizer's stream wait.
    """
    if not syncs.is_empty():
        return syncs.clear()
    waits = moments.calls_named(_STREAM_WAITS)
    if waits.is_empty():
        return pl.DataFrame(schema=_PAIR)
    threads = [*LANE, "launch_thread"]
    launched = near(moments.ops, "launch_start", waits["start"], threads)
    loaders = moments.loaders
    blocked = (
        pl.concat(
            [_next_op(waits, launched, "thread"), _next_op(waits, launched, "process", loaders)]
        )
        .unique(["target", "waited"], maintain_order=True)
        .unique("target", keep="last")
    )
    lanes = launched.filter(~same_lane()).select(LANE)
    pairs = blocked.join(
        lanes.rename({"context": "other_context", "stream": "other"}), on=["process", "device"]
    ).filter((pl.col("other") != pl.col("stream")) | (pl.col("other_context") != pl.col("context")))
    sources = launched.select(
        "process", "device", "end", other_context="context", other="stream", time="launch_start",
        source="finish",
    )  # fmt: skip
    keys = ["process", "device", "other_context", "other"]
    return (
        pairs.sort("waited")
        .join_asof(sources.sort("time"), left_on="waited", right_on="time", by=keys,
                   check_sortedness=False)
        .drop_nulls("source")
        .filter(pl.col("end") <= pl.col("start"))
        .select("source", "target")
    )  # fmt: skip


def _next_op(
    waits: pl.DataFrame, launched: pl.DataFrame, by: str, aside: pl.Series | None = None
) -> pl.DataFrame:
    """Return the next op that a call's thread (or process) launches after the call, with its nodes.

    Parameters
    ----------
    waits
        Calls, with ``start`` (ns).
    launched
        Ops, with their launches.
    by
        ``thread`` or ``process``: whose next launch is sought.
    aside
        Threads whose calls and ops are ignored.
    """
    none = waits["thread"].clear() if aside is None else aside
    ops = launched.filter(~pl.col("launch_thread").is_in(none.implode())).select(
        *LANE, "start", thread="launch_thread", time="launch_start", target="begin"
    )
    calls = waits.filter(~pl.col("thread").is_in(none.implode())).select(by, waited="start")
    found = calls.sort("waited").join_asof(
        ops.sort("time"), left_on="waited", right_on="time", by=by, strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    return found.drop_nulls("target").select(*LANE, "start", "target", "waited")


@dataclass(frozen=True)
class Batches:
    """Batches of input taken by the threads that drive iterations, and the waits for them."""

    taken: pl.DataFrame
    """``process, thread, target, source, end, length, loading, evident, own, lag, waited, before,
    between``, sorted by thread and time (times in ns). The thread makes no call for `length`, from
    node `source` to node `target` (time `end`), where the call begins that takes the batch.
    `loading` is the part of `length` in which the thread may wait for the batch; `waited`, whether
    `loading` is long enough to count as a wait; `evident`, the part of `length` that the thread
    spends in ranges of input or asleep. `own` is whether the call copies the batch to the GPU;
    `lag`, the time since the previous batch, taken at node `before`; `between`, the number of
    batches since the last wait."""
    workers: int | None
    """Number of loader workers: the processes forked before the first batch, or the batches between
    two waits. None if neither is recorded."""
    forks: int | None
    """Number of processes forked before the first batch, which are taken for loader workers."""
    asleep: bool
    """Whether calls of the operating system show that threads slept in 90 % of the waiting time."""
    most_ns: int | None
    """Upper bound of a loader's time per batch, estimated from the wait for the first batch, ns."""
    slept_is_known: bool
    """Whether calls of the operating system were recorded."""
    trace: Trace

    def doubt(self, steps: pl.DataFrame) -> str:
        """Return why time that counts as waiting for a loader may be other work; empty if nothing.

        Waits that are mostly in the time of `steps` count. Reasons: most of the time lies in ranges
        other than input; the thread is awake for most of the time; or one wait makes up most of it.
        """
        middle = pl.col("end") - pl.col("length").fill_null(0) // 2
        inside = middle.is_between(steps["start"].min(), steps["end"].max())
        waits = self.taken.filter("waited", inside)
        if elsewhere := _elsewhere(self.trace, waits):
            return (
                "most time that counts as waiting for a loader lies in ranges between steps: "
                f"{elsewhere}; if these do not wait for input, a faster loader wins less"
            )
        evident, loading = waits.select(pl.col("evident", "loading").sum()).row(0)
        if 2 * evident < loading:
            sleep = "does not sleep" if self.slept_is_known else "may be awake"
            return (
                "most time that counts as waiting for a loader lies between steps, while the "
                f"thread {sleep}: it may be something else, such as writing a file"
            )
        longest: Any = waits["loading"].max() or 0
        usual: Any = self.taken["lag"].median() or 0
        least = max(loading / 2, _AWAITED_SHARE * usual)
        if self.taken.height < _SEVERAL or longest <= least:
            return ""
        return (
            f"one wait of {longest / 1e6:,.1f} ms is {100 * longest / loading:.0f} % of the "
            "time that counts as waiting for a loader: it may be something else, such as an "
            "evaluation or a new run"
        )

    @property
    def rhythmic(self) -> pl.DataFrame:
        """Waits for batches of a loader that was busy without a break since an earlier batch.

        The loader starts a batch whenever one is taken. New columns: ``first``, the node at which
        the first batch of this busy period was taken, and ``since``, ns from that node to the end
        of the wait. Threads that load batches themselves (shown by PyTorch's ranges) have no rows.
        """
        near = (pl.col("between") <= pl.lit(self.workers, pl.Int64)).fill_null(value=False)
        awake = pl.lit(self.slept_is_known) & (2 * pl.col("evident") < pl.col("loading"))
        ranges = self.trace["ranges"].filter(pl.col("name").cast(pl.String).str.contains(_ALONE))
        alone = ranges.select("thread").unique().collect()
        waits = self.taken.filter("waited").with_columns(near=near & ~awake)
        waits = waits.join(alone, on="thread", how="anti", maintain_order="left")
        first = {
            name: pl.when(~pl.col("near")).then(column).forward_fill().over("thread")
            for name, column in (("first", "target"), ("began", "end"))
        }
        chained = waits.with_columns(**first).filter("near")
        return chained.with_columns(since=pl.col("end") - pl.col("began")).drop_nulls("first")

    @property
    def paced(self) -> pl.DataFrame:
        """All batches but the first, with ``pace``: upper bound of the loader's time for each, ns.

        Only batches of threads that copy the input to the GPU are listed, as only these threads
        show each batch.
        """
        most = pl.lit(self.most_ns, pl.Int64)
        pace = pl.when("waited").then("lag").otherwise(pl.min_horizontal("lag", most))
        return self.taken.filter("own").drop_nulls("before").with_columns(pace=pace)


def batches_of(trace: Trace, moments: Moments, gaps: pl.DataFrame) -> Batches:
    """Return the batches of input that a run took; `gaps` are times without calls on threads.

    A thread that launches copies of input takes a batch with the first copy of each iteration. It
    waits for the batch in input ranges and between steps and, if there are no input ranges, also
    while the operating system has it asleep. For other threads only waits in ranges and between
    steps are known. Time between the requests of a server is no wait for a batch.
    """
    iterations, takes = trace.read("iterations"), _first_copies(moments)
    asked = (_LENGTH >= _AWAITED_NS) | pl.col("target").is_in(takes["target"].implode())
    driving = gaps.filter(asked).with_columns(length=_LENGTH).join(
        iterations, on="thread", how="semi"
    )  # fmt: skip
    loads = trace["ranges"].filter(pl.col("stage") == "IO").select("thread", "start", "end")
    ranges = loads.collect()
    servers = trace.read("verdicts").filter(verdict="inference")
    periods = pl.concat([ranges, _between(iterations.join(servers, on="process", how="anti"))])
    naps = _asleep(trace).join(ranges, on="thread", how="anti")
    signs = merged(pl.concat([ranges, _asleep(trace)]), ["thread"])
    evident = covered(driving, signs, ["thread"], "evident")
    known, by_ranges = (
        covered(evident, merged(blocks, ["thread"]), ["thread"], "loading")
        for blocks in (pl.concat([periods, naps]), periods)
    )
    unplaced = known.drop("thread", "process", "start", "end")
    copied = takes.join(unplaced, on="target", how="left")
    others = by_ranges.filter(pl.col("loading") >= _AWAITED_NS).join(
        copied, on="thread", how="anti"
    )
    columns = ["process", "thread", "target", "source", "end", "length", "loading", "evident"]
    both = [copied.select(columns, own=True), others.select(columns, own=False)]
    taken = pl.concat(both).sort("thread", "end")
    return _described(trace, _with_turns(moments, taken))


def _with_turns(moments: Moments, taken: pl.DataFrame) -> pl.DataFrame:
    """Add ``place``: the number of the batch that a thread waits for, from 0.

    Waits between which the thread launches nothing but input are for the same batch. But a wait
    that ends where the thread launches the first input copy of a step is for a new batch.
    """
    ops = near(moments.ops, "launch_start", taken["end"], [*LANE, "launch_thread", "stage"])
    launched = ops.filter(pl.col("stage") != "IO").select(
        thread="launch_thread", time="launch_start"
    ).drop_nulls().sort("time")  # fmt: skip
    placed = taken.sort("end").join_asof(
        launched, left_on="end", right_on="time", by="thread", check_sortedness=False
    )
    last = pl.col("time").fill_null(0)
    is_next = pl.col("own") | (last != last.shift(fill_value=-1))
    number = is_next.cum_sum().cast(pl.Int64) - 1
    return placed.sort("thread", "end").with_columns(place=number.over("thread")).drop("time")


def _first_copies(moments: Moments) -> pl.DataFrame:
    """Return the launch of the first input copy of each iteration.

    Columns: ``process, thread``; ``target, end``, the node and the time (ns) at which it starts.
    """
    loads = pl.col("launch_thread").is_in(moments.loaders.implode())
    copies = moments.ops.filter(pl.col("stage") == "IO").filter(~loads)
    first = copies.filter("called").drop_nulls("iteration").sort("launch_start").unique(
        ["launch_thread", "iteration"], keep="first", maintain_order=True
    )  # fmt: skip
    calls = moments.launching(first.drop_nulls("launch"))
    return calls.select("process", "thread", target="begin", end="start")


def _described(trace: Trace, taken: pl.DataFrame) -> Batches:
    """Add to the batches `taken` the waits for them and the time between them; see `Batches`."""
    batch = ["thread", "place"]
    done = taken.select(
        "thread", pl.col("place") + 1, before="target", last="end"
    ).unique(batch, keep="last", maintain_order=True)  # fmt: skip
    placed = taken.join(done, on=batch, how="left", maintain_order="left").with_columns(
        lag=pl.col("end") - pl.col("last")
    ).drop("last")  # fmt: skip
    loading = pl.col("loading").sum().over(batch)
    is_long = loading >= _AWAITED_SHARE * pl.col("lag").fill_null(0)
    waited = placed.with_columns(
        waited=((pl.col("loading") >= _AWAITED_NS) & is_long).fill_null(value=False)
    )

    last = pl.when("waited").then("place").forward_fill().shift().over("thread")
    chained = waited.with_columns(between=pl.col("place") - last)
    waits = chained.filter("waited").drop_nulls("between")
    forked = _forked(trace, chained.filter(pl.col("place") == 0))
    first: Any = forked["wait"].max()
    counts = forked["forks"].drop_nulls().unique()
    forks = counts.item() if counts.len() == 1 else None
    return Batches(
        chained,
        _workers(waits) if forks is None else forks,
        forks,
        _slept(trace, waits),
        None if first is None else round(first * _SLOWER),
        not trace["contents"].filter(feature="OS runtime calls", present=True).collect().is_empty(),
        trace,
    )


def _forked(trace: Trace, first: pl.DataFrame) -> pl.DataFrame:
    """Return, for each thread's first batch, the loader processes and their time per batch.

    ``forks`` is the number of processes forked before the batch. Each makes one batch, so ``wait``
    is the time from the last fork to the batch over ``forks``, ns; without forked processes it is
    the whole time in which the thread made no calls.
    """
    forks = trace["host"].filter(
        (pl.col("group") == "child") & (pl.col("name") == "fork")
    ).select("thread", forked="start", ready="end").collect()  # fmt: skip
    began = (pl.col("end") - pl.col("length")).fill_null(0)
    inside = first.join(forks, on="thread").filter(
        (pl.col("forked") >= began) & (pl.col("ready") <= pl.col("end"))
    )
    by_thread = inside.group_by("thread").agg(forks=pl.len(), ready=pl.col("ready").max())
    each = (pl.col("end") - pl.col("ready")) / pl.col("forks")
    return first.join(by_thread, on="thread", how="left").select(
        "forks", wait=pl.coalesce(each, "length")
    )


def _workers(waits: pl.DataFrame) -> int | None:
    """Return the number of loader workers: the median number of batches between two long waits.

    None if there are too few long waits, or if they are too far apart.
    """
    usual = waits["loading"].quantile(_USUAL)
    long = waits.filter(pl.col("loading") >= _LONG * pl.lit(usual))
    places = long.unique(["thread", "place"], maintain_order=True)
    apart: float | None = places.select(pl.col("place").diff().over("thread").median()).item()
    if places.height < _RHYTHM or apart is None or apart > _MOST_WORKERS:
        return None
    return round(apart)


def _slept(trace: Trace, waits: pl.DataFrame) -> bool:
    """Test whether operating system calls show that threads slept in these waits for batches."""
    naps = merged(_asleep(trace), ["thread"])
    if waits.is_empty() or naps.is_empty():
        return False
    spans = waits.select("thread", "end", "loading", start=pl.col("end") - pl.col("length"))
    slept = covered(spans, naps, ["thread"], "slept")
    total = slept.select(pl.col("slept", "loading").sum())
    return bool(total.select(pl.col("slept") >= _ASLEEP * pl.col("loading")).item())


def _elsewhere(trace: Trace, waits: pl.DataFrame) -> str:
    """Return names of ranges (other than input) that cover most of the waiting time; else "".

    Only ranges between annotated steps count.
    """
    gaps = _between(trace.read("iterations")).rename({"start": "time"})
    ranges = trace["ranges"].filter(pl.col("stage").ne_missing("IO"), pl.col("end") > 0).join(
        waits.lazy().select("thread").unique(), on="thread", how="semi"
    ).select("thread", "start", "end", "name").collect()  # fmt: skip
    until = gaps["end"].gather(latest(ranges, "start", gaps, ["thread"]))
    inside = ranges.filter(ranges["end"] <= until).with_columns(plain_name(pl.col("name")))
    spans = waits.select("thread", "end", "loading", start=pl.col("end") - pl.col("length"))
    found = covered(spans, merged(inside, ["thread"]), ["thread"], "named")
    named, loading = found.select(
        pl.min_horizontal("named", "loading").sum(), pl.col("loading").sum()
    ).row(0)
    if 2 * named <= loading:
        return ""
    by_name = (
        inside.group_by("name").agg(_LENGTH.sum()).sort("end", "name", descending=[True, False])
    )
    return ", ".join(f"`{name}`" for name in by_name["name"].head(2))


def _asleep(trace: Trace) -> pl.DataFrame:
    """Return the times in which threads are in waiting calls of the operating system."""
    host = trace["host"].filter(pl.col("group") == "wait")
    return host.select("thread", "start", "end").collect()


def _between(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return ``thread, start, end`` (ns) of the time between annotated steps, if there are any."""
    from_ranges = iterations.filter(pl.col("source") == "ranges")
    threads = from_ranges.select("process", "thread").unique("process")
    marks = host_marks(from_ranges).sort("process", "time")
    spans = marks.with_columns(end=pl.col("time").shift(-1).over("process"))
    empty = spans.filter(pl.col("iteration").is_null()).drop_nulls("end")
    return empty.join(threads, on="process").select("thread", start="time", end="end")
