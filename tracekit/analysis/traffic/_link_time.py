"""Traffic of links in bins of time; exposed time of transfers, while their GPU computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.traffic._routes import crossings
from tracekit.engine import union_length
from tracekit.machine import Machine
from tracekit.model import EVIDENCE, REPORTS, PolarsType, Trace, with_clocks

EVER = 2**63 - 1
"""A time that nothing starts after, ns."""
_LINE = ["link", "src", "dst", "evidence"]
_TIMELINE: dict[str, PolarsType] = {
    "link": pl.String, "src": pl.String, "dst": pl.String, "evidence": EVIDENCE,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Float64, "utilisation": pl.Float64,
}  # fmt: skip


def link_timeline(
    transfers: pl.DataFrame,
    machine: Machine,
    place: Mapping[int, int],
    *,
    bins: int = 200,
    reports: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the traffic of each link over time, in each direction.

    The bytes of a transfer are spread evenly over its time, so a bin can contain a fraction of
    them. Left out are transfers from trace files on another clock than the first file with traffic,
    transfers of unknown size, and transfers of collectives of unknown algorithm.

    Parameters
    ----------
    transfers, machine, place, reports
        As for `links`.
    bins
        Number of bins between the first and the last transfer.

    Returns
    -------
    One row per direction and bin: ``link, src, dst, evidence, start_ns, end_ns, bytes,
    utilisation`` (of the bin; null if the peak is unknown).
    """
    sized = with_clocks(
        transfers.drop_nulls("bytes"), REPORTS.empty() if reports is None else reports
    )
    crossed = crossings(sized, machine, place).sort("report", maintain_order=True)
    crossed = crossed.filter(pl.col("clock") == pl.col("clock").first())
    if crossed.is_empty():
        return pl.DataFrame(schema=_TIMELINE)
    # What takes no time on the clock is spread over its smallest step.
    crossed = crossed.with_columns(end=pl.max_horizontal("end", pl.col("start") + 1))
    first, last = crossed.select(first=pl.col("start").min(), last=pl.col("end").max()).row(0)
    # Times may be too large for floats to tell two from each other; what lies between them is not.
    edges = first + np.unique(np.linspace(0, last - first, bins + 1).astype(np.int64))
    spans = pl.DataFrame({"start_ns": edges[:-1], "end_ns": edges[1:]})
    parts = [
        spans.with_columns(
            bytes=pl.Series(_carried(rows, edges)),
        ).join(rows.select(*_LINE, "bandwidth").head(1), how="cross")
        for _, rows in crossed.sort(_LINE).group_by(_LINE, maintain_order=True)
    ]
    rate = pl.col("bytes") * 1e9 / (pl.col("end_ns") - pl.col("start_ns"))
    timeline = pl.concat(parts).with_columns(utilisation=rate / pl.col("bandwidth"))
    return timeline.select(_TIMELINE.keys())


