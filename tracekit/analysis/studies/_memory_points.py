"""Memory in use on the GPUs of runs, and tables of memory measured elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis.memory import (
    largest_batch,
    memory_extra,
    memory_growth,
    memory_table,
    memory_use,
)
from tracekit.analysis.studies._epochs import MOST_BATCH, batch_label
from tracekit.analysis.studies._measured_elsewhere import check_values, text_table, whole_number
from tracekit.errors import InputError, UsageError
from tracekit.model import Run

_KEYS = ("network", "method", "source")
"""Columns within which memory is compared; samples of nvidia-smi and allocations differ."""
_WORDS = ("network", "method")
_BYTES = ("pre_bytes", "training_bytes")
_MOST_GPU, _MOST_BYTES = 1 << 20, 1 << 60
_REQUIRED = ("batch", "gpu", "training_bytes")
_EXAMPLE = "network,batch,gpu,pre_bytes,training_bytes"


def memory_points(chosen: Iterable[Run]) -> pl.DataFrame:
    """Return the memory of each GPU of several runs, to compare them.

    Returns
    -------
    ``run, network, batch, method`` (labels), ``gpu`` and the columns of `memory_use`.
    """
    return memory_of(chosen, None)[0]


def memory_of(
    chosen: Iterable[Run], samples: pl.DataFrame | None
) -> tuple[pl.DataFrame, dict[str, Mapping[str, Any]]]:
    """Return the memory of each GPU of several runs, and what is known of each run's memory.

    Returns
    -------
    A row per run and GPU, as `memory_points` returns; and the ``meta`` of `memory_use` by name of
    the run: the metadata of the command `memory`.
    """
    runs = [*chosen]
    found = {run.name: memory_use(run.trace, samples) for run in runs}
    points = pl.concat(
        found[run.name].rows.select(
            *_labelled(run), pl.col("device").cast(pl.Int64).alias("gpu"), pl.all()
        )
        for run in runs
    )
    return points, {name: answer.meta for name, answer in found.items()}


def _labelled(run: Run) -> list[pl.Expr]:
    """Return a run's name and labels as columns."""
    words = {"run": run.name, **{key: run.labels.get(key) for key in ("network", "method")}}
    batch = pl.lit(batch_label(run.labels, run.name), pl.Int64)
    return [*(pl.lit(word, pl.String).alias(key) for key, word in words.items()),
            batch.alias("batch")]  # fmt: skip


def memory_rows(
    table: str, points: pl.DataFrame, root: int, capacity: int | None, margin: float
) -> pl.DataFrame:
    """Return the table on GPU memory named `table`, such as ``extra``; see `tracekit.memory`."""
    by = [name for name in _KEYS if name in points.columns]
    match table:
        case "use":
            return points.drop("gpu", strict=False) if "device" in points.columns else points
        case "table":
            return memory_table(points, root=root, by=by)
        case "extra":
            return memory_extra(points, root=root, by=[*by, "batch"])
        case "growth":
            return memory_growth(points, root=root, by=by)
    if capacity is None:
        raise UsageError("the largest batch depends on the GPU", "give --capacity 16GiB")
    return largest_batch(points.filter(gpu=root), capacity, margin, by=by)


def read_memory_table(path: Path) -> pl.DataFrame:
    """Read a table of memory use by GPU: comma-separated text with a line of column names.

    Parameters
    ----------
    path
        The file, with columns in any order: ``network`` and ``method`` (words, may be absent),
        ``batch``, ``gpu`` (its number), ``pre_bytes`` (may be absent) and ``training_bytes``.

    Returns
    -------
    ``network, method, batch, gpu, pre_bytes, training_bytes``; null if the file does not state it.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing or unknown, or a value is invalid. The
        message names it.
    """
    table = text_table(path)
    absent = [name for name in _REQUIRED if name not in table.columns]
    unknown = [name for name in table.columns if name not in (*_WORDS, *_BYTES, *_REQUIRED)]
    if absent or unknown:
        problem = f"no column {absent[0]}" if absent else f"the unknown column {unknown[0]!r}"
        raise InputError(f"{path} has {problem}", f"its columns are as {_EXAMPLE}")
    ranges = {"batch": (1, MOST_BATCH), "gpu": (0, _MOST_GPU)} | dict.fromkeys(
        _BYTES, (0, _MOST_BYTES)
    )
    numbers = {
        name: whole_number(name, most, least)
        for name, (least, most) in ranges.items()
        if name in table.columns
    }
    for name, read in numbers.items():
        least, most = ranges[name]
        check_values(table, path, name, read, f"a whole number from {least} to {most}")
    return table.select(
        *(
            (pl.col(name) if name in table.columns else pl.lit(None, pl.String)).alias(name)
            for name in _WORDS
        ),
        *(numbers.get(name, pl.lit(None, pl.Int64)).alias(name) for name in ranges),
    )
