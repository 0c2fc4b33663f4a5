"""Options and columns of `study`, `scaling`, `overhead` and `memory`, for several runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from tracekit import model
from tracekit.analysis import studies
from tracekit.errors import UsageError
from tracekit.model import Runs
from tracekit.support.columns import columns, keys
from tracekit.support.files import StrPath
from tracekit.support.questions import AutoSkip, ChosenRuns, Option, SummedRuns, question
from tracekit.support.schemas import NO_RUN, Json, one
from tracekit.support.wording import first_line, printable, size_text

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer

_Table = Annotated[
    StrPath | None,
    Option(
        "Times that were measured elsewhere, instead of runs: CSV with columns network, batch, "
        "gpus, method, and step_s or epoch_s.",
        "FILE",
        typed=Path | None,
    ),
]
_Scope = Annotated[
    Literal["gpu", "global"], Option("Whether a batch counts images of each GPU, or all.")
]
_FIGURES = {"use": "use", "table": "extra", "extra": "extra", "growth": "growth"}

_MEMORY = Json(
    "memory",
    run=NO_RUN,
    meta={
        "table?": "text: File of measurements from elsewhere.",
        "runs?": "texts: Names of the runs.",
        **keys("warnings?", "verdicts?"),
        "peak_of?": "text: Of what GPU memory in use is the greatest at once, and no sum, such as "
        "each GPU; absent where it was measured elsewhere.",
        **keys("simulated?"),
    },
    rows={
        **columns("run?", "network?", "method?", "batch?"),
        "gpu?": "integer: Number of the GPU.",
        "device?": "integer or null: Index of the GPU in the run.",
        "name?": "text or null: Name of a kernel, function or GPU.",
        "source?": "text: allocator or nvidia_smi.",
        "pre_bytes?": "integer or null: Most in use before training.",
        "training_bytes?": "integer or null: Most in use in training.",
        "peak_bytes?": "integer or null: Most in use in the whole recording.",
        "extra_percent?": "number or null: By how much more than others_bytes is in use, percent.",
        "memory_bytes?": "integer or null: Size of the GPU's memory.",
        **columns("share?"),
        "note?": "text or null: What the row leaves unknown.",
        **columns("gpus?"),
        "root_bytes?": "number or null: Most in use in training on the root GPU.",
        "others_bytes?": "number or null: Most in use in training, median of the other GPUs.",
        "extra_bytes?": "number or null: root_bytes - others_bytes.",
        "smallest_batch?": "integer or null: Batch that increase_percent is relative to.",
        "increase_percent?": "number or null: Growth since the smallest batch, percent.",
        "points?": "integer: Number of points that the line is fitted to.",
        "slope_bytes?": "number or null: Slope of the fitted line, bytes per sample of a batch.",
        "intercept_bytes?": "number or null: Value of the fitted line at batch 0.",
        "usable_bytes?": "integer: Capacity less the margin.",
        "largest_batch?": "integer or null: The largest batch that fits.",
        "predicted_bytes?": "number or null: Value of the fitted line at the largest batch.",
        "extrapolated?": "flag or null: Whether largest_batch is outside of the measured ones.",
    },
)


def _images(meaning: str) -> Option:
    return Option(meaning, "COUNT", unit="images")


def _studied(
    runs: Runs, table: StrPath | None, skip: int | Literal["auto"], batch_scope: Any = "gpu"
) -> "tuple[pl.DataFrame, Mapping[str, Any]]":
    """Return the study table of runs (or of a file of times), and meta entries on the runs."""
    if table is not None:
        if runs.is_chosen:
            raise UsageError("a study takes runs or a table", "give either, not both")
        return studies.read_times(Path(table)), {}
    rows = studies.study(
        studies.study_row(run.trace, run.labels, run.name, skip=skip, batch_scope=batch_scope)
        for run in runs
    )
    studies.basis_of(rows)
    notes = studies.study_notes(rows)
    return rows, {**runs.facts(), **({"notes": notes} if notes else {})}


_SUMMED = (
    "step", "fp_bp", "wu", "wu_exposed", "io_exposed", "me_exposed", "other_exposed", "idle",
    "between_steps",
)  # fmt: skip
"""Times of a step that are also given as sums."""
_STUDY = Json(
    "study",
    run=NO_RUN,
    meta={
        "runs": "integer: Number of runs.",
        "skip": "integer or null: Number of iterations that were left out at the beginning, as "
        "asked; null: those that were cold, of each run.",
        **keys("batch_scope", "per?", "verdicts?", "simulated?"),
        "images?": "integer: Images of the data set, for times of epochs.",
        **keys("warnings?", "notes?"),
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
        "step_p5_ns?": "number or null: 5th percentile of the steps' times, ns.",
        "step_p50_ns?": "number or null: Median time of a step, ns.",
        "step_p95_ns?": "number or null: 95th percentile of the steps' times, ns.",
        "epoch_ns?": "number or null: Time of an epoch, ns.",
        "fp_bp_ns?": "number or null: Busy time of FP or BP in a step, ns.",
        "wu_ns?": "number or null: Busy time of WU in a step, ns.",
        "wu_exposed_ns?": "number or null: Exposed time of WU, ns.",
        "io_exposed_ns?": "number or null: Exposed time of IO, ns.",
        "me_exposed_ns?": "number or null: Exposed time of ME, ns.",
        "other_exposed_ns?": "number or null: Exposed time of OTHER, ns.",
        "wu_residual_ns?": "number or null: step_ns - fp_bp_ns.",
        "idle_ns?": "number or null: Time of a step in which nothing runs, ns.",
        "bytes_between_gpus?": "number or null: Bytes moved to other GPUs in a step.",
        "bytes_evidence?": "text or null: Whether bytes_between_gpus is measured or modelled.",
        "data_parallel?": "flag or null: Whether these are mostly gradients that all GPUs "
        "exchange; null where it is unknown.",
        **columns("images_per_s?"),
        "between_steps_ns?": "number or null: Time of a step in which nothing runs and the host "
        "is in no iteration, ns.",
        "devices?": "integer or null: Devices that steps ran on.",
        **{
            f"{name}_total_ns?": "integer or null: Sum over steps and devices, of "
            f"which {name}_ns is the mean, ns."
            for name in _SUMMED
        },
        "step_low_ns?": "number or null: Lower end of the 95 % interval of step_ns, of these "
        "steps alone; null where it is not known.",
        "step_high_ns?": "number or null: Upper end of the interval of step_ns.",
        "step_se_ns?": "number or null: Standard error of step_ns.",
        "step_sd_ns?": "number or null: Standard deviation of the steps' times, ns.",
        "skipped?": "integer or null: How many iterations were left out at the beginning.",
        "step_effective?": "number or null: Number of independent steps with the same precision.",
        "slow_every?": "integer or null: Every how many steps a slow one comes, where some come "
        "regularly.",
        **columns("parameters?"),
        "gradient_bytes?": "integer or null: --what exchange: bytes of gradients, S.",
        "expected_bytes?": "integer or null: Bytes that a step must move: 2 (n - 1) S; null "
        "where nothing shows that it moves gradients.",
        "star_root_bytes?": "integer or null: Of a star: (n - 1) S, in and out of the root each.",
        "ring_gpu_bytes?": "number or null: Of a ring: 2 (n - 1) / n S, sent by each GPU.",
        "observed_bytes?": "number or null: Bytes that moved between GPUs in a step.",
        "observed_evidence?": "text or null: Whether observed_bytes is measured or modelled.",
        "ratio?": "number or null: observed_bytes / expected_bytes.",
        "epoch_bytes?": "integer or null: Expected in an epoch; null without --images.",
    },
)


@question(
    "tracekit study --where network=lenet --figure steps.html",
    "tracekit study --where network=lenet --images 256K --figure epochs.html",
    "tracekit study --where network=alexnet --what exchange --parameters 60M",
    "tracekit study --where network=unet --dask tcp://head:8786",
    figures={"figure": "Draw what a step of each run is made of; with --images, an epoch"},
    writes=_STUDY,
)
def study(
    runs: Runs,
    *,
    table: _Table = None,
    what: Annotated[
        Literal["runs", "exchange"],
        Option("Step times of runs, or the bytes that a step must exchange."),
    ] = "runs",
    images: Annotated[
        int | None,
        _images("Images of the data set, such as 256K (weak: of a GPU): gives times of epochs."),
    ] = None,
    parameters: Annotated[
        int | None,
        Option(
            "Parameters of the network, such as 60M, of runs without that label.",
            "COUNT",
            unit="count",
        ),
    ] = None,
    skip: AutoSkip = "auto",
    batch_scope: _Scope = "gpu",
    **_: Unpack[SummedRuns],
) -> "Answer":
    """List runs with configuration, step time and its stages, traffic and images per second.

    A run's network, batch, gpus and method are its labels (`tracekit ingest --label batch=16`).
    """
    from tracekit.analysis.studies._study import of_study, runs_answer

    rows, facts = _studied(runs, table, skip, batch_scope)
    meta = {"skip": None if skip == "auto" else skip, "batch_scope": batch_scope}
    if what == "exchange":
        found = studies.exchange(
            rows, parameters=parameters, images=images, batch_scope=batch_scope
        )
        return of_study(found.saying(**meta, **facts), rows)
    found = runs_answer(rows, meta, images=images, batch_scope=batch_scope, apart=runs.is_apart)
    return of_study(found.saying(**facts), rows)


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
        "untimed?": "integer: Runs without a time, or of an unknown number of GPUs.",
        **keys("warnings", "notes?", "basis?", "per?", "verdicts?", "simulated?"),
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
        "speedup?": "number or null: Speedup over the runs on baseline_gpus.",
        "speedup_low?": "number or null: Least speedup of any run over any of the baseline's; "
        "null where neither side has several.",
        "speedup_high?": "number or null: Greatest such speedup.",
        "efficiency?": "number or null: Share of the ideal speedup.",
        "karp_flatt?": "number or null: Serial fraction of Karp and Flatt.",
        **columns("reduction_percent?"),
        "speedup_fp_bp?": "number or null: Speedup of FP and BP.",
        "speedup_wu?": "number or null: Speedup of WU.",
        **columns("time_low_ns?", "time_high_ns?"),
        "speedup_from?": "number or null: Lower end of the 95 % interval of speedup; null where "
        "it is not known.",
        "speedup_to?": "number or null: Upper end of the interval of speedup.",
        **columns("interval_of?", "steps?"),
        "reduction_from?": "number or null: Lower end of the 95 % interval of reduction_percent.",
        "reduction_to?": "number or null: Upper end of the interval of reduction_percent.",
        **{
            f"speedup_{key}_{end}?": f"amount or null: {which} end of the 95 % interval of the "
            f"speedup of {stage}; null where neither side has several runs."
            for key, stage in (("fp_bp", "FP and BP"), ("wu", "WU"))
            for end, which in (("from", "Lower"), ("to", "Upper"))
        },
    },
)


@question(
    "tracekit scaling --where network=lenet --images 256000",
    "tracekit scaling --table times.csv --mode weak --figure scaling.html",
    figures={"figure": "Draw the scaling curves"},
    writes=_SCALING,
)
def scaling(
    runs: Runs,
    *,
    table: _Table = None,
    mode: Annotated[Literal["strong", "weak"], Option("Strong or weak scaling.")] = "strong",
    images: Annotated[
        int | None, _images("Images of the data set, such as 256000; weak: of a GPU.")
    ] = None,
    time: Annotated[
        Literal["step", "epoch"] | None, Option("Compare times of steps or of epochs.")
    ] = None,
    batch_scope: _Scope = "gpu",
    skip: AutoSkip = "auto",
    value: Annotated[
        Literal["speedup", "efficiency", "time", "images", "stages"],
        Option("What the figure shows."),
    ] = "speedup",
    **_: Unpack[SummedRuns],
) -> "Answer":
    """List speedup, efficiency and throughput by number of GPUs, network, batch and method."""
    from tracekit.analysis.studies._study import of_study, per_step

    rows, facts = _studied(runs, table, skip, batch_scope)
    found = studies.scaling(
        rows, mode=mode, images=images, batch_scope=batch_scope, time=time, apart=runs.is_apart
    )
    per = per_step(rows) if found.meta["time"] == "step" else {}
    drawing = {"time": "run time", "images": "images per second", "stages": "stage speedups"}
    figures = {"figure": drawing.get(value, value)}
    return of_study(replace(found.saying(**facts, **per), figures=figures), rows)


_OVERHEAD = Json(
    "overhead",
    run=NO_RUN,
    meta={
        "baseline?": "text: The method that others are compared with.",
        "compared?": "integer: Rows with an overhead.",
        "min_percent?": "number or null: The least overhead.",
        "max_percent?": "number or null: The greatest.",
        "without_partner?": "integer: Rows of one side only.",
        "untimed?": "integer: Rows without times of one kind.",
        "without_method?": "integer: Runs of unknown method.",
        **keys("basis?", "per?", "warnings?", "notes?", "verdicts?", "simulated?"),
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
        "high_percent?": "number or null: Greatest such overhead.",
        "throughput_ratio?": "number or null: Images per second over the baseline's.",
        "name?": "text: Name of a kernel, function or GPU.",
        **columns("calls?"),
        "total_ns?": "integer or null: Sum of durations, ns.",
        **columns("mean_ns?", "min_ns?", "p50_ns?", "max_ns?", "share?"),
        "busy_ns?": "integer or null: Time in which at least one such call runs, ns.",
        "wall_share?": "number or null: Busy time over wall time of the threads.",
        "times?": "integer: Number of occurrences.",
        **columns("time_low_ns?", "time_high_ns?"),
        "baseline_low_ns?": "number or null: Shortest of several runs' times, ns; null of one run.",
        "baseline_high_ns?": "number or null: Longest of several runs' times, ns; null of one run.",
        "from_percent?": "number or null: Lower end of the 95 % interval of overhead_percent; "
        "null where it is not known.",
        "to_percent?": "number or null: Upper end of the interval of overhead_percent.",
        **columns("interval_of?", "steps?"),
        "baseline_steps?": "integer or null: Number of steps of the baseline's runs.",
        **columns("parameters?"),
        "points?": "integer: --crossover: how many sizes there are.",
        "smallest?": "integer: --crossover: smallest size.",
        "largest?": "integer: --crossover: largest size.",
        "crossing?": "number or null: Size at which the overhead is 0.",
        "crossing_from?": "integer or null: Last smaller size where the opposite is shown.",
        "crossing_to?": "integer or null: First larger size where the change of sides is shown.",
        "found?": "one of overtakes, falls behind, always slower, never slower, several times, "
        "slower at one size, not slower at one size: How the methods compare as sizes grow.",
    },
    row_rules={
        "patternProperties": {
            "^([0-9]+|batch unknown)( from| to)?$": one(
                "number or null: With --as-matrix: overhead at this batch, percent, "
                "and the ends of its interval."
            )
        }
    },
)


@question(
    "tracekit overhead --where network=lenet --baseline p2p",
    "tracekit overhead --table times.csv --as-matrix",
    "tracekit overhead before after --api",
    "tracekit overhead --where study=dgx1 --crossover batch",
    figures={
        "figure": "Draw the overheads",
        "heat-map": "Draw the overheads as a map, network by batch",
    },
    writes=_OVERHEAD,
)
def overhead(
    runs: Runs,
    *,
    table: _Table = None,
    baseline: Annotated[str, Option("The method to compare others with.", "METHOD")] = "p2p",
    as_matrix: Annotated[bool, Option("Lay out the table with a column per batch.")] = False,
    api: Annotated[bool, Option("List API calls (CUDA, HIP) by run and method instead.")] = False,
    profiler: Annotated[bool, Option("List the profiler's own overhead instead.")] = False,
    crossover: Annotated[
        Literal["batch", "parameters"] | None,
        Option("Find the batch or size of network at which a method overtakes the baseline."),
    ] = None,
    skip: AutoSkip = "auto",
    **_: Unpack[SummedRuns],
) -> "Answer":
    """List how much slower communication methods are than a baseline, at equal configuration."""
    from tracekit.analysis.studies._api_calls import api_answer, profiler_answer
    from tracekit.analysis.studies._study import of_study, per_step

    if api or profiler:
        if table is not None:
            raise UsageError("--api and --profiler need runs", "leave out --api and --profiler")
        opened = [*runs]
        return (api_answer(opened) if api else profiler_answer(opened)).saying(**runs.facts())
    rows, facts = _studied(runs, table, skip)
    found = studies.overhead(rows, baseline=baseline, apart=runs.is_apart).saying(**facts)
    if crossover is not None:
        return of_study(
            studies.crossovers(found.rows, crossover).saying(baseline=baseline, **facts), rows
        )
    drawn = replace(found, tables={"overheads": found.rows})
    if as_matrix:
        return of_study(
            replace(drawn, rows=studies.overhead_matrix(found.rows), readable=None), rows
        )
    is_of_steps = set(found.rows["time"].drop_nulls()) == {"step"}
    return of_study(drawn.saying(**(per_step(rows) if is_of_steps else {})), rows)


@question(
    "tracekit memory --smi smi.csv",
    "tracekit memory --where network=resnet --what largest-batch --capacity 16GiB",
    figures={"figure": "Draw memory by GPU, or by batch with its line"},
    writes=_MEMORY,
    is_of_latest=True,
)
def memory(
    runs: Runs,
    what: Annotated[
        Literal["use", "table", "extra", "growth", "largest-batch"],
        Option(
            "Memory in use by GPU; a table by batch; the root GPU's extra memory; growth by batch; "
            "the largest batch that fits."
        ),
    ] = "use",
    *,
    smi: Annotated[
        StrPath | None,
        Option(
            "Samples: nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv.",
            "FILE",
            typed=Path | None,
        ),
    ] = None,
    table: Annotated[
        StrPath | None,
        Option(
            "Measured elsewhere: CSV with network, batch, gpu, pre_bytes, training_bytes.",
            "FILE",
            typed=Path | None,
        ),
    ] = None,
    root: Annotated[int, Option("The GPU that gathers gradients.", least=0)] = 0,
    capacity: Annotated[
        int | None, Option("Memory of a GPU, such as 16GiB.", "SIZE", unit="bytes")
    ] = None,
    margin: Annotated[float, Option("Part of the capacity to keep free, 0 to 1.")] = 0.1,
    **_: Unpack[ChosenRuns],
) -> "Answer":
    """List the memory in use on each GPU before and during training, or a table from it.

    The data are recorded allocations (`nsys profile --cuda-memory-usage=true`), samples of
    nvidia-smi, or both. Without RUN, --where chooses runs by their labels; without both, the run
    that was ingested last is used.
    """
    from tracekit.analysis.studies._memory_points import memory_rows

    points, meta = _points(runs, smi, table)
    if "peak_of" in meta and what != "use":
        meta["peak_of"] = f"GPU {root} in training"
    return model.Answer(
        rows=memory_rows(what, points, root, capacity, margin),
        meta=meta,
        title=f"memory · {what}",
        tables={"points": points},
        empty="no memory was recorded"
        if points.is_empty()
        else f"no run has a known batch and known memory of GPU {root} in training",
        command="memory",
        figures={"figure": f"memory {_FIGURES.get(what, 'fit')}"},
        source={"root": root, "capacity": capacity},
    )


def _points(
    runs: Runs, smi: StrPath | None, table: StrPath | None
) -> "tuple[pl.DataFrame, dict[str, Any]]":
    """Return one row of memory use per GPU, and meta entries on the sources of the values."""
    from tracekit.analysis.studies._memory_points import memory_of

    if table is not None:
        if runs.is_chosen or smi is not None:
            raise UsageError("`memory` takes runs or a table", "give either, not both")
        return studies.read_memory_table(Path(table)), {"table": str(table)}
    points, metas = memory_of(runs, None if smi is None else runs.read_smi(smi))
    warnings = [f"{name}: {text}" for name, meta in metas.items()
            for text in (*meta["missing"], *meta["warnings"])]  # fmt: skip
    facts = {"runs": list(metas), **runs.facts(), "warnings": warnings, "peak_of": "each GPU"}
    return points, facts


@first_line("memory")
def _most_in_training(rows: "pl.DataFrame", _: "Mapping[str, Any]") -> str | None:
    from tracekit.analysis.facts import largest

    most = largest(rows, "training_bytes", "gpu")
    if most is None:
        return None
    where = [most["network"], f"batch {most['batch']}" if most["batch"] else None]
    text = ", ".join(printable(str(each)) for each in [*where, f"GPU {most['gpu']}"] if each)
    return f"Most in training: {size_text(most['training_bytes'])} ({text})"
