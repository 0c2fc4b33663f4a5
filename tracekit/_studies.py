"""Several runs at once: the tables of studies over many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit._run as runs
from tracekit._question import Question
from tracekit._questions import is_simulated
from tracekit.errors import MissingDataError, UsageError
from tracekit.store import Store
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.studies import Along, BatchScope, ScalingMode, ScalingTime
    from tracekit.model import Answer

Reference = StrPath | runs.Run
"""How a run may be named."""
_VALUES = {
    "speedup": "speedup",
    "efficiency": "efficiency",
    "time": "run time",
    "images": "images per second",
    "stages": "stage speedups",
}
_WHATS = ("runs", "exchange")
_FEW = 4
"""So many runs are called by their names."""


def select_runs(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    store: StrPath | None = None,
) -> list[runs.Run]:
    """Return the runs of a study: those that are named, and those that carry some labels.

    Parameters
    ----------
    references
        Runs; or their names, beginnings of ids, ``@latest``, or trace files.
    where
        Labels that all runs of the study carry. Without references and labels, all runs of the
        store are meant.

    Raises
    ------
    UsageError
        If there is no such run.
    """
    named = [
        reference if isinstance(reference, runs.Run) else runs.open(reference, store=store)
        for reference in references
    ]
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


@Question
def study(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    what: str = "runs",
    images: int | None = None,
    parameters: int | None = None,
    skip: int = 0,
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
    import polars as pl
    import polars.selectors as cs

    from tracekit.analysis.studies import (
        STEP_TIMES,
        exchange,
        of_epochs,
        study_iterations,
        study_stages,
    )
    from tracekit.model import Answer

    if what not in _WHATS:
        raise UsageError(f"{what!r} is not known of a study", f"ask for {', '.join(_WHATS)}")
    rows, verdicts = _studied(references, where, table, skip, batch_scope, store)
    if what == "exchange":
        asked = exchange(rows, parameters=parameters, images=images, batch_scope=batch_scope)
        return _shown(asked.saying(skip=skip, batch_scope=batch_scope, **verdicts), rows)
    drawn = rows
    if images is not None:
        epoch = pl.col("step_ns") * study_iterations(images, batch_scope)
        rows = rows.with_columns(epoch_ns=pl.coalesce("epoch_ns", epoch))
        drawn = of_epochs(rows, images, batch_scope, STEP_TIMES)
    people = rows.drop("devices", "step_se_ns", "step_effective", cs.ends_with("_total_ns"))
    optional = ("step_low_ns", "step_high_ns", "parameters")
    people = people.drop(name for name in optional if not rows[name].count())
    if not rows["step_ns"].has_nulls():  # the window is that of all steps, and no time per step
        people = people.drop("window_ns")
    found = Answer(
        rows=rows,
        meta={
            "runs": rows.height,
            "skip": skip,
            "batch_scope": batch_scope,
            **_per(rows),
            **({} if images is None else {"images": images}),
        },
        title="study",
        tables={"stages": study_stages(drawn, apart=bool(references))},
        people=people,
        empty="no runs",
        command="study",
        figures={"figure": "stages"},
    )
    return _shown(found.saying(**verdicts), rows)


@Question
def scaling(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    table: StrPath | None = None,
    mode: ScalingMode = "strong",
    images: int | None = None,
    time: ScalingTime | None = None,
    value: str = "speedup",
    skip: int = 0,
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

    study, verdicts = _studied(references, where, table, skip, batch_scope, store)
    found = scaling(
        study, mode=mode, images=images, batch_scope=batch_scope, time=time, apart=bool(references)
    )
    per = _per(study) if found.meta["time"] == "step" else {}
    if value not in _VALUES:
        raise UsageError(f"no scaling curves of {value!r}", f"choose {' or '.join(_VALUES)}")
    drawn = replace(found.saying(**verdicts, **per), figures={"figure": _VALUES[value]})
    return _shown(drawn, study)


@Question
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
    skip: int = 0,
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
    from tracekit.analysis.studies import crossovers, overhead, overhead_matrix

    if api or profiler:
        if table is not None:
            raise UsageError(
                "calls and the profiler's time are of runs", "leave out --api and --profiler"
            )
        chosen = select_runs(references, where=where, store=store)
        return _api(chosen) if api else _profiler(chosen)
    study, verdicts = _studied(references, where, table, skip, "gpu", store)
    found = overhead(study, baseline=baseline, apart=bool(references)).saying(**verdicts)
    drawn = replace(found, tables={"overheads": found.rows})
    if crossover is not None:
        asked = crossovers(found.rows, crossover).saying(baseline=baseline, **verdicts)
        return _shown(asked, study)
    if as_matrix:
        return _shown(replace(drawn, rows=overhead_matrix(found.rows), people=None), study)
    is_of_steps = set(found.rows["time"].drop_nulls()) == {"step"}
    return _shown(drawn.saying(**(_per(study) if is_of_steps else {})), study)


def _studied(
    references: Sequence[Reference],
    where: Mapping[str, str] | None,
    table: StrPath | None,
    skip: int,
    batch_scope: BatchScope,
    store: StrPath | None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the table of a study, and what the processes of each run do; of a table nothing."""
    from tracekit.analysis import studies

    if table is not None:
        if references or where:
            raise UsageError("a study is of runs or of a table", "give either, not both")
        return studies.read_times(Path(table)), {}
    chosen = select_runs(references, where=where, store=store)
    found = studies.study(
        studies.study_row(run.trace, run.labels, run.name, skip=skip, batch_scope=batch_scope)
        for run in chosen
    )
    studies.basis_of(found)
    return found, facts_of(chosen)


