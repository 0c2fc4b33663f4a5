"""Rings: what is written is what is read, at any moment, and damage is one clear error."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_ranges import KeptRanges
from test_annotation_recorded import PROGRAMS

import tracekit
from tracekit.annotation import _ring
from tracekit.errors import DamagedTraceError, InputError, MissingDataError
from tracekit.sources import rings
from tracekit.sources import rings as reader


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a clock count what asks for the time, from 1,000 on, and nothing be of a rank."""
    clock = itertools.count(1_000)
    monkeypatch.setattr(_ring.time, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(_ring.time, "time_ns", lambda: 10**18)
    for name in _ring._RANKS:
        monkeypatch.delenv(name, raising=False)


def _rows(path: Path) -> list[tuple[str, int, int, str]]:
    ranges = rings.read(path).trace().read("ranges")
    texts = ranges.select(pl.col("name", "style").cast(pl.String), "start", "end")
    return texts.select("name", "start", "end", "style").rows()


def _step(ranges: _ring.RingRanges, number: int) -> None:
    step = ranges.start_once(f"iteration {number}")
    ranges.push("FP")
    ranges.push("layer fc (Linear)")
    ranges.pop()
    ranges.pop()
    ranges.end(step)


def test_both_sides_have_one_format() -> None:
    assert (_ring.MAGIC, _ring.NAMES_AT, _ring.SALT) == (
        reader.MAGIC, reader.NAMES_AT, reader._SALT,
    )  # fmt: skip
    assert _ring.RECORD.size == reader._RECORD.itemsize
    assert _ring.HEAD.size == reader._HEAD.size


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "live.ring"
    ranges = _ring.RingRanges(str(path))
    with pytest.raises(InputError):
        tracekit.open(path)  # there is none before the first range has ended
    _step(ranges, 7)
    ranges.mark("tracekit.steps from optimizers")
    # The clock is read once more where the file is made, between the ends of two ranges.
    assert _rows(path) == [
        ("iteration 7", 0, 6, "start_end"), ("FP", 1, 5, "push_pop"),
        ("layer fc (Linear)", 2, 3, "push_pop"),
        ("tracekit.steps from optimizers", 7, 7, "push_pop"),
    ]  # fmt: skip
    trace = rings.read(path).trace()
    assert trace.read("reports")["session_start"].to_list() == [10**18 - 1_004 + 1_000]
    assert trace.read("processes")["pid"].to_list() == [os.getpid()]
    assert "host's clock" in trace.warnings[0]


def test_stages_are_those_of_the_ranges(tmp_path: Path) -> None:
    ranges = _ring.RingRanges(str(tmp_path / "live.ring"))
    for number in range(3):
        _step(ranges, number)
    run = tracekit.ingest(tmp_path / "live.ring", store=tmp_path / "store")[0]
    answer = run.breakdown.answer(by="iteration", skip=0)
    assert answer.rows["window_ns"].to_list() == [7, 6, 5]  # each up to the next one
    assert answer.rows["iteration_name"].to_list() == [f"iteration {n}" for n in range(3)]
    assert "host" in answer.meta["basis"]
    assert run.breakdown(by="stage")["exposed_ns"].to_list() == [4 + 3 + 3]


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from(["push", "pop", "start", "end", "mark"]), max_size=80), st.data())
def test_the_latest_are_kept(tmp_path_factory: pytest.TempPathFactory, calls: list[str],
                             data: st.DataObject) -> None:  # fmt: skip
    """Of those that began before the oldest one ended, parts may be lost: these are left out."""
    path = tmp_path_factory.mktemp("ring") / "live.ring"
    capacity = data.draw(st.integers(1, 20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ring, "CAPACITY", capacity)
        clock = itertools.count(1)
        patch.setattr(_ring.time, "perf_counter_ns", lambda: next(clock))
        ranges, kept = _ring.RingRanges(str(path)), KeptRanges()
        both = _ring.Both(kept, ranges)
        expected: list[tuple[str, int]] = []  # in the order in which they end
        stack: list[str] = []
        started: list[tuple[int, str]] = []
        for number, call in enumerate(calls):
            if call == "push":
                both.push(f"name {number % 3}")
                stack.append(f"name {number % 3}")
            elif call == "pop" and stack:
                both.pop()
                expected.append((stack.pop(), 0))
            elif call == "start":
                started.append((both.start_once(f"step {number}"), f"step {number}"))
            elif call == "end" and started:
                handle, name = started.pop(0)
                both.end(handle)
                expected.append((name, 0))
            elif call == "mark":
                both.mark("mark")
                expected.append(("mark", 0))
    if not expected:
        return
    latest = [name for name, _ in expected[-capacity:]]
    lost = len(expected) - len(latest)
    try:
        found = [name for name, *_ in _rows(path)]
    except MissingDataError:
        assert lost
        return
    if lost:
        assert set(found) <= set(latest)
        assert any("overwritten" in each for each in rings.read(path).warnings)
    else:
        assert sorted(found) == sorted(latest)
    records = reader._Ring.of(path.read_bytes(), path).records
    assert (records["turn"] > 0).sum() == len(latest)


def test_what_began_before_the_oldest_ended_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ring, "CAPACITY", 4)
    ranges = _ring.RingRanges(str(tmp_path / "live.ring"))
    for number in range(3):
        _step(ranges, number)  # three ranges each: the oldest one kept is step 1's
    assert [name for name, *_ in _rows(tmp_path / "live.ring")] == [
        "iteration 2", "FP", "layer fc (Linear)",
    ]  # fmt: skip
    assert "5 older ranges are overwritten" in rings.read(tmp_path / "live.ring").warnings[1]


