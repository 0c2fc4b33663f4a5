"""`tracekit study`, `scaling` and `overhead`: tables over many runs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    AutoSkipOption,
    RunsArgument,
    StoreOption,
    WhereOption,
    parse_labels,
    parse_skip,
)
from tracekit.support.columns import columns, keys
from tracekit.support.quantities import parse_count, parse_images
from tracekit.support.schemas import NO_RUN, Json, one

if TYPE_CHECKING:
    from tracekit.model import Answer


class Mode(StrEnum):
    """What stays the same as GPUs are added: the data set, or its part for each GPU."""

    STRONG = "strong"
    WEAK = "weak"


class Scope(StrEnum):
    """Whose images a batch counts."""

    GPU = "gpu"
    GLOBAL = "global"


class Time(StrEnum):
    """What is compared."""

    STEP = "step"
    EPOCH = "epoch"


class Value(StrEnum):
    """What a scaling figure shows."""

    SPEEDUP = "speedup"
    EFFICIENCY = "efficiency"
    TIME = "time"
    IMAGES = "images"
    STAGES = "stages"


class Listed(StrEnum):
    """What is listed of runs."""

    RUNS = "runs"
    EXCHANGE = "exchange"


class Along(StrEnum):
    """What grows until one method overtakes another."""

    BATCH = "batch"
    PARAMETERS = "parameters"


TableOption = Annotated[
    Path | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="Times that were measured elsewhere, instead of runs: CSV with columns network, "
        "batch, gpus, method, and step_s or epoch_s.",
    ),
]
ScopeOption = Annotated[
    Scope, typer.Option("--batch-scope", help="Whether a batch counts images of each GPU, or all.")
]


_STUDY = Json(
    "study",
    run=NO_RUN,
    meta={
        "runs": "integer: Number of runs.",
        "skip": "integer or null: Number of iterations that were left out at the beginning, as "
        "asked; null: those that were cold, of each run.",
        **keys("batch_scope", "per?", "verdicts?", "simulated?"),
        "images?": "integer: Images of the data set, where times of epochs are asked for.",
        **keys("warnings?"),
    },
    rows={
        **columns("run?", "network?", "batch?", "gpus?", "method?"),
        "method_source?": "text or null: How the method is known.",
        **columns("scaling?"),
        "basis?": "one of gpu, host or null: What was timed: ops on GPUs, or NVTX ranges on the "
        "host of a run without GPU work; null of a table of times.",
        "iterations?": "integer or null: Number of steps.",
        "window_ns?": "number or null: Length of all steps, ns.",
        "step_ns?": "number or null: Mean time of a step, ns.",
        "step_p5_ns?": "number or null: 5th percentile, ns.",
        "step_p50_ns?": "number or null: Median, ns.",
        "step_p95_ns?": "number or null: 95th percentile, ns.",
        "epoch_ns?": "number or null: Time of an epoch, ns.",
        "fp_bp_ns?": "number or null: Busy time of FP or BP in a step, ns.",
        "wu_ns?": "number or null: Busy time of WU in a step, ns.",
        "wu_exposed_ns?": "number or null: Exposed time of WU, ns.",
        "io_exposed_ns?": "number or null: Exposed time of IO, ns.",
        "me_exposed_ns?": "number or null: Exposed time of ME, ns.",
        "other_exposed_ns?": "number or null: Exposed time of OTHER, ns.",
        "wu_residual_ns?": "number or null: Step less FP and BP, ns.",
        "idle_ns?": "number or null: Time of a step in which nothing runs, ns.",
        "bytes_between_gpus?": "number or null: Bytes moved to other GPUs in a step.",
        "bytes_evidence?": "text or null: Whether these are measured or modelled.",
        **columns("images_per_s?"),
        "between_ns?": "number or null: Time of a step in which nothing runs and the host is in "
        "no iteration, ns.",
        "devices?": "integer or null: Devices that steps ran on.",
        "step_total_ns?": "integer or null: Sum over steps and devices of what step_ns is the "
        "mean of, ns.",
        "fp_bp_total_ns?": "integer or null: Sum over steps and devices of what fp_bp_ns is the "
        "mean of, ns.",
        "wu_total_ns?": "integer or null: Sum over steps and devices of what wu_ns is the mean "
        "of, ns.",
        "wu_exposed_total_ns?": "integer or null: Sum over steps and devices of what "
        "wu_exposed_ns is the mean of, ns.",
        "io_exposed_total_ns?": "integer or null: Sum over steps and devices of what "
        "io_exposed_ns is the mean of, ns.",
        "me_exposed_total_ns?": "integer or null: Sum over steps and devices of what "
        "me_exposed_ns is the mean of, ns.",
        "other_exposed_total_ns?": "integer or null: Sum over steps and devices of what "
        "other_exposed_ns is the mean of, ns.",
        "idle_total_ns?": "integer or null: Sum over steps and devices of what idle_ns is the "
        "mean of, ns.",
        "between_total_ns?": "integer or null: Sum over steps and devices of what between_ns is "
        "the mean of, ns.",
        "step_low_ns?": "number or null: Lower end of the 95 % interval of step_ns, of these "
        "steps alone; null where it is not known.",
        "step_high_ns?": "number or null: Upper end of it.",
        "step_se_ns?": "number or null: Standard error of step_ns.",
        "skipped?": "integer or null: How many iterations were left out at the beginning.",
        "step_effective?": "number or null: So many independent steps would tell as much.",
        **columns("parameters?"),
        "gradient_bytes?": "integer or null: --what exchange: bytes of gradients, S.",
        "expected_bytes?": "integer or null: 2 (n - 1) S, over all GPUs.",
        "star_root_bytes?": "integer or null: Of a star: (n - 1) S, in and out of the root each.",
        "ring_gpu_bytes?": "number or null: Of a ring: 2 (n - 1) / n S, sent by each GPU.",
        "observed_bytes?": "number or null: What moved between GPUs in a step.",
        "observed_evidence?": "text or null: measured or modelled.",
        "ratio?": "number or null: Observed over expected.",
        "epoch_bytes?": "integer or null: Expected in an epoch; null without --images.",
    },
)


@command(
    "tracekit study --where network=lenet --figure steps.html",
    "tracekit study --where network=lenet --images 256K --figure epochs.html",
    "tracekit study --where network=alexnet --what exchange --parameters 60M",
    figures={"figure": "Draw what a step of each run is made of; with --images, an epoch"},
    writes=[_STUDY],
)
def study(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    what: Annotated[
        Listed,
        typer.Option("--what", help="Runs, or the bytes that they must exchange and do."),
    ] = Listed.RUNS,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="COUNT",
            help="Images of the data set, such as 256K (weak: of a GPU): gives times of epochs.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="COUNT",
            help="Parameters of the network, such as 60M, of runs without that label.",
        ),
    ] = None,
    skip: AutoSkipOption = "auto",
    scope: ScopeOption = Scope.GPU,
    store: StoreOption = None,
) -> "Answer":
    """List runs as a study: configuration, step time and its stages, traffic, images per second.

    A run's network, batch, gpus and method are its labels (`tracekit ingest --label batch=16`).
    """
    import tracekit

    return tracekit.study.answer(
        runs or (), where=parse_labels(where or []), table=table, what=what.value,
        images=None if images is None else parse_images(images),
        parameters=None if parameters is None else parse_count(parameters),
        skip=parse_skip(skip), batch_scope=scope.value, store=store,
    )  # fmt: skip


_SCALING = Json(
    "scaling",
    run=NO_RUN,
    meta={
        "mode": "text: strong or weak.",
        "time": "text: step or epoch.",
        "images?": "integer or null: Size of the data set.",
        **keys("batch_scope?"),
        "runs": "integer: Runs that count.",
        "other_mode?": "integer: Runs labelled for the other mode.",
        "untimed?": "integer: Runs without a time.",
        **keys("warnings", "basis?", "per?", "verdicts?", "simulated?"),
    },
    rows={
        "mode?": "text: strong or weak.",
        **columns("network?", "batch?", "method?", "gpus?"),
        "run?": "text or null: Name of the run; null where several are pooled.",
        **columns("runs?"),
        "iterations_per_epoch?": "integer or null: Iterations of an epoch.",
        **columns("time_ns?", "images_per_s?"),
        "bytes_per_epoch?": "number or null: Bytes between GPUs in an epoch.",
        "baseline_gpus?": "integer or null: Number of GPUs that speedup is relative to.",
        "speedup?": "number or null: Speedup.",
        "speedup_low?": "number or null: Least speedup of any run over any of the baseline's; "
        "null where neither side has several.",
        "speedup_high?": "number or null: Greatest of them.",
        "efficiency?": "number or null: Efficiency, a fraction.",
        "karp_flatt?": "number or null: Serial fraction of Karp and Flatt.",
        **columns("reduction_percent?"),
        "speedup_fp_bp?": "number or null: Speedup of FP and BP.",
        "speedup_wu?": "number or null: Speedup of WU.",
        **columns("time_low_ns?", "time_high_ns?"),
        "speedup_from?": "number or null: Lower end of the 95 % interval of speedup; null where "
        "it is not known.",
        "speedup_to?": "number or null: Upper end of it.",
        **columns("interval_of?", "steps?"),
        "reduction_from?": "number or null: Lower end of the 95 % interval of reduction_percent.",
        "reduction_to?": "number or null: Upper end of it.",
        "speedup_fp_bp_from?": "amount or null: Lower end of the 95 % interval of the speedup of "
        "FP and BP; null where neither side has several runs.",
        "speedup_fp_bp_to?": "amount or null: Upper end of the 95 % interval of the speedup of FP "
        "and BP; null where neither side has several runs.",
        "speedup_wu_from?": "amount or null: Lower end of the 95 % interval of the speedup of WU; "
        "null where neither side has several runs.",
        "speedup_wu_to?": "amount or null: Upper end of the 95 % interval of the speedup of WU; "
        "null where neither side has several runs.",
    },
)


@command(
    "tracekit scaling --where network=lenet --images 256000",
    "tracekit scaling --table times.csv --mode weak --figure scaling.html",
    figures={"figure": "Draw the scaling curves"},
    writes=[_SCALING],
)
def scaling(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    mode: Annotated[Mode, typer.Option("--mode", help="Strong or weak scaling.")] = Mode.STRONG,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="COUNT",
            help="Images of the data set, such as 256000; weak: of a GPU.",
        ),
    ] = None,
    time: Annotated[
        Time | None, typer.Option("--time", help="Compare times of steps or of epochs.")
    ] = None,
    scope: ScopeOption = Scope.GPU,
    skip: AutoSkipOption = "auto",
    value: Annotated[Value, typer.Option("--value", help="What the figure shows.")] = Value.SPEEDUP,
    store: StoreOption = None,
) -> "Answer":
    """List speedup, efficiency and throughput by number of GPUs, network, batch and method."""
    import tracekit

    return tracekit.scaling.answer(
        runs or (),
        where=parse_labels(where or []),
        table=table,
        mode=mode.value,
        images=None if images is None else parse_images(images),
        time=None if time is None else time.value,
        value=value.value,
        skip=parse_skip(skip),
        batch_scope=scope.value,
        store=store,
    )


_OVERHEAD = Json(
    "overhead",
    run=NO_RUN,
    meta={
        "baseline?": "text: The method that others are held against.",
        "compared?": "integer: Rows with an overhead.",
        "min_percent?": "number or null: The least overhead.",
        "max_percent?": "number or null: The greatest.",
        "without_partner?": "integer: Rows of one side only.",
        "untimed?": "integer: Rows without times of one kind.",
        "without_method?": "integer: Runs of unknown method.",
        **keys("basis?", "per?", "warnings?", "verdicts?", "simulated?"),
        "along?": "one of batch, parameters: --crossover: what grows.",
    },
    rows={
        **columns("network?", "batch?", "gpus?", "method?", "scaling?"),
        "run?": "text or null: Name of the run; null where several are pooled.",
        "baseline_run?": "text or null: Name of the baseline's run; null where several are pooled.",
        **columns("runs?"),
        "baseline_runs?": "integer or null: Runs of the baseline.",
        "time?": "text or null: What was compared: step or epoch.",
        **columns("time_ns?"),
        "baseline_ns?": "number or null: Time with the baseline, ns.",
        "overhead_percent?": "number or null: 100 (T - T_base) / T_base.",
        "low_percent?": "number or null: Least overhead of any run over any of the baseline's; "
        "null where neither side has several.",
        "high_percent?": "number or null: Greatest of them.",
        "throughput_ratio?": "number or null: Images per second over the baseline's.",
        "name?": "text: Name of a kernel, function or GPU.",
        **columns("calls?"),
        "total_ns?": "integer or null: Sum of durations, ns.",
        **columns("mean_ns?", "min_ns?", "p50_ns?", "max_ns?", "share?"),
        "busy_ns?": "integer or null: Length of the union, ns.",
        "wall_share?": "number or null: Busy time over wall time of the threads.",
        "times?": "integer: How often.",
        **columns("time_low_ns?", "time_high_ns?"),
        "baseline_low_ns?": "number or null: Shortest of several runs' times, ns; null of one run.",
        "baseline_high_ns?": "number or null: Longest of several runs' times, ns; null of one run.",
        "from_percent?": "number or null: Lower end of the 95 % interval of overhead_percent; "
        "null where it is not known.",
        "to_percent?": "number or null: Upper end of it.",
        **columns("interval_of?", "steps?"),
        "baseline_steps?": "integer or null: The same of the baseline.",
        **columns("parameters?"),
        "points?": "integer: --crossover: how many sizes there are.",
        "smallest?": "integer: The smallest of them.",
        "largest?": "integer: The largest of them.",
        "crossing?": "number or null: Size at which the overhead is 0.",
        "crossing_from?": "integer or null: Last size before it at which the other side is shown.",
        "crossing_to?": "integer or null: First size after it at which it is shown.",
        "found?": "one of overtakes, falls behind, always slower, never slower, several times: "
        "What is found as sizes grow.",
    },
    row_rules={
        "patternProperties": {
            "^([0-9]+|batch unknown)$": one(
                "number or null: With --as-matrix: overhead at this batch, percent."
            )
        }
    },
)


@command(
    "tracekit overhead --where network=lenet --baseline p2p",
    "tracekit overhead --table times.csv --as-matrix",
    "tracekit overhead before after --api",
    "tracekit overhead --where study=dgx1 --crossover batch",
    figures={
        "figure": "Draw the overheads",
        "heat-map": "Draw the overheads as a map, network by batch",
    },
    writes=[_OVERHEAD],
)
def overhead(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="METHOD", help="The method to hold others against.")
    ] = "p2p",
    as_matrix: Annotated[
        bool, typer.Option("--as-matrix", help="Lay it out as a column per batch.")
    ] = False,
    api: Annotated[
        bool, typer.Option("--api", help="List calls of the CUDA API by run and method instead.")
    ] = False,
    profiler: Annotated[
        bool, typer.Option("--profiler", help="List what the profiler itself took instead.")
    ] = False,
    crossover: Annotated[
        Along | None,
        typer.Option(
            "--crossover",
            help="Tell by which batch or size of network methods overtake the baseline instead.",
        ),
    ] = None,
    skip: AutoSkipOption = "auto",
    store: StoreOption = None,
) -> "Answer":
    """List what a way to communicate costs beside another, at equal network, batch and GPUs."""
    import tracekit

    return tracekit.overhead.answer(
        runs or (), where=parse_labels(where or []), table=table, baseline=baseline,
        as_matrix=as_matrix, api=api, profiler=profiler,
        crossover=None if crossover is None else crossover.value,
        skip=parse_skip(skip), store=store,
    )  # fmt: skip
