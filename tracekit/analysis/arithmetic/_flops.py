"""FLOPs by operator, layer, stage or step with the share of the peak, and rooflines.

The bound of an operator in the roofline model is the longest of three times: its FLOPs at the peak
FLOP rate, the bytes that it must move at the peak memory bandwidth, and its number of kernels times
the run's shortest kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis.facts import WIDEST, how_to_record, require_ops
from tracekit.analysis.operators import memory_bandwidths, with_bounds, with_peaks, work_done
from tracekit.analysis.statistics import Skip
from tracekit.analysis.step_sums import cold_meta, skipped_of
from tracekit.engine import begun_in_steps, chosen_windows, range_layers, step_windows
from tracekit.errors import UsageError
from tracekit.model import Answer, Trace
from tracekit.support.wording import (
    FLOP_UNITS,
    duration,
    first_line,
    percent,
    printable,
    shorten,
    summary,
    text_of,
    unit_of,
)

_OF_STEPS = {"iteration", "device"}
STEP = ["process", "device", "iteration"]
_SMALL = 1e-3
"""Share of the peak below which it is shown with two digits."""
_SHARES = {"share": "flops / flops of all rows", "peak_share": "of the peak of their precision"}
_KNOWN = pl.col("flops").is_not_null()
_LENGTH = pl.col("end") - pl.col("start")
_NS = 10**9
_OUTSIDE = "outside of the steps that count, in no row"
_ALMOST_ALL = 0.9995
"""Known share of time from which sums are no longer called lower bounds."""


def no_sizes(trace: Trace) -> str:
    """Return an error text: operators' sizes were not recorded, and how to record them."""
    return f"no sizes of operators were recorded: {how_to_record(trace, 'operator sizes')}"


@dataclass(frozen=True)
class Measured:
    """GPU operators with their FLOPs, the steps that are counted, and the GPUs' peak FLOP rates."""

    trace: Trace
    """The run; ops launched between steps have the number of the step in which they start."""
    every: pl.DataFrame
    work: pl.DataFrame
    """Those of ``every`` that are in steps that count, where there are steps."""
    steps: pl.DataFrame
    peaks: dict[str, Mapping[str, int]]
    left_out: dict[str, Any]
    """The meta ``skip``, and ``cold``."""


def flops(
    trace: Trace, keys: Sequence[str], *, skip: Skip, peak: int | None, attention: str = "full"
) -> Answer:
    """Return the answer of the command `flops`: FLOPs by `keys`, and their share of the peak.

    Options (`skip`, `peak` in FLOP/s, `attention`) are those of the command.
    """
    found = measured(trace, keys, skip=skip, peak=peak, attention=attention)
    every, work, steps, peaks = found.every, found.work, found.steps, found.peaks
    rows = _rows(work, keys, steps)
    order = ["iteration"] if "iteration" in keys else []
    order += ["flops", "kernel_ns"]
    meta = _meta(found.trace, work, steps, every)
    shares = [f"{name}: {of}" for name, of in _SHARES.items() if rows[name].count()]
    return Answer(
        rows=rows.sort(*order, *keys, nulls_last=True,
                       descending=[x in ("flops", "kernel_ns") for x in (*order, *keys)]),
        meta={**meta, "peaks": peaks, "attention": attention, **found.left_out,
              **({"shares": "; ".join(shares)} if shares else {})},
        title=f"FLOPs by {', '.join(keys)}",
        empty="no kernels that multiply",
        command="flops",
    )  # fmt: skip


def measured(
    trace: Trace,
    keys: Sequence[str],
    *,
    skip: Skip,
    peak: int | None,
    attention: str,
    moving: bool = False,
) -> Measured:
    """Return a run's GPU operators with FLOPs, the steps after `skip`, and the GPUs' peak rates.

    `peak` (FLOP/s) replaces the GPUs' own; `attention` is ``causal`` or ``full``. If `keys` have
    ``layer``, the layer of each operator is added. With `moving`, memory-bound operators (such as
    additions), to which no FLOPs are assigned, and kernels of unknown operators are included.
    """
    if peak is not None and peak <= 0:
        raise UsageError(f"the peak is {peak} FLOP/s", "give more than 0, such as --peak 312TFLOPS")
    require_ops(trace)
    first = skipped_of(trace, skip)
    left_out = {"skip": first, **cold_meta(trace, skip)}
    trace, steps = _steps(trace, first, needed="iteration" in keys)
    done = work_done(trace, causal=attention == "causal", moving=moving)
    every, peaks = with_peaks(trace, done, peak)
    work = _inside(every, steps)
    work = _with_layers(trace, work) if "layer" in keys else work
    return Measured(trace, every, work, steps, peaks, left_out)


