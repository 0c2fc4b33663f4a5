"""Pipeline bubbles: time in which a pipeline stage is idle while others work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis.facts import WAITING, counted_micro_batches, is_pipeline
from tracekit.engine import first_iterations, has_ops, numbered_alike, union_length
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Trace, with_clocks

_PASSES = ("FP", "BP")
_SCHEDULES = ("gpipe", "1f1b")
_COMMUNICATION = ("collective", "p2p", "staged")
_OWNER = ["process", "device"]
_SPAN = ["start", "end"]
_STEP = ["iteration", "stage"]
_SUMS = ("window_ns", "busy_ns", "bubble_ns", "dependency_ns", "communication_ns")


@dataclass(frozen=True)
class Bubbles:
    """Time that the stages of a pipeline lose in bubbles."""

    stages: pl.DataFrame
    """One row per stage: ``stage, process, device, iterations``; summed over steps ``window_ns``,
    ``busy_ns``, ``bubble_ns``, ``dependency_ns`` and ``communication_ns``; and ``bubble_share``."""
    steps: pl.DataFrame
    """One row per step: ``iteration``, its ``window_ns``, and the other times summed over
    stages."""
    basis: str
    """``gpu``: times of kernels; or ``host``: times of ranges."""
    micro_batches: int | None
    """Number of micro-batches of a step; None if unknown."""
    timeline: pl.DataFrame
    """Working intervals of the stages in the step of median length: ``stage``; ``part`` (``FP`` or
    ``BP``; null on the host and if passes are unknown); ``start_ns, end_ns`` from the start of the
    step."""
    is_told: bool
    """Whether the recording itself proves a pipeline: names of forward ranges contain micro-batch
    numbers, or a stage's forward or backward pass sends, receives, or copies to another GPU."""

    @property
    def share(self) -> float:
        """Time in bubbles over the whole step time, both summed over stages and steps."""
        return self._over("window_ns")

    @property
    def of_ideal(self) -> float:
        """Ratio of bubble time to the time in which stages work."""
        return self._over("busy_ns")

    def _over(self, name: str) -> float:
        return float(self.stages.select(pl.col("bubble_ns").sum() / pl.col(name).sum()).item())


def bubble_theory(
    stages: int, micro_batches: int | None, schedule: str | None = None
) -> dict[str, float | None]:
    """Return the theoretical bubble share of a step, for equal stages and micro-batches.

    Parameters
    ----------
    stages
        Number of stages, p.
    micro_batches
        Number of micro-batches, m; 1 if a batch is not divided.
    schedule
        ``gpipe`` or ``1f1b``, whose bubbles are equal; for any other one the result is None.

    Returns
    -------
    ``theory_share``, (p - 1) / (m + p - 1), and ``theory_ideal_share``, (p - 1) / m; each None if
    unknown.
    """
    if micro_batches is None or (schedule or _SCHEDULES[0]).lower() not in _SCHEDULES:
        return {"theory_share": None, "theory_ideal_share": None}
    if stages < 1 or micro_batches < 1:
        raise UsageError("a pipeline needs stages and micro-batches", "give 1 or more of each")
    lost = stages - 1
    return {
        "theory_share": lost / (micro_batches + lost),
        "theory_ideal_share": lost / micro_batches,
    }


