"""Data stalls: literal steps worked by hand, and a second implementation on random ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.idle_time import idle
from tracekit.analysis.studies._stalls import (
    before_and_after,
    data_stalls,
    differential_stalls,
    stalls_answer,
    stalls_of_run,
)
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import TABLES

MS = 1_000_000


def worked() -> TraceBuilder:
    """A run of 100 ms: idle to 50, waiting to 48 of these; copied until 60, computed until 100."""
    b = TraceBuilder()
    b.iteration(0, 0, 100 * MS)
    b.range(0, 48 * MS, "next batch", stage="IO")
    b.op("nothing", 0, start=0, end=0, iteration=0)
    b.op("copy", 48 * MS, start=50 * MS, end=60 * MS, kind="h2d", stage="IO", iteration=0)
    b.op("gemm", 49 * MS, start=60 * MS, end=100 * MS, stage="FP", iteration=0)
    return b


def test_the_worked_step() -> None:
    row = data_stalls(worked().trace()).row(0, named=True)
    assert (row["iterations"], row["window_ns"]) == (1, 100 * MS)
    assert (row["idle_ns"], row["wait_ns"], row["input_ns"]) == (50 * MS, 48 * MS, 10 * MS)
    assert row["data_stall_ns"] == 58 * MS
    assert row["other_idle_ns"] == 2 * MS
    assert row["utilisation"] == pytest.approx(0.40)
    assert row["data_stall_share"] == pytest.approx(0.58)
    assert row["rests_on"] == "ranges"


def test_copies_of_unknown_direction_are_told(b: TraceBuilder) -> None:
    """AMD's driver copies with kernels, whose ends are not recorded."""
    b.op("copy", 0, start=0, end=3 * MS, kind="unknown")
    b.op("gemm", 1, start=3 * MS, end=9 * MS, stage="FP")
    run: Any = SimpleNamespace(trace=b.trace(), labels={}, name="amd")
    (told,) = stalls_answer([run], 0).warnings
    assert told == "amd: copies of unknown direction take 3.000 ms, and `input` counts none"


@pytest.mark.parametrize("stage", ["IO", "FP"])
def test_kernels_that_prepare_input_are_told(stage: str, b: TraceBuilder) -> None:
    """No stall was told of a GPU that decodes images for 70 % of each step."""
    b.op("decode", 0, start=0, end=7 * MS, stage=stage)
    b.op("gemm", 1, start=5 * MS, end=10 * MS, stage="FP")
    run: Any = SimpleNamespace(trace=b.trace(), labels={}, name="dali")
    told = "kernels that prepare input run for 5.000 ms while no other kernel does, and `input`"
    assert stalls_answer([run], 0).warnings == (
        (f"dali: {told} counts none",) if stage == "IO" else ()
    )


def test_time_outside_of_steps_is_told(b: TraceBuilder) -> None:
    """Ops from 0 to 200 ms, of which a step has 90: its window begins with its first op."""
    b.iteration(0, 30 * MS, 130 * MS)
    b.op("warm", 0, start=0, end=20 * MS)
    b.op("gemm", 31 * MS, start=40 * MS, end=130 * MS, stage="FP", iteration=0)
    b.op("after", 140 * MS, start=150 * MS, end=200 * MS)
    row = data_stalls(b.trace()).row(0, named=True)
    assert (row["window_ns"], row["outside_steps_ns"]) == (90 * MS, 110 * MS)
    alone = TraceBuilder()
    alone.op("gemm", 0, start=0, end=20 * MS)
    # The whole run is the window.
    assert data_stalls(alone.trace())["outside_steps_ns"].to_list() == [0]


def test_a_range_of_input_hides_no_wait_before_it(b: TraceBuilder) -> None:
    """A range around the copies says nothing of the sleep until the batch was there."""
    b.iteration(0, 0, 10 * MS)
    b.iteration(1, 60 * MS, 110 * MS)
    b.op("gemm", 0, start=0, end=10 * MS, stage="FP", iteration=0)
    b.range(60 * MS, 62 * MS, "copy in", stage="IO")
    b.op("copy", 61 * MS, start=61 * MS + 2, end=70 * MS, kind="h2d", stage="IO", iteration=1)
    b.op("gemm", 62 * MS, start=70 * MS, end=110 * MS, stage="FP", iteration=1)
    asleep = {"report": 0, "process": 0, "thread": 0, "start": 11 * MS, "end": 60 * MS,
              "library": "os", "name": "off the CPU", "group": "off_cpu"}  # fmt: skip
    host = TABLES["host"].conform(pl.DataFrame([asleep]))
    row = data_stalls(b.trace().with_tables({"host": host})).row(0, named=True)
    assert (row["idle_ns"], row["wait_ns"]) == (51 * MS + 2, 50 * MS)
    assert row["rests_on"] == "context switches, ranges"


