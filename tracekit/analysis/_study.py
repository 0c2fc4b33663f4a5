"""Studies: one row per run, with what tables over many runs are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from tracekit.analysis._collective_calls import collective_calls
from tracekit.analysis._epochs import MOST_GPUS, BatchScope, check_scope, images_per_step
from tracekit.analysis._labels import batch_label, label_number
from tracekit.analysis._pieces import hand_out
from tracekit.analysis._tallies import StageTally
from tracekit.analysis._transfers import AMONG_GPUS, copy_transfers
from tracekit.analysis._work import HOST, Work, work_of
from tracekit.errors import TracekitError, UsageError
from tracekit.model import Trace

_OWNER = ["process", "device"]
_EXPOSED, _BUSY, _STAGE = pl.col("exposed_ns"), pl.col("busy_ns"), pl.col("stage")
# Nothing is above FP and BP: what is exposed of them is the time in which either is busy.
_PARTS = {
    "fp_bp_ns": _EXPOSED.filter(_STAGE.is_in(["FP", "BP"])),
    "wu_ns": _BUSY.filter(_STAGE == "WU"),
    "wu_exposed_ns": _EXPOSED.filter(_STAGE == "WU"),
    "io_exposed_ns": _EXPOSED.filter(_STAGE == "IO"),
    "me_exposed_ns": _EXPOSED.filter(_STAGE == "ME"),
    "other_exposed_ns": _EXPOSED.filter(_STAGE == "OTHER"),
}
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
        "basis": pl.String,
        "iterations": pl.Int64,
        "window_ns": pl.Float64,
        "step_ns": pl.Float64,
        **dict.fromkeys(_QUANTILES, pl.Float64),
        "epoch_ns": pl.Float64,
        **dict.fromkeys(_PARTS, pl.Float64),
        "wu_residual_ns": pl.Float64,
        "idle_ns": pl.Float64,
        "bytes_between_gpus": pl.Float64,
        "bytes_evidence": pl.String,
        "images_per_s": pl.Float64,
    }
)
"""Columns of a study; `study_row` says what they mean."""

_BASES = {"gpu": "GPUs", "host": HOST}
SCALING_MODES = ("strong", "weak")
"""What the label ``scaling`` can be."""

_GATHERED = ("gather", "scatter")
_AROUND = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


def study(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the table of a study, from rows of `study_row`.

    Returns
    -------
    The columns `STUDY`, by network, method, batch and number of GPUs.
    """
    table = pl.DataFrame(list(rows), schema=STUDY, orient="row")
    return table.sort("network", "method", "batch", "gpus", "run", nulls_last=True)


def study_row(
    trace: Trace,
    labels: Mapping[str, str],
    name: str,
    *,
    skip: int = 0,
    batch_scope: BatchScope = "gpu",
) -> dict[str, Any]:
    """Return the row of a run in a study.

    A step lasts, on a device, from where its iteration begins there (``docs/breakdown.md``) to
    where the next one does, the last one to where it ends. All lengths are means: over the steps
    that are kept, then over devices, and over the processes that run steps there. A device or
    process with less than half as many steps as another one counts in none.

    Parameters
    ----------
    trace
        The run.
    labels
        Its labels. Read are ``network``, ``batch``, ``gpus``, ``method``, and ``scaling``, which is
        ``strong`` or ``weak`` for a run that is part of scaling of that kind only.
    name
        Its name.
    skip
        How many iterations to leave out at the beginning.
    batch_scope
        Whether ``batch`` counts the images of each GPU or of all.

    Returns
    -------
    ======================  =======================================================================
    ``run, network``        name of the run, and of the network; null without a label
    ``batch``               label
    ``gpus``                label, else the number of devices that ran an op, or the ranks of the
                            largest NCCL communicator where that is known to have more
    ``method``              label, else what was recorded: ``nccl`` (its kernels), ``collective``
                            (kernels of other collectives), ``p2p``, ``staged`` or ``mpi`` (copies
                            between GPUs), ``none``
    ``method_source``       ``label`` or ``recorded``
    ``scaling``             label
    ``basis``               ``gpu``, or ``host``: the run holds no GPU work, and its times are those
                            of NVTX ranges on the host, processes in place of devices
    ``iterations``          number of steps; 0 where none is known
    ``window_ns``           length of all steps; without steps, from first op to last one
    ``step_ns``             window_ns / iterations; this and what follows is null without steps
    ``step_p*_ns``          percentiles over steps, each the mean over devices
    ``epoch_ns``            null; times of epochs are measured elsewhere (`read_times`)
    ``fp_bp_ns``            busy time of FP or BP in a step: the union of both
    ``wu_ns``               busy time of WU in a step
    ``*_exposed_ns``        exposed time of WU, IO, ME, OTHER in a step
    ``wu_residual_ns``      step_ns - fp_bp_ns
    ``idle_ns``             step_ns - (fp_bp_ns + all exposed times)
    ``bytes_between_gpus``  bytes that recorded processes move to other GPUs in a step; null where
                            any of it is unknown. Of a collective each participant moves its share
                            of what the usual algorithms move in all, 2(n-1)S for an all-reduce
    ``bytes_evidence``      ``measured``, or ``modelled`` where it is so of any of them
    ``images_per_s``        images of a step (batch x gpus, or batch if global) / step_ns
    ======================  =======================================================================

    Raises
    ------
    UsageError
        If a label is not what it has to be, or more iterations are to be skipped than there are.
    MissingDataError
        If the run has neither GPU work nor NVTX ranges that are stages.
    """
    check_scope(batch_scope)
    read = _read_labels(labels, name)
    try:
        measured = _measured(trace, skip)
        moved = _moved(trace, skip)
    except TracekitError as error:
        raise type(error)(f"run {name!r}: {error.what}", error.hint) from error
    # A label may know what a trace does not show.
    stated = {key: value for key, value in read.items() if value is not None}
    source = "label" if "method" in stated else "recorded"
    row = {**measured, **moved, **stated}
    row |= {"run": name, "method_source": source}
    if "batch" in row and row["step_ns"]:
        images = images_per_step(row["batch"], row["gpus"], batch_scope)
        row["images_per_s"] = images / row["step_ns"] * 1e9
    return {column: row.get(column) for column in STUDY}


