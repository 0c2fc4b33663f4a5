"""Inputs of the analytical model of step times: features of jobs, and peaks of hardware."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.analysis.facts import how_to_record
from tracekit.analysis.statistics import Skip
from tracekit.analysis.studies._measured_elsewhere import check_values, text_table
from tracekit.analysis.studies._study import study_row
from tracekit.analysis.traffic import AMONG_GPUS, copy_transfers
from tracekit.engine import (
    begun_in_steps,
    has_ops,
    inside_steps,
    numbered_alike,
    step_windows,
    union_length,
)
from tracekit.errors import InputError, MissingDataError, UsageError
from tracekit.model import Trace
from tracekit.support.files import schemas
from tracekit.support.toml import read_toml

MEDIA: Mapping[str, tuple[str, ...]] = {
    "1w1g": (),
    "1wng": ("pcie",),
    "PS/Worker": ("ethernet", "pcie"),
    "AllReduce-Local": ("nvlink",),
    "AllReduce-Cluster": ("ethernet", "nvlink"),
    "PEARL": ("nvlink",),
}
"""Architecture -> links that weights and gradients cross, one after another."""

LOCAL = ("1wng", "AllReduce-Local", "PEARL")
"""Architectures whose replicas are in one server."""

_VOLUMES = (
    "flops", "memory_bytes", "input_bytes", "weight_bytes", "embedding_bytes", "touched_bytes",
)  # fmt: skip
_MEASURED = (
    "measured_s", "measured_input_s", "measured_compute_s", "measured_memory_s",
    "measured_weights_s",
)  # fmt: skip
"""Times of a step and of its components that were measured, s."""

JOBS = pl.Schema(
    {
        "job": pl.String,
        "architecture": pl.String,
        "workers": pl.Int64,
        "batch": pl.Int64,
        **dict.fromkeys((*_VOLUMES, *_MEASURED), pl.Float64),
    }
)
"""Columns of a table of jobs, described in `read_jobs`."""

_WHOLE = ("workers", "batch")
_MOST = 1e30
_MOST_WHOLE = 10**9
_BOUND_BY_COMPUTE = (
    r"(?i)gemm(_|[^a-z]|$)|gemm[a-uw-z]|conv([^e]|e[^r]|$)|winograd|fprop|wgrad|dgrad|cutlass|xmma"
    r"|(flash|fused)_?(attn|attention)|fmha"
)
"""Kernels whose time goes to arithmetic: products of matrices, convolutions, attention. All other
ones are taken to wait for memory."""

_KEY = ["process", "iteration"]
_OWNER = ["process", "device"]
_COMMUNICATION = ("collective", "p2p", "staged")
_S = 1e-9


def read_jobs(name: str) -> pl.DataFrame:
    """Read a table of jobs: TOML with ``[[job]]``, or comma-separated text with column names.

    Parameters
    ----------
    name
        The file, or the name of a bundled one. Its fields per job:

        ====================  =====================================================================
        ``name`` (``job``)    its name
        ``architecture``      one of `MEDIA`
        ``workers``           number of replicas, each on a separate GPU
        ``batch``             samples per step of each replica
        ``flops``             floating point operations per step of each replica
        ``memory_bytes``      bytes that kernels read and write in GPU memory (step, replica)
        ``input_bytes``       bytes of input copied to the GPU (per step and replica)
        ``weight_bytes``      bytes of weights and gradients exchanged (per step and replica)
        ``embedding_bytes``   part of ``weight_bytes`` in embedding tables; 0 if left out
        ``touched_bytes``     bytes of the embedding rows that a step uses
        ``measured_s``        measured step time, s; ``measured_input_s``, ``_compute_s``,
                              ``_memory_s`` and ``_weights_s`` are its measured components
        ====================  =====================================================================

        Name, architecture and workers are required; other missing values are unknown (null).

    Returns
    -------
    The columns `JOBS`.

    Raises
    ------
    InputError
        If the file cannot be read or has an impossible value; the message names the entry.
    """
    bundled = {path.stem: path for path in (schemas() / "jobs").glob("*.toml")}
    path = bundled.get(name, Path(name))
    if path.suffix.lower() == ".toml":
        return _checked(_toml_rows(path), path)
    return _checked(_csv_rows(path), path)


def jobs_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return jobs as a table with the columns `JOBS`; missing values are null."""
    return pl.DataFrame(rows, schema=JOBS, orient="row")


