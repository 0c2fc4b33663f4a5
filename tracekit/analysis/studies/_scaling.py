"""Scaling: training time over the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import polars as pl

from tracekit.analysis.studies._epochs import (
    BatchScope,
    check_images,
    epoch_iterations,
    step_images,
)
from tracekit.analysis.studies._ratios import PRECISION, RELATIVE, STEPS, precision, ratio_interval
from tracekit.analysis.studies._study import (
    basis_of,
    is_told_apart,
    name_of_one,
    pool,
    pooling_warnings,
    without_empty,
)
from tracekit.errors import UsageError
from tracekit.model import Answer
from tracekit.support.wording import count, first_line, percent, text_of

ScalingMode = Literal["strong", "weak"]
ScalingTime = Literal["step", "epoch"]

_GROUP = ["network", "batch", "method"]
_STAGES = ("fp_bp", "wu")
_COLUMNS = (
    "mode", *_GROUP, "gpus", "run", "runs", "iterations_per_epoch", "time_ns", "time_low_ns",
    "time_high_ns", "images_per_s", "bytes_per_epoch", "baseline_gpus", "speedup", "speedup_from",
    "speedup_to", "interval_of", "speedup_low", "speedup_high", "efficiency",
    "karp_flatt", "reduction_percent",
    *(f"speedup_{stage}" for stage in _STAGES), "steps", "reduction_from", "reduction_to",
    *(f"speedup_{stage}_{end}" for stage in _STAGES for end in ("from", "to")),
)  # fmt: skip
_OF_SEVERAL = (
    "run", "time_low_ns", "time_high_ns", "speedup_low", "speedup_high", "speedup_from",
    "speedup_to", "interval_of", "steps", "reduction_from", "reduction_to",
    *(f"speedup_{stage}_{end}" for stage in _STAGES for end in ("from", "to")),
)  # fmt: skip
"""Columns that have values only for pooled runs, or only for single runs."""
_N, _FIRST = pl.col("gpus"), pl.col("baseline_gpus")


def scaling(
    study: pl.DataFrame,
    *,
    mode: ScalingMode = "strong",
    images: int | None = None,
    batch_scope: BatchScope = "gpu",
    time: ScalingTime | None = None,
    apart: bool = False,
) -> Answer:
    """Compute speedup and efficiency over the number of GPUs from the runs of a study.

    The function `scaling` in `questions.py` lists options and columns.

    With n GPUs, time T(n), and n0 the smallest measured number of GPUs:

    ======  ==================  ==========================================  =======================
    mode    data set            speedup                                     efficiency
    ======  ==================  ==========================================  =======================
    strong  the same for all n  S(n) = T(n0) / T(n)                         n0 S(n) / n
    weak    n times as large    (n / n0) T(n0) / T(n): the scaled speedup   T(n0) / T(n)
    ======  ==================  ==========================================  =======================

        karp_flatt        = (1/S - 1/n) / (1 - 1/n)       strong, from one GPU (Karp, Flatt 1990)
        reduction_percent = 100 (1 - (Tw(n)/n) / Ts(n))   of runs labelled weak, and strong

    T is the time of an epoch: measured, or step time times the steps of an epoch (for weak scaling,
    of `images` x n images). Without a number of images, T is the step time divided by the images of
    a step; speedup is then a ratio of throughputs. Without `time`, epochs are compared if `images`
    is given or an epoch was measured, else steps.

    Several runs of one configuration are pooled by their median; runs that agree in all known
    labels but lack ``network`` or ``batch`` are left out: they may be different programs. With
    `apart`, no run is pooled or left out, and speedups are unknown if several runs used n0 GPUs.
    Runs without a label ``scaling``, and all runs on one GPU, count in both modes. Intervals are
    those of `ratio_interval`.

    Raises
    ------
    UsageError
        If an option is out of range, or `time` asks for epochs that were neither measured nor can
        be computed.
    """
    if images is not None:
        check_images(images)
    basis = basis_of(study)
    compared = _compared(study, images, time)
    alike = study.filter(is_told_apart(apart=apart)).with_columns(pool(apart=apart))
    of_mode = alike.filter(_is_of(mode))
    timed = _costs(of_mode, mode, images, batch_scope, compared)
    strong = alike.filter(pl.col("scaling") == "strong")
    table = _with_reduction(
        _with_speedups(_summed(timed), mode),
        mode,
        _costs(strong, "strong", images, batch_scope, compared),
    )
    order = ("network", "method", "batch", "gpus", "run")
    rows = table.with_columns(mode=pl.lit(mode)).select(_COLUMNS).sort(order, nulls_last=True)
    return Answer(
        rows=rows,
        meta={
            "mode": mode,
            "time": compared,
            "images": images,
            "batch_scope": batch_scope,
            "runs": timed.height,
            "other_mode": study.filter(~_is_of(mode)).height,
            "untimed": of_mode.height - timed.height,
            **basis,
            "warnings": [
                *pooling_warnings(study, apart=apart),
                *_warnings(timed, of_mode, apart=apart),
            ],
        },
        title=f"{mode} scaling",
        readable=without_empty(rows, _OF_SEVERAL),
        empty="no timed runs",
        command="scaling",
        figures={"figure": "speedup", "efficiency": "efficiency"},
    )


def _warnings(timed: pl.DataFrame, study: pl.DataFrame, *, apart: bool) -> list[str]:
    """Return warnings on configurations without a run on one GPU or a name, or with two baselines.

    Two baselines are several runs on the smallest number of GPUs. They are warned of if runs are
    evaluated one by one (`apart`); else they are pooled, and one baseline. Further warnings count
    runs of the study that have no time, or an unknown number of GPUs.
    """
    smallest = timed.group_by(_GROUP).agg(_N.min())
    without_one = smallest.filter(_N > 1).height
    first = timed.filter(_N.min().over(_GROUP) == _N).select(_GROUP)
    several = first.filter(first.is_duplicated()).unique().height if apart else 0
    unnamed = timed.filter(pl.col("network").is_null()).height
    alone = smallest.filter(_N == 1, pl.col("method") == "none")
    beside = smallest.filter(_N > 1).join(alone, on=_GROUP[:2], how="semi", nulls_equal=True).height
    has_time = pl.any_horizontal(pl.col("step_ns", "epoch_ns").is_not_null())
    uncounted = study.filter(has_time, _N.is_null()).height
    stepless = study.filter(~has_time).height
    warnings = {
        f"{count(stepless, 'run')} left out, of which no step is known: ingest with --iteration "
        "REGEX, the pattern of ranges that are steps": stepless > 0,
        f"{count(uncounted, 'run')} left out, whose number of GPUs is unknown: ingest with --label "
        "gpus=N": uncounted > 0,
        f"{without_one} of {count(smallest.height, 'configuration')} not measured on one GPU: "
        "speedup is relative to baseline_gpus": without_one > 0,
        f"{beside} of these have a run of the method `none` on one GPU; label it with their method "
        "to make it their baseline": beside > 0,
        f"{several} of {smallest.height} configurations have several runs on the smallest number "
        "of GPUs, which are not pooled where runs are named: their speedup is not known; name one "
        "of them, or choose by labels with --where": several > 0,
        f"{unnamed} runs have no label `network` and are taken to be of one network": unnamed > 1,
    }
    return [text for text, holds in warnings.items() if holds]


def _compared(study: pl.DataFrame, images: int | None, time: ScalingTime | None) -> ScalingTime:
    measured = study["epoch_ns"].count() > 0
    if time is None:
        return "epoch" if measured or images is not None else "step"
    if time == "epoch" and not measured and images is None:
        raise UsageError(
            "the number of steps of an epoch is unknown", "give the size of the data set"
        )
    return time


def _is_of(mode: ScalingMode) -> pl.Expr:
    """Select the rows of a scaling mode; runs on one GPU belong to both modes."""
    return pl.col("scaling").is_null() | (pl.col("scaling") == mode) | (_N == 1)


def _costs(
    rows: pl.DataFrame,
    mode: ScalingMode,
    images: int | None,
    batch_scope: BatchScope,
    compared: ScalingTime,
) -> pl.DataFrame:
    """Add ``time_ns``, and costs of steps and stages: times for equal shares of the data set.

    Speedups are ratios of costs. The cost of an epoch is its time; that of a step is its time
    divided by its images and, for weak scaling, multiplied by the number of GPUs, as data sets grow
    with it. Compared rows have equal batches.
    """
    total = None if images is None else pl.lit(images, pl.Int64) * (_N if mode == "weak" else 1)
    nothing = pl.lit(None, pl.Int64)
    iterations = nothing if total is None else epoch_iterations(total, batch_scope)
    per_step = pl.lit(1, pl.Int64)
    if compared == "epoch":
        time = pl.coalesce("epoch_ns", pl.col("step_ns") * iterations)
        # Stages are of what was measured.
        per_step = pl.when(pl.col("epoch_ns").is_null()).then(iterations).otherwise(per_step)
        weight, handled = pl.lit(1.0), nothing if total is None else total
    else:
        time = pl.col("step_ns")
        weights = {("strong", "gpu"): 1 / _N, ("weak", "global"): _N.cast(pl.Float64)}
        weight = weights.get((mode, batch_scope), pl.lit(1.0))
        handled = step_images(batch_scope)
    return rows.with_columns(
        time_ns=time,
        cost=time * weight,
        iterations_per_epoch=iterations,
        handled=handled,
        bytes_per_epoch=pl.col("bytes_between_gpus") * iterations,
        **{f"cost_{stage}": pl.col(f"{stage}_ns") * per_step * weight for stage in _STAGES},
    ).filter(pl.col("time_ns") > 0, _N >= 1)


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per configuration: medians over its runs (if runs stay apart, a row per run)."""
    measures = ("time_ns", "cost", "bytes_per_epoch", "^cost_.*$")
    return rows.group_by(*_GROUP, "gpus", "pool").agg(
        pl.len().cast(pl.Int64).alias("runs"),
        name_of_one(),
        pl.col("iterations_per_epoch").first(),
        pl.col(measures).median(),
        images_per_s=pl.col("handled").first() / pl.col("time_ns").median() * 1e9,
        time_low_ns=pl.when(pl.len() > 1).then(pl.col("time_ns").min()),
        time_high_ns=pl.when(pl.len() > 1).then(pl.col("time_ns").max()),
        cost_low=pl.col("cost").min(),
        cost_high=pl.col("cost").max(),
        weak=(pl.col("scaling") == "weak").any(),
        steps=STEPS,
        **precision("cost", pl.when(pl.col("epoch_ns").is_null()).then(RELATIVE)),
        **_stage_precision(),
    )


