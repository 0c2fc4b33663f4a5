"""What a run holds, in a few numbers, and what it lacks for which question."""

from __future__ import annotations

import polars as pl

from tracekit.model import KERNEL_KINDS, Trace, union_length

Number = int | float | str | None
_ALMOST_ALL = 0.9995


def summarise(trace: Trace) -> dict[str, Number]:
    """Return the size of a run and how much of it is explained.

    Returns
    -------
    ``devices`` (that ran an op), ``processes``, ``ops``, ``kernels``, ``ranges``, ``iterations``;
    ``gpus``, their names; ``launched``, the share of ops whose launching call is known, and
    ``coverage``, the share of GPU busy time whose stage is known (null without ops).
    """
    ops = _counts(trace)
    devices = trace.read("devices").filter("active")
    names = devices["name"].drop_nulls().unique(maintain_order=True).to_list()
    return {
        "devices": devices.height,
        "gpus": ", ".join(names) or None,
        "processes": _height(trace, "processes"),
        "ops": ops["ops"],
        "kernels": ops["kernels"],
        "ranges": _height(trace, "ranges"),
        "iterations": trace.read("iterations")["iteration"].n_unique(),
        "launched": ops["launched"] / ops["ops"] if ops["ops"] else None,
        "coverage": _coverage(trace) if ops["unknown"] else 1.0 if ops["ops"] else None,
    }


def _counts(trace: Trace) -> dict[str, int]:
    """Count ops: all, kernels, those with a launching call, and those of unknown stage."""
    counts = trace["ops"].select(
        ops=pl.len(),
        kernels=pl.col("kind").is_in(list(KERNEL_KINDS)).sum(),
        launched=pl.col("call").count(),
        unknown=(pl.col("stage_source") == "none").sum(),
    )
    return counts.collect(engine="streaming").row(0, named=True)


def _height(trace: Trace, table: str) -> int:
    return int(trace[table].select(pl.len()).collect().item())


def _coverage(trace: Trace) -> float | None:
    """Return the share of busy time in which an op of known stage runs."""
    ops = trace["ops"].select("device", "start", "end", "stage_source").collect()
    busy = int(union_length(ops, ["device"])["length"].sum())
    known = ops.filter(pl.col("stage_source").cast(pl.String) != "none")
    return int(union_length(known, ["device"])["length"].sum()) / busy if busy else None


def identify(trace: Trace) -> dict[str, str | None]:
    """Return what a run's reports are.

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


def features(trace: Trace) -> pl.DataFrame:
    """Return what a run can be asked, from what its reports hold.

    Returns
    -------
    ``feature``, ``available`` (``yes``, ``no``, or ``partly`` where some is missing, or some report
    lacks it), ``found`` (in words) and ``record_with`` (how the rest is recorded; null where
    nothing is missing).
    """
    contents = (
        trace.read("contents")
        .group_by("feature", maintain_order=True)
        .agg(
            pl.col("present").any(),
            pl.col("present").all().alias("everywhere"),
            pl.col("rows").sum(),
            pl.col("rows").null_count().alias("uncounted"),
            pl.col("source_table", "tells", "record_with").first(),
        )
    )
    found = (
        pl.when(~pl.col("present")).then(pl.format("no {}", "source_table"))
        .when(pl.col("uncounted") > 0).then(pl.format("{}: {}", "source_table", "tells"))
        .otherwise(pl.format("{} rows: {}", "rows", "tells"))
    )  # fmt: skip
    available = (
        pl.when("everywhere").then(pl.lit("yes"))
        .when("present").then(pl.lit("partly"))
        .otherwise(pl.lit("no"))
    )  # fmt: skip
    recorded = contents.select(
        "feature",
        available=available,
        found=found,
        record_with=pl.when(~pl.col("everywhere")).then("record_with"),
    )
    return pl.concat([_understood(trace), recorded])


def _understood(trace: Trace) -> pl.DataFrame:
    """Return how far attribution went, which more than one kind of data decides."""
    numbers = summarise(trace)
    launched, coverage = numbers["launched"], numbers["coverage"]
    iterations = numbers["iterations"]
    rows = [
        (
            "launching calls",
            _degree(launched),
            f"known of {_percent(launched)} of the ops",
            "nsys profile -t cuda, without trimming the export",
        ),
        (
            "stages",
            _degree(coverage),
            f"known of {_percent(coverage)} of GPU busy time",
            "nsys profile -t cuda,nvtx, or name your ranges: --rules FILE",
        ),
        (
            "iterations",
            "yes" if iterations else "no",
            f"{iterations} found",
            "NVTX ranges `step N` around each training step, or --iteration REGEX",
        ),
        _identities(trace),
    ]
    schema = ["feature", "available", "found", "record_with"]
    table = pl.DataFrame(rows, schema=schema, orient="row", infer_schema_length=None)
    return table.with_columns(
        pl.when(pl.col("available") != "yes").then("record_with").alias("record_with")
    ).cast(pl.String)


def _identities(trace: Trace) -> tuple[str, str, str, str]:
    devices = trace.read("devices").filter("active")
    known = devices.filter(pl.col("identity") != "unknown").height
    how = ", ".join(devices["identity"].unique(maintain_order=True).to_list()) or "no GPU"
    return (
        "physical GPUs",
        _degree(known / devices.height if devices.height else None),
        f"{known} of {devices.height} named ({how})",
        "a report with GPU information: nsys profile on the host that has the GPUs",
    )


def _degree(share: Number) -> str:
    if not share:
        return "no"
    return "yes" if share == 1 else "partly"


def _percent(share: Number) -> str:
    if not isinstance(share, int | float):
        return "none"
    # What is not quite all must not read as all of it.
    return ">99.9 %" if _ALMOST_ALL <= share < 1 else f"{100 * share:.1f} %"
