"""Copies between GPUs that a backward thread makes by way of the host: to it, and from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution._columns import Array
from tracekit.model import KIND, OPS, Stream

_COPIES = ("h2d", "d2h", "p2p", "staged")
_HALVES = ("d2h", "h2d")


def find_relayed(
    ops: Stream, launches: Callable[[int], Mapping[str, Array]], threads: pl.Series
) -> Array:
    """Return the numbers of the ops that are halves of a copy between GPUs, in order.

    Those are a copy to the host, and the next copy that the same thread launches, if it takes as
    many bytes from the host to another GPU and starts after the first one's end.

    Parameters
    ----------
    ops
        The ops.
    launches
        Returns of a chunk of ops the ``thread`` and the ``start`` of their launches.
    threads
        The threads that are asked about.
    """
    if threads.is_empty() or not _may_be_relayed(ops):
        return np.empty(0, np.int64)
    copies = pl.concat(_copies(ops, number, launches, threads) for number in range(len(ops)))
    before = pl.col("op", "kind", "bytes", "device", "end").shift(1).over("thread")
    pairs = (
        copies.sort("thread", "launch", "op")
        .with_columns(before.name.suffix("_before"))
        .filter(
            (pl.col("kind") == "h2d") & (pl.col("kind_before") == "d2h")
            & (pl.col("bytes") == pl.col("bytes_before"))
            & (pl.col("bytes") >= CHOSEN.relayed_bytes)
            & (pl.col("device") != pl.col("device_before"))
            & (pl.col("start") >= pl.col("end_before"))
        )
    )  # fmt: skip
    return pl.concat([pairs["op"], pairs["op_before"]]).sort().to_numpy()


def _may_be_relayed(ops: Stream) -> bool:
    """Tell whether as many bytes go to the host from one GPU as from there to another, ever.

    Else no launch need be looked at.
    """
    kinds = pl.Series(_HALVES, dtype=KIND).implode()
    halves = pl.col("kind").is_in(kinds) & (pl.col("bytes") >= CHOSEN.relayed_bytes)
    columns = ("kind", "bytes", "device")
    parts = (ops.read(number, *columns).filter(halves).unique() for number in range(len(ops)))
    sizes = pl.concat([OPS.empty().select(columns), *parts]).unique()
    to_host, from_host = (sizes.filter(pl.col("kind") == kind) for kind in _HALVES)
    pairs = from_host.join(to_host, on="bytes").filter(pl.col("device") != pl.col("device_right"))
    return not pairs.is_empty()


def _copies(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], threads: pl.Series
) -> pl.DataFrame:
    """Return the copies of a chunk that some threads launched."""
    launch, first = launches(number), ops.first[number]
    rows = ops.read(number, "kind", "bytes", "device", "start", "end")
    return rows.select(
        pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("op"),
        pl.col("kind").cast(pl.String), "bytes", "device", "start", "end",
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", launch["start"]),
    ).filter(pl.col("kind").is_in(_COPIES) & pl.col("thread").is_in(threads.implode()))  # fmt: skip
