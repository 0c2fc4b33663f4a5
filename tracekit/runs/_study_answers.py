"""What is said of chosen runs as a study, however they were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracekit.errors import MissingDataError
from tracekit.runs._facts import facts_of, require_known
from tracekit.runs._opened import OpenedRun

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.comparison import Skip
    from tracekit.analysis.studies import Along, BatchScope
    from tracekit.model import Answer

_WHATS = ("runs", "exchange")
_FEW = 4
"""So many runs are called by their names."""


@dataclass(frozen=True)
class Studied:
    """The table of a study, a row per run.

    Parameters
    ----------
    rows
        The table; see `tracekit.analysis.studies.study`.
    said
        What answers say of its runs; of times that were measured elsewhere nothing.
    is_apart
        Whether its runs were named one by one, so that those with the same labels stay apart.
    """

    rows: pl.DataFrame
    said: Mapping[str, Any] = field(default_factory=dict)
    is_apart: bool = False


def check_what(what: str) -> None:
    """Raise `UsageError` where that is nothing that can be said of a study."""
    require_known(what, "a study", _WHATS)


def studied(
    chosen: Sequence[OpenedRun],
    *,
    skip: Skip = "auto",
    batch_scope: BatchScope = "gpu",
    is_apart: bool = True,
) -> Studied:
    """Return runs as a study; see `tracekit.studies.study` for the parameters.

    Raises
    ------
    UsageError
        If some runs hold GPU work and others none: their times are not set against each other.
    """
    from tracekit.analysis import studies

    for run in chosen:
        run.require_memory("study")
    found = studies.study(
        studies.study_row(run.trace, run.labels, run.name, skip=skip, batch_scope=batch_scope)
        for run in chosen
    )
    studies.basis_of(found)
    return Studied(found, facts_of(chosen), is_apart)


def study_answer(
    of: Studied,
    *,
    what: str = "runs",
    images: int | None = None,
    parameters: int | None = None,
    skip: Skip = "auto",
    batch_scope: BatchScope = "gpu",
) -> Answer:
    """List the runs of a study; see `tracekit.study`."""
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

    rows = of.rows
    if what == "exchange":
        asked = exchange(rows, parameters=parameters, images=images, batch_scope=batch_scope)
        return shown(
            asked.saying(skip=None if skip == "auto" else skip, batch_scope=batch_scope, **of.said),
            rows,
        )
    drawn = rows
    if images is not None:
        epoch = pl.col("step_ns") * study_iterations(images, batch_scope)
        rows = rows.with_columns(epoch_ns=pl.coalesce("epoch_ns", epoch))
        drawn = of_epochs(rows, images, batch_scope, STEP_TIMES)
    people = rows.drop("devices", "step_se_ns", "step_effective", cs.ends_with("_total_ns"))
    optional = ("step_low_ns", "step_high_ns", "parameters")
    people = people.drop(name for name in optional if not rows[name].count())
    if not rows["skipped"].sum():
        people = people.drop("skipped")
    if not rows["step_ns"].has_nulls():  # the window is that of all steps, and no time per step
        people = people.drop("window_ns")
    found = Answer(
        rows=rows,
        meta={
            "runs": rows.height,
            "skip": None if skip == "auto" else skip,
            "batch_scope": batch_scope,
            **per_step(rows),
            **({} if images is None else {"images": images}),
        },
        title="study",
        tables={"stages": study_stages(drawn, apart=of.is_apart)},
        people=people,
        empty="no runs",
        command="study",
        figures={"figure": "stages"},
    )
    return shown(found.saying(**of.said), rows)


def overhead_answer(
    of: Studied, *, baseline: str = "p2p", as_matrix: bool = False, crossover: Along | None = None
) -> Answer:
    """List what a way to communicate costs beside another; see `tracekit.overhead`."""
    from tracekit.analysis.studies import crossovers, overhead, overhead_matrix

    found = overhead(of.rows, baseline=baseline, apart=of.is_apart).saying(**of.said)
    drawn = replace(found, tables={"overheads": found.rows})
    if crossover is not None:
        asked = crossovers(found.rows, crossover).saying(baseline=baseline, **of.said)
        return shown(asked, of.rows)
    if as_matrix:
        return shown(replace(drawn, rows=overhead_matrix(found.rows), people=None), of.rows)
    is_of_steps = set(found.rows["time"].drop_nulls()) == {"step"}
    return shown(drawn.saying(**(per_step(of.rows) if is_of_steps else {})), of.rows)


def shown(answer: Answer, study: pl.DataFrame) -> Answer:
    """Return an answer that is made of a study, to be looked at."""
    from tracekit.present import FACE

    some = ", some of it simulated" if "simulated" in answer.meta else ""
    return replace(answer, source=_of_runs(study) + some, face=FACE)


def per_step(study: pl.DataFrame) -> dict[str, str]:
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


def api_answer(chosen: Sequence[OpenedRun]) -> Answer:
    """List calls of the CUDA API by run and method."""
    from tracekit.analysis import api_by_run, api_calls
    from tracekit.model import Answer
    from tracekit.present import FACE

    tables: dict[str, pl.DataFrame | None] = {}
    for run in chosen:
        run.require_memory("overhead api")
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


def profiler_answer(chosen: Sequence[OpenedRun]) -> Answer:
    """List what the profiler itself took, by run."""
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
