"""Dependency graph of a run: nodes (start and end of calls and ops), edges and their lengths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.analysis.dependencies._edges import (
    HOLDS_NOTHING,
    KIND,
    LANE,
    MOMENT,
    SLOW_CALL_NS,
    Moments,
    edges,
    moments_of,
    near,
    same_lane,
    with_last_done,
)
from tracekit.analysis.dependencies._sweeps import (
    NEAR,
    NO_NODE,
    NONE,
    SIZE,
    Array,
    Net,
    follow_back,
    lead_out,
    list_edges,
    list_instant,
    put_in_order,
    replay,
    sum_lags,
)
from tracekit.analysis.dependencies._waits import Batches, batches_of, wait_edges
from tracekit.model import with_clocks
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.model import Trace

_FULL = 256
"""A launch that takes long while as many ops are queued waits until one of them is done."""
TOGETHER_NS = 50_000
"""Largest distance between the ends of a collective's participants, ns."""
_PAIRED = 1 << 40
_LENGTH = pl.col("end") - pl.col("start")
_HANDED_NS = 30_000
"""Least time without calls after which a thread may wait for another one, ns."""
_AT_ONCE_NS = 100_000
"""A thread that goes on no later than this after another one recorded an event waited for it."""
_MOST_THREADS = 64
TOLERATED_NS = 20_000
"""Tolerance, ns: a larger unexplained delay of a moment is kept in replays."""
_ROUNDS = 3
BATCH = 1 << 18
"""Number of segments of critical paths that are described at a time."""
_PATH = {
    "target": np.uint32, "kind": np.uint8, "step": np.uint32,
    "start": np.int64, "end": np.int64, "explained": np.int64,
}  # fmt: skip
_KIND = pl.col("kind").cast(pl.UInt8).cat.to(KIND)
_CROSSING = (
    "return",
    "block",
    "queue",
    "handover",
    "event",
    "order",
    "transfer",
    "loader",
    "wait",
    "pace",
)


