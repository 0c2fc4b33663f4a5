"""Compare the measured and modelled traffic of links with hardware counters of GPUs and NICs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.traffic._links import network_nodes
from tracekit.analysis.traffic._routes import crossings
from tracekit.machine import Machine
from tracekit.model import METRIC, Trace, with_clocks

_OF_METRIC = {
    # A GPU that no NIC is known of reaches the network by its PCIe link all the same.
    "nvlink_tx": (("nvlink",), "src"), "nvlink_rx": (("nvlink",), "dst"),
    "pcie_tx": (("pcie", "network"), "src"), "pcie_rx": (("pcie", "network"), "dst"),
    "nic_tx": (("network",), "src"), "nic_rx": (("network",), "dst"),
}  # fmt: skip
"""Counter -> types of the links that it counts, and the end of the links at which it is."""
_COUNTER = ["device", "host", "nic", "metric"]
_LINE = ["report", *_COUNTER]
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_LATE = 2
"""Largest time between two samples of a GPU, in usual ones, of which none is taken to be lost."""
_ATTRIBUTED = ["measured_bytes", "modelled_bytes"]
_NODES = {"device": pl.Int32, "host": pl.String, "nic": pl.String, "node": pl.String}


def link_counters(
    trace: Trace,
    transfers: pl.DataFrame,
    machine: Machine,
    place: Mapping[int, int],
    hosts: Mapping[int, str | None] | None = None,
) -> pl.DataFrame:
    """Compare the bytes that `links` measured or modelled for GPUs and NICs with their counters.

    A counter counts all traffic in one direction of a GPU's NVLinks, of its PCIe link or of a NIC,
    including traffic of other programs. Samples of GPUs are in percent of the machine's peak.
    Only traffic during the sampled time is compared. NICs are matched with the machine by host and
    name; if the machine (topology) names no NIC of a host, the sum over its NICs forms one row,
    compared with the traffic of the host. If several trace files of the run have samples of one GPU
    or NIC, the one with most samples counts.

    Parameters
    ----------
    trace
        The run, with the table ``metrics``.
    transfers, machine, place
        As for `links`.
    hosts
        Device -> name of its host.

    Returns
    -------
    The columns of ``tracekit links --counters``; ``device`` is null for NICs, ``nic`` for a GPU and
    for the sum over NICs of a host.
    """
    reports = trace.read("reports")
    nodes = _nodes(machine, place, hosts or {})
    samples = _with_hosts(_samples(trace, reports), nodes)
    counted = _counted(samples)
    compared = transfers if counted.height else transfers.clear()  # as mostly
    crossed = with_clocks(crossings(compared, machine, place), reports)
    spans = with_clocks(_spans(samples.join(counted, on=_LINE, how="semi", nulls_equal=True)),
                        reports)  # fmt: skip
    table = (
        counted.join(_peaks(machine, place), on=["device", "metric"], how="left")
        .join(_covered(spans, _windows(trace, reports)), on=_LINE, how="left", nulls_equal=True)
        .join(_attributed(spans, crossed, nodes), on=_LINE, how="left", nulls_equal=True)
    )
    in_percent, window = pl.col("unit") == "percent", pl.col("last") - pl.col("first")
    mean = pl.col("area") / pl.col("covered")
    difference = pl.sum_horizontal(_ATTRIBUTED, ignore_nulls=False) - pl.col("counted_bytes")
    return (
        table.select(
            *_COUNTER, "samples", window_ns=window, sampled_share="sampled_share",
            mean_percent=pl.when(in_percent & (window > 0)).then(mean),
            max_percent=pl.when(in_percent).then("max"), counted_bytes=_counted_bytes(),
            measured_bytes="measured", modelled_bytes="modelled", unsized="unknown",
        )
        .with_columns(difference_bytes=difference)
        .with_columns(
            difference_share=pl.when(pl.col("counted_bytes") > 0).then(
                pl.col("difference_bytes") / pl.col("counted_bytes")
            )
        )
        .sort(_COUNTER, nulls_last=True)
    )  # fmt: skip


# -- samples -----------------------------------------------------------------------------------


def _samples(trace: Trace, reports: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of link counters, each with start and end of the time that it covers.

    This is the time since the sample before or, if that is far longer than usual, the usual time.
    """
    line = ["report", "device", "nic", "metric", "unit"]
    read = (
        trace["metrics"]
        .filter(pl.col("metric").cast(pl.String).str.contains("^(nvlink|pcie|nic)_"))
        .group_by(*line, "time")
        .agg(pl.col("value").sum(), pl.col("start").min())
        .sort("time")
        .collect()
    )
    host = pl.when(pl.col("nic").is_not_null()).then("host")
    apart = pl.col("time").diff().over(line)
    usual = apart.median().over(line).round().cast(pl.Int64)
    covers = pl.when(apart > _LATE * usual).then(usual).otherwise(apart)
    return (
        read.with_columns(before=pl.coalesce("start", pl.col("time") - covers))
        # No counter counts backwards: what is damaged counts nothing, and covers nothing.
        .filter(pl.col("before") < pl.col("time"), pl.col("value") >= 0)
        .join(reports.select("report", "host"), on="report", how="left", maintain_order="left")
        .with_columns(host=host)
    )


