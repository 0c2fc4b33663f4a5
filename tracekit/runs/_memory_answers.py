"""What is said of the memory of chosen runs, however they were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.runs._facts import facts_of, require_known
from tracekit.runs._opened import OpenedRun

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer

_KEYS = ("network", "method", "source")
"""What memory is compared within; samples of nvidia-smi hold what allocations do not."""
_FIGURES = {
    "use": "memory use",
    "table": "memory extra",
    "extra": "memory extra",
    "growth": "memory growth",
    "largest-batch": "memory fit",
}


@dataclass(frozen=True)
class Remembered:
    """The memory of GPUs, a row each, and what is said of where it comes from."""

    points: pl.DataFrame
    said: Mapping[str, Any]


def check_what(what: str) -> None:
    """Raise `UsageError` where that is nothing that can be said of memory."""
    require_known(what, "memory", _FIGURES)


def remembered(chosen: Sequence[OpenedRun], samples: pl.DataFrame | None = None) -> Remembered:
    """Return the memory of runs, of which samples of nvidia-smi may say more."""
    points, metas = _of_runs(chosen, samples)
    told = [f"{name}: {text}" for name, meta in metas.items()
            for text in (*meta["missing"], *meta["warnings"])]  # fmt: skip
    peak = {"peak_of": "each GPU"}
    return Remembered(points, {"runs": list(metas), **facts_of(chosen), "warnings": told, **peak})


def memory_answer(
    of: Remembered,
    *,
    what: str = "use",
    root: int = 0,
    capacity: int | None = None,
    margin: float = 0.1,
) -> Answer:
    """List memory by GPU, and what follows from it; see `tracekit.memory`."""
    from tracekit.model import Answer
    from tracekit.present import FACE

    meta = dict(of.said)
    if "peak_of" in meta and what != "use":
        meta["peak_of"] = f"GPU {root} in training"
    return Answer(
        rows=_rows(what, of.points, root, capacity, margin),
        meta=meta,
        title=f"memory · {what}",
        tables={"points": of.points},
        empty="no memory was recorded",
        command="memory",
        figures={"figure": _FIGURES[what]},
        source={"root": root, "capacity": capacity},
        face=FACE,
    )


def memory_points(chosen: Sequence[OpenedRun]) -> pl.DataFrame:
    """Return the memory of each GPU of several runs, for what is compared between them.

    Returns
    -------
    ``run, network, batch, method`` (labels), ``gpu`` and the columns of
    `tracekit.analysis.studies.memory_use`.
    """
    return _of_runs(chosen, None)[0]


def _of_runs(
    chosen: Sequence[OpenedRun], samples: pl.DataFrame | None
) -> tuple[pl.DataFrame, dict[str, Mapping[str, Any]]]:
    """Return `memory_points`, and by run's name what is not known of its memory."""
    import polars as pl

    from tracekit.analysis.studies import memory_use

    found = {run.name: memory_use(run.trace, samples) for run in chosen}
    points = pl.concat(
        found[run.name].rows.select(
            *_labelled(run), pl.col("device").cast(pl.Int64).alias("gpu"), pl.all()
        )
        for run in chosen
    )
    return points, {name: answer.meta for name, answer in found.items()}


def _labelled(run: OpenedRun) -> list[pl.Expr]:
    """Return a run's name, and what its labels say of it, as columns."""
    import polars as pl

    from tracekit.analysis.studies import batch_label

    words = {"run": run.name, **{key: run.labels.get(key) for key in ("network", "method")}}
    batch = pl.lit(batch_label(run.labels, run.name), pl.Int64)
    return [*(pl.lit(word, pl.String).alias(key) for key, word in words.items()),
            batch.alias("batch")]  # fmt: skip


def _rows(
    what: str, points: pl.DataFrame, root: int, capacity: int | None, margin: float
) -> pl.DataFrame:
    from tracekit.analysis import studies
    from tracekit.analysis.studies import memory_table

    by = [name for name in _KEYS if name in points.columns]
    match what:
        case "use":
            return points.drop("gpu", strict=False) if "device" in points.columns else points
        case "table":
            return memory_table(points, root=root, by=by)
        case "extra":
            return studies.memory_extra(points, root=root, by=[*by, "batch"])
        case "growth":
            return studies.memory_growth(points, root=root, by=by)
    if capacity is None:
        raise UsageError("the largest batch depends on the GPU", "give --capacity 16GiB")
    return studies.largest_batch(points.filter(gpu=root), capacity, margin, by=by)
