"""Traffic of links over time in bins, and counters of the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.traffic._routes import crossings
from tracekit.model import EVIDENCE, METRIC, REPORTS, PolarsType, Trace, with_clocks

if TYPE_CHECKING:
    from tracekit.machine import Machine

_LINE = ["link", "src", "dst", "evidence"]
_TIMELINE: dict[str, PolarsType] = {
    "link": pl.String, "src": pl.String, "dst": pl.String, "evidence": EVIDENCE,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Float64, "utilisation": pl.Float64,
}  # fmt: skip
_OF_METRIC = {
    "nvlink_tx": ("nvlink", "src"), "nvlink_rx": ("nvlink", "dst"),
    "pcie_tx": ("pcie", "src"), "pcie_rx": ("pcie", "dst"),
}  # fmt: skip
"""For each counter the type of the links that it counts, and which end of them its GPU is."""
_OWNER = ["report", "device", "metric"]
"""What samples are of: reports that sampled one GPU have each counted all of it."""
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_ATTRIBUTED = ["measured_bytes", "modelled_bytes"]


def link_timeline(
    transfers: pl.DataFrame,
    machine: Machine,
    place: Mapping[int, int],
    *,
    bins: int = 200,
    reports: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the traffic of each link over time, in each direction.

    The bytes of a transfer are spread evenly over its time, so that a bin holds a fraction of them.
    Times are those of the first report that has traffic, and of those on one clock with it;
    transfers of unknown size, and those of which it is not known which algorithm moved them, are
    left out.

    Parameters
    ----------
    transfers, machine, place, reports
        As for `links`.
    bins
        How many bins the time from the first transfer to the last one is cut into.

    Returns
    -------
    ``link, src, dst, evidence, start_ns, end_ns, bytes, utilisation`` (of the bin; null where the
    peak is unknown), a row per direction and bin.
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
    """Return the bytes between each two edges, each row's being spread evenly over its time."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    rate = rows["bytes"].to_numpy() / (end - start)
    until = _ramp(start, rate, edges) - _ramp(end, rate, edges)
    carried: NDArray[np.float64] = np.diff(until).clip(min=0)
    return carried