def test_each_thread_has_its_ranges(tmp_path: Path) -> None:
    ranges = _ring.RingRanges(str(tmp_path / "live.ring"))
    ranges.push("outer")
    other = threading.Thread(target=lambda: (ranges.push("inner"), ranges.pop()))
    other.start()
    other.join()
    ranges.pop()
    table = rings.read(tmp_path / "live.ring").trace().read("ranges")
    assert table["name"].to_list() == ["outer", "inner"]
    assert table["thread"].n_unique() == 2


def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring, "NAMES_BYTES", 64)
    ranges = _ring.RingRanges(str(tmp_path / "live.ring"))
    for name in ("ä" * 20, "b" * 20, "ä" * 20):
        ranges.mark(name)
    ranges.mark("c" * 5 + " 0000000000000000000000001")
    ranges.push("aten::linear, sizes = [[1]]")  # a profiler's
    ranges.pop()
    assert [name for name, *_ in _rows(tmp_path / "live.ring")] == ["ä" * 20, None, "ä" * 20, None]


def test_a_killed_program_leaves_a_ring(tmp_path: Path) -> None:
    path = tmp_path / "live.ring"
    code = (
        "import os, sys; from tracekit.annotation._ring import RingRanges\n"
        "ranges = RingRanges(sys.argv[1])\n"
        "for _ in range(1000): ranges.push('FP'); ranges.pop()\n"
        "ranges.push('BP'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [name for name, *_ in _rows(path)] == ["FP"] * 1000


def test_processes_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "live.ring"
    ranges = _ring.RingRanges(str(path))
    ranges.mark("parent")
    child = multiprocessing.get_context("fork").Process(target=lambda: ranges.mark("child"))
    child.start()
    child.join()
    monkeypatch.setenv("RANK", "3")
    _ring.RingRanges(str(path)).mark("rank")
    assert _rows(path)[0][0] == "parent"
    assert _rows(tmp_path / f"live.{child.pid}.ring")[0][0] == "child"
    assert _rows(tmp_path / "live.rank3.ring")[0][0] == "rank"
    ranks = rings.read(tmp_path / "live.rank3.ring").trace().read("reports")["rank"]
    assert ranks.to_list() == [3]


def test_no_other_file_is_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "weights.bin"
    mine.write_bytes(b"weights")
    for path in (mine, tmp_path / "no" / "such.ring"):
        ranges = _ring.RingRanges(str(path))
        ranges.mark("one")
        ranges.mark("two")
    assert mine.read_bytes() == b"weights"
    said = capfd.readouterr().err
    assert said.count("tracekit: no ring") == 2
    assert "weights.bin is there, and no ring" in said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "live.ring"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ring, "CAPACITY", 200)
        patch.setattr(_ring, "NAMES_BYTES", 100)
        ranges = _ring.RingRanges(str(path))
        for number in range(80):
            _step(ranges, number)
    return path.read_bytes()


@settings(max_examples=examples(200))
@given(st.data())
def test_damage_is_one_clear_error(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """But for the oldest records, which a program may be about to write over."""
    path = tmp_path_factory.mktemp("damaged") / "live.ring"
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(16, len(whole) - 1))])
    else:
        damaged = bytearray(whole)
        at = data.draw(st.integers(16, len(whole) - 1))
        damaged[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
    try:
        found = _rows(path)
    except DamagedTraceError:
        return
    assert len(path.read_bytes()) == len(whole)
    assert {name for name, *_ in found} <= {"FP", "layer fc (Linear)"} | {
        f"iteration {n}" for n in range(80)
    }


@pytest.mark.parametrize(("place", "value"), [(2, 0), (2, 1 << 60), (3, 0), (3, 1 << 60)])
def test_a_head_that_contradicts_its_file(
    whole: bytes, tmp_path: Path, place: int, value: int
) -> None:
    """With a check that holds, as whoever makes one up would write it."""
    words = [int(each) for each in np.frombuffer(whole[:64], "<u8")]
    words[7] ^= words[place] ^ value
    words[place] = value
    path = tmp_path / "live.ring"
    path.write_bytes(np.array(words, "<u8").tobytes() + whole[64:])
    with pytest.raises(DamagedTraceError, match="its header gives"):
        rings.read(path)


@pytest.mark.nightly
def test_stages_are_those_that_nsys_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("no nsys on the path")
    command = [
        sys.executable,
        "-m",
        "tracekit",
        "record",
        "--annotate",
        "--trace",
        "nvtx",
        "--ring",
    ]
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, str(PROGRAMS / "plain.py"), "clock.json"]
    subprocess.run([*command, "live.ring", "--", *program], check=False, capture_output=True)
    [report] = tmp_path.glob("recordings/*/*.nsys-rep")
    stages = []
    for path in (report, tmp_path / "live.ring"):
        run = tracekit.ingest(path, store=tmp_path / "store")[0]
        stages.append(dict(run.breakdown(by="stage").select("stage", "exposed_ns").iter_rows()))
    by_nsys, by_ring = stages
    assert set(by_nsys) == set(by_ring) == {"FP", "BP", "WU", "ME", "IO"}
    assert all(abs(by_ring[each] / by_nsys[each] - 1) < 0.03 for each in by_nsys), stages
