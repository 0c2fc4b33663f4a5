"""Roofline model: find the bound of each operator (computing, memory, launch, communication).

The bound is a model: the time of its FLOPs at the peak, that of the bytes which it must move at the
memory's peak, or that of as many kernels as the shortest of the run, whichever is longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tracekit.analysis.arithmetic._flops import STEP, Measured, measured, no_sizes, spread
from tracekit.analysis.operators import memory_bandwidths, with_bounds
from tracekit.model import Answer, Trace

BOUNDS = ("computing", "memory", "launch", "communication")
_COMMUNICATION = ("collective", "p2p", "staged")
_NS = 10**9
_LENGTH = pl.col("end") - pl.col("start")
_MODELLED = (
    "bounds are modelled: each tensor that an operator reads or writes moves once, and nothing else"
)
_KNOWN = pl.col("bound_ns").is_not_null()
_SIZED = pl.col("flops").is_not_null() & pl.col("bytes").is_not_null()


def roofline(
    trace: Trace,
    keys: Sequence[str],
    *,
    skip: int,
    peak: int | None,
    memory_bandwidth: int | None,
    attention: str,
) -> Answer:
    """Answer the question `roofline`; its declaration lists options and columns."""
    found = measured(trace, keys, skip=skip, peak=peak, attention=attention, moving=True)
    bandwidths = memory_bandwidths(trace, memory_bandwidth)
    bounded = with_bounds(trace, found.work, bandwidths)
    bounded = bounded.with_columns(pl.col("stage").cast(pl.String))
    work = pl.concat([bounded, _communication(trace, found)], how="diagonal")
    rows = _rows(work, keys, found.steps.height)
    meta = {**_meta(trace, work, found), "bounds_unknown": _unknown_bounds(found.work, bandwidths)}
    products = bandwidths.drop_nulls().unique("name").sort("name")
    return Answer(
        rows=rows.sort("headroom_ns", "kernel_ns", *keys, nulls_last=True,
                       descending=[True, True, *(False for _ in keys)]),
        meta={
            **meta, "peaks": found.peaks,
            "memory_peaks": dict(
                products.select(pl.col("name").fill_null("unknown GPU"), "bandwidth").rows()
            ),
            "attention": attention, "skip": skip, "modelled": _MODELLED,
        },
        title=f"roofline by {', '.join(keys)}",
        empty="no kernels that compute",
        command="roofline",
        figures={"figure": "roofline"},
    )  # fmt: skip


def _unknown_bounds(work: pl.DataFrame, bandwidths: pl.DataFrame) -> str | None:
    """Say which peaks are missing for operators of known FLOPs or bytes, and how to give them."""
    of_gpus = work.join(bandwidths, on="device", how="left")
    no_peak = of_gpus.filter(pl.col("flops").is_not_null() & pl.col("ideal_ns").is_null())
    no_memory = of_gpus.filter(pl.col("bytes").is_not_null() & pl.col("bandwidth").is_null())
    missing = [
        (what, option, rows)
        for what, option, rows in (
            (f"peak FLOP/s{_in_precisions(no_peak)}", "--peak, such as 989TFLOPS", no_peak),
            ("bandwidth of memory", "--memory-bandwidth, such as 3.35TB", no_memory),
        )
        if not rows.is_empty()
    ]
    if not missing:
        return None
    whats, options, frames = zip(*missing, strict=True)
    names = pl.concat([rows.select("name") for rows in frames])["name"]
    told = names.fill_null("a GPU whose name was not recorded").unique().sort()
    return (
        f"no bound without the {' and the '.join(whats)} of {' and '.join(told)}:"
        f" give {', and '.join(options)}"
    )


def _in_precisions(rows: pl.DataFrame) -> str:
    """Name the precisions in which some operators multiply."""
    names = rows["precision"].fill_null("unknown precision").unique().sort()
    return f" in {', '.join(names)}" if len(names) else ""


def _communication(trace: Trace, found: Measured) -> pl.DataFrame:
    """Return kernels and copies that move data between GPUs, as rows beside operators."""
    name = pl.col("name").cast(pl.String)
    kind = pl.col("kind").cast(pl.String)
    rows = (
        trace["ops"].filter(kind.is_in(_COMMUNICATION))
        .select(*STEP, pl.col("stage").cast(pl.String), operator=kind, kernel_ns=_LENGTH,
                kernel=pl.coalesce(pl.col("short_name").cast(pl.String), name),
                bound=pl.lit("communication"))
        .collect()
    )  # fmt: skip
    return rows.join(found.steps, on=STEP, how="semi") if found.steps.height else rows


def _rows(work: pl.DataFrame, keys: Sequence[str], steps: int) -> pl.DataFrame:
    sized = {
        name: pl.col(name).filter(_SIZED).cast(pl.Float64).sum() for name in ("flops", "bytes")
    }
    per_byte = pl.when(_SIZED.any() & (sized["bytes"] > 0)).then(sized["flops"] / sized["bytes"])
    kernel = pl.col("kernel_ns")
    total = work["kernel_ns"].sum()
    grouped = work.with_columns(of_bound=kernel.sum().over(*keys, "bound")).group_by(keys).agg(
        operators=pl.len().cast(pl.Int64),
        unknown=(pl.col("bound").is_null()).sum().cast(pl.Int64),
        **spread(),
        tensor_core_ns=pl.col("tensor_core_ns").sum(), untold_ns=pl.col("untold_ns").sum(),
        flops=pl.when(pl.col("flops").count() > 0).then(pl.col("flops").cast(pl.Float64).sum()),
        bytes=pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").cast(pl.Float64).sum()),
        flops_per_byte=per_byte,
        achieved_flops_s=_rate("flops"), achieved_gb_s=_rate("bytes") / _NS,
        bound=pl.col("bound").sort_by("of_bound").last(),
        bound_ns=pl.when(_KNOWN.any()).then(pl.col("bound_ns").sum()),
        bound_share=pl.when(_KNOWN.any()).then(
            pl.col("bound_ns").sum() / kernel.filter(_KNOWN).sum()
        ),
        headroom_ns=pl.when(_KNOWN.any()).then(_headroom().sum()),
    )  # fmt: skip
    return grouped.with_columns(
        step_headroom_ns=pl.col("headroom_ns") / steps if steps else pl.lit(None, pl.Float64),
        share=pl.col("kernel_ns") / total if total else pl.lit(None, pl.Float64),
    )


def _rate(amount: str) -> pl.Expr:
    """Return an amount per second of kernel time, over operators whose amount is known."""
    known = pl.col(amount).is_not_null()
    spent = pl.col("kernel_ns").filter(known).sum()
    return pl.when(spent > 0).then(pl.col(amount).cast(pl.Float64).sum() / spent * _NS)


def _headroom() -> pl.Expr:
    """Return the time above the bound; what a cache makes faster than it has none."""
    return (pl.col("kernel_ns") - pl.col("bound_ns")).clip(0)


def _meta(trace: Trace, work: pl.DataFrame, found: Measured) -> dict[str, Any]:
    steps, number = found.steps, found.steps.height
    bounds = dict(
        work.group_by(pl.col("bound").fill_null("unknown")).agg(pl.col("kernel_ns").sum()).rows()
    )
    above = work.select(_headroom().sum()).item()
    known, total = (int(each["kernel_ns"].sum()) for each in (work.filter(_KNOWN), found.work))
    warnings = [] if work["bytes"].count() or work.is_empty() else [no_sizes(trace)]
    return {
        "steps": number,
        "step_ns": int(steps["step_ns"].sum()) / number if number else None,
        "bounds": {name: bounds[name] for name in (*BOUNDS, "unknown") if name in bounds},
        "known_share": known / total if total else None,
        "step_headroom_ns": above / number if number and known else None,
        "tensor_core_ns": int(work["tensor_core_ns"].sum()),
        "untold_ns": int(work["untold_ns"].sum()),
        **({"warnings": warnings} if warnings else {}),
    }
