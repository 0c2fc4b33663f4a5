"""Studies: a table with one row per run, from which tables over many runs are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import polars.selectors as cs

from tracekit.analysis.calls import collective_calls, unrecorded_ranks
from tracekit.analysis.facts import HOST, largest, unknown_passes, work_of
from tracekit.analysis.statistics import SHOW_DRIFT, SLOW, Skip, left_out_notes
from tracekit.analysis.step_sums import Measured, per_iteration
from tracekit.analysis.studies._epochs import (
    MOST_GPUS,
    BatchScope,
    batch_label,
    images_per_step,
    label_number,
    of_epochs,
    parameters_label,
    study_iterations,
)
from tracekit.analysis.studies._ratios import step_interval
from tracekit.analysis.traffic import AMONG_GPUS, copy_transfers
from tracekit.engine import Work
from tracekit.errors import TracekitError, UsageError
from tracekit.model import Answer, Trace
from tracekit.support.wording import duration, first_line, printable

_LENGTH, _PART = pl.col("length_ns"), pl.col("part")
# Nothing is above FP and BP: what is exposed of them is the time in which either is busy.
_PARTS = {
    "fp_bp_ns": _LENGTH.filter(_PART.is_in(["FP", "BP"])),
    "wu_ns": pl.col("busy_ns").filter(_PART == "WU"),
    "wu_exposed_ns": _LENGTH.filter(_PART == "WU"),
    "io_exposed_ns": _LENGTH.filter(_PART == "IO"),
    "me_exposed_ns": _LENGTH.filter(_PART == "ME"),
    "other_exposed_ns": _LENGTH.filter(_PART == "OTHER"),
    "idle_ns": _LENGTH.filter(_PART == "idle"),
    "between_steps_ns": _LENGTH.filter(_PART == "between_steps"),
}
_IDLE = ("idle_ns", "between_steps_ns")
_SUMS = [f"{name.removesuffix('_ns')}_total_ns" for name in ("step_ns", *_PARTS)]
_QUANTILES = {"step_p5_ns": 0.05, "step_p50_ns": 0.5, "step_p95_ns": 0.95}

STUDY = pl.Schema(
    {
        "run": pl.String,
        "network": pl.String,
        "batch": pl.Int64,
        "gpus": pl.Int64,
        "method": pl.String,
        "method_source": pl.String,
        "scaling": pl.String,
        "parameters": pl.Int64,
        "basis": pl.String,
        "iterations": pl.Int64,
        "skipped": pl.Int64,
        "window_ns": pl.Float64,
        "step_ns": pl.Float64,
        "step_low_ns": pl.Float64,
        "step_high_ns": pl.Float64,
        "step_se_ns": pl.Float64,
        "step_sd_ns": pl.Float64,
        "step_effective": pl.Float64,
        "slow_every": pl.Int64,
        **dict.fromkeys(_QUANTILES, pl.Float64),
        "epoch_ns": pl.Float64,
        **dict.fromkeys([name for name in _PARTS if name not in _IDLE], pl.Float64),
        "wu_residual_ns": pl.Float64,
        **dict.fromkeys(_IDLE, pl.Float64),
        "bytes_between_gpus": pl.Float64,
        "bytes_evidence": pl.String,
        "data_parallel": pl.Boolean,
        "images_per_s": pl.Float64,
        "devices": pl.Int64,
        **dict.fromkeys(_SUMS, pl.Int64),
    }
)
"""Columns of a study, described in `study_row`."""

_FEW = 4
"""Largest number of runs that are listed by name."""
_BASES = {"gpu": "GPUs", "host": HOST}
SCALING_MODES = ("strong", "weak")
"""Values of the label ``scaling``."""

_GATHERED = ("gather", "scatter")
_AROUND = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


def study(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the table of a study, from rows of `study_row`.

    Returns
    -------
    The columns `STUDY`, sorted by network, method, batch and number of GPUs.
    """
    table = pl.DataFrame(list(rows), schema=STUDY, orient="row")
    return table.sort("network", "method", "batch", "gpus", "run", nulls_last=True)


