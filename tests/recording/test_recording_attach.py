"""Attaching to a job: all ranks record the same steps, or it is said that they did not."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.annotation import _attach
from tracekit.annotation._attach import Requests
from tracekit.annotation._step_windows import Windows, WithinWindows
from tracekit.errors import RecordingError, UsageError
from tracekit.recording import _attach_request as module
from tracekit.recording import attach, clear


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attach, "_PAUSE", 0)


class _Kept:
    """Takes names of ranges; a number is what ends one of the process."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def push(self, name: str) -> None:
        self.said.append(name)

    def pop(self) -> None:
        self.said.append(")")

    def start(self, name: str) -> int:
        self.said.append(name)
        return len(self.said)

    start_once = start

    def mark(self, name: str) -> None:
        self.said.append(name)

    def end(self, opened: int) -> None:
        self.said.append(f"end {opened}")


@contextmanager
def _job(folder: Path, ranks: int) -> Iterator[dict[int, list[int]]]:
    """Run ranks that make steps together, and yield which of these each recorded."""
    ended, barrier = threading.Event(), threading.Barrier(ranks)
    recorded: dict[int, list[int]] = {rank: [] for rank in range(ranks)}

    def run(rank: int) -> None:
        requests = Requests(str(folder))
        requests._answer += f".{rank}"
        windows = Windows(_Kept(), requests)
        chance = random.Random(rank)
        for number in range(100_000):
            if rank == 0 and ended.is_set():
                barrier.abort()
            try:
                barrier.wait()
            except threading.BrokenBarrierError:
                return
            time.sleep(chance.uniform(0, 0.002))
            windows.begin(rank, number)
            if windows.is_open:
                recorded[rank].append(number)
            windows.end(rank, number + 1, is_told=False)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for each in threads:
        each.start()
    try:
        yield recorded
    finally:
        ended.set()
        for each in threads:
            each.join()


def _begun(folder: Path, ranks: int) -> None:
    while len([each for each in folder.iterdir() if not each.name.endswith(".new")]) < ranks:
        time.sleep(0.01)


@pytest.mark.slow
def test_all_ranks_record_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AHEAD", 0.5)
    told: list[str] = []
    with _job(tmp_path, 3) as recorded:
        _begun(tmp_path, 3)
        found = [attach(tmp_path, length, report=told.append) for length in (3, 5)]
    assert all(len(each) == 3 for each in found)
    steps = []
    for length, each in zip((3, 5), found, strict=True):
        [(first, behind)] = set(each.values())
        assert behind == first + length
        steps += range(first, behind)
    assert recorded == dict.fromkeys(range(3), steps)
    assert told[0] == f"3 ranks record steps {steps[0]:,} to {steps[2]:,}"


def test_a_step_that_was_made_is_late(tmp_path: Path) -> None:
    requests = Requests(str(tmp_path))
    assert requests.length_at(7) == 0
    (tmp_path / "request").write_text("me record 7 3")
    assert requests.length_at(8) == 0
    assert Path(requests._answer).read_text() == "me late 8"
    assert requests.length_at(9) == 0


@pytest.mark.parametrize("text", ["", "me", "me record", "me record x 3", "me ask 1 2 3", "\xff"])
def test_requests_that_are_none_are_left(tmp_path: Path, text: str) -> None:
    requests = Requests(str(tmp_path))
    requests.length_at(0)
    (tmp_path / "request").write_bytes(text.encode("latin-1"))
    assert requests.length_at(1) == requests.length_at(2) == 0


def test_late_and_silent_ranks_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no job has begun"):
        attach(tmp_path, 3)
    (tmp_path / "host.1").write_text("0 at 0")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RecordingError, match=r"1 of 1 ranks did not answer, such as host\.1"):
        attach(tmp_path, 3, patience=0.1)
    monkeypatch.setattr(module, "_BETWEEN", 0)

    def answer(self: module._Job, *words: object) -> str:
        kind = "late 900" if words[0] == "record" else "at 7"
        (tmp_path / "host.1").write_text(f"me {kind}")
        return "me"

    monkeypatch.setattr(module._Job, "ask", answer)
    with pytest.raises(RecordingError, match="1 of 1 ranks had made step 27 before"):
        attach(tmp_path, 3)
    clear(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    clear(tmp_path / "new" / "one")


def test_nothing_is_written_between_windows(tmp_path: Path) -> None:
    kept = _Kept()
    windows = Windows(kept, Requests(str(tmp_path)))
    ranges = WithinWindows(kept, windows)
    ranges.push("evaluation that goes on")
    ranges.mark("mark")
    ranges.end(ranges.start("BP"))
    (tmp_path / "request").write_text("me record 1 1")
    assert windows.begin(ranges, 1)
    step = ranges.start_once("iteration 1")
    ranges.push("FP")
    ranges.pop()
    ranges.pop()
    ranges.mark("said")
    ranges.end(step)
    windows.end(ranges, 2, is_told=False)
    ranges.push("FP")
    ranges.pop()
    assert kept.said == ["window", "iteration 1", "FP", ")", "said", "end 2", "end 1"]


TRAINING = """
import pathlib, torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
goes_on = torch.ones(1)
while goes_on.item():
    optimizer.zero_grad()
    net(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    goes_on.fill_(float(not pathlib.Path("stop").exists()))
    dist.all_reduce(goes_on, dist.ReduceOp.MIN)
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_two_ranks_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("no nsys on the path")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    record = [sys.executable, "-m", "tracekit", "record"]
    start = ["--attachable", "ctl", "--trace", "nvtx", "--name", "job", "--", torchrun]
    store = {**os.environ, "TRACEKIT_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [*record, *start, "--nproc-per-node", "2", "train.py"], env=store, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    (tmp_path / "ctl").mkdir(exist_ok=True)
    try:
        _begun(tmp_path / "ctl", 2)
        asked = [
            subprocess.run([*record, "--attach", "ctl", "--for", length], check=False, text=True,
                           capture_output=True)
            for length in ("2", "3")
        ]  # fmt: skip
    finally:
        (tmp_path / "stop").touch()
        _, errors = job.communicate()
    assert [(each.returncode, each.stderr.count("ranks record")) for each in asked] == [(0, 1)] * 2
    said = [each.stdout.splitlines() for each in asked]
    assert job.returncode == 0, errors
    for number, lines in enumerate(said, 1):
        [steps] = {line.partition(": ")[2] for line in lines}
        assert f"job-{number}: {steps}\n" in errors
        ranges = tracekit.open(f"job-{number}", store=tmp_path / "store").table("ranges")
        name = pl.col("name").cast(pl.String)
        held = ranges.filter(name.str.starts_with("iteration ")).collect()
        assert held.group_by("report").len()["len"].to_list() == [number + 1] * 2
