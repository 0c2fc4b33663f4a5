"""Rows of a lazy frame, some at a time."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl


def in_batches(frame: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    """Yield all rows of a frame, about so many at a time.

    Raises
    ------
    ComputeError
        If some cannot be read: a thread of polars that breaks down over a damaged page ends the
        batches as if that were all.
    """
    read = 0
    for batch in frame.collect_batches(chunk_size=rows):
        read += batch.height
        yield batch
    wanted = int(frame.select(pl.len()).collect().item())
    if read != wanted:
        raise pl.exceptions.ComputeError(
            f"parquet: {wanted - read:,} of its {wanted:,} rows cannot be read"
        )
