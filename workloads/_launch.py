"""Start the processes of a job, and handle the failure of any of them."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from workloads._errors import OptionError, RankError, WorkloadError
from workloads._loop import train
from workloads._options import Options
from workloads._rank import Failure, work
from workloads._stores import join_store
from workloads._summary import Summary
from workloads._world import Place, find_place
from workloads.methods import find_method
from workloads.methods._method import Launch, Method, World

_GRACE_S = 1.0
"""Seconds to wait, after a process has failed, for the message of one that failed earlier."""
_PATIENCE_S = 5.0
"""Seconds that a process has to end after it is told to."""
_PARENT_DEATH_SIGNAL = 1


def run(options: Options) -> Summary | None:
    """Train in as many processes as the method needs.

    If torchrun or mpiexec started this process, the job consists of the processes that it started.
    Otherwise the others are started on this host.

    Returns
    -------
    The summary; None if another process has it: if this one is not rank 0, or mpiexec was started.

    Raises
    ------
    WorkloadError
        If this host cannot fulfil the options, or a process failed; no process is left then.
    """
    method = find_method(options.method)
    place = find_place()
    if place is not None:
        return _join(method, options, place)
    method.check(options, options.gpus)
    if method.launch is Launch.MPI:
        _start(method.starter(options), options)
        return None
    count = method.processes(options)
    if method.launch is Launch.ALONE:
        return train(options, World())
    with tempfile.TemporaryDirectory(prefix="workloads-") as folder, _stopped_by_sigterm():
        return _spawn(options, count, Path(folder) / "store")


def _join(method: type[Method], options: Options, place: Place) -> Summary | None:
    """Train as one process of a job that a launcher started."""
    count = method.processes(options)
    if place.size != count:
        raise OptionError(
            f"the method {options.method} on {options.gpus} GPUs has {count} processes, and "
            f"{place.size} were started",
            f"start {count}, or give another --gpus or --method",
        )
    method.check(options, 1 if method.launch is Launch.ALONE else place.local_rank + 1)
    store = partial(join_store, place)
    summary = train(options, World(place.rank, place.size, place.local_rank, store))
    return summary if place.rank == 0 else None


def _start(starter: Sequence[str], options: Options) -> None:
    """Run a launcher such as mpiexec, which starts the processes, each with the same options."""
    own = (sys.executable, "-m", "workloads.train", *as_arguments(options))
    code = subprocess.run(  # noqa: S603
        [*starter, *own],
        check=False,
        preexec_fn=_end_with_its_parent,
    ).returncode
    if code:
        raise RankError(f"{starter[0]} ended with exit code {code}")


def _end_with_its_parent() -> None:
    """Have the kernel end this process when its parent ends, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def as_arguments(options: Options) -> list[str]:
    """Return the command line arguments for these options."""
    arguments = []
    for each in fields(options):
        name, value = each.name.replace("_", "-"), getattr(options, each.name)
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            arguments.append(f"--{name}={value}")
    return arguments


# -- processes on this host ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Worker:
    """A process of the job, and the connection on which it sends its result."""

    rank: int
    process: BaseProcess
    outcome: Connection

    def result(self) -> Summary | Failure:
        """Receive the result, which must have been sent unless the process has ended."""
        try:
            told: Summary | Failure = self.outcome.recv()
        except EOFError:
            self.process.join(_PATIENCE_S)
            error = RankError(f"the process of rank {self.rank} {self._end()}")
            return Failure(error, is_silent=True)
        return told

    def _end(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return "does not answer" if code is None else f"ended with exit code {code}"


def _spawn(options: Options, count: int, store: Path) -> Summary:
    """Train in new processes on this host, which find each other by a file."""
    context = mp.get_context("spawn")
    workers = []
    try:
        for rank in range(count):
            reader, writer = context.Pipe(duplex=False)
            arguments = (options, rank, count, str(store), writer)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            writer.close()
            workers.append(_Worker(rank, process, reader))
        return _outcome(workers)
    finally:
        _end_all([worker.process for worker in workers])


def _outcome(workers: Sequence[_Worker]) -> Summary:
    """Wait for the results of all processes; return that of rank 0, or raise the first failure."""
    results: dict[int, Summary] = {}
    waiting = {worker.outcome: worker for worker in workers}
    while waiting:
        for ready in wait(list(waiting)):
            worker = waiting.pop(ready)  # type: ignore[call-overload]
            result = worker.result()
            if isinstance(result, Failure):
                raise _first_cause(result, list(waiting.values()))
            results[worker.rank] = result
    for worker in workers:
        worker.process.join(_PATIENCE_S)
    return results[0]


def _first_cause(seen: Failure, others: Sequence[_Worker]) -> WorkloadError:
    """Return the error that made the job fail; print the traceback of an unexpected one.

    A process that ended without a message is the first cause: others fail because it is gone, and
    their messages may arrive earlier.
    """
    failures = [seen, *_heard(others)]
    cause = next((failure for failure in failures if failure.is_silent), seen)
    if cause.trace is not None:
        sys.stderr.write(cause.trace)
    return cause.error


def _heard(workers: Sequence[_Worker]) -> Iterator[Failure]:
    """Yield the failures that `workers` report within a short time."""
    until = time.monotonic() + _GRACE_S
    waiting = {worker.outcome: worker for worker in workers}
    while waiting and (left := until - time.monotonic()) > 0:
        for ready in wait(list(waiting), left):
            result = waiting.pop(ready).result()  # type: ignore[call-overload]
            if isinstance(result, Failure):
                yield result


def _end_all(processes: Sequence[BaseProcess]) -> None:
    """End processes, and wait until they have ended."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise an exception, so that all processes are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: object) -> None:
    del frame
    raise SystemExit(128 + number)
