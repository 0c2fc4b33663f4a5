"""Findings: what each rule adds up, by hand, when it is silent, and how they are put together."""

from __future__ import annotations

import ast
import itertools
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import diagnosis
from tracekit.analysis.diagnosis import FINDINGS, NOTICED, RULES, _diagnose, against, diagnose
from tracekit.analysis.diagnosis._diagnose import in_words_of
from tracekit.analysis.diagnosis._exchange_rules import _exceeds_chance
from tracekit.analysis.diagnosis._facts import _by_step, facts_of, rounded
from tracekit.analysis.diagnosis._run_rules import _unmatched
from tracekit.analysis.idle_time import idle
from tracekit.analysis.operators import has_sizes
from tracekit.analysis.step_sums import skipped_of
from tracekit.analysis.studies import study_row
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import KIND, TABLES, Trace
from tracekit.present import notes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnose.md"
US = 1000
STEP = 1000 * US


@pytest.fixture(autouse=True)
def _tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rules be as sure as the trace makes them, as if each was tried often and was right."""
    score = {rule: {"claims": 100, "wrong": 0} for rule in RULES}
    monkeypatch.setattr(_diagnose, "score", lambda: score)


def _op(b: TraceBuilder, at: int, start: int, end: int, *, done: int | None = None,
        **row: Any) -> None:  # fmt: skip
    """Add an op, and a call from `at` to `done` that launches it."""
    done = at + 4 if done is None else done
    b.op(row.pop("name", "gemm"), at, start=start, end=end, launch_end=done, **row)
    b.rows["calls"][-1] |= {"end": done, "thread": row.get("thread", 0)}


def _steps(number: int = 4) -> TraceBuilder:
    """Return steps of 1 ms on a GPU that is never idle for long: two kernels, launched ahead."""
    b = TraceBuilder()
    for step in range(number):
        b.iteration(step, step * STEP, (step + 1) * STEP, ops=2, whole=True)
        _op(b, step * STEP + 10, step * STEP + 20, step * STEP + 600 * US, stage="FP")
        _op(b, step * STEP + 20, step * STEP + 600 * US, (step + 1) * STEP, stage="BP")
    return b


def _found(trace: Trace, **options: Any) -> dict[str, dict[str, Any]]:
    rows = diagnose(trace, **{"top": None, **options}).rows
    return {row["rule"]: row for row in rows.iter_rows(named=True)}


def _wins(row: dict[str, Any]) -> tuple[float, float, float]:
    return row["win_low_ns"], row["win_ns"], row["win_high_ns"]


def test_nothing_is_said_of_a_gpu_that_is_always_busy() -> None:
    found = diagnose(_steps().trace())
    assert found.rows.is_empty()
    assert found.rows.schema == FINDINGS
    assert found.meta["step_ns"] == pytest.approx(STEP, rel=1e-4)
    assert found.meta["steps"] == 4
    assert found.meta["asked"] == len(RULES)


def _waiting(between: int, *, stage: str | None) -> TraceBuilder:
    """Return 4 steps between which the host is in a range, or in none, for a while."""
    b = TraceBuilder()
    every = STEP + between
    for step in range(4):
        begin = step * every
        b.iteration(step, begin, begin + STEP, ops=1, whole=True)
        if stage is not None:
            b.range(begin + STEP, begin + every, "next", stage=stage)
        _op(b, begin, begin + 10, begin + STEP, stage="FP")
    return b


def test_input_that_comes_late() -> None:
    found = _found(_waiting(100 * US, stage="IO").trace())
    row = found["input_bound"]
    # Nothing is known of the time after the last of four steps, which is no part of the mean.
    assert _wins(row) == pytest.approx((0.9 * 100 * US, 100 * US, 100 * US))
    assert row["confidence"] == "measured"
    assert row["share"] == pytest.approx(0.0909, abs=0.001)
    assert row["finding"].startswith("GPUs wait 100 us per step for input, 9.09 %")
    meta = diagnose(_waiting(100 * US, stage="IO").trace()).meta
    assert (meta["steps"], meta["step_ns"], meta["last_step_ns"]) == (3, 1_100 * US, STEP - 10)


def test_what_waits_hide_is_named() -> None:
    """Batches do not come sooner because the GPU has done less work."""
    b = _waiting(100 * US, stage="IO")
    for step in range(4):
        begin = step * (STEP + 100 * US)
        _op(b, begin + 10, begin + STEP, begin + STEP + 40 * US, stage="FP",
            name="void cudnn::ops::nchwToNhwcKernel<float>")  # fmt: skip
    found = diagnose(b.trace())
    assert found.rows["rule"].to_list() == ["input_bound"]
    assert found.meta["hidden"] == ["layout_transposes"]
    said = "not listed, as GPUs would then wait longer for input or the host: layout_transposes"
    assert said in notes(found.meta)
    alone = diagnose(b.trace(), rules=["layout_transposes"])
    assert alone.empty == "nothing found that takes 2 % of a step or more, except what waits hide"
    assert "hidden" not in diagnose(_steps().trace()).meta


def test_a_gpu_that_only_copies_waits_for_no_input() -> None:
    trace = _waiting(100 * US, stage="IO").trace()
    copies = trace["ops"].with_columns(kind=pl.lit("d2d", KIND)).collect()
    assert "input_bound" not in _found(trace.with_tables({"ops": copies}))


def test_a_host_between_its_steps_is_a_hint() -> None:
    row = _found(_waiting(100 * US, stage=None).trace())["input_bound"]
    assert _wins(row) == pytest.approx((0, 100 * US, 100 * US))
    assert row["confidence"] == "hint"


def test_less_than_a_fiftieth_of_a_step_is_not_spoken_of() -> None:
    assert "input_bound" in _found(_waiting(28 * US, stage="IO").trace())
    assert _found(_waiting(26 * US, stage="IO").trace()) == {}


def _late_kernels(name: str | None) -> TraceBuilder:
    """Return 4 steps in each of which the host is 100 us late, in a call or in none."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP, ops=2, whole=True)
        _op(b, begin, begin + 10, begin + 500 * US, stage="FP")
        if name is not None:
            b.call(begin + 500 * US, begin + 600 * US, thread=0, correlation=None)
            b.rows["calls"][-1] |= {"name": name}
        _op(b, begin + 600 * US, begin + 600 * US + 10, begin + STEP, stage="BP")
    return b


def test_a_wait_in_each_step() -> None:
    row = _found(_late_kernels("cudaStreamSynchronize").trace())["sync_in_loop"]
    assert _wins(row)[:2] == pytest.approx((100 * US, 100 * US))
    assert _wins(row)[2] == pytest.approx(100 * US, rel=1e-3)
    assert "1 x cudaStreamSynchronize per step and GPU, 100 us of its thread" in row["evidence"]


def test_a_wait_in_a_single_step_is_a_hint() -> None:
    b = _late_kernels("cudaStreamSynchronize")
    del b.rows["iterations"][1:]
    assert _found(b.trace())["sync_in_loop"]["confidence"] == "hint"


@pytest.mark.parametrize(("since", "won"), [(700, 120), (885, 15)])
def test_a_wait_puts_the_host_behind_by_as_much(since: int, won: int) -> None:
    """It waits for up to 20 us too long, and is outside of its step for 100 us, but after the last.

    Who waited for a busy GPU since 700 us would have been ahead, and hidden all of that.
    """
    b = TraceBuilder()
    for step in range(6):
        begin = step * STEP
        b.iteration(step, begin, begin + 900 * US, ops=1, whole=True)
        _op(b, begin, begin + 10, begin + 880 * US, stage="FP")
        b.call(begin + since * US, begin + 900 * US, thread=0, correlation=None)
        b.rows["calls"][-1] |= {"name": "cudaStreamSynchronize"}
    row = _found(b.trace(), worth=0.01)["sync_in_loop"]
    assert _wins(row)[1] == pytest.approx(won * US, rel=0.2)


@pytest.mark.parametrize(
    ("copy", "advice"),
    [
        ({"kind": "d2h", "bytes": 4, "copy_kind": "DtoH"}, "`.item()`"),
        ({"kind": "h2d", "bytes": 4_096, "copy_kind": "HtoD"}, "`non_blocking=True`"),
        ({"kind": "d2h", "bytes": 4_096, "copy_kind": "DtoH"}, "`.cpu()`"),
    ],
)
def test_item_and_a_blocking_copy_are_different_advice(copy: dict[str, Any], advice: str) -> None:
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP, ops=3, whole=True)
        b.range(begin + 100 * US, begin + 600 * US, "loss", stage="FP")
        _op(b, begin, begin + 10, begin + 500 * US, stage="FP")
        done = begin + 600 * US
        _op(b, begin + 200 * US, begin + 500 * US, begin + 501 * US, done=done, **copy)
        _op(b, done, done + 10, begin + STEP, stage="BP")
    row = _found(b.trace())["sync_in_loop"]
    others = {"`.item()`", "`non_blocking=True`", "`.cpu()`"} - {advice}
    assert advice in row["advice"]
    assert not any(other in row["advice"] for other in others)
    assert any("in `loss`" in text for text in row["evidence"])