def facts_of(chosen: Sequence[runs.Run]) -> dict[str, Any]:
    """Return as ``verdicts`` what the processes of each run do, and which are ``simulated``."""
    from tracekit.analysis import verdict_meta

    verdicts = {run.name: verdict_meta(run.trace) for run in chosen}
    return {"verdicts": verdicts, **simulated_of(chosen)}


def simulated_of(chosen: Sequence[runs.Run]) -> dict[str, Any]:
    """Return as ``simulated`` the names of runs that no GPU ran; nothing where there is none."""
    names = [run.name for run in chosen if is_simulated(run)]
    return {"simulated": names} if names else {}


def _shown(answer: Answer, study: pl.DataFrame) -> Answer:
    """Return an answer that is made of a study, to be looked at."""
    from tracekit.present import FACE

    some = ", some of it simulated" if "simulated" in answer.meta else ""
    return replace(answer, source=_of_runs(study) + some, face=FACE)


def _per(study: pl.DataFrame) -> dict[str, str]:
    """Say what times of steps are means over, where there are any."""
    if not study["step_ns"].count():
        return {}
    return {"per": "step/process" if "host" in study["basis"] else "step/GPU"}


def _of_runs(study: pl.DataFrame) -> str:
    """Say which runs a figure is of, by name where they are few, and what was measured."""
    names = study["run"].drop_nulls().to_list()
    told = ", ".join(names) if names and len(names) <= _FEW else f"{study.height:,} runs"
    known = set(study["basis"].drop_nulls())
    measured = {"host": ", measured on the host", "gpu": ", measured on GPUs"}
    return told + "".join(measured[basis] for basis in sorted(known))


def _api(chosen: Sequence[runs.Run]) -> Answer:
    from tracekit.analysis import api_by_run, api_calls
    from tracekit.model import Answer
    from tracekit.present import FACE

    tables: dict[str, pl.DataFrame | None] = {}
    for run in chosen:
        try:
            tables[run.name] = api_calls(run.trace).rows
        except MissingDataError:
            tables[run.name] = None
    methods = {run.name: run.labels.get("method") for run in chosen}
    rows = api_by_run(tables, methods)
    return Answer(
        rows=rows,
        meta=facts_of(chosen),
        title="CUDA API calls by run",
        command="overhead",
        face=FACE,
    )


def _profiler(chosen: Sequence[runs.Run]) -> Answer:
    import polars as pl

    from tracekit.analysis import profiler_overhead
    from tracekit.model import Answer
    from tracekit.present import FACE

    rows = pl.concat(
        profiler_overhead(run.trace).select(pl.lit(run.name).alias("run"), pl.all())
        for run in chosen
    )
    return Answer(
        rows=rows,
        meta=facts_of(chosen),
        title="time of the profiler",
        empty="none was recorded",
        command="overhead",
        face=FACE,
    )
