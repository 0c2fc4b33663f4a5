"""Run a planned recording to its end; after an interrupt nsys still writes its report.

Unless started on a terminal, the program is a process group of its own, for three reasons. An
interrupt reaches it exactly once, whoever it was sent to: after a second one nsys would not write
its report. It also gets the interrupt if a shell made us ignore it, as in the background or under
`nohup`. And the whole group can be ended together.

A supervisor process is between us and the program. It ends all processes that the program
leaves behind, even if we are killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from tracekit.errors import ProgramError, RecordingError, UsageError
from tracekit.recording import _supervisor
from tracekit.recording._plan import Plan, reports_in
from tracekit.support.process import users_environment, users_stderr

_PARTIAL = ".partial"
_LOCK = ".lock"


def perform(plan: Plan, *, anew: bool = False, wait: str = "work") -> list[Path]:
    """Run a planned recording; return its reports, moved to the plan's folder once complete.

    Output of the program goes to standard error, since standard output is for results.

    Parameters
    ----------
    anew
        Whether to delete the files of an unfinished earlier attempt.
    wait
        Which processes that outlive the program to wait for: those that still ``work``, ``all``,
        none (``primary``), or all for at most a number of seconds.

    Raises
    ------
    UsageError
        If the folder exists and is not empty, or an earlier attempt left reports.
    ProgramError
        If the program ends with an error. Reports that were written stay in the folder that
        `unfinished` returns.
    RecordingError
        If the program cannot be run, or no report was written.
    KeyboardInterrupt
        If the recording is interrupted, after nsys has written its report, which stays there too.
    """
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise UsageError(
            f"{plan.folder} is not empty", "give another --name or --reports, or remove it"
        )
    partial = unfinished(plan)
    partial.mkdir(parents=True, exist_ok=True)
    with _locked(partial):
        if not anew and reports_in(partial):
            raise UsageError(
                f"{partial} contains what an earlier attempt recorded",
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
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against recordings of the same name; an end of this process unlocks it too."""
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
    """Return the folder in which a plan's reports are written until all are complete."""
    return plan.folder.with_name(plan.folder.name + _PARTIAL)


def _record(plan: Plan, wait: str) -> None:
    is_launched = bool(plan.launch.launcher)
    code = run(plan.command, plan.environment, len(plan.recorded), wait, is_launched=is_launched)
    found = reports_in(plan.folder)
    program = shlex.join(plan.launch.program)
    if code and found:  # nsys writes a report of a program that fails, and ends with its code
        raise ProgramError(f"{program} ended with code {code}", _left(plan.folder), code)
    if code:
        started = plan.launch.launcher[0] if plan.launch.launcher else plan.recorder
        raise RecordingError(
            f"{started} ended with code {code} and wrote no report of {program}",
            "its output is above",
        )
    if not found:
        raise RecordingError(
            f"{plan.recorder} wrote no report of {program}",
            "its output is above; with a capture range or --every, the program has to reach it",
        )


def _left(folder: Path) -> str:
    return f"the recording is in {folder}, and `tracekit ingest` reads it"


