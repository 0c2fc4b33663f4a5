"""Timelines of jobs; they are no runs, since they hold no kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import present
from tracekit.runs._question import question_of
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.model import Answer


@question_of
def straggler_cost(
    timeline: StrPath, by: str = "stage", *, steps: Collection[int] | None = None
) -> Answer:
    """Return the cost of stragglers in a job.

    See `tracekit.analysis.straggler_cost.straggler_cost`.

    Parameters
    ----------
    timeline
        Timeline of a pipeline-parallel job, as StragglerAnalysis publishes them.
    by
        rank, stage, worker or kind.
    steps
        The steps that count; all by default.

    Raises
    ------
    InputError
        If the file is no such timeline, or damaged.
    """
    from tracekit.analysis.straggler_cost import straggler_cost
    from tracekit.sources.job_timelines import read_job_timeline

    return replace(
        straggler_cost(read_job_timeline(timeline), by, steps=steps), renderer=present.RENDERER
    )