def _ramp(
    begin: NDArray[np.int64], rate: NDArray[np.float64], times: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of ``rate * (time - begin)`` over all that have begun, at each time."""
    order = np.argsort(begin)
    begin, rate = begin[order], rate[order]
    zero = begin[0]  # times are large beside what is summed
    begun = np.searchsorted(begin, times, side="right")
    rates = np.concatenate([[0.0], np.cumsum(rate)])[begun]
    moments = np.concatenate([[0.0], np.cumsum(rate * (begin - zero))])[begun]
    summed: NDArray[np.float64] = rates * (times - zero) - moments
    return summed


def link_counters(
    trace: Trace, transfers: pl.DataFrame, machine: Machine, place: Mapping[int, int]
) -> pl.DataFrame:
    """Compare attributed traffic of each GPU with its counters.

    A counter counts all traffic of a GPU's NVLinks or of its PCIe link in one direction, be it of
    this run or not; its samples are percent of the peak, which the machine gives.

    Parameters
    ----------
    trace
        The run, with the table ``metrics``.
    transfers, machine, place
        As for `links`.

    Returns
    -------
    ====================  =========================================================================
    ``device``            GPU; null for a NIC
    ``nic``               NIC; null for a GPU
    ``metric``            ``nvlink_tx``, ``nvlink_rx``, ``pcie_tx``, ``pcie_rx``, ``nic_tx``, ...
    ``samples``           number of samples
    ``window_ns``         from the first sample to the last one
    ``mean_percent``      mean over that time, of percent counters
    ``max_percent``       largest sample
    ``counted_bytes``     null where the peak, or what the unit means, is not known
    ``measured_bytes``    attributed in the same time, from what was recorded
    ``modelled_bytes``    attributed in the same time by a model
    ``unsized``           how many of the transfers in that time are of unknown size
    ``difference_bytes``  measured_bytes + modelled_bytes - counted_bytes
    ====================  =========================================================================
    """
    reports = trace.read("reports")
    counted = _counted(trace)
    crossed = with_clocks(crossings(transfers, machine, place), reports)
    attributed = _attributed(crossed, with_clocks(counted, reports), place)
    table = counted.join(_peaks(machine, place), on=["device", "metric"], how="left").join(
        attributed, on=_OWNER, how="left", nulls_equal=True
    )
    in_percent, window = pl.col("unit") == "percent", pl.col("last") - pl.col("first")
    return (
        table.select(
            "device", "nic", "metric", "samples", window_ns=window,
            mean_percent=pl.when(in_percent & (window > 0)).then(pl.col("area") / window),
            max_percent=pl.when(in_percent).then("max"), counted_bytes=_counted_bytes(),
            measured_bytes="measured", modelled_bytes="modelled", unsized="unknown",
        )
        .with_columns(
            difference_bytes=pl.sum_horizontal(_ATTRIBUTED, ignore_nulls=False)
            - pl.col("counted_bytes")
        )
        .sort("device", "nic", "metric", nulls_last=True)
    )  # fmt: skip


def _counted(trace: Trace) -> pl.DataFrame:
    """Return what each counter counted, by `_OWNER`."""
    value = pl.col("value")
    return _samples(trace).group_by(*_OWNER, "nic", "unit").agg(
        samples=pl.len().cast(pl.Int64),
        first=pl.col("before").min(),
        last=pl.col("time").max(),
        max=value.max(),
        sum=value.sum(),
        # Value times ns, of percent counters the share of the time that the peak would take.
        area=(value * (pl.col("time") - pl.col("before"))).sum(),
    )  # fmt: skip


def _counted_bytes() -> pl.Expr:
    unit, area = pl.col("unit").cast(pl.String).str.to_lowercase(), pl.col("area")
    per_ns = unit.str.extract(r"^bytes?/(\w+)$").replace_strict(
        _NS, default=None, return_dtype=pl.Float64
    )
    counted = (
        pl.when(unit == "percent").then(area / 100 * pl.col("peak") / 1e9)
        .when(unit.str.contains("^bytes?$")).then("sum")
        .otherwise(area / per_ns)
    )  # fmt: skip
    return counted.round().cast(pl.Int64)


def _samples(trace: Trace) -> pl.DataFrame:
    """Return the samples of what links carry, each with the time of the one before it."""
    line = [*_OWNER, "nic", "unit"]
    read = (
        trace["metrics"]
        .filter(pl.col("metric").cast(pl.String).str.contains("^(nvlink|pcie|nic)_"))
        .group_by(*line, "time")
        .agg(pl.col("value").sum(), pl.col("start").min())
        .sort("time")
        .collect()
    )
    before = pl.coalesce("start", pl.col("time").shift(1).over(line))
    return read.with_columns(before=before).drop_nulls("before")


def _peaks(machine: Machine, place: Mapping[int, int]) -> pl.DataFrame:
    """Return the peak of what each counter counts, bytes/s: ``device, metric, peak``."""
    rows = []
    for device, gpu in place.items():
        for metric, (kind, _) in _OF_METRIC.items():
            own = [link.bandwidth for link in machine.links
                   if f"GPU{gpu}" in link.ends and link.type == kind]  # fmt: skip
            known = [width for width in own if width is not None]
            rows.append((device, metric, sum(known) if own and len(known) == len(own) else None))
    schema = {"device": pl.Int32, "metric": pl.String, "peak": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.cast({"metric": METRIC})


def _attributed(
    crossed: pl.DataFrame, counted: pl.DataFrame, place: Mapping[int, int]
) -> pl.DataFrame:
    """Return what was attributed to a GPU's links in the time of its samples, by `_OWNER`."""
    nodes = pl.DataFrame(
        [(device, f"GPU{gpu}") for device, gpu in place.items()],
        schema={"device": pl.Int32, "node": pl.String}, orient="row",
    )  # fmt: skip
    parts = [
        counted.filter(pl.col("metric") == metric)
        .join(nodes, on="device")
        .join(
            crossed.filter(pl.col("type") == kind).select(
                "clock", "start", "end", "bytes", "evidence", node=end
            ),
            on=["clock", "node"],
            how="left",
        )
        .with_columns(carried=_clipped())
        for metric, (kind, end) in _OF_METRIC.items()
    ]
    evidence, carried = pl.col("evidence"), pl.col("carried").fill_null(0)
    within = (pl.col("start") < pl.col("last")) & (pl.col("end") > pl.col("first"))
    measures = {
        each: carried.filter(evidence == each).sum().round().cast(pl.Int64)
        for each in ("measured", "modelled")
    }
    unknown = (pl.col("bytes").is_null() & within).sum().cast(pl.Int64)
    return pl.concat(parts).group_by(_OWNER).agg(**measures, unknown=unknown)


def _clipped() -> pl.Expr:
    """Return the part of a transfer's bytes that is moved between `first` and `last`."""
    length = pl.max_horizontal(pl.col("end") - pl.col("start"), 1)
    inside = pl.min_horizontal(pl.col("start") + length, "last") - pl.max_horizontal(
        "start", "first"
    )
    return pl.col("bytes") * pl.max_horizontal(inside, 0) / length