_INTERRUPTS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_LONGEST_NUMBER = 16
_PAUSE_S = 0.02
_MARK = "TRACEKIT_SUPERVISED"
"""Environment variable of all processes below the supervisor, by which they are found if it is
killed."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    program: int | None = None,
    wait: str = "work",
    *,
    is_launched: bool = False,
) -> int:
    """Run a command with additional variables, its output on stderr, and return its exit code.

    A command ended by a signal returns 128 plus the signal's number.

    Parameters
    ----------
    environment
        Variables to add: name -> value.
    program
        Number of words at the end of the command that are the recorded program; by default all.
    wait
        Which processes that outlive the program to wait for; see `perform`.
    is_launched
        Whether the command starts with a launcher, and not with nsys.

    Raises
    ------
    RecordingError
        If the command cannot be run.
    KeyboardInterrupt
        If this process is interrupted or terminated, after the command has ended.
    """
    # On a terminal nsys has to stay in its foreground, where an interrupt reaches it by itself.
    apart = not os.isatty(0)
    at = len(command) - (len(command) if program is None else program)
    with (
        tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True) as notes,
        _Interrupts(others_hear=apart) as interrupts,
    ):
        own_end, its = socket.socketpair()
        with its:
            words = [str(its.fileno()), notes, wait, str(int(is_launched)), str(at), *command]
            process = _start(words, {**environment, _MARK: notes}, its, apart=apart)
        try:
            interrupts.let_through()
            return _ended(process, own_end, command[0])
        except KeyboardInterrupt as interrupt:
            if apart:
                _signal_group(process.pid, signal.SIGINT)
            elif isinstance(interrupt, _TerminatedError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait()
            except KeyboardInterrupt:  # again: nothing is waited for
                own_end.close()
                process.wait()
            raise
        finally:
            own_end.close()
            if (process.returncode or 0) < 0:  # by a signal, and what it started goes on
                _end_all(f"{_MARK}={notes}")


def _start(
    words: Sequence[str], environment: Mapping[str, str], its: socket.socket, *, apart: bool
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the program that the user asked for
        [sys.executable, "-I", "-S", _supervisor.__file__, *words],
        stdout=_stderr_number(),
        stderr=users_stderr(),
        env={**users_environment(), **environment},
        process_group=0 if apart else None,
        pass_fds=[its.fileno()],
    )


def _stderr_number() -> int:
    """Return the file descriptor of Python's stderr, else of the process's, else DEVNULL."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # in a notebook, say
        return sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL


def _ended(process: subprocess.Popen[bytes], own_end: socket.socket, program: str) -> int:
    """Wait for the supervisor process to end, and return the exit code.

    Raises an error if it could not run `program`.
    """
    code = process.wait()
    if answer := own_end.recv(_LONGEST_NUMBER):
        raise RecordingError(f"{program} does not run ({os.strerror(int(answer))})")
    if code < 0:
        raise RecordingError(f"the process that supervises {program} was ended by signal {-code}")
    return code


def _end_all(variable: str) -> None:
    """End all processes with `variable` (``NAME=VALUE``) in their environment, by SIGKILL."""
    while pids := [pid for pid in _others() if variable in _environment(pid)]:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _others() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[str]:
    """Return the environment of a process; empty if it has ended."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return []
    return os.fsdecode(found).split("\0")


def _signal_group(group: int, sent: int) -> None:
    """Send a signal to all processes of a group, if it has any."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sent)


class _TerminatedError(KeyboardInterrupt):
    """Error: SIGTERM or SIGHUP was received; as an interrupt, it ends the program, too."""


class _Interrupts:
    """Delays interrupts while a program is being started, until they can be forwarded to it.

    Signals that this process ignores stay ignored; but a program started meanwhile gets SIGINT if
    `others_hear`: a child inherits ignored signals, not handlers.
    """

    def __init__(self, *, others_hear: bool) -> None:
        self._before: dict[int, Any] = {}
        self._came: list[int] = []
        self._are_held = True
        if threading.current_thread() is threading.main_thread():  # others handle no signals
            known = {each: signal.getsignal(each) for each in _INTERRUPTS}
            heard = {signal.SIGINT} if others_hear else set()
            self._before = {
                each: handler
                for each, handler in known.items()
                if handler is not signal.SIG_IGN or each in heard
            }

    def __enter__(self) -> _Interrupts:
        for each in self._before:
            signal.signal(each, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def let_through(self) -> None:
        """Raise the interrupts that were delayed, and let all later ones through."""
        self._are_held = False
        for sent in self._came:
            self._raise(sent)

    def _take(self, sent: int, _: object) -> None:
        if self._are_held:
            self._came.append(sent)
        else:
            self._raise(sent)

    def _raise(self, sent: int) -> None:
        if self._before[sent] is not signal.SIG_IGN:
            raise KeyboardInterrupt if sent == signal.SIGINT else _TerminatedError
