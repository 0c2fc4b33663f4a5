"""Least times of operators by the peaks of their GPU: of arithmetic, memory and launches."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit.analysis.operators._formulas import MULTIPLYING_FORMS
from tracekit.errors import UsageError
from tracekit.machine import peak_flops, peak_memory_bandwidth
from tracekit.model import Trace

_LENGTH = pl.col("end") - pl.col("start")
_KNOWN = pl.col("flops").is_not_null()
_NS = 10**9


def with_peaks(
    trace: Trace, work: pl.DataFrame, peak: int | None
) -> tuple[pl.DataFrame, dict[str, Mapping[str, int]]]:
    """Add ``ideal_ns``: how long the FLOPs take at the peak; and return which peaks those are."""
    if peak is not None:
        return work.with_columns(ideal_ns=pl.col("flops") / peak * _NS), {"given": {"any": peak}}
    devices = trace.read("devices").select("device", "name")
    known = {name: peak_flops(name) for name in devices["name"].unique().drop_nulls().sort()}
    rows = [(name, *pair) for name, each in known.items() for pair in each.items()]
    schema = {"name": pl.String, "precision": pl.String, "peak": pl.Int64}
    table = devices.join(pl.DataFrame(rows, schema=schema, orient="row"), on="name")
    found = work.join(table.select("device", "precision", "peak"), on=["device", "precision"],
                      how="left", maintain_order="left")  # fmt: skip
    multiplied = set(work.filter(_KNOWN)["precision"])
    used = {
        name: {precision: peak for precision, peak in each.items()
               if precision in multiplied}
        for name, each in known.items()
    }  # fmt: skip
    return found.with_columns(ideal_ns=pl.col("flops") / pl.col("peak") * _NS), {
        name: each for name, each in used.items() if each
    }


def memory_bandwidths(trace: Trace, given: int | None) -> pl.DataFrame:
    """Return ``device, name, bandwidth`` of GPUs' memory: given, recorded, or by the product."""
    if given is not None and given <= 0:
        raise UsageError(f"{given} bytes/s are no bandwidth", "give --memory-bandwidth as 3.35TB")
    devices = trace.read("devices").select("device", "name", "peak_memory_bandwidth")
    names = devices["name"].unique().drop_nulls().to_list()
    by_name = {name: peak_memory_bandwidth(name) for name in names}
    of_product = pl.col("name").replace_strict(by_name, default=None, return_dtype=pl.Int64)
    told = pl.coalesce(pl.lit(given, pl.Int64), "peak_memory_bandwidth", of_product)
    return devices.select("device", pl.col("name").replace("", None), bandwidth=told)


def with_bounds(trace: Trace, work: pl.DataFrame, bandwidths: pl.DataFrame) -> pl.DataFrame:
    """Add ``bound_ns``, the least time of an operator's kernels, and ``bound``, its reason."""
    kernels = trace["ops"].filter((pl.col("kind") == "compute") & (_LENGTH > 0))
    shortest = kernels.group_by("device").agg(shortest_ns=_LENGTH.min()).collect()
    computes = pl.col("form").is_in(list(MULTIPLYING_FORMS)).fill_null(value=False)
    limits = {
        "launch": (pl.col("kernels") * pl.col("shortest_ns")).cast(pl.Float64),
        "computing": pl.when(computes).then("ideal_ns").otherwise(0.0),
        "memory": pl.col("bytes") / pl.col("bandwidth") * _NS,
    }
    known = pl.all_horizontal(each.is_not_null() for each in limits.values())
    least = pl.max_horizontal(*limits.values())
    sets = (pl.when(limit == least).then(pl.lit(name)) for name, limit in limits.items())
    return (
        work.join(shortest, on="device", how="left", maintain_order="left")
        .join(bandwidths.select("device", "bandwidth"), on="device", how="left",
              maintain_order="left")
        .with_columns(bound_ns=pl.when(known).then(least), bound=pl.when(known)
                      .then(pl.coalesce(*sets)))
        .drop("shortest_ns", "bandwidth")
    )  # fmt: skip
