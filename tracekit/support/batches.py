"""Rows of a lazy frame in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import polars as pl

ROWS = 250_000
"""Rows per batch: passing on a batch takes little time beside its work; more only take memory."""

_BETWEEN: ContextVar[Callable[[int, int], None] | None] = ContextVar("between", default=None)


@contextmanager
def stoppable(check: Callable[[int, int], None] | None) -> Iterator[None]:
    """Within this context, `in_batches` calls `check` at each batch.

    `check` can report progress, or raise an error to stop the work.

    Parameters
    ----------
    check
        Function of the number of rows read so far and the number of all rows; None for no calls.
    """
    token = _BETWEEN.set(check)
    try:
        yield
    finally:
        _BETWEEN.reset(token)


def in_batches(frame: pl.LazyFrame, rows: int | None = None) -> Iterator[pl.DataFrame]:
    """Yield all rows of a frame in batches of about `rows` rows, by default `ROWS`.

    Raises
    ------
    ComputeError
        If rows are missing: a thread of polars that panics over a damaged page ends the batches as
        if they were complete.
    """
    read, wanted = 0, int(frame.select(pl.len()).collect().item())
    for batch in frame.collect_batches(chunk_size=rows or ROWS):
        read += batch.height
        if (check := _BETWEEN.get()) is not None:
            check(read, wanted)
        yield batch
    if read != wanted:
        raise pl.exceptions.ComputeError(
            f"parquet: {wanted - read:,} of its {wanted:,} rows cannot be read"
        )


def at_least_one(frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Yield all rows in batches; for a frame without rows one empty batch."""
    first = next(batches := in_batches(frame), None)
    yield frame.clear().collect(engine="in-memory") if first is None else first
    yield from batches
