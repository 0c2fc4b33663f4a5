"""Questions whose parts processes and a Dask cluster answer, some of which are killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hybrid_job
import pytest
from many_helpers import await_true, workers, write_ranks
from polars.testing import assert_frame_equal
from test_many_dask import ROOT, Cluster

import tracekit
from tracekit.analysis.diagnosis._facts import facts_of
from tracekit.analysis.idle_account import _idle_sums, _silence
from tracekit.engine import _launch_groups, _stream
from tracekit.errors import InputError, StoreError, UsageError
from tracekit.model import _combine, _trace
from tracekit.store import Workers, _dask, open_executor
from tracekit.store._jobs import PartJob
from tracekit.support.memory import _START, NEEDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning:distributed"),
]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("stage", {}), ("kernel,rank", {}), ("kernel", {"per_iteration": True}), ("range", {}),
    ("stage,iteration", {}), ("device", {"iterations": (1, 1)}),
]  # fmt: skip
_KEPT = tracekit.Store.kept


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of a run of three reports, each of which is a part."""
    store = tmp_path_factory.mktemp("asked") / "store"
    ranks = write_ranks(tmp_path_factory.mktemp("three"), 3, 200)
    tracekit.ingest(ranks, name="job", store=store, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_combine, "_OF_PART", 1)
        # Else what one test asks the next would only read.
        patch.setattr(tracekit.Store, "kept", lambda *_: None)
        yield store


@pytest.fixture(scope="module")
def local(asked: Path) -> list[str]:
    """What this process answers."""
    return answers(tracekit.open("job", store=asked))


def answers(run: tracekit.Run, number: int | None = None) -> list[str]:
    """What a run answers to the first of the questions, or to all."""
    found = [run.breakdown.answer(by, **options) for by, options in ASKED[:number]]
    if number is None:
        found += [run.idle.answer("rank,cause"), run.idle.answer(longest=3)]
        found += [run.collectives.answer(), run.links.answer("pair"), run.diagnose.answer()]
    return [f"{each.rows.write_json()} {each.meta}" for each in found]


def once(then: Callable[[], None]) -> Callable[..., None]:
    """Return what does something when the first part of several is done."""
    done: list[bool] = []

    def tell(step: str, parts: int, total: int) -> None:
        if step == "parts" and 0 < parts < total and not done:
            done.append(True)
            then()

    return tell


@pytest.mark.parametrize("number", [2, pytest.param(8, marks=pytest.mark.nightly)])
def test_processes_answer_as_one_does(asked, local, number) -> None:
    told: list[tuple[str, int, int]] = []
    run = tracekit.open("job", store=asked, processes=number,
                        progress=lambda *step: told.append(step))  # fmt: skip
    assert len(run.trace.parts()) == 3
    assert answers(run) == local
    # They stay for the next question, and are ended with the run.
    there = {process.pid for process in workers()}
    assert len(there) == min(number, 3)
    assert answers(run, 1) == local[:1]
    assert {process.pid for process in workers()} == there
    assert told[:3] == [("parts", done, 3) for done in range(1, 4)]
    del run
    assert workers() == []


def test_a_process_that_is_killed_changes_nothing(asked, local) -> None:
    killed: list[int] = []

    def kill() -> None:
        worker = workers()[0]
        killed.append(worker.pid)
        worker.kill()

    run = tracekit.open("job", store=asked, processes=2, progress=once(kill))
    assert answers(run, 2) == local[:2]
    assert len(killed) == 1


def _die_at_first(flag: Path) -> str:
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return flag.name


def _die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_part_whose_process_is_lost_is_done_again(tmp_path) -> None:
    ask = Workers(2, None, lambda *_: None)
    names = ["flag0", "flag1"]
    found = ask([partial(_die_at_first, tmp_path / name) for name in names])
    assert dict(found) == dict(enumerate(names))
    with pytest.raises(InputError, match=r"part 1 of 2 .* was ended by SIGKILL 3 times"):
        list(ask([partial(_die, 0), partial(len, "abc")]))
    del ask, found
    assert workers() == []


def test_a_script_that_is_imported_again_starts_no_others(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from tracekit.store import open_executor\n"
        "with open_executor(2):\n"
        "    print('began')\n"
        "started = multiprocessing.get_context('spawn').Process(target=print)\n"
        "started.start()\n"
        "started.join()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True,
                          text=True, timeout=100, check=True)  # fmt: skip
    assert done.stdout == "began\n"
    assert 'put what the script does below `if __name__ == "__main__":`' in done.stderr


