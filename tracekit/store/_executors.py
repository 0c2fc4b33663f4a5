"""Executors of jobs: this process, several local processes, or a Dask cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, partial
from typing import Any

from tracekit.errors import UsageError
from tracekit.store._jobs import RETRIES, Executor, Job, Outcome, Outcomes, PartJob, Tell, lost
from tracekit.support.ahead import cores
from tracekit.support.process import users_stderr
from tracekit.support.progress import Progress

_LAST_SECONDS = 5
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from tracekit.store._worker import main; main(int(sys.argv[2]), sys.argv[3:])"
)


@contextmanager
def open_executor(
    processes: int = 1,
    dask: str | None = None,
    *,
    apart: bool = False,
    rooms: Sequence[str] = ("attribution", "sources"),
) -> Iterator[Executor]:
    """Yield an executor of jobs.

    Parameters
    ----------
    processes
        Number of processes on this machine that work at once; 1 means this process itself.
    dask
        Address of a Dask scheduler whose workers do the jobs instead; None for no cluster.
    apart
        Whether to use a separate process even if `processes` is 1, since a job could kill its
        process.
    rooms
        Subpackages of tracekit that jobs are likely to import; by default those for ingesting.

    Raises
    ------
    UsageError
        If there is no such scheduler, or Dask is not installed. Also in a child process that
        imports the user's script: the script lacks ``if __name__ == "__main__":``.
    """
    if dask is not None or processes > 1 or apart:
        _check_not_imported_again()
    if dask is not None:
        from tracekit.store._dask import Cluster  # noqa: PLC0415 - optional, and takes long

        with Cluster.at(dask) as cluster:
            yield cluster
    elif processes > 1 or apart:
        executor = Processes(processes, rooms)
        try:
            yield executor
        finally:
            executor.end()
    else:
        yield ThisProcess()


def _check_not_imported_again() -> None:
    started = sys.modules.get("multiprocessing.process")
    if started and getattr(started.current_process(), "_inheriting", False):
        raise UsageError(
            "a process that this script started imports the script, and would start others",
            'put what the script does below `if __name__ == "__main__":`',
        )


class Workers:
    """Processes or a Dask cluster that compute results of parts of a run; kept for later analyses.

    Parameters
    ----------
    processes, dask
        See `open_executor`.
    progress
        Called with the number of parts that are done.
    """

    def __init__(self, processes: int, dask: str | None, progress: Progress) -> None:
        self.processes, self._dask = processes, dask
        self._progress = progress

    @cached_property
    def _executor(self) -> Executor:
        opened = ExitStack()
        weakref.finalize(self, opened.close)
        executor = open_executor(self.processes, self._dask, rooms=("engine",))
        return opened.enter_context(executor)

    def __call__(self, work: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
        """Call the functions of `work` in workers; yield index and result of each as it ends."""
        jobs: list[Job] = [
            PartJob(number, f"part {number + 1} of {len(work)} of the run", each)
            for number, each in enumerate(work)
        ]
        with closing(self._executor.run(jobs, lambda *_: None)) as outcomes:
            for done, outcome in enumerate(outcomes, 1):
                if outcome.error is not None:
                    raise outcome.error
                self._progress("parts", done, len(jobs))
                yield outcome.number, outcome.made


class ThisProcess:
    """Executor that runs jobs one after the other in this process."""

    def prepare(self, jobs: int) -> None:
        """Do nothing: jobs run in this process."""

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job, as `Executor.run` does."""
        for job in jobs:
            yield job.attempt(partial(tell, job.number))


class Processes:
    """Runs jobs in separate processes on this machine.

    Each process is a fresh interpreter, not a fork, so no lock held by a thread of this process is
    copied, and the user's program is not imported again. If a worker is killed, only its current
    job is lost, and another worker starts that job again.

    Parameters
    ----------
    number
        Number of processes that work at once.
    rooms
        Subpackages of tracekit that the processes import before their first job.
    """

    def __init__(self, number: int, rooms: Sequence[str] = ()) -> None:
        self._number = number
        self._rooms = rooms
        self._ready: list[_Worker] = []

    def prepare(self, jobs: int) -> None:
        """Start processes, which import the modules that jobs need."""
        number = min(self._number, jobs)
        while len(self._ready) < number:
            self._ready.append(_Worker(number, self._rooms))

    def end(self) -> None:
        """End the processes that have no job."""
        while self._ready:
            self._ready.pop().end()

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job, as `Executor.run` does."""
        number = min(self._number, len(jobs))
        from multiprocessing.connection import wait  # noqa: PLC0415 - questions need no processes

        # The longest first: one that is begun last would be waited for alone.
        longest = sorted(jobs, key=lambda job: -job.size)
        waiting = deque(job.with_share(number) for job in longest)
        losses: Counter[int] = Counter()
        idle = self._ready
        busy: list[_Worker] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < number:
                    busy.append(idle.pop() if idle else _Worker(number, self._rooms))
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
        except BaseException:  # whoever stops listening, too
            self.end()
            raise
        finally:
            for worker in busy:
                worker.end()


class _Worker:
    """A process that does jobs, and the connection to it."""

    job: Job

    def __init__(self, workers: int, rooms: Sequence[str]) -> None:
        from multiprocessing import Pipe  # noqa: PLC0415 - questions need no processes

        self.connection, theirs = Pipe()
        self.is_alive = True
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                # -P: no module from the working directory, which may be anybody's folder of traces.
                [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), str(descriptor),
                 *rooms],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=users_stderr(),
                env={**os.environ, **_threads(workers)},
                pass_fds=(descriptor,),
                # An interrupt from the keyboard is for the parent, which then ends its workers.
                process_group=0,
            )  # fmt: skip

    def begin(self, job: Job) -> None:
        """Send a job to the process."""
        self.job = job
        with suppress(OSError):  # whether it is still there is found out by listening to it
            self.connection.send(job)

    def hear(self, tell: Tell) -> Outcome | None:
        """Receive a message: return the outcome of a job; for progress, pass it on, return None."""
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
        """End the process; if it had ended by itself, return how, in words."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            # One that was lost closed its connection just before it ended.
            self._process.wait(0 if self.is_alive else _LAST_SECONDS)
        self._process.kill()
        code = self._process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _threads(workers: int) -> dict[str, str]:
    """Return environment variables that limit threads per worker: cores divided by `workers`."""
    threads = str(max(cores() // workers, 1))
    return {"POLARS_MAX_THREADS": threads, "NUMBA_NUM_THREADS": threads}
