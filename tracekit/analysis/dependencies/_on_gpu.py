"""Edges into ops: from launches, from the op before on the stream, from other participants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.analysis.dependencies._edges import edges
from tracekit.analysis.dependencies._moments import LANE, MOMENT
from tracekit.model import with_clocks

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

FULL = 256
"""A launch that takes long while as many ops are queued waits until one of them is done."""
SLOW_CALL_NS = 50_000
"""A call that launches takes a few us."""
TOGETHER_NS = 50_000
"""The participants of a collective end no further apart than this."""
_PAIRED = 1 << 40
_LENGTH = pl.col("end") - pl.col("start")


def gpu_edges(trace: Trace, moments: Moments) -> pl.DataFrame:
    """Return the edges into ops: launches, order of streams, their work, and who meets whom."""
    ops = moments.ops
    calls = moments.calls.select("call", launch="begin")
    launched = ops.drop_nulls("call").join(calls, on="call")
    ordered = ops.with_columns(before=pl.col("finish").shift().over(LANE))
    lone = ordered.join(launched.select("op"), on="op", how="anti")
    together = _together(trace, ops)
    working = ops.join(together.select("begin"), on="begin", how="anti").with_columns(
        weight=_LENGTH
    )
    return pl.concat(
        [
            edges(launched, "launch", "begin", "launch"),
            edges(ordered.drop_nulls("before"), "before", "begin", "stream"),
            edges(_after_any(lone.filter(pl.col("before").is_null()), ops), "before", "begin",
                  "order"),
            edges(working, "begin", "finish", "work", "weight"),
            edges(together, "other", "finish", "transfer", "weight"),
        ]
    )  # fmt: skip


def _after_any(lone: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Pair ops without a known predecessor with the last op of their process."""
    ends = ops.select("process", time="end", before="finish").sort("time")
    return (
        lone.drop("before").sort("start")
        .join_asof(ends, left_on="start", right_on="time", by="process", check_sortedness=False)
        .drop_nulls("before")
    )  # fmt: skip


def _together(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``other, begin, finish, weight``: collectives whose participants were recorded.

    The bytes begin to move when the last participant has joined; all end together, each so long
    after that as it did. Sends and receives that are not matched otherwise are by their ends.
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
    """Tell whether the participants of a collective are several, on one clock, and end together."""
    apart = pl.col("end").max() - pl.col("end").min()
    return (
        (pl.col("op").n_unique() > 1) & (pl.col("clock").n_unique() == 1)
        & (apart <= TOGETHER_NS) & (pl.col("end").min() >= pl.col("start").max())
    )  # fmt: skip


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return sends and receives that end together on two devices, and no third one with them."""
    sends = rows.filter(pl.col("collective") == "send_recv").sort("clock", "end", "device")
    near = pl.col("end") - pl.col("end").shift().over("clock") <= TOGETHER_NS
    found = sends.with_columns(match=(~near.fill_null(value=False)).cum_sum().cast(pl.Int64))
    two = (pl.len() == 2) & (pl.col("device").n_unique() == 2) & _ends_together()  # noqa: PLR2004
    return found.filter(two.over("match")).select("match", "begin", "finish", "start", "end")


def full_queues(moments: Moments) -> pl.DataFrame:
    """Return ``source, target``: launches that took long, and the op that made room for them."""
    numbered = moments.ops.with_columns(turn=pl.int_range(pl.len(), dtype=pl.Int64).over(LANE))
    slow = numbered.filter(pl.col("launch_end") - pl.col("launch_start") >= SLOW_CALL_NS)
    calls = moments.calls.select("call", target="finish")
    done = numbered.select(*LANE, room="turn", time="end", source="finish").sort("time")
    found = (
        slow.filter(pl.col("copy_kind").is_null() & (pl.col("start") >= pl.col("launch_end")))
        .join(calls, on="call")
        .sort("launch_end")
        .join_asof(done, left_on="launch_end", right_on="time", by=LANE, check_sortedness=False)
    )
    full = (pl.col("turn") - pl.col("room") >= FULL) & (pl.col("time") >= pl.col("launch_start"))
    return found.filter(full).select("source", "target")
