"""Questions to files that are not runs: dumps of a hang, NCCL inspector logs, job timelines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import present
from tracekit.runs._question import question_of
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun


@question_of
def hang(dumps: Sequence[StrPath], *, run: OpenedRun | None = None) -> Answer:
    """Say why a job hangs.

    See `tracekit.analysis.hangs.find_hang`.

    Parameters
    ----------
    dumps
        Dumps of PyTorch's flight recorder, outputs of `ncclras -f json`, or folders of them.
    run
        A run of some of these ranks, recorded at the same time by nsys or PyTorch's profiler; or
        None.

    Raises
    ------
    InputError
        If a file is no dump, or damaged.
    """
    from tracekit.analysis.hangs import find_hang
    from tracekit.sources.hang_dumps import read_dumps

    found = read_dumps(dumps)
    trace = None if run is None else run.trace
    answer = find_hang(found.entries, found.ranks, found.peers, found.events, found.warnings, trace)
    return replace(answer, renderer=present.RENDERER)


@question_of
def nccl_inspector(
    logs: Sequence[StrPath], by: str = "size", *, run: OpenedRun | None = None
) -> Answer:
    """Return how fast collectives are, and which ranks wait, from logs of NCCL's inspector.

    See `tracekit.analysis.communication.nccl_inspector`.

    Parameters
    ----------
    logs
        Logs of NCCL's inspector for one job, or folders of them.
    by
        Key to group by: size, collective or rank; with `run` also stage or iteration.
    run
        A run of some of these ranks, recorded at the same time by another recorder; or None.

    Raises
    ------
    InputError
        If a file is no such log, or damaged.
    """
    from tracekit.analysis.communication import nccl_inspector
    from tracekit.sources.nccl_inspector import read_inspector_logs

    found = read_inspector_logs(logs)
    trace = None if run is None else run.trace
    answer = nccl_inspector(found.records, found.dropped, by, found.warnings, trace)
    return replace(answer, renderer=present.RENDERER)


@question_of
def straggler_cost(
    timeline: StrPath, by: str = "stage", *, steps: Collection[int] | None = None
) -> Answer:
    """Return the cost of stragglers in a job.

    See `tracekit.analysis.straggler_cost.straggler_cost`.

    Parameters
    ----------
    timeline
        Timeline of a pipeline-parallel job, in the format of StragglerAnalysis.
    by
        Key to group by: rank, stage, worker or kind.
    steps
        Numbers of the steps to include; None for all.

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
