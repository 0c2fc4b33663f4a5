"""Model the step time of a job with other means of weight exchange, or other hardware.

Nothing is measured. An architecture is how replicas exchange weights: ``1w1g`` (one GPU), ``1wng``
(PCIe), ``PS/Worker``, ``AllReduce-Local`` and others. Programs reach a fixed share of the peak of
every resource, and nothing overlaps: a step's time is the sum of the times of input, computation,
memory and exchange of weights. ``docs/studies.md`` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from tracekit.analysis.studies._job_features import LOCAL, MEDIA, RESOURCES, Hardware, parse_rate
from tracekit.errors import UsageError

COMPONENTS = ("input", "compute", "memory", "weights")
"""Components whose times add up to the time of a step."""
_TIMES = [f"{name}_ns" for name in COMPONENTS]
_SHARES = [f"{name}_share" for name in COMPONENTS]
_FACTS = ("job", "architecture", "workers", "batch")
_NS = 1e9
_WEIGHTINGS = {"job": pl.lit(1.0), "node": pl.col("nodes").cast(pl.Float64)}
_ALL = "all"


def step_times(jobs: pl.DataFrame, hardware: Hardware) -> pl.DataFrame:
    """Return the modelled step time of each job.

    Parameters
    ----------
    jobs
        A table of jobs, as `read_jobs` returns it.
    hardware
        The cluster that they run on.

    Returns
    -------
    The columns that the command `project` lists for components; null if FLOPs or bytes are unknown.
    """
    volumes = {
        "input_ns": pl.col("input_bytes") * _sharing(hardware) / hardware.rate("pcie"),
        "compute_ns": pl.col("flops") / hardware.rate("compute"),
        "memory_ns": pl.col("memory_bytes") / hardware.rate("memory"),
        "weights_ns": _exchange_seconds(hardware),
    }
    times = {name: seconds * _NS for name, seconds in volumes.items()}
    known = pl.all_horizontal(pl.col(_TIMES).is_not_null())
    return (
        jobs.with_columns(**times)
        .with_columns(step_ns=pl.sum_horizontal(_TIMES, ignore_nulls=False))
        .with_columns(overlapped_ns=pl.when(known).then(pl.max_horizontal(_TIMES)))
        .with_columns(pl.col(f"{name}_ns").truediv("step_ns").alias(f"{name}_share")
                      for name in COMPONENTS)
        .select(
            *_FACTS, pl.lit("modelled").alias("evidence"), *_TIMES, "step_ns", "overlapped_ns",
            *_SHARES, bound=_bound(known),
            samples_per_s=pl.col("workers") * pl.col("batch") * _NS / pl.col("step_ns"),
        )
    )  # fmt: skip


def _sharing(hardware: Hardware) -> pl.Expr:
    """Return how many replicas share one path to the host; 1 for PS workers."""
    if hardware.pcie_share < 1:
        raise UsageError(f"{hardware.pcie_share} replicas cannot share a path", "give 1 or more")
    together = _at_most(min(hardware.gpus_per_server, hardware.pcie_share))
    packed = pl.col("architecture").is_in([*LOCAL, "AllReduce-Cluster"])
    return pl.when(packed).then(together).otherwise(1)


def _at_most(most: int) -> pl.Expr:
    """Return the number of workers, limited to `most`; null if unknown."""
    return pl.when(pl.col("workers") > most).then(most).otherwise("workers")


def _exchange_seconds(hardware: Hardware) -> pl.Expr:
    """Return how long a worker exchanges weights in a step, s: bytes / rate, summed over links."""
    each = {
        name: sum((1 / hardware.rate(medium) for medium in media), 0.0)
        for name, media in MEDIA.items()
    }
    seconds_per_byte = pl.col("architecture").replace_strict(each, return_dtype=pl.Float64)
    embedded = pl.col("embedding_bytes").fill_null(0)
    touched = pl.when(embedded == 0).then(0.0).otherwise("touched_bytes")
    exchanged = (
        pl.when(pl.col("architecture") == "PEARL")
        .then(pl.col("weight_bytes") - embedded + touched)
        .otherwise("weight_bytes")
    )
    return pl.when(seconds_per_byte == 0).then(0.0).otherwise(exchanged * seconds_per_byte)


def _bound(known: pl.Expr) -> pl.Expr:
    longest = pl.concat_list(_TIMES).list.arg_max()
    names = dict(enumerate(COMPONENTS))
    return pl.when(known).then(longest.replace_strict(names, return_dtype=pl.String))


def project_architectures(
    jobs: pl.DataFrame, hardware: Hardware, to: Sequence[str] = tuple(MEDIA)
) -> pl.DataFrame:
    """Return the modelled step time of each job on other architectures (ways to exchange weights).

    On architectures within one server, jobs with more replicas than its GPUs lose some of them.

    Parameters
    ----------
    jobs, hardware
        As for `step_times`.
    to
        The architectures, such as ``PS/Worker``: keys of `MEDIA`.

    Returns
    -------
    The columns of `step_times`, with ``to`` (the architecture) and ``workers`` (number of replicas
    on it); ``speedup``, old over new step time; ``throughput_speedup``, new over old samples per
    second of all replicas together.

    Raises
    ------
    UsageError
        If an architecture is unknown.
    """
    unknown = [name for name in to if name not in MEDIA]
    if unknown:
        raise UsageError(f"unknown architecture {unknown[0]!r}", f"choose {', '.join(MEDIA)}")
    moved = [step_times(_moved(jobs, name, hardware), hardware) for name in to]
    recorded = step_times(jobs, hardware)
    before = recorded.select("job", "architecture", from_ns="step_ns", from_workers="workers")
    later = pl.concat([table.rename({"architecture": "to"}) for table in moved])
    order = before.with_row_index("place")
    return (
        order.join(later, on="job", maintain_order="left_right")
        .with_columns(speedup=pl.col("from_ns") / pl.col("step_ns"))
        .with_columns(
            throughput_speedup=pl.col("speedup") * pl.col("workers") / pl.col("from_workers")
        )
        .select("job", "architecture", "to", *later.columns[2:], "speedup", "throughput_speedup")
    )


def _moved(jobs: pl.DataFrame, architecture: str, hardware: Hardware) -> pl.DataFrame:
    most = {"1w1g": 1} | dict.fromkeys(LOCAL, hardware.gpus_per_server)
    workers = _at_most(most[architecture]) if architecture in most else pl.col("workers")
    return jobs.with_columns(architecture=pl.lit(architecture), workers=workers)


def sweep_hardware(
    jobs: pl.DataFrame, hardware: Hardware, values: Mapping[str, Sequence[str]]
) -> pl.DataFrame:
    """Return the modelled step time of each job if the peak of one resource differs.

    Parameters
    ----------
    jobs, hardware
        As for `step_times`.
    values
        Resource -> peaks to try, as texts such as ``25 Gb/s``.

    Returns
    -------
    The columns of `step_times`, with ``resource``, ``value`` and ``peak`` (FLOP/s or bytes/s), and
    ``speedup`` over `hardware`.

    Raises
    ------
    UsageError
        If a resource or a value is invalid.
    """
    base = step_times(jobs, hardware)["step_ns"]
    found = []
    for resource, texts in values.items():
        if resource not in RESOURCES:
            raise UsageError(f"unknown resource {resource!r}", f"choose {', '.join(RESOURCES)}")
        for text in texts:
            peak = parse_rate(text, resource)
            times = step_times(jobs, hardware.with_peak(resource, peak))
            found.append(
                times.select(
                    "job", "architecture", pl.lit(resource).alias("resource"),
                    pl.lit(text).alias("value"), pl.lit(peak).alias("peak"), *times.columns[2:],
                    speedup=base / pl.col("step_ns"),
                )
            )  # fmt: skip
    if not found:
        raise UsageError("no hardware to try is given", "give --sweep ethernet=10Gb/s,100Gb/s")
    return pl.concat(found)


def weighted_means(
    table: pl.DataFrame, values: Sequence[str], by: Sequence[str] = ()
) -> pl.DataFrame:
    """Return means over jobs, both unweighted and weighted by number of workers (``nodes``).

    Parameters
    ----------
    table
        ``architecture, nodes``, the columns `values` and those of `by`. Rows with an unknown value
        in any of `values` are left out of all means.
    values
        Columns to average.
    by
        Further columns to group by, beside ``architecture``.

    Returns
    -------
    ``architecture`` (``all``: over all architectures), the columns `by`, ``weighting`` (``job`` or
    ``node``), ``jobs``, ``nodes``, and the means.
    """
    known = table.drop_nulls(values)
    sets = [known, known.with_columns(architecture=pl.lit(_ALL))]
    keys = ["architecture", *by]
    weight = pl.col("weight")
    means = [
        each.with_columns(weight=counting)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.lit(name).alias("weighting"),
            jobs=pl.len().cast(pl.Int64),
            nodes=pl.col("nodes").sum(),
            **{value: (pl.col(value) * weight).sum() / weight.sum() for value in values},
        )
        for each in sets
        for name, counting in _WEIGHTINGS.items()
    ]
    return pl.concat(means).select("architecture", *by, "weighting", "jobs", "nodes", *values)


def gains(table: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the share of faster jobs and the mean speedup, per architecture or hardware change.

    Parameters
    ----------
    table
        Modelled step times, from `project_architectures` or `sweep_hardware`, with ``nodes``.
    by
        The columns that name a change: ``to``, or ``resource`` and ``value``.

    Returns
    -------
    As from `weighted_means`: ``speedup`` of a step, and ``faster_share``, the share of jobs (or
    nodes) with a shorter step. If the number of workers changes, also ``throughput_speedup`` and
    ``throughput_faster_share``: with fewer replicas a step gets shorter even if all of them
    together process fewer samples.
    """
    measures = {"speedup": "faster_share", "throughput_speedup": "throughput_faster_share"}
    known = {each: share for each, share in measures.items() if each in table.columns}
    counted = table.with_columns(
        (pl.col(each) > 1).cast(pl.Float64).alias(share) for each, share in known.items()
    )
    return weighted_means(counted, [name for pair in known.items() for name in pair], by)


