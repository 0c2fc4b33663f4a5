"""What is noticed of a table's rows while they are read, so that none is looked at twice."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tracekit.sources._ordering import Ordered
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
        distinct = ids.unique().cast(pl.Int64)
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
