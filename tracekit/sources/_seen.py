"""What is noticed of a table's rows while they are read, so that none is looked at twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources._ordering import Ordered
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Workspace

OPEN = (1 << 63) - 1
"""Stands for the end of a range that was still open when recording ended."""


def no_work(untimed: int) -> str:
    """Say that there is no GPU work to analyse, which may be there without times.

    Parameters
    ----------
    untimed
        How many ops have none: recorders write zeros where they could not measure.
    """
    return f"no times of {untimed:,} GPU ops" if untimed else "no GPU work"


def backward(count: int, what: str) -> tuple[str, ...]:
    """Say how many of something end before they begin, which a clock that is set back makes."""
    return (f"{count:,} {what} end before they begin, and were taken to last 0 ns",) * bool(count)


class Seen:
    """Rows in the order of time, and what was noticed of them on the way in.

    Parameters
    ----------
    batches
        The rows as they come in.
    workspace
        Where they wait.
    identities
        Columns whose distinct values are kept.
    """

    def __init__(
        self, batches: Iterable[pl.DataFrame], workspace: Workspace, *identities: str
    ) -> None:
        self._identities = identities
        self._distinct = pl.DataFrame(schema=dict.fromkeys(identities, pl.Int64))
        self.last: int | None = None
        """The latest time of any row, ns."""
        self.rows = Ordered(workspace)
        """The rows."""
        for batch in batches:
            self.rows.add(batch)
            self._notice(batch)

    def _notice(self, batch: pl.DataFrame) -> None:
        ids = batch.select(name for name in self._identities if name in batch.columns)
        distinct = _some_of_each(ids).unique().cast(pl.Int64)
        self._distinct = pl.concat([self._distinct, distinct], how="diagonal").unique()
        closed = pl.when(pl.col("end") != OPEN).then("end")
        times = batch.select(pl.max_horizontal(pl.col("start").max(), closed.max()))
        latest = times.item() if batch.height else None
        self.last = max((t for t in (self.last, latest) if t is not None), default=None)

    def __len__(self) -> int:
        return self.rows.height

    @property
    def distinct(self) -> pl.DataFrame:
        """The distinct identities."""
        return self._distinct


_SLOTS = 64


def _some_of_each(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of whole numbers without most of those that repeat another one."""
    if not rows.height:
        return rows
    numbers = [column.fill_null(0) for column in rows]
    numbers += [column.is_null() for column in rows if column.null_count()]
    values = np.stack([given(column, np.int64) for column in numbers])
    recent, kept = np.zeros(_SLOTS, np.int64), np.empty(rows.height, np.int64)
    count = compiled(without_recent, rows.height)(values, recent, kept)
    return rows[kept[:count]]


def without_recent(values: NDArray[Any], recent: NDArray[Any], kept: NDArray[Any]) -> int:
    """Leave out rows that repeat one that came not long ago, as most do that say who and where.

    Parameters
    ----------
    values
        The rows, of which there is one, column by column.
    recent
        Slots for the last row that was kept of those that share a slot: at first the first row.
    kept
        Becomes the rows that are kept.

    Returns
    -------
    How many these are.
    """
    kept[0], count = 0, 1
    for row in range(1, values.shape[1]):
        slot = 0
        for column in range(values.shape[0]):
            value = values[column, row]
            slot = 5 * slot + ((value ^ (value >> 24) ^ (value >> 32)) & (recent.size - 1))
        slot &= recent.size - 1
        for column in range(values.shape[0]):
            if values[column, row] != values[column, recent[slot]]:
                recent[slot] = kept[count] = row
                count += 1
                break
    return count