def _toml_rows(path: Path) -> list[dict[str, Any]]:
    content = read_toml(path)
    jobs = content.get("job")
    unknown = sorted(content.keys() - {"version", "source", "job"})
    if unknown or not isinstance(jobs, list) or not jobs:
        fault = f"the unknown key {unknown[0]!r}" if unknown else "no [[job]]"
        raise InputError(f"{path} has {fault}", "schemas/jobs/worked.toml shows how it is written")
    if not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{path}: job is not a list of tables", "write [[job]] above each of them")
    return [{"job" if key == "name" else key: value for key, value in job.items()} for job in jobs]


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    table = text_table(path)
    if "name" in table.columns and "job" not in table.columns:
        table = table.rename({"name": "job"})
    numbers = [name for name in table.columns if name in JOBS and JOBS[name] != pl.String]
    for name in numbers:
        check_values(table, path, name, _number(name), "a number")
    integers = [pl.col(name).cast(pl.Int64) for name in numbers if name in _WHOLE]
    read = table.with_columns(_number(name) for name in numbers).with_columns(integers)
    rows = read.to_dicts()
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _number(name: str) -> pl.Expr:
    pattern = r"^[0-9]+$" if name in _WHOLE else r"^[0-9.]+([eE][-+]?[0-9]+)?$"
    written = pl.when(pl.col(name).str.contains(pattern)).then(pl.col(name))
    return written.cast(pl.Float64, strict=False).alias(name)


def _checked(rows: list[dict[str, Any]], path: Path) -> pl.DataFrame:
    for place, row in enumerate(rows, 1):
        problem = next(_problems(row), None)
        if problem:
            raise InputError(f"{path}, job {place}: {problem[0]}", problem[1])
    names = [row["job"] for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path} has two jobs {twice!r}", "give each a different name")
    return jobs_frame(rows)


