"""The dependency graph of a run: moments, what holds each of them, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._edges import FITTED, edges
from tracekit.analysis.dependencies._moments import Moments, moments_of
from tracekit.analysis.dependencies._on_gpu import full_queues, gpu_edges
from tracekit.analysis.dependencies._on_host import host_edges
from tracekit.analysis.dependencies._sweeps import Array, put_in_order, replay
from tracekit.analysis.dependencies._waits import wait_edges
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.model import Trace

TOLERATED_NS = 20_000
"""A moment that comes later than what it waited for explains is carried as such beyond this."""
_OWN_NS = 10_000
"""What a call that waits does beside waiting, at most."""
_ROUNDS = 3
_CROSSING = ("return", "block", "queue", "handover", "event", "order", "transfer", "loader")


@dataclass(frozen=True)
class Graph:
    """Moments and edges, as arrays that sweeps go over.

    Parameters
    ----------
    moments
        What the moments are.
    edges
        ``source, target, kind, group, weight, lag``, by target: `weight` is how long the target
        comes after the source at least, `lag` how long it came after it.
    time
        When each moment came.
    carried
        How much later each moment came than anything explains, beyond what is tolerated.
    order
        The moments, each after those that it waits for.
    contradicted
        How many edges were left out since their target came before their source.
    """

    moments: Moments
    edges: pl.DataFrame
    time: Array
    carried: Array
    order: Array
    contradicted: int

    @property
    def into(self) -> tuple[Array, Array, Array]:
        """``first, source, length`` of the edges into each moment."""
        return self.lengthened(self.edges["weight"])

    def lengthened(self, lengths: pl.Series) -> tuple[Array, Array, Array]:
        """Return `into` with other lengths; of negative ones are edges that hold nothing."""
        numbers = np.arange(self.time.size + 1)
        first = np.searchsorted(self.edges["target"].to_numpy(), numbers).astype(np.int64)
        first.flags.writeable = False
        return first, given(self.edges["source"], np.int64), given(lengths, np.int64)

    def replayed(self, lengths: pl.Series | None = None, carried: Array | None = None) -> Array:
        """Return when each moment comes by dependencies alone.

        Parameters
        ----------
        lengths
            Of edges, those of the unchanged run by default.
        carried
            What nothing explains, that of the unchanged run by default.
        """
        into = self.into if lengths is None else self.lengthened(lengths)
        time: Array = self.time.copy()
        added = self.carried if carried is None else carried
        compiled(replay, self.time.size)(self.order, into, added, time)
        return time


def graph_of(trace: Trace) -> Graph:
    """Return the dependency graph of a run."""
    moments = moments_of(trace)
    waits, events = wait_edges(trace, moments)
    queues = edges(full_queues(moments), "source", "target", "queue")
    found = pl.concat(
        [gpu_edges(trace, moments), waits, queues, host_edges(trace, moments, events)]
    )
    every = pl.concat([found, _own(moments, found)])
    time = moments.times()
    timed = every.with_columns(lag=time.gather(every["target"]) - time.gather(every["source"]))
    ahead = timed.filter(pl.col("lag") >= 0).sort("target", maintain_order=True)
    count = time.len()
    sound, order, _ = ordered(ahead, count)
    fitted = _fitted(_grouped(moments, sound))
    contradicted = timed.height - sound.height
    carried = _carried(fitted, count)
    return Graph(moments, fitted, given(time, np.int64), carried, order, contradicted)


def _own(moments: Moments, found: pl.DataFrame) -> pl.DataFrame:
    """Return the edges from the begin of each call to its end: one that waits does little else."""
    waiting = found.filter(pl.col("kind").is_in(["return", "block", "queue"])).select(
        finish="target", waits=True
    )
    length = pl.col("end") - pl.col("start")
    own = moments.calls.join(waiting.unique(), on="finish", how="left").with_columns(
        weight=pl.when(pl.col("waits")).then(length.clip(upper_bound=_OWN_NS)).otherwise(length)
    )
    return edges(own, "begin", "finish", "call", "weight")


def _grouped(moments: Moments, rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``group``: what edges of a kind are like each other by, which is what the op does."""
    does = moments.ops.select(pl.col("work").alias("group"), "begin", "finish")
    by_begin = does.select("group", target="begin")
    by_finish = does.select(of_source="group", source="finish")
    return (
        rows.join(by_begin, on="target", how="left", maintain_order="left")
        .join(by_finish, on="source", how="left", maintain_order="left")
        .with_columns(group=pl.coalesce("group", "of_source").fill_null(""))
        .drop("of_source")
    )


