"""Drop rows with implausible times, so that differences and sums of times do not overflow.

A recorder that fails writes times such as -2^63; a single row like that gives a total of minus nine
billion seconds. Rows with times further than `REACH` from the middle of the trace are dropped and
counted. Any difference of two times is then at most 2^53 ns, so a sum over a thousand devices fits
into int64. The total duration of a table's rows is limited too (`MOST_TOGETHER`), so that the sum
over a hundred reports fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl

from tracekit.errors import DamagedTraceError

REACH = 1 << 52
"""Largest distance of a time from the middle of the recording, ns: 52 days."""
MOST_TOGETHER = 1 << 56
"""Largest total duration of the rows of a table, ns: 20,000 hours. In a recording of one hour,
threads of data loaders may wait for thousands of hours in total."""
_ANY = 1 << 63
FIRST_ROWS = 1 << 10
"""Number of rows of each table from which the middle is derived."""
FARTHEST = 1 << 61
"""Largest time that is possible: times since 1970 stay below it until the year 2043."""
LOST = "have no valid times and were left out"

Filter: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass
class _Passed:
    """Number of rows of a table that a filter dropped, and total duration of the others, ns."""

    lost: int = 0
    together: float = 0.0


class Times:
    """Filter that drops rows with corrupt times.

    A time over 52 days before or after the trace's median start counts as corrupt.

    Parameters
    ----------
    path
        Path of the trace, for messages.
    starts
        Start times in the trace, ns, of which the median is taken; if empty, all times pass.
    """

    def __init__(self, path: Path, starts: Sequence[int] | None = None) -> None:
        some = sorted(time for time in starts or () if time and abs(time) < FARTHEST)
        middle = some[(len(some) - 1) // 2] if some else 0
        self.middle = middle
        """Median of the start times, ns; 0 without any."""
        self._path = path
        self._low, self._high = (middle - REACH, middle + REACH) if starts else (-_ANY, _ANY - 1)
        self._passed: dict[str, _Passed] = {}
        self._edges: set[int] = set()

    def hold(self, time: pl.Expr) -> pl.Expr:
        """Test whether each time is within 52 days of the trace's median start; null stays null."""
        return time.is_between(self._low, self._high)

    def within(self, noun: str, *names: str) -> Filter:
        """Return a filter for batches of rows: it drops rows with a time far from the others.

        Far is over 52 days from the trace's median start.

        Parameters
        ----------
        noun
            Name of the rows, for messages.
        names
            Columns of times, which may have nulls; default: those of ``start`` and ``end`` that
            exist.

        Raises
        ------
        DamagedTraceError
            Raised by the returned filter, if the total duration of the rows is too large.
        """
        passed = self._passed[noun] = _Passed()

        def kept(rows: pl.DataFrame) -> pl.DataFrame:
            times = names or [name for name in ("start", "end") if name in rows.columns]
            edges = [edge for name in times for edge in (rows[name].min(), rows[name].max())]
            known = [edge for edge in edges if isinstance(edge, int)]
            possible = [edge for edge in known if self._low <= edge <= self._high]
            self._edges.update(possible and (min(possible), max(possible)))
            if len(possible) < len(known):
                before, rows = rows.height, rows.filter(self._are_possible(times))
                passed.lost += before - rows.height
            if "end" in times:
                passed.together += _together(rows)
                self._check(noun, passed.together)
            return rows

        return kept

    def _are_possible(self, names: Sequence[str]) -> pl.Expr:
        are_possible = [self.hold(pl.col(name)).fill_null(value=True) for name in names]
        unknown = pl.all_horizontal(pl.col(names) == 0)  # which is told of apart
        return pl.all_horizontal(are_possible) | unknown

    def check_endless(self, noun: str, count: int) -> None:
        """Raise `DamagedTraceError` if `count` rows without an end could overflow a duration sum.

        Each row is taken to last as long as the trace. `noun` names the rows in the error.
        """
        span = max(self._edges, default=0) - min(self._edges, default=0)
        self._check(f"{noun} without an end", float(count * span))

    def _check(self, noun: str, together: float) -> None:
        if together > MOST_TOGETHER:
            raise DamagedTraceError(
                f"{noun} last {together / 3.6e12:,.0f} hours together in {self._path}, "
                f"more than {MOST_TOGETHER / 3.6e12:,.0f}",
                "their times are damaged: export or record it again",
            )

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on the rows that were dropped so far."""
        known = self._passed.items()
        return tuple(f"{each.lost:,} {noun} {LOST}" for noun, each in known if each.lost)

    @property
    def why_nothing(self) -> str:
        """The `losses`, as the end of a message that nothing was recorded."""
        return "".join(f"; {loss}" for loss in self.losses)


def _together(rows: pl.DataFrame) -> float:
    """Return the total duration in ns of the rows that have a start and an end."""
    start, end = rows["start"], rows["end"]
    if start.null_count() or end.null_count():
        start, end = rows.select("start", "end").drop_nulls()
    if start.is_empty():
        return 0.0
    lengths = end.to_numpy() - start.to_numpy()
    if lengths.min() < 0:
        np.maximum(lengths, 0, out=lengths)
    fits = int(lengths.max()) * lengths.size < _ANY
    return float(lengths.sum() if fits else lengths.sum(dtype=np.float64))
