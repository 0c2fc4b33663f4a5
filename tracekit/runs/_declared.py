"""The questions to a run that are declared beside their analysis, in the order of the help.

A line here makes `run.x()`, `run.x.answer()` and `tracekit x`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.analysis import breakdown
from tracekit.analysis.arithmetic import flops
from tracekit.analysis.diagnosis import stragglers
from tracekit.analysis.idle_time import idle
from tracekit.runs._question import RunQuestion, declared

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun


def _with_steps(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    """Add the figure of steps, which are worked out only where they are drawn."""
    from tracekit.analysis.comparison import steps_of_run
    from tracekit.runs._facts import of_run

    found = ask(run.trace)
    steps = functools.partial(steps_of_run, run.trace, run.name, skip=found.meta["skip"])
    drawn = replace(found, figures={**found.figures, "steps": "steps"}, source=steps)
    return of_run(run, drawn).warning(run.warnings)


class DeclaredQuestions:
    """What a run is asked by its methods, and on the command line by commands of their names."""

    breakdown = declared(breakdown, _with_steps)
    idle = declared(idle)
    stragglers = declared(stragglers)
    flops = declared(flops)


DECLARED = {
    name: each.declaration
    for name, each in vars(DeclaredQuestions).items()
    if isinstance(each, RunQuestion) and each.declaration is not None
}
"""What is said of each, by name."""