def _look(path: Path) -> bytes:
    return path.read_bytes()


def test_a_worker_that_cannot_see_the_store_says_so() -> None:
    with open_executor() as executor, pytest.raises(StoreError, match="put the store where all"):
        list(executor.run([PartJob(0, "rank0", partial(_look, Path("/nowhere")))], lambda *_: None))


@pytest.mark.parametrize(
    "number", [2, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 8))]
)
def test_a_cluster_answers_as_one_process_does(asked, local, tmp_path, number) -> None:
    # By day few of what processes are asked, which is sent to them in the same form.
    few = 2 if number == 2 else None
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        for _ in range(number):
            cluster.add_worker()
        assert answers(tracekit.open("job", store=asked, dask=cluster.address), few) == local[:few]
        studied, there = (
            tracekit.study.answer(["job"], store=asked, **where)
            for where in ({}, {"dask": cluster.address})
        )
        assert there.rows.equals(studied.rows)
        if number == 1:
            return
        # One of the others takes over what it was at.
        tell = once(cluster.workers[0].kill)
        run = tracekit.open("job", store=asked, dask=cluster.address, progress=tell)
        assert answers(run, 2) == local[:2]
        cluster.workers[0].join(20)
        assert cluster.workers[0].exitcode == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("job", ["simulated", "recorded"])
def test_a_cluster_answers_of_eight_ranks_together(tmp_path, monkeypatch, real_trace, job, number):
    if job == "recorded":
        folder = real_trace("ddp_unet_4xa100_rank0").with_name("kineto_dlrm_8xv100")
        files = sorted(folder.glob("*.json"))
    else:
        ran = hybrid_job.run(hybrid_job.Job(tensor=2, pipeline=2, data=2, per_node=4))
        files = hybrid_job.record(ran, tmp_path / "reports").files
    store = tmp_path / "ranks"
    tracekit.ingest(files, name="job", store=store, processes=1)
    monkeypatch.setattr(_combine, "_OF_PART", 1)
    monkeypatch.setattr(tracekit.Store, "kept", lambda *_: None)

    def told(run: tracekit.Run) -> list[str]:
        found = [run.breakdown.answer("kernel,rank"), run.stragglers.answer(), run.links.answer(),
                 run.links.answer("pair,stage"), run.collectives.answer("collective,bytes,rank"),
                 run.idle.answer("communicator,cause"), tracekit.study.answer([run]),
                 run.latency.answer(), run.diagnose.answer()]  # fmt: skip
        return [f"{each.rows.write_json()} {each.meta}" for each in found]

    here = told(tracekit.open("job", store=store))
    assert told(tracekit.open("job", store=store, processes=number)) == here
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        for _ in range(number):
            cluster.add_worker()
        assert told(tracekit.open("job", store=store, dask=cluster.address)) == here


def test_memory_is_that_of_the_parts_that_are_asked_at_the_same_time(asked) -> None:
    run = tracekit.open("job", store=asked)
    rows = [max(map(report.height, ("ops", "calls", "ranges"))) for report in run.reports]
    need = NEEDS["idle"]
    least = _START + need.row_bytes * max(rows) + need.merged_bytes * sum(rows)
    tracekit.open("job", store=asked, memory=least).idle()
    with pytest.raises(UsageError, match=r"idle of 201 rows takes about"):
        tracekit.open("job", store=asked, memory=least - 1).idle()
    with pytest.raises(UsageError, match=r"idle of 603 rows takes about"):
        tracekit.open("job", store=asked, memory=least, processes=3).idle()


@pytest.fixture
def keeping(asked, tmp_path, monkeypatch) -> tracekit.Store:
    """A copy of that store that keeps what parts answer."""
    monkeypatch.setattr(tracekit.Store, "kept", _KEPT)
    return tracekit.Store(shutil.copytree(asked, tmp_path / "copied"))


def test_causes_of_gaps_are_those_of_the_whole_run(asked, monkeypatch) -> None:
    found = {}
    for most, parts in ((1, 3), (10**6, 1)):
        monkeypatch.setattr(_combine, "_OF_PART", most)
        run = tracekit.open("job", store=asked)
        facts = facts_of(run.trace)
        assert len(facts.trace.parts()) == parts
        found[parts] = facts.idle, run.diagnose.answer(everything=True)
    assert found[3][0].height > 3
    assert_frame_equal(found[3][0], found[1][0], check_row_order=False)
    assert found[3][1].rows.equals(found[1][1].rows)


