"""A table in a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import polars as pl

from tracekit.support.batches import in_batches


class ParquetTable:
    """Columns of a Parquet file, a batch of rows after the other.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def _rows(self) -> pl.LazyFrame:
        return pl.scan_parquet(self._path, glob=False, hive_partitioning=False)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""
        return tuple(self._rows.collect_schema())

    def count(self) -> int:
        """Return its number of rows."""
        return int(self._rows.select(pl.len()).collect().item())

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield some columns, which it has, of about `rows` rows at a time."""
        return in_batches(self._rows.select(columns), rows)