def test_only_the_thread_that_trains_waits() -> None:
    """A thread that loads ahead is busy all the time, and nobody waits for it."""
    b = worked()
    b.range(0, 100 * MS, "prefetch", thread=1, stage="IO")
    assert data_stalls(b.trace())["wait_ns"].item() == 48 * MS


def test_copies_under_kernels_stall_nothing() -> None:
    b = worked()
    b.op("reduce", 3, start=52 * MS, end=57 * MS, kind="collective", iteration=0)
    row = data_stalls(b.trace()).row(0, named=True)
    assert row["input_ns"] == 5 * MS
    assert row["kernel_ns"] == 45 * MS


def test_kernels_that_were_not_recorded_do_not_run_for_0_ns() -> None:
    b = TraceBuilder()
    b.op("copy", 1, start=10, end=20, kind="h2d", stage="IO")
    row = data_stalls(b.trace()).row(0, named=True)
    assert (row["window_ns"], row["idle_ns"]) == (10, 0)
    for unknown in ("kernel_ns", "utilisation", "input_ns", "data_stall_ns", "data_stall_share"):
        assert row[unknown] is None, unknown


@pytest.mark.parametrize(("stage", "copied"), [("OTHER", 10), ("FP", 10), ("BP", 0), ("WU", 0)])
def test_what_comes_back_for_an_update_is_no_input(stage: str, copied: int) -> None:
    """An optimizer on the host sends the weights back; a batch may be sent in a forward range."""
    b = worked()
    b.rows["ops"][1]["stage"] = stage
    assert data_stalls(b.trace())["input_ns"].item() == copied * MS


def test_a_run_without_steps_is_one_window(b: TraceBuilder) -> None:
    b.op("gemm", 1, start=10, end=20)
    b.op("gemm", 2, start=30, end=50)
    row = data_stalls(b.trace()).row(0, named=True)
    assert (row["iterations"], row["window_ns"], row["kernel_ns"]) == (0, 40, 30)


def test_waits_are_unknown_where_nothing_tells_them_from_others() -> None:
    """They were 0 ns in a recording that has no launches, or no sign of input."""
    without_launches, without_input = TraceBuilder(), TraceBuilder()
    without_launches.op("copy", start=1, end=10, kind="h2d", stage="IO")
    without_launches.op("gemm", start=20, end=30)
    without_input.op("gemm", 1, start=10, end=20)
    for trace in (without_launches.trace(), without_input.trace()):
        row = data_stalls(trace).row(0, named=True)
        assert row["idle_ns"] is not None
        assert [row[name] for name in ("wait_ns", "data_stall_ns", "other_idle_ns")] == [None] * 3
        assert (row["data_stall_share"], row["rests_on"]) == (None, None)
        of_run = stalls_of_run(data_stalls(trace))
        assert (of_run["wait_ns"], of_run["data_stall_share"]) == (None, None)


@pytest.mark.parametrize(("named", "waited"), [(None, None), (5, None), (45, 45 * MS)])
def test_what_the_host_does_between_steps_may_be_a_wait(
    named: int | None, waited: int | None, b: TraceBuilder
) -> None:
    """Of a loader that was waited for in the `for` statement, 0 ms were told: copies show input."""
    for step in range(3):
        at = 60 * MS * step
        b.iteration(step, at, at + 10 * MS)
        if named is not None:
            b.range(at + 12 * MS, at + (12 + named) * MS, "next batch", stage="IO")
        b.op("copy", at, start=at, end=at + 2 * MS, kind="h2d", stage="IO", iteration=step)
        b.op("gemm", at + 1, start=at + 2 * MS, end=at + 10 * MS, stage="FP", iteration=step)
    row = data_stalls(b.trace()).row(0, named=True)
    assert (row["idle_ns"], row["wait_ns"]) == (100 * MS, waited and 2 * waited)


def test_bars_are_as_long_as_windows_where_waits_are_unknown_too() -> None:
    """Idle time of unknown cause was in no part: a bar of 100 ms ended at 32."""
    unknown = TraceBuilder()
    unknown.op("gemm", 1, start=10, end=20)
    unknown.op("gemm", 2, start=50, end=60)
    for b in (unknown, worked()):
        run: Any = SimpleNamespace(trace=b.trace(), labels={}, name="a")
        answer = stalls_answer([run], 0)
        parts: pl.DataFrame = answer.source.drop("name")
        assert parts.sum_horizontal().to_list() == answer.rows["window_ns"].to_list()
        assert ("idle, cause unknown" in parts.columns) == (b is unknown)


