"""Why each op runs.

The rules are tried in a fixed order and the first that applies decides; ``docs/stages.md`` states
them for users. Each rule is one column here, null where it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from tracekit.attribution._backward import autograd_threads, backward_windows, in_window
from tracekit.attribution._nesting import Nesting
from tracekit.attribution._rules import Entry, Rules, first_outcome
from tracekit.model import STAGES


@dataclass(frozen=True)
class Context:
    """What is known of a run when its ops get their stages.

    Parameters
    ----------
    ranges
        All ranges, with the stage that their own names mean and whether they are autograd markers.
    nesting
        How they nest.
    evaluation
        For each range, whether it lies in metric evaluation.
    threads
        All threads, with what their names mean.
    training
        The training thread of each process.
    iterations
        The training steps.
    rules
        The rules.
    """

    ranges: pl.DataFrame
    nesting: Nesting
    evaluation: pl.Series
    threads: pl.DataFrame
    training: pl.DataFrame
    iterations: pl.DataFrame
    rules: Rules

    @cached_property
    def nearest(self) -> pl.DataFrame:
        """Which range decides for each one: ``staged, evaluating, marked``.

        It is the nearest, of itself and those around it in its lane, that has a stage, lies in
        metric evaluation, or is an autograd marker.
        """
        number = pl.col("range")
        own = self.ranges.select(
            staged=pl.when(pl.col("stage").is_not_null()).then(number),
            evaluating=pl.when(self.evaluation).then(number),
            marked=pl.when("autograd").then(number),
        )
        return pl.DataFrame({name: self.nesting.inherited(own[name]) for name in own.columns})


def attribute_stages(ops: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Set ``range``, ``stage`` and ``stage_source``.

    Parameters
    ----------
    ops
        Ops with their launches, and kernels classified by name.
    context
        What is known of the run.
    """
    launches = ops.select(
        "process",
        thread=pl.col("launch_thread").fill_null(-1),
        # Nothing is open that early: an op without a launch finds no range.
        time=pl.col("launch_start").fill_null(-(1 << 62)),
    )
    own = _own_thread(launches, context)
    evidence = pl.concat(
        [
            ops.select("kind", "collective", "bytes", "kernel_stage"),
            own,
            _thread_stage(launches, context),
            _process_stage(launches, context),
            _backward_stage(launches, context),
        ],
        how="horizontal",
    )
    ordered: tuple[tuple[pl.Expr, str], ...] = (
        (pl.when("evaluates").then(pl.lit("ME")), "nvtx"),
        (pl.when(pl.col("process_stage") == "ME").then(pl.lit("ME")), "process_range"),
        (_by_sets(context.rules["exchange"]), "gradient_exchange"),
        (pl.col("range_stage"), "nvtx"),
        (pl.col("thread_stage"), "thread_name"),
        (pl.col("process_stage"), "process_range"),
        (pl.col("backward_stage"), "backward_thread"),
        (pl.when("differentiates").then(pl.lit("BP")), "autograd"),
        (pl.col("kernel_stage"), "kernel_name"),
        (_by_sets(context.rules["copy"]), "copy_kind"),
        (pl.lit("OTHER"), "none"),
    )
    return ops.drop("kernel_stage").with_columns(
        range=own["range"],
        stage=_series(evidence, pl.coalesce(stage for stage, _ in ordered)),
        stage_source=_series(
            evidence,
            pl.coalesce(pl.when(stage.is_not_null()).then(pl.lit(s)) for stage, s in ordered),
        ),
    )