def test_work_of_the_host_after_a_wait_is_no_late_launch() -> None:
    """It works for 1.1 ms on what it waited for; less than 1 ms is left as late by no wait."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * 2 * STEP
        b.iteration(step, begin, begin + 2 * STEP, ops=2, whole=True)
        _op(b, begin, begin + 10, begin + 800 * US, stage="FP")
        b.call(begin + 100 * US, begin + 800 * US, thread=0, correlation=None)
        b.rows["calls"][-1] |= {"name": "cudaStreamSynchronize"}
        _op(b, begin + 1_900 * US, begin + 1_900 * US + 10, begin + 2 * STEP, stage="WU")
    found = _found(b.trace())
    assert "launch_bound" not in found
    assert "busy_host" in found


def test_a_wait_in_one_step_is_none_in_the_loop() -> None:
    b = _steps(6)
    b.iteration(6, 6 * STEP, 8 * STEP, ops=1, whole=True)
    b.call(6 * STEP, 7 * STEP, thread=0, correlation=None)
    b.rows["calls"][-1] |= {"name": "cudaDeviceSynchronize"}
    _op(b, 7 * STEP, 7 * STEP + 10, 8 * STEP, stage="FP")
    assert "sync_in_loop" not in _found(b.trace())


def test_allocations_in_each_step() -> None:
    row = _found(_late_kernels("cudaMalloc").trace())["allocation_in_loop"]
    assert _wins(row)[:2] == pytest.approx((50 * US, 100 * US))


def test_late_launches_are_half_won_by_cheaper_ones() -> None:
    row = _found(_late_kernels(None).trace())["launch_bound"]
    assert _wins(row) == pytest.approx((50 * US, 75 * US, 100 * US), rel=1e-3)
    assert row["confidence"] == "measured"  # kernels of 400 us, launches 600 and 400 us apart


@pytest.mark.parametrize(("replays", "is_advised"), [(0, True), (1, True), (4, False)])
def test_who_replays_graphs_already_is_not_told_to(replays: int, *, is_advised: bool) -> None:
    """Each step is late by 100 us; `replays` of four steps are late at a CUDA graph.

    Graphs that another process launches in the same nanosecond are its own.
    """
    b = _late_kernels(None)
    graph = {"name": "cudaGraphLaunch_v10000"}
    b.thread(10)
    others = [{**call, "process": 1, "thread": 10, **graph} for call in b.rows["calls"]]
    for call in b.rows["calls"][1 : 2 * replays : 2]:
        call.update(graph)
    b.rows["calls"] += others
    row = _found(b.trace())["launch_bound"]
    assert ("Launch less: CUDA graphs" in row["advice"]) is is_advised
    assert row["confidence"] == ("measured" if is_advised else "likely")
    told = [text for text in row["evidence"] if "CUDA graphs" in text]
    assert told == [f"{25 * replays} us per step before CUDA graphs"] * bool(replays)


def test_ops_of_a_graph_are_one_launch() -> None:
    b = _late_kernels(None)
    for op in [*b.rows["ops"]]:
        third = (op["end"] - op["start"]) // 3
        rest = [
            op | {"start": op["start"] + n * third, "end": op["start"] + (n + 1) * third}
            for n in (1, 2)
        ]
        b.rows["ops"] += rest
        op["end"] = op["start"] + third
    pace = _found(b.trace())["launch_bound"]["evidence"][0]
    assert pace.endswith("half of all launches of a thread are more than 600 us apart")


def test_work_of_the_host_before_launches_may_be_no_launching() -> None:
    """300 us of Python before each launch were called launches, with a low of half of them."""
    b = TraceBuilder()
    for step in range(4):
        b.iteration(step, step * STEP, (step + 1) * STEP, ops=2, whole=True)
        for begin in (step * STEP, step * STEP + 500 * US):
            _op(b, begin, begin + 10, begin + 200 * US, stage="FP")
    row = _found(b.trace())["launch_bound"]
    assert row["finding"].endswith("mostly for over 100 us each: the host may do other work then.")
    assert row["confidence"] == "likely"
    assert _wins(row)[0] == pytest.approx(0, abs=20)


def _host(trace: Trace, **row: Any) -> Trace:
    """Add what the first thread did from 520 to 590 us of each of 4 steps."""
    who = {"report": 0, "process": 0, "thread": 0, "library": "os"}
    rows = [
        who | row | {"start": step * STEP + 520 * US, "end": step * STEP + 590 * US}
        for step in range(4)
    ]
    return trace.with_tables({"host": TABLES["host"].conform(pl.DataFrame(rows))})


def test_a_thread_that_is_kept_off_the_cpu() -> None:
    off = {"name": "off the CPU", "group": "off_cpu"}
    found = _found(_host(_late_kernels(None).trace(), **off))
    assert _wins(found["off_cpu"]) == pytest.approx((35 * US, 70 * US, 70 * US))
    assert found["off_cpu"]["confidence"] == "measured"
    assert _wins(found["launch_bound"])[1] == pytest.approx(0.75 * 30 * US, rel=1e-3)
    asleep = _found(_host(_late_kernels(None).trace(), name="pthread_mutex_lock", group="wait"))
    assert asleep["off_cpu"]["confidence"] == "likely"
    assert "70 us per step asleep in pthread_mutex_lock" in asleep["off_cpu"]["evidence"]


@pytest.mark.parametrize(("late", "rule"), [(999, "launch_bound"), (1_001, "busy_host")])
def test_a_long_gap_is_no_launch(late: int, rule: str) -> None:
    b = TraceBuilder()
    for step in range(4):
        begin = step * 2 * STEP
        b.iteration(step, begin, begin + 2 * STEP, ops=2, whole=True)
        b.range(begin, begin + 2 * STEP, "loss", stage="FP")
        _op(b, begin, begin + 10, begin + 500 * US, stage="FP")
        launched = begin + (500 + late) * US
        _op(b, launched, launched + 1, begin + 2 * STEP, stage="BP")
    found = _found(b.trace())
    assert {"launch_bound", "busy_host"} & set(found) == {rule}
    assert any("per step and GPU in `loss`" in text for text in found[rule]["evidence"])
    seen = _host(b.trace(), name="off the CPU", group="off_cpu")
    if rule == "busy_host":
        assert (found[rule]["confidence"], _found(seen)[rule]["confidence"]) == ("hint", "likely")


@pytest.mark.parametrize(
    ("kind", "stacks", "stages"),
    [
        ("nsys SQLite", True, "nsys profile -t cuda,nvtx"),
        ("nvprof SQLite", False, "nvprof -o run.nvvp PROGRAM, with NVTX ranges"),
        ("PyTorch Kineto JSON", False, 'record_function("forward")'),
        ("rocprofv3 JSON", False, "roctx ranges (--marker-trace)"),
    ],
)
def test_advice_is_of_the_recorder(kind: str, stacks: bool, stages: str) -> None:
    """A host that is late by 2 ms in each step, of training whose stages are not known."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * 3 * STEP
        b.iteration(step, begin, begin + 3 * STEP, ops=2, whole=True)
        _op(b, begin, begin + 10, begin + 500 * US)
        _op(b, begin + 2_500 * US, begin + 2_500 * US + 1, begin + 3 * STEP)
    verdict = {"report": 0, "process": 0, "verdict": "training", "given": False, "decides": False,
               "evidence": "1 backward range"}  # fmt: skip
    tables = {
        "verdicts": [verdict],
        "reports": [{"report": 0, "file": "a", "size": 1, "format": kind}],
    }
    found = _found(
        b.trace().with_tables({k: TABLES[k].conform(pl.DataFrame(v)) for k, v in tables.items()})
    )
    assert ("-s process-tree" in found["busy_host"]["advice"]) == stacks
    assert stages in found["missing_evidence"]["advice"]


def test_code_that_is_compiled_in_each_step() -> None:
    row = _found(_late_kernels("cuLinkComplete").trace())["compilation"]
    assert _wins(row) == pytest.approx((50 * US, 100 * US, 100 * US))
    assert "calls: cuLinkComplete" in row["evidence"]
    b = _late_kernels(None)
    b.call(500 * US, 600 * US, thread=0, correlation=None)  # in one step of four
    b.rows["calls"][-1] |= {"name": "cuLinkComplete"}
    assert "compilation" not in _found(b.trace())