def _problems(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the invalid values of a job (a row of a table of jobs), each with its remedy."""
    unknown = sorted(row.keys() - JOBS.keys())
    if unknown:
        yield f"{unknown[0]!r} is unknown", f"known: {', '.join(JOBS)}"
    if not isinstance(row.get("job"), str) or not row["job"].strip():
        yield "it has no name", "give it one"
    if row.get("architecture") not in MEDIA:
        yield f"architecture is {row.get('architecture')!r}", f"give one of {', '.join(MEDIA)}"
    if "workers" not in row:
        yield "workers is absent", "give the number of its replicas"
    for name, value in row.items():
        if name in JOBS and JOBS[name] != pl.String and not _fits(name, value):
            kind = "a whole number above 0" if name in _WHOLE else "a number of 0 or more"
            yield f"{name} is {value!r}", f"give {kind}"
    if row.get("embedding_bytes", 0) > row.get("weight_bytes", math.inf):
        yield "embedding_bytes are more than weight_bytes", "including those of embeddings"
    if row.get("architecture") == "1w1g" and row.get("workers") != 1:
        yield f"1w1g has {row.get('workers')} workers", "it is one worker on one GPU"


def _fits(name: str, value: object) -> bool:
    if name in _WHOLE:
        return type(value) is int and 1 <= value <= _MOST_WHOLE
    least = math.ulp(0.0) if name in _MEASURED else 0.0
    return type(value) in (int, float) and least <= value <= _MOST  # type: ignore[operator]


def job_features(
    trace: Trace, labels: Mapping[str, str], name: str, *, skip: Skip = "auto"
) -> dict[str, Any]:
    """Return the features of a job from its trace, as a row of the columns `JOBS`.

    Features that a trace cannot show are null, such as FLOPs and bytes of memory. Volumes and times
    are means over steps and devices.

    Parameters
    ----------
    labels
        Labels of the run, label -> value; ``batch`` and ``gpus`` are used.
    name
        Name of the run.
    skip
        Number of iterations to leave out at the beginning.

    Returns
    -------
    ``architecture`` is null if the trace does not show it; ``input_bytes`` are the bytes of copies
    from the host, ``weight_bytes`` those of collectives and of copies between GPUs.
    ``measured_compute_s`` is the busy time of kernels for matrix products and convolutions
    (`_BOUND_BY_COMPUTE`), ``measured_memory_s`` that of all other kernels.

    Raises
    ------
    MissingDataError
        If the run has no GPU work, or no iterations.
    """
    if not has_ops(trace):
        raise MissingDataError(
            f"{name} has no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    trace = numbered_alike(trace)
    row = study_row(trace, labels, name, skip=skip)
    if row["step_ns"] is None:
        raise MissingDataError(
            f"{name} has no steps", "name or record ranges of steps: --iteration REGEX"
        )
    skipped = row["skipped"] or 0
    ordered = trace.read("iterations").sort("process", "start")
    kept = ordered.filter(pl.int_range(pl.len()).over("process") >= skipped)
    steps = kept.select(*_KEY, steps=pl.len().over("process"))
    owners = row["devices"]
    copies = copy_transfers(trace).filter(method="h2d").rename({"dst_device": "device"})
    fed = begun_in_steps(copies, step_windows(trace, skipped))
    return {
        "job": name,
        "architecture": None if row["gpus"] is None else _architecture(trace, row),
        "workers": row["gpus"],
        "batch": row["batch"],
        "input_bytes": _per_step(fed, steps, owners),
        "weight_bytes": _weight_bytes(trace, steps, owners, row["method"]),
        "measured_s": row["step_ns"] * _S,
        **_busy(trace, skipped),
    }


def _architecture(trace: Trace, row: Mapping[str, Any]) -> str | None:
    """Return ``1w1g`` (one GPU), ``AllReduce-Local`` or ``AllReduce-Cluster``; None if unknown."""
    if row["gpus"] == 1:
        return "1w1g"
    hosts = trace.read("reports")["host"]
    seen = trace["ops"].select(pl.col("device").n_unique()).collect().item()
    if row["method"] not in ("nccl", "collective") or hosts.null_count() or row["gpus"] > seen:
        return None
    return "AllReduce-Local" if hosts.n_unique() == 1 else "AllReduce-Cluster"


def _per_step(rows: pl.DataFrame, steps: pl.DataFrame, owners: int) -> float | None:
    """Return the mean of ``bytes`` per step and device over the `rows` that lie in steps.

    None if any is unknown. The column ``steps`` of the table `steps` is the number of steps of the
    row's process; `owners` is the number of devices.
    """
    inside = rows.join(steps, on=_KEY)
    if inside["bytes"].null_count():
        return None
    total = inside.select((pl.col("bytes") / pl.col("steps")).sum()).item()
    return float(total / owners)


def _weight_bytes(trace: Trace, steps: pl.DataFrame, owners: int, method: str) -> float | None:
    """Return the bytes that a device exchanges per step, the mean over `owners` devices.

    None if `method` is ``none``, as for a job on one device, or if nothing is exchanged.
    """
    copies = copy_transfers(trace).filter(
        pl.col("method").is_in(AMONG_GPUS),
        (pl.col("src_device") != pl.col("dst_device")).fill_null(value=True),
    )
    calls = collective_calls(trace).drop_nulls("op")
    moved = [each.select(*_KEY, pl.col("bytes").cast(pl.Float64)) for each in (copies, calls)]
    rows = pl.concat(moved)
    return None if method == "none" or rows.is_empty() else _per_step(rows, steps, owners)


def _busy(trace: Trace, skip: int) -> dict[str, float | None]:
    """Return busy time, s, per step after `skip` and device: of input, compute, memory, weights."""
    kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
    component = (
        pl.when(kind == "h2d").then(pl.lit("input"))
        .when(kind.is_in(_COMMUNICATION)).then(pl.lit("weights"))
        .when((kind == "compute") & name.str.contains(_BOUND_BY_COMPUTE)).then(pl.lit("compute"))
        .when(kind.is_in(["compute", "d2d", "memset"])).then(pl.lit("memory"))
    )  # fmt: skip
    ops = trace["ops"].select(*_OWNER, "start", "end", component=component).collect()
    windows = step_windows(trace, skip)
    steps = windows.filter("counts").select(pl.struct([*_OWNER, "iteration"]).n_unique()).item()
    inside = inside_steps(ops.drop_nulls("component"), windows)
    busy = union_length(inside, [*_OWNER, "component"])
    mean = pl.col("length").sum() * _S / steps
    found = dict(busy.group_by("component").agg(mean).iter_rows())
    parts = ("input", "compute", "memory", "weights")
    return {f"measured_{part}_s": found.get(part) or None for part in parts}


# -- hardware ----------------------------------------------------------------------------------


RESOURCES = ("compute", "memory", "pcie", "ethernet", "nvlink")
"""Resources that bound a step's time: FLOP/s, memory of the GPU, and links."""

_VERSION = 1
_KEYS = {
    "version", "title", "source", "gpus_per_server", "efficiency", "efficiencies", "peaks", "sweep",
}  # fmt: skip
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)(FLOP|B|b)/s\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS = {"FLOP": 1.0, "B": 1.0, "b": 0.125}
_MOST_GPUS = 9999
_EXAMPLE = "write it as 25 Gb/s, 50 GB/s or 11 TFLOP/s"


