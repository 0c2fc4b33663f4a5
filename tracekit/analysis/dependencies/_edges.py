"""Nodes and edges of the dependency graph: their kinds and columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._sweeps import KINDS, LATEST, WORKS
from tracekit.support.batches import ROWS
from tracekit.support.compiled import given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model import Trace

MOMENT = pl.UInt32()
"""Type of a moment's number."""
_WORK = pl.Enum(WORKS)
_ROUNDED_NS = 1_000
"""Times of PyTorch's profiler are whole microseconds, or floats with a resolution of 250 ns."""
LANE = ["process", "device", "context", "stream"]
"""What runs its ops in order of their launches."""
_CALLS = ["call", "process", "thread", "start", "end", "correlation", "name"]
_OPS = [
    "op", *LANE, "start", "end", "kind", "stage", "iteration", "correlation", "call",
    "launch_thread", "launch_start", "launch_end", "copy_kind",
]  # fmt: skip
_PEER = ("p2p", "staged")
KIND = pl.Enum(KINDS)
SLOW_CALL_NS = 50_000
"""A call that launches takes a few us."""
HOLDS_NOTHING = -1
"""The length of an edge that delays nothing."""
EDGES = pl.Schema(
    {"source": MOMENT, "target": MOMENT, "kind": KIND, "weight": pl.Int64()}
)  # fmt: skip


