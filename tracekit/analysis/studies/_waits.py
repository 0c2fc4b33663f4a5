"""Waits of GPUs in one run or several: for input data, and for stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.analysis.facts import WAITING
from tracekit.analysis.studies._bubbles import (
    Bubbles,
    bubble_theory,
    bubbles_of_run,
    pipeline_bubbles,
)
from tracekit.analysis.studies._runs import Run, Runs
from tracekit.analysis.studies._stalls import (
    before_and_after,
    data_stalls,
    differential_stalls,
    stalls_of_run,
)
from tracekit.analysis.studies._study import study_row
from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.model import Answer

_STALLS = {
    "kernels": "kernel_ns", "waiting for the loader": "wait_ns", "copying input": "input_ns",
    "idle, other causes": "other_idle_ns",
}  # fmt: skip
"""Parts of a GPU's time in figures."""

_OUTSIDE = 0.01
"""Share of the steps from which on time outside of them is spoken of."""


def stalls_answer(runs: Sequence[Run], skip: int) -> Answer:
    """Return the time that GPUs wait for input; see `data_stalls`.

    Of one run there is a row per device; of several, a row per run with means over its steps and
    devices, and ``speedup``, the first one's step over its own.
    """
    tables = [data_stalls(run.trace, skip=skip) for run in runs]
    if len(runs) == 1:
        steps = tables[0].select("iterations").max().item()
        title, rows, name = "data stalls", tables[0], pl.format("GPU {}", "device")
        meta = {"sum_over": f"{_steps(steps)} of each GPU" if steps else "the whole run"}
    else:
        several = [
            {"run": run.name, **stalls_of_run(table)}
            for run, table in zip(runs, tables, strict=True)
        ]
        title, rows = "data stalls by run", before_and_after(several, "window_ns")
        name, meta = pl.col("run"), {"per": "step/GPU"}
    return Answer(
        rows=rows, meta={**meta, **_outside_steps(runs, tables)}, title=title, command="stalls",
        figures={"figure": "stalls"}, source=_stall_parts(rows, name),
    )  # fmt: skip


def _outside_steps(runs: Sequence[Run], tables: Sequence[pl.DataFrame]) -> dict[str, str]:
    """Say of each run how much time lies in no step, where that is much."""
    found = []
    for run, table in zip(runs, tables, strict=True):
        outside, length = table.select(pl.col("outside_ns", "window_ns").max()).row(0)
        if length and outside > _OUTSIDE * length:
            found.append(f"{outside / 1e6:,.3f} ms ({run.name})")
    told = f"up to {', '.join(found)} of a GPU lie in no step that counts"
    return {"outside_steps": told} if found else {}


def input_cost(runs: Runs, times: Sequence[Any], skip: int) -> Answer:
    """Return the cost of input, from three runs of one program, or from their times, ns."""
    rows = differential_stalls(*(_time(runs, each, skip) for each in times))
    meta = {"share": "time_ns / that of the cold run"}
    return Answer(rows=rows, meta=meta, title="cost of input, by three runs", command="stalls")


def _time(runs: Runs, of: Any, skip: int) -> float:
    if isinstance(of, int | float):
        return float(of)
    run = runs.named(of)
    step = study_row(run.trace, run.labels, run.name, skip=skip)["step_ns"]
    if step is None:
        raise MissingDataError(
            f"{run.name} has no steps", "name the ranges that are steps: --iteration REGEX"
        )
    return float(step)


def bubbles_answer(
    runs: Sequence[Run],
    *,
    micro_batches: int | None,
    schedule: str | None,
    waiting: str | None,
    per_step: bool,
    skip: int,
) -> Answer:
    """Return the lost time of pipeline stages; see `pipeline_bubbles`.

    Of one run there is a row per stage, or with `per_step` per step; of several, a row per run with
    means over its steps and stages, and ``speedup``, the first one's step over its own.

    Raises
    ------
    UsageError
        If steps of several runs are asked for.
    UndecidedError
        If nothing shows that a run is a pipeline: neither what it recorded, nor its labels, nor
        `micro_batches` or `schedule`.
    """
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
    if len(runs) == 1:
        return _of_pipeline(found, rows[0], per_step=per_step)
    table = before_and_after(rows, "window_ns")
    return Answer(
        rows=table, meta={"per": "step/stage"}, title="pipeline bubbles by run", command="bubbles",
        figures={"figure": "bubbles"}, source=_bubble_parts(table, "run"),
    )  # fmt: skip


def _require_pipeline(run: Run, found: Bubbles, schedule: str | None) -> None:
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
    rest = pl.col("window_ns") - pl.sum_horizontal(_STALLS.values())
    parts = {part: pl.col(column) for part, column in _STALLS.items()}
    return table.select(name=name, **parts, **{"other copies": rest})


def _of_pipeline(found: Bubbles, row: Mapping[str, Any], *, per_step: bool) -> Answer:
    steps = row["iterations"]
    facts = {
        key: row[key]
        for key in ("stages", "micro_batches", "schedule", "bubble_share", "bubble_ideal_share",
                    "theory_share", "theory_ideal_share")
    }  # fmt: skip
    unit = "the stages" if per_step else f"{_steps(steps)} of each stage"
    basis = {"basis": "host, from NVTX ranges"} if found.basis == "host" else {}
    meta = {"sum_over": unit, "pipeline": facts, **basis}
    title = "pipeline bubbles by step" if per_step else "pipeline bubbles"
    stages = found.stages.rename({"stage": "pipeline_stage"})  # a stage is FP, BP, ...
    table = found.steps if per_step else stages
    return Answer(
        rows=table, meta=meta, title=title, command="bubbles",
        figures={"figure": "pipeline"}, source=found.timeline,
    )  # fmt: skip


def _labelled(labels: Mapping[str, str]) -> int | None:
    text = labels.get("micro_batches", "")
    return int(text) if text.isdecimal() and 0 < len(text) < len("1" + "0" * 9) else None


def _schedule(labels: Mapping[str, str]) -> str | None:
    return labels.get("schedule")


def bubble_model(stages: int, micro_batches: int, schedule: str | None) -> Answer:
    """Return the modelled loss of a pipeline of equal stages; see `bubble_theory`."""
    row = {"stages": stages, "micro_batches": micro_batches, "evidence": "modelled"}
    return Answer(
        rows=pl.DataFrame([row | bubble_theory(stages, micro_batches, schedule)]),
        meta={"modelled": "equal stages and micro-batches, GPipe or 1F1B"},
        title="modelled · pipeline bubbles",
        command="bubbles",
    )


def _steps(number: int) -> str:
    return f"{number:,} {'step' if number == 1 else 'steps'}"