def _series(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    return frame.select(value=expression)["value"]


def _own_thread(launches: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Look at the push/pop ranges that are open on the launching thread."""
    nesting, near = context.nesting, context.nearest
    lanes = nesting.innermost(launches)
    staged, evaluating, marked = (
        nesting.latest([near[name].gather(lane) for lane in lanes])
        for name in ("staged", "evaluating", "marked")
    )
    return pl.DataFrame(
        {
            "range": nesting.latest(lanes),
            "range_stage": context.ranges["stage"].gather(staged),
            "evaluates": evaluating.is_not_null(),
            "differentiates": marked.is_not_null(),
        }
    )


def _thread_stage(launches: pl.DataFrame, context: Context) -> pl.DataFrame:
    names = context.threads.select("thread", thread_stage="stage")
    return launches.join(names, on="thread", how="left", maintain_order="left").select(
        "thread_stage"
    )


def _process_stage(launches: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Look at the start/end ranges that are open in the process: the only stage, or evaluation."""
    ranges = context.ranges.filter(pl.col("style") == "start_end")
    open_stages = [
        stage for stage in STAGES if not ranges.filter(pl.col("stage") == stage).is_empty()
    ]
    opened = pl.DataFrame(
        {stage: is_open(launches, ranges.filter(pl.col("stage") == stage)) for stage in open_stages}
    )
    if not open_stages:
        return launches.select(process_stage=pl.repeat(None, pl.len(), dtype=pl.String))
    only = pl.when(pl.sum_horizontal(open_stages) == 1).then(
        pl.coalesce(pl.when(stage).then(pl.lit(stage)) for stage in open_stages)
    )
    evaluates = pl.col("ME") if "ME" in open_stages else pl.lit(value=False)
    return opened.select(process_stage=pl.when(evaluates).then(pl.lit("ME")).otherwise(only))


def is_open(launches: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Tell for each ``process, time`` whether any of some ranges is open in the process."""
    changes = (
        pl.concat(
            [
                ranges.select("process", time="start", change=1),
                ranges.select("process", time="end", change=-1),
            ]
        )
        .group_by("process", "time")
        .agg(pl.col("change").sum())
        .sort("time")
        .with_columns(count=pl.col("change").cum_sum().over("process"))
    )
    return (
        launches.with_row_index("row")
        .sort("time")
        .join_asof(changes, on="time", by="process", check_sortedness=False)
        .sort("row")
        .select((pl.col("count") > 0).fill_null(value=False))
        .to_series()
    )


def _backward_stage(launches: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Give the launches of autograd threads the stage of the training thread at that time.

    In a process without any backward range it is BP inside the gaps that backward runs in. Metric
    evaluation dominates here as it does for the training thread's own launches.
    """
    windows = backward_windows(
        context.ranges, context.training, context.iterations, context.evaluation
    )
    units = in_window(launches, windows)
    marked = context.ranges.filter("autograd")["thread"].unique()
    threads = autograd_threads(launches, units, windows, context.threads, marked, context.training)
    ranged = windows.filter("ranged")["process"].unique()
    training = launches.join(
        context.training.select("process", trainer="thread"),
        on="process", how="left", maintain_order="left",
    ).select("process", "time", thread=pl.col("trainer").fill_null(-1))  # fmt: skip
    frame = launches.select("process", "thread").with_columns(
        _own_thread(training, context).select("range_stage", "evaluates"), unit=units
    )
    in_gap = pl.when(pl.col("unit").is_not_null()).then(pl.lit("BP"))
    stage = (
        pl.when("evaluates").then(pl.lit("ME"))
        .when(pl.col("process").is_in(ranged.implode())).then("range_stage")
        .otherwise(in_gap)
    )  # fmt: skip
    return frame.select(
        backward_stage=pl.when(pl.col("thread").is_in(threads.implode())).then(stage)
    )


def _by_sets(entries: Iterable[Entry]) -> pl.Expr:
    """Return the stage of the first entry whose sets hold an op's kind and collective."""
    return first_outcome(((_in_sets(entry), entry) for entry in entries), "stage")


def _in_sets(entry: Entry) -> pl.Expr:
    tests = [
        pl.col(key).cast(pl.String).is_in(values).fill_null(value=False)
        for key, values in entry.items()
        if key in ("kind", "collective") and isinstance(values, list)
    ]
    if "min_bytes" in entry:
        tests.append((pl.col("bytes") >= entry["min_bytes"]).fill_null(value=False))
    return pl.all_horizontal(tests)
