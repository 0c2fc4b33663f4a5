"""Waits for GPU work, and records of CUDA events, which databases keep beside the calls."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._syncs import LOST, by_call, chunks, ordered, sync_type
from tracekit.sources.nvprof._input import TABLE, owned, small, timed
from tracekit.sources.nvprof._places import Places
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.spool import Workspace

SYNC, EVENT_RECORD = f"{TABLE}SYNCHRONIZATION", f"{TABLE}CUDA_EVENT"
_CONTEXT = f"{TABLE}CONTEXT"
_HEAD = ("contextId", "streamId", "correlationId")


class Syncs:
    """Waits and records of events of a database.

    Parameters
    ----------
    file
        The database.
    workspace
        Where they wait until they are in order.
    owners
        Whose rows are whose: either a process id, or ``correlation, pid``.
    """

    def __init__(self, file: SqliteFile, workspace: Workspace, owners: int | pl.DataFrame) -> None:
        self._file, self._owners = file, owners
        self._lost = 0
        self.rows = {SYNC: 0, EVENT_RECORD: 0}
        """How many rows were read of each table."""
        self._devices = self._of_contexts()
        self._waits = ordered(self._read_waits(workspace.rows), workspace)
        self._records = ordered(self._read_records(workspace.rows), workspace)

    @property
    def losses(self) -> tuple[str, ...]:
        """How many waits were left out, in words."""
        return (f"{self._lost:,} {LOST}",) if self._lost else ()

    def _read_waits(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "cudaEventId", "start", "end"), "int")
        for batch in self._file.batches(SYNC, columns, rows):
            self.rows[SYNC] += batch.height
            waits = self._named(timed(batch), "cudaEventId").with_columns(sync_type())
            self._lost += batch.height - waits.height
            yield waits

    def _read_records(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "eventId"), "int")
        for batch in self._file.batches(EVENT_RECORD, columns, rows):
            self.rows[EVENT_RECORD] += batch.height
            yield by_call(self._named(batch, "eventId"))

    def _named(self, rows: pl.DataFrame, event: str) -> pl.DataFrame:
        named = rows.with_columns(
            context=small(pl.col("contextId")).cast(pl.Int32),
            stream=small(pl.col("streamId")),
            event=small(pl.col(event)),
        ).rename({"correlationId": "correlation"})
        placed = named.join(self._devices, on="context", how="left", maintain_order="left")
        return owned(placed, self._owners).drop("contextId", "streamId", event)

    def _of_contexts(self) -> pl.DataFrame:
        """Return ``context, device`` of contexts that are of one GPU, in whatever process."""
        rows = self._file.read(_CONTEXT, {"contextId": "int", "deviceId": "int"})
        pairs = rows.select(
            context=small(pl.col("contextId")).cast(pl.Int32),
            device=small(pl.col("deviceId")).cast(pl.Int32),
        )
        return pairs.drop_nulls().unique().unique("context", keep="none")

    def waits(self, places: Places) -> Iterator[pl.DataFrame]:
        """Return the canonical table ``syncs``, in the order of time."""
        for chunk in chunks(self._waits, "syncs", "pid"):
            yield places.since_origin(_placed(chunk, places))

    def records(self, places: Places) -> Iterator[pl.DataFrame]:
        """Return the canonical table ``event_records``."""
        for chunk in chunks(self._records, "event_records", "pid"):
            yield _placed(chunk, places)


def _placed(rows: pl.DataFrame, places: Places) -> pl.DataFrame:
    return rows.with_columns(
        pl.lit(0, pl.Int32).alias("report"), places.process(rows["pid"]).alias("process")
    )