def _stage_precision() -> dict[str, pl.Expr]:
    """Return aggregations for the interval of each stage's mean time; null for a single run."""
    known = {stage: precision(f"cost_{stage}") for stage in _STAGES}
    return {f"{stage}_{name}": known[stage][name] for stage in _STAGES for name in PRECISION}


def _with_speedups(table: pl.DataFrame, mode: ScalingMode) -> pl.DataFrame:
    """Add speedups relative to the row with the fewest GPUs; null if several rows tie.

    In weak scaling (`mode`) the work grows with the number of GPUs.
    """
    ends = ("cost_low", "cost_high")
    costs = ["cost", *(f"cost_{stage}" for stage in _STAGES), *ends, *PRECISION]
    costs += [f"{stage}_{name}" for stage in _STAGES for name in PRECISION]
    smallest = _N.min().over(_GROUP) == _N
    of_first = [
        pl.when(pl.len() == 1).then(pl.col(name).first()).alias(f"first_{name}") for name in costs
    ]
    first = table.filter(smallest).group_by(_GROUP).agg(
        *of_first, baseline_gpus=_N.first(), baseline_runs=pl.col("runs").max()
    )  # fmt: skip
    scale = _N / _FIRST if mode == "weak" else pl.lit(1.0)

    def speedup(cost: str, first_cost: str | None = None) -> pl.Expr:
        base = pl.col(f"first_{first_cost or cost}")
        return pl.when(pl.col(cost) > 0).then(scale * base / pl.col(cost))

    speedups = {"speedup": speedup("cost")}
    speedups |= {f"speedup_{stage}": speedup(f"cost_{stage}") for stage in _STAGES}
    spread = pl.any_horizontal(pl.col("runs", "baseline_runs") > 1)
    for end, (cost_end, other) in {"low": ends[::-1], "high": ends}.items():
        speedups[f"speedup_{end}"] = pl.when(spread).then(speedup(cost_end, other))
    serial = (1 / pl.col("speedup") - 1 / _N) / (1 - 1 / _N)
    from_one = (_FIRST == 1) & (_N > 1) & pl.lit(mode == "strong")
    table = (
        table.join(first, on=_GROUP, how="left", nulls_equal=True)
        .with_columns(**speedups)
        .with_columns(
            efficiency=pl.col("speedup") * _FIRST / _N,
            karp_flatt=pl.when(from_one).then(serial),
        )
    )
    found = ratio_interval(table, "speedup", "", "first_")
    of_other = pl.when(_N > _FIRST)
    for stage in _STAGES:
        of_stage = ratio_interval(table, f"speedup_{stage}", f"{stage}_", f"first_{stage}_")
        table = table.with_columns(
            of_other.then(of_stage["low"]).alias(f"speedup_{stage}_from"),
            of_other.then(of_stage["high"]).alias(f"speedup_{stage}_to"),
        )
    return table.with_columns(
        speedup_from=of_other.then(found["low"]),
        speedup_to=of_other.then(found["high"]),
        interval_of=of_other.then(found["of"]),
    )