def _input_without_ranges(**host: Any) -> Trace:
    """Return 4 steps of 1 ms that begin with a copy of input, 1 ms after the step before."""
    b = TraceBuilder()
    rows = []
    for step in range(4):
        begin = step * 2 * STEP
        b.iteration(step, begin, begin + STEP, ops=2, whole=True)
        copy = {"kind": "h2d", "bytes": 1 << 20, "stage": "IO", "copy_kind": "HtoD"}
        _op(b, begin + 10, begin + 20, begin + 30 * US, **copy)
        _op(b, begin + 20, begin + 30 * US, begin + STEP, stage="FP")
        rows.append(
            {"report": 0, "process": 0, "thread": 0, "library": "os", "start": begin + STEP,
             "end": begin + 2 * STEP} | host
        )  # fmt: skip
    trace = b.trace()
    return (
        trace.with_tables({"host": TABLES["host"].conform(pl.DataFrame(rows))}) if host else trace
    )


def test_input_that_no_range_tells_of_is_likely() -> None:
    for host in ({"name": "off the CPU", "group": "off_cpu"}, {"name": "poll", "group": "wait"}):
        row = _found(_input_without_ranges(**host))["input_bound"]
        assert row["confidence"] == "likely"
        assert _wins(row) == pytest.approx((0.9 * STEP, STEP, STEP), rel=1e-3)
    assert _found(_input_without_ranges())["input_bound"]["confidence"] == "hint"


def test_copies_that_hold_the_host() -> None:
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP, ops=2, whole=True)
        copy = {"kind": "h2d", "stage": "IO", "bytes": 1_200_000, "copy_kind": "HtoD"}
        if step:  # input is part of the step before
            _op(b, begin, begin + 10, begin + 300 * US, done=begin + 250 * US, **copy)
        _op(b, begin + 260 * US, begin + 300 * US, begin + STEP, stage="FP")
    found = _found(b.trace())
    # Three in four steps, and 1.2 MB take 100 us at 12 GB/s.
    assert _wins(found["pageable_copies"]) == pytest.approx(
        (150 * US, 187.5 * US, 225 * US), rel=1e-3
    )
    # Their memory was not recorded, so that none of it was "recorded as pageable" says nothing.
    assert any("its kind is unknown" in text for text in found["pageable_copies"]["evidence"])


def test_copies_whose_call_returns_early_are_not_pageable() -> None:
    b = _steps()
    for step in range(4):
        copy = {"kind": "h2d", "stage": "IO", "bytes": 1_200_000, "copy_kind": "HtoD"}
        _op(b, step * STEP + 1, step * STEP + 20, step * STEP + 300 * US, stream=8, **copy)
    assert "pageable_copies" not in _found(b.trace())


def _copying(launched: int, *, stream: int = 7, ready: int = 40) -> TraceBuilder:
    """Return steps of which a copy takes 200 us; when it and what comes after it are launched."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP, ops=3, whole=True)
        copy = {"kind": "h2d", "stage": "IO", "bytes": 2_400_000, "copy_kind": "HtoD"}
        _op(b, begin, begin + 10, begin + 600 * US, stage="FP")
        _op(b, begin + launched, begin + 600 * US, begin + 800 * US, stream=stream, **copy)
        _op(b, begin + ready, begin + 800 * US, begin + STEP, stage="FP")
    return b


@pytest.mark.parametrize("blocks", [True, False])
def test_recorded_memory_outranks_how_long_a_call_takes(*, blocks: bool) -> None:
    def findings(memory: str) -> dict[str, dict[str, Any]]:
        b = _copying(600 * US if blocks else 20)
        for op, call in zip(b.rows["ops"], b.rows["calls"], strict=True):
            if op["kind"] == "h2d":
                op["host_memory"] = memory
                op["launch_end"] = call["end"] = op["end"] if blocks else op["launch_end"]
        return _found(b.trace())

    pinned, pageable = findings("pinned"), findings("pageable")
    assert "pageable_copies" not in pinned
    assert "unhidden_copies" not in pageable
    assert pageable["pageable_copies"]["confidence"] == "measured"
    held = [text for text in pinned["unhidden_copies"]["evidence"] if "block their call" in text]
    assert bool(held) is blocks
    managed = findings("managed")
    assert not {"pageable_copies", "unhidden_copies"} & managed.keys()
    assert _wins(managed["unified_memory"]) == pytest.approx((0, 100 * US, 200 * US), rel=1e-3)


@pytest.mark.parametrize(
    ("names", "stage", "said"),
    [(["copy 3"], "FP", "copy N"), (["conv1", "aten::copy_"], None, "conv1"),
     (["aten::copy_"], None, "aten::copy_"),
     (["linear " + 98 * "("], None, f"linear {59 * '('}…{33 * '('}")],
)  # fmt: skip
def test_copies_name_the_layer_or_range_that_launched_them(
    names: list[str], stage: str | None, said: str
) -> None:
    b = _copying(20)
    for step in range(4):
        for depth, name in enumerate(names):
            parent = step * len(names) + depth - 1 if depth else None
            b.range(step * STEP + depth, (step + 1) * STEP - 1 - depth, name, parent=parent,
                    depth=depth, stage=stage, path=" > ".join(names[: depth + 1]))  # fmt: skip
    trace = b.trace()
    innermost = (pl.col("start") // STEP + 1) * len(names) - 1
    ops = trace.read("ops").with_columns(range=innermost.cast(TABLES["ops"].schema["range"]))
    found = _found(trace.with_tables({"ops": ops}))["unhidden_copies"]
    assert f"200 us per step and GPU in `{said}`" in found["evidence"]


def test_copies_and_allocations_of_a_recording_without_steps() -> None:
    b = _copying(20)
    b.rows["iterations"].clear()
    assert _found(b.trace())["unhidden_copies"]["share"] == pytest.approx(0.2, rel=1e-3)
    b = _late_kernels("cudaMalloc")
    b.rows["iterations"].clear()
    assert _found(b.trace())["allocation_in_loop"]["share"] == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(("size", "said"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_small_copies_are_told_apart(size: int, *, said: bool) -> None:
    b = _copying(20)
    for op in b.rows["ops"]:
        if op["kind"] == "h2d":
            op["bytes"] = size
    found = _found(b.trace())
    assert ("small_copies" in found) is said
    assert ("unhidden_copies" in found) is not said
    if said:
        assert _wins(found["small_copies"]) == pytest.approx((0, 100 * US, 200 * US), rel=1e-3)
        assert found["small_copies"]["finding"].startswith("1 copy of no more than 64 KiB per step")


def test_copies_to_the_host_that_nothing_hides() -> None:
    """Whether what is copied could be copied later is not recorded."""
    b = _copying(20)
    for op in b.rows["ops"]:
        op["kind"] = "d2h" if op["kind"] == "h2d" else op["kind"]
    row = _found(b.trace())["unhidden_copies"]
    assert _wins(row) == pytest.approx((0, 100 * US, 200 * US), rel=1e-3)
    assert row["finding"].startswith("Copies to the host run for 200 us per step")
    assert "batch" not in " ".join([row["advice"], *row["evidence"]])


@pytest.mark.parametrize(("thread", "size"), [(0, 2_400_000), (0, 4), (1, 4), (None, 4)])
def test_copies_to_the_host_hold_up_who_waits_for_them(thread: int | None, size: int) -> None:
    """Others were losses while the GPU waited for input, and fewer of them the remedy."""
    b = _copying(20, ready=900 * US)
    for op in b.rows["ops"]:
        if op["kind"] == "h2d":
            op |= {"kind": "d2h", "bytes": size}
        elif op["start"] % STEP == 800 * US:
            op["start"] = op["launch_end"]
    for step in range(4) if thread is not None else ():
        b.call(step * STEP + 700 * US, step * STEP + 801 * US, thread=thread, correlation=None)
        b.rows["calls"][-1] |= {"name": "cudaStreamSynchronize"}
    rule = "unhidden_copies" if size > 1 << 16 else "small_copies"
    assert (rule in _found(b.trace())) is (thread == 0)


def test_copies_that_nothing_hides() -> None:
    row = _found(_copying(20).trace())["unhidden_copies"]
    assert _wins(row) == pytest.approx((200 * US, 200 * US, 200 * US), rel=1e-4)
    assert row["confidence"] == "measured"
    assert row["finding"].startswith("Copies to the GPU run for 200 us per step while it computes")
    assert row["finding"].endswith("at 12 GB/s.")


def test_weights_that_come_back_are_no_batch() -> None:
    b = _copying(20)
    for op in b.rows["ops"]:
        op["stage"] = "WU" if op["kind"] == "h2d" else op["stage"]
    row = _found(b.trace())["unhidden_copies"]
    assert "next batch" not in row["advice"]
    assert "states of the optimizer" in row["advice"]


def test_a_copy_that_could_not_begin_earlier_may_win_nothing() -> None:
    late = _found(_copying(590 * US).trace())["unhidden_copies"]
    assert _wins(late) == pytest.approx((10 * US, 105 * US, 200 * US), rel=2e-3)
    assert late["confidence"] == "likely"


def test_a_copy_before_a_kernel_that_is_launched_late() -> None:
    late = _found(_copying(20, ready=750 * US).trace())["unhidden_copies"]
    assert _wins(late) == pytest.approx((50 * US, 125 * US, 200 * US), rel=1e-3)


def test_copies_both_ways_at_once_and_across_a_border_of_steps_count_once() -> None:
    """Each step holds one beside the copy of its input, and one half of which is the next step's.

    They were 400 us a step, and copies of twice as many bytes.
    """
    b = _copying(20)
    back = {"kind": "d2h", "bytes": 2_400_000, "copy_kind": "DtoH", "stream": 9}
    for start in (600, 900, 1600, 1900, 2600, 2900, 3600):
        _op(b, start * US - 20, start * US, (start + 200) * US, **back)
    row = _found(b.trace())["unhidden_copies"]
    assert row["finding"].startswith("Copies from and to the host run for 200 us per step while")
    assert "at 12 GB/s" in row["finding"]
    assert "11 copies of 26.4 MB in all" in row["evidence"]


def _copying_late(late: int) -> TraceBuilder:
    """Return the same steps, after each of which a loader takes so long for the next batch."""
    b = _copying(20)
    every = STEP + late
    for name in ("ops", "calls", "iterations"):
        for row in b.rows[name]:
            for key in ("start", "end", "launch_start", "launch_end"):
                if row.get(key) is not None:
                    row[key] += row[key] // STEP * late
    for row in b.rows["ops"] + b.rows["iterations"]:  # what ends with a step is of that step
        if row["end"] % every == 0 or row["end"] - row["start"] > STEP:
            row["end"] -= late
    for step in range(4):
        b.range(step * every + STEP, (step + 1) * every, "next", stage="IO")
    return b


@pytest.mark.parametrize(("late", "left"), [(0, 200), (100, 100), (260, None)])
def test_input_that_comes_late_takes_up_what_copies_would_win(late: int, left: int | None) -> None:
    """A GPU that is done sooner waits longer for a batch that comes no sooner."""
    found = _found(_copying_late(late * US).trace())
    assert ("input_bound" in found) is (late > 0)
    if left is None:
        assert "unhidden_copies" not in found
    else:
        assert found["unhidden_copies"]["win_ns"] == pytest.approx(left * US, rel=0.01)


def test_copies_beside_kernels_are_hidden() -> None:
    b = _copying(20)
    for step in range(4):
        begin = step * STEP
        _op(b, begin + 30, begin + 600 * US, begin + 800 * US, stream=9, stage="FP")
    assert "unhidden_copies" not in _found(b.trace())


@pytest.mark.parametrize("shown", [0, 1])
def test_copies_that_are_hidden_in_most_steps_are_not_usual(shown: int) -> None:
    """Of all of which as little as 1 ns shows is told, where most of it is of one step."""
    b = _copying(20)
    for step in range(3):
        begin = step * STEP
        _op(b, begin + 30, begin + 600 * US, begin + 800 * US - shown, stream=9, stage="FP")
    assert ("unhidden_copies" in _found(b.trace())) == bool(shown)


def _exchanging(
    *times: tuple[int, int], backward: int = 600 * US, operations: tuple[str, ...] = ("all_reduce",)
) -> TraceBuilder:
    """Return steps of a backward pass, and these operations by turns from when to when, in us."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP, ops=1 + len(times), whole=True)
        _op(b, begin, begin + 10, begin + backward, stage="BP")
        for place, (first, last) in enumerate(times):
            operation = operations[place % len(operations)]
            _op(b, begin + 20, begin + first * US, begin + last * US, stage="WU", stream=20,
                kind="collective", collective=operation, name=f"nccl {operation}")  # fmt: skip
    return b


