"""Waits for GPU work, and records of CUDA events, which PyTorch records if it is asked to."""

from __future__ import annotations

import polars as pl

from tracekit.sources._seen import OPEN
from tracekit.sources._syncs import sync_type

_INT32 = (1 << 31) - 1


def waits(events: pl.DataFrame) -> pl.DataFrame:
    """Return waits that have an end; ids that are -1 name nothing."""
    ended = events.filter(pl.col("end") != OPEN)
    return ended.select(
        "start", "end", *_place(), _id("wait_event").alias("event"),
        _id("wait_record").alias("recorded_by"),
    ).with_columns(sync_type())  # fmt: skip


def records(events: pl.DataFrame) -> pl.DataFrame:
    """Return records of events; what their own times are of differs between versions."""
    return events.select(*_place(), _id("event_id").alias("event"))


def _place() -> list[pl.Expr]:
    number = (_id(name) for name in ("device", "context"))
    small = [pl.when(each <= _INT32).then(each).cast(pl.Int32) for each in number]
    return [*small, _id("stream"), pl.col("correlation").cast(pl.Int64, strict=False)]


def _id(name: str) -> pl.Expr:
    number = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(number >= 0).then(number).alias(name)
