"""Features of a job, from its trace, for the analytical model of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.analysis.facts import how_to_record
from tracekit.analysis.statistics import Skip
from tracekit.analysis.studies._study import study_row
from tracekit.analysis.traffic import AMONG_GPUS, copy_transfers
from tracekit.engine import (
    NEEDED,
    has_ops,
    inside_steps,
    numbered_alike,
    step_windows,
    union_length,
)
from tracekit.errors import MissingDataError
from tracekit.model import Trace

BOUND_BY_COMPUTE = (
    r"(?i)gemm(_|[^a-z]|$)|gemm[a-uw-z]|conv([^e]|e[^r]|$)|winograd|fprop|wgrad|dgrad|cutlass|xmma"
    r"|(flash|fused)_?(attn|attention)|fmha"
)
"""Kernels whose time goes to arithmetic: products of matrices, convolutions, attention. All other
ones are taken to wait for memory."""

_KEY = ["process", "iteration"]
_OWNER = ["process", "device"]
_COMMUNICATION = ("collective", "p2p", "staged")
_S = 1e-9


def job_features(
    trace: Trace, labels: Mapping[str, str], name: str, *, skip: Skip = "auto"
) -> dict[str, Any]:
    """Return the features of a job from its trace, as a row of the columns `JOBS`.

    What it cannot tell is null: FLOPs and bytes of memory are counted by no timeline. Volumes and
    times are means over steps and devices.

    Parameters
    ----------
    trace
        The run.
    labels
        Its labels; ``batch`` and ``gpus`` are read.
    name
        Its name.
    skip
        How many iterations to leave out at the beginning.

    Returns
    -------
    ``architecture`` is null where the trace does not show it; ``input_bytes`` are those of copies
    from the host, ``weight_bytes`` the messages of collectives and the copies between GPUs.
    ``measured_compute_s`` is the busy time of kernels that products of matrices and convolutions
    run (`BOUND_BY_COMPUTE`), ``measured_memory_s`` that of all others.

    Raises
    ------
    MissingDataError
        If the run holds no GPU work, or no iterations.
    """
    if not has_ops(trace):
        raise MissingDataError(
            f"{name} holds no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    trace = numbered_alike(trace)
    row = study_row(trace, labels, name, skip=skip)
    if row["step_ns"] is None:
        raise MissingDataError(
            f"{name} has no steps", "name the ranges that are steps: --iteration REGEX"
        )
    skipped = row["skipped"] or 0
    steps = _kept(trace, skipped)
    # Collectives have peers: of how many where only one GPU was recorded is not known.
    is_part = row["gpus"] == 1 and row["method"] != "none" and "gpus" not in labels
    owners = row["devices"]
    return {
        "job": name,
        "architecture": None if is_part else _architecture(trace, row),
        "workers": None if is_part else row["gpus"],
        "batch": row["batch"],
        "input_bytes": _input_bytes(trace, steps, owners),
        "weight_bytes": _weight_bytes(trace, steps, owners, row["method"]),
        "measured_s": row["step_ns"] * _S,
        **_busy(trace, skipped),
    }


def _kept(trace: Trace, skip: int) -> pl.DataFrame:
    """Return the steps that count, and how many there are of each process."""
    ordered = trace.read("iterations").sort("process", "start")
    kept = ordered.filter(pl.int_range(pl.len()).over("process") >= skip)
    return kept.select(*_KEY, steps=pl.len().over("process"))


def _architecture(trace: Trace, row: Mapping[str, Any]) -> str | None:
    """Return the architecture, where devices, hosts and collectives show it."""
    if row["gpus"] == 1:
        return "1w1g"
    hosts = trace.read("reports")["host"]
    seen = trace["ops"].select(pl.col("device").n_unique()).collect().item()
    if row["method"] not in ("nccl", "collective") or hosts.null_count() or row["gpus"] > seen:
        return None
    return "AllReduce-Local" if hosts.n_unique() == 1 else "AllReduce-Cluster"


def _per_step(rows: pl.DataFrame, steps: pl.DataFrame, owners: int) -> float | None:
    """Return the bytes of rows in steps, per step and device; null where some are not known."""
    inside = rows.join(steps, on=_KEY)
    if inside["bytes"].null_count():
        return None
    total = inside.select((pl.col("bytes") / pl.col("steps")).sum()).item()
    return float(total / owners)


def _input_bytes(trace: Trace, steps: pl.DataFrame, owners: int) -> float | None:
    copies = copy_transfers(trace).filter(pl.col("method") == "h2d")
    return _per_step(copies.select(*_KEY, "bytes"), steps, owners)


def _weight_bytes(trace: Trace, steps: pl.DataFrame, owners: int, method: str) -> float | None:
    """Return what a device exchanges; a job on one exchanges nothing, which tells nothing."""
    copies = copy_transfers(trace).filter(
        pl.col("method").is_in(AMONG_GPUS),
        (pl.col("src_device") != pl.col("dst_device")).fill_null(value=True),
    )
    calls = collective_calls(trace).drop_nulls("op")
    moved = [each.select(*_KEY, pl.col("bytes").cast(pl.Float64)) for each in (copies, calls)]
    rows = pl.concat(moved)
    return None if method == "none" or rows.is_empty() else _per_step(rows, steps, owners)


def _busy(trace: Trace, skip: int) -> dict[str, float | None]:
    """Return the busy time of each component, s per step and device; null where nothing ran."""
    kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
    component = (
        pl.when(kind == "h2d").then(pl.lit("input"))
        .when(kind.is_in(_COMMUNICATION)).then(pl.lit("weights"))
        .when((kind == "compute") & name.str.contains(BOUND_BY_COMPUTE)).then(pl.lit("compute"))
        .when(kind.is_in(["compute", "d2d", "memset"])).then(pl.lit("memory"))
    )  # fmt: skip
    ops = trace["ops"].select(*NEEDED, component=component).collect()
    windows = step_windows(trace, ops, skip)
    steps = windows.filter("counts").select(pl.struct([*_OWNER, "iteration"]).n_unique()).item()
    inside = inside_steps(ops.drop_nulls("component"), windows)
    busy = union_length(inside, [*_OWNER, "component"])
    mean = pl.col("length").sum() * _S / steps
    found = dict(busy.group_by("component").agg(mean).iter_rows())
    parts = ("input", "compute", "memory", "weights")
    return {f"measured_{part}_s": found.get(part) or None for part in parts}