def test_collectives_that_begin_after_the_backward_pass() -> None:
    found = _found(_exchanging((600, 800), (800, 900), (900, 1000)).trace())
    # 200 and 100 us of them; the last one is what the update waits for.
    assert _wins(found["late_buckets"]) == pytest.approx((150 * US, 225 * US, 400 * US), rel=1e-3)
    assert "exposed_collectives" not in found
    told = found["late_buckets"]["evidence"]
    assert "3 collectives per step and GPU, 3 of them after the backward pass" in told


def test_no_more_of_an_exchange_is_hidden_than_a_backward_pass_is_long() -> None:
    found = _found(_exchanging((100, 500), (500, 900), (900, 1000), backward=100 * US).trace())
    assert _wins(found["late_buckets"]) == pytest.approx((50 * US, 100 * US, 100 * US), rel=1e-3)
    assert "the backward pass computes for 100 us per step" in found["late_buckets"]["evidence"]


def test_collectives_that_hang_over() -> None:
    found = _found(_exchanging((300, 900), (900, 1000)).trace())
    assert _wins(found["exposed_collectives"]) == pytest.approx((0, 150 * US, 400 * US), rel=1e-3)
    assert "late_buckets" not in found
    told = found["exposed_collectives"]["evidence"]
    assert "how much of that is waiting for other ranks is not known" in told
    finding = found["exposed_collectives"]["finding"]
    # The headline holds what is exposed, as the win at best does, and what the win rests on.
    assert finding.startswith("Nothing else runs during 400 us of collectives per step, 40 %")
    assert finding.endswith("; 300 us of that is not the last of a step.")
    assert "order buckets" in found["exposed_collectives"]["advice"]
    of_passes = _exchanging((300, 900), (900, 1000))
    for op in of_passes.rows["ops"]:
        op["stage"] = "BP"
    advice = _found(of_passes.trace())["exposed_collectives"]["advice"]
    assert "split the layers" in advice
    assert "bucket" not in advice


@pytest.mark.parametrize(("gpus", "advice"), [(1, "Record all ranks"), (2, "says why")])
def test_who_recorded_all_ranks_is_not_told_to(gpus: int, advice: str) -> None:
    """Their calls were not matched, as clocks differ."""
    calls = pl.DataFrame(
        {"op": [0, 1], "process": [0, gpus - 1], "device": [0, gpus - 1], "step": 0, "match": None},
        schema_overrides={"match": pl.Int64},
    )
    facts: Any = SimpleNamespace(
        collectives=calls, exchanges=None, step_ns=1, per="per step",
        lost=lambda *_: SimpleNamespace(mean=1.0),
    )  # fmt: skip
    assert advice in (_unmatched(facts) or ("", ""))[1]


def test_the_last_collective_of_a_step_is_not_spoken_of() -> None:
    assert _found(_exchanging((100, 600), (600, 1000)).trace()).keys() <= {"missing_evidence"}


def test_many_collectives_that_take_nothing_but_latency() -> None:
    times = [(600 + 40 * place, 640 + 40 * place) for place in range(10)]
    row = _found(_exchanging(*times).trace())["small_buckets"]
    # Ten of 40 us; without sizes an eighth is needed.
    assert _wins(row) == pytest.approx((175 * US, 350 * US, 350 * US), rel=1e-3)


def test_of_an_even_number_the_median_is_the_upper_of_two() -> None:
    times = [(600 + 40 * place, 636 + 40 * place + place % 2 * 4) for place in range(10)]
    finding = _found(_exchanging(*times).trace())["small_buckets"]["finding"]
    assert "take 40 us in the median" in finding


def test_collectives_are_not_merged_where_no_steps_are_known() -> None:
    """One of each step cannot be merged with that of another."""
    builder = _exchanging(*((600 + 40 * place, 640 + 40 * place) for place in range(10)))
    builder.rows["iterations"] = []
    for op in builder.rows["ops"]:
        op["iteration"] = None
    assert "small_buckets" not in _found(builder.trace())


def test_many_collectives_of_unknown_size_may_take_as_long_for_their_bytes() -> None:
    """Ten of 93 us are ten that start slowly, or ten buckets of 25 MiB."""
    times = [(600 + 93 * place, 693 + 93 * place) for place in range(10)]
    row = _found(_exchanging(*times).trace())["small_buckets"]
    assert (row["confidence"], row["win_low_ns"]) == ("hint", 0)
    assert "of unknown size: large ones take as long for their bytes" in row["evidence"]


@pytest.mark.slow
@pytest.mark.parametrize("longer", [1, 4])
def test_what_is_new_beside_a_longer_step_may_have_been_there(longer: int) -> None:
    """As a faster loader shows what its waits hid."""
    times = [(600 + 40 * place, 640 + 40 * place) for place in range(10)]
    base = TraceBuilder()
    for step in range(4):
        begin = longer * step * STEP
        base.iteration(step, begin, begin + STEP, ops=1, whole=True)
        _op(base, begin, begin + 10, begin + 990 * US, stage="BP")
    found = against(
        [diagnose(_exchanging(*times).trace())], [diagnose(base.trace(), worth=NOTICED)]
    )
    (row,) = found.tables["findings"].filter(rule="small_buckets").rows(named=True)
    assert row["state"] == ("uncovered" if longer > 1 else "new")
    hidden = "in the base, whose step is 4 times as long, waits may hide it."
    assert row["finding"].endswith(hidden) == (longer > 1), row["finding"]