def pipeline_bubbles(
    trace: Trace, *, skip: int = 0, micro_batches: int | None = None, waiting: str = WAITING
) -> Bubbles:
    """Return how long each pipeline stage is idle in each step while other stages work.

    A stage is a device (without GPU work, a process), numbered in order. A stage works while a
    compute kernel of FP or BP runs (if no kernel is known to be of FP or BP: any compute kernel).
    Without GPU work, it works while a range of FP or BP is open and no range in which it sends or
    waits. A step lasts from the first begin to the last end of work on any stage.

    Parameters
    ----------
    skip
        Number of iterations to leave out at the beginning.
    micro_batches
        Number of micro-batches of a step; by default how many different
        numbers FP ranges have in their names (``forward 0`` to ``forward 3``: 4).
    waiting
        Regular expression for names of ranges in which a stage sends or waits.

    Returns
    -------
    Times of each stage and step: ``busy_ns`` (working), ``bubble_ns`` (the rest of the step),
    ``dependency_ns`` (part of the bubble in which the previous or next stage works) and
    ``communication_ns`` (part of the bubble in which the stage sends or receives).

    Raises
    ------
    MissingDataError
        If the run has no steps in which stages work, or their times cannot be compared.
    UsageError
        If the run has only one stage.
    """
    paired = numbered_alike(trace)
    iterations = _one_clock(paired)
    kept = iterations.join(
        first_iterations(iterations, skip), on=["process", "iteration"], how="anti"
    )
    is_gpu = has_ops(paired)
    work, talk = _of_gpus(paired) if is_gpu else _of_host(paired, kept, waiting)
    inside = [each.join(kept, on=["process", "iteration"], how="semi") for each in (work, talk)]
    numbered = _numbered(*inside)
    steps = _measured(*numbered)
    counted = counted_micro_batches(paired)
    owners = numbered[0].select("stage", *_OWNER).unique().sort("stage")
    of_step = pl.col(_SUMS[1:]).sum()
    return Bubbles(
        owners.join(
            steps.group_by("stage").agg(iterations=pl.len().cast(pl.Int64), **_sums()), on="stage"
        ).sort("stage").with_columns(bubble_share=pl.col("bubble_ns") / pl.col("window_ns")),
        steps.group_by("iteration").agg(pl.col("window_ns").first(), of_step).sort("iteration")
        .with_columns(bubble_share=pl.col("bubble_ns") / (owners.height * pl.col("window_ns"))),
        "gpu" if is_gpu else "host",
        micro_batches or counted,
        _timeline(numbered[0], steps),
        is_pipeline(paired, waiting),
    )  # fmt: skip


def _sums() -> dict[str, pl.Expr]:
    return {name: pl.col(name).sum() for name in _SUMS}


def _one_clock(trace: Trace) -> pl.DataFrame:
    """Return the iterations; raise an error if their processes are on several clocks."""
    iterations = with_clocks(trace.read("iterations"), trace.read("reports"))
    if iterations.is_empty():
        raise MissingDataError(
            "this run has no steps", "name or record ranges of steps: --iteration REGEX"
        )
    if iterations["clock"].n_unique() > 1:
        raise MissingDataError(
            "the stages' times cannot be compared, their reports are on separate clocks",
            "`tracekit info --clocks` explains why; --clock sets them when a run is ingested",
        )
    return iterations


def _of_gpus(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return two tables of intervals by device and iteration: computing, and communicating."""
    kind = pl.col("kind").cast(pl.String)
    columns = [*_OWNER, "iteration", *_SPAN]
    ops = trace["ops"].select(*columns, pl.col("stage").cast(pl.String), kind).collect()
    ops = ops.drop_nulls("iteration")
    computes = ops.filter(kind == "compute")
    passes = computes.filter(pl.col("stage").is_in(_PASSES))
    work = computes.with_columns(stage=None) if passes.is_empty() else passes
    return work.select(*columns, part=pl.col("stage").cast(pl.String)), ops.filter(
        kind.is_in(_COMMUNICATION)
    ).select(columns)


def _of_host(
    trace: Trace, iterations: pl.DataFrame, waiting: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return intervals by process and iteration: in FP or BP ranges; and sending or waiting."""
    stage = pl.col("stage").cast(pl.String)
    name = pl.col("name").cast(pl.String)
    try:
        ranges = trace["ranges"].select("process", *_SPAN, stage, waits=name.str.contains(waiting))
        found = ranges.collect().drop_nulls("end")
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"cannot read the pattern {waiting!r}", str(error)) from error
    talk = found.filter("waits").select("process", *_SPAN)
    work = _without(found.filter(pl.col("stage").is_in(_PASSES)).select("process", *_SPAN), talk)
    starts = iterations.sort("start").select("process", "iteration", begin="start", until="end")
    unknown = pl.lit(None, pl.String).alias("part")
    return _in_iterations(work, starts).with_columns(unknown), _in_iterations(talk, starts)