def study_row(
    trace: Trace,
    labels: Mapping[str, str],
    name: str,
    *,
    skip: Skip = "auto",
    batch_scope: BatchScope = "gpu",
) -> dict[str, Any]:
    """Return the row of a run in a study.

    Steps are those of ``docs/breakdown.md``. Lengths are means over steps and over devices (a GPU
    counts once per process that runs steps on it). Devices and processes with fewer than half the
    steps of another one are left out, and so are skipped steps and steps that some process lacks.

    Parameters
    ----------
    labels
        Labels of the run, label -> value. Used are ``network``, ``batch``, ``gpus``, ``method``,
        ``parameters`` (such as ``60M``), and ``scaling`` (``strong`` or ``weak`` for a run that
        belongs to that kind of scaling only).
    name
        Name of the run.
    skip
        Number of iterations to leave out at the beginning.
    batch_scope
        Whether ``batch`` is the number of images per GPU or of all GPUs.

    Returns
    -------
    The columns `STUDY`, described in `questions.py` (function `study`). ``gpus`` is the label, else
    the number of devices that ran an op, or of ranks of the largest NCCL communicator if greater;
    null if a single device exchanges with an unknown number of peers, or if a rank between recorded
    ranks is missing. ``method`` is the label, else inferred from the ops: ``nccl`` (its
    kernels), ``collective`` (kernels of other libraries), ``p2p``, ``staged`` or ``mpi`` (copies
    between GPUs), ``none``. ``step_low_ns`` etc. are Student's interval of the mean step, allowing
    for dependent steps (`long_run`); null for fewer than 5 steps, or if step times drift. The
    exposed time ``fp_bp_ns`` of forward and backward pass, the other exposed times, ``idle_ns``
    (idle while the host is in an iteration) and ``between_steps_ns`` (idle while it is in none) add
    up to ``step_ns``. Of a collective, each recorded participant adds to ``bytes_between_gpus`` an
    equal share of the bytes that usual algorithms move in total, 2(n-1)S for an all-reduce.

    Raises
    ------
    UsageError
        If a label is invalid, or more iterations are skipped than the run has.
    MissingDataError
        If the run has neither GPU work nor NVTX ranges that are stages.
    """
    read = _read_labels(labels, name)
    try:
        measured = _measured(trace, skip)
        moved = _moved(trace, measured.get("skipped", 0))
    except TracekitError as error:
        raise type(error)(f"run {name!r}: {error.what}", error.hint) from error
    # A label may know what a trace does not show.
    stated = {key: value for key, value in read.items() if value is not None}
    source = "label" if "method" in stated else "recorded"
    row = {**measured, **moved, **stated, "run": name, "method_source": source}
    if moved["gpus"] == 1 < row["gpus"]:  # what the others exchange was not recorded
        row |= dict.fromkeys(("bytes_between_gpus", "bytes_evidence"))
    if "batch" in row and row["step_ns"] and (row["gpus"] or batch_scope != "gpu"):
        images = images_per_step(row["batch"], row["gpus"], batch_scope)
        row["images_per_s"] = images / row["step_ns"] * 1e9
    return {column: row.get(column) for column in STUDY}


def study_notes(study: pl.DataFrame) -> list[str]:
    """Return notes on a study's runs: steps left out, regularly slow ones, intervals in doubt."""
    slow = study.drop_nulls("slow_every").group_by("slow_every").agg("run").sort("slow_every")
    text = ", ".join(
        f"every {every} of {names_or_number(runs)}" for every, runs in slow.iter_rows()
    )
    steps, effective = pl.col("iterations"), pl.col("step_effective")
    may_drift = ((steps < SHOW_DRIFT) | (effective < SLOW * steps)) & effective.is_not_null()
    doubted = study.filter(may_drift)["run"].to_list()
    return [
        *left_out_notes(dict(study.select("run", pl.col("skipped").fill_null(0)).iter_rows())),
        *([f"slow steps come regularly: {text}; means are as certain as those of either kind"]
          if text else []),
        *(["intervals hold if no drift, and no slow steps rarer than the recorded ones "
           f"(fewer than {SHOW_DRIFT} steps, or slow variation): "
           + names_or_number(doubted)] if doubted else []),
    ]  # fmt: skip


def names_or_number(runs: Sequence[str]) -> str:
    """Return the names of the runs as text, or their number if there are many."""
    return ", ".join(runs) if 0 < len(runs) <= _FEW else f"{len(runs):,} runs"