def test_collectives_between_the_layers_of_a_pass_are_not_merged() -> None:
    """What tensor parallelism gathers, the next layer computes with."""
    times = [(600 + 40 * place, 640 + 40 * place) for place in range(10)]
    builder = _exchanging(*times)
    for op in builder.rows["ops"]:
        op["stage"] = "BP"
    assert "small_buckets" not in _found(builder.trace())


def test_few_collectives_that_take_nothing_but_start_up() -> None:
    """Of three of 40 us two can go; all but 10 us of one are exposed, and the last one stays."""
    row = _found(_exchanging((570, 610), (610, 650), (650, 690)).trace())["small_buckets"]
    assert _wins(row) == pytest.approx((25 * US, 50 * US, 60 * US), rel=1e-3)
    assert "as 1 collective they would take 80 us less: modelled" in row["evidence"]


@pytest.mark.parametrize(
    ("times", "operations"),
    [
        # each moves as much as a bucket may
        ([(600, 700), (700, 800), (800, 900)], ("all_reduce",)),
        # hidden beside the backward pass, but for one that takes long for its bytes
        ([(40 * n, 40 * n + 15) for n in range(9)] + [(590, 900), (900, 915)], ("all_reduce",)),
        # one cannot take the place of the other
        ([(600, 640), (640, 680)], ("reduce", "broadcast")),
    ],
)
def test_collectives_that_cannot_be_merged_to_a_gain(
    times: list[tuple[int, int]], operations: tuple[str, ...]
) -> None:
    found = _found(_exchanging(*times, operations=operations).trace())
    assert "small_buckets" not in found


def _of_ranks(
    late: int,
    *ends: int,
    late_in: int = 4,
    idles: bool = False,
    role: bool = False,
    logs: bool = False,
    beside: bool = False,
    ranks: int = 3,
) -> Trace:
    """Return 4 steps of some ranks, of which one comes late to the all-reduce of the first ones.

    If `late` is negative, they are late by turns.
    It ends with the step, or there is one that ends at each of `ends`, in us, and begins where the
    one before it ends. The late one works for longer; or it works as long as others and its host is
    late by 300 us before (`idles`); or it runs a kernel of its own for 300 us (`role`), or for
    100 us (both). It may fetch a number from its GPU in each step, too (`logs`); the others may
    compute for 250 us while they wait (`beside`).
    """
    b = TraceBuilder()
    for rank in range(ranks):
        for step in range(4):
            begin = step * STEP
            b.iteration(step, begin, begin + STEP, thread=10 * rank, ops=2, whole=True)
            is_late = rank == (step % ranks if late < 0 else late) and step < late_in
            own, waits = (900, 300 if idles else 0) if is_late else (600, 0)
            shared = own - (100 if idles else 300) if role and is_late else own
            place: dict[str, Any] = {"thread": 10 * rank, "device": rank}
            if idles:
                _op(b, begin, begin + 10, begin + 20, stage="FP", name="first", **place)
            _op(b, begin + waits * US, begin + waits * US + 30,
                begin + shared * US, stage="BP", **place)  # fmt: skip
            if role and is_late:
                _op(b, begin + 30, begin + shared * US, begin + own * US, name="update", **place)
            if logs and is_late:
                fetched: dict[str, Any] = {"kind": "d2h", "bytes": 4, "copy_kind": "DtoH"}
                _op(b, begin + 5, begin + 20, begin + 30, **place, **fetched)
            reduced = {"kind": "collective", "collective": "all_reduce", "name": "ncclAllReduce"}
            if beside and not is_late:
                _op(b, begin + 25, begin + 600 * US, begin + 850 * US, name="norm", **place)
            place |= {"stage": "WU", "stream": 20, **reduced}
            for first, last in itertools.pairwise([own, *(ends or (1000,))]):
                _op(b, begin + 20, begin + first * US, begin + last * US, **place)
    trace = b.trace()
    devices = pl.DataFrame(
        [{"device": each, "report": 0, "active": True, "identity": "assumed", "uuid": str(each)}
         for each in range(ranks)]
    )  # fmt: skip
    return trace.with_tables({"devices": TABLES["devices"].conform(devices)})


def test_a_rank_that_comes_late() -> None:
    found = _found(_of_ranks(late=1))
    row = found["stragglers"]
    # The two others wait 300 us, each in all of four steps.
    assert _wins(row) == pytest.approx((150 * US, 300 * US, 300 * US), rel=1e-3)
    assert row["finding"].startswith("GPU 1 comes last to 100 % of collectives")
    # The same kernels, of the same size, take 900 us there and 600 us elsewhere.
    assert _wins(found["slow_clocks"]) == pytest.approx((150 * US, 300 * US, 400 * US), rel=1e-2)


def test_a_late_rank_may_cost_more_than_the_exposed_waits_for_it() -> None:
    """It delayed what others had hidden: without it a step was 1.14 ms shorter, `at most 0.76`."""
    found = _found(_of_ranks(1, 950, 1000, beside=True))
    assert _wins(found["stragglers"]) == pytest.approx((50 * US, 100 * US, 150 * US), rel=1e-2)


def test_ranks_that_are_late_by_turns_are_told() -> None:
    """Uneven work of each step cost 25 % of a step, and nothing was said to take 2 %."""
    found = diagnose(_of_ranks(late=-1, ranks=2))
    assert "stragglers" not in found.rows["rule"].to_list()
    assert found.meta["waits_ns"] == pytest.approx(150 * US, rel=1e-3)
    assert {"waits_ns", "latest"} & {*diagnose(_of_ranks(late=1)).meta} == set()


def test_the_gpu_that_is_last_without_being_slow_is_told() -> None:
    """`stragglers` had one GPU last in 15 of 15, and `diagnose` only said that it found none."""
    found = diagnose(_of_ranks(late=1), worth=0.9)
    latest = found.meta["latest"]
    assert (latest["device"], latest["last"], latest["collectives"]) == (1, 4, 4)
    assert latest["caused_ns"] == pytest.approx(300 * US, rel=1e-3)
    told = (
        "in collectives while it runs nothing else; no straggler is certain: GPU 1 is last in 4 of "
        "4, for which the others wait 300.00 us per step; see `tracekit stragglers`"
    )
    assert any(told in note for note in notes(found.meta))


def test_of_two_gpus_the_slower_one_is_held_against_the_other() -> None:
    row = _found(_of_ranks(late=1, ranks=2))["slow_clocks"]
    assert _wins(row) == pytest.approx((150 * US, 300 * US, 400 * US), rel=1e-2)
    assert row["finding"].startswith("GPU 1 takes 1.5 times as long as the other GPU")


@pytest.mark.parametrize("logs", [False, True])
def test_a_rank_whose_host_is_late_is_a_straggler(*, logs: bool) -> None:
    """Also if it fetches the loss in each step, as the first rank of a job often does."""
    found = _found(_of_ranks(late=1, idles=True, logs=logs))
    assert _wins(found["stragglers"])[1] == pytest.approx(300 * US, rel=1e-3)
    assert "slow_clocks" not in found


@pytest.mark.parametrize("idles", [False, True])
def test_who_is_last_by_its_part_in_the_job_is_no_straggler(*, idles: bool) -> None:
    """As the root of a reduction, which alone updates the weights and launches that."""
    found = _found(_of_ranks(late=1, role=True, idles=idles))
    assert not found.keys() & {"stragglers", "slow_clocks"}


def test_a_slower_gpu_that_nobody_waits_for_wins_nothing() -> None:
    """The others' collectives are hidden behind kernels of their own."""
    trace = _of_ranks(late=1)
    ops = trace["ops"].collect()
    is_it = (pl.col("kind") == "collective") & (pl.col("device") != 1)
    beside = ops.filter(is_it).with_columns(
        kind=pl.lit("compute").cast(ops["kind"].dtype), name=pl.lit("other").cast(ops["name"].dtype)
    )
    both = pl.concat([ops, beside]).sort("start").with_columns(
        op=pl.int_range(pl.len()).cast(ops["op"].dtype)
    )  # fmt: skip
    assert not _found(trace.with_tables({"ops": both})).keys() & {"stragglers", "slow_clocks"}


def test_what_others_wait_in_launches_a_slower_rank_takes_up() -> None:
    """Two ranks idle 300 us for launches, while the third computes and sets the pace."""
    trace = _of_ranks(late=1)
    ops = trace["ops"].collect()
    gemm = (pl.col("device") != 1) & (pl.col("stage") == "BP")
    late = ops.with_columns(
        launch_start=pl.when(gemm).then(pl.col("start") + 300 * US).otherwise("launch_start"),
        launch_end=pl.when(gemm).then(pl.col("start") + 300 * US + 4).otherwise("launch_end"),
        start=pl.when(gemm).then(pl.col("start") + 300 * US + 8).otherwise("start"),
    )
    assert "launch_bound" not in _found(trace.with_tables({"ops": late}))


