"""Run a planned recording."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import lock_descriptor

from tracekit.errors import ProgramError, RecordingError, UsageError
from tracekit.recording._plan import Plan, reports_in
from tracekit.recording._process import run

_PARTIAL = ".partial"
_LOCK = ".lock"


def perform(plan: Plan, *, anew: bool = False, wait: str = "work") -> list[Path]:
    """Run a plan and return the reports, which are in its folder once all are complete.

    What the program prints goes to standard error, since standard output is for results.

    Parameters
    ----------
    plan
        The plan.
    anew
        Whether what an earlier attempt left unfinished is thrown away.
    wait
        Processes that outlive the program to wait for: those that still ``work``, ``all``, none
        (``primary``), or all for at most a number of seconds.

    Raises
    ------
    UsageError
        If the folder is there already and not empty, or an earlier attempt left reports.
    ProgramError
        If the program ends with an error. What was written stays, in the folder that is
        `unfinished`.
    RecordingError
        If the program cannot be run, or no report was written.
    KeyboardInterrupt
        If it is interrupted, once nsys has written its report, which stays likewise.
    """
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise UsageError(
            f"{plan.folder} holds files already", "give another --name or --reports, or remove it"
        )
    partial = unfinished(plan)
    partial.mkdir(parents=True, exist_ok=True)
    with _held(partial):
        if not anew and reports_in(partial):
            raise UsageError(
                f"{partial} holds what an earlier attempt recorded",
                "`tracekit ingest` its reports or remove it, or give another --name",
            )
        for left in partial.iterdir():  # logs of another attempt would pass for this one's
            if left.name != _LOCK:
                left.unlink()
        _record(replace(plan, folder=partial), wait)
        (partial / _LOCK).unlink()
        plan.folder.mkdir(exist_ok=True)
        partial.rename(plan.folder)
    return reports_in(plan.folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder against other recordings of the same name; the system lets go if we end."""
    with (folder / _LOCK).open("w") as lock:
        if not lock_descriptor(lock.fileno(), blocking=False):
            raise UsageError(
                f"{folder} is being recorded into at this moment", "give another --name"
            )
        try:
            yield
        finally:
            if folder.exists() and {path.name for path in folder.iterdir()} <= {_LOCK}:
                shutil.rmtree(folder)


def unfinished(plan: Plan) -> Path:
    """Return the folder that reports are in until all of them are complete."""
    return plan.folder.with_name(plan.folder.name + _PARTIAL)


def _record(plan: Plan, wait: str) -> None:
    is_launched = bool(plan.launch.launcher)
    code = run(plan.command, plan.environment, len(plan.recorded), wait, is_launched=is_launched)
    found = reports_in(plan.folder)
    program = shlex.join(plan.launch.program)
    if code and found:  # nsys writes a report of a program that fails, and ends with its code
        raise ProgramError(f"{program} ended with code {code}", _left(plan.folder), code)
    if code:
        raise RecordingError(
            f"{_recorder(plan)} ended with code {code} and wrote no report of {program}",
            "what it said is above",
        )
    if not found:
        raise RecordingError(
            f"{plan.recorder} wrote no report of {program}",
            "what it said is above; with a capture range or --every, the program has to reach it",
        )


def _recorder(plan: Plan) -> str:
    """Return what runs the program: nsys, or what launches it."""
    return plan.launch.launcher[0] if plan.launch.launcher else plan.recorder


def _left(folder: Path) -> str:
    return f"what was recorded is in {folder}, and `tracekit ingest` reads it"
