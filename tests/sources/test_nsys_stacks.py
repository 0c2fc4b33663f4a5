"""Samples of call stacks: rows of the table `host` that say what a thread executed."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder, global_tid
from source_helpers import execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read

ROW = ("thread", "start", "end", "library", "group", "name")
FRAMES = "SAMPLING_CALLCHAINS"


def _sampled(nsys: NsysBuilder, number: int, at: int, *stack: tuple[str, str], tid: int = 100):
    nsys.insert("COMPOSITE_EVENTS", id=number, start=at, globalTid=global_tid(100, tid))
    for depth, (symbol, module) in enumerate(stack):
        nsys.insert(
            FRAMES, id=number, symbol=nsys.string(symbol), module=nsys.string(module),
            unresolved=1 if symbol.startswith("0x") else None, stackDepth=depth,
        )  # fmt: skip


@pytest.mark.parametrize("nsys", versions_with(FRAMES)[-2:], indirect=True)
def test_a_sample_is_named_after_what_ran(nsys: NsysBuilder) -> None:
    nsys.push_pop(5, 6, "step")
    python = ("_PyEval_EvalFrameDefault", "/usr/bin/python3.8")
    _sampled(nsys, 1, 10, ("memcpy", "/usr/lib/libc.so"), python)
    _sampled(nsys, 2, 20, ("0x7f00", "/usr/lib/libcuda.so.1"), python)
    _sampled(nsys, 3, 30, python, ("load", "/job/data.py"), ("main", "/job/train.py"))
    _sampled(nsys, 4, 40, python, tid=199)  # of a thread that does nothing else
    _sampled(nsys, 5, 50)  # without a stack
    _sampled(nsys, 6, 60, ("f" * 99, "lib.so"))
    trace = trace_of(nsys)
    assert rows(trace, "host", *ROW) == [
        (0, at, at, "sample", "on_cpu", name)
        for at, name in (
            (10, "memcpy (libc.so)"), (20, "libcuda.so.1"), (30, "load (data.py)"),
            (60, "f" * 60 + " (lib.so)"),
        )
    ]  # fmt: skip
    assert remarks(trace) == ()


def test_samples_without_stacks_say_nothing(tmp_path) -> None:
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.0.0") as nsys:
        nsys.push_pop(5, 6, "step")
        _sampled(nsys, 1, 10, ("memcpy", "libc.so"))
    execute(nsys.path, f"DROP TABLE {FRAMES}")
    assert rows(read(nsys.path), "host", "name") == []
