"""Jobs of the analytical model of training: computation, input and traffic of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis.studies._hardware import read_toml
from tracekit.analysis.studies._times import check_values, text_table
from tracekit.errors import InputError
from tracekit.support.resources import schemas

MEDIA: Mapping[str, tuple[str, ...]] = {
    "1w1g": (),
    "1wng": ("pcie",),
    "PS/Worker": ("ethernet", "pcie"),
    "AllReduce-Local": ("nvlink",),
    "AllReduce-Cluster": ("ethernet", "nvlink"),
    "PEARL": ("nvlink",),
}
"""The links that weights and gradients cross, one after another, by architecture."""

LOCAL = ("1wng", "AllReduce-Local", "PEARL")
"""Architectures whose replicas are in one server."""

_VOLUMES = (
    "flops", "memory_bytes", "input_bytes", "weight_bytes", "embedding_bytes", "touched_bytes",
)  # fmt: skip
MEASURED = (
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
        **dict.fromkeys((*_VOLUMES, *MEASURED), pl.Float64),
    }
)
"""Columns of a table of jobs; `read_jobs` says what they mean."""

_WHOLE = ("workers", "batch")
_MOST = 1e30
_MOST_WHOLE = 10**9


def job_names() -> list[str]:
    """Return the names of the bundled tables of jobs."""
    return sorted(path.stem for path in (schemas() / "jobs").glob("*.toml"))


def read_jobs(name: str) -> pl.DataFrame:
    """Read a table of jobs: TOML with ``[[job]]``, or comma-separated text with column names.

    Parameters
    ----------
    name
        The file, or the name of one that comes with tracekit. Of each job it says

        ====================  =====================================================================
        ``name`` (``job``)    its name
        ``architecture``      one of `MEDIA`
        ``workers``           replicas, each on a GPU of its own
        ``batch``             samples of a step, of each of them
        ``flops``             floating point operations of a step, of each
        ``memory_bytes``      bytes that its kernels read from and write to the memory of the GPU
        ``input_bytes``       bytes of input that are copied to the GPU
        ``weight_bytes``      bytes of weights and gradients that it exchanges
        ``embedding_bytes``   how many of these are of embedding tables; none where it is left out
        ``touched_bytes``     how many bytes the rows of these have that a step touches
        ``measured_s``        how long a step took, s; ``measured_input_s``, ``_compute_s``,
                              ``_memory_s`` and ``_weights_s``, what of it its components took
        ====================  =====================================================================

        Name, architecture and workers have to be there; what else is absent is not known.

    Returns
    -------
    The columns `JOBS`.

    Raises
    ------
    InputError
        If the file cannot be read, or says what cannot be. The message says where.
    """
    path = schemas() / "jobs" / f"{name}.toml" if name in job_names() else Path(name)
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
        what = f"the unknown key {unknown[0]!r}" if unknown else "no [[job]]"
        raise InputError(f"{path} has {what}", "schemas/jobs/worked.toml shows how it is written")
    if not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{path}: job is no list of tables", "write [[job]] above each of them")
    return [{"job" if key == "name" else key: value for key, value in job.items()} for job in jobs]


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    table = text_table(path)
    if "name" in table.columns and "job" not in table.columns:
        table = table.rename({"name": "job"})
    numbers = [name for name in table.columns if name in JOBS and JOBS[name] != pl.String]
    for name in numbers:
        check_values(table, path, name, _number(name), "a number")
    whole = [pl.col(name).cast(pl.Int64) for name in numbers if name in _WHOLE]
    read = table.with_columns(_number(name) for name in numbers).with_columns(whole)
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
        raise InputError(f"{path} has two jobs {twice!r}", "give each a name of its own")
    return jobs_frame(rows)


def _problems(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a job, and what would be right."""
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
    least = math.ulp(0.0) if name in MEASURED else 0.0
    return type(value) in (int, float) and least <= value <= _MOST  # type: ignore[operator]
