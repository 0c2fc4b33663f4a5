"""Convert the times of a run's trace files to a common clock.

Each trace file ("report") counts time from the start of its recording. The correction that makes
times of several files comparable is computed when they are combined into a run, and stored in the
table `reports`; this module applies it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model._tables import TABLES, Column

_NOT_MOVED = (
    "session_start", "duration", "clock_offset", "clock_since", "clock_p5", "clock_p95",
    "clock_bound",
)  # fmt: skip
"""Columns in ns that describe the clock itself, or the whole recording; they are not converted."""
_LENGTH = "_ns"
"""Suffix of the names of columns with durations, which are the same on any clock."""
_KNOWN_BY = {
    "session_start": "the starts of sessions on one machine",
    "collectives": "collectives that end together",
    "messages": "messages both ways",
    "given": "the user",
}

GivenClock = int | tuple[int, float, int]
"""Correction that a user gives, ns; or a tuple of it, the drift per ns, and the time of the report
at which the drift is zero."""
Place = tuple[str | None, Collection[str]]
"""Host name of a report, and UUIDs of the GPUs that it lists."""


@dataclass(frozen=True)
class Clock:
    """Correction of the times in one trace file (offset and drift), and how it was found."""

    name: str
    """Name of the corrected clock: times of files with the same name can be compared."""
    offset: int = 0
    """Offset to add to each time, ns."""
    drift: float = 0.0
    """Further correction per ns after `since`, as a fraction."""
    since: int = 0
    """Time in the file at which the drift is zero, ns."""
    source: str | None = None
    """How the correction was found: ``session_start``, ``collectives``, ``messages`` or ``given``;
    None for a file whose clock is not aligned with any other."""
    calls: int = 0
    """Number of calls that were matched with calls in the file that this one was aligned with or
    checked against."""
    residual: tuple[int, int] | None = None
    """5th and 95th percentile of the time differences that remain between the ends of matched calls
    after the correction, ns."""
    reason: str | None = None
    """Sentence: how the correction was found, or why there is none."""
    steps: tuple[tuple[int, int], ...] = ()
    """Jumps of the file's clock: pairs of the file's time at a jump and the further offset to add
    from then on, ns."""
    bound: int | None = None
    """Largest possible error of the corrected times, ns; None where no bound is known."""

    @classmethod
    def of(cls, row: Mapping[str, Any], index: int) -> Clock:
        """Return the clock correction of trace file `index` from its row of the table `reports`."""
        if row.get("clock") is None:
            return cls(f"report {index}")
        known = row["clock_p5"] is not None and row["clock_p95"] is not None
        return cls(
            row["clock"],
            row["clock_offset"] or 0,
            row["clock_drift"] or 0.0,
            row["clock_since"] or 0,
            row["clock_source"],
            row["clock_calls"] or 0,
            (row["clock_p5"], row["clock_p95"]) if known else None,
            row["clock_reason"],
            _steps_of(row.get("clock_steps")),
            row.get("clock_bound"),
        )

    @classmethod
    def given(cls, by_user: GivenClock) -> Self:
        """Return the correction that the user gives: an offset, ns, or (offset, drift, since)."""
        offset, drift, since = (by_user, 0.0, 0) if isinstance(by_user, int) else by_user
        where = f", on time at {since / 1e9:g} s of the report" if drift else ""
        reason = f"given by the user{where}"
        return cls("", offset, drift, since, source="given", reason=reason)

    def applied_to(self, reports: pl.DataFrame) -> pl.DataFrame:
        """Return the table `reports` (one row per trace file) with this correction in every row."""
        return clocks_applied(reports, [self] * reports.height)

    def row(self) -> dict[str, Any]:
        """Return the correction as columns of a row of `reports`."""
        low, high = self.residual or (None, None)
        return {
            "clock": self.name,
            "clock_offset": self.offset,
            "clock_drift": self.drift,
            "clock_since": self.since,
            "clock_source": self.source,
            "clock_calls": self.calls,
            "clock_p5": low,
            "clock_p95": high,
            "clock_steps": " ".join(f"{at}:{by}" for at, by in self.steps) or None,
            "clock_bound": self.bound,
            "clock_reason": self.reason,
        }

    def moved(self, column: str) -> pl.Expr:
        """Return an expression that applies this correction to a column of times."""
        drift = pl.lit(self.drift) if self.drift else None
        steps = [(pl.lit(at), pl.lit(by)) for at, by in self.steps]
        return _moved(column, pl.lit(self.offset), drift, pl.lit(self.since), steps)

    def added(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each time the correction to add, ns."""
        run = np.round((times - self.since) * self.drift).astype(np.int64)
        return run + self.offset + sum((times >= at) * by for at, by in self.steps)

    def inverse(self) -> Clock:
        """Return the correction that undoes this one, which must have no jumps (`steps`)."""
        drift = -self.drift / (1 + self.drift)
        return Clock("", -self.offset, drift, self.since + self.offset)

    def after(self, first: Clock) -> Clock:
        """Return the composition of two corrections: first `first`, then this one.

        Parameters
        ----------
        first
            Correction from the original times to the clock that this correction starts from.
        """
        there = round((first.since + first.offset - self.since) * self.drift)
        steps = [*first.steps, *((at - first.offset, by) for at, by in self.steps)]
        return replace(
            first, offset=self.offset + there + first.offset,
            drift=self.drift + first.drift + self.drift * first.drift,
            steps=tuple(sorted(steps)),
        )  # fmt: skip