def _in_iterations(spans: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Add the iteration in which each interval begins; drop intervals outside of iterations."""
    located = spans.sort("start").join_asof(
        iterations, left_on="start", right_on="begin", by="process", check_sortedness=False
    )
    inside = located.filter(pl.col("start") < pl.col("until"))
    return inside.select("process", "iteration", *_SPAN, device=pl.lit(None, pl.Int64)).select(
        *_OWNER, "iteration", *_SPAN
    )


def _without(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return, per process, the parts of the intervals `spans` outside of the intervals `others`."""
    edges = [
        each.select("process", time=edge, inside=weight * sign, outside=(1 - weight) * sign)
        for each, weight in ((spans, 1), (others, 0))
        for edge, sign in (("start", 1), ("end", -1))
    ]
    edges = [each.with_columns(pl.col("inside", "outside").cast(pl.Int64)) for each in edges]
    return (
        pl.concat(edges)
        .group_by("process", "time")
        .agg(pl.col("inside", "outside").sum())
        .sort("process", "time")
        .with_columns(
            pl.col("inside", "outside").cum_sum().over("process"),
            until=pl.col("time").shift(-1).over("process"),
        )
        .filter(pl.col("inside") > 0, pl.col("outside") == 0)
        .select("process", start="time", end="until")
    )


def _numbered(work: pl.DataFrame, talk: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add ``stage`` (index) to both tables; keep only iterations in which all stages work."""
    owners = work.select(_OWNER).unique().sort(_OWNER).with_row_index("stage")
    owners = owners.with_columns(pl.col("stage").cast(pl.Int64))
    if work.is_empty():
        raise MissingDataError(
            "this run's steps have no work of FP and BP", "name your ranges with --rules"
        )
    if owners.height == 1:
        raise UsageError(
            "one GPU or process alone has forward and backward work in steps",
            "give a run in which several have: each is a stage of the pipeline",
        )
    complete = (
        work.group_by("iteration")
        .agg(stages=pl.struct(_OWNER).n_unique())
        .filter(pl.col("stages") == owners.height)
    )
    if complete.is_empty():
        raise MissingDataError("no step has work of all stages", "record all stages for longer")
    work, talk = (
        each.join(owners, on=_OWNER, nulls_equal=True).join(complete, on="iteration", how="semi")
        for each in (work, talk)
    )
    return work, talk


def _measured(work: pl.DataFrame, talk: pl.DataFrame) -> pl.DataFrame:
    """Return length, working, bubble, dependency and communication time by step and stage."""
    windows = work.group_by("iteration").agg(begin=pl.col("start").min(), until=pl.col("end").max())
    clipped = talk.join(windows, on="iteration").with_columns(
        start=pl.max_horizontal("start", "begin"), end=pl.min_horizontal("end", "until")
    )
    spans = work.select(*_STEP, *_SPAN)
    with_talk = clipped.filter(pl.col("end") > pl.col("start")).select(*_STEP, *_SPAN)
    neighbours = [spans.with_columns(pl.col("stage") + step) for step in (-1, 1)]
    unions = {
        "busy_ns": spans,
        "nearby": pl.concat([spans, *neighbours]),
        "talking": pl.concat([spans, with_talk]),
    }
    found = windows.select("iteration", window_ns=pl.col("until") - pl.col("begin"))
    found = found.join(spans.select(_STEP).unique(), on="iteration")
    for name, each in unions.items():
        found = found.join(union_length(each, _STEP).rename({"length": name}), on=_STEP)
    busy = pl.col("busy_ns")
    return found.with_columns(
        bubble_ns=pl.col("window_ns") - busy,
        dependency_ns=pl.col("nearby") - busy,
        communication_ns=pl.col("talking") - busy,
    ).drop("nearby", "talking")


def _timeline(work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the working intervals of stages in the step of median length; see `Bubbles`."""
    lengths = steps.unique("iteration").sort("window_ns", "iteration")
    shown = work.filter(pl.col("iteration") == lengths["iteration"][(lengths.height - 1) // 2])
    by = ["stage", "part"]
    ended = pl.col("end").cum_max().shift(1).over(by)
    begun = shown["start"].min()
    return (
        shown.sort("start")
        .with_columns(piece=(pl.col("start") > ended).fill_null(value=False).cum_sum().over(by))
        .group_by(*by, "piece")
        .agg(start_ns=pl.col("start").min() - begun, end_ns=pl.col("end").max() - begun)
        .sort("stage", "start_ns")
        .select(*by, "start_ns", "end_ns")
    )


def bubbles_of_run(found: Bubbles, schedule: str | None) -> dict[str, Any]:
    """Summarise the result of `pipeline_bubbles` in one row of means over steps and stages.

    By `schedule` the row also has the theoretical bubbles.
    """
    stages = found.stages.height
    steps: int = found.stages["iterations"].max()  # type: ignore[assignment]
    per_step = found.stages.select(pl.col(_SUMS).sum() / (stages * steps)).row(0, named=True)
    return {
        "stages": stages,
        "micro_batches": found.micro_batches,
        "schedule": schedule,
        "basis": found.basis,
        "iterations": steps,
        **per_step,
        "bubble_share": found.share,
        "bubble_ideal_share": found.of_ideal,
        **bubble_theory(stages, found.micro_batches, schedule),
    }
