"""Decode host waits for GPU work (synchronisations), and sort them and records of CUDA events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from tracekit.model import EVENT_RECORDS, SYNC_TYPE, SYNCS
from tracekit.sources._ordering import Ordered
from tracekit.support.spool import Workspace

LOST = "waits for GPU work have no valid times or process and were left out"


def sync_type() -> pl.Expr:
    """Return an expression for what each wait waits for: a stream, an event or a context.

    If the columns ``stream`` and ``event`` are both set, a stream waits for an event. Recorded
    codes are not used: nsys changed them twice, and its table of their names fits one version.
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
    """Set ``start`` and ``end`` of event records to the correlation id, to sort records by it.

    Most event records have no times.
    """
    number = pl.col("correlation").fill_null(0)
    return records.with_columns(start=number, end=number)


def ordered(batches: Iterable[pl.DataFrame], workspace: Workspace) -> Ordered:
    """Return host waits sorted by time, or event records (from `by_call`) by correlation id."""
    rows = Ordered(workspace)
    for batch in batches:
        rows.add(batch)
    return rows


def chunks(rows: Ordered, table: str, *identity: str) -> Iterator[pl.DataFrame]:
    """Yield sorted waits or event records, chunk by chunk, with the columns of their table.

    Parameters
    ----------
    rows
        Rows from `ordered`.
    table
        Name of the table: ``syncs`` or ``event_records``.
    identity
        Further integer columns that identify process, thread or GPU.
    """
    kept = (SYNCS if table == SYNCS.name else EVENT_RECORDS).schema
    for chunk in rows.chunks({**kept, **dict.fromkeys(identity, pl.Int64)}):
        yield chunk.drop("report")