def _with_hosts(samples: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Add samples with null ``nic`` for NICs that the topology lacks, to be summed per host."""
    of_nics = samples.filter(pl.col("nic").is_not_null())
    named = of_nics.join(nodes, on=["host", "nic"], how="semi")
    hosts = nodes.filter(pl.col("device").is_null(), pl.col("nic").is_null())
    unnamed = of_nics.join(hosts, on="host", how="semi").join(named, on="host", how="anti")
    return pl.concat([samples, unnamed.with_columns(nic=pl.lit(None, pl.String))])


def _counted(samples: pl.DataFrame) -> pl.DataFrame:
    """Return sum and number of each counter's samples, from the trace file with most of them."""
    value = pl.col("value")
    counted = samples.group_by(*_LINE, "unit").agg(
        samples=pl.len().cast(pl.Int64),
        first=pl.col("before").min(),
        last=pl.col("time").max(),
        max=value.max(),
        sum=value.sum(),
        # Value times ns, of percent counters the share of the time that the peak would take.
        area=(value * (pl.col("time") - pl.col("before"))).sum(),
        covered=(pl.col("time") - pl.col("before")).sum(),
    )  # fmt: skip
    unknown_host = pl.when(pl.col("device").is_null() & pl.col("host").is_null()).then("report")
    most = counted.sort("samples", -pl.col("report"), descending=True)
    return (
        most.with_columns(apart=unknown_host)
        .unique([*_COUNTER, "apart"], keep="first", maintain_order=True)
        .drop("apart")
    )


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
    return counted.round().cast(pl.Int64, strict=False)


def _spans(samples: pl.DataFrame) -> pl.DataFrame:
    """Return merged intervals covered by samples, from ``before`` to ``time`` (ns), by counter."""
    reach = pl.col("time").cum_max().shift(1).over(_LINE)
    begins = (pl.col("before") > reach).fill_null(value=True)
    return (
        samples.sort("before", "time")
        .with_columns(number=begins.cast(pl.Int64).cum_sum().over(_LINE))
        .group_by(*_LINE, "number")
        .agg(pl.col("before").min(), pl.col("time").max())
        .sort("before")
    )


def _windows(trace: Trace, reports: pl.DataFrame) -> pl.DataFrame:
    """Return the time span of a run's ops (first start, last end) on each clock."""
    edges = trace["ops"].group_by("report").agg(pl.col("start").min(), pl.col("end").max())
    timed = with_clocks(edges.collect(), reports).group_by("clock")
    return timed.agg(pl.col("start").min(), pl.col("end").max())


def _covered(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return, per trace file and counter, the share of the time with ops that samples cover."""
    inside = pl.min_horizontal("time", "end") - pl.max_horizontal("before", "start")
    window = (pl.col("end") - pl.col("start")).first()
    timed = spans.join(windows, on="clock").group_by(_LINE)
    return timed.agg(sampled_share=pl.when(window > 0).then(inside.clip(0).sum() / window))


# -- what is attributed ------------------------------------------------------------------------


def _nodes(
    machine: Machine, place: Mapping[int, int], hosts: Mapping[int, str | None]
) -> pl.DataFrame:
    """Return the nodes of the machine that have counters: ``device, host, nic, node``."""
    gpus = pl.DataFrame(
        [(device, None, None, f"GPU{gpu}") for device, gpu in place.items()],
        schema=_NODES, orient="row",
    )  # fmt: skip
    ends = [end for link in machine.links if link.type == "network" for end in link.ends]
    nics = network_nodes(machine, place, hosts).filter(pl.col("node").is_in(ends))
    named = nics.drop_nulls(["host", "nic"])
    of_hosts = nics.drop_nulls("host").with_columns(nic=pl.lit(None, pl.String))
    return pl.concat([gpus, named, of_hosts], how="diagonal").select(_NODES.keys())


def _peaks(machine: Machine, place: Mapping[int, int]) -> pl.DataFrame:
    """Return the peak of each GPU counter: ``device, metric, peak`` (bytes/s)."""
    rows = []
    for device, gpu in place.items():
        for metric in ("nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx"):
            every = [link.bandwidth for *_, link in machine.graph.edges([f"GPU{gpu}"], data="link")
                   if link.type == metric.partition("_")[0]
                   # A log says that a GPU reaches a NIC, by the one PCIe link that it has.
                   and not any(end.startswith("NIC") for end in link.ends)]  # fmt: skip
            known = [width for width in every if width is not None]
            rows.append(
                (device, metric, sum(known) if every and len(known) == len(every) else None)
            )
    schema = {"device": pl.Int32, "metric": pl.String, "peak": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").cast({"metric": METRIC})


def _attributed(spans: pl.DataFrame, crossed: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the bytes that transfers moved over the links of each counter while it was sampled.

    `crossed` has a row per transfer and link, `spans` the sampled time. Counters of GPUs and NICs
    that the machine lacks are left out.
    """
    lines = spans.select(*_LINE, "clock").unique()
    of_counters = lines.join(nodes, on=["device", "host", "nic"], nulls_equal=True)
    parts = [
        of_counters.filter(pl.col("metric") == metric).join(
            crossed.filter(pl.col("type").is_in(kinds)).select(
                "clock", "start", "end", "bytes", "evidence", node=end
            ),
            on=["clock", "node"],
            how="left",
        )
        for metric, (kinds, end) in _OF_METRIC.items()
    ]
    moved = pl.concat(parts).sort(_LINE)
    times = spans.partition_by(_LINE, as_dict=True)
    carried = [
        rows.with_columns(inside=_inside(rows, times[line]))
        for line, rows in moved.partition_by(_LINE, as_dict=True).items()
    ]
    inside = pl.col("inside").fill_nan(None)
    size = (pl.col("bytes") * inside).fill_null(0)
    measures = {
        each: size.filter(pl.col("evidence") == each).sum().round().cast(pl.Int64)
        for each in ("measured", "modelled")
    }
    unknown = (pl.col("bytes").is_null() & (inside > 0)).sum().cast(pl.Int64)
    return (
        pl.concat([moved.clear().with_columns(inside=pl.lit(0.0)), *carried])
        .group_by(_LINE)
        .agg(**measures, unknown=unknown)
    )


def _inside(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return the share of each transfer's duration that lies in the intervals `spans`."""
    edges = spans.select("before", "time").to_numpy().ravel()
    zero = edges[0]  # times are large beside what is told apart
    lengths = np.diff(edges)[::2]
    until = (
        np.repeat(np.cumsum(lengths), 2)
        - np.column_stack([lengths, np.zeros_like(lengths)]).ravel()
    )

    def covered(times: pl.Series) -> NDArray[np.float64]:
        moved: NDArray[np.float64] = (times - zero).cast(pl.Float64).to_numpy()
        found: NDArray[np.float64] = np.interp(moved, edges - zero, until)
        return found

    # What takes no time on the clock is spread over its smallest step.
    length = (rows["end"] - rows["start"]).clip(1)
    end = rows["start"] + length
    return pl.Series((covered(end) - covered(rows["start"])) / length.to_numpy())
