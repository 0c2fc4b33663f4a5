"""Waits for GPU work, and records of CUDA events, which exports keep beside the calls."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._syncs import LOST, by_call, chunks, ordered, sync_type
from tracekit.sources.nsys._ids import given, small
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places
from tracekit.sources.sqlite import SqlType
from tracekit.support.spool import Workspace

SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT_RECORD = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_HEAD = (
    "deviceId", "contextId", "streamId", "eventId", "correlationId", "globalPid", "eventSyncId",
)  # fmt: skip
_TIED = ["process_gid", "eventSyncId"]
"""What ties a wait to the record that it waits for, in exports since 2026."""


class Syncs:
    """Waits and records of events of an export.

    Parameters
    ----------
    export
        The export.
    workspace
        Where they wait until they are in order.
    """

    def __init__(self, export: Export, workspace: Workspace) -> None:
        self._export = export
        self._untimed = 0
        self.rows = {SYNC: 0, EVENT_RECORD: 0}
        """How many rows were read of each table."""
        self._records = ordered(self._read_records(workspace.rows), workspace)
        self._waits = ordered(self._read_waits(workspace.rows), workspace)

    def _read_waits(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "start", "end"), "int")
        recorded = self._recorded()
        for batch in self._export.file.batches(SYNC, columns, rows):
            self.rows[SYNC] += batch.height
            timed = batch.filter(pl.col("end") >= pl.col("start")).drop_nulls("globalPid")
            self._untimed += batch.height - timed.height
            waits = _named(shifted(timed, self._export.metadata, "start", "end"))
            of_event = pl.when(pl.col("event").is_not_null()).then("eventSyncId")
            yield (
                waits.with_columns(sync_type(), of_event)
                .join(recorded, on=_TIED, how="left", maintain_order="left")
                .drop("eventSyncId")
            )

    def _read_records(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "timestamp"), "int")
        for batch in self._export.file.batches(EVENT_RECORD, columns, rows):
            self.rows[EVENT_RECORD] += batch.height
            # Where the GPU's time was not collected it is 0.
            is_time = (pl.col("timestamp") > 0) & self._export.file.times.hold(pl.col("timestamp"))
            times = batch.with_columns(pl.when(is_time).then("timestamp"))
            timed = shifted(times, self._export.metadata, "timestamp").drop_nulls("globalPid")
            yield by_call(_named(timed).rename({"timestamp": "time"}).drop("eventSyncId"))

    def _recorded(self) -> pl.DataFrame:
        """Return which call recorded what a wait is tied to: ``process_gid, .., recorded_by``."""
        columns = ("globalPid", "eventSyncId", "correlationId")
        if not self._export.file.has(EVENT_RECORD, *columns):
            return pl.DataFrame(schema=dict.fromkeys((*_TIED, "recorded_by"), pl.Int64))
        keys = self._export.file.read(EVENT_RECORD, dict.fromkeys(columns, "int")).drop_nulls()
        named = keys.select(*_TIED[1:], process_gid="globalPid", recorded_by="correlationId")
        return named.unique(_TIED, keep="none")

    def waits(self, places: Places) -> Iterator[pl.DataFrame]:
        """Return the canonical table ``syncs``, in the order of time."""
        for chunk in chunks(self._waits, "syncs", "process_gid", "ordinal"):
            yield _placed(chunk, places)

    def records(self, places: Places) -> Iterator[pl.DataFrame]:
        """Return the canonical table ``event_records``."""
        for chunk in chunks(self._records, "event_records", "process_gid", "ordinal"):
            yield _placed(chunk, places)

    def losses(self, places: Places) -> tuple[str, ...]:
        """Say how many waits were left out."""
        pids = self._waits.chunks({"process_gid": pl.Int64})
        lost = self._untimed + sum(
            places.process(chunk["process_gid"]).null_count() for chunk in pids
        )
        return (f"{lost:,} {LOST}",) if lost else ()


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(
        given(pl.col("streamId", "eventId")), small(pl.col("deviceId", "contextId"))
    ).rename(
        {
            "deviceId": "ordinal", "contextId": "context", "streamId": "stream",
            "eventId": "event", "correlationId": "correlation", "globalPid": "process_gid",
        }
    )  # fmt: skip


def _placed(rows: pl.DataFrame, places: Places) -> pl.DataFrame:
    process = places.process(rows["process_gid"])
    return rows.with_columns(
        pl.lit(0, pl.Int32).alias("report"),
        process.alias("process"),
        places.device(process, rows["ordinal"]).alias("device"),
    ).drop_nulls("process")
