"""What GPUs wait for, asked of one run or of several: input data, and stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracekit._question import Question
from tracekit._questions import of_run
from tracekit._studies import Reference, select_runs, simulated_of
from tracekit.errors import MissingDataError, UsageError
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit._run import Run
    from tracekit.analysis import Bubbles
    from tracekit.model import Answer

_NO_PIPELINE = "nothing says that this run is a pipeline: give --micro-batches if it is one"

Time = Reference | float
"""A run, or a time that was measured elsewhere, ns."""


@Question
def stalls(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """Say how long GPUs wait for input data; see `tracekit.analysis.data_stalls`.

    Of one run there is a row per device; of several, a row per run with means over its steps and
    devices, and ``speedup``, the first one's step over its own.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`; by default the latest one.
    skip
        How many iterations to leave out at the beginning of each.
    """
    from tracekit.analysis import before_and_after, data_stalls, stalls_of_run

    runs = select_runs(references or ([] if where else ["@latest"]), where=where, store=store)
    tables = [data_stalls(run.trace, skip=skip) for run in runs]
    if len(runs) == 1:
        steps = tables[0].select("iterations").max().item()
        meta = {"sum_over": f"{steps:,} steps of each GPU" if steps else "the whole run"}
        return _answer("stalls", "data stalls", tables[0], meta, runs)
    rows = [
        {"run": run.name, **stalls_of_run(table)} for run, table in zip(runs, tables, strict=True)
    ]
    found = before_and_after(rows, "window_ns")
    return _answer("stalls", "data stalls by run", found, {"per": "step/GPU"}, runs)


@Question
def input_cost(
    preloaded: Time,
    cached: Time,
    cold: Time,
    *,
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """Say what input costs, by three runs; see `tracekit.analysis.differential_stalls`.

    Parameters
    ----------
    preloaded, cached, cold
        Runs of one program, whose steps are compared; or times of it, ns.
    skip
        How many iterations to leave out at the beginning of each run.
    """
    from tracekit.analysis import differential_stalls

    times = [_time(each, skip, store) for each in (preloaded, cached, cold)]
    rows = differential_stalls(*times)
    meta = {"share": "time_ns / that of the cold run"}
    return _answer("stalls", "cost of input, by three runs", rows, meta)


def _time(of: Time, skip: int, store: StrPath | None) -> float:
    if isinstance(of, int | float):
        return float(of)
    from tracekit.analysis import study_row

    (run,) = select_runs([of], store=store)
    step = study_row(run.trace, run.labels, run.name, skip=skip)["step_ns"]
    if step is None:
        raise MissingDataError(
            f"{run.name} has no steps", "name the ranges that are steps: --iteration REGEX"
        )
    return float(step)


@Question
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
    """Say what the stages of a pipeline lose; see `tracekit.analysis.pipeline_bubbles`.

    Of one run there is a row per stage, or with `per_step` per step; of several, a row per run with
    means over its steps and stages, and ``speedup``, the first one's step over its own.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`; by default the latest one.
    micro_batches, schedule
        By default those of the runs' labels; see `tracekit.analysis.bubble_theory`.
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
    """
    from tracekit.analysis import WAITING, before_and_after, bubbles_of_run, pipeline_bubbles

    runs = select_runs(references or ([] if where else ["@latest"]), where=where, store=store)
    if per_step and len(runs) > 1:
        raise UsageError("steps are listed of one run", "give one run, or leave out --per-step")
    rows = []
    for run in runs:
        micro = micro_batches or _labelled(run.labels)
        found = pipeline_bubbles(
            run.trace, skip=skip, micro_batches=micro, waiting=waiting or WAITING
        )
        rows.append({"run": run.name, **bubbles_of_run(found, schedule or _schedule(run.labels))})
    if len(runs) > 1:
        table = before_and_after(rows, "window_ns")
        return _answer("bubbles", "pipeline bubbles by run", table, {"per": "step/stage"}, runs)
    return _of_pipeline(runs, found, rows[0], per_step=per_step)


def _of_pipeline(
    runs: Sequence[Run], found: Bubbles, row: Mapping[str, Any], *, per_step: bool
) -> Answer:
    steps = row["iterations"]
    facts = {
        key: row[key]
        for key in ("stages", "micro_batches", "schedule", "bubble_share", "bubble_ideal_share",
                    "theory_share", "theory_ideal_share")
    }  # fmt: skip
    unit = "the stages" if per_step else f"{steps:,} steps of each stage"
    basis = {"basis": "host, from NVTX ranges"} if found.basis == "host" else {}
    told = facts["micro_batches"] is not None or facts["schedule"] is not None
    meta = {
        "sum_over": unit, "pipeline": facts, **basis, "warnings": [] if told else [_NO_PIPELINE]
    }  # fmt: skip
    title = "pipeline bubbles by step" if per_step else "pipeline bubbles"
    table = found.steps if per_step else found.stages
    return _answer("bubbles", title, table, meta, runs)


def _labelled(labels: Mapping[str, str]) -> int | None:
    text = labels.get("micro_batches", "")
    return int(text) if text.isdecimal() and 0 < len(text) < len("1" + "0" * 9) else None


def _schedule(labels: Mapping[str, str]) -> str | None:
    return labels.get("schedule")


@Question
def bubble_model(stages: int, micro_batches: int, schedule: str | None = None) -> Answer:
    """Say what a pipeline of equal stages loses; see `tracekit.analysis.bubble_theory`."""
    import polars as pl

    from tracekit.analysis import bubble_theory

    row = {"stages": stages, "micro_batches": micro_batches, "evidence": "modelled"}
    rows = pl.DataFrame([row | bubble_theory(stages, micro_batches, schedule)])
    said = {"modelled": "equal stages and micro-batches, GPipe or 1F1B"}
    return _answer("bubbles", "modelled · pipeline bubbles", rows, said)


def _answer(
    command: str, title: str, rows: Any, meta: Mapping[str, Any], runs: Sequence[Run] = ()
) -> Answer:
    """Return what is said of some runs; of one alone, under its name."""
    from tracekit.model import Answer
    from tracekit.present import FACE

    if len(runs) == 1:
        answer = Answer(rows=rows, meta=meta, title=title, command=command)
        return of_run(runs[0], answer)
    told = {**meta, **simulated_of(runs)}
    return Answer(rows=rows, meta=told, title=title, command=command, face=FACE)
