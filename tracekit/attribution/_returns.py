"""When waits of the host return, against the end of the GPU work that they wait for."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tracekit.attribution._launches import Launches, call_column
from tracekit.model import Stream

_OF = {"context": ("process", "context"), "stream": ("process", "context", "stream")}
"""Whose work is waited for, by the type of the wait."""
_SCHEMA = {"device": pl.Int32, "start": pl.Int64, "slack": pl.Int64}


def find_returns(
    ops: Stream, calls: Stream, launches: Launches, syncs: Iterable[pl.DataFrame]
) -> pl.DataFrame:
    """Return how long after the work it waits for each wait returns.

    A wait for a stream, or for all of a context, returns after the end of all ops there whose
    calls had returned when it began. On clocks that agree this takes no less than nothing.

    Parameters
    ----------
    ops, calls, launches
        The ops, the calls, and which of these launched which of those.
    syncs
        The canonical table of that name, in parts.

    Returns
    -------
    ``device, start, slack`` of the waits for which there was work to wait for: when they began, and
    by how much they return after its end, ns.
    """
    kind = pl.col("type").cast(pl.String)
    columns = ("process", "context", "stream", "start", "end")
    waits = pl.concat(
        [pl.DataFrame(schema={"type": pl.String, **dict.fromkeys(columns, pl.Int64)})]
        + [part.filter(kind.is_in(list(_OF))).select(kind, *_integers(columns)) for part in syncs]
    ).sort("start")
    found = [pl.DataFrame(schema=_SCHEMA)]
    for name, by in _OF.items():
        own = waits.filter(pl.col("type") == name).with_row_index("wait")
        parts = [
            _last_ends(own, _ended(ops, number, calls, launches), by) for number in range(len(ops))
        ]
        if parts and own.height:
            # Of several chunks the last end of all counts, and the device of it.
            last = pl.concat(parts).sort("until").unique("wait", keep="last")
            slack = (pl.col("end") - pl.col("until")).alias("slack")
            found.append(own.join(last, on="wait").select("device", "start", slack))
    return pl.concat(found).sort("start")


def _integers(columns: Iterable[str]) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Int64) for name in columns]


def _ended(ops: Stream, number: int, calls: Stream, launches: Launches) -> pl.DataFrame:
    """Return the ops of a chunk, and when the calls that launched them had returned."""
    returned, known = call_column("end", launches, calls, number)
    rows = ops.read(number, "process", "context", "stream", "device", "end")
    keys = _integers(("process", "context", "stream"))
    return (
        rows.select("device", *keys, until="end")
        .with_columns(returned=pl.Series(returned))
        .filter(pl.Series(known))
        .sort("returned")
    )


def _last_ends(waits: pl.DataFrame, ended: pl.DataFrame, by: tuple[str, ...]) -> pl.DataFrame:
    """Return ``wait, device, until``: the last end of what each wait waits for, in a chunk."""
    last = ended.drop_nulls(by).with_columns(pl.col("until").cum_max().over(by))
    return (
        waits.join_asof(
            last, left_on="start", right_on="returned", by=list(by), check_sortedness=False
        )
        .filter(pl.col("until").is_not_null())
        .select("wait", pl.col("device").cast(pl.Int32), "until")
    )


def least_slack(returns: pl.DataFrame) -> dict[int, int]:
    """Return by device the least time that a wait returns after the work it waits for."""
    least = returns.group_by("device").agg(pl.col("slack").min())
    return dict(least.iter_rows())