@dataclass(frozen=True)
class Moments:
    """Calls and ops of a run, with the graph's nodes at which they start and end."""

    calls: pl.DataFrame
    """``process, thread, start, end, name, begin, finish`` (times in ns), by thread and start;
    `begin` and `finish` are indices of nodes. While edges are found, also `correlation`."""
    ops: pl.DataFrame
    """Columns of the canonical table (`context` is -1 where it is not known), ``copies`` (whether
    the op is a copy), ``called`` (whether its launching call is known), ``work`` (what an op is:
    `compute`, `memory`, `comm` or `host_copy`), ``launch`` (node at which the call begins that
    launched the op; null if it was not recorded) and ``begin, finish``, by stream and start."""

    @property
    def count(self) -> int:
        """Number of nodes: two per call and op."""
        return 2 * (self.calls.height + self.ops.height)

    @property
    def first_of_ops(self) -> int:
        """Index of the first node of an op; nodes of calls have lower indices."""
        return 2 * self.calls.height

    def times(self) -> pl.Series:
        """Return the recorded time of each node, ns."""
        pairs = np.empty((self.count // 2, 2), np.int64)
        for column, edge in enumerate(("start", "end")):
            pairs[: self.calls.height, column] = self.calls[edge]
            pairs[self.calls.height :, column] = self.ops[edge]
        return pl.Series("time", pairs.reshape(-1))

    def calls_named(self, pattern: str) -> pl.DataFrame:
        """Return the calls whose name matches a pattern."""
        names = self.calls["name"].unique().cast(pl.String)
        matching = names.filter(names.str.contains(pattern))
        return self.calls.filter(pl.col("name").is_in(matching.implode()))

    @cached_property
    def lanes(self) -> pl.DataFrame:
        """Return the streams that run ops: ``process, device, context, stream``."""
        return self.ops.filter(~same_lane()).select(LANE)

    @cached_property
    def copies(self) -> pl.DataFrame:
        """Return the ops that are copies and whose calls were recorded."""
        return self.ops.filter("copies").drop_nulls("launch")

    def launching(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Return the calls that launched `ops`, one per op; each must have a recorded launch."""
        return self.calls[ops.select(pl.col("launch") // 2).to_series()]

    @cached_property
    def loaders(self) -> pl.Series:
        """Return the threads that load data: all ops that they launch are input (stage ``IO``)."""
        launched = self.ops.select("launch_thread", "stage").drop_nulls("launch_thread")
        of_thread = launched.group_by("launch_thread")
        only = of_thread.agg(loads=(pl.col("stage") == "IO").all())
        return only.filter("loads")["launch_thread"].sort()


def moments_of(trace: Trace) -> Moments:
    """Return the calls and ops of a run, with their nodes."""
    calls = _in_order(trace["calls"].select(_CALLS), ["thread"])
    known = pl.col("context", "stream").fill_null(-1)
    copies, called = pl.col("copy_kind").is_not_null(), pl.col("call").is_not_null()
    wanted = (
        trace["ops"].select(_OPS).with_columns(known, work=_work(), copies=copies, called=called)
    )
    ops = _in_order(wanted.drop("copy_kind"), LANE)
    calls, ops = _numbered(calls, 0), _numbered(_after_each_other(ops), 2 * calls.height)
    launch = _launches(ops["call"], calls)
    return Moments(calls.drop("call"), ops.drop("call").with_columns(launch=launch))


def _in_order(wanted: pl.LazyFrame, lines: list[str]) -> pl.DataFrame:
    """Read rows sorted by the columns `lines` (which identify a thread or stream), start, end."""
    rows = wanted.collect(engine="streaming")
    # Numpy sorts integers of few bytes without comparing them.
    keys = [rows[name].fill_null(-1).shrink_dtype().to_numpy() for name in reversed(lines)]
    turns = pl.Series(np.lexsort(keys).astype(np.uint32))
    # One column after the other, so that no more than one of them is held twice.
    ordered = pl.DataFrame(
        [rows.drop_in_place(name).rechunk().gather(turns) for name in rows.columns]
    )
    start, end = pl.col("start"), pl.col("end")
    goes_on = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift()) for key in lines)
    earlier = (start < start.shift()) | ((start == start.shift()) & (end < end.shift()))
    in_order = not ordered.select((goes_on & earlier).any()).item()
    return ordered if in_order else ordered.sort(*lines, "start", "end")


def same_lane() -> pl.Expr:
    """Return whether an op is on the same stream as the row before, in a table sorted by stream."""
    return pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift()) for key in LANE)


def near(rows: pl.DataFrame, time: str, marks: pl.Series, keys: Sequence[str]) -> pl.DataFrame:
    """Keep the rows just before and after each of a few times, to make a later search fast.

    For each mark and each group of rows with equal `keys`, the last row before the mark and the
    first row after it are kept. Some other rows may be kept, too.

    Parameters
    ----------
    rows
        Rows in any order; if they are sorted by `keys` and `time`, fewer other rows are kept. Rows
        without a time are left out.
    time
        Name of the column of times.
    marks
        The times to look for.
    keys
        Columns such as process and stream; the caller may search by all or some of them.
    """
    ordered, kept = marks.unique().sort().to_numpy(), [rows.clear()]
    new = [pl.col(key).ne_missing(pl.col(key).shift()) for key in (*keys, "turn")]
    back = (pl.col(time) < pl.col(time).shift()).fill_null(value=False)
    for some in rows.iter_slices(ROWS):  # large arrays would leave the processor's cache
        at = given(some[time], null=-1)
        before = np.searchsorted(ordered, at)
        turn = 2 * before + (np.append(ordered, LATEST)[before] == at)
        begins = some.with_columns(turn=turn).select(pl.any_horizontal(*new, back)).to_series()
        kept.append(some.filter(begins | begins.shift(-1, fill_value=True)).drop_nulls(time))
    return pl.concat(kept)


def with_last_done(rows: pl.DataFrame, at: str, ops: pl.DataFrame) -> pl.DataFrame:
    """Add to each row the last op of its process that ended by the time `at`; drop rows without op.

    New columns: ``done`` (node of its end), ``done_at`` (its end, ns), ``launched`` (launch, ns).
    """
    ends = near(ops, "end", rows[at], LANE).select(
        "process", launched="launch_start", done_at="end", done="finish"
    )
    return rows.sort(at).join_asof(
        ends.sort("done_at"), left_on=at, right_on="done_at", by="process", check_sortedness=False
    ).drop_nulls("done")  # fmt: skip


def _launches(launched_by: pl.Series, calls: pl.DataFrame) -> pl.Series:
    """Return the node at which each op's call begins; null if the call was not recorded."""
    known = calls["call"].to_numpy()
    finishes = np.zeros(int(known.max(initial=0)) + 2, np.uint32)  # the last one is of no call
    finishes[known] = calls["finish"].to_numpy()
    numbers = np.minimum(launched_by.fill_null(finishes.size).to_numpy(), finishes.size - 1)
    finish = pl.Series("launch", finishes[numbers])
    return finish.to_frame().select(pl.when(finish > 0).then(finish - 1)).to_series()


def _after_each_other(ops: pl.DataFrame) -> pl.DataFrame:
    """Resolve small overlaps on a stream: move an op's start to the end of the previous op."""
    before = pl.when(same_lane()).then(pl.col("end").shift())
    rounded = (before - pl.col("start")).is_between(1, _ROUNDED_NS)
    ends = pl.min_horizontal(before, "end")
    return ops.with_columns(start=pl.when(rounded).then(ends).otherwise("start"))


def _numbered(rows: pl.DataFrame, first: int) -> pl.DataFrame:
    begin = np.arange(first, first + 2 * rows.height, 2, dtype=np.uint32)
    return rows.with_columns(
        pl.Series("begin", begin, MOMENT), pl.Series("finish", begin + np.uint32(1), MOMENT)
    )


def _work() -> pl.Expr:
    """Return the ``work`` of an op: `compute`, `memory`, `comm` (between GPUs) or `host_copy`."""
    kind = pl.col("kind")
    return (
        pl.when(kind.is_in(["collective", *_PEER])).then(pl.lit("comm", _WORK))
        .when(kind.is_in(["h2d", "d2h"])).then(pl.lit("host_copy", _WORK))
        .when(kind.is_in(["d2d", "memset", "h2h", "unknown"])).then(pl.lit("memory", _WORK))
        .otherwise(pl.lit("compute", _WORK))
    )  # fmt: skip


def edges(
    rows: pl.DataFrame, source: str, target: str, kind: str, weight: str | None = None
) -> pl.DataFrame:
    """Return edges of one kind: ``source, target`` (nodes), ``kind, weight`` (length, ns).

    Parameters
    ----------
    rows
        One row per edge.
    source, target
        Names of the columns with the nodes that the edge leads from and to.
    kind
        One of `KINDS`.
    weight
        Name of the column with the edge's length, ns; None if the length is to be fitted.
    """
    length = pl.lit(None, pl.Int64) if weight is None else pl.col(weight)
    return rows.select(
        source=source, target=target, kind=pl.lit(kind, KIND), weight=length
    ).cast(EDGES)  # fmt: skip
