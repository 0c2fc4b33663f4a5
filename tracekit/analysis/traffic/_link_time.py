"""Traffic of links over time, in bins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.traffic._routes import crossings
from tracekit.model import EVIDENCE, REPORTS, PolarsType, with_clocks

if TYPE_CHECKING:
    from tracekit.machine import Machine

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
    them. Left out are recorded files on another clock than the first one with traffic, and
    transfers of unknown size, or of collectives of unknown algorithm.

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