def basis_of(study: pl.DataFrame) -> dict[str, str]:
    """Return the meta ``basis`` of a study's times (GPU or host); empty if unknown.

    Raises
    ------
    UsageError
        If a study has both times of GPUs and times of the host, which cannot be compared.
    """
    found = study.drop_nulls("basis")
    bases = found["basis"].unique().to_list()
    if len(bases) > 1:
        names = found.filter(pl.col("basis") == "host")["run"].to_list()
        raise UsageError(
            f"{names[0]!r} has no GPU work, and others have",
            "choose runs that can be compared with --where",
        )
    return {"basis": _BASES[bases[0]]} if bases else {}


def is_unlabelled() -> pl.Expr:
    """Select recorded runs without a label ``network`` or ``batch``: they may be any program.

    Times from a table (``basis`` is null) are not selected: their columns identify the program.
    """
    lacking = pl.any_horizontal(pl.col("network", "batch").is_null())
    return lacking & pl.col("basis").is_not_null()


def is_told_apart(*, apart: bool = False) -> pl.Expr:
    """Select the runs that may be pooled: those that cannot be mistaken for another program.

    These have labels ``network`` and ``batch``, or known labels that no other run has. With
    `apart`, all runs are selected.
    """
    if apart:
        return pl.lit(value=True)
    alike = pl.len().over("network", "batch", "gpus", "method", "scaling") > 1
    unnamed = pl.col("network").is_null() & (pl.len().over("network") > 1)
    return ~(is_unlabelled() & (alike | unnamed))


def pool(*, apart: bool) -> pl.Expr:
    """Return the grouping key ``pool``: equal for all runs or, with `apart`, different for each.

    Runs of equal configuration and ``pool`` form one row. Without `apart` ``pool`` is null.
    """
    number = pl.int_range(pl.len(), dtype=pl.Int64) if apart else pl.lit(None, pl.Int64)
    return number.alias("pool")


def name_of_one() -> pl.Expr:
    """Return an aggregation: the run's name if it is the only row of its group, else null."""
    return pl.when(pl.len() == 1).then(pl.col("run").first()).alias("run")


_ME = pl.col("me_exposed_ns")


def pooling_warnings(study: pl.DataFrame, *, apart: bool = False) -> list[str]:
    """Return warnings: runs that are left out since they may be other programs, and evaluation.

    With `apart`, no run is left out (see `is_told_apart`). The second warning names a run whose
    steps contain evaluation, if the steps of other runs contain none.
    """
    runs = study.filter(~is_told_apart(apart=apart))["run"].to_list()
    why = (
        "they lack labels network or batch that would show whether they are of one program; if "
        "they are, name them after the command"
    )
    left_out = [f"left out: {', '.join(runs)}; {why}"] if runs else []
    some, none = (study.filter(each)["run"].drop_nulls() for each in (_ME > 0, _ME == 0))
    if some.is_empty() or none.is_empty():
        return left_out
    evaluate = (
        f"steps of {some.len()} of {study.height} runs (such as {some[0]}) contain evaluation, "
        f"those of {none.len()} (such as {none[0]}) do not: they are compared all the same"
    )
    return [*left_out, evaluate]