def _with_reduction(table: pl.DataFrame, mode: ScalingMode, strong: pl.DataFrame) -> pl.DataFrame:
    """Add by how many percent less time per data set weak scaling needs than strong scaling."""
    keys = [*_GROUP, "gpus"]
    known = ("cost", *PRECISION)
    only = [
        pl.when(pl.len() == 1).then(pl.col(name).first()).name.prefix("strong_") for name in known
    ]
    costs = _summed(strong).group_by(keys).agg(only)
    ratio = pl.when(pl.col("weak") & pl.lit(mode == "weak")).then(
        (pl.col("cost") / _N) / pl.col("strong_cost")
    )
    table = table.join(costs, on=keys, how="left", nulls_equal=True).with_columns(reduced=ratio)
    found = ratio_interval(table, "reduced", "", "strong_")
    return table.with_columns(
        reduction_percent=100 * (1 - pl.col("reduced")),
        reduction_from=100 * (1 - found["high"]),
        reduction_to=100 * (1 - found["low"]),
    )


@first_line("scaling")
def _first_line(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if not {"network", "gpus", "speedup", "efficiency"} <= {*rows.columns}:
        return None
    # Runs without a network may be of two programs, as a warning says.
    known = rows.drop_nulls(["network", "speedup", "efficiency"])
    several = known.filter(pl.col("gpus") > pl.col("baseline_gpus"))
    if several.is_empty():
        return None
    most = several.sort("gpus", "speedup", descending=True).row(0, named=True)
    of = [key for key in _GROUP if key in rows.columns and several[key].n_unique() > 1]
    group = [f"{key} {text_of('unknown' if most[key] is None else most[key])}" for key in of]
    named = ", ".join([*group, f"efficiency {percent(most['efficiency'])}"])
    low, high = most.get("speedup_from"), most.get("speedup_to")
    perhaps = "perhaps " if low is not None and high is not None and low < 1 < high else ""
    return (
        f"{count(most['gpus'], 'GPU')} are {perhaps}{most['speedup']:.3g} times as fast as "
        f"{count(most['baseline_gpus'], 'GPU')} ({named})"
    )