def _steps_of(text: str | None) -> tuple[tuple[int, int], ...]:
    pairs = (step.split(":") for step in (text or "").split())
    return tuple((int(at), int(by)) for at, by in pairs)


def clocks_applied(reports: pl.DataFrame, clocks: Sequence[Clock]) -> pl.DataFrame:
    """Return the table `reports` (a row per trace file) with the correction of each clock."""
    schema = {name: TABLES["reports"].schema[name] for name in Clock("").row()}
    rows = pl.DataFrame([clock.row() for clock in clocks], schema)
    return TABLES["reports"].conform(reports.with_columns(rows.get_columns()))


def with_clocks(rows: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``clock``: times of rows with an equal value can be compared.

    Trace files of one run have an equal value if their clocks are aligned; an unaligned file has
    its own.
    """
    known = reports.select("report", "clock")
    found = rows.select("report").unique().join(known, on="report", how="left").with_columns(
        clock=pl.coalesce("clock", pl.format("report {}", "report"))
    )  # fmt: skip
    return rows.join(found, on="report", how="left", maintain_order="left")


def same_machine(one: Place, other: Place) -> bool:
    """Test whether two trace files are of one machine: equal host names, or a GPU in common.

    GPUs are compared by UUID if one of the files names no host, as in old exports.
    """
    if one[0] is not None and other[0] is not None:
        return one[0] == other[0]
    return not set(one[1]).isdisjoint(other[1])


Steps = Sequence[tuple[pl.Expr, pl.Expr]]
"""Pairs of the time at which a clock jumped, and the correction from then on."""


def on_clock(
    table: str, offset: pl.Expr, drift: pl.Expr | None, since: pl.Expr, steps: Steps = ()
) -> list[pl.Expr]:
    """Return expressions that convert the times of a table to another clock.

    Parameters
    ----------
    table
        The canonical table.
    offset, drift, since, steps
        The correction, as in `Clock`; `drift` None means no drift. An interval during which the
        clock jumps keeps its length.
    """
    times = [column.name for column in TABLES[table].columns if _is_time(column)]
    return [
        _moved(time, offset, drift, since, steps, "start" if {"start", time} <= {*times} and
               time == "end" else time)
        for time in times
    ]  # fmt: skip


def _moved(
    column: str,
    offset: pl.Expr,
    drift: pl.Expr | None,
    since: pl.Expr,
    steps: Steps,
    began: str | None = None,
) -> pl.Expr:
    time = pl.col(column)
    moved = time + offset
    if drift is not None:
        moved = moved + ((time - since) * drift).round().cast(pl.Int64)
    for at, by in steps:
        moved = moved + pl.when(pl.col(began or column) >= at).then(by).otherwise(0)
    return moved


def _is_time(column: Column) -> bool:
    """Test whether a column contains points in time on the clock of its trace file."""
    is_length = column.name.endswith(_LENGTH)
    return column.unit == "ns" and not is_length and column.name not in _NOT_MOVED


def clock_warnings(clocks: Sequence[Clock], names: Sequence[str]) -> list[str]:
    """Return warnings on unaligned files, and on files aligned by calls, messages or the user."""
    found = []
    main = clocks[0].name
    for clock, name in zip(clocks, names, strict=True):
        if clock.source in ("collectives", "messages", "given"):
            drift = f", drift {clock.drift * 1e6:+.3f} ppm" if clock.drift else ""
            if clock.steps:
                drift += f", set anew {', '.join(f'{by:+,} ns' for _, by in clock.steps)}"
            found.append(
                f"{name}: its clock is set {clock.offset:+,} ns{drift} by {_KNOWN_BY[clock.source]}"
                f"{_left(clock)}"
            )
        elif clock.name != main and clock.reason:
            found.append(f"{name}: its clock is not aligned with the first report's: "
                         f"{clock.reason}")  # fmt: skip
    different = len({clock.name for clock in clocks})
    if different > 1:
        found.append(
            f"the clocks of {len(clocks)} reports are not aligned: there are "
            f"{different} separate clocks, so compare no times between these"
        )
    return found


def _left(clock: Clock) -> str:
    if clock.residual is None:
        return ""
    low, high = clock.residual
    return (
        f": the ends of {clock.calls:,} then differ by {low:+,} to {high:+,} ns"
        " (5th and 95th percentile)"
    )
