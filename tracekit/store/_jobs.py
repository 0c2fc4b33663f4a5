"""A report as a job that may fail, or be lost with the process that does it, and be done again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tracekit.errors import InputError, StoreError
from tracekit.store._report import ReportMade, ReportOptions, make_report
from tracekit.support.progress import Progress

RETRIES = 2
"""How often a report is begun again whose process was lost."""

Tell = Callable[[int, str, int, int], None]
"""Told the number of a job, a step, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Job:
    """A report to make.

    Parameters
    ----------
    number
        Index of the report in the run.
    path
        Its file.
    folder
        Where its tables go: each attempt makes a folder of its own in it, so that one which is
        taken for lost and is not cannot disturb the next.
    options
        How it is made.
    """

    number: int
    path: Path
    folder: Path
    options: ReportOptions

    def with_share(self, workers: int) -> Job:
        """Return the job with its share of the memory that `workers` use at once."""
        return replace(
            self, options=replace(self.options, memory=self.options.memory // max(workers, 1))
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a job: the name of the folder that was made, or why its report is none."""

    number: int
    folder: str = ""
    made: ReportMade | None = None
    error: InputError | None = None


Outcomes = Generator[Outcome, None, None]


class Executor(Protocol):
    """Does jobs, in whatever order and place."""

    def prepare(self, jobs: int) -> None:
        """Get ready for so many jobs, which are likely to come soon."""

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job; whoever stops early closes the iterator.

        Raises
        ------
        TracekitError
            If something else is wrong than a report.
        """


def attempt(job: Job, progress: Progress) -> Outcome:
    """Make the report of a job."""
    if not job.folder.is_dir():
        raise StoreError(
            f"the folder {job.folder} cannot be seen by a worker",
            "put the store where all workers reach it, with --store",
        )
    folder = job.folder / f"{job.number}-{secrets.token_hex(4)}"
    try:
        made = make_report(job.path, folder, job.options, progress)
    except InputError as error:
        return Outcome(job.number, error=error)
    return Outcome(job.number, folder.name, made)


def lost(job: Job, how: str) -> Outcome:
    """Return the outcome of a job whose process was lost too often."""
    error = InputError(
        f"{job.path} was given up, the process that read it {how} {RETRIES + 1} times",
        "it may lack memory: let fewer run at once, or give a smaller --memory; or it is damaged",
    )
    return Outcome(job.number, error=error)
