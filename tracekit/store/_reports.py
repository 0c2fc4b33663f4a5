"""Make the tables of all trace files of a run with an executor, in the folder of the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, StoreError
from tracekit.model import missing_files
from tracekit.store._jobs import Executor, Job, Outcome, ReportJob, Tell, file_size, run_digest
from tracekit.store._report import ReportOptions
from tracekit.store._staging import file_errors

_PATIENCE = 5.0
"""Seconds in which files that a worker wrote must become visible; network disks are slow."""
_ONE_JOB = (
    "a run is one execution of one job, so leave out the report of another; --force takes it anyway"
)

Foreign = Callable[[Sequence[Any]], Mapping[int, str]]
"""Function of the facts about all reports that returns those of another run: index -> reason."""
Settle = Callable[[Sequence[Path], Sequence[Any]], None]
"""Function called with the folders of the run's final reports, and the facts about them."""
Failed = Callable[[Path, InputError], None]
"""Function called for a report that cannot be made; it raises an error to stop everything."""


@dataclass(frozen=True)
class Made:
    """A run whose tables are written: folders ``0``, ``1``, ..., one per trace file ("report")."""

    digest: str
    """Digest of the content of its trace files, or `NOT_YET`."""
    files: tuple[str, ...]
    """Names of the trace files, without folders."""
    warnings: tuple[tuple[str, ...], ...]
    """For each trace file its warnings for users, one sentence each."""
    left_out: tuple[str, ...] = ()
    """Warnings about the trace files that were left out."""
    labels: tuple[Mapping[str, str], ...] = ()
    """For each trace file the labels that the program recorded: name -> value."""
    size: int | None = None
    """Total size of the trace files, bytes; None if not known."""


def make_reports(
    folder: Path,
    reports: Sequence[tuple[Path, ReportOptions]],
    executor: Executor,
    failed: Failed,
    tell: Tell,
    foreign: Foreign = lambda _seen: {},
    settle: Settle = lambda _folders, _seen: None,
) -> Made:
    """Make the tables of all trace files ("reports") of a run.

    Parameters
    ----------
    folder
        Folder of the run, which exists.
    reports
        Trace files, in their order in the run, and the options for each.
    executor
        Executor of the jobs.
    failed
        Called with the path and the error of each file that cannot be read or belongs to another
        run. If it returns, the file is left out.
    tell
        Called with the progress of each file: its index, step, amount done and total; at its end
        with an empty step.
    foreign
        Function of the results of `ReportOptions.look` for all files; it returns the files that
        belong to another run: index -> reason.
    settle
        Function that adds data that depend on all remaining files, such as aligned clocks, to their
        tables.

    Raises
    ------
    InputError
        If no file is left.
    StoreError
        If the columns cannot be written, or are not visible to this process.
    """
    jobs: list[Job] = [
        ReportJob(number, path, folder, options) for number, (path, options) in enumerate(reports)
    ]
    made: list[Outcome] = []
    with closing(executor.run(jobs, tell)) as outcomes:
        for outcome in outcomes:
            if outcome.error is not None:
                failed(reports[outcome.number][0], outcome.error)
            else:
                _check_visible(folder / outcome.folder)
                made.append(outcome)
            tell(outcome.number, "", 1, 1)
    if not made:
        raise InputError(f"none of the {len(reports)} reports could be read")
    made.sort(key=lambda outcome: outcome.number)
    strange = foreign(_seen(made))
    for index, why in strange.items():
        failed(reports[made[index].number][0], InputError(why, _ONE_JOB))
    made = [outcome for index, outcome in enumerate(made) if index not in strange]
    with file_errors(folder):
        for index, outcome in enumerate(made):
            (folder / outcome.folder).rename(folder / str(index))
        _drop_attempts(folder, len(made))
        settle([folder / str(index) for index in range(len(made))], _seen(made))
    kept = [reports[outcome.number] for outcome in made]
    return Made(
        digest=run_digest([options.digest for _, options in kept]),
        files=tuple(path.absolute().name for path, _ in kept),
        warnings=tuple(outcome.made.warnings if outcome.made else () for outcome in made),
        labels=tuple(outcome.made.labels if outcome.made else {} for outcome in made),
        size=sum(file_size(path) for path, _ in kept),
    )


def _seen(made: Sequence[Outcome]) -> list[Any]:
    return [outcome.made.seen if outcome.made else None for outcome in made]


def _check_visible(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while missing_files(folder):
        if time.monotonic() > deadline:
            raise StoreError(
                f"what a worker wrote to {folder} cannot be seen here",
                "put the store where all workers and this machine reach it, with --store",
            )
        time.sleep(_PATIENCE / 50)


def _drop_attempts(folder: Path, reports: int) -> None:
    """Remove folders left by failed or lost attempts from a run's folder."""
    wanted = {str(index) for index in range(reports)}
    for path in folder.iterdir():
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)
