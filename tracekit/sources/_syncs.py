"""Decode waits for GPU work, and buffer them with event records until they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from tracekit.model import EVENT_RECORDS, SYNC_TYPE, SYNCS
from tracekit.sources._ordering import Ordered
from tracekit.support.spool import Workspace

LOST = "waits for GPU work have no valid times or process and were left out"


def sync_type() -> pl.Expr:
    """Return the kind of a wait, by which of ``stream, event, context`` it names.

    Recorders number the kinds of waits too, but nsys did so in three ways, of which its own table
    of names describes one.
    """
    stream, event, context = (pl.col(name).is_not_null() for name in ("stream", "event", "context"))
    return (
        pl.when(stream & event).then(pl.lit("stream_wait_event"))
        .when(event).then(pl.lit("event"))
        .when(stream).then(pl.lit("stream"))
        .when(context).then(pl.lit("context"))
        .cast(SYNC_TYPE).alias("type")
    )  # fmt: skip


def by_call(records: pl.DataFrame) -> pl.DataFrame:
    """Give records of events their correlation ids to be ordered by: of most no time is known."""
    number = pl.col("correlation").fill_null(0)
    return records.with_columns(start=number, end=number)


def ordered(batches: Iterable[pl.DataFrame], workspace: Workspace) -> Ordered:
    """Return waits in the order of time, or what `by_call` gave, in that of calls."""
    rows = Ordered(workspace)
    for batch in batches:
        rows.add(batch)
    return rows


def chunks(rows: Ordered, table: str, *identity: str) -> Iterator[pl.DataFrame]:
    """Return rows chunk by chunk with the columns that ``syncs`` or ``event_records`` keeps.

    Parameters
    ----------
    rows
        Of `ordered`.
    table
        Which of the two tables it is.
    identity
        Columns of whole numbers that say more of who and where.
    """
    kept = (SYNCS if table == SYNCS.name else EVENT_RECORDS).schema
    yield from rows.chunks({**kept, **dict.fromkeys(identity, pl.Int64)})
