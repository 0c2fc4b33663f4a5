"""CUDA events in a ring, by a made `torch.cuda`: a GPU that runs when it is told to."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import tracekit
from tracekit.annotation import _ring
from tracekit.annotation._ring import EventRanges
from tracekit.sources import rings


class _Gpu:
    """A device whose stream does what is queued when it `runs`, and forbids waiting."""

    def __init__(self) -> None:
        self.now, self.queue, self.made = 0.0, list[object](), 0
        self.is_captured, self.is_used, self.device = False, True, 0

    def torch(self) -> SimpleNamespace:
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                gpu.made += 1
                self.at: float | None = None

            def record(self) -> None:
                assert not gpu.is_captured
                assert gpu.is_used
                self.at = None
                gpu.queue.append(self)

            def query(self) -> bool:
                assert not gpu.is_captured
                return self.at is not None

            def elapsed_time(self, other: Event) -> float:
                assert self.at is not None
                assert other.at is not None
                return other.at - self.at

        return SimpleNamespace(cuda=SimpleNamespace(
            Event=Event, is_initialized=lambda: gpu.is_used, current_device=lambda: gpu.device,
            is_current_stream_capturing=lambda: gpu.is_captured,
        ))  # fmt: skip

    def work(self, ms: float) -> None:
        self.queue.append(ms)

    def run(self) -> None:
        for each in self.queue:
            if isinstance(each, float):
                self.now += each
            else:
                each.at = self.now  # type: ignore[attr-defined]
        self.queue.clear()


@pytest.fixture
def gpu() -> _Gpu:
    return _Gpu()


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1_000)
    monkeypatch.setattr(_ring.time, "perf_counter_ns", lambda: next(clock))
    for name in _ring._RANKS:
        monkeypatch.delenv(name, raising=False)


def _rows(path: Path) -> list[tuple[str, int, int]]:
    table = rings.read(path).trace().read("ranges")
    return table.select(pl.col("name").cast(pl.String), "start", "end").rows()


def _step(ranges: EventRanges, gpu: _Gpu, number: int) -> None:
    step = ranges.start_once(f"iteration {number}")
    ranges.push("FP")
    ranges.push("layer fc (Linear)")
    gpu.work(2.0)
    ranges.pop()
    ranges.pop()
    backward = ranges.start("BP")
    gpu.work(5.0)
    ranges.end(backward)
    ranges.end(step)


def test_ranges_are_as_long_as_their_work_on_the_gpu(tmp_path: Path, gpu: _Gpu) -> None:
    """The host takes no time; what is not done when the program ends is not told."""
    path = tmp_path / "live.gpu.ring"
    ranges = EventRanges(gpu.torch(), str(path))
    for number in range(20):
        _step(ranges, gpu, number)
        if number % 3 == 2:  # the GPU is behind
            gpu.run()
    ms = 1_000_000
    rows = _rows(path)
    assert rows[:4] == [
        ("iteration 0", 0, 7 * ms), ("FP", 0, 2 * ms), (_ring.MARK, 0, 0), ("BP", 2 * ms, 7 * ms),
    ]  # fmt: skip
    assert rows[4:7] == [("iteration 1", 7 * ms, 14 * ms), ("FP", 7 * ms, 9 * ms),
                         ("BP", 9 * ms, 14 * ms)]  # fmt: skip
    assert sum(name == "BP" for name, *_ in rows) == 18
    assert gpu.made <= 6 * 4 + 2  # events are used again
    assert "CUDA events" in rings.read(path).warnings[0]
    run = tracekit.ingest(path, store=tmp_path / "store")[0]
    stages = dict(run.breakdown(by="stage", skip=0).select("stage", "exposed_ns").iter_rows())
    assert stages["BP"] * 2 == stages["FP"] * 5


def test_nothing_is_recorded_in_a_capture(tmp_path: Path, gpu: _Gpu) -> None:
    """Nor asked: a capture ends in an error if an event is queried meanwhile."""
    ranges = EventRanges(gpu.torch(), str(tmp_path / "live.gpu.ring"))
    ranges.push("FP")
    gpu.is_captured = True
    ranges.push("BP")
    ranges.pop()
    ranges.pop()  # began before, and ends within
    ranges.mark("x")
    gpu.is_captured = False
    ranges.push("WU")
    ranges.pop()
    gpu.run()
    ranges.mark("end")
    gpu.run()
    ranges.mark("end")
    assert {name for name, *_ in _rows(tmp_path / "live.gpu.ring")} == {_ring.MARK, "WU", "end"}


def test_cuda_is_not_begun_nor_used_elsewhere(
    tmp_path: Path, gpu: _Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the program uses CUDA, in a forked process, or on another GPU there is no event."""
    ranges = EventRanges(gpu.torch(), str(tmp_path / "live.gpu.ring"))
    gpu.is_used = False
    ranges.mark("before")
    assert gpu.made == 0
    gpu.is_used = True
    ranges.mark("here")
    made = gpu.made
    gpu.device = 1
    ranges.mark("other")
    gpu.device = 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    ranges.mark("fork")
    assert gpu.made == made


def test_a_gpu_that_hangs_or_fails_costs_nothing(tmp_path: Path, gpu: _Gpu) -> None:
    ranges = EventRanges(gpu.torch(), str(tmp_path / "live.gpu.ring"))
    for _ in range(_ring._MOST):
        ranges.mark("x")
    assert gpu.made == _ring._MOST
    failing = gpu.torch()
    failing.cuda.is_initialized = lambda: 1 / 0
    EventRanges(failing, str(tmp_path / "other.ring")).mark("x")


def test_each_thread_keeps_its_ranges(tmp_path: Path, gpu: _Gpu) -> None:
    """Whichever thread reads an event."""
    ranges = EventRanges(gpu.torch(), str(tmp_path / "live.gpu.ring"))
    other = threading.Thread(target=lambda: (ranges.push("inner"), ranges.pop()))
    ranges.push("outer")
    other.start()
    other.join()
    ranges.pop()
    gpu.run()
    ranges.mark("end")
    table = rings.read(tmp_path / "live.gpu.ring").trace().read("ranges")
    found = dict(table.select(pl.col("name").cast(pl.String), "thread").iter_rows())
    assert found["inner"] != found["outer"]


def test_annotations_keep_both_rings(
    tmp_path: Path, gpu: _Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(_ring, "EventRanges", lambda _, path: made.append(path) or gpu)
    torch = pytest.importorskip("torch")
    assert sys.modules["torch"] is torch
    with tracekit.annotate(ring=tmp_path / "live.ring"):
        assert not made
    with tracekit.annotate(ring=tmp_path / "live.ring", cuda_events=True):
        assert made == [str(tmp_path / "live.gpu.ring")]
