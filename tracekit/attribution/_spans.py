"""Stretches of time of teams, as the loops walk through them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array, Stretches
from tracekit.support.compiled import given


@dataclass(frozen=True)
class Spans:
    """Stretches of time of each team, one after the other; see `Teams`.

    Parameters
    ----------
    rows
        ``process, start, end, number`` in the order of process and start, the process standing for
        the team.
    teams
        How many teams there are.
    """

    rows: pl.DataFrame
    teams: int

    def arrays(self) -> Stretches:
        """Return the arrays for the loops, with nothing passed yet."""
        process = self.rows["process"].to_numpy()
        first = np.searchsorted(process, np.arange(self.teams + 1))
        rows = self.rows.with_columns(pl.col("number").fill_null(-1))
        start, end, number = (given(rows[name]) for name in ("start", "end", "number"))
        return Stretches(given(pl.Series(first)), start, end, number, first[:-1] - 1)

    def last(self) -> Array:
        """Return when the last one of each team ends."""
        last = np.full(self.teams, np.iinfo(np.int64).min)
        np.maximum.at(last, self.rows["process"].to_numpy(), self.rows["end"].to_numpy())
        return last
