"""Runs what was planned."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tracekit.errors import RecordingError, UsageError
from tracekit.recording._plan import Plan, reports_in

_PARTIAL = ".partial"


def perform(plan: Plan) -> list[Path]:
    """Run a plan and return the reports, which are in its folder once all are complete.

    What the program prints goes to standard error, since standard output is for results.

    Raises
    ------
    UsageError
        If the folder is there already and not empty.
    RecordingError
        If the program cannot be run or ends with an error, or no report was written. What was
        written stays, in a folder beside whose name ends with ``.partial``.
    """
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise UsageError(
            f"{plan.folder} holds files already", "give another --name or --output, or remove it"
        )
    partial = plan.folder.with_name(plan.folder.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _record(replace(plan, folder=partial))
    finally:
        if not any(partial.iterdir()):
            partial.rmdir()
    if plan.folder.exists():
        plan.folder.rmdir()
    partial.rename(plan.folder)
    return reports_in(plan.folder)


def _record(plan: Plan) -> None:
    code = _run(plan)
    found = reports_in(plan.folder)
    if code:
        raise RecordingError(
            f"{shlex.join(plan.launch.program)} ended with code {code}", _left(plan.folder, found)
        )
    if not found:
        raise RecordingError(
            f"nsys wrote no report of {shlex.join(plan.launch.program)}",
            "what it said is above; with a capture range, the program has to reach it",
        )


def _run(plan: Plan) -> int:
    environment = os.environ | plan.environment
    try:
        process = subprocess.Popen(  # noqa: S603 - the program that the user asked for
            plan.command, stdout=sys.stderr.fileno(), env=environment
        )
    except OSError as error:
        raise RecordingError(f"{plan.command[0]} does not run ({error.strerror})") from error
    with process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # nsys was interrupted as well, and is about to write its report.
            process.wait()
            raise RecordingError(
                "the recording was interrupted", _left(plan.folder, reports_in(plan.folder))
            ) from None


def _left(folder: Path, reports: list[Path]) -> str | None:
    if not reports:
        return None
    return f"what was recorded is in {folder}, and `tracekit ingest` reads it"