def basis_of(study: pl.DataFrame) -> dict[str, str]:
    """Return ``basis``, in words: what the times of a study are of; nothing if that is not known.

    Raises
    ------
    UsageError
        If a study has times of GPUs and times of the host, which are not set against each other.
    """
    found = study.drop_nulls("basis")
    bases = found["basis"].unique().to_list()
    if len(bases) > 1:
        names = found.filter(pl.col("basis") == "host")["run"].to_list()
        raise UsageError(
            f"{names[0]!r} holds no GPU work, and others do",
            "choose runs that can be compared with --where",
        )
    return {"basis": _BASES[bases[0]]} if bases else {}


def study_stages(study: pl.DataFrame) -> pl.DataFrame:
    """Return what the time of a step is made of, by configuration.

    Parameters
    ----------
    study
        The table of a study.

    Returns
    -------
    ``network, batch, gpus, method, runs, stage, exposed_ns, busy_ns``: medians over the runs of a
    configuration. Stages are ``FP+BP``, ``WU``, ``IO``, ``ME``, ``OTHER`` and ``idle``; exposed
    times of a run add up to its ``step_ns``. ``busy_ns`` is null but for ``FP+BP`` and ``WU``. What
    is not known has no row.
    """
    keys = ["network", "batch", "gpus", "method"]
    exposed = {
        "FP+BP": "fp_bp_ns",
        **{stage: f"{stage.lower()}_exposed_ns" for stage in ("WU", "IO", "ME", "OTHER")},
        "idle": "idle_ns",
    }
    medians = study.group_by(keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("runs"), pl.col("wu_ns", *exposed.values()).median()
    )
    busy = {"FP+BP": "fp_bp_ns", "WU": "wu_ns"}
    each = [
        medians.select(
            *keys, "runs", stage=pl.lit(stage), exposed_ns=name,
            busy_ns=pl.col(busy[stage]) if stage in busy else pl.lit(None, pl.Float64),
            turn=pl.int_range(pl.len()),
        )
        for stage, name in exposed.items()
    ]  # fmt: skip
    rows = pl.concat(each).sort("turn", maintain_order=True).drop("turn")
    return rows.filter(pl.any_horizontal(pl.col("exposed_ns", "busy_ns").is_not_null()))


# -- labels ------------------------------------------------------------------------------------


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
    }


def _active(trace: Trace) -> int:
    return int(trace["ops"].select(pl.col("device").n_unique()).collect().item())


# -- time --------------------------------------------------------------------------------------


def _measured(trace: Trace, skip: int) -> dict[str, Any]:
    """Return the number of steps and the means of lengths."""
    work = work_of(trace)
    return {"basis": "host" if work.is_host else "gpu", **_lengths(work, skip)}


def _lengths(work: Work, skip: int) -> dict[str, Any]:
    trace = work.trace
    if trace["iterations"].head(1).collect().is_empty() and not skip:
        return _without_steps(trace)
    tally = StageTally(work.counting(is_cut=True))
    windows = hand_out(trace, [tally], skip=skip, per_iteration=True, cutter=work.cutter)
    inside = _inside(windows, trace.read("iterations"))
    if inside.is_empty():  # no launch of what the devices did is known
        return _without_steps(trace)
    owners = inside.group_by(_OWNER).agg(
        window_ns=pl.col("length").sum(),
        iterations=pl.col("position").max() - pl.col("position").min() + 1,
    )
    parts = (
        tally.stages()
        .join(inside.select("window", *_OWNER), on="window")
        .group_by(_OWNER)
        .agg(busy_ns=_EXPOSED.sum(), **{name: part.sum() for name, part in _PARTS.items()})
    )
    lengths = owners.join(parts, on=_OWNER, how="left").with_columns(
        pl.col("busy_ns", *_PARTS).fill_null(0)
    )
    return _means(lengths) | _percentiles(inside)