def without_empty(rows: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """Drop each column in `names` that contains only nulls."""
    return rows.drop(name for name in names if rows[name].null_count() == rows.height)


STEP_TIMES = ("step_ns", "step_low_ns", "step_high_ns", *_PARTS)
"""Columns that are times of a step."""


def study_stages(study: pl.DataFrame, *, apart: bool = False) -> pl.DataFrame:
    """Return the parts (stages, idle time) of a step by configuration.

    Parameters
    ----------
    study
        The table of a study.
    apart
        Whether no runs are pooled; runs without a label ``network`` or ``batch`` never are.

    Returns
    -------
    ``network, batch, gpus, method, run, runs, low_ns, high_ns, stage, exposed_ns, busy_ns``:
    medians over the runs of a configuration; ``low_ns, high_ns`` are the shortest and longest of
    their mean steps (for one run the interval of its mean step, if known); ``run`` is null if
    several runs are pooled. Stages are ``FP+BP``, ``WU``, ``IO``, ``ME``, ``OTHER``, ``idle`` and
    ``between_steps`` (`study_row`); exposed times of a run add up to its ``step_ns``. ``busy_ns``
    is null except for ``FP+BP`` and ``WU``. Unknown parts have no row.
    """
    keys = ["network", "batch", "gpus", "method"]
    exposed = {
        "FP+BP": "fp_bp_ns",
        **{stage: f"{stage.lower()}_exposed_ns" for stage in ("WU", "IO", "ME", "OTHER")},
        "idle": "idle_ns",
        "between_steps": "between_steps_ns",
    }
    alone = pl.lit(apart) | is_unlabelled() | (pl.len().over(keys) == 1)
    keys.append("run")
    medians = (
        study.with_columns(run=pl.when(alone).then("run"))
        .group_by(keys, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("runs"),
            pl.col("wu_ns", *exposed.values()).median(),
            low_ns=_end("low", pl.col("step_ns").min()),
            high_ns=_end("high", pl.col("step_ns").max()),
        )
    )
    busy = {"FP+BP": "fp_bp_ns", "WU": "wu_ns"}
    each = [
        medians.select(
            *keys, "runs", "low_ns", "high_ns", stage=pl.lit(stage), exposed_ns=name,
            busy_ns=pl.col(busy[stage]) if stage in busy else pl.lit(None, pl.Float64),
            turn=pl.int_range(pl.len()),
        )
        for stage, name in exposed.items()
    ]  # fmt: skip
    rows = pl.concat(each).sort("turn", maintain_order=True).drop("turn")
    return rows.filter(pl.any_horizontal(pl.col("exposed_ns", "busy_ns").is_not_null()))


def _end(name: str, of_several: pl.Expr) -> pl.Expr:
    """Return an end (`name`: low or high) of a step's interval; `of_several` if several runs."""
    of_one = pl.when(pl.len() == 1).then(pl.col(f"step_{name}_ns").first())
    return pl.coalesce(of_one, of_several)


# -- labels ------------------------------------------------------------------------------------


_SEVERAL = 2
"""Least number of steps for percentiles other than the median."""


def _read_labels(labels: Mapping[str, str], name: str) -> dict[str, Any]:
    texts = {key: labels.get(key, "").strip() or None for key in ("network", "method", "scaling")}
    if texts["scaling"] not in (None, *SCALING_MODES):
        raise UsageError(
            f"run {name!r} has the label scaling={texts['scaling']}",
            f"it is {' or '.join(SCALING_MODES)}, or left out",
        )
    return {
        **texts,
        "batch": batch_label(labels, name),
        "gpus": label_number(labels, "gpus", MOST_GPUS, name),
        "parameters": parameters_label(labels, name),
    }


def _active(trace: Trace) -> int:
    return int(trace["ops"].select(pl.col("device").n_unique()).collect().item())


# -- time --------------------------------------------------------------------------------------


def _measured(trace: Trace, skip: Skip) -> dict[str, Any]:
    """Return number and mean length of steps, mean stage lengths, and whether GPUs were timed."""
    work = work_of(trace)
    return {"basis": "host" if work.is_host else "gpu", **_lengths(work, trace, skip)}


def _lengths(work: Work, trace: Trace, skip: Skip) -> dict[str, Any]:
    if trace["iterations"].head(1).collect().is_empty() and skip in (0, "auto"):
        return _without_steps(work.trace)
    found = per_iteration(trace, ("stage",), skip=skip)
    if not found.iterations:  # no launch of what the devices did is known, or none is whole
        return _without_steps(work.trace)
    known = work.is_host or unknown_passes(trace) is None
    residual = {} if known else {"wu_residual_ns": None}
    return _means(found) | _percentiles(found) | step_interval(found) | residual


def _without_steps(trace: Trace) -> dict[str, Any]:
    edges = trace["ops"].group_by("device").agg(length=pl.col("end").max() - pl.col("start").min())
    window = edges.select(pl.col("length").mean()).collect().item()
    return {"iterations": 0, "window_ns": window, "step_ns": None}


def _means(found: Measured) -> dict[str, Any]:
    steps, devices = len(found.iterations), found.devices
    parts = found.parts.drop_nulls("iteration")
    sums = parts.select(step_ns=_LENGTH.sum(), **{name: p.sum() for name, p in _PARTS.items()})
    totals = sums.row(0, named=True)
    means = {name: total / (steps * devices) for name, total in totals.items()}
    return {
        **means,
        "iterations": steps,
        "skipped": found.skipped,
        "devices": devices,
        "window_ns": totals["step_ns"] / devices,
        "wu_residual_ns": (totals["step_ns"] - totals["fp_bp_ns"]) / (steps * devices),
        **dict(zip(_SUMS, totals.values(), strict=True)),
    }


def _percentiles(found: Measured) -> dict[str, Any]:
    """Return percentiles of the lengths of steps; a single step gives only the median."""
    steps = found.parts.drop_nulls("iteration").group_by("iteration").agg(_LENGTH.sum())
    known = [name for name in _QUANTILES if name == "step_p50_ns" or steps.height >= _SEVERAL]
    return dict.fromkeys(_QUANTILES) | steps.select(
        (_LENGTH.quantile(_QUANTILES[name], "nearest") / found.devices).alias(name)
        for name in known
    ).row(0, named=True)


# -- communication -----------------------------------------------------------------------------


def _moved(trace: Trace, skip: int) -> dict[str, Any]:
    """Return method, number of GPUs, bytes between GPUs per step after `skip`, and evidence."""
    copies = copy_transfers(trace).filter(
        pl.col("method").is_in(AMONG_GPUS),
        (pl.col("method") == "p2p") | (pl.col("src_device") != pl.col("dst_device")),
    )
    calls = collective_calls(trace).drop_nulls("op")
    method = _method(trace, copies, calls)
    # A report may be of one rank of many, and who exchanges has peers.
    ranks = calls.select(pl.col("ranks").max()).item() or 0
    gpus = max(_active(trace), ranks)
    lacks = not ranks and (bool(trace.once(unrecorded_ranks)) or (gpus == 1 and method != "none"))
    return {"method": method, "gpus": None if lacks else gpus or None} | _bytes(
        trace, copies, calls, skip, method, gpus
    )


def _method(trace: Trace, copies: pl.DataFrame, calls: pl.DataFrame) -> str:
    if calls["name"].str.contains("(?i)nccl").any():
        return "nccl"
    if calls.height:
        return "collective"
    used = set(copies["method"].cast(pl.String).unique())
    if _messages(trace):
        used.add("mpi")
    return next((method for method in ("p2p", "staged", "mpi") if method in used), "none")


def _messages(trace: Trace) -> bool:
    """Test whether the run has MPI calls that move data."""
    moving = (pl.col("library") == "mpi") & (pl.col("bytes") > 0)
    return not trace["host"].filter(moving).head(1).collect().is_empty()


def _bytes(
    trace: Trace, copies: pl.DataFrame, calls: pl.DataFrame, skip: int, method: str, gpus: int
) -> dict[str, Any]:
    """Return the bytes between GPUs in a step after the first `skip`, and their evidence.

    They are summed over processes; `method` is how GPUs communicate. ``data_parallel`` is whether
    they are mostly those of weight updates, which no group of fewer than all `gpus` exchanges;
    where bytes are unknown, whether all are.
    """
    iterations = trace.read("iterations").sort("process", "start")
    kept = iterations.filter(pl.int_range(pl.len()).over("process") >= skip).select(
        "process", "iteration", steps=pl.len().over("process")
    )
    is_update, of_all = pl.col("stage") == "WU", pl.col("ranks").fill_null(gpus) >= gpus
    modelled = calls.select(
        "process", "iteration", _sent().alias("bytes"), modelled=pl.lit(value=True),
        shared=is_update & of_all,
    )  # fmt: skip
    measured = copies.select(
        "process", "iteration", "bytes", modelled=pl.col("evidence") == "modelled", shared=is_update
    )
    moved = pl.concat([modelled, measured], how="vertical_relaxed")
    inside = moved.join(kept, on=["process", "iteration"])
    if inside.is_empty():
        alone = method == "none" and kept.height and _active(trace) == 1
        return {"bytes_between_gpus": 0.0, "bytes_evidence": "measured"} if alone else {}
    # Of what MPI sends out of host memory it is not known which GPU it is for.
    if inside["bytes"].null_count() or method == "mpi":
        return {"data_parallel": inside["shared"].all()}
    each = pl.col("bytes") / pl.col("steps")
    total, shared = inside.select(each.sum(), shared=each.filter("shared").sum()).row(0)
    evidence = "modelled" if inside["modelled"].any() else "measured"
    return {
        "bytes_between_gpus": total, "bytes_evidence": evidence, "data_parallel": 2 * shared > total
    }  # fmt: skip


def _sent() -> pl.Expr:
    """Return an expression: the mean bytes that a participant of a collective sends.

    With n ranks and S bytes, as nccl-tests counts them (``doc/PERFORMANCE.md``), an all-reduce
    moves 2(n-1)S in total, over rings or a tree; gather and scatter move (n-1)S/n, other
    collectives (n-1)S.
    """
    ranks, size = pl.col("ranks"), pl.col("bytes")
    around = (ranks - 1) / ranks
    collective = pl.col("collective").cast(pl.String)
    return (
        pl.when(collective == "all_reduce").then(2 * around * size)
        .when(collective.is_in(_AROUND)).then(around * size)
        .when(collective.is_in(_GATHERED)).then(around * size / ranks)
        .when(collective == "send_recv").then(pl.col("sent_bytes"))
        .when(collective == "barrier").then(pl.lit(0))
    )  # fmt: skip


# -- answers -------------------------------------------------------------------------------------


def runs_answer(
    rows: pl.DataFrame,
    options: Mapping[str, Any],
    *,
    images: int | None,
    batch_scope: BatchScope,
    apart: bool,
) -> Answer:
    """Return the table of runs of a study with its plot; `options` are entries for ``meta``."""
    drawn = rows
    if images is not None:
        epoch = pl.col("step_ns") * study_iterations(images, batch_scope)
        rows = rows.with_columns(epoch_ns=pl.coalesce("epoch_ns", epoch))
        drawn = of_epochs(rows, images, batch_scope, STEP_TIMES)
    readable = rows.drop(
        "devices", "step_se_ns", "step_sd_ns", "step_effective", "slow_every", "data_parallel",
        cs.ends_with("_total_ns"),
    )  # fmt: skip
    optional = ("step_low_ns", "step_high_ns", "parameters")
    readable = readable.drop(name for name in optional if not rows[name].count())
    if not rows["skipped"].sum():
        readable = readable.drop("skipped")
    if not rows["step_ns"].has_nulls():  # the window is that of all steps, and no time per step
        readable = readable.drop("window_ns")
    return Answer(
        rows=rows,
        meta={
            "runs": rows.height,
            **options,
            **per_step(rows),
            **({} if images is None else {"images": images}),
        },
        title="study",
        tables={"stages": study_stages(drawn, apart=apart)},
        readable=readable,
        empty="no runs",
        command="study",
        figures={"figure": "stages"},
    )


def of_study(answer: Answer, study: pl.DataFrame) -> Answer:
    """Add to an answer the names of its runs and whether times are of host or GPU, for figures."""
    some = ", some of it simulated" if "simulated" in answer.meta else ""
    return replace(answer, source=_of_runs(study) + some)


def per_step(study: pl.DataFrame) -> dict[str, str]:
    """Return the meta ``per``: ``step/GPU`` or ``step/process``; empty without step times."""
    if not study["step_ns"].count():
        return {}
    return {"per": "step/process" if "host" in study["basis"] else "step/GPU"}


def _of_runs(study: pl.DataFrame) -> str:
    """Return a text: names (or number) of the runs, and whether the host or GPUs were timed."""
    names = study["run"].drop_nulls().to_list()
    text = names_or_number(names) if names else f"{study.height:,} runs"
    known = set(study["basis"].drop_nulls())
    measured = {"host": ", measured on the host", "gpu": ", measured on GPUs"}
    return text + "".join(measured[basis] for basis in sorted(known))


@first_line("study")
def _first_line(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    most = largest(rows, "step_ns", "run")
    if most is None:
        return None
    least = rows.drop_nulls(["run", "step_ns"]).sort("step_ns").row(0, named=True)
    ends = [
        f"that of {printable(each['run'])}, {duration(each['step_ns'])}" for each in (least, most)
    ]
    ratio = "" if not least["step_ns"] else f" ({most['step_ns'] / least['step_ns']:.3g} times)"
    if least == most:
        return f"A step of {printable(most['run'])} takes {duration(most['step_ns'])} in the mean"
    return f"The shortest mean step is {ends[0]}; the longest is {ends[1]}{ratio}"
