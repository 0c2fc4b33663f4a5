"""FLOPs by operator, layer, stage or step, and the share of the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis.facts import how_to_record
from tracekit.analysis.operators import with_peaks, work_done
from tracekit.engine import (
    chosen_windows,
    counted_steps,
    has_ops,
    launch_groups,
    range_layers,
    with_steps,
)
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer, Trace

_OF_STEPS = {"iteration", "device"}
STEP = ["process", "device", "iteration"]
_SHARES = "share: flops / flops of all rows; peak_share: of the peak of their precision"
_KNOWN = pl.col("flops").is_not_null()
_NS = 10**9


def no_sizes(trace: Trace) -> str:
    """Say that sizes of operators are missing, and how the run's recorder records them."""
    return f"no sizes of operators were recorded: {how_to_record(trace, 'operator sizes')}"


@dataclass(frozen=True)
class Measured:
    """Operators that ran on GPUs, and their steps."""

    every: pl.DataFrame
    work: pl.DataFrame
    """Those of ``every`` that are in steps that count, where there are steps."""
    steps: pl.DataFrame
    peaks: dict[str, Mapping[str, int]]


def flops(
    trace: Trace, keys: Sequence[str], *, skip: int, peak: int | None, attention: str = "full"
) -> Answer:
    """Answer the question `flops`; its declaration lists options and columns."""
    found = measured(trace, keys, skip=skip, peak=peak, attention=attention)
    every, work, steps, peaks = found.every, found.work, found.steps, found.peaks
    rows = _rows(work, keys, steps)
    order = ["iteration"] if "iteration" in keys else []
    order += ["flops", "kernel_ns"]
    meta = _meta(trace, work, steps, every)
    return Answer(
        rows=rows.sort(*order, *keys, nulls_last=True,
                       descending=[x in ("flops", "kernel_ns") for x in (*order, *keys)]),
        meta={**meta, "peaks": peaks, "attention": attention, "skip": skip, "shares": _SHARES},
        title=f"FLOPs by {', '.join(keys)}",
        empty="no kernels that multiply",
        command="flops",
    )  # fmt: skip


def measured(
    trace: Trace,
    keys: Sequence[str],
    *,
    skip: int,
    peak: int | None,
    attention: str,
    moving: bool = False,
) -> Measured:
    """Return the FLOPs of operators, their steps, and the peaks."""
    if peak is not None and peak <= 0:
        raise UsageError(f"{peak} FLOP/s are no peak", "give --peak such as 312TFLOPS")
    if not has_ops(trace):
        raise MissingDataError(
            "this run holds no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    steps = _steps(trace, skip, needed="iteration" in keys or skip > 0)
    done = work_done(trace, causal=attention == "causal", moving=moving)
    every, peaks = with_peaks(trace, done, peak)
    work = every.join(steps, on=STEP, how="semi") if steps.height else every
    return Measured(every, _with_layers(trace, work) if "layer" in keys else work, steps, peaks)


def _steps(trace: Trace, skip: int, *, needed: bool) -> pl.DataFrame:
    """Return the steps that count: ``process, device, iteration, step_ns``."""
    iterations = trace.read("iterations")
    if iterations.is_empty() and not needed:
        return pl.DataFrame(schema={"process": pl.Int32, "device": pl.Int32,
                                    "iteration": pl.Int64, "step_ns": pl.Int64})  # fmt: skip
    groups = launch_groups(trace)
    windows = with_steps(chosen_windows(trace, groups, skip=0, per_iteration=True))
    counted = counted_steps(windows, iterations, skip).windows.drop_nulls("iteration")
    length = pl.col("end") - pl.col("start")
    return counted.group_by(STEP, maintain_order=True).agg(step_ns=length.sum())


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
    """Return how long the kernels of operators ran: altogether, and those of one of them."""
    kernel = pl.col("kernel_ns")
    median = kernel.quantile(0.5, "nearest").cast(pl.Int64)
    return {
        "kernel_ns": kernel.sum(), "min_ns": kernel.min(), "median_ns": median,
        "max_ns": kernel.max(),
    }  # fmt: skip


def _rates() -> dict[str, pl.Expr]:
    """Return how fast the known operators' kernels were, and which part of the peak that is."""
    ran = pl.when(pl.col("known_ns") > 0)
    return {
        "achieved_flops_s": ran.then(pl.col("flops") / pl.col("known_ns") * _NS),
        "peak_share": ran.then(pl.col("ideal_ns") / pl.col("known_ns")),
    }


def _utilisations() -> dict[str, pl.Expr]:
    """Return MFU and HFU: the share of the steps' time that FLOPs would take at the peak."""
    is_known = (pl.col("unknown") == 0) & (pl.col("step_ns") > 0)
    return {
        name: pl.when(is_known).then(pl.col(ideal) / pl.col("step_ns"))
        for name, ideal in (("mfu", "model_ns"), ("hfu", "ideal_ns"))
    }


def _ideal() -> pl.Expr:
    """Return how long what is known takes at the peak, null where a peak is not known."""
    missing = (_KNOWN & pl.col("ideal_ns").is_null()).any()
    return pl.when(_KNOWN.any() & ~missing).then(pl.col("ideal_ns").sum())


def _ideal_of_model() -> pl.Expr:
    """Return the same of what is not recomputed, null where that is not known."""
    own = pl.col("ideal_ns").filter(~pl.col("recomputed")).sum()
    return pl.when(_ideal().is_not_null() & ~_may_be_recomputed().any()).then(own)


def _recomputed() -> pl.Expr:
    """Return the FLOPs that are recomputed, null where that is not known."""
    again = pl.col("flops").cast(pl.Float64).filter(pl.col("recomputed")).sum()
    return pl.when(_KNOWN.any() & ~_may_be_recomputed().any()).then(again)


def _may_be_recomputed() -> pl.Expr:
    return _KNOWN & pl.col("recomputed").is_null()


def _of_steps(rows: pl.DataFrame, keys: Sequence[str], steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``steps``, how many there are of a row's iteration and device, and their length."""
    own = [key for key in keys if key in _OF_STEPS]
    counts = [pl.len().cast(pl.Int64).alias("steps"), pl.col("step_ns").sum()]
    if not own:
        return rows.join(steps.select(counts), how="cross")
    return rows.join(steps.group_by(own).agg(counts), on=own, how="left", nulls_equal=True)


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
    computing = _computing(trace)
    known_ns = every.filter(_KNOWN)["kernel_ns"].sum()
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
    """Say why it is not known at which share of the peak steps ran."""
    if not steps:
        return "no steps are known"
    unknown = work.filter(~_KNOWN)
    if unknown.height:
        names = unknown["operator"].fill_null("kernels without an operator")
        most = names.value_counts(sort=True).head(3).rows()
        told = ", ".join(f"{name} ({number:,})" for name, number in most)
        return f"the FLOPs of {unknown.height:,} of {work.height:,} operators are not: {told}"
    if not work.height:
        return "no kernels multiply"
    if ideal is None:
        lacking = work.filter(pl.col("ideal_ns").is_null())["precision"].fill_null("unknown")
        return f"the GPU's peak is not for {', '.join(lacking.unique().sort())}: give --peak"
    return None


def _computing(trace: Trace) -> int:
    own = trace["ops"].filter(pl.col("kind") == "compute")
    return int(own.select((pl.col("end") - pl.col("start")).sum()).collect().item())
