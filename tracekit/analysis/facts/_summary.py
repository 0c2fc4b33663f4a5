"""Summary of a run in a few numbers."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.facts._verdicts import verdict_meta
from tracekit.engine import StageTally, kept_sums, union_length
from tracekit.model import KERNEL_KINDS, STAGE, Trace
from tracekit.support.batches import in_batches

Number = int | float | str | None


def summarise(trace: Trace) -> dict[str, Number]:
    """Return the size of a run and how much of it is explained.

    Returns
    -------
    ``devices`` (that ran an op), ``processes``, ``ops``, ``kernels``, ``ranges``, ``iterations``;
    ``gpus``, their names; ``verdict``, what the processes do; ``launched``, the share of ops whose
    launching call is known, and ``coverage``, the share of GPU busy time whose stage is known (null
    without ops).
    """
    ops = _counts(trace)
    devices = trace.read("devices").filter("active")
    names = devices["name"].drop_nulls().unique(maintain_order=True).to_list()
    return {
        "devices": devices.height,
        "gpus": ", ".join(names) or None,
        "processes": trace.height("processes"),
        "ops": ops["ops"],
        "kernels": ops["kernels"],
        "ranges": trace.height("ranges"),
        "iterations": trace.read("iterations")["iteration"].n_unique(),
        "verdict": _verdict(trace),
        "launched": ops["launched"] / ops["ops"] if ops["ops"] else None,
        "coverage": _coverage(trace) if ops["unknown"] else 1.0 if ops["ops"] else None,
    }


def _counts(trace: Trace) -> dict[str, int]:
    """Count ops: all, kernels, those with a launching call, and those of unknown stage."""
    kept = kept_sums(trace)
    if kept is not None:
        sums = kept.groups.select(pl.col("ops", "kernels", "launched").sum()).row(0, named=True)
        unknown = kept.sources.filter(pl.col("stage_source") == "none")
        return {**sums, "unknown": int(unknown["ops"].sum())}
    counts = trace["ops"].select(
        ops=pl.len(),
        kernels=pl.col("kind").is_in(list(KERNEL_KINDS)).sum(),
        launched=pl.col("call").count(),
        unknown=(pl.col("stage_source") == "none").sum(),
    )
    return counts.collect(engine="streaming").row(0, named=True)


def _verdict(trace: Trace) -> str | None:
    """Return the verdicts, each with the evidence where all agree, and what is missing."""
    told = verdict_meta(trace)
    if "verdict" not in told:
        return None
    verdicts = ", ".join(told["verdict"])
    evidence = trace.read("verdicts")["evidence"].unique(maintain_order=True)
    why = f" ({evidence[0]})" if len(evidence) == 1 else ""
    cut = f", cut: {told['cut']}" if "cut" in told else ""
    given = ", as given" if told.get("given") else ""
    return f"{verdicts}{given}{cut}{why}"


def _coverage(trace: Trace) -> float | None:
    """Return the share of busy time in which an op of known stage runs."""
    ops = trace["ops"].select("device", "start", "end", stage=_KNOWN)
    tally = StageTally(of_stages_alone=True)
    if all(tally.add(batch) for batch in in_batches(ops)):
        busy = int(tally.groups()["busy_ns"].sum())
        known = int(tally.stages().filter(stage="FP")["busy_ns"].sum())
        return known / busy if busy else None
    whole = ops.collect()  # those of a device that is in several reports do not come by start
    known, busy = (
        int(union_length(rows, ["device"])["length"].sum())
        for rows in (whole.filter(stage="FP"), whole)
    )
    return known / busy if busy else None


_KNOWN = (
    pl.when(pl.col("stage_source").cast(pl.String) == "none")
    .then(pl.lit("OTHER"))
    .otherwise(pl.lit("FP"))
    .cast(STAGE)
)
"""One stage for all that are known, and one for none, to be added up as any two."""


def identify(trace: Trace) -> dict[str, str | None]:
    """Return format, product and version of a run's reports.

    Returns
    -------
    ``file``, ``format``, ``schema_version``, ``product`` and ``host``. Of several reports each
    distinct value is listed once; what none of them says is null.
    """
    reports = trace.read("reports")
    return {
        name: ", ".join(reports[name].drop_nulls().unique(maintain_order=True).to_list()) or None
        for name in ("file", "format", "schema_version", "product", "host")
    }
