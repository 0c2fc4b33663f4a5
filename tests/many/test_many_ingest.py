"""One run of many reports: order, identity, failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from many_helpers import (
    assert_same,
    damage,
    left_over,
    no_worker_left,
    write_labelled,
    write_report,
)  # fmt: skip
from nsys_builder import NsysBuilder
from polars.testing import assert_frame_equal

import tracekit
from tracekit.errors import InputError, NotATraceError, StoreError, UsageError
from tracekit.store import run_digest

pytestmark = pytest.mark.usefixtures("samples_read_once")


@pytest.mark.slow
def test_one_run_of_many_reports(ranks) -> None:
    run, is_new = tracekit.ingest(ranks, name="job", labels={"gpus": "4"})
    assert is_new
    assert (run.name, dict(run.labels)) == ("job", {"gpus": "4"})
    assert run.record.files == tuple(path.name for path in ranks)
    reports = run.table("reports").collect()
    assert reports["report"].to_list() == [0, 1, 2, 3]
    assert reports["file"].to_list() == [path.name for path in ranks]
    assert run.record.digest == run_digest(reports["digest"].to_list())
    assert run.summary()["ops"] == 12
    assert len(tracekit.Store.discover().runs()) == 1
    again = tracekit.open("job")
    assert_same(again, run)
    assert again.breakdown("stage").height == 1


def test_a_pipe_among_reports_is_refused(ranks, tmp_path) -> None:
    """Nothing writes to it, so that whoever opens it waits."""
    os.mkfifo(tmp_path / "pipe.sqlite")
    ingest = [sys.executable, "-m", "tracekit", "ingest", "--run", "job"]
    files = [tmp_path / "pipe.sqlite", ranks[0]]
    told = subprocess.run([*ingest, *files], capture_output=True, timeout=60, check=False)
    assert (told.returncode, b"is not a regular file" in told.stderr) == (2, True)


@pytest.mark.slow
def test_analyses_of_a_combined_run_are_those_of_its_reports(ranks) -> None:
    run, _ = tracekit.ingest(ranks, name="job")
    single = [tracekit.ingest(path)[0] for path in ranks]
    by_device = run.breakdown("device")
    # No report names its GPU, so each has one of its own.
    assert by_device["device"].to_list() == [0, 1, 2, 3]
    for index, each in enumerate(single):
        [row] = by_device.rows(named=True)[index : index + 1]
        [alone] = each.breakdown("device").rows(named=True)
        assert row | {"device": 0} == alone
    meta = run.breakdown.answer().meta
    assert meta["devices"] == 4
    assert meta["window_ns"] == sum(each.breakdown.answer().meta["window_ns"] for each in single)
    assert run.breakdown("stage")["busy_ns"].sum() == by_device["busy_ns"].sum()
    assert run.breakdown("iteration")["ops"].to_list() == [12]
    assert run.breakdown("range")["ops"].to_list() == [12]
    assert run.breakdown("stream").height == 4
    assert run.breakdown("kernel")["ops"].sum() == 12
    counts = run.sql("SELECT report, count(*) AS n FROM ops GROUP BY report ORDER BY report")
    assert counts["n"].to_list() == [3] * 4
    assert "rank3.sqlite" in str(run.info.answer().meta["file"])


def test_reports_are_in_natural_order_and_named_by_their_folder(tmp_path) -> None:
    (folder := tmp_path / "my job").mkdir()
    paths = [write_report(folder / f"rank{n}.sqlite", seed=n) for n in (10, 2, 1)]
    run, _ = tracekit.ingest(paths)
    assert run.record.files == ("rank1.sqlite", "rank2.sqlite", "rank10.sqlite")
    assert run.name == "my job"


@pytest.mark.slow
def test_the_same_reports_are_one_run_in_whatever_order_and_place(ranks, tmp_path) -> None:
    run, _ = tracekit.ingest(ranks, name="job")
    moved = [Path(shutil.copy(path, tmp_path / f"x{path.name}")) for path in reversed(ranks)]
    again, is_new = tracekit.ingest(moved, name="job")
    assert (again.id, is_new) == (run.id, False)
    fewer, is_new = tracekit.ingest(moved[1:])
    assert is_new
    assert fewer.id != run.id


def test_a_run_of_one_report_is_that_of_its_file(ranks) -> None:
    run, _ = tracekit.ingest(ranks[:1], name="job")
    assert tracekit.ingest(ranks[0])[0].id == run.id
    assert run.warnings == ()


@pytest.mark.slow
def test_other_rules_make_it_anew_and_attribute_by_report(ranks) -> None:
    run, _ = tracekit.ingest(ranks, name="job")
    again, is_new = tracekit.ingest(ranks, iteration="forward")
    assert (again.id, is_new) == (run.id, True)
    assert again.summary()["iterations"] == 3
    summary, ops = again.summary(), again.table("ops").collect()
    tracekit.ingest(ranks)
    opened = tracekit.open("job", iteration="forward")
    assert opened.summary() == summary
    assert_frame_equal(opened.table("ops").collect(), ops)
    assert opened.warnings == again.warnings


@pytest.mark.slow
def test_a_run_of_an_older_layout_is_made_again(ranks, store) -> None:
    run, _ = tracekit.ingest(ranks, name="job")
    for manifest in store.rglob("parts.json"):
        manifest.unlink()
    with pytest.raises(StoreError, match=r"'job' lacks 0/parts\.json, .*ingest rank0\.sqlite, "):
        tracekit.open("job")
    again, is_new = tracekit.ingest(ranks)
    assert (again.id, is_new) == (run.id, True)
    assert '"format": 6' in run.record.options


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_report_that_fails_stops_everything(ranks, store, tmp_path, processes) -> None:
    damaged = tmp_path / "rank1b.sqlite"
    damage(ranks[0], damaged)
    with no_worker_left(), pytest.raises(InputError, match=r"rank1b\.sqlite"):
        tracekit.ingest([*ranks, damaged], processes=processes)
    assert not store.exists()
    (tmp_path / "text").write_text("text")
    with pytest.raises(NotATraceError, match="text"):
        tracekit.ingest([*ranks, tmp_path / "text"], processes=processes)
    assert not store.exists()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_reports_that_fail_are_skipped(ranks, tmp_path, processes) -> None:
    damaged = tmp_path / "rank1b.sqlite"
    damage(ranks[0], damaged)
    absent = tmp_path / "absent.sqlite"
    skipped: dict[str, InputError] = {}

    def skip(path: Path, error: InputError) -> None:
        skipped[path.name] = error

    given = [absent, ranks[0], damaged, ranks[1]]
    run, _ = tracekit.ingest(given, name="job", processes=processes, on_error=skip)
    assert list(skipped) == ["absent.sqlite", "rank1b.sqlite"]
    assert run.record.files == ("rank0.sqlite", "rank1.sqlite")
    assert run.table("reports").collect()["report"].to_list() == [0, 1]
    left_out = [warning for warning in run.warnings if "is left out: " in warning]
    assert [warning.split()[0] for warning in left_out] == list(skipped)
    # It is the run of those that are in it.
    assert tracekit.ingest(ranks[:2])[0].id == run.id
    assert tracekit.ingest(given, on_error="skip")[0].id == run.id


def test_a_run_of_nothing_is_refused(store, tmp_path) -> None:
    (tmp_path / "text").write_text("text")
    with pytest.raises(InputError, match="none of the 2 reports could be read"):
        tracekit.ingest([tmp_path / "text", tmp_path / "absent"], on_error="skip")
    damaged = tmp_path / "damaged"
    damage(write_report(tmp_path / "good"), damaged)
    with pytest.raises(InputError, match="none of the 1 reports could be read"):
        tracekit.ingest([damaged], on_error="skip")
    with pytest.raises(UsageError, match="no reports"):
        tracekit.ingest([])
    assert not store.exists()


def test_a_report_given_twice_is_refused(ranks, store, tmp_path) -> None:
    copy = Path(shutil.copy(ranks[0], tmp_path / "copy.sqlite"))
    with pytest.raises(InputError, match=r"rank0\.sqlite and .*copy\.sqlite have the same content"):
        tracekit.ingest([ranks[0], copy])
    with pytest.raises(UsageError, match=r"rank0\.sqlite is given twice"):
        tracekit.ingest([ranks[0], ranks[0]], on_error="skip")
    assert not store.exists()
    run, _ = tracekit.ingest([ranks[0], copy, ranks[1]], on_error="skip")
    assert run.record.files == ("rank0.sqlite", "rank1.sqlite")
    assert any("copy.sqlite is left out: " in warning for warning in run.warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0}, "0 bytes of memory"),
        ({"processes": 0}, "0 processes"),
        ({"processes": 2, "dask": "tcp://x:1"}, "either processes or dask"),
        ({"on_error": "ignore"}, "choose stop or skip"),
    ],
)
def test_options_that_make_no_sense(ranks, store, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        tracekit.ingest(ranks, **options)
    assert not store.exists()


@pytest.mark.slow
def test_labels_and_progress_of_each_report_and_of_all_come_through_processes(tmp_path) -> None:
    overall: list[tuple[str, int, int]] = []
    each: list[tuple[str, str]] = []
    ranks = write_labelled(tmp_path, 4)
    run, _ = tracekit.ingest(
        ranks,
        labels={"by": "me"},
        progress=lambda *told: overall.append(told),
        report_progress=lambda path, step, *_: each.append((path.name, step)),
        processes=2,
    )
    size = sum(path.stat().st_size for path in ranks)
    assert ("check content", size, size) in overall
    assert overall[-1] == ("reports", 4, 4)
    for path in ranks:
        steps = [step for name, step in each if name == path.name]
        assert len(steps) > 1
        assert steps[-1] == ""
        assert "" not in steps[:-1]
    assert run.labels == {"batch": "16", "by": "me"}
    assert [text for text in run.warnings if "label 'rank'" in text] != []


@pytest.mark.slow
def test_nothing_is_left_after_an_interrupt(ranks, store) -> None:
    tracekit.ingest(ranks[0])

    def interrupt(_path: Path, step: str, *_: int) -> None:
        if step:
            raise KeyboardInterrupt

    for processes in (1, 2):
        with no_worker_left(), pytest.raises(KeyboardInterrupt):
            tracekit.ingest(ranks, report_progress=interrupt, processes=processes)
        assert len(tracekit.Store.discover().runs()) == 1
        assert left_over(store) == []


def test_digests_need_not_be_read_to_their_end(ranks, store) -> None:
    def interrupt(step: str, *_: int) -> None:
        assert step == "check content"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tracekit.ingest(ranks, progress=interrupt)
    assert not store.exists()


def _of_job(path: Path, seed: int, **variables: int) -> Path:
    """Write a report of a program whose launcher told it so."""
    with NsysBuilder(path, schema="3.11.1") as nsys:
        nsys.launch(0, 10 + seed, 20)
        for name, value in variables.items():
            variable = {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f"{name}={value}"}
            nsys.insert("META_DATA_CAPTURE", **variable)
    return path


def test_two_reports_of_one_rank_are_of_two_jobs(tmp_path, store) -> None:
    files = [
        _of_job(tmp_path / f"{number}.sqlite", number, OMPI_COMM_WORLD_RANK=3)
        for number in range(2)
    ]
    with pytest.raises(InputError, match=r"0\.sqlite and 1\.sqlite are both rank 3: a run is"):
        tracekit.ingest(files)
    assert not store.exists()
    run, _ = tracekit.ingest(files[:1])
    assert run.table("reports").collect()["rank"].to_list() == [3]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_foreign_reports_are_skipped_with_the_reason(tmp_path, store, processes) -> None:
    files = [
        _of_job(tmp_path / f"rank{rank}.sqlite", rank, RANK=rank, WORLD_SIZE=size)
        for rank, size in enumerate((4, 8, 4))
    ]
    skipped: dict[str, str] = {}
    run, _ = tracekit.ingest(
        files,
        processes=processes,
        on_error=lambda path, error: skipped.update({path.name: error.what}),
    )
    assert skipped == {
        "rank1.sqlite": "rank0.sqlite is of a job of 4 ranks, and rank1.sqlite of one of 8"
    }
    assert run.record.files == ("rank0.sqlite", "rank2.sqlite")
    assert run.table("reports").select("rank", "ranks").collect().rows() == [(0, 4), (2, 4)]
    assert any(each.startswith("rank1.sqlite is left out: ") for each in run.warnings)
    assert run.table("ops").collect()["report"].unique().sort().to_list() == [0, 1]
    # It is the run of those that are in it.
    assert tracekit.ingest([files[0], files[2]])[0].id == run.id
    assert left_over(store) == []
