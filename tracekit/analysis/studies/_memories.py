"""Memory of runs, one by one and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from tracekit.analysis.memory import (
    largest_batch,
    memory_extra,
    memory_growth,
    memory_table,
    memory_use,
)
from tracekit.analysis.studies._run_labels import batch_label
from tracekit.analysis.studies._runs import Run
from tracekit.errors import UsageError

_KEYS = ("network", "method", "source")
"""What memory is compared within; samples of nvidia-smi hold what allocations do not."""


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
    """Return `memory_points`, and by run what is unknown about its memory."""
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
    """Return a run's name, and what its labels say of it, as columns."""
    words = {"run": run.name, **{key: run.labels.get(key) for key in ("network", "method")}}
    batch = pl.lit(batch_label(run.labels, run.name), pl.Int64)
    return [*(pl.lit(word, pl.String).alias(key) for key, word in words.items()),
            batch.alias("batch")]  # fmt: skip


def memory_rows(
    what: str, points: pl.DataFrame, root: int, capacity: int | None, margin: float
) -> pl.DataFrame:
    """Answer a question about the memory of GPUs; see `tracekit.memory`."""
    by = [name for name in _KEYS if name in points.columns]
    match what:
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