def test_no_wait_in_a_recording_that_shows_input_is_none(b: TraceBuilder) -> None:
    b.op("copy", 0, start=1, end=10, kind="h2d", stage="IO")
    b.op("gemm", 1, start=10, end=20)
    row = data_stalls(b.trace()).row(0, named=True)
    assert (row["wait_ns"], row["data_stall_ns"], row["rests_on"]) == (0, 9, None)


def test_a_run_without_gpu_work_stalls_no_gpu(b: TraceBuilder) -> None:
    b.range(0, 10, "forward")
    with pytest.raises(MissingDataError, match="no GPU work"):
        data_stalls(b.trace())


def test_three_runs_tell_what_input_costs() -> None:
    found = differential_stalls(100e9, 130e9, 170e9)
    assert found["time_ns"].to_list() == [30e9, 40e9, 70e9]
    assert 100 * found["share"][2] == pytest.approx(41.18, abs=0.005)
    with pytest.raises(UsageError, match="not above 0"):
        differential_stalls(0, 1, 2)


def test_before_and_after() -> None:
    before = stalls_of_run(data_stalls(worked().trace()))
    assert before["data_stall_share"] == pytest.approx(0.58)
    table = before_and_after([before, {**before, "window_ns": 50 * MS}])
    assert table["speedup"].to_list() == [1, 2]
    # A whole recording is no step.
    table = before_and_after([before, {**before, "iterations": 0}])
    assert table["speedup"].to_list() == [1, None]


SPAN = st.tuples(st.integers(0, 60), st.integers(1, 20))
KIND = st.sampled_from(["compute", "collective", "p2p", "h2d", "d2h", "memset"])


@settings(deadline=None, max_examples=examples(8, thorough=200))
@given(ops=st.lists(st.tuples(KIND, SPAN), min_size=1, max_size=8),
       waits=st.lists(SPAN, max_size=4))  # fmt: skip
def test_times_are_those_of_a_count_by_the_nanosecond(
    ops: list[tuple[str, tuple[int, int]]], waits: list[tuple[int, int]]
) -> None:
    b = TraceBuilder()
    for kind, (start, length) in ops:
        b.op("op", start - 1, start=start, end=start + length, kind=kind, iteration=0)
    b.iteration(0, -1, 200)
    for start, length in waits:
        b.range(start, start + length, "next batch", stage="IO")
    row = data_stalls(b.trace()).row(0, named=True)
    first, last = min(s for _, (s, _) in ops), max(s + n for _, (s, n) in ops)
    moments = range(first, last)

    def covered(kinds: tuple[str, ...]) -> set[int]:
        return {t for kind, (s, n) in ops if kind in kinds for t in range(s, s + n)}

    kernels, everything = (
        covered(("compute", "collective")),
        {*range(first, last)} & {t for _, (s, n) in ops for t in range(s, s + n)},
    )
    assert row["window_ns"] == len(moments)
    assert row["kernel_ns"] == (len(kernels) or None)
    assert row["idle_ns"] == len(moments) - len(everything)
    copied = len(covered(("h2d",)) - kernels - covered(("p2p",)))
    assert row["input_ns"] == (copied if kernels else None)
    causes = dict(idle(b.trace()).rows.select("cause", "idle_ns").rows())
    assert row["wait_ns"] == (causes.get("input", 0) if waits else None)


def test_a_cold_step_does_not_count() -> None:
    """Six steps, of which the first waits for 900 ms and the others for 10 of 100 ms each."""
    b, begin = TraceBuilder(), 0
    for step in range(6):
        wait = 900 * MS if step == 0 else 10 * MS
        b.iteration(step, begin, begin + 90 * MS + wait, ops=2, whole=True)
        b.op("begin", begin, start=begin, end=begin + 1, stage="FP", iteration=step)
        b.range(begin + 2, begin + wait - 2, "next batch", stage="IO")
        b.op("gemm", begin + wait - 1, start=begin + wait, end=begin + wait + 90 * MS, stage="FP",
             iteration=step)  # fmt: skip
        begin += wait + 90 * MS
    run: Any = SimpleNamespace(trace=b.trace(), name="a")
    found = stalls_answer([run], "auto")
    assert found.rows["iterations"].to_list() == [5]
    assert found.rows["window_ns"].item() == 500 * MS
    assert found.meta["notes"] == ["left out at the beginning: 1 of a; --skip 0 keeps all"]
    assert stalls_answer([run], 0).rows["iterations"].to_list() == [6]