def _of_ops(trace: Trace, moments: Moments) -> tuple[pl.DataFrame, dict[str, Array]]:
    """Return edges into ops that node numbers do not imply; and arrays of `Net` for implied edges.

    Listed are edges into ops without a recorded launch that come first on a stream, and edges
    between participants of a matched collective.
    """
    ops = moments.ops
    follows = ops.select(same_lane().fill_null(value=False)).to_series()
    lone = ops.filter(ops["launch"].is_null() & ~follows)
    together = _together(trace, ops)
    alone = np.ones(ops.height, np.bool_)
    alone[(together["begin"].to_numpy() - moments.first_of_ops) // 2] = False
    others = [
        edges(with_last_done(lone, "start", ops), "done", "begin", "order"),
        edges(together, "other", "finish", "transfer", "weight"),
    ]
    return pl.concat(others), {
        "launch": given(ops["launch"], null=NO_NODE),
        "follows": given(follows),
        "alone": alone,
        "work": 1 + given(ops["work"].to_physical()),
    }


def _together(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``other, begin, finish, weight`` for each pair of participants of a collective.

    ``begin, finish`` are the nodes at which one starts and ends, ``other`` that at which the other
    one starts. Bytes begin to move when the last of all has started; ``weight`` is the time from
    then to ``finish``, ns. Sends and receives that are not matched otherwise are matched by their
    ends.
    """
    if (ops["kind"] == "collective").sum() == 0:
        return pl.DataFrame(
            schema={"other": MOMENT, "begin": MOMENT, "finish": MOMENT, "weight": pl.Int64()}
        )
    calls = with_clocks(collective_calls(trace), trace.read("reports")).drop_nulls("op")
    known = calls.select("op", "match", "clock", "collective").join(
        ops.select("op", "device", "begin", "finish", "start", "end"), on="op"
    )
    sound = known.filter(_ends_together().over("match") & pl.col("match").is_not_null())
    pairs = _pairs(known.join(sound, on="op", how="anti"))
    shared = pl.concat([sound.select(pairs.columns), pairs.with_columns(pl.col("match") + _PAIRED)])
    others = shared.select("match", other="begin")
    met = shared.with_columns(met=pl.col("start").max().over("match"))
    return met.join(others, on="match").select(
        "other", "begin", "finish", weight=pl.col("end") - pl.col("met")
    )


def _ends_together() -> pl.Expr:
    """Return whether the ops matched as one collective share a clock and end together.

    They do if they end within `TOGETHER_NS` of each other, and after all have started.
    """
    apart = pl.col("end").max() - pl.col("end").min()
    return (
        (pl.col("op").n_unique() > 1) & (pl.col("clock").n_unique() == 1)
        & (apart <= TOGETHER_NS) & (pl.col("end").min() >= pl.col("start").max())
    )  # fmt: skip


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Pair sends and receives that end together on exactly two devices."""
    sends = rows.filter(pl.col("collective") == "send_recv").sort("clock", "end", "device")
    near = pl.col("end") - pl.col("end").shift().over("clock") <= TOGETHER_NS
    found = sends.with_columns(match=(~near.fill_null(value=False)).cum_sum().cast(pl.Int64))
    two = (pl.len() == 2) & (pl.col("device").n_unique() == 2) & _ends_together()  # noqa: PLR2004
    return found.filter(two.over("match")).select("match", "begin", "finish", "start", "end")


def _full_queues(moments: Moments) -> pl.DataFrame:
    """Return ``source, target``: op end that freed a full launch queue, end of the held-up call."""
    is_slow = pl.col("launch_end") - pl.col("launch_start") >= SLOW_CALL_NS
    is_queued = ~pl.col("copies") & (pl.col("start") >= pl.col("launch_end"))
    slow = moments.ops.filter(is_slow & is_queued).drop_nulls("launch")
    if slow.is_empty():
        return pl.DataFrame(schema={"source": MOMENT, "target": MOMENT})
    turn = pl.int_range(pl.len(), dtype=pl.Int64).over(LANE)
    done = moments.ops.select(*LANE, room=turn, time="end", source="finish")
    turns = done["room"].gather((slow["begin"] - moments.first_of_ops) // 2)
    done = done.sort("time")
    found = (
        slow.with_columns(turn=turns, target=pl.col("launch") + 1)
        .sort("launch_end")
        .join_asof(done, left_on="launch_end", right_on="time", by=LANE, check_sortedness=False)
    )
    full = (pl.col("turn") - pl.col("room") >= _FULL) & (pl.col("time") >= pl.col("launch_start"))
    return found.filter(full).select("source", "target")


def _of_host(
    trace: Trace, moments: Moments, events: pl.DataFrame
) -> tuple[pl.DataFrame, Array, Batches]:
    """Return edges between threads and from the data loader; host time before calls; batches.

    A call depends on the previous call of its thread; the time between both is host work (second
    result: ns per call). But if a thread stops making calls and then another, so far silent thread
    of its process makes the next one (as main and backward thread do), that thread depends on the
    first one's last call: its silence before that counts as waiting, not as work.

    Parameters
    ----------
    trace, moments
        The run.
    events
        Second result of `wait_edges`: calls that make a stream wait for an event which another
        thread recorded.
    """
    gaps = _gaps(moments)
    handed = pl.concat(
        [_handed(moments, gaps), _released(moments, gaps), _at_once(gaps, events)]
    ).unique(["giver", "target"], keep="first", maintain_order=True)
    batches = batches_of(trace, moments, gaps)
    waits = batches.taken.filter("waited")
    host, handing = np.full(moments.calls.height, NONE), handed["target"].to_numpy() // 2
    host[gaps["target"].to_numpy() // 2] = gaps.select(_LENGTH).to_series()
    begun = host == NONE  # of which no call was before
    host[waits["target"].to_numpy() // 2] -= waits["loading"].fill_null(0).to_numpy()
    host[handing] = 0
    host[begun] = NONE
    # A loader that never rests holds the next batch; else its waits are as long as they were.
    rhythmic, free = batches.rhythmic, pl.lit(HOLDS_NOTHING, pl.Int64)
    asleep = waits.join(rhythmic.select("target", chained=True), on="target", how="left").join(
        handed.select("target"), on="target", how="anti"
    ).with_columns(weight=pl.when("chained").then(free).otherwise("length"))  # fmt: skip
    # What the GPU had done by then comes first as well: a loader rests until batches are taken.
    after = with_last_done(asleep, "end", moments.ops).with_columns(
        weight=pl.when("chained").then(free).otherwise(pl.col("end") - pl.col("done_at"))
    )
    found = pl.concat(
        [
            edges(handed, "giver", "target", "handover", "lag"),
            edges(asleep.drop_nulls("source"), "source", "target", "wait", "weight"),
            edges(after, "done", "target", "wait", "weight"),
            edges(rhythmic, "first", "target", "loader", "since"),
            edges(batches.paced.with_columns(weight=free), "before", "target", "pace", "weight"),
        ]
    )
    return found, host, batches


def _gaps(moments: Moments) -> pl.DataFrame:
    """Return gaps between calls of a thread: ``start, end``, ns, and nodes ``source, target``."""
    goes_on = pl.col("thread").eq_missing(pl.col("thread").shift())
    ended = pl.col("end").cum_max().over("thread").shift()
    return moments.calls.select(
        "process", "thread", start=pl.min_horizontal(ended, "start"), end="start",
        source=pl.col("finish").shift(), target="begin", goes_on=goes_on,
    ).filter("goes_on").drop("goes_on")  # fmt: skip


def _handed(moments: Moments, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``target, giver, lag``: hand-overs of the host's work to a so far silent thread.

    `giver` is the node where the last call of the first thread ends, `target` where the call of the
    other thread begins, `lag` the time between, ns. Threads that only load input never hand over:
    `batches_of` finds waits for them.
    """
    loaders = moments.loaders.implode()
    silent = gaps.filter(_LENGTH >= _HANDED_NS)
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
    """Return ``target, giver, lag``: when threads that load input resume, as their queue has room.

    Returns
    -------
    `target` is the node of the call with which the loading thread resumes, `giver` the end of the
    last call of another thread before that (it took a batch from the queue), `lag` the time
    between, ns.
    """
    loads = pl.col("thread").is_in(moments.loaders.implode())
    waits = gaps.filter(loads & (_LENGTH >= _HANDED_NS)).sort("end")
    if waits.is_empty():
        return pl.DataFrame(schema={"target": MOMENT, "giver": MOMENT, "lag": pl.Int64()})
    calls = near(moments.calls, "end", waits["end"], ["thread"]).filter(~loads)
    consumed = calls.select("process", time="end", giver="finish")
    found = waits.join_asof(
        consumed.sort("time"), left_on="end", right_on="time", by="process",
        check_sortedness=False,
    ).filter(pl.col("time") > pl.col("start"))  # fmt: skip
    return found.select("target", "giver", lag=pl.col("end") - pl.col("time"))


def _at_once(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return rows like `_handed`: a silent thread calls right after the call that it waited for.

    That call, of another thread, recorded the event for which the silent thread makes a stream
    wait.
    """
    silent = gaps.filter(_LENGTH >= _HANDED_NS).with_columns(length=_LENGTH)
    soon = (pl.col("lag") <= _AT_ONCE_NS) & (pl.col("lag") < pl.col("length"))
    found = events.join(silent.select("target", "length"), on="target").filter(soon)
    return found.select("target", "giver", "lag")


def _edges_of_threads(moments: Moments) -> pl.DataFrame:
    """Return the gaps before a thread's first and after its last call, endless on one side.

    The columns are those of `_gaps`; the node on the endless side is null.
    """
    never = 1 << 61
    nothing = pl.lit(None, MOMENT)
    calls, thread = moments.calls, pl.col("thread")
    first = calls.filter(thread.ne_missing(thread.shift())).select(
        "process", "thread", start=pl.lit(-never), end="start", source=nothing, target="begin"
    )
    last = calls.filter(thread.ne_missing(thread.shift(-1))).select(
        "process", "thread", start="end", end=pl.lit(never), source="finish", target=nothing
    )
    return pl.concat([first, last])


@dataclass(frozen=True)
class Graph:
    """Dependency graph as a table of its edges, as replays need it."""

    edges: pl.DataFrame
    """``source, target, kind, weight, at_once``, sorted by target. `weight` is the least time from
    source to target, ns; `at_once`, whether source and target have the same recorded time."""
    time: Array
    """Recorded time of each node, ns."""
    delays: Array
    """Unexplained delay of each node: its recorded time minus the earliest time that its edges
    allow, ns. Delays up to `TOLERATED_NS` are 0."""
    order: Array
    """The nodes in topological order: each after the nodes that it waits for."""

    @cached_property
    def _first(self) -> Array:
        """Offset of the first edge into each node."""
        return _firsts(given(self.edges["target"]), self.time.size)

    def into(self, lengths: pl.Series | None = None) -> tuple[Array, Array, Array]:
        """Return edges grouped by target: offset of each node's edges, sources, lengths.

        `lengths` are new lengths of the edges, negative if they delay nothing.
        """
        weights = self.edges["weight"] if lengths is None else lengths
        return self._first, given(self.edges["source"]), given(weights, np.int64)

    def replayed(self, lengths: pl.Series | None = None, delays: Array | None = None) -> Array:
        """Return the earliest time of each node, ns, if it waits only for its dependencies.

        Parameters
        ----------
        lengths
            Length of each edge, ns; by default those of the unchanged run.
        delays
            Unexplained delay of each node, ns; by default that of the unchanged run.
        """
        time: Array = self.time.copy()
        added = self.delays if delays is None else delays
        compiled(replay, self.time.size)(self.order, self.into(lengths), added, time)
        return time


@dataclass(frozen=True)
class Dependencies:
    """Dependency graph of a run: starts and ends of calls and ops (nodes), and edges."""

    moments: Moments
    """The calls and ops whose starts and ends are the nodes."""
    net: Net
    """The graph, of which `graph` makes a table."""
    usual: Array
    """Fitted length of the edges of each group (kind of edge, and of op), ns."""
    number: int
    """Number of edges."""
    contradicted: int
    """Number of edges that were left out because their target was recorded before their source."""
    batches: Batches
    """The batches of input for which threads of the host wait."""

    def graph(self) -> Graph:
        """Return the graph as a table of its edges."""
        rows, late = _listed(self.net, self.usual, self.number)
        _, order, _ = ordered(rows, self.net.time.size)
        return Graph(rows, self.net.time, late, order)

    def paths(self, bounds: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the critical paths of steps in batches of segments, as `follow_back` lists them.

        `bounds` has the time (ns) at which each step starts, and the node that ends it: ``start,
        sink``.

        Returns
        -------
        ``target, kind, step, start, end, explained`` (times in ns; ``explained`` is how much of a
        segment the length of its edge explains): the segments of a step leave no gap from its start
        to its end. `target` and `kind` are null for a segment that ends at a node without
        dependencies.
        """
        follow, found = compiled(follow_back, self.net.time.size), _room(self.net)
        ends = given(bounds["sink"], np.int64), given(bounds["start"], np.int64)
        at, count = np.array([0, -1]), BATCH
        while count == BATCH:
            path = {name: np.empty(BATCH, kind) for name, kind in _PATH.items()}
            count = follow(self.net, self.usual, ends, found, at, tuple(path.values()))
            segments = pl.DataFrame(path).head(count)
            is_edge = pl.col("target") != NO_NODE
            yield segments.with_columns(_KIND).with_columns(
                pl.when(is_edge).then(name).alias(name) for name in ("target", "kind")
            )


def dependencies_of(trace: Trace) -> Dependencies:
    """Return the dependency graph of a run."""
    moments = moments_of(trace)
    waits, events = wait_edges(trace, moments)
    queues = edges(_full_queues(moments), "source", "target", "queue")
    threads, host, batches = _of_host(trace, moments, events)
    gpu, arrays = _of_ops(trace, moments)
    further = pl.concat([gpu, waits, queues, threads]).sort("target", maintain_order=True)
    net = _with_further(
        Net(given(moments.times()), host, **arrays, near=host, further=(host,) * 4), further
    )
    usual, number = _fitted(net)
    every = moments.calls.height + sum(
        int(np.count_nonzero(each)) for each in
        (host != NONE, net.launch != NO_NODE, net.follows, net.alone)
    ) + further.height  # fmt: skip
    circular = _circular(net, number)
    if circular is not None:
        time = pl.Series(net.time)
        instant = time.gather(further["source"]) == time.gather(further["target"])
        net = _with_further(
            net, further.filter(~(instant & further["target"].is_in(circular.implode())))
        )
        usual, number = _fitted(net)
    used = ["correlation", "launch_start"]  # no longer needed, and a tenth of all columns
    moments = Moments(moments.calls.drop(used[:1]), moments.ops.drop(used))
    return Dependencies(moments, net, usual, number, every - number, batches)


def _with_further(net: Net, rows: pl.DataFrame) -> Net:
    """Add the edges `rows` (sorted by target) to a graph that node numbers alone imply."""
    columns = (
        given(rows["target"]), given(rows["source"]), given(rows["kind"].to_physical()),
        given(rows["weight"], np.int64, null=0),
    )  # fmt: skip
    blocks = np.arange(0, net.time.size + 1, 1 << NEAR)
    return net._replace(near=np.searchsorted(columns[0], blocks), further=columns)


def _circular(net: Net, number: int) -> pl.Series | None:
    """Return the nodes on a cycle of the `number` edges, or after one; None without a cycle.

    Only edges whose source and target were recorded at the same time (coarse clocks) form cycles.
    """
    target, source, *_ = net.further
    if not (net.time[target] == net.time[source]).any():  # as nodes of a line follow each other
        return None
    listing, none = compiled(list_instant, net.time.size), np.empty(0, np.uint32)
    instant = np.empty((2, listing(net, _room(net), none, none)), np.uint32)
    listing(net, _room(net), *instant)
    nodes, ends = np.unique(instant, return_inverse=True)
    source, target = ends.reshape(2, -1).astype(np.uint32)
    if _placed(source, target, nodes.size)[1] == nodes.size:
        return None
    rows, _ = _listed(net, np.zeros(SIZE, np.int64), number)
    order, placed = _placed(given(rows["source"]), given(rows["target"]), net.time.size)
    return pl.Series(np.setdiff1d(np.arange(net.time.size, dtype=np.uint32), order[:placed]))


def _listed(net: Net, usual: Array, number: int) -> tuple[pl.DataFrame, Array]:
    """Return a table of all edges, and each node's unexplained delay, ns (0 up to `TOLERATED_NS`).

    The delay is the node's recorded time minus the earliest time that its edges allow.
    """
    source, target = (np.empty(number, np.uint32) for _ in range(2))
    kind, weight = np.empty(number, np.uint8), np.empty(number, np.int64)
    late = np.empty(net.time.size, np.int64)
    listing = compiled(list_edges, net.time.size)
    listing(net, usual, _room(net), (source, target, kind, weight), late)
    rows = {"source": source, "target": target, "kind": kind, "weight": weight}
    late[late <= TOLERATED_NS] = 0
    instant = pl.Series("at_once", net.time[target] == net.time[source])
    return pl.DataFrame(rows).with_columns(_KIND, instant), late


def _room(net: Net) -> Array:
    """Return an empty array, large enough for all edges into one node (see `edges_into`)."""
    targets = net.further[0]
    most = int(np.bincount(np.unique(targets, return_inverse=True)[1]).max(initial=0))
    return np.empty((4, most + 2), np.int64)


def _fitted(net: Net) -> tuple[Array, int]:
    """Fit one length (ns) to all edges of a kind and type of op whose length was not recorded.

    The length is the mean recorded time from source to target over the edges that determine when
    their target comes (latest source plus length); times above `TOLERATED_NS` are excluded. Which
    edges determine it depends on the lengths, so both are found by iteration. Also returns the
    number of all edges.
    """
    usual, number, find = np.zeros(SIZE, np.int64), 0, compiled(sum_lags, net.time.size)
    for _ in range(_ROUNDS):
        lags, counts = (np.zeros(SIZE, np.int64) for _ in range(2))
        number = find(net, usual, (lags, counts), TOLERATED_NS, _room(net))
        usual = np.rint(lags / np.maximum(counts, 1)).astype(np.int64)
    return usual, number


def ordered(rows: pl.DataFrame, count: int) -> tuple[pl.DataFrame, Array, bool]:
    """Return the edges, a topological order of `count` nodes, and whether it contains all nodes.

    If nodes of equal time form a cycle (coarse clocks), waits of length 0 among them are left out;
    the order of threads and streams has no cycles.
    """
    order, placed = _placed(given(rows["source"]), given(rows["target"]), count)
    if placed == count:
        return rows, order, True
    waits = pl.col("kind").is_in(_CROSSING) & pl.col("at_once")
    settled = pl.Series(order[:placed]).implode()
    rest = rows.filter(~(waits & ~pl.col("target").is_in(settled)))
    order, placed = _placed(given(rest["source"]), given(rest["target"]), count)
    return rest, order[:placed], placed == count


def _placed(source: Array, target: Array, count: int) -> tuple[Array, int]:
    """Return `count` nodes in topological order, and how many are in it (fewer with a cycle)."""
    out, later = _firsts(source, count), np.empty(source.size, np.uint32)
    compiled(lead_out, source.size)(source, target, out[:-1].copy(), later)
    missing, order = (np.zeros(count, np.uint32) for _ in range(2))
    into = _firsts(target, count)
    placed = compiled(put_in_order, count)(into, (out, later), missing, order)
    return order, placed


def _firsts(moments: Array, count: int) -> Array:
    """Return the offset of the first edge of each of `count` nodes, in edges sorted by node.

    A last element is the number of edges. `moments` contains the node of each edge, in any order.
    """
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(moments, minlength=count), out=first[1:])
    first.flags.writeable = False
    return first
