"""Several runs at once: the tables of studies over many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.runs._question import question_of
from tracekit.runs._selecting import Reference, select_runs
from tracekit.runs._study_answers import (
    Studied,
    api_answer,
    check_what,
    overhead_answer,
    per_step,
    profiler_answer,
    shown,
    studied,
    study_answer,
)
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Skip
    from tracekit.analysis.studies import Along, BatchScope, ScalingMode, ScalingTime
    from tracekit.model import Answer

_VALUES = {
    "speedup": "speedup",
    "efficiency": "efficiency",
    "time": "run time",
    "images": "images per second",
    "stages": "stage speedups",
}


@question_of
def study(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    what: str = "runs",
    images: int | None = None,
    parameters: int | None = None,
    skip: Skip = "auto",
    batch_scope: BatchScope = "gpu",
    store: StrPath | None = None,
) -> Answer:
    """List runs as a study, one row per run; see `tracekit.analysis.studies.study_row`.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`.
    table
        A file of times that were measured elsewhere instead; see `analysis.studies.read_times`.
    what
        ``runs``, or ``exchange``: bytes that must be and were exchanged; see
        `tracekit.analysis.studies.exchange`.
    images
        Size of the data set, of a GPU for runs labelled ``weak``: gives times of epochs, and the
        figure is of these.
    parameters
        Number of the network's parameters, of runs without that label.
    skip
        How many iterations to leave out at the beginning of each run.
    batch_scope
        Whether a batch counts the images of each GPU or of all.

    Raises
    ------
    UsageError
        If some runs hold GPU work and others none: their times are not set against each other.
    """
    check_what(what)
    of = _studied(references, where, table, skip, batch_scope, store)
    return study_answer(
        of, what=what, images=images, parameters=parameters, skip=skip, batch_scope=batch_scope
    )


@question_of
def scaling(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    mode: ScalingMode = "strong",
    images: int | None = None,
    time: ScalingTime | None = None,
    value: str = "speedup",
    skip: Skip = "auto",
    batch_scope: BatchScope = "gpu",
    store: StrPath | None = None,
) -> Answer:
    """List speedup, efficiency and throughput by number of GPUs; see `analysis.studies.scaling`.

    Parameters
    ----------
    references, where, table, skip, batch_scope
        As for `study`.
    mode, images, time
        As for `tracekit.analysis.studies.scaling`.
    value
        What the figure shows: ``speedup``, ``efficiency``, ``time``, ``images`` (per second), or
        ``stages``, the speedups of FP+BP and WU.
    """
    from tracekit.analysis.studies import scaling

    of = _studied(references, where, table, skip, batch_scope, store)
    found = scaling(
        of.rows, mode=mode, images=images, batch_scope=batch_scope, time=time, apart=of.is_apart
    )
    per = per_step(of.rows) if found.meta["time"] == "step" else {}
    if value not in _VALUES:
        raise UsageError(f"no scaling curves of {value!r}", f"choose {' or '.join(_VALUES)}")
    drawn = replace(found.saying(**of.said, **per), figures={"figure": _VALUES[value]})
    return shown(drawn, of.rows)


@question_of
def overhead(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    baseline: str = "p2p",
    as_matrix: bool = False,
    api: bool = False,
    profiler: bool = False,
    crossover: Along | None = None,
    skip: Skip = "auto",
    store: StrPath | None = None,
) -> Answer:
    """List what a way to communicate costs beside another; see `analysis.studies.overhead`.

    Parameters
    ----------
    references, where, table, skip
        As for `study`.
    baseline
        The method to hold others against.
    as_matrix
        Lay it out as a column per batch.
    api, profiler
        List calls of the CUDA API by run and method instead, or what the profiler itself took.
    crossover
        Tell by which ``batch`` or number of ``parameters`` methods overtake the baseline instead;
        see `tracekit.analysis.studies.crossovers`.
    """
    if api or profiler:
        if table is not None:
            raise UsageError(
                "calls and the profiler's time are of runs", "leave out --api and --profiler"
            )
        chosen = select_runs(references, where=where, store=store)
        return api_answer(chosen) if api else profiler_answer(chosen)
    of = _studied(references, where, table, skip, "gpu", store)
    return overhead_answer(of, baseline=baseline, as_matrix=as_matrix, crossover=crossover)


def _studied(
    references: Sequence[Reference],
    where: Mapping[str, str] | None,
    table: StrPath | None,
    skip: Skip,
    batch_scope: BatchScope,
    store: StrPath | None,
) -> Studied:
    """Return the study of runs, or of a table of times."""
    if table is None:
        chosen = select_runs(references, where=where, store=store)
        return studied(chosen, skip=skip, batch_scope=batch_scope, is_apart=bool(references))
    if references or where:
        raise UsageError("a study is of runs or of a table", "give either, not both")
    from tracekit.analysis.studies import read_times

    return Studied(read_times(Path(table)))