def _without_steps(trace: Trace) -> dict[str, Any]:
    edges = trace["ops"].group_by("device").agg(length=pl.col("end").max() - pl.col("start").min())
    window = edges.select(pl.col("length").mean()).collect().item()
    return {"iterations": 0, "window_ns": window, "step_ns": None}


def _inside(windows: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the windows from the first iteration on each device to the last one there.

    Time between two iterations is part of the first one's step: ``position`` is the step's, in
    order of its process's iterations. Where less than half as many steps ran as elsewhere, a stray
    context or a bystander did, which is left out.
    """
    positions = iterations.sort("process", "start").select(
        "process", "iteration", position=pl.int_range(pl.len()).over("process")
    )
    is_step = pl.col("iteration").is_not_null()
    steps = is_step.sum().over(_OWNER)
    return (
        windows.join(positions, on=["process", "iteration"], how="left")
        .sort(*_OWNER, "start", "window")
        .with_columns(turn=is_step.cum_sum().over(_OWNER))
        .filter(
            (pl.col("turn") > 0) & (is_step | (pl.col("turn") < steps)), 2 * steps >= steps.max()
        )
        .with_columns(
            pl.col("position").forward_fill().over(_OWNER), length=pl.col("end") - pl.col("start")
        )
    )


def _means(lengths: pl.DataFrame) -> dict[str, Any]:
    per_step = [pl.col("window_ns", "busy_ns", *_PARTS) / pl.col("iterations")]
    # A sum of floats depends on their order.
    means = lengths.sort(_OWNER).select(per_step).mean().row(0, named=True)
    step, busy = means.pop("window_ns"), means.pop("busy_ns")
    return {
        **means,
        "iterations": lengths["iterations"].max(),
        "window_ns": lengths["window_ns"].mean(),
        "step_ns": step,
        "wu_residual_ns": step - means["fp_bp_ns"],
        "idle_ns": step - busy,
    }


def _percentiles(inside: pl.DataFrame) -> dict[str, Any]:
    steps = (
        inside.group_by(*_OWNER, "position")
        .agg(pl.col("length").sum())
        .sort(*_OWNER, "position")
        .group_by("position", maintain_order=True)
        .agg(pl.col("length").mean())
    )
    return steps.select(
        pl.col("length").quantile(q, "nearest").alias(name) for name, q in _QUANTILES.items()
    ).row(0, named=True)


# -- communication -----------------------------------------------------------------------------


def _moved(trace: Trace, skip: int) -> dict[str, Any]:
    """Return ``method``, ``gpus``, ``bytes_between_gpus`` and ``bytes_evidence``."""
    copies = copy_transfers(trace).filter(
        pl.col("method").is_in(AMONG_GPUS),
        (pl.col("method") == "p2p")
        | (pl.col("src_device") != pl.col("dst_device")).fill_null(value=False),
    )
    calls = collective_calls(trace).filter(pl.col("library") == "nccl")
    method = _method(trace, copies, calls)
    # A report may be of one rank of many.
    gpus = max(_active(trace), calls.select(pl.col("ranks").max()).item() or 0)
    return {"method": method, "gpus": gpus or None} | _bytes(trace, copies, calls, skip, method)


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
    """Tell whether MPI moved anything."""
    moving = (pl.col("library") == "mpi") & (pl.col("bytes") > 0)
    return not trace["host"].filter(moving).head(1).collect().is_empty()


def _bytes(
    trace: Trace, copies: pl.DataFrame, calls: pl.DataFrame, skip: int, method: str
) -> dict[str, Any]:
    """Add up what each process moves in its steps, over the number of these."""
    iterations = trace.read("iterations").sort("process", "start")
    kept = iterations.filter(pl.int_range(pl.len()).over("process") >= skip).select(
        "process", "iteration", steps=pl.len().over("process")
    )
    modelled = calls.select(
        "process", "iteration", _sent().alias("bytes"), modelled=pl.lit(value=True)
    )
    measured = copies.select(
        "process", "iteration", "bytes", modelled=pl.col("evidence") == "modelled"
    )
    moved = pl.concat([modelled, measured], how="vertical_relaxed")
    inside = moved.join(kept, on=["process", "iteration"])
    if inside.is_empty():
        alone = method == "none" and kept.height and _active(trace) == 1
        return {"bytes_between_gpus": 0.0, "bytes_evidence": "measured"} if alone else {}
    # Of what MPI sends out of host memory it is not known which GPU it is for.
    if inside["bytes"].null_count() or method == "mpi":
        return {}
    total = inside.select((pl.col("bytes") / pl.col("steps")).sum()).item()
    evidence = "modelled" if inside["modelled"].any() else "measured"
    return {"bytes_between_gpus": total, "bytes_evidence": evidence}


def _sent() -> pl.Expr:
    """Return the bytes that a participant of a collective sends, in the mean over participants.

    With n ranks and S bytes, as nccl-tests counts them (``doc/PERFORMANCE.md``): an all-reduce
    moves 2(n-1)S in all, be it over rings or a tree; gather and scatter (n-1)S/n; others (n-1)S.
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
