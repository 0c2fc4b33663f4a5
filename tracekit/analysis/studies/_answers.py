"""Answers about studies, with the runs that they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import polars.selectors as cs

from tracekit.analysis.studies._api_calls import api_by_run, api_calls, profiler_overhead
from tracekit.analysis.studies._epochs import BatchScope, of_epochs, study_iterations
from tracekit.analysis.studies._runs import Run
from tracekit.analysis.studies._study import STEP_TIMES, names_or_number, study_stages
from tracekit.errors import MissingDataError
from tracekit.model import Answer


def runs_answer(
    rows: pl.DataFrame,
    asked: Mapping[str, Any],
    *,
    images: int | None,
    batch_scope: BatchScope,
    apart: bool,
) -> Answer:
    """List the runs of a study; see `tracekit.study`."""
    drawn = rows
    if images is not None:
        epoch = pl.col("step_ns") * study_iterations(images, batch_scope)
        rows = rows.with_columns(epoch_ns=pl.coalesce("epoch_ns", epoch))
        drawn = of_epochs(rows, images, batch_scope, STEP_TIMES)
    people = rows.drop(
        "devices", "step_se_ns", "step_effective", "slow_every", cs.ends_with("_total_ns")
    )
    optional = ("step_low_ns", "step_high_ns", "parameters")
    people = people.drop(name for name in optional if not rows[name].count())
    if not rows["skipped"].sum():
        people = people.drop("skipped")
    if not rows["step_ns"].has_nulls():  # the window is that of all steps, and no time per step
        people = people.drop("window_ns")
    return Answer(
        rows=rows,
        meta={
            "runs": rows.height,
            **asked,
            **per_step(rows),
            **({} if images is None else {"images": images}),
        },
        title="study",
        tables={"stages": study_stages(drawn, apart=apart)},
        people=people,
        empty="no runs",
        command="study",
        figures={"figure": "stages"},
    )


def of_study(answer: Answer, study: pl.DataFrame) -> Answer:
    """Return an answer about a study."""
    some = ", some of it simulated" if "simulated" in answer.meta else ""
    return replace(answer, source=_of_runs(study) + some)


def per_step(study: pl.DataFrame) -> dict[str, str]:
    """Say what times of steps are means over, where there are any."""
    if not study["step_ns"].count():
        return {}
    return {"per": "step/process" if "host" in study["basis"] else "step/GPU"}


def _of_runs(study: pl.DataFrame) -> str:
    """Say which runs a figure is of, by name where they are few, and what was measured."""
    names = study["run"].drop_nulls().to_list()
    told = names_or_number(names) if names else f"{study.height:,} runs"
    known = set(study["basis"].drop_nulls())
    measured = {"host": ", measured on the host", "gpu": ", measured on GPUs"}
    return told + "".join(measured[basis] for basis in sorted(known))


def api_answer(runs: Sequence[Run]) -> Answer:
    """List calls of the CUDA API by run and method."""
    tables: dict[str, pl.DataFrame | None] = {}
    for run in runs:
        try:
            tables[run.name] = api_calls(run.trace)
        except MissingDataError:
            tables[run.name] = None
    rows = api_by_run(tables, {run.name: run.labels.get("method") for run in runs})
    return Answer(rows=rows, title="CUDA API calls by run", command="overhead")


def profiler_answer(runs: Sequence[Run]) -> Answer:
    """List the profiler's overhead, by run."""
    rows = pl.concat(
        profiler_overhead(run.trace).select(pl.lit(run.name).alias("run"), pl.all()) for run in runs
    )
    return Answer(
        rows=rows, title="time of the profiler", empty="none was recorded", command="overhead"
    )