def test_who_is_last_by_chance_is_no_straggler() -> None:
    """One that is late by 300 us in two of four steps, and by 1 us in the others."""
    trace = _of_ranks(late=1)
    steady, chance = trace["ops"].collect(), trace["ops"].collect()
    is_early = (pl.col("device") == 1) & (pl.col("start") >= 2 * STEP)
    is_exchange = pl.col("kind") == "collective"
    is_gemm = pl.col("stage") == "BP"
    begins = pl.when(is_early & is_exchange).then(pl.col("start") - 299 * US).otherwise("start")
    ends = pl.when(is_early & is_gemm).then(pl.col("end") - 299 * US).otherwise("end")
    chance = chance.with_columns(start=begins, end=ends)
    assert "stragglers" in _found(trace.with_tables({"ops": steady}))
    assert "stragglers" not in _found(trace.with_tables({"ops": chance}))


@pytest.mark.parametrize(("steps", "is_told"), [
    ([1, 3] * 10, True),
    ([3] * 10 + [0] * 10, False),  # slow for a while: independent steps would be beyond chance
    (range(20), False),
    ([3, 3, 0, 3] * 5, True),
    ([3, 1, 2, 2], False),
    ([20, 21, 20], True),
    ([20], False),
])  # fmt: skip
def test_a_rank_is_slow_beyond_chance(steps: list[int], *, is_told: bool) -> None:
    """The mean of steps that depend on each other is as certain as that of few."""
    assert _exceeds_chance(pl.Series(steps), 2) is is_told


def test_who_is_last_to_fewer_than_half_of_collectives_is_no_straggler() -> None:
    """Of eight collectives of three ranks: half again as many as by chance are four."""
    assert "stragglers" in _found(_of_ranks(1, 940, 1000))
    assert "stragglers" not in _found(_of_ranks(1, 940, 1000, late_in=3))


def test_what_ranks_wait_for_each_other_could_not_be_hidden() -> None:
    row = _found(_of_ranks(1, 940, 1000))["late_buckets"]
    # Of the first 340, 40 and 340 us 40 each; the update needs the second. 300, 0 and 300 wait.
    assert "nothing hides 40 us of that" in row["finding"]
    assert "200 us per step is waiting for other ranks" in row["evidence"]


def test_waits_of_unknown_participants_are_said_to_be_unknown() -> None:
    trace = _of_ranks(1, 940, 1000)
    is_last = (pl.col("kind") == "collective") & (pl.col("end") % STEP == 0)
    gathers = pl.when(is_last & (pl.col("device") == 0)).then(pl.lit("all_gather"))
    rows = trace["ops"].collect()
    changed_to = pl.col("collective").cast(pl.String)
    ops = rows.with_columns(
        collective=gathers.otherwise(changed_to).cast(rows.schema["collective"])
    )
    changed = trace.with_tables({"ops": ops})
    (told,) = (
        text for text in _found(changed)["late_buckets"]["evidence"] if "other ranks" in text
    )
    assert told.endswith(" is waiting for other ranks; of 8 of 24 calls it is not known")
    missing = idle(changed).meta["missing"]
    assert (
        "the participants of 8 of 24 calls of collectives: waits in these are not counted"
        in missing
    )


def test_a_step_begins_where_its_first_gpu_does() -> None:
    """GPU 1 is in the long first step still when GPU 0 is in the second one."""
    windows = pl.DataFrame(
        [(0, 0, 0, 100, 0), (0, 1, 150, 1_150, 0),
         *((0, 0, 100 * step, 100 * (step + 1), step) for step in range(1, 7))],
        ["process", "device", "start", "end", "iteration"], orient="row",
    )  # fmt: skip
    assert _by_step(windows).row(0) == (0, 0, 550)


def test_no_piece_of_a_gap_is_empty() -> None:
    """Gaps end where the next step begins on the GPU."""
    part = facts_of(_waiting(100 * US, stage="IO").trace())._whole
    assert part is not None
    idle = part.idle
    assert idle.filter(pl.col("iteration") == 1)["end"].max() is not None
    assert (idle["end"] > idle["start"]).all()


def test_cold_steps_are_left_out_and_named() -> None:
    b = TraceBuilder()
    edges = [0, 5, 8, *range(9, 15)]
    for step, (begin, end) in enumerate(itertools.pairwise(edges)):
        b.iteration(step, begin * STEP, end * STEP, ops=1, whole=True)
        _op(b, begin * STEP, begin * STEP + 10, end * STEP, stage="FP")
    found = diagnose(b.trace(), top=None)
    assert found.meta["steps"] == 6
    row = found.rows.row(0, named=True)
    assert (row["rule"], row["win_ns"]) == ("cold_steps", None)
    assert row["finding"].startswith("The first 2 steps take up to 5 times as long")
    assert row["win_unknown"] == "it is lost once in a run, not in each step"
    short = _found(_lengths(5_000, *[1_000] * 8, 500).trace())  # the last ends with its own work
    assert short["cold_steps"]["evidence"][0] == "1 of 10 recorded steps"


