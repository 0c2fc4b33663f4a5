"""Reports in processes of this machine, some of which are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from many_helpers import (
    assert_same,
    await_true,
    left_over,
    no_worker_left,
    workers,
    write_report,
)

import tracekit
from tracekit.attribution import Rules
from tracekit.errors import InputError, StoreError
from tracekit.store import ReportOptions, open_executor
from tracekit.store._executors import Processes
from tracekit.store._jobs import Outcome, ReportJob

ROOT = Path(tracekit.__file__).parents[1]


@pytest.fixture(autouse=True)
def _nothing_left(store):
    with no_worker_left():
        yield
    if store.exists():
        assert left_over(store) == []


@pytest.mark.slow
def test_processes_that_were_made_ready_make_what_one_makes(
    long_ranks, serial, monkeypatch
) -> None:
    ready: set[int] = set()
    seen: set[int] = set()
    prepare = Processes.prepare

    def prepared(executor: Processes, number: int) -> None:
        prepare(executor, number)
        ready.update(process.pid for process in workers())
        prepare(executor, number)  # which they are

    monkeypatch.setattr(Processes, "prepare", prepared)

    def look(*_: object) -> None:
        seen.update(process.pid for process in workers())

    run, _ = tracekit.ingest(long_ranks, name="job", processes=2, report_progress=look)
    assert_same(run, serial)
    assert len(ready) == 2
    assert seen == ready


@pytest.mark.slow
def test_a_report_whose_process_is_killed_is_made_by_another(long_ranks, serial) -> None:
    killed = []

    def kill(path: Path, step: str, *_: int) -> None:
        if step and not killed:
            killed.extend(workers()[:1])
            killed[0].kill()

    run, _ = tracekit.ingest(long_ranks, name="job", processes=2, report_progress=kill)
    assert len(killed) == 1
    assert_same(run, serial)


def jobs(ranks: list[Path], folder: Path) -> list[ReportJob]:
    rules = Rules.load()
    return [
        ReportJob(number, path, folder, ReportOptions(rules, f"{number:064}"))
        for number, path in enumerate(ranks)
    ]


def killer(number: int, times: int) -> Callable[..., None]:
    """Return what kills the worker, the only one, each time that it begins a certain job."""
    killed: list[int] = []

    def tell(job: int, step: str, *_: int) -> None:
        if job != number or not step or len(killed) == times:
            return
        # What a worker said before it was killed may be heard when it is there no more.
        for worker in workers():
            if worker.pid not in killed:
                killed.append(worker.pid)
                worker.kill()

    return tell


def by_one_worker(jobs: list[ReportJob], tell: Callable[..., None]) -> list[Outcome]:
    """Return what one process makes of jobs that is not this one."""
    with open_executor(1, apart=True) as executor:
        return list(executor.run([*jobs], tell))


@pytest.mark.slow
@pytest.mark.nightly  # by day parts of questions are lost, which the same processes work out
@pytest.mark.parametrize("times", [2, 3])
def test_a_report_that_kills_its_process_is_given_up_the_third_time(
    long_ranks, tmp_path, times
) -> None:
    outcomes = by_one_worker(jobs(long_ranks[:2], tmp_path), killer(0, times))
    assert [outcome.number for outcome in outcomes] == [0, 1]
    assert outcomes[1].error is None
    error = outcomes[0].error
    if times < 3:
        assert error is None
    else:
        assert isinstance(error, InputError)
        assert str(error).startswith(f"{long_ranks[0]} was given up, the process that read it was")
        assert "SIGKILL 3 times: it may lack memory" in str(error)


@pytest.mark.slow
def test_a_process_that_ends_by_itself_is_lost_too(long_ranks, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tracekit.store._executors._PROGRAM", "raise SystemExit(7)")
    [outcome] = by_one_worker(jobs(long_ranks[:1], tmp_path), lambda *_: None)
    assert "ended with 7 3 times" in str(outcome.error)


@pytest.mark.slow
def test_what_is_wrong_with_the_store_ends_everything(long_ranks, tmp_path) -> None:
    absent = tmp_path / "absent"
    with (
        open_executor(2) as executor,
        pytest.raises(StoreError, match="cannot be seen by a worker"),
    ):
        list(executor.run(jobs(long_ranks, absent), lambda *_: None))


@pytest.mark.slow
def test_who_stops_listening_ends_the_processes(long_ranks, tmp_path) -> None:
    with open_executor(2) as executor:
        outcomes = executor.run(jobs(long_ranks, tmp_path), lambda *_: None)
        next(outcomes)
        assert len(workers()) == 2
        outcomes.close()
        assert workers() == []


def test_processes_for_which_nothing_comes_are_ended() -> None:
    with open_executor(3) as executor:
        executor.prepare(2)
        assert len(workers()) == 2
    assert workers() == []


def test_no_process_is_started_for_a_run_that_is_there(ranks, store, monkeypatch) -> None:
    first, _ = tracekit.ingest(ranks, name="job", processes=1)
    monkeypatch.setattr(Processes, "prepare", lambda *_: pytest.fail("started"))
    again, is_new = tracekit.ingest(ranks, processes=2)
    assert (again.id, is_new) == (first.id, False)


@pytest.mark.slow
def test_the_longest_report_is_begun_first(ranks, tmp_path) -> None:
    longest = write_report(tmp_path / "long.sqlite", 100)
    assert longest.stat().st_size > ranks[0].stat().st_size
    outcomes = by_one_worker(jobs([ranks[0], longest, ranks[1]], tmp_path), lambda *_: None)
    assert [outcome.number for outcome in outcomes] == [1, 0, 2]


def test_a_worker_knows_what_names_meant_in_the_report_before(tmp_path) -> None:
    first, second = jobs([tmp_path / "a", tmp_path / "b"], tmp_path)
    same = replace(second, options=replace(second.options, rules=Rules.load(verdict="training")))
    assert second.after(None) is second
    known = replace(first, options=replace(first.options, rules=Rules.load(verdict="training")))
    assert same.after(known).options.rules is known.options.rules
    assert first.after(known) is first


def test_processes_share_memory_and_cores(tmp_path, monkeypatch) -> None:
    from tracekit.store import _executors

    job = jobs([tmp_path / "x"], tmp_path)[0]
    assert job.with_share(4).options.memory == job.options.memory // 4
    monkeypatch.setattr(_executors, "cores", lambda: 8)
    assert _executors._threads(3)["POLARS_MAX_THREADS"] == "2"
    assert _executors._threads(16)["POLARS_MAX_THREADS"] == "1"


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(store: Path, ranks: list[Path]) -> subprocess.Popen[str]:
    """Start an ingest in a process of its own that says when a report is being read."""
    program = (
        "import sys, tracekit\n"
        "def say(path, step, *_):\n"
        "    step and print(step, flush=True)\n"
        "tracekit.ingest(sys.argv[2:], store=sys.argv[1], processes=2, report_progress=say)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(store), *map(str, ranks)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_first", "how"),
    [
        (True, signal.SIGINT),
        (False, signal.SIGKILL),
        pytest.param(True, signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param(False, signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_an_ingest_that_is_killed_takes_its_processes_along(
    long_ranks, ranks, store, how, is_first
) -> None:
    if not is_first:
        tracekit.ingest(ranks[0])
    with start(store, long_ranks) as ingest:
        assert ingest.stdout is not None
        assert ingest.stderr is not None
        ingest.stdout.readline()
        await_true(lambda: len(workers(ingest.pid)) == 2)
        theirs = workers(ingest.pid)
        ingest.send_signal(how)
        assert ingest.wait(60) == -how
        await_true(lambda: not any(map(is_alive, theirs)))
        ingest.stdout.read()
        assert ("KeyboardInterrupt" in ingest.stderr.read()) == (how == signal.SIGINT)
    if how == signal.SIGINT:
        assert not store.exists() if is_first else left_over(store) == []
    else:
        assert left_over(store) != []
    runs = tracekit.Store(store).runs()
    assert len(runs) == (0 if is_first else 1)
    # The next ingest, of anything, clears what the killed one has left.
    tracekit.ingest(ranks[1])
    assert left_over(store) == []