def test_what_parts_answer_is_kept(keeping, monkeypatch) -> None:
    store, folder = keeping, keeping.folder(keeping.runs()[0]) / "kept"
    parts: list[tracekit.model.Trace] = []
    ask = _idle_sums._IdleOfPart.__call__
    monkeypatch.setattr(
        _idle_sums._IdleOfPart, "__call__", lambda *each: parts.append(each[1]) or ask(*each)
    )

    def idle() -> list[tuple[Any, ...]]:
        parts.clear()
        return tracekit.open("job", store=store.root).idle("rank,cause").rows()

    first = idle()
    files = sorted(folder.iterdir())
    # Launch groups, what tells of communication, causes in windows and in steps, and what of these
    # is silent, of three parts.
    assert (len(files), len(parts)) == (5 * 3, 3 * 2)
    assert sum(file.stat().st_size for file in files) < 15 * 20_000
    assert (idle(), len(parts)) == (first, 0)
    for file in files:
        file.write_bytes(file.read_bytes()[:-7] + b"damaged")
    assert (idle(), len(parts)) == (first, 3 * 2)
    assert (idle(), len(parts)) == (first, 0)
    # Other code reads none of it, and `runs gc` removes it.
    stale = files[0].rename(folder / f"{'0' * 16}-{files[0].name[17:]}")
    assert store.collect(dry_run=True) == [stale]
    assert store.collect() == [stale]
    assert sorted(folder.iterdir()) == files[1:]
    assert store.check() == []
    shutil.rmtree(folder)
    folder.touch()  # what cannot be kept is answered all the same
    assert idle() == first


