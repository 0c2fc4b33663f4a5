"""Main function of a worker process, which runs jobs for its parent process."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue

from tracekit.store._jobs import Job, Outcome
from tracekit.support.process import own_process
from tracekit.support.progress import Progress

_SECONDS = 0.1
"""Seconds between messages about the same step, since the receiver has other workers too."""


def main(descriptor: int, rooms: Sequence[str]) -> None:
    """Run incoming jobs in order, until the parent process has ended.

    Parameters
    ----------
    descriptor
        File descriptor of the connection to the parent process.
    rooms
        Subpackages of tracekit that the jobs are likely to import.
    """
    own_process()
    connection = Connection(descriptor)
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    for room in rooms:  # while the first job is still to come
        import_module(f"tracekit.{room}")
    lock = threading.Lock()

    def say(message: object) -> None:
        with lock:  # progress may be told from several threads
            connection.send(message)

    job: Job | None = None
    while True:
        job = jobs.get().after(job)
        say(_done(job, throttled(lambda *step: say(step))))


def _receive(connection: Connection, jobs: SimpleQueue[Job]) -> None:
    """Put incoming jobs into the queue; exit this process at once if the parent has ended."""
    try:
        while True:
            jobs.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _done(job: Job, progress: Progress) -> Outcome | BaseException:
    try:
        return job.attempt(progress)
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        error.add_note(traceback.format_exc())
        return error if _survives(error) else RuntimeError(traceback.format_exc())


def _survives(error: BaseException) -> bool:
    """Test whether an exception can be pickled for another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    except Exception:  # noqa: BLE001 - whatever its class does
        return False
    return True


def throttled(progress: Progress) -> Progress:
    """Return `progress` with fewer calls: one at each new step, then at most one per interval."""
    last: tuple[str, float] = ("", 0.0)

    def tell(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step != last[0] or now - last[1] >= _SECONDS:
            last = step, now
            progress(step, done, total)

    return tell
