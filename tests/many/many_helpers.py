"""Exports for runs of many reports, the processes that work on them, and what a run holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from nsys_builder import NsysBuilder
from polars.testing import assert_frame_equal

import tracekit
from tracekit.model import TABLES

KERNELS = 3000
"""Of a report that takes long enough to be interrupted."""


def write_report(path: Path, kernels: int = 3, *, seed: int = 0) -> Path:
    """Write an export of one process that launches so many kernels within a step."""
    with NsysBuilder(path) as nsys:
        nsys.push_pop(0, 10_000_000, "step 1")
        for number in range(kernels):
            at = 100 + 1000 * number
            nsys.push_pop(at - 10, at + 500, "forward")
            nsys.launch(at, at + 20, at + 200 + seed, name=f"kernel_{number % 50}")
    return path


def write_ranks(folder: Path, number: int, kernels: int = 3) -> list[Path]:
    """Write the exports ``rank0``, ``rank1``, ...; no two have the same content."""
    folder.mkdir(exist_ok=True)
    return [
        write_report(folder / f"rank{rank}.sqlite", kernels, seed=rank) for rank in range(number)
    ]


def write_labelled(folder: Path, number: int) -> list[Path]:
    """Write the exports of ranks that label their run with a batch size, and with their rank."""
    paths = [folder / f"rank{rank}.sqlite" for rank in range(number)]
    for rank, path in enumerate(paths):
        with NsysBuilder(path) as nsys:
            nsys.launch(100, 120, 300 + rank)
            nsys.mark(50, "tracekit.label batch=16")
            nsys.mark(60, f"tracekit.label rank={rank}")
    return paths


def assert_same(one: tracekit.Run, other: tracekit.Run) -> None:
    """Check that two runs hold the same."""
    assert one.warnings == other.warnings
    assert one.record.files == other.record.files
    assert one.record.digest == other.record.digest
    for name in TABLES:
        assert_frame_equal(one.table(name).collect(), other.table(name).collect())


def workers(parent: int | None = None) -> list[psutil.Process]:
    """Return the processes that make reports for this or another process."""
    return [
        child
        for child in psutil.Process(parent).children()
        if any("tracekit.store._worker" in word for word in _words(child))
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def await_true(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def left_over(store: Path) -> list[str]:
    """What lies in a store beside its runs."""
    staged = [path.name for path in (store / "staging").iterdir()]
    runs = tracekit.Store(store).runs()
    published = sorted(path.name for path in (store / "runs").iterdir())
    return staged + published[len(runs) :]


@contextmanager
def no_worker_left() -> Iterator[None]:
    """Check that no worker outlives a block."""
    yield
    assert workers() == []


def damage(path: Path, copy: Path) -> Path:
    """Write the first half of a report."""
    content = path.read_bytes()
    copy.write_bytes(content[: len(content) // 2])
    return copy
