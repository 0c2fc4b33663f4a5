"""Reports on a real Dask cluster: a scheduler and workers on loopback, one of which is killed."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from forked import command
from many_helpers import assert_same, await_true, damage, left_over, write_labelled

import tracekit
from tracekit.errors import InputError, StoreError, UsageError
from tracekit.store import _dask

pytestmark = [
    pytest.mark.slow,
    # What the client leaves to the garbage collector is its own affair.
    pytest.mark.filterwarnings("default::ResourceWarning:distributed"),
]

ROOT = Path(tracekit.__file__).parents[1]


class Cluster:
    """A scheduler, and workers that are started and killed at will."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        log = folder / "scheduler.log"
        self.scheduler = stack.enter_context(command("scheduler", log, *words))
        found: list[str] = []

        def look() -> bool:
            found.extend(re.findall(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)", log.read_text()))
            return bool(found)

        await_true(look, 60)
        self.address = found[0]
        self.workers: list[BaseProcess] = []

    def add_worker(self) -> None:
        words = (self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        local = ("--local-directory", str(self._folder))
        log = self._folder / f"worker{len(self.workers)}.log"
        worker = self._stack.enter_context(command("worker", log, *words, *local))
        await_true(lambda: "Registered to" in log.read_text(), 60)
        self.workers.append(worker)


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


@pytest.fixture
def two(cluster) -> Cluster:
    cluster.add_worker()
    cluster.add_worker()
    return cluster


@pytest.fixture(scope="module")
def lasting(tmp_path_factory) -> Iterator[Cluster]:
    """Two workers that no test kills."""
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path_factory.mktemp("lasting"))
        cluster.add_worker()
        cluster.add_worker()
        yield cluster


def when_busy(workers: int, then: Callable[[], None]) -> Callable[..., None]:
    """Return what does something once, when so many reports are being read."""
    busy: set[Path] = set()
    done: list[bool] = []

    def tell(path: Path, step: str, *_: int) -> None:
        busy.add(path) if step else busy.discard(path)
        if len(busy) >= workers and not done:
            done.append(True)
            then()

    return tell


def test_a_run_of_a_cluster_one_worker_of_which_is_killed(two, long_ranks, serial, store) -> None:
    tell = when_busy(2, two.workers[0].kill)
    run, is_new = tracekit.ingest(long_ranks, name="job", dask=two.address, report_progress=tell)
    assert is_new
    two.workers[0].join(20)
    assert [worker.is_alive() for worker in two.workers] == [False, True]
    assert_same(run, serial)
    assert left_over(store) == []
    # It is recognised, and the cluster is there for the next one.
    assert tracekit.ingest(long_ranks, dask=two.address)[1] is False


def test_labels_come_and_a_report_fails_on_a_worker(lasting, store, tmp_path) -> None:
    ranks = write_labelled(tmp_path, 4)
    damaged = damage(ranks[0], tmp_path / "damaged.sqlite")
    with pytest.raises(InputError, match=r"damaged\.sqlite"):
        tracekit.ingest([*ranks, damaged], dask=lasting.address)
    assert not store.exists()
    run, _ = tracekit.ingest([*ranks, damaged], dask=lasting.address, on_error="skip")
    assert len(run.record.files) == 4
    assert any("damaged.sqlite is left out" in text for text in run.warnings)
    assert run.labels == {"batch": "16"}
    assert left_over(store) == []


def test_a_report_whose_workers_are_always_lost_is_given_up(
    tmp_path, long_ranks, store, monkeypatch
) -> None:
    # So that the scheduler itself begins nothing again.
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        cluster.add_worker()

        def kill(_path: Path, step: str, *_: int) -> None:
            if step and cluster.workers[-1].is_alive():
                cluster.workers[-1].kill()
                cluster.workers[-1].join()
                cluster.add_worker()

        with pytest.raises(InputError, match=r"rank0\.sqlite was given up, .* was lost 3 times"):
            tracekit.ingest(long_ranks[:1], dask=cluster.address, report_progress=kill)
        assert len(cluster.workers) >= 4
    assert not store.exists()


def test_a_cluster_that_lacks_tracekit(lasting, long_ranks, store, monkeypatch) -> None:
    # As importing tracekit fails where it is not installed.
    monkeypatch.setattr(_dask, "_task", _nobody_has_this)
    with pytest.raises(UsageError, match="install the same version of tracekit"):
        tracekit.ingest(long_ranks, dask=lasting.address)
    assert not store.exists()


def _nobody_has_this(*_: object) -> None:
    raise ModuleNotFoundError("No module named 'tracekit'")


def test_a_cluster_that_loses_all_workers_is_given_up(
    cluster, long_ranks, store, monkeypatch
) -> None:
    cluster.add_worker()
    monkeypatch.setattr(_dask, "_PATIENCE_SECONDS", 1)
    tell = when_busy(1, cluster.workers[0].kill)
    with pytest.raises(StoreError, match="has lost all its workers"):
        tracekit.ingest(long_ranks, dask=cluster.address, report_progress=tell)
    assert not store.exists()


def test_a_scheduler_that_goes_away_ends_the_ingest(cluster, long_ranks, store) -> None:
    cluster.add_worker()
    tell = when_busy(1, cluster.scheduler.kill)
    with pytest.raises(StoreError, match=r"Dask scheduler .* is gone|was cancelled on"):
        tracekit.ingest(long_ranks, dask=cluster.address, report_progress=tell)
    assert not store.exists()


def test_workers_that_cannot_see_the_store_or_the_reports(lasting, long_ranks, store) -> None:
    from tracekit.attribution import Rules
    from tracekit.store import ReportOptions, open_executor
    from tracekit.store._jobs import ReportJob

    options = ReportOptions(Rules.load(), "0" * 64)
    with open_executor(dask=lasting.address) as executor:
        jobs = [ReportJob(0, long_ranks[0], Path("/nowhere"), options)]
        with pytest.raises(StoreError, match="put the store where all workers reach it"):
            list(executor.run(jobs, lambda *_: None))
        jobs = [ReportJob(0, Path("/nowhere/x.sqlite"), store.parent, options)]
        [outcome] = executor.run(jobs, lambda *_: None)
        assert "put the reports where all workers reach them" in str(outcome.error)


def test_a_cluster_without_workers_is_refused(cluster, long_ranks, store, monkeypatch) -> None:
    monkeypatch.setattr(_dask, "_WORKER_SECONDS", 0.5)
    with pytest.raises(UsageError, match=f"{cluster.address} has no workers: start some"):
        tracekit.ingest(long_ranks, dask=cluster.address)
    assert not store.exists()


def test_no_scheduler_is_one_error_soon(long_ranks, store) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    begin = time.monotonic()
    with pytest.raises(UsageError, match=f"no Dask scheduler answers at {address}"):
        tracekit.ingest(long_ranks, dask=address)
    assert time.monotonic() - begin < 20  # where the client itself would wait for half a minute
    for nonsense in ("nonsense", "tcp://", "foo://x:1", "tcp://host.invalid:1"):
        with pytest.raises(UsageError, match="no Dask scheduler answers"):
            tracekit.ingest(long_ranks, dask=nonsense)
    assert not store.exists()


def test_without_dask_there_is_one_error(long_ranks, store, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'tracekit\[dask\]'"):
        tracekit.ingest(long_ranks, dask="tcp://127.0.0.1:1")
    assert not store.exists()
