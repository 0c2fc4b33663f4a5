"""Several runs at once: comparing two, and the tables of studies over many."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit._run as runs
from tracekit.errors import UsageError
from tracekit.store import Store

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis import BatchScope, Comparison

StrPath = str | os.PathLike[str]


def compare(
    a: runs.Run,
    b: runs.Run,
    by: str | Sequence[str] = "stage",
    *,
    skip: int = 0,
    match_names: bool = False,
    topology: StrPath | None = None,
    anyway: bool = False,
) -> Comparison:
    """Compare two runs, step by step; see `tracekit.analysis.compare`.

    Parameters
    ----------
    a, b
        The runs.
    by
        Keys such as ``stage`` or ``kernel``, as a sequence or separated by commas.
    skip
        How many iterations to leave out at the beginning of each.
    match_names
        Whether kernels that a library's upgrade renamed are taken for the same.
    topology
        By link: the machine, as for `Run.traffic`.
    anyway
        Whether runs that are not comparable get verdicts too.
    """
    from tracekit.analysis import compare as compare_traces

    moved = (a.traffic(topology=topology), b.traffic(topology=topology)) if "link" in by else None
    names = (a.name, b.name) if a.name != b.name else ("A", "B")
    return compare_traces(
        a.trace,
        b.trace,
        by,
        skip=skip,
        names=names,
        match_names=match_names,
        traffic=moved,
        labels=(a.labels, b.labels),
        anyway=anyway,
    )


def select_runs(
    references: Sequence[StrPath] = (),
    *,
    where: Mapping[str, str] | None = None,
    store: StrPath | None = None,
) -> list[runs.Run]:
    """Return the runs of a study: those that are named, and those that carry some labels.

    Parameters
    ----------
    references
        Names of runs, beginnings of ids, ``@latest``, or trace files.
    where
        Labels that all runs of the study carry. Without references and labels, all runs of the
        store are meant.

    Raises
    ------
    UsageError
        If there is no such run.
    """
    named = [runs.open(reference, store=store) for reference in references]
    if references and not where:
        return named
    place = Store.discover(None if store is None else Path(store))
    known = {run.id for run in named}
    labelled = [runs.Run(record, place) for record in place.runs(where) if record.id not in known]
    if not named and not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in (where or {}).items())
        raise UsageError(
            f"no run with {wanted}" if wanted else "the store holds no runs",
            "`tracekit runs` lists runs and labels; `tracekit ingest FILE --label KEY=VALUE` adds",
        )
    return [*named, *labelled]


def study(
    references: Sequence[StrPath] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    skip: int = 0,
    batch_scope: BatchScope = "gpu",
    store: StrPath | None = None,
) -> pl.DataFrame:
    """Return the table of a study, one row per run; see `tracekit.analysis.study_row`.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`.
    table
        A file of times that were measured elsewhere instead; see `tracekit.analysis.read_times`.
    skip
        How many iterations to leave out at the beginning of each run.
    batch_scope
        Whether a batch counts the images of each GPU or of all.

    Raises
    ------
    UsageError
        If some runs hold GPU work and others none: their times are not set against each other.
    """
    return study_with_meta(
        references, where=where, table=table, skip=skip, batch_scope=batch_scope, store=store
    )[0]


def study_with_meta(
    references: Sequence[StrPath] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    skip: int = 0,
    batch_scope: BatchScope = "gpu",
    store: StrPath | None = None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return `study`, and ``verdicts``, what the processes of each run do; of a table nothing."""
    from tracekit import analysis

    if table is not None:
        if references or where:
            raise UsageError("a study is of runs or of a table", "give either, not both")
        return analysis.read_times(Path(table)), {}
    chosen = select_runs(references, where=where, store=store)
    found = analysis.study(
        analysis.study_row(run.trace, run.labels, run.name, skip=skip, batch_scope=batch_scope)
        for run in chosen
    )
    analysis.basis_of(found)
    return found, verdicts_of(chosen)


def verdicts_of(chosen: Sequence[runs.Run]) -> dict[str, Any]:
    """Return as ``verdicts`` what the processes of each run do, by the run's name."""
    return {"verdicts": {run.name: run.verdict_meta(in_words=False) for run in chosen}}


def memory_points(chosen: Sequence[runs.Run], samples: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the memory of each GPU of several runs, for what is compared between them.

    Returns
    -------
    ``run, network, batch, method`` (labels), ``gpu`` and the columns of
    `tracekit.analysis.memory_use`.
    """
    return memory_points_with_meta(chosen, samples)[0]


def memory_points_with_meta(
    chosen: Sequence[runs.Run], samples: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, dict[str, dict[str, Any]]]:
    """Return `memory_points`, and by run's name what is not known of its memory."""
    import polars as pl

    from tracekit.analysis import memory_use_with_meta

    found = {run.name: memory_use_with_meta(run.trace, samples) for run in chosen}
    points = pl.concat(
        found[run.name][0].select(
            *_labelled(run), pl.col("device").cast(pl.Int64).alias("gpu"), pl.all()
        )
        for run in chosen
    )
    return points, {name: meta for name, (_, meta) in found.items()}


def _labelled(run: runs.Run) -> list[pl.Expr]:
    """Return a run's name, and what its labels say of it, as columns."""
    import polars as pl

    from tracekit.analysis import batch_label

    words = {"run": run.name, **{key: run.labels.get(key) for key in ("network", "method")}}
    batch = pl.lit(batch_label(run.labels, run.name), pl.Int64)
    return [*(pl.lit(word, pl.String).alias(key) for key, word in words.items()),
            batch.alias("batch")]  # fmt: skip