def _carried(rows: pl.DataFrame, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bytes in each bin; the bytes of a row are spread evenly over its time."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    rate = rows["bytes"].to_numpy() / (end - start)
    until = _ramp(start, rate, edges) - _ramp(end, rate, edges)
    carried: NDArray[np.float64] = np.diff(until).clip(min=0)
    return carried


def _ramp(
    begin: NDArray[np.int64], rate: NDArray[np.float64], times: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return ``rate * (time - begin)`` at each time, summed over the rows that have begun."""
    order = np.argsort(begin)
    begin, rate = begin[order], rate[order]
    zero = begin[0]  # times are large beside what is summed
    begun = np.searchsorted(begin, times, side="right")
    rates = np.concatenate([[0.0], np.cumsum(rate)])[begun]
    moments = np.concatenate([[0.0], np.cumsum(rate * (begin - zero))])[begun]
    summed: NDArray[np.float64] = rates * (times - zero) - moments
    return summed


@dataclass(frozen=True)
class Covered:
    """How long at least one interval of each group is open; intervals come in batches (`plus`)."""

    by: Sequence[str]
    """Columns that define a group."""
    groups: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Columns `by` and ``length``: length of the union up to the `until` of the last `plus`, ns."""
    beyond: pl.DataFrame = field(default_factory=pl.DataFrame)
    """The intervals, or parts of intervals, after that `until`."""

    def plus(self, intervals: pl.DataFrame, until: int) -> Covered:
        """Return the lengths with more intervals; later ones must not start before `until`."""
        rows = _both(self.beyond, intervals.select(*self.by, "start", "end"))
        beyond = rows.filter(pl.max_horizontal("start", "end") > until)
        beyond = beyond.with_columns(start=pl.max_horizontal("start", until)).unique()
        before = rows.filter(pl.col("start") <= until)
        before = before.with_columns(end=pl.min_horizontal("end", until))
        lengths = _both(self.groups, union_length(before, self.by))
        return Covered(self.by, lengths.group_by(self.by).agg(pl.col("length").sum()), beyond)

    def by_columns(self, columns: Sequence[str], name: str) -> pl.DataFrame:
        """Return the lengths as `name`, summed by some of the columns that define a group."""
        return self.groups.group_by(columns).agg(pl.col("length").sum().alias(name))


def _both(earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([earlier, later]) if earlier.width else later


# -- exposed transfers: a transfer runs and its GPU computes nothing

_OF_GPU = ["device", "clock"]
_Ints = NDArray[np.int64]
Computing = Mapping[tuple[object, ...], tuple[_Ints, _Ints]]
"""Device and clock -> starts and ends of intervals that neither overlap nor touch, by start."""


def computing_times(trace: Trace) -> Computing:
    """Return the intervals in which each GPU runs kernels other than collectives.

    A GPU without such kernels has one interval of length 0, so that its clock is known.
    """
    reports = trace.read("reports")
    gpus = with_clocks(trace.read("devices").select("report", "device"), reports)
    found: dict[tuple[object, ...], tuple[_Ints, _Ints]] = dict.fromkeys(
        gpus.select(_OF_GPU).rows(), (np.zeros(1, np.int64), np.zeros(1, np.int64))
    )
    # A GPU is in one part of the run, and one part in memory.
    for part in trace.parts():
        ops = part["ops"].filter(pl.col("kind") == "compute")
        ran = with_clocks(ops.select("report", "device", "start", "end").collect(), reports)
        for gpu, rows in ran.partition_by(_OF_GPU, as_dict=True).items():
            by_start = rows.select("start", "end").sort("start")
            found[gpu] = _union(by_start["start"].to_numpy(), by_start["end"].to_numpy())
    return found


def _union(start: _Ints, end: _Ints) -> tuple[_Ints, _Ints]:
    """Join intervals, ordered by start, that overlap or touch."""
    reach = np.maximum.accumulate(end)
    begins = np.append(True, start[1:] > reach[:-1])
    return start[begins], reach[np.append(begins[1:], True)]


def exposed_parts(intervals: pl.DataFrame, computing: Computing) -> pl.DataFrame:
    """Subtract from intervals the time in which their GPU computes.

    Parameters
    ----------
    intervals
        ``device, clock, start, end`` (ns) and other columns.
    computing
        Result of `computing_times`.

    Returns
    -------
    The columns of `intervals`, one row per remaining part; ``start`` and ``end`` are null if the
    GPU is on another clock, or unknown.
    """
    parts = [
        _left(rows, *computing[gpu])
        if gpu in computing
        else rows.with_columns(start=None, end=None)
        for gpu, rows in intervals.partition_by(_OF_GPU, as_dict=True).items()
    ]
    return pl.concat([intervals.clear(), *parts], how="vertical_relaxed")


def _left(rows: pl.DataFrame, begins: _Ints, ends: _Ints) -> pl.DataFrame:
    """Return the parts of one GPU's intervals in which it does not compute."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    first = np.searchsorted(ends, start, side="right")
    number = np.maximum(np.searchsorted(begins, end, side="left") - first, 0)
    row = np.repeat(np.arange(rows.height), number + 1)
    place = np.arange(row.size) - np.repeat(np.cumsum(number + 1) - number - 1, number + 1)
    after = (first[row] + place).clip(0, begins.size - 1)
    before = (first[row] + place - 1).clip(0, ends.size - 1)
    return (
        rows[row]
        .with_columns(
            start=pl.Series(np.where(place == 0, start[row], ends[before])),
            end=pl.Series(np.where(place == number[row], end[row], begins[after])),
        )
        .filter(pl.col("start") < pl.col("end"))
    )
