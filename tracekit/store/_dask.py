"""Executor that runs jobs (units of work that any process can do) as tasks of a Dask cluster."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import Any

from tracekit._version import __version__
from tracekit.errors import StoreError, UsageError
from tracekit.store._jobs import RETRIES, Job, Outcome, Outcomes, Tell, lost
from tracekit.store._worker import throttled

_Client = Any  # dask.distributed says nothing about types
_Future = Any

_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")
_CONNECT_SECONDS = 5
_WORKER_SECONDS = 10
"""Seconds to wait for a first worker."""
_PATIENCE_SECONDS = 60
"""Seconds to wait while all workers are gone, since the cluster may start others."""
_LOOK_SECONDS = 2
_VERSIONS = {"tracekit": __version__, "polars": version("polars")}
"""Package versions that workers must share, since both sides run the same code."""


class Cluster:
    """Runs jobs (such as reading a trace file) on the workers of a Dask cluster, one task per job.

    Dask restarts the task of a lost worker on another worker. Workers read and write the folder of
    the run, so they have to reach it by the same path as this process.
    """

    def __init__(self, client: _Client, address: str) -> None:
        self._client = client
        self._address = address
        self._deserted: float | None = None

    @classmethod
    @contextmanager
    def at(cls, address: str) -> Iterator[Cluster]:
        """Yield the cluster of the scheduler at `address`.

        Raises
        ------
        UsageError
            If dask.distributed is not installed, or the scheduler does not answer or has no worker.
        """
        client = _connected(address)
        try:
            yield cls(client, address)
        finally:
            with suppress(OSError, TimeoutError):
                client.close(timeout=_CONNECT_SECONDS)

    def prepare(self, jobs: int) -> None:
        """Do nothing: the workers exist already."""

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job, as `Executor.run` does."""
        heard: SimpleQueue[Any] = SimpleQueue()
        topic = f"tracekit-{os.urandom(8).hex()}"
        share = min(self._most_at_once(), len(jobs))
        tasks: dict[_Future, Job] = {}
        losses: Counter[int] = Counter()

        def begin(job: Job) -> None:
            future = self._client.submit(_task, job, topic, _VERSIONS, pure=False, retries=0)
            tasks[future] = job
            future.add_done_callback(heard.put)

        self._client.subscribe_topic(topic, lambda event: heard.put(_message(event)))
        try:
            for job in jobs:
                begin(job.anywhere().with_share(share))
            while tasks:
                word = self._next(heard)
                if isinstance(word, tuple):
                    tell(*word)
                    continue
                job = tasks.pop(word)
                outcome = self._result(word, job)
                if outcome is None and losses[job.number] < RETRIES:
                    losses[job.number] += 1
                    begin(job)
                else:
                    yield outcome or lost(job, "was lost")
        finally:
            self._give_up(list(tasks), topic)

    def _next(self, heard: SimpleQueue[Any]) -> Any:
        """Wait for the next message of a worker; raise `StoreError` if no worker is left."""
        while True:
            try:
                return heard.get(timeout=_LOOK_SECONDS)
            except Empty:
                self._check_alive()

    def _check_alive(self) -> None:
        """Raise `StoreError` if no scheduler or worker is left."""
        gone = f"the Dask scheduler {self._address} is gone"
        if self._client.status != "running":
            raise StoreError(gone, "start it, and try again")
        with suppress(OSError, TimeoutError):
            if self._threads():
                self._deserted = None
                return
        now = time.monotonic()
        self._deserted = self._deserted or now
        if now - self._deserted > _PATIENCE_SECONDS:
            raise StoreError(
                f"the Dask scheduler {self._address} has lost all its workers",
                f"start some with `dask worker {self._address}`, and try again",
            )

    def _result(self, future: _Future, job: Job) -> Outcome | None:
        """Return the outcome of a task; None if its workers were lost too often."""
        from distributed import KilledWorker  # noqa: PLC0415 - see _connected

        if future.cancelled():
            self._check_alive()
            raise StoreError(
                f"the task that reads {job.name} was cancelled on {self._address}", "try again"
            )
        error = future.exception()
        if error is None:
            outcome: Outcome = future.result()
            return outcome
        if isinstance(error, KilledWorker):
            return None
        missing = _import_error(error)
        if missing is not None:
            raise UsageError(
                f"the cluster of {self._address} lacks what it needs ({missing})",
                "install the same version of tracekit where its scheduler and workers run",
            ) from error
        raise error

    def _threads(self) -> dict[str, int]:
        """Return the number of threads of each worker: address -> number."""
        # What `Client.nthreads` does, which waits for a scheduler that is gone.
        ask = self._client.scheduler.ncores
        threads: dict[str, int] = self._client.sync(ask, callback_timeout=_CONNECT_SECONDS)
        return threads

    def _most_at_once(self) -> int:
        """Return the largest number of tasks that may run at once on one machine."""
        hosts: Counter[str] = Counter()
        for worker, threads in self._threads().items():
            hosts[worker.rpartition(":")[0]] += threads
        return max(hosts.values(), default=1)

    def _give_up(self, futures: list[_Future], topic: str) -> None:
        # Nothing is asked of the scheduler, which may be gone. It forgets tasks that nobody wants.
        with suppress(Exception):
            self._client.unsubscribe_topic(topic)
        for future in futures:
            future.release()


