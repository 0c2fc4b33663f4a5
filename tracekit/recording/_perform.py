"""Runs what was planned."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tracekit.errors import RecordingError, UsageError
from tracekit.recording._plan import Plan, reports_in

_PARTIAL = ".partial"
_LOCK = ".lock"


def perform(plan: Plan, *, anew: bool = False) -> list[Path]:
    """Run a plan and return the reports, which are in its folder once all are complete.

    What the program prints goes to standard error, since standard output is for results.

    Parameters
    ----------
    plan
        The plan.
    anew
        Whether what an earlier attempt left unfinished is thrown away.

    Raises
    ------
    UsageError
        If the folder is there already and not empty, or an earlier attempt left reports.
    RecordingError
        If the program cannot be run or ends with an error, or no report was written. What was
        written stays, in the folder that is `unfinished`.
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
        _record(replace(plan, folder=partial))
        (partial / _LOCK).unlink()
        plan.folder.mkdir(exist_ok=True)
        partial.rename(plan.folder)
    return reports_in(plan.folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder against other recordings of the same name; the system lets go if we end."""
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder} is being recorded into at this moment", "give another --name"
            ) from None
        try:
            yield
        finally:
            if folder.exists() and {path.name for path in folder.iterdir()} <= {_LOCK}:
                shutil.rmtree(folder)


def unfinished(plan: Plan) -> Path:
    """Return the folder that reports are in until all of them are complete."""
    return plan.folder.with_name(plan.folder.name + _PARTIAL)


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
    # On a terminal nsys has to stay in its foreground, where an interrupt reaches it by itself.
    apart = not os.isatty(0)
    try:
        process = subprocess.Popen(  # noqa: S603 - the program that the user asked for
            plan.command,
            stdout=sys.stderr.fileno(),
            env=environment,
            # Elsewhere it is sent on, and once, whoever it was sent to: with a second one nsys
            # would not write its report.
            process_group=0 if apart else None,
        )
    except OSError as error:
        raise RecordingError(f"{plan.command[0]} does not run ({error.strerror})") from error
    with process, _terminated_like_interrupted():
        try:
            return process.wait()
        except KeyboardInterrupt as interrupt:
            if apart:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
            elif isinstance(interrupt, _TerminatedError):
                process.send_signal(signal.SIGINT)
            try:
                process.wait()
            except KeyboardInterrupt:  # again: nothing is waited for
                process.kill()
            raise


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which are taken as an interrupt."""


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Take SIGTERM and SIGHUP as interrupts, or the program would be left running."""

    def interrupt(*_: object) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _left(folder: Path, reports: list[Path]) -> str | None:
    if not reports:
        return None
    return f"what was recorded is in {folder}, and `tracekit ingest` reads it"