def _fitted(rows: pl.DataFrame) -> pl.DataFrame:
    """Find the lengths that were not recorded: of each kind and group, what is usual.

    It is the mean lag of the edges that held their moment last, of those within what is tolerated.
    Which these are depends on the lengths, so both are found in turns.
    """
    is_fitted = pl.col("kind").is_in(FITTED)
    known = rows.with_columns(pl.when(is_fitted).then(None).otherwise("weight").alias("weight"))
    known = known.with_columns(pl.col("weight").clip(upper_bound="lag"))
    lengths = known.filter(is_fitted).select("kind", "group").unique().with_columns(
        length=pl.lit(0, pl.Int64)
    )  # fmt: skip
    for _ in range(_ROUNDS):
        tried = known.join(lengths, on=["kind", "group"], how="left", maintain_order="left")
        slack = pl.col("lag") - pl.coalesce("weight", "length")
        holding = tried.with_columns(slack=slack).filter(
            pl.col("slack") == pl.col("slack").min().over("target")
        )
        usual = holding.filter(is_fitted & (pl.col("lag") <= TOLERATED_NS)).group_by(
            "kind", "group"
        ).agg(length=pl.col("lag").mean().round().cast(pl.Int64))  # fmt: skip
        lengths = lengths.select("kind", "group").join(
            usual, on=["kind", "group"], how="left"
        ).with_columns(pl.col("length").fill_null(0))  # fmt: skip
    return (
        known.join(lengths, on=["kind", "group"], how="left", maintain_order="left")
        .with_columns(weight=pl.coalesce("weight", "length"))
        .drop("length")
    )


def _carried(rows: pl.DataFrame, count: int) -> Array:
    """Return by how much later each moment came than anything explains."""
    late = rows.group_by("target").agg(late=(pl.col("lag") - pl.col("weight")).min())
    some = late.filter(pl.col("late") > TOLERATED_NS)
    carried = np.zeros(count, np.int64)
    carried[some["target"].to_numpy()] = some["late"].to_numpy()
    return carried


def ordered(rows: pl.DataFrame, count: int) -> tuple[pl.DataFrame, Array, bool]:
    """Return the edges, the moments in an order that they allow, and whether that holds all.

    Where moments of one time wait for each other in a circle, as coarse clocks make them, waits
    without length among these are left out: order of threads and streams makes no circle.
    """
    order, placed = _placed(rows, count)
    if placed == count:
        return rows, order, True
    waits = pl.col("kind").is_in(_CROSSING) & (pl.col("lag") == 0)
    settled = pl.Series(order[:placed]).implode()
    rest = rows.filter(~(waits & ~pl.col("target").is_in(settled)))
    order, placed = _placed(rest, count)
    return rest, order[:placed], placed == count


def _placed(rows: pl.DataFrame, count: int) -> tuple[Array, int]:
    """Return the moments in order, and how many of them have a place there."""
    numbers = np.arange(count + 1)
    target = given(rows["target"], np.int64)
    outward = rows.select("source", "target").sort("source")
    into = np.searchsorted(target, numbers).astype(np.int64)
    out = np.searchsorted(outward["source"].to_numpy(), numbers).astype(np.int64)
    order = np.zeros(count, np.int64)
    for array in (into, out):
        array.flags.writeable = False
    leading = out, given(outward["target"], np.int64)
    placed = compiled(put_in_order, count)(into, leading, np.zeros(count, np.int64), order)
    return order, placed
