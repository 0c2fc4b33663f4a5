"""One clock for the reports of a run.

Every report counts time from the start of its own session. Reports of one host share that host's
clock, which says how far apart sessions began. Clocks of different hosts differ by more than most
collectives take; but the participants of a collective end it together, whatever their clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model._tables import TABLES
from tracekit.model._trace import Trace

_ENOUGH = 8
"""Fewer collectives than this do not tell how far apart two clocks are."""
_ENOUGH_FOR_DRIFT = 16
_NOT_TIMES = ("session_start", "duration", "clock_offset", "clock_p5", "clock_p95")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """What to add to the times of a report, and how that is known.

    Parameters
    ----------
    name
        The clock that times are on then: reports with the same name can be compared.
    offset
        What to add, ns.
    drift
        What to add for each ns after `since`, as a fraction.
    since
        Time of the report from which drift counts, ns.
    source
        ``session_start`` or ``collectives``; None for a report that is on its own.
    collectives
        How many collectives were matched.
    residual
        5th and 95th percentile of by how much their ends still differ, ns.
    """

    name: str
    offset: int = 0
    drift: float = 0.0
    since: int = 0
    source: str | None = None
    collectives: int = 0
    residual: tuple[int, int] | None = None

    def moved(self, column: str) -> pl.Expr:
        """Return a column of times on this clock."""
        time = pl.col(column) + self.offset
        if not self.drift:
            return time
        drifted = ((pl.col(column) - self.since) * self.drift).round().cast(pl.Int64)
        return (time + drifted).alias(column)


def align(traces: Sequence[Trace], reports: Sequence[pl.DataFrame]) -> list[Clock]:
    """Return the clock of each trace, those that can be compared on the clock of the first.

    Sessions of one host are set apart by when they began. Hosts are set apart by their collectives:
    by the median of by how much the ends of those differ that are the same, in order, on both.

    Parameters
    ----------
    traces
        The traces.
    reports
        Their tables ``reports``, one row each; what has several has been aligned before.
    """
    clocks: list[Clock] = []
    rows = [frame.row(0, named=True) if frame.height == 1 else {} for frame in reports]
    for index, row in enumerate(rows):
        same = next((n for n in range(index) if _together(rows[n], row)), None)
        if same is not None:
            clocks.append(_later(clocks[same], row["session_start"] - rows[same]["session_start"]))
            continue
        host = row.get("host")
        named = host is not None and row.get("session_start") is not None
        own = Clock(f"host {host}" if named else f"report {index}")
        known = index > 0 and row and rows[0]
        clocks.append(_by_collectives(traces[0], traces[index], clocks[0], own) if known else own)
    return clocks


def _later(clock: Clock, apart: int) -> Clock:
    """Return the clock of a session that began `apart` ns later by the same host's clock."""
    # Drift is that of the host, and counts from the same instant.
    offset, since = clock.offset + apart, clock.since - apart
    source = clock.source or "session_start"
    return replace(clock, offset=offset, since=since, source=source)


def _together(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Tell whether two sessions count by one clock: they are of one host, or began as one."""
    if one.get("session_start") is None or other.get("session_start") is None:
        return False
    same_host = one["host"] is not None and one["host"] == other["host"]
    return same_host or one["session_start"] == other["session_start"]


def _by_collectives(first: Trace, other: Trace, clock: Clock, own: Clock) -> Clock:
    """Return the clock of a trace, by the collectives that it has in common with the first one."""
    ends, others = _collectives(first), _collectives(other)
    if ends.height < _ENOUGH or ends["collective"].to_list() != others["collective"].to_list():
        return own
    times, apart = others["end"].to_numpy(), (ends["end"] - others["end"]).to_numpy()
    since, drift = int(np.median(times)), _drift(times, apart)
    left = apart - np.round((times - since) * drift).astype(np.int64)
    offset = int(np.median(left))
    low, high = np.percentile(left - offset, [5, 95])
    return Clock(
        clock.name, offset, drift, since, "collectives", len(times), (round(low), round(high))
    )


def _collectives(trace: Trace) -> pl.DataFrame:
    """Return ``collective, end`` of the stream that holds most, in order."""
    ops = (
        trace["ops"].filter(pl.col("kind") == "collective")
        .select("process", "device", "context", "stream", "collective", "start", "end").collect()
    )  # fmt: skip
    lane = ["process", "device", "context", "stream"]
    largest = ops.group_by(lane).len().sort(-pl.col("len").cast(pl.Int64), *lane).head(1)
    return ops.join(largest, on=lane, how="semi", nulls_equal=True).sort("start", "end")


def _drift(times: Ints, apart: Ints) -> float:
    """Return by how much two clocks run apart, as a fraction; 0 where that does not show.

    It is the median of slopes between the ends of collectives half a recording apart [P. K. Sen,
    1968], which single late ones do not move. It has to explain more than what is left over.
    """
    half = len(times) // 2
    if len(times) < _ENOUGH_FOR_DRIFT or times[-1] <= times[0]:
        return 0.0
    run = times[half : 2 * half] - times[:half]
    rise = apart[half : 2 * half] - apart[:half]
    slopes = rise[run > 0] / run[run > 0]
    slope = float(np.median(slopes)) if slopes.size else 0.0
    straight = apart - (times - times[0]) * slope
    # Of quarters, so that single late ones do not hide it.
    before, after = (np.subtract(*np.percentile(some, [75, 25])) for some in (apart, straight))
    return slope if after < before / 2 else 0.0


def with_clock(tables: Mapping[str, pl.LazyFrame], clock: Clock) -> dict[str, pl.LazyFrame]:
    """Return the tables of a trace with their times on a clock."""
    if not clock.offset and not clock.drift:
        return dict(tables)
    return {
        name: frame.with_columns(
            clock.moved(column.name)
            for column in TABLES[name].columns
            if column.unit == "ns" and column.name not in _NOT_TIMES
        )
        for name, frame in tables.items()
    }


def clock_warnings(clocks: Sequence[Clock], names: Sequence[str]) -> list[str]:
    """Say which reports have been aligned by collectives, and which are on clocks of their own."""
    found = []
    for clock, name in zip(clocks, names, strict=True):
        if clock.residual is not None:
            drift = f", drift {clock.drift * 1e6:+.3f} ppm" if clock.drift else ""
            found.append(
                f"{name}: its clock is set {clock.offset:+,} ns{drift} by {clock.collectives:,} "
                f"collectives, whose ends then differ by {clock.residual[0]:+,} to "
                f"{clock.residual[1]:+,} ns (5th and 95th percentile)"
            )
    different = len({clock.name for clock in clocks})
    if different > 1:
        found.append(
            f"the clocks of {len(clocks)} reports are not aligned: {different} of them have times "
            "of their own, so compare none between these"
        )
    return found
