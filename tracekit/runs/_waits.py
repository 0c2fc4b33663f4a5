"""Waits of GPUs in one run or several: for input data, and for stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.runs._facts import of_run, simulated_of
from tracekit.runs._question import question_of
from tracekit.runs._selecting import Reference, select_runs
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracekit.analysis.studies import Bubbles
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun

_STALLS = {
    "kernels": "kernel_ns", "waiting for the loader": "wait_ns", "copying input": "input_ns",
    "idle, other causes": "other_idle_ns",
}  # fmt: skip
"""Parts of a GPU's time in figures."""

_OUTSIDE = 0.01
"""Share of the steps from which on time outside of them is spoken of."""

Time = Reference | float
"""A run, or a time that was measured elsewhere, ns."""


@question_of
def stalls(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """Say how long GPUs wait for input data; see `tracekit.analysis.studies.data_stalls`.

    Of one run there is a row per device; of several, a row per run with means over its steps and
    devices, and ``speedup``, the first one's step over its own.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`; by default the latest one.
    skip
        How many iterations to leave out at the beginning of each.
    """
    import polars as pl

    from tracekit.analysis.studies import before_and_after, data_stalls, stalls_of_run

    runs = select_runs(references or ([] if where else ["@latest"]), where=where, store=store)
    for run in runs:
        run.require_memory("stalls")
    tables = [data_stalls(run.trace, skip=skip) for run in runs]
    if len(runs) == 1:
        steps = tables[0].select("iterations").max().item()
        meta = {"sum_over": f"{steps:,} steps of each GPU" if steps else "the whole run"}
        meta |= _outside_steps(runs, tables)
        answer = _answer("stalls", "data stalls", tables[0], meta, runs)
        parts = _stall_parts(tables[0], pl.format("GPU {}", "device"))
        return replace(answer, figures={"figure": "stalls"}, source=parts)
    rows = [
        {"run": run.name, **stalls_of_run(table)} for run, table in zip(runs, tables, strict=True)
    ]
    found = before_and_after(rows, "window_ns")
    meta = {"per": "step/GPU", **_outside_steps(runs, tables)}
    answer = _answer("stalls", "data stalls by run", found, meta, runs)
    parts = _stall_parts(found, pl.col("run"))
    return replace(answer, figures={"figure": "stalls"}, source=parts)


def _outside_steps(runs: Sequence[OpenedRun], tables: Sequence[pl.DataFrame]) -> dict[str, str]:
    """Say of each run how much time lies in no step, where that is much."""
    import polars as pl

    found = []
    for run, table in zip(runs, tables, strict=True):
        outside, length = table.select(pl.col("outside_ns", "window_ns").max()).row(0)
        if length and outside > _OUTSIDE * length:
            found.append(f"{outside / 1e6:,.3f} ms ({run.name})")
    told = f"up to {', '.join(found)} of a GPU lie in no step that counts"
    return {"outside_steps": told} if found else {}


@question_of
def input_cost(
    preloaded: Time,
    cached: Time,
    cold: Time,
    *,
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """Say what input costs, by three runs; see `tracekit.analysis.studies.differential_stalls`.

    Parameters
    ----------
    preloaded, cached, cold
        Runs of one program, whose steps are compared; or times of it, ns.
    skip
        How many iterations to leave out at the beginning of each run.
    """
    from tracekit.analysis.studies import differential_stalls

    times = [_time(each, skip, store) for each in (preloaded, cached, cold)]
    rows = differential_stalls(*times)
    meta = {"share": "time_ns / that of the cold run"}
    return _answer("stalls", "cost of input, by three runs", rows, meta)


def _time(of: Time, skip: int, store: StrPath | None) -> float:
    if isinstance(of, int | float):
        return float(of)
    from tracekit.analysis.studies import study_row

    (run,) = select_runs([of], store=store)
    step = study_row(run.trace, run.labels, run.name, skip=skip)["step_ns"]
    if step is None:
        raise MissingDataError(
            f"{run.name} has no steps", "name the ranges that are steps: --iteration REGEX"
        )
    return float(step)


@question_of
def bubbles(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    waiting: str | None = None,
    per_step: bool = False,
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """Say what the stages of a pipeline lose; see `tracekit.analysis.studies.pipeline_bubbles`.

    Of one run there is a row per stage, or with `per_step` per step; of several, a row per run with
    means over its steps and stages, and ``speedup``, the first one's step over its own.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`; by default the latest one.
    micro_batches, schedule
        By default those of the runs' labels; see `tracekit.analysis.studies.bubble_theory`.
    waiting
        Pattern of ranges on the host in which a stage sends or waits.
    per_step
        Whether to list steps in place of stages.
    skip
        How many iterations to leave out at the beginning of each.

    Raises
    ------
    UsageError
        If steps of several runs are asked for.
    UndecidedError
        If nothing shows that a run is a pipeline: neither what it recorded, nor its labels, nor
        `micro_batches` or `schedule`.
    """
    from tracekit.analysis.studies import (
        WAITING,
        before_and_after,
        bubbles_of_run,
        pipeline_bubbles,
    )

    runs = select_runs(references or ([] if where else ["@latest"]), where=where, store=store)
    if per_step and len(runs) > 1:
        raise UsageError("steps are listed of one run", "give one run, or leave out --per-step")
    rows = []
    for run in runs:
        micro = micro_batches or _labelled(run.labels)
        found = pipeline_bubbles(
            run.trace, skip=skip, micro_batches=micro, waiting=waiting or WAITING
        )
        _require_pipeline(run, found, schedule)
        rows.append({"run": run.name, **bubbles_of_run(found, schedule or _schedule(run.labels))})
    if len(runs) > 1:
        table = before_and_after(rows, "window_ns")
        answer = _answer("bubbles", "pipeline bubbles by run", table, {"per": "step/stage"}, runs)
        return replace(answer, figures={"figure": "bubbles"}, source=_bubble_parts(table, "run"))
    return _of_pipeline(runs, found, rows[0], per_step=per_step)


def _require_pipeline(run: OpenedRun, found: Bubbles, schedule: str | None) -> None:
    known = (found.micro_batches, schedule, _schedule(run.labels))
    is_labelled = run.labels.get("method") == "pipeline"
    if not (found.is_told or is_labelled or any(each is not None for each in known)):
        raise UndecidedError(
            f"nothing shows that {run.name} is a pipeline: its passes send and receive nothing, "
            "and no ranges number its micro-batches",
            "give --micro-batches or --schedule if it is one",
        )


def _bubble_parts(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return what bars of bubbles are made of."""
    import polars as pl

    neighbour = pl.col("dependency_ns")
    return table.select(
        name=pl.col(name).cast(pl.String),
        working="busy_ns",
        **{
            "bubble, a neighbour works": neighbour,
            "bubble, neither works": pl.col("bubble_ns") - neighbour,
        },
    )


def _stall_parts(table: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
    """Return what bars of stalls are made of; what is left are copies that are no input."""
    import polars as pl

    rest = pl.col("window_ns") - pl.sum_horizontal(_STALLS.values())
    parts = {part: pl.col(column) for part, column in _STALLS.items()}
    return table.select(name=name, **parts, **{"other copies": rest})


def _of_pipeline(
    runs: Sequence[OpenedRun], found: Bubbles, row: Mapping[str, Any], *, per_step: bool
) -> Answer:
    steps = row["iterations"]
    facts = {
        key: row[key]
        for key in ("stages", "micro_batches", "schedule", "bubble_share", "bubble_ideal_share",
                    "theory_share", "theory_ideal_share")
    }  # fmt: skip
    unit = "the stages" if per_step else f"{steps:,} steps of each stage"
    basis = {"basis": "host, from NVTX ranges"} if found.basis == "host" else {}
    meta = {"sum_over": unit, "pipeline": facts, **basis}
    title = "pipeline bubbles by step" if per_step else "pipeline bubbles"
    table = found.steps if per_step else found.stages
    answer = _answer("bubbles", title, table, meta, runs)
    return replace(answer, figures={"figure": "pipeline"}, source=found.timeline)


def _labelled(labels: Mapping[str, str]) -> int | None:
    text = labels.get("micro_batches", "")
    return int(text) if text.isdecimal() and 0 < len(text) < len("1" + "0" * 9) else None


def _schedule(labels: Mapping[str, str]) -> str | None:
    return labels.get("schedule")


@question_of
def bubble_model(stages: int, micro_batches: int, schedule: str | None = None) -> Answer:
    """Say what a pipeline of equal stages loses; see `tracekit.analysis.studies.bubble_theory`."""
    import polars as pl

    from tracekit.analysis.studies import bubble_theory

    row = {"stages": stages, "micro_batches": micro_batches, "evidence": "modelled"}
    rows = pl.DataFrame([row | bubble_theory(stages, micro_batches, schedule)])
    said = {"modelled": "equal stages and micro-batches, GPipe or 1F1B"}
    return _answer("bubbles", "modelled · pipeline bubbles", rows, said)


def _answer(
    command: str, title: str, rows: Any, meta: Mapping[str, Any], runs: Sequence[OpenedRun] = ()
) -> Answer:
    """Return an answer about some runs; of one alone, under its name."""
    from tracekit.model import Answer
    from tracekit.present import FACE

    if len(runs) == 1:
        answer = Answer(rows=rows, meta=meta, title=title, command=command)
        return of_run(runs[0], answer)
    told = {**meta, **simulated_of(runs)}
    return Answer(rows=rows, meta=told, title=title, command=command, face=FACE)
