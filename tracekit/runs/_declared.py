"""Registers the questions (analyses) that a run can be asked, in the order of the help.

One line here creates `run.x()`, `run.x.answer()` and `tracekit x`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import present
from tracekit.analysis import comparison
from tracekit.analysis.arithmetic.questions import flops, roofline
from tracekit.analysis.breakdowns.questions import breakdown
from tracekit.analysis.communication.inspector_questions import nccl_inspector
from tracekit.analysis.communication.questions import collectives, latency, links
from tracekit.analysis.dependencies.questions import critical_path, whatif
from tracekit.analysis.diagnosis.questions import stragglers
from tracekit.analysis.hangs.questions import hang
from tracekit.analysis.idle_time.questions import idle
from tracekit.analysis.overview.questions import info
from tracekit.analysis.straggler_cost.questions import straggler_cost
from tracekit.analysis.studies import questions as of_runs
from tracekit.analysis.studies import waits_questions as waiting
from tracekit.analysis.studies.questions import memory as of_memory
from tracekit.runs._diagnosis import diagnose
from tracekit.runs._project import project
from tracekit.runs._question import (
    RunQuestion,
    called,
    declared,
    facts_of,
    of_one,
    of_run,
    simulated_of,
    verdicts_of,
)

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun
    from tracekit.runs._question import Selection


_OF_STAGES = {"stage", "iteration", "phase", "parallelism", "expected"}
"""Columns and meta of traffic that rest on stages or steps."""


def _with_steps(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    """Answer a question (analysis) of a run; step times for its figure are computed when drawn."""
    found = ask(run.trace)
    steps = functools.partial(comparison.steps_of_run, run.trace, run.name, skip=found.meta["skip"])
    drawn = replace(found, figures={**found.figures, "steps": "steps"}, source=steps)
    return of_run(run, drawn).warning(run.warnings)


def _of_run(run: OpenedRun, ask: Callable[..., Answer], *_: OpenedRun) -> Answer:
    return of_run(run, ask(run)).warning(run.warnings)


def _named(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    return of_run(run, ask(run))


def _beside(run: OpenedRun, ask: Callable[..., Answer], *others: OpenedRun) -> Answer:
    found = ask(run)
    answer = of_run(run, found).saying(**facts_of([run, *others]))
    if not others:
        return answer
    names = " against ".join(map(called, (run, *others)))
    return replace(answer, title=f"{names} · {found.title}")


def _with_verdicts(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    """Answer a question (analysis) of a run, and add whether each process trains or infers."""
    found = ask(run)
    answer = of_run(run, found.saying(**verdicts_of(run)))
    rests_on_stages = _OF_STAGES & {*found.rows.columns, *found.meta}
    warnings = run.warnings if rests_on_stages else run.warnings_beside_stages
    return answer.saying(warnings=[*warnings, *found.warnings])


def _summed(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    number = run.trace.read("devices")["active"].sum()
    return _with_verdicts(run, ask).saying(sum_over=f"{number} GPU{'' if number == 1 else 's'}")


def shown(_: Selection, answer: Answer) -> Answer:
    """Return an answer about several runs or none, with the code that displays it (renderer)."""
    return replace(answer, renderer=present.RENDERER)


def called_one(runs: Selection, answer: Answer) -> Answer:
    """Put the run's name into an answer's title; for several runs, list simulated ones in meta."""
    if len(runs.opened) == 1:
        return of_run(runs.opened[0], answer)
    return shown(runs, answer.saying(**simulated_of(runs.opened)))


class DeclaredQuestions:
    """Questions (analyses) that a run answers, each a method with the name of its command."""

    breakdown = declared(breakdown, _with_steps)
    diagnose = declared(diagnose, _of_run)
    idle = declared(idle)
    stragglers = declared(stragglers)
    critical_path = declared(critical_path, _of_run)
    whatif = declared(whatif, _of_run)
    flops = declared(flops)
    roofline = declared(roofline)
    links = declared(links, _summed)
    collectives = declared(collectives, _with_verdicts)
    latency = declared(latency, _beside)
    info = declared(info, _named)
    memory = of_one(of_memory, shown)
    overhead = of_one(of_runs.overhead, shown)


DECLARED = {
    name: each.declaration
    for name, each in vars(DeclaredQuestions).items()
    if isinstance(each, RunQuestion) and each.declaration is not None
} | {
    each.declaration.name: each.declaration
    for each in (
        of_runs.study, of_runs.scaling, waiting.stalls, waiting.bubbles,
        project, hang, nccl_inspector, straggler_cost,
    )
}  # fmt: skip
"""Declarations of all questions: name -> declaration."""