def _inside(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in `steps`; all if there are no steps."""
    return rows.join(steps, on=STEP, how="semi") if steps.height else rows


def _steps(trace: Trace, skip: int, *, needed: bool) -> tuple[Trace, pl.DataFrame]:
    """Return all but the first `skip` steps: ``process, device, iteration, step_ns`` (length).

    They come with the run in which ops launched between steps have the number of the step in which
    they start. Without iterations there are no rows, or a `UsageError` if steps are `needed`.
    """
    if needed:
        chosen_windows(trace, skip=0, per_iteration=True)
    windows = step_windows(trace, skip)
    counted = windows.filter("counts").drop_nulls("iteration").group_by(STEP, maintain_order=True)
    steps = counted.agg(step_ns=_LENGTH.sum())
    if steps.is_empty():
        return trace, steps
    is_lone = pl.col("iteration").is_null() & pl.col("kind").is_in(("compute", *_COMMUNICATION))
    lone = trace["ops"].filter(is_lone).select("op", *STEP, "start", "end")
    begun = begun_in_steps(lone.collect(), windows).select("op", begun="iteration")
    ops = trace["ops"].join(begun.lazy(), on="op", how="left", maintain_order="left")
    numbered = ops.with_columns(pl.coalesce("iteration", "begun").alias("iteration")).drop("begun")
    return trace.with_lazy({"ops": numbered}), steps


def _with_layers(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    found = range_layers(trace)
    places = found.of_range.gather(work["range"].cast(pl.Int64))
    return work.with_columns(layer=found.layers.gather(places))


def _rows(work: pl.DataFrame, keys: Sequence[str], steps: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("kernel_ns").filter(_KNOWN).sum()
    grouped = work.with_columns(pl.col("stage").cast(pl.String)).group_by(keys).agg(
        operators=pl.len().cast(pl.Int64),
        unknown=pl.col("flops").null_count().cast(pl.Int64),
        # Not in whole numbers: those of a long run are more than 64 bits hold.
        flops=pl.when(_KNOWN.any()).then(pl.col("flops").cast(pl.Float64).sum()),
        **spread(),
        known_ns=known,
        ideal_ns=_ideal(),
        model_ns=_ideal_of_model(),
        recomputed_flops=_recomputed(),
    )  # fmt: skip
    counted = _of_steps(grouped, keys, steps)
    total = grouped["flops"].sum()
    return counted.select(
        *keys, "operators", "unknown", "flops", "recomputed_flops",
        step_flops=pl.when(pl.col("steps") > 0).then(pl.col("flops") / pl.col("steps")),
        **{name: name for name in spread()}, **_rates(),
        **(_utilisations() if set(keys) <= _OF_STEPS else {}),
        share=pl.col("flops") / total if total else pl.lit(None, pl.Float64),
    )  # fmt: skip


def spread() -> dict[str, pl.Expr]:
    """Return aggregations of the operators' kernel time: sum, minimum, median, maximum."""
    kernel = pl.col("kernel_ns")
    median = kernel.quantile(0.5, "nearest").cast(pl.Int64)
    return {
        "kernel_ns": kernel.sum(), "min_ns": kernel.min(), "median_ns": median,
        "max_ns": kernel.max(),
    }  # fmt: skip


def _rates() -> dict[str, pl.Expr]:
    """Return ``achieved_flops_s`` (FLOPs per kernel time) and ``peak_share`` as expressions."""
    ran = pl.when(pl.col("known_ns") > 0)
    return {
        "achieved_flops_s": ran.then(pl.col("flops") / pl.col("known_ns") * _NS),
        "peak_share": ran.then(pl.col("ideal_ns") / pl.col("known_ns")),
    }


def _utilisations() -> dict[str, pl.Expr]:
    """Return MFU, HFU (model, hardware FLOPs utilisation): time at peak FLOP rate / step time."""
    is_known = (pl.col("unknown") == 0) & (pl.col("step_ns") > 0)
    return {
        name: pl.when(is_known).then(pl.col(ideal) / pl.col("step_ns"))
        for name, ideal in (("mfu", "model_ns"), ("hfu", "ideal_ns"))
    }


def _ideal() -> pl.Expr:
    """Return the time, ns, of all known FLOPs at the peak rate; null where a peak is unknown."""
    missing = (_KNOWN & pl.col("ideal_ns").is_null()).any()
    return pl.when(_KNOWN.any() & ~missing).then(pl.col("ideal_ns").sum())


def _ideal_of_model() -> pl.Expr:
    """Return the time, ns, that the model's FLOPs take at the peak rate; null if unknown.

    FLOPs of forward operators that activation checkpointing runs again do not count.
    """
    model_ns = pl.col("ideal_ns").filter(~pl.col("recomputed")).sum()
    return pl.when(_ideal().is_not_null() & ~_may_be_recomputed().any()).then(model_ns)


def _recomputed() -> pl.Expr:
    """Return the FLOPs recomputed by activation checkpointing; null where that is unknown."""
    again = pl.col("flops").cast(pl.Float64).filter(pl.col("recomputed")).sum()
    return pl.when(_KNOWN.any() & ~_may_be_recomputed().any()).then(again)


def _may_be_recomputed() -> pl.Expr:
    return _KNOWN & pl.col("recomputed").is_null()


def _of_steps(rows: pl.DataFrame, keys: Sequence[str], steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``steps, step_ns``: number and total length, ns, of the steps that each row sums over."""
    by = [key for key in keys if key in _OF_STEPS]
    counts = [pl.len().cast(pl.Int64).alias("steps"), pl.col("step_ns").sum()]
    if not by:
        return rows.join(steps.select(counts), how="cross")
    return rows.join(steps.group_by(by).agg(counts), on=by, how="left", nulls_equal=True)


def _meta(
    trace: Trace, work: pl.DataFrame, steps: pl.DataFrame, every: pl.DataFrame
) -> dict[str, Any]:
    number, length = steps.height, int(steps["step_ns"].sum())
    total = float(work["flops"].cast(pl.Float64).sum())
    is_known = work["flops"].count() > 0
    ideal, of_model, again = work.select(
        _ideal().alias("all"), _ideal_of_model().alias("model"), _recomputed().alias("again")
    ).row(0)
    why = _unknown(work, ideal, number)
    hfu = None if why or not length else ideal / length
    if not why and of_model is None:
        some = work.filter(_may_be_recomputed()).height
        why = f"it is unknown whether {some:,} of {work.height:,} operators are recomputed"
    outside = float(every["flops"].cast(pl.Float64).sum()) - total
    computing = _computing(trace, steps)
    known_ns = work.filter(_KNOWN)["kernel_ns"].sum()
    warnings = [no_sizes(trace)] if every.height and not every["flops"].count() else []
    return {
        "steps": number,
        "step_ns": length / number if number else None,
        "step_flops": total / number if number and is_known else None,
        "step_recomputed_flops": again / number if number and again is not None else None,
        "mfu": None if why or not length else of_model / length,
        "hfu": hfu,
        **({"mfu_unknown": why} if why else {}),
        "known_share": known_ns / computing if computing else None,
        "outside_flops": outside,
        **({"warnings": warnings} if warnings else {}),
    }


def _unknown(work: pl.DataFrame, ideal: float | None, steps: int) -> str | None:
    """Return why the steps' MFU and HFU (share of peak FLOPs) are unknown; None if they are known.

    `ideal` is the time, ns, of the known FLOPs at the peak rate; `steps` the number of steps.
    """
    if not steps:
        return "no steps are known"
    unknown = work.filter(~_KNOWN)
    if unknown.height:
        names = unknown["operator"].fill_null("kernels without an operator")
        most = names.value_counts(sort=True).head(3).rows()
        counts = ", ".join(f"{name} ({number:,})" for name, number in most)
        return f"the FLOPs of {unknown.height:,} of {work.height:,} operators are not: {counts}"
    if not work.height:
        return "no kernels multiply"
    if ideal is None:
        lacking = work.filter(pl.col("ideal_ns").is_null())["precision"].fill_null("unknown")
        return f"the GPU's peak is not for {', '.join(lacking.unique().sort())}: give --peak"
    return None


def _computing(trace: Trace, steps: pl.DataFrame) -> int:
    """Return the time of kernels that compute, in `steps` if there are any, ns."""
    compute_ops = trace["ops"].filter(pl.col("kind") == "compute")
    if steps.height:
        compute_ops = compute_ops.join(steps.lazy(), on=STEP, how="semi")
    return int(compute_ops.select(_LENGTH.sum()).collect().item())


# -- roofline ----------------------------------------------------------------------------------


BOUNDS = ("computing", "memory", "launch", "communication")
_COMMUNICATION = ("collective", "p2p", "staged")
_MODELLED = (
    "bounds are modelled: each tensor that an operator reads or writes moves once, and nothing else"
)
_BOUNDED = pl.col("bound_ns").is_not_null()
_SIZED = pl.col("flops").is_not_null() & pl.col("bytes").is_not_null()


def roofline(
    trace: Trace,
    keys: Sequence[str],
    *,
    skip: Skip,
    peak: int | None,
    memory_bandwidth: int | None,
    attention: str,
) -> Answer:
    """Return the answer of `roofline`: each operator's least possible time, and the time above it.

    Options (`peak` in FLOP/s, `memory_bandwidth` in bytes/s, `skip`, `attention`) are the
    command's.
    """
    found = measured(trace, keys, skip=skip, peak=peak, attention=attention, moving=True)
    bandwidths = memory_bandwidths(trace, memory_bandwidth)
    bounded = with_bounds(trace, found.work, bandwidths)
    bounded = bounded.with_columns(pl.col("stage").cast(pl.String))
    moved = _communication(found.trace)
    work = pl.concat([bounded, _inside(moved, found.steps)], how="diagonal")
    lengths = (int(each["kernel_ns"].sum()) for each in (found.every, moved))
    outside = sum(lengths) - int(work["kernel_ns"].sum())
    rows = _roofline_rows(work, keys, found.steps.height)
    meta = {
        **_roofline_meta(trace, work, found),
        "bounds_unknown": _unknown_bounds(found.work, bandwidths),
        "outside_ns": outside,
    }
    products = bandwidths.drop_nulls().unique("name").sort("name")
    return Answer(
        rows=rows.sort("headroom_ns", "kernel_ns", *keys, nulls_last=True,
                       descending=[True, True, *(False for _ in keys)]),
        meta={
            **meta, "peaks": found.peaks,
            "memory_peaks": dict(
                products.select(pl.col("name").fill_null("unknown GPU"), "bandwidth").rows()
            ),
            "attention": attention, **found.left_out, "modelled": _MODELLED,
        },
        title=f"roofline by {', '.join(keys)}",
        empty="no kernels that compute",
        command="roofline",
        figures={"figure": "roofline"},
    )  # fmt: skip


def _unknown_bounds(work: pl.DataFrame, bandwidths: pl.DataFrame) -> str | None:
    """Return which peak rates are missing for the roofline, and the options that set them."""
    of_gpus = work.join(bandwidths, on="device", how="left")
    no_peak = of_gpus.filter(pl.col("flops").is_not_null() & pl.col("ideal_ns").is_null())
    no_memory = of_gpus.filter(pl.col("bytes").is_not_null() & pl.col("bandwidth").is_null())
    missing = [
        (peak, option, rows)
        for peak, option, rows in (
            (f"peak FLOP/s{_in_precisions(no_peak)}", "--peak, such as 989TFLOPS", no_peak),
            ("bandwidth of memory", "--memory-bandwidth, such as 3.35TB", no_memory),
        )
        if not rows.is_empty()
    ]
    if not missing:
        return None
    peaks, options, frames = zip(*missing, strict=True)
    names = pl.concat([rows.select("name") for rows in frames])["name"]
    gpus = names.fill_null("a GPU whose name was not recorded").unique().sort()
    return (
        f"no bound without the {' and the '.join(peaks)} of {' and '.join(gpus)}:"
        f" give {', and '.join(options)}"
    )


def _in_precisions(rows: pl.DataFrame) -> str:
    """Return a text with the precisions, such as FP16, of the operators in `rows`."""
    names = rows["precision"].fill_null("unknown precision").unique().sort()
    return f" in {', '.join(names)}" if len(names) else ""


def _communication(trace: Trace) -> pl.DataFrame:
    """Return communication kernels and copies as rows with the columns of operators."""
    name = pl.col("name").cast(pl.String)
    kind = pl.col("kind").cast(pl.String)
    return (
        trace["ops"].filter(kind.is_in(_COMMUNICATION))
        .select(*STEP, pl.col("stage").cast(pl.String), operator=kind, kernel_ns=_LENGTH,
                kernel=pl.coalesce(pl.col("short_name").cast(pl.String), name),
                bound=pl.lit("communication"))
        .collect()
    )  # fmt: skip


def _roofline_rows(work: pl.DataFrame, keys: Sequence[str], steps: int) -> pl.DataFrame:
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
        **{name: pl.col(name).sum() for name in ("tensor_core_ns", "tensor_core_unknown_ns")},
        flops=pl.when(pl.col("flops").count() > 0).then(pl.col("flops").cast(pl.Float64).sum()),
        bytes=pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").cast(pl.Float64).sum()),
        flops_per_byte=per_byte,
        achieved_flops_s=_rate("flops"), achieved_gb_s=_rate("bytes") / _NS,
        bound=pl.col("bound").sort_by("of_bound").last(),
        bound_ns=pl.when(_BOUNDED.any()).then(pl.col("bound_ns").sum()),
        bound_share=pl.when(_BOUNDED.any()).then(
            pl.col("bound_ns").sum() / kernel.filter(_BOUNDED).sum()
        ),
        headroom_ns=pl.when(_BOUNDED.any()).then(_headroom().sum()),
    )  # fmt: skip
    return grouped.with_columns(
        step_headroom_ns=pl.col("headroom_ns") / steps if steps else pl.lit(None, pl.Float64),
        share=pl.col("kernel_ns") / total if total else pl.lit(None, pl.Float64),
    )


def _rate(amount: str) -> pl.Expr:
    """Return an expression: sum of column `amount` (FLOPs or bytes) per second of kernel time."""
    known = pl.col(amount).is_not_null()
    spent = pl.col("kernel_ns").filter(known).sum()
    return pl.when(spent > 0).then(pl.col(amount).cast(pl.Float64).sum() / spent * _NS)


def _headroom() -> pl.Expr:
    """Return kernel time minus its lower bound, ns; 0 if negative (the data came from a cache)."""
    return (pl.col("kernel_ns") - pl.col("bound_ns")).clip(0)


def _roofline_meta(trace: Trace, work: pl.DataFrame, found: Measured) -> dict[str, Any]:
    steps, number = found.steps, found.steps.height
    bounds = dict(
        work.group_by(pl.col("bound").fill_null("unknown")).agg(pl.col("kernel_ns").sum()).rows()
    )
    above = work.select(_headroom().sum()).item()
    known, total = (int(each["kernel_ns"].sum()) for each in (work.filter(_BOUNDED), found.work))
    warnings = [no_sizes(trace)] if total and not work["bytes"].count() else []
    return {
        "steps": number,
        "step_ns": int(steps["step_ns"].sum()) / number if number else None,
        "bounds": {name: bounds[name] for name in (*BOUNDS, "unknown") if name in bounds},
        "known_share": known / total if total else None,
        "step_headroom_ns": above / number if number and known else None,
        "tensor_core_ns": int(work["tensor_core_ns"].sum()),
        "tensor_core_unknown_ns": int(work["tensor_core_unknown_ns"].sum()),
        **({"warnings": warnings} if warnings else {}),
    }


@first_line("flops")
def _first_of_flops(_: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if meta.get("known_share") == 0:
        return "FLOPs are not known of any operator"
    if not meta.get("step_flops"):
        return None
    share = "" if meta.get("mfu") is None else f", {_of_peak(meta['mfu'])} of the peak (MFU)"
    known = f"; operators of {percent(meta['known_share'])} of its kernel time are known"
    divisor, unit = unit_of(meta["step_flops"], FLOP_UNITS)
    flops = f"{_least(meta)}{meta['step_flops'] / divisor:,.4g} {unit}"
    return f"A step computes {flops} on a GPU{share}{known}"


def _of_peak(share: float) -> str:
    """Return a share of the peak as percent, with two digits: ``at least <0.1 %`` says nothing."""
    return percent(share) if share >= _SMALL else f"{100 * share:.2g} %"


def _least(meta: Mapping[str, Any]) -> str:
    """Return ``at least``, for sums that lack the FLOPs of some operators; else an empty text."""
    return "at least " if (meta["known_share"] or 0) < _ALMOST_ALL else ""


@first_line("roofline")
def _first_of_roofline(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "bound" in rows.columns and not rows["bound"].count():
        return "Bounds are not known of any operator"
    if not meta.get("step_headroom_ns") or "step_headroom_ns" not in rows.columns:
        return None
    most = rows.drop_nulls("step_headroom_ns").sort("step_headroom_ns", descending=True)
    headroom, row = meta["step_headroom_ns"], most.row(0, named=True)
    name = shorten(printable(str(row[rows.columns[0]])), WIDEST)
    return (
        f"{duration(headroom)} of a step are above the bounds of its operators (modelled), most of "
        f"it in {name}: {duration(row['step_headroom_ns'])}"
    )


@summary(
    "steps", "step_ns", "step_flops", "step_recomputed_flops", "mfu", "hfu", "known_share", "peaks",
    "attention", "outside_flops",
)  # fmt: skip
def _flops_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return sentences: FLOPs of a step, share of the peak (MFU), and how much is known."""
    least = _least(meta)
    mfu = "MFU unknown" if meta["mfu"] is None else f"MFU {least}{_of_peak(meta['mfu'])}"
    known = f"FLOPs known of {_of_kernels(meta['known_share'])}"
    step = "no steps"
    if meta["steps"]:
        each = "FLOPs unknown" if meta["step_flops"] is None else least + _flop(meta["step_flops"])
        step = f"{each} in a step of {duration(meta['step_ns'])}"
    if meta["step_recomputed_flops"]:
        step += f", {_flop(meta['step_recomputed_flops'])} of it recomputed"
    if meta["hfu"] != meta["mfu"]:
        mfu += f", HFU {least}{_of_peak(meta['hfu'])}"
    outside = meta["outside_flops"]
    return [
        f"{step} · {mfu} · {known}", *([f"{_flop(outside)} {_OUTSIDE}"] if outside else []),
        *_peak_notes(meta),
    ]  # fmt: skip


@summary(
    "steps", "step_ns", "bounds", "step_headroom_ns", "known_share", "peaks", "memory_peaks",
    "attention", "modelled", "tensor_core_ns", "tensor_core_unknown_ns", "bounds_unknown",
    "outside_ns",
)  # fmt: skip
def _roofline_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return sentences: kernel time by kind of bound; a step's kernel time beyond the bounds."""
    each = [f"{text_of(name)} {duration(ns)}" for name, ns in meta["bounds"].items()]
    if meta["known_share"] is None:
        return [f"bounds known of {_of_kernels(None)}", *each]
    above = "headroom unknown"
    if meta["step_headroom_ns"] is not None:
        step = f"a step of {duration(meta['step_ns'])}"
        above = f"{duration(meta['step_headroom_ns'])} of {step} above the bounds"
    known = f"bounds known of {_of_kernels(meta['known_share'])}"
    tensor = f"on Tensor or Matrix Cores, by names of kernels: {duration(meta['tensor_core_ns'])}"
    if meta["tensor_core_unknown_ns"]:
        tensor += f", unknown for {duration(meta['tensor_core_unknown_ns'])}"
    return [
        f"kernels by bound: {', '.join(each)}", tensor, f"{above} · {known}",
        *([f"{duration(meta['outside_ns'])} {_OUTSIDE}"] if meta["outside_ns"] else []),
        *([text_of(meta["bounds_unknown"])] if meta["bounds_unknown"] else []),
        *([meta["modelled"]] if meta["known_share"] else []), *_peak_notes(meta),
    ]  # fmt: skip


def _of_kernels(share: float | None) -> str:
    if share is None:
        return "nothing: no kernel that computes was recorded"
    return f"{percent(share)} of the time of kernels that compute"


def _peak_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return sentences: the peak rates that shares refer to, and how attention was counted."""
    if not meta["known_share"]:
        return []
    peaks = [
        f"{text_of(precision)} {peak / 1e12:,.5g} TFLOP/s ({text_of(product)})"
        for product, each in meta["peaks"].items()
        for precision, peak in each.items()
    ] + [
        f"memory {peak / 1e12:,.4g} TB/s ({text_of(product)})"
        for product, peak in meta.get("memory_peaks", {}).items()
    ]
    counted = f"attention: {text_of(meta['attention'])}"
    return [f"peak: {', '.join(peaks)} · {counted}" if peaks else counted]


def _flop(value: float) -> str:
    divisor, unit = unit_of(value, FLOP_UNITS)
    return f"{value / divisor:,.3f} {unit}"