@dataclass(frozen=True)
class Hardware:
    """Peak rates and efficiencies of a cluster, from which step times are modelled."""

    name: str
    """Name of the cluster."""
    peaks: Mapping[str, float]
    """Resource (one of `RESOURCES`) -> peak FLOP/s or bytes/s; links per direction."""
    efficiencies: Mapping[str, float]
    """Resource -> share of the peak that programs reach."""
    gpus_per_server: int = 8
    """Number of GPUs of a server, which NVLink connects."""
    sweep: Mapping[str, Sequence[str]] | None = None
    """Resource -> peaks for which `sweep_hardware` models step times, such as ``25 Gb/s``."""
    title: str = ""
    source: str = ""
    """Description of the cluster, and source of its values."""
    pcie_share: int = 1
    """Number of replicas in a server that share one path to the host for their input."""

    def rate(self, resource: str) -> float:
        """Return what programs reach of a `resource`: peak times efficiency, FLOP/s or bytes/s."""
        return self.peaks[resource] * self.efficiencies[resource]

    def with_peak(self, resource: str, peak: float) -> Hardware:
        """Return the cluster with another peak of one resource."""
        return replace(self, peaks={**self.peaks, resource: peak})


def parse_rate(text: str, resource: str) -> float:
    """Parse a text such as ``25 Gb/s`` into FLOP/s or bytes/s.

    Raises
    ------
    UsageError
        If the text is not a rate, or its unit does not fit the resource.
    """
    found = _RATE.fullmatch(text)
    if found is None or (found[3] == "FLOP") != (resource == "compute"):
        raise UsageError(f"cannot read the rate of {resource} {text!r}", _EXAMPLE)
    rate = float(found[1]) * _PREFIXES[found[2]] * _UNITS[found[3]]
    if not rate:
        raise UsageError(f"the rate of {resource} is {text}", "give more than 0")
    return rate


def hardware_names() -> list[str]:
    """Return the names of the hardware descriptions that tracekit ships (`schemas/hardware`)."""
    return sorted(path.stem for path in (schemas() / "hardware").glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """Return a bundled cluster by name, or read one from a TOML file.

    Raises
    ------
    UsageError
        If there is no cluster of that name.
    InputError
        If the file does not have the fields of ``schemas/hardware/pai.toml``.
    """
    shipped = schemas() / "hardware" / f"{name}.toml"
    path = shipped if name in hardware_names() else Path(name)
    if not path.is_file():
        known = ", ".join(hardware_names())
        raise UsageError(f"no hardware {name!r}", f"there is {known}, or give a TOML file")
    return _made(path.stem, read_toml(path), path)


def _made(name: str, content: Mapping[str, Any], path: Path) -> Hardware:
    problem = next(_hardware_problems(content), None)
    if problem:
        raise InputError(f"{path}: {problem}", "schemas/hardware/pai.toml shows how it is written")
    try:
        peaks = {key: parse_rate(content["peaks"][key], key) for key in RESOURCES}
        for key, values in content.get("sweep", {}).items():
            for value in values:
                parse_rate(value, key)
    except UsageError as error:
        raise InputError(f"{path}: {error.what}", error.hint) from error
    every = dict.fromkeys(RESOURCES, float(content["efficiency"]))
    efficiencies = {key: float(value) for key, value in content.get("efficiencies", {}).items()}
    return Hardware(
        name, peaks, {**every, **efficiencies}, content["gpus_per_server"],
        content.get("sweep", {}), content.get("title", name), content.get("source", ""),
    )  # fmt: skip


def _hardware_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each missing or invalid field of a hardware file."""
    if content.get("version") != _VERSION:
        yield f"version is {content.get('version')!r}, and {_VERSION} is known"
    unknown = sorted(content.keys() - _KEYS)
    if unknown:
        yield f"the key {unknown[0]!r} is unknown"
    tables = {key: content.get(key, {}) for key in ("peaks", "efficiencies", "sweep")}
    for key, table in tables.items():
        if not isinstance(table, dict) or table.keys() - set(RESOURCES):
            yield f"{key} is not a table of {', '.join(RESOURCES)}"
    absent = [key for key in RESOURCES if not isinstance(tables["peaks"].get(key), str)]
    if absent:
        yield f"peaks has no text for {absent[0]}"
    if not all(_is_texts(values) for values in tables["sweep"].values()):
        yield "sweep has values other than lists of texts"
    shares = [content.get("efficiency"), *tables["efficiencies"].values()]
    if not all(_is_share(share) for share in shares):
        yield "an efficiency is not a number above 0, and up to 1"
    gpus = content.get("gpus_per_server")
    if type(gpus) is not int or not 1 <= gpus <= _MOST_GPUS:
        yield "gpus_per_server is not a number of GPUs"


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_share(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= 1  # type: ignore[operator]