def _connected(address: str) -> _Client:
    try:
        import distributed  # noqa: PLC0415 - an extra, and takes long to import
    except ImportError as error:
        raise UsageError(
            "a Dask cluster needs dask.distributed", "install it: pip install 'tracekit[dask]'"
        ) from error
    connect: Any = distributed.Client
    try:
        _check_answers(address)
        client = connect(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}",
            "check the address, such as tcp://host:8786; `dask scheduler` starts one",
        ) from error
    try:
        client.wait_for_workers(1, timeout=_WORKER_SECONDS)
    except TimeoutError as error:
        client.close()
        raise UsageError(
            f"the Dask scheduler {address} has no workers", f"start some: dask worker {address}"
        ) from error
    return client


def _check_answers(address: str) -> None:
    """Raise an error if nothing listens at the address; a Dask client would wait for long."""
    from distributed.comm.addressing import (  # noqa: PLC0415
        get_address_host_port,
        parse_address,
    )

    scheme, _ = parse_address(address)
    if scheme not in _SCHEMES:
        raise ValueError(scheme)
    if scheme != "ucx":
        socket.create_connection(get_address_host_port(address), _CONNECT_SECONDS).close()


def _import_error(error: BaseException | None) -> ImportError | None:
    """Return the failed import among the causes of an error; None if there is none."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__
    return error


def _message(event: tuple[float, tuple[int, str, int, int]]) -> tuple[int, str, int, int]:
    _when, (number, step, done, total) = event
    return number, step, done, total


def _task(job: Job, topic: str, versions: Mapping[str, str]) -> Outcome:
    """Run a job on a Dask worker, after comparing its package versions with the client's."""
    from distributed import get_worker  # noqa: PLC0415 - there it is

    _check_versions(versions)
    error = job.unseen()
    if error is not None:
        return Outcome(job.number, error=error)
    worker = get_worker()

    def say(number: int, step: str, done: int, total: int) -> None:
        worker.log_event(topic, (number, step, done, total))

    return job.attempt(throttled(partial(say, job.number)))


def _check_versions(versions: Mapping[str, str]) -> None:
    """Raise an error if package versions differ between this worker and the client."""
    unlike = [name for name, version in versions.items() if _VERSIONS[name] != version]
    if unlike:
        text = ", ".join(f"{name} {_VERSIONS[name]} for {versions[name]}" for name in unlike)
        raise UsageError(
            f"the worker on {socket.gethostname()} has {text}",
            "install the same versions where workers run",
        )