def distribution(table: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Return the cumulative distribution of a value over jobs, and over their workers.

    Parameters
    ----------
    table
        ``nodes``, and the column `measure`.
    measure
        Name of the column; rows in which it is null are left out.

    Returns
    -------
    ``measure, value``, ``job_share`` and ``node_share``: the share of jobs, and of workers, with at
    most this value.
    """
    counted = (
        table.drop_nulls(measure)
        .group_by(value=pl.col(measure).cast(pl.Float64))
        .agg(jobs=pl.len(), nodes=pl.col("nodes").sum())
        .sort("value")
    )
    return counted.select(
        pl.lit(measure).alias("measure"),
        "value",
        job_share=pl.col("jobs").cum_sum() / pl.col("jobs").sum(),
        node_share=pl.col("nodes").cum_sum() / pl.col("nodes").sum(),
    )


def measured_against(jobs: pl.DataFrame, hardware: Hardware) -> pl.DataFrame:
    """Compare the modelled with the measured times of jobs; for arguments see `step_times`.

    Returns
    -------
    One row per job and component, and one for the step: ``estimated_ns`` (modelled),
    ``measured_ns``; ``error_percent``, 100 (estimated - measured) / measured; ``efficiency``, the
    share of the peak rate that was reached: time at the peak rate over measured time (null for the
    step).
    """
    ideal = replace(hardware, efficiencies=dict.fromkeys(RESOURCES, 1.0))
    modelled, at_peak = step_times(jobs, hardware), step_times(jobs, ideal)
    parts = [
        pl.DataFrame(
            {
                "job": jobs["job"],
                "architecture": jobs["architecture"],
                "component": [name] * jobs.height,
                "estimated_ns": modelled[f"{name}_ns"],
                "measured_ns": jobs[_measured(name)] * _NS,
                "at_peak_ns": at_peak[f"{name}_ns"],
            },
            schema_overrides={"component": pl.String},
        ).with_row_index("place")
        for name in ("step", *COMPONENTS)
    ]
    estimated, measured = pl.col("estimated_ns"), pl.col("measured_ns")
    efficiency = pl.when(pl.col("component") != "step").then(pl.col("at_peak_ns") / measured)
    return (
        pl.concat(parts)
        .sort("place", maintain_order=True)
        .with_columns(error_percent=100 * (estimated - measured) / measured, efficiency=efficiency)
        .drop("place", "at_peak_ns")
    )


def _measured(component: str) -> str:
    return "measured_s" if component == "step" else f"measured_{component}_s"