def test_a_first_step_that_waits_for_its_batch_does_not_compile() -> None:
    """The first of six steps waits 9 ms in a range of input, between its two ops."""
    b, begin = TraceBuilder(), 0
    for step in range(6):
        wait = 9 * STEP if step == 0 else 0
        end = begin + STEP + wait
        b.iteration(step, begin, end, ops=2, whole=True)
        _op(b, begin, begin + 10, begin + STEP // 2, stage="FP")
        if wait:
            b.range(begin + 20, begin + STEP // 2 + wait, "load", stage="IO")
        _op(b, begin + STEP // 2 + wait + 1, begin + STEP // 2 + wait + 10, end, stage="FP")
        begin = end
    row = _found(b.trace())["cold_steps"]
    assert any("per GPU in them: `input`" in text for text in row["evidence"])
    assert "start the loader" in row["advice"]
    assert "compile" not in row["advice"]
    assert "compile" in _found(_lengths(5_000, *[1_000] * 8).trace())["cold_steps"]["advice"]


def _lengths(*lengths: int) -> TraceBuilder:
    b, begin = TraceBuilder(), 0
    for step, length in enumerate(lengths):
        b.iteration(step, begin, begin + length * US, ops=1, whole=True)
        _op(b, begin, begin + 10, begin + length * US, stage="FP")
        begin += length * US
    return b


def test_no_step_is_cold_beside_steps_without_length() -> None:
    """As where the clock of a GPU was set back."""
    facts: Any = SimpleNamespace(
        cold=pl.DataFrame({"iteration": [0], "length": [5e9]}), median_ns=0.0, number=3
    )
    assert RULES["cold_steps"](facts) is None


@pytest.mark.parametrize(
    ("lengths", "cold"),
    [
        ((5_000, 1_000, 1_000, 5_000, 1_000, 5_000, 1_000, 1_000), False),  # a loader's rhythm
        ((1_600, *[1_000] * 4, 9_000, *[1_000] * 4), False),  # less than the mean of the others
        ((5_000, 1_000, 1_000, 1_000, 1_000, 5_000), False),  # one of five others is as long
        ((5_000, *[1_000] * 29, 5_000), True),
        (tuple([5_000] * 2 + [1_000] * 2), False),  # half of all steps are a kind of steps
    ],
)
def test_what_comes_again_is_not_cold(lengths: tuple[int, ...], *, cold: bool) -> None:
    trace = _lengths(*lengths).trace()
    assert ("cold_steps" in _found(trace)) is cold
    assert facts_of(trace).cold.height == skipped_of(trace, "auto") == cold


@pytest.mark.parametrize("ranks", [2, 3])
def test_gpus_that_run_the_same_kernels_may_exchange_with_all(ranks: int) -> None:
    """Experts, or parts of a sequence: messages of more than two are a collective."""
    trace = _of_ranks(1, ranks=ranks)
    ops, is_exchange = trace["ops"].collect(), pl.col("kind") == "collective"
    changed = {"collective": "send_recv", "name": "ncclDevKernel_SendRecv", "stage": "BP"}
    ops = ops.with_columns(
        pl.when(is_exchange).then(pl.lit(value)).otherwise(pl.col(name).cast(pl.String))
        .cast(ops.schema[name]).alias(name)
        for name, value in changed.items()
    )  # fmt: skip
    found = _found(trace.with_tables({"ops": ops}))
    if ranks == 3:
        assert "pipeline_bubbles" not in found
        assert found["exposed_collectives"]["finding"].startswith("Nothing else runs during")
        return
    row = found["pipeline_bubbles"]
    assert "or exchange with them" in row["finding"]
    assert row["advice"].startswith("If these are stages of a pipeline")
    assert "experts" in row["advice"]


def test_a_solver_is_told_nothing_of_pipelines_of_layers() -> None:
    rows = [
        {"report": 0, "process": 0, "thread": 0, "library": "mpi", "group": "p2p",
         "start": step * STEP + 500 * US, "end": step * STEP + 600 * US, "name": "MPI_Recv"}
        for step in range(4)
    ]  # fmt: skip
    trace = _late_kernels(None).trace().with_tables(
        {"host": TABLES["host"].conform(pl.DataFrame(rows))}
    )  # fmt: skip
    verdict = {"report": 0, "process": 0, "verdict": "other", "given": False, "decides": False,
               "evidence": "no network"}  # fmt: skip
    solver = trace.with_tables({"verdicts": TABLES["verdicts"].conform(pl.DataFrame([verdict]))})
    assert "interleaved" in _found(trace)["pipeline_bubbles"]["advice"]
    told = _found(solver)["pipeline_bubbles"]
    assert "interleaved" not in told["advice"]
    assert _wins(told)[1] == pytest.approx(50 * US)


def test_evaluation_between_steps() -> None:
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP + (step // 2) * STEP  # a millisecond of evaluation after two steps
        b.iteration(step, begin, begin + STEP, ops=1, whole=True)
        _op(b, begin, begin + 10, begin + STEP, stage="FP")
    b.range(2 * STEP, 3 * STEP, "validate", stage="ME")
    b.range(5 * STEP, 6 * STEP, "validate", stage="ME")  # no step comes after this one
    _op(b, 2 * STEP, 2 * STEP + 10, 3 * STEP, stage="ME")
    row = _found(b.trace())["evaluation_too_often"]
    assert _wins(row) == pytest.approx((0, 125 * US, 250 * US))


def test_evaluation_that_counts_in_a_step_counts_once() -> None:
    """Steps that are ranges last until the next one begins: 1 of 2 ms is evaluation."""
    b = TraceBuilder()
    for step in range(5):
        begin = step * 2 * STEP
        b.iteration(step, begin, begin + STEP, source="ranges")
        _op(b, begin, begin + 10, begin + STEP, stage="FP", iteration=step)
        b.range(begin + STEP, begin + 2 * STEP, "validate", stage="ME")
        _op(b, begin + STEP + 10, begin + STEP + 20, begin + 2 * STEP, stage="ME")
    finding = _found(b.trace())["evaluation_too_often"]["finding"]
    assert finding == "4 evaluations among 4 steps take 1 ms per step, 50 % of training."


def test_evaluation_does_not_last_while_the_gpu_still_trains() -> None:
    """The host waits in the range for passes, as a metric is read after each of them."""
    b = TraceBuilder()
    for step in range(4):
        begin = step * STEP
        b.iteration(step, begin, begin + STEP)
        _op(b, begin, begin + 10, begin + 990 * US, stage="FP")
        b.range(begin + 20, begin + STEP, "accuracy", stage="ME")
        _op(b, begin + 20, begin + 990 * US, begin + STEP, stage="ME")
    assert "evaluation_too_often" not in _found(b.trace())


@pytest.mark.parametrize("long", [STEP, 20 * STEP])
def test_a_mean_that_one_step_decides_is_told(long: int) -> None:
    """One exchange of 30 ms was `2.57 ms per step` of steps that take 1.24 ms."""
    b, begin = TraceBuilder(), 0
    for step in range(12):
        length = long if step == 6 else STEP + 2 * step
        b.iteration(step, begin, begin + length, ops=1, whole=True)
        _op(b, begin, begin + 10, begin + length, stage="FP")
        begin += length
    trace = b.trace()
    told = study_row(trace, {}, "run")["step_p50_ns"]
    assert diagnose(trace).meta.get("median_step_ns") == (None if long == STEP else told)


def test_advice_to_runs_that_dali_feeds_names_its_options() -> None:
    builder = TraceBuilder()
    builder.range(0, 5, "[DALI][Executor] RunCPU", domain="DALI")
    (advice,) = (text for text in _advice() if "`prefetch_factor=`" in text)
    said = in_words_of(builder.trace(), advice)
    assert "`num_threads=`), a longer prefetch (`prefetch_queue_depth=`), or preparing" in said
    assert not re.search(_OF_OTHERS, said)


def test_without_steps_wins_are_unknown() -> None:
    b = TraceBuilder()
    _op(b, 0, 10, 500 * US)
    _op(b, 900 * US, 900 * US + 10, STEP)
    found = diagnose(b.trace(), top=None)
    assert found.meta["step_ns"] is None
    row = found.rows.row(0, named=True)
    assert row["rule"] == "launch_bound"
    assert (row["win_ns"], row["win_unknown"]) == (None, "no steps are known")
    assert row["share"] == pytest.approx(0.3, abs=0.001)
    assert found.rows["rule"][-1] == "missing_evidence"
    assert " in all for launches" in row["finding"]
    _op(b, 0, 10, STEP, device=1)  # which does not wait: half of it in the mean
    row = diagnose(b.trace(), top=None).rows.filter(rule="launch_bound").row(0, named=True)
    assert " per GPU for launches" in row["finding"]
    assert row["share"] == pytest.approx(0.15, abs=0.001)


def test_no_win_is_more_than_what_is_not_computed() -> None:
    wins = diagnose(_of_ranks(late=1), top=None).rows
    assert (wins["win_high_ns"] <= 400 * US + 30).all()


@pytest.mark.slow
def test_the_largest_come_first_and_few_are_listed() -> None:
    whole = diagnose(_of_ranks(late=1), top=None).rows
    few = diagnose(_of_ranks(late=1), top=1)
    assert whole["share"].to_list() == sorted(whole["share"], reverse=True)
    assert few.rows.equals(whole.head(1))
    assert few.meta["findings"] == whole.height > 1
    assert few.tables["findings"].equals(whole)
    only = diagnose(_of_ranks(late=1), rules=["stragglers"]).rows
    assert only["rule"].to_list() == ["stragglers"]


def test_what_is_refused() -> None:
    trace = _steps().trace()
    with pytest.raises(UsageError, match="no rule is called nothing: there are input_bound"):
        diagnose(trace, rules=["nothing"])
    empty = trace.with_tables({"ops": TABLES["ops"].empty()})
    with pytest.raises(MissingDataError, match="no GPU work"):
        diagnose(empty)


def test_each_rule_has_a_section() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(RULES)


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [(2.3456, 3, "2.35"), (999.4, 3, "999"), (999.7, 3, "1,000"), (3456.0, 3, "3,456"),
     (20568.4, 4, "20,568"), (316.62, 4, "316.6"), (0.0, 3, "0")],
)  # fmt: skip
def test_numbers_in_words_have_no_exponents(number: float, digits: int, text: str) -> None:
    assert rounded(number, digits) == text


@pytest.mark.parametrize(
    ("claims", "wrong", "confidence"),
    [(40, 2, "measured"), (39, 0, "likely"), (0, 0, "likely"), (40, 3, "perhaps")],
)
def test_a_rule_is_no_surer_than_it_was_right(
    monkeypatch: pytest.MonkeyPatch, claims: int, wrong: int, confidence: str
) -> None:
    score = {"input_bound": {"claims": claims, "wrong": wrong}}
    monkeypatch.setattr(_diagnose, "score", lambda: score)
    trace = _waiting(100 * US, stage="IO").trace()
    assert _found(trace)["input_bound"]["confidence"] == confidence
    listed = diagnose(trace)
    assert listed.rows.height == (confidence != "perhaps")
    assert listed.meta.get("perhaps", 0) == (confidence == "perhaps")
    assert listed.tables["findings"].height == 1  # which formats for machines hold
    assert diagnose(trace, rules=["input_bound"]).rows["confidence"].to_list() == [confidence]


def test_rules_that_are_often_wrong_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_diagnose, "score", lambda: {"input_bound": {"claims": 10, "wrong": 1}})
    trace = _copying_late(100 * US).trace()
    found = diagnose(trace, top=None).rows
    assert found["rule"].to_list()[-1] == "input_bound"
    assert "input_bound" not in diagnose(trace).rows["rule"]


def test_the_score_knows_the_rules() -> None:
    page = tomllib.loads((PAGE.parents[1] / "schemas/findings/score.toml").read_text("utf-8"))
    assert list(page) == list(RULES)
    assert all(0 <= each["wrong"] <= each["claims"] for each in page.values())


A100 = {"device": 0, "report": 0, "name": "NVIDIA A100-SXM4-40GB", "active": True,
        "identity": "ordinal"}  # fmt: skip


def _named(*names: str, device: str = A100["name"]) -> Trace:
    """Return steps of 1 ms in which kernels of these names take a tenth of it each, in a row."""
    b = TraceBuilder()
    b.rows["devices"].append({**A100, "name": device})
    for step in range(4):
        b.iteration(step, step * STEP, (step + 1) * STEP, ops=len(names) + 1, whole=True)
        at = step * STEP
        for place, name in enumerate(names):
            end = at + (place + 1) * STEP // 10
            _op(b, at + 10 + place, max(at + place * STEP // 10, at + 30), end, name=name)
        begun = at + len(names) * STEP // 10
        _op(b, at + 10 + len(names), begun, at + STEP, name="a_kernel_of_its_own")
    return b.trace()


def test_matrix_products_in_fp32_beside_tensor_cores() -> None:
    """A fifth of a step in FP32 at a sixteenth of the peak in BF16: at most 15/16 of it is won."""
    row = _found(_named("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"))["fp32_products"]
    low, win, high = _wins(row)
    assert (low, high) == (0, pytest.approx(0.2 * STEP * 15 / 16, rel=0.001))
    assert win == pytest.approx(high / 2, rel=0.001)
    assert (row["confidence"], "set_float32_matmul_precision" in row["advice"]) == ("likely", True)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("ampere_sgemm_128x64_tn", "Tesla P40"),  # whose peaks are not known
        ("volta_sgemm_128x64_tn", "Tesla V100-SXM2-16GB"),  # which has no TF32
        ("ampere_sgemm_128x64_tn", "NVIDIA GeForce RTX 3070 Ti"),  # whose TF32 is no faster
        ("sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n", A100["name"]),
        ("ampere_bf16_s16816gemm_bf16_128x64", A100["name"]),
        ("void at::native::reduce_kernel<512, 1, float>", A100["name"]),  # multiplies nothing
    ],
)
def test_what_is_no_product_in_fp32_beside_tensor_cores(name: str, device: str) -> None:
    assert "fp32_products" not in _found(_named(name, device=device))


def test_few_products_in_fp32_are_not_spoken_of() -> None:
    """A tenth of 1 ms less 30 ns of a step, which is less than a tenth of it."""
    assert "fp32_products" not in _found(_named("ampere_sgemm_128x64_tn"))


def test_layouts_that_are_turned() -> None:
    found = _found(_named("void cudnn::ops::nchwToNhwcKernel<float>", "gemm"))
    row = found["layout_transposes"]
    assert _wins(row) == pytest.approx((0, 0.075 * STEP, 0.1 * STEP), rel=0.001)
    assert "channels_last" in row["advice"]
    assert "layout_transposes" not in _found(_named("void transpose_of_my_own<float>"))


ADD = "void at::native::vectorized_elementwise_kernel<4, add>"


def _tiny(number: int = 10, length: int = 2 * US, gap: int = 20 * US) -> Trace:
    """Return steps of 1 ms: so many kernels, each launched `gap` after the one before has begun."""
    b = TraceBuilder()
    for step in range(4):
        b.iteration(step, step * STEP, (step + 1) * STEP, ops=number + 1, whole=True)
        for place in range(number):
            at = step * STEP + place * gap
            _op(b, at, at + 6, at + 6 + length, name="add")
        begun = step * STEP + number * gap
        _op(b, begun, begun + 6, (step + 1) * STEP, name="gemm")
    return b.trace()


def test_runs_of_tiny_kernels() -> None:
    """Of ten kernels of 2 us, 20 us apart, nine are waited for: 18 us less what launches them."""
    row = _found(_tiny())["tiny_kernels"]
    low, win, high = _wins(row)
    # A GPU does not wait for the first of a step: the step before ends with it.
    waited = 9 * (20 - 2) * US
    assert win == pytest.approx(0.75 * waited, rel=0.02)
    assert low == pytest.approx(waited / 2, rel=0.02)
    assert high == pytest.approx(waited + 9 * 2 * US, rel=0.005)  # fused, one is left
    assert "10 kernels per step and GPU of about 2 us" in row["finding"]
    assert "1 run per step and GPU of 10 kernels" in row["evidence"][0]


def _replayed(trace: Trace) -> Trace:
    """Return the trace with all ops launched as CUDA graphs."""
    calls = trace["calls"].with_columns(name=pl.lit("cudaGraphLaunch_v10000")).collect()
    return trace.with_tables({"calls": TABLES["calls"].conform(calls)})


@pytest.mark.parametrize(
    "trace",
    [_tiny(7), _tiny(length=12 * US), _tiny(gap=3 * US), _replayed(_tiny())],
    ids=("few", "longer", "launched fast", "CUDA graphs already"),
)
def test_what_are_no_runs_of_tiny_kernels(trace: Trace) -> None:
    assert "tiny_kernels" not in _found(trace)


def _sized(length: int) -> Trace:
    """Return steps of 1 ms on an A100, with a product of `length` whose bound takes 100 us."""
    b = TraceBuilder()
    b.rows["devices"].append(A100)
    # 2 x 1,560 x 10,000 x 1,000 FLOPs at 312 TFLOP/s take 100 us.
    dims = {"Input Dims": "[[1560,10000],[10000,1000]]",
            "Input type": '["c10::BFloat16","c10::BFloat16"]'}  # fmt: skip
    for step in range(4):
        at = step * STEP
        b.iteration(step, at, at + STEP, ops=3, whole=True)
        b.range(at, at + 20, "aten::mm", payload=json.dumps(dims, separators=(",", ":")))
        _op(b, at + 10, at + 30, at + 30 + length, iteration=step,
            name="ampere_bf16_s16816gemm_bf16_128x64")  # fmt: skip
        end = at + 30 + length
        _op(b, at + 25, end, end + US, iteration=step, name="the_shortest_one")
        _op(b, at + 26, end + US, at + STEP, iteration=step, name="a_kernel_of_its_own")
    return b.trace()


def test_the_operator_that_is_furthest_above_its_bound() -> None:
    row = _found(_sized(300 * US))["largest_headroom"]
    assert _wins(row) == pytest.approx((0, 100 * US, 200 * US), rel=0.001)
    assert "`mm` runs 200 us per step (20 % of the step)" in row["finding"]
    assert "which is computing" in row["finding"]
    assert row["confidence"] == "perhaps"  # nothing judged it
    assert "33.3 % of that at peaks" in row["evidence"][0]


@pytest.mark.parametrize(
    ("name", "payload", "known"),
    [
        ("aten::mm", '{"Input Dims":"[[2,3],[3,4]]"}', True),
        ("aten::mm, seq = 3, sizes = [[2, 3], [3, 4]]", None, True),
        ("{'mod': 'torch', 'op': 'mm', 'args': []}", None, True),
        ("aten::mm, seq = 3", None, False),
        ("forward", '{"bytes": 3}', False),
        (None, None, False),
    ],
)
def test_whether_sizes_were_recorded(name: str | None, payload: str | None, known: bool) -> None:
    b = TraceBuilder()
    b.range(0, 10, name, payload=payload)
    assert has_sizes(b.trace()) is known


def test_an_operator_near_its_bound_is_not_spoken_of() -> None:
    assert "largest_headroom" not in _found(_sized(140 * US))


def test_chains_of_elementwise_kernels() -> None:
    """Of three kernels of 0.1 ms each, fused, the longest one would be left at best."""
    row = _found(_named("gemm", ADD, ADD, ADD, "gemm"))["unfused_elementwise"]
    assert _wins(row) == pytest.approx((0, 0.1 * STEP, 0.2 * STEP), rel=0.001)
    assert row["confidence"] == "hint"
    assert "1 chain per step and GPU, of 3 kernels" in row["evidence"][0]
    apart = _named(ADD, ADD, "gemm", ADD, ADD)
    assert "unfused_elementwise" not in _found(apart)


_OF_OTHERS = (
    "torch|num_workers|pin_memory|non_blocking|prefetch_factor|fused=|foreach|bucket_cap|PTX|"
    "mark_dynamic|empty_cache|DistributedData|(?i:cuda)|(?<!R)NCCL|nvidia|NVTX"
)


def _advice() -> set[str]:
    """Return the texts of all rules that hold names."""
    rules = Path(diagnosis.__file__).parent.glob("*_rules.py")
    nodes = [node for file in rules for node in ast.walk(ast.parse(file.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and "`" in text}


def test_advice_names_what_the_run_is_made_with() -> None:
    """JAX has no DataLoader, and AMD's GPUs no CUDA."""
    builder = TraceBuilder()
    builder.op("fusion_3", 10)
    cuda = builder.trace()
    builder.rows["reports"].append(
        {"report": 0, "file": "a.pb", "format": "XLA profile", "size": 1}
    )
    builder.rows["calls"][0]["name"] = "hipLaunchKernel"
    texts, hip = _advice(), builder.trace()
    assert sum(bool(re.search(_OF_OTHERS, text)) for text in texts) > 10
    assert {text: in_words_of(cuda, text) for text in texts} == {text: text for text in texts}
    assert [text for text in texts if re.search(_OF_OTHERS, in_words_of(hip, text))] == []