def test_what_parts_answered_of_a_breakdown_is_kept(keeping, local, monkeypatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(_stream, "_in_order", _counting(_stream._in_order, read))
    for parts in (3 * len(ASKED), 0):
        read.clear()
        run = tracekit.open("job", store=keeping.root)
        assert answers(run, len(ASKED)) == local[: len(ASKED)]
        assert len(read) == parts
    for by in ("stream", "kernel,stream"):  # others are asked anew
        read.clear()
        run.breakdown(by)
        assert len(read) == 3


def test_the_share_of_reports_that_answer_is_said(keeping) -> None:
    folder = keeping.folder(keeping.runs()[0])
    (folder / "1" / "ops" / "00000.parquet").unlink()
    shutil.rmtree(folder / "2")
    with pytest.raises(StoreError, match=r"lacks 1/ops/00000\.parquet, 2/"):
        tracekit.open("job", store=keeping.root)
    run = tracekit.open("job", store=keeping.root, on_missing="skip")
    said = "1 of 3 reports answer (33.3 %): rank1.sqlite, rank2.sqlite lack files or have damaged"
    answer = run.breakdown.answer("device")
    assert answer.rows.select("device", "ops").rows() == [(0, 200)]
    assert any(text.startswith(said) for text in answer.meta["warnings"])
    assert not (folder / "kept").exists()  # by numbers that are those of all three
    with pytest.raises(UsageError, match="'ignore' is not known"):
        tracekit.open("job", store=keeping.root, on_missing="ignore")
    for number in range(3):
        shutil.rmtree(folder / str(number), ignore_errors=True)
    with pytest.raises(StoreError, match="lacks"):
        tracekit.open("job", store=keeping.root, on_missing="skip")


def test_reports_of_chosen_ranks_are_looked_at_alone(asked) -> None:
    run = tracekit.open("job", store=asked, only_ranks="0-0, 2")
    assert run.table("reports").collect()["file"].to_list() == [
        "rank0.sqlite", "rank2.sqlite"
    ]  # fmt: skip
    said = "looked at are 2 of 3 reports, those of ranks 0-0, 2: what other ranks did is not known"
    answer = run.breakdown.answer("rank")
    assert answer.rows["rank"].sort().to_list() == [0, 2]
    assert any(text.startswith(said) for text in answer.meta["warnings"])
    assert "the clocks of 2 reports are not aligned" in run.warnings[1]
    others = [text for text in run.warnings if not text.startswith(said)]
    assert not any("rank1.sqlite" in text or "of 3" in text for text in others)
    assert tracekit.open("job", store=asked, only_ranks=[2]).table("ops").collect().height == 200
    renewed = tracekit.open("job", store=asked, only_ranks="2", iteration="step")
    assert renewed.breakdown("rank").rows()[0][0] == 2
    for ranks, message in (
        ("9", "has no rank 9: there are 0 to 2"),
        ("3-1", "'3-1' names no ranks"),
        ("", "'' names no ranks"),
    ):
        with pytest.raises(UsageError, match=message):
            tracekit.open("job", store=asked, only_ranks=ranks)


def _counting(work: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    return lambda *given: calls.append(given) or work(*given)  # type: ignore[func-returns-value]


def test_workers_of_another_version_are_refused(monkeypatch) -> None:
    _dask._check_versions(_dask._VERSIONS)
    asks = {**_dask._VERSIONS, "tracekit": "0.0.1"}
    with pytest.raises(UsageError, match=r"has tracekit .* for 0\.0\.1: install the same"):
        _dask._check_versions(asks)


def test_what_cannot_be_is_refused_before_anything_is_read(asked) -> None:
    with pytest.raises(UsageError, match="0 processes cannot work"):
        tracekit.open("job", store=asked, processes=0)
    with pytest.raises(UsageError, match="give either processes or dask"):
        tracekit.open("job", store=asked, processes=2, dask="tcp://head:8786")
    with pytest.raises(UsageError, match="ingest the trace again with these rules"):
        tracekit.open("job", store=asked, processes=2, iteration="step")
    with pytest.raises(UsageError, match="no Dask scheduler answers"):
        tracekit.open("job", store=asked, dask="tcp://127.0.0.1:1").breakdown(by="kernel")


def _blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    return re.findall(f"```{language}\n(.*?)```", page, re.DOTALL)


def _stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_the_job_for_slurm_answers(asked, tmp_path) -> None:
    [script] = _blocks("bash")
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n', encoding="utf-8")
    # What stands in for Slurm begins its task twice, as on two nodes, and ends both when it ends.
    _stub(programs, "srun", 'shift; trap \'kill $(jobs -p)\' TERM; "$@" & "$@" & wait')
    _stub(programs, "dask", f'exec {sys.executable} -m "distributed.cli.dask_$1" "${{@:2}}"')
    _stub(programs, "tracekit", f'exec {sys.executable} -m tracekit "$@"')
    _stub(programs, "python", f'exec {sys.executable} "$@"')
    changes = {"/shared/.tracekit": str(asked), "/shared/venv": str(tmp_path / "venv"),
               "breakdown unet": "breakdown job"}  # fmt: skip
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    job = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, start_new_session=True,
        env={**os.environ, "SLURM_JOB_ID": "7", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert job.wait(200) == 0
    finally:  # Slurm, too, ends what a job leaves: a worker that is told to end while it starts
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    expected = tracekit.open("job", store=asked).breakdown(by="kernel")
    assert (tmp_path / "kernels-7.csv").read_text().count("\n") == expected.height + 1


@pytest.mark.nightly  # by day the job for Slurm starts the same programs
def test_the_containers_for_kubernetes_answer(asked, tmp_path) -> None:
    import yaml

    [page] = _blocks("yaml")
    kinds = {each["kind"]: each["spec"] for each in yaml.safe_load_all(page)}
    assert kinds["Service"]["ports"] == [{"port": 8786}]
    commands = {
        "scheduler": kinds["Pod"]["containers"][0]["command"],
        "worker": kinds["Deployment"]["template"]["spec"]["containers"][0]["command"],
        "ask": kinds["Job"]["template"]["spec"]["containers"][0]["command"],
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"tcp://tracekit-scheduler:8786": f"tcp://127.0.0.1:{port}", "8786": port,
              "/tmp": str(tmp_path), "/shared/.tracekit": str(asked), "unet": "job"}  # fmt: skip

    def words(name: str) -> list[str]:
        program, *rest = [places.get(word, word) for word in commands[name]]
        if program == "dask":
            return [sys.executable, "-m", f"distributed.cli.dask_{rest[0]}", *rest[1:]]
        return [sys.executable, "-m", program, *rest]

    with ExitStack() as stack:
        for name in ("scheduler", "worker"):
            running = subprocess.Popen(words(name), cwd=ROOT, stderr=subprocess.DEVNULL)
            stack.callback(running.wait)
            stack.callback(running.terminate)
            await_true(lambda name=name: name == "worker" or _answers(int(port)), 60)
        done = subprocess.run(
            words("ask"), cwd=ROOT, check=True, capture_output=True, text=True, timeout=200
        )
    assert "kernel_49" in done.stdout


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_sums_of_functions_of_one_name_are_kept_apart() -> None:
    part: Any = SimpleNamespace(stretch=None, tables=SimpleNamespace(name="", own=list))
    works = [partial(module._of_part, part) for module in (_launch_groups, _silence)]
    assert len({_trace._key(work) for work in works}) == 2
