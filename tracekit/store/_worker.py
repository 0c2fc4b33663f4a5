"""What a process does that makes reports for another one."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tracekit.store._jobs import Job, Outcome, attempt
from tracekit.store._report import load
from tracekit.support.process import own_process
from tracekit.support.progress import Progress

if TYPE_CHECKING:
    from tracekit.attribution import Rules

_SECONDS = 0.1
"""How often to tell of the same step; who listens has other workers too."""


def main(descriptor: int) -> None:
    """Do the jobs that come in, one after the other, until the other process is gone.

    Parameters
    ----------
    descriptor
        File descriptor of the connection to that process.
    """
    own_process()
    connection = Connection(descriptor)
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    load()  # while the first job is still to come
    lock = threading.Lock()

    def say(message: object) -> None:
        with lock:  # progress may be told from several threads
            connection.send(message)

    rules: Rules | None = None
    while True:
        job = _remembering(jobs.get(), rules)
        rules = job.options.rules
        say(_done(job, throttled(lambda *step: say(step))))


def _receive(connection: Connection, jobs: SimpleQueue[Job]) -> None:
    """Put jobs into the queue; end the process, whatever it is doing, when nobody waits for it."""
    try:
        while True:
            jobs.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _remembering(job: Job, rules: Rules | None) -> Job:
    """Return a job with the rules of the one before, if equal: they know what names mean."""
    if rules != job.options.rules:
        return job
    return replace(job, options=replace(job.options, rules=rules))


def _done(job: Job, progress: Progress) -> Outcome | BaseException:
    try:
        return attempt(job, progress)
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        error.add_note(traceback.format_exc())
        return error if _survives(error) else RuntimeError(traceback.format_exc())


def _survives(error: BaseException) -> bool:
    """Tell whether an exception can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    except Exception:  # noqa: BLE001 - whatever its class does
        return False
    return True


def throttled(progress: Progress) -> Progress:
    """Return `progress` as it may be told of every chunk: it hears of each step, now and then."""
    last: tuple[str, float] = ("", 0.0)

    def tell(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step != last[0] or now - last[1] >= _SECONDS:
            last = step, now
            progress(step, done, total)

    return tell
