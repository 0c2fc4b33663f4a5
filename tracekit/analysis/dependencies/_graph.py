"""Dependency graph of a run: moments, and edges with lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._edges import FITTED, KIND, edges
from tracekit.analysis.dependencies._input import Batches
from tracekit.analysis.dependencies._moments import WORKS, Moments, moments_of
from tracekit.analysis.dependencies._on_gpu import full_queues, gpu_edges
from tracekit.analysis.dependencies._on_host import host_edges
from tracekit.analysis.dependencies._sweeps import (
    Array,
    Lengths,
    find_lengths,
    lead_out,
    put_in_order,
    replay,
)
from tracekit.analysis.dependencies._waits import wait_edges
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.model import Trace

TOLERATED_NS = 20_000
"""A moment that comes later than what it waited for explains is carried as such beyond this."""
_OWN_NS = 10_000
"""What a call that waits does beside waiting, at most."""
_ROUNDS = 3
_WORKS = len(WORKS) + 1
"""What ops do, or none does anything."""
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


@dataclass(frozen=True)
class Graph:
    """Moments and edges, as arrays that sweeps go over.

    Parameters
    ----------
    moments
        What the moments are.
    edges
        ``source, target, kind, weight, at_once``, by target: `weight` is how long the target comes
        after the source at least, `at_once` whether both came at the same time.
    time
        When each moment came.
    carried
        How much later each moment came than anything explains, beyond what is tolerated.
    order
        The moments, each after those that it waits for.
    contradicted
        How many edges were left out since their target came before their source.
    batches
        The batches of input that its threads take.
    """

    moments: Moments
    edges: pl.DataFrame
    time: Array
    carried: Array
    order: Array
    contradicted: int
    batches: Batches

    @property
    def into(self) -> tuple[Array, Array, Array]:
        """``first, source, length`` of the edges into each moment."""
        return self.lengthened(self.edges["weight"])

    def lengthened(self, lengths: pl.Series) -> tuple[Array, Array, Array]:
        """Return `into` with other lengths; of negative ones are edges that hold nothing."""
        first = _firsts(given(self.edges["target"]), self.time.size)
        return first, given(self.edges["source"]), given(lengths, np.int64)

    def replayed(self, lengths: pl.Series | None = None, carried: Array | None = None) -> Array:
        """Return the earliest time of each moment that dependencies allow.

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
    host, batches = host_edges(trace, moments, events)
    found = pl.concat([gpu_edges(trace, moments), waits, queues, host])
    every = pl.concat([found, _own(moments, found)])
    time = given(moments.times())
    lags = pl.Series(time[given(every["target"])] - time[given(every["source"])])
    ahead = every.with_columns(at_once=lags == 0).filter(lags >= 0)
    sound, order, _ = ordered(ahead.sort("target", maintain_order=True), time.size)
    weight, carried = _fitted(moments, sound, time)
    fitted = sound.with_columns(weight=weight)
    return Graph(moments, fitted, time, carried, order, every.height - sound.height, batches)


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


def _groups(moments: Moments, rows: pl.DataFrame) -> Array:
    """Return by what edges of a kind are like each other, which is what the op does of theirs.

    It is 0 of edges whose length was recorded, else a number for each kind and work.
    """
    work = 1 + given(moments.ops["work"].to_physical())
    begun, done = (np.zeros(moments.count, np.uint8) for _ in range(2))
    begun[moments.first_of_ops :: 2] = work
    done[moments.first_of_ops + 1 :: 2] = work
    into, out_of = begun[given(rows["target"])], done[given(rows["source"])]
    first = np.zeros(len(KIND.categories), np.uint8)
    for number, kind in enumerate(FITTED):
        first[KIND.categories.to_list().index(kind)] = 1 + number * _WORKS
    of_kind = first[given(rows["kind"].to_physical())]
    return np.where(of_kind, of_kind + np.where(into, into, out_of), np.uint8(0))


def _fitted(moments: Moments, rows: pl.DataFrame, time: Array) -> tuple[pl.Series, Array]:
    """Find the lengths that were not recorded: of each kind and group, what is usual.

    It is the mean lag of the edges that held their moment last, of those within what is tolerated.
    Which these are depends on the lengths, so both are found in turns.

    Returns
    -------
    The lengths of edges, and by how much later each moment came than anything explains, where that
    is more than is tolerated.
    """
    first, source = _firsts(given(rows["target"]), time.size), given(rows["source"])
    known, groups = given(rows["weight"], np.int64, null=0), _groups(moments, rows)
    size = 1 + len(FITTED) * _WORKS
    usual = np.zeros(size, np.int64)
    found = Lengths(np.empty(rows.height, np.int64), np.empty(time.size, np.int64))
    find = compiled(find_lengths, rows.height)
    for _ in range(_ROUNDS):
        lags, counts = (np.zeros(size, np.int64) for _ in range(2))
        find(time, (first, source, known), groups, usual, found, (lags, counts), TOLERATED_NS)
        usual = np.rint(lags / np.maximum(counts, 1)).astype(np.int64)
    unused = np.zeros(size, np.int64), np.zeros(size, np.int64)
    find(time, (first, source, known), groups, usual, found, unused, TOLERATED_NS)
    late = found.late
    late[late <= TOLERATED_NS] = 0
    return pl.Series(found.weight), late


def ordered(rows: pl.DataFrame, count: int) -> tuple[pl.DataFrame, Array, bool]:
    """Return the edges, a topological order of moments, and whether all moments are in it.

    Where moments of one time wait for each other in a circle, as coarse clocks make them, waits
    without length among these are left out: order of threads and streams makes no circle.
    """
    order, placed = _placed(rows, count)
    if placed == count:
        return rows, order, True
    waits = pl.col("kind").is_in(_CROSSING) & pl.col("at_once")
    settled = pl.Series(order[:placed]).implode()
    rest = rows.filter(~(waits & ~pl.col("target").is_in(settled)))
    order, placed = _placed(rest, count)
    return rest, order[:placed], placed == count


def _placed(rows: pl.DataFrame, count: int) -> tuple[Array, int]:
    """Return the moments in order, and how many of them have a place there."""
    source, target = given(rows["source"]), given(rows["target"])
    out, later = _firsts(source, count), np.empty(rows.height, np.uint32)
    compiled(lead_out, rows.height)(source, target, out[:-1].copy(), later)
    missing, order = (np.zeros(count, np.uint32) for _ in range(2))
    into = _firsts(target, count)
    placed = compiled(put_in_order, count)(into, (out, later), missing, order)
    return order, placed


def _firsts(moments: Array, count: int) -> Array:
    """Return where the edges of each moment begin that are put together by it, and where all end.

    `moments` holds that moment of each edge, in any order.
    """
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(moments, minlength=count), out=first[1:])
    first.flags.writeable = False
    return first
