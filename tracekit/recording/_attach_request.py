"""Ask all ranks of a running job to record the same steps, and wait for them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracekit.annotation import ASK, DONE, IS_AT, LATE, RECORD, REQUEST
from tracekit.errors import RecordingError, UsageError

_PAUSE = 0.02
_BETWEEN = 0.5
_AHEAD, _LEAST = 2.0, 20
"""Recording starts this many seconds, and at least this many steps, after the request, so that each
rank has seen it. A profiler that writes its data delays a job for a moment, after which the job
goes on faster."""
_ATTEMPTS = 3
_ANSWER = re.compile(rf"(\S+) ({IS_AT}|{LATE}|{DONE}) (\d{{1,18}})")


@dataclass(frozen=True)
class _Job:
    """A running job, by the shared folder through which its ranks get requests and answer."""

    folder: Path
    patience: float

    def ask(self, *words: object) -> str:
        """Write a request of `words` into the shared folder, and return the request's id."""
        identity = f"{os.getpid()}-{time.monotonic_ns()}"
        path = self.folder / f"{REQUEST}.new"
        path.write_text(" ".join(map(str, (identity, *words))))
        path.replace(self.folder / REQUEST)
        return identity

    def answers(self, identity: str | None = None) -> dict[str, tuple[str, int] | None]:
        """Return the answer of each rank: rank -> (kind, step).

        None instead if its answer is to another request than `identity`.
        """
        found: dict[str, tuple[str, int] | None] = {}
        for path in self.folder.iterdir():
            answer = (
                None
                if path.name.startswith(REQUEST) or path.suffix == ".new"
                else _ANSWER.fullmatch(path.read_text(errors="replace"))
            )
            if answer:
                is_own = identity in {None, answer[1]}
                found[path.name] = (answer[2], int(answer[3])) if is_own else None
        return found

    def wait(self, identity: str, seconds: float, *kinds: str) -> dict[str, tuple[str, int]]:
        """Return all ranks' answers to request `identity`, once each has sent one of `kinds`.

        Raises an error if a rank does not answer within `seconds`.
        """
        until = time.monotonic() + seconds
        while True:
            found = self.answers(identity)
            replies = {rank: each for rank, each in found.items() if each and each[0] in kinds}
            if len(replies) == len(found):
                return replies
            if time.monotonic() > until:
                silent = sorted(found.keys() - replies.keys())
                raise RecordingError(
                    f"{len(silent):,} of {len(found):,} ranks did not answer, such as {silent[0]}",
                    f"of ranks that have ended remove the files in {self.folder}",
                )
            time.sleep(_PAUSE)


def clear(folder: Path) -> None:
    """Create the folder for a job that is about to start, and remove an earlier job's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name == REQUEST or _ANSWER.fullmatch(path.read_text(errors="replace")[:200]):
            path.unlink()


def attach(
    folder: Path,
    length: int,
    *,
    patience: float = 300,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[int, int]]:
    """Make all ranks of a job record the same steps, and wait until they have.

    Parameters
    ----------
    folder
        Shared folder that the job was started with.
    length
        Number of steps.
    patience
        Seconds to wait for a rank without an answer.
    report
        Called with a sentence about the steps to be recorded.

    Returns
    -------
    For each rank the first recorded step, and the step after the last: rank -> (first, end).

    Raises
    ------
    UsageError
        If no job uses the folder.
    RecordingError
        If a rank does not answer, or had passed the step before it got the request.
    """
    job = _Job(folder, patience)
    if not folder.is_dir() or not job.answers():
        raise UsageError(
            f"no job has begun with {folder}", "tracekit record --attachable DIR -- PROGRAM"
        )
    for _ in range(_ATTEMPTS):
        at, replies = _recorded(job, length, report)
        late = [rank for rank, (kind, _) in replies.items() if kind == LATE]
        if len(late) < len(replies):
            break
    if late:
        raise RecordingError(
            f"{len(late):,} of {len(replies):,} ranks had made step {at:,} before they read "
            "the request",
            "attach again, and leave the window of the others out",
        )
    return {rank: (at, number) for rank, (_, number) in replies.items()}


def _recorded(
    job: _Job, length: int, report: Callable[[str], None]
) -> tuple[int, dict[str, tuple[str, int]]]:
    """Ask the ranks to record `length` steps in the near future.

    Returns
    -------
    The first step, and the answers of the ranks: rank -> (kind, step).
    """
    first = _steps(job)
    since = time.monotonic()
    time.sleep(_BETWEEN)
    second = _steps(job)
    rate = max(second[rank] - first[rank] for rank in first) / (time.monotonic() - since)
    at = max(second.values()) + max(int(rate * _AHEAD), _LEAST)
    report(f"{len(second):,} ranks record steps {at:,} to {at + length - 1:,}")
    steps = _LEAST + length
    seconds = job.patience + 2 * (_AHEAD + steps / max(rate, 1 / job.patience))
    return at, job.wait(job.ask(RECORD, at, length), seconds, DONE, LATE)


def _steps(job: _Job) -> dict[str, int]:
    """Ask each rank for its current step: rank -> step."""
    replies = job.wait(job.ask(ASK), job.patience, IS_AT)
    return {rank: number for rank, (_, number) in replies.items()}
