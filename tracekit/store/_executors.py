"""Where the reports of a run are made: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tracekit.store._digest import file_size
from tracekit.store._jobs import RETRIES, Executor, Job, Outcome, Outcomes, Tell, attempt, lost
from tracekit.support.ahead import cores
from tracekit.support.process import users_stderr

_LAST_SECONDS = 5
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from tracekit.store._worker import main; main(int(sys.argv[2]))"
)


@contextmanager
def open_executor(
    processes: int = 1, dask: str | None = None, *, apart: bool = False
) -> Iterator[Executor]:
    """Yield what makes reports.

    Parameters
    ----------
    processes
        How many processes of this machine work at once; one is this process.
    dask
        Address of a Dask scheduler whose workers make the reports instead.
    apart
        Whether one process is to be another than this one, which it could end.

    Raises
    ------
    UsageError
        If there is no such scheduler, or no Dask.
    """
    if dask is not None:
        from tracekit.store._dask import Cluster  # noqa: PLC0415 - optional, and takes long

        with Cluster.at(dask) as cluster:
            yield cluster
    elif processes > 1 or apart:
        executor = Processes(processes)
        try:
            yield executor
        finally:
            executor.end()
    else:
        yield ThisProcess()


class ThisProcess:
    """Makes one report after the other."""

    def prepare(self, jobs: int) -> None:
        """Do nothing: all is here."""

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job."""
        for job in jobs:
            yield attempt(job, partial(tell, job.number))


class Processes:
    """Makes reports in processes of this machine.

    Each is a fresh interpreter: nothing is forked, so no lock is copied that a thread of this
    process holds, and a program that uses the library is not imported once more. A worker that is
    killed costs no more than the report that it was at, which another begins again.

    Parameters
    ----------
    number
        How many work at once.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._ready: list[_Worker] = []

    def prepare(self, jobs: int) -> None:
        """Start processes, which load meanwhile what reports take."""
        number = min(self._number, jobs)
        while len(self._ready) < number:
            self._ready.append(_Worker(number))

    def end(self) -> None:
        """End the processes that nothing has come for."""
        while self._ready:
            self._ready.pop().end()

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job."""
        number = min(self._number, len(jobs))
        from multiprocessing.connection import wait  # noqa: PLC0415 - questions need no processes

        # The longest first: one that is begun last would be waited for alone.
        longest = sorted(jobs, key=lambda job: -file_size(job.path))
        waiting = deque(job.with_share(number) for job in longest)
        losses: Counter[int] = Counter()
        idle = self._ready
        busy: list[_Worker] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < number:
                    busy.append(idle.pop() if idle else _Worker(number))
                    busy[-1].begin(waiting.popleft())
                ready = wait([worker.connection for worker in busy])
                for worker in [each for each in busy if each.connection in ready]:
                    outcome = worker.hear(tell)
                    if outcome is None and worker.is_alive:
                        continue
                    busy.remove(worker)
                    if outcome is not None:
                        idle.append(worker)
                        yield outcome
                        continue
                    how, job = worker.end(), worker.job
                    losses[job.number] += 1
                    if losses[job.number] > RETRIES:
                        yield lost(job, how)
                    else:
                        waiting.appendleft(job)
        finally:
            for worker in busy:
                worker.end()
            self.end()


class _Worker:
    """A process that makes reports, and the connection to it."""

    job: Job

    def __init__(self, workers: int) -> None:
        from multiprocessing import Pipe  # noqa: PLC0415 - questions need no processes

        self.connection, theirs = Pipe()
        self.is_alive = True
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=users_stderr(),
                env={**os.environ, **_threads(workers)},
                pass_fds=(descriptor,),
                # An interrupt from the keyboard is for the parent, which then ends its workers.
                process_group=0,
            )

    def begin(self, job: Job) -> None:
        """Let it make a report."""
        self.job = job
        with suppress(OSError):  # whether it is still there is found out by listening to it
            self.connection.send(job)

    def hear(self, tell: Tell) -> Outcome | None:
        """Take what it says next: the outcome, or how far it is."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.is_alive = False
            return None
        if isinstance(message, Outcome):
            return message
        if isinstance(message, BaseException):
            raise message
        tell(self.job.number, *message)
        return None

    def end(self) -> str:
        """End it, whatever it does; return in words how it ended, if it already had."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            # One that was lost closed its connection just before it ended.
            self._process.wait(0 if self.is_alive else _LAST_SECONDS)
        self._process.kill()
        code = self._process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _threads(workers: int) -> dict[str, str]:
    """Return what tells libraries that so many processes share the cores; read at their import."""
    threads = str(max(cores() // workers, 1))
    return {"POLARS_MAX_THREADS": threads, "NUMBA_NUM_THREADS": threads}
