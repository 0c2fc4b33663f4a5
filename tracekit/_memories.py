"""How much memory runs take: of each, and of several beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit._question import Question
from tracekit._studies import Reference, facts_of, select_runs
from tracekit.errors import UsageError
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl

    from tracekit._run import Run
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


@Question
def memory(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    what: str = "use",
    smi: StrPath | None = None,
    table: StrPath | None = None,
    root: int = 0,
    capacity: int | None = None,
    margin: float = 0.1,
    store: StrPath | None = None,
) -> Answer:
    """List memory before and in training by GPU, the root's extra, growth, or the largest batch.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`.
    what
        ``use`` (see `tracekit.analysis.studies.memory_use`), ``table`` (`memory_table`),
        ``extra`` (`memory_extra`), ``growth`` (`memory_growth`) or ``largest-batch``
        (`largest_batch`).
    smi
        A file of samples of nvidia-smi.
    table
        A file of what was measured elsewhere instead; see `analysis.studies.read_memory_table`.
    root
        The GPU that gathers gradients.
    capacity
        Memory of a GPU, bytes.
    margin
        Part of it that is to stay free, 0 to 1.

    Raises
    ------
    UsageError
        If an option is unknown or lacks.
    """
    from tracekit.model import Answer
    from tracekit.present import FACE

    if what not in _FIGURES:
        raise UsageError(f"{what!r} is not known of memory", f"ask for {', '.join(_FIGURES)}")
    points, meta = _points(references, where, smi, table, store)
    if table is None:
        meta["peak_of"] = "each GPU" if what == "use" else f"GPU {root} in training"
    return Answer(
        rows=_rows(what, points, root, capacity, margin),
        meta=meta,
        title=f"memory · {what}",
        tables={"points": points},
        empty="no memory was recorded",
        command="memory",
        figures={"figure": _FIGURES[what]},
        source={"root": root, "capacity": capacity},
        face=FACE,
    )


def memory_points(chosen: Sequence[Run], samples: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the memory of each GPU of several runs, for what is compared between them.

    Returns
    -------
    ``run, network, batch, method`` (labels), ``gpu`` and the columns of
    `tracekit.analysis.studies.memory_use`.
    """
    return _of_runs(chosen, samples)[0]


def _points(
    references: Sequence[Reference],
    where: Mapping[str, str] | None,
    smi: StrPath | None,
    table: StrPath | None,
    store: StrPath | None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    from tracekit.analysis.studies import read_memory_table
    from tracekit.sources import read_smi

    if table is not None:
        if references or where or smi is not None:
            raise UsageError("memory is of runs or of a table", "give either, not both")
        return read_memory_table(Path(table)), {"table": str(table)}
    chosen = select_runs(references, where=where, store=store)
    points, metas = _of_runs(chosen, None if smi is None else read_smi(Path(smi)))
    told = [f"{name}: {text}" for name, meta in metas.items()
            for text in (*meta["missing"], *meta["warnings"])]  # fmt: skip
    return points, {"runs": list(metas), **facts_of(chosen), "warnings": told}


def _of_runs(
    chosen: Sequence[Run], samples: pl.DataFrame | None
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


def _labelled(run: Run) -> list[pl.Expr]:
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
