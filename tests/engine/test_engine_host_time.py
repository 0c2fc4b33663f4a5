"""Stages of NVTX ranges on the host, by hand and laid out nanosecond by nanosecond."""

from __future__ import annotations

from itertools import chain
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import STAGES, Trace


@pytest.fixture(scope="module")
def steps() -> Trace:
    """Two steps of one process: input runs ahead on a thread, the exchange is inside the update."""
    builder = TraceBuilder()
    for number, at in enumerate((0, 1000)):
        builder.range(at, at + 900, f"iteration {number}")
        builder.range(at, at + 100, "IO")
        builder.range(at + 100, at + 400, "FP")
        builder.range(at + 150, at + 200, "layer conv1 (Conv2d)")
        builder.start_end(at + 400, at + 700, "BP")
        builder.range(at + 650, at + 850, "WU")
        builder.range(at + 660, at + 800, "gradient exchange")
    builder.range(910, 990, "ME")
    builder.range(920, 960, "FP")
    builder.range(300, 450, "IO", thread=1)
    return builder.attributed()


def test_stages_add_up_to_the_window(steps: Trace) -> None:
    answer = breakdown(steps)
    table, meta = answer.rows, answer.meta
    assert table.columns == ["stage", "ranges", "busy_ns", "exposed_ns", "overlap_ns", "share"]
    assert table.drop("share").rows() == [
        ("FP", 2, 600, 600, 0),
        ("BP", 2, 600, 600, 0),
        ("WU", 4, 400, 300, 100),  # 650 to 700 is hidden behind BP
        ("IO", 3, 350, 200, 150),  # what runs ahead is hidden
        ("ME", 1, 80, 80, 0),  # with the forward pass in it
    ]
    assert meta["window_ns"] == 1850
    assert meta["idle_ns"] == 1850 - 600 - 600 - 300 - 200 - 80
    assert meta["wu_residual_ns"] == 1850 - 1200
    assert (meta["processes"], meta["iterations"]) == (1, 2)
    assert "devices" not in meta
    assert "launched" not in meta
    assert "NVTX ranges" in meta["basis"]
    assert meta["coverage"] == pytest.approx({"nvtx": 1330 / 1780, "process_range": 600 / 1780})


def test_iterations_are_the_time_of_their_ranges(steps: Trace) -> None:
    table = breakdown(steps, "iteration").rows
    # The first step goes on until the second one begins, 100 ns later, of which 80 are in a stage.
    assert table.select("iteration", "window_ns", "idle_ns", "between_steps_ns").rows() == [
        (0, 1000, 50, 20),
        (1, 900, 50, 0),
    ]
    by_stage = breakdown(steps, "stage,iteration").rows.filter(pl.col("stage") == "IO")
    assert by_stage.select("iteration", "ranges", "busy_ns", "exposed_ns").rows() == [
        (0, 2, 250, 100),
        (1, 1, 100, 100),
    ]
    kept = breakdown(steps, skip=1).meta
    assert (kept["window_ns"], kept["iterations"]) == (900, 1)


def test_layers_are_in_the_stage_of_the_range_around_them(steps: Trace) -> None:
    table = breakdown(steps, "range,stage").rows
    assert table.select("range", "stage", "ranges", "busy_ns").sort("range").rows() == [
        ("BP", "BP", 2, 600),
        ("IO", "IO", 1, 150),
        ("ME", "ME", 1, 80),
        ("iteration N > FP", "FP", 2, 500),
        ("iteration N > FP > layer conv1 (Conv2d)", "FP", 2, 100),
        ("iteration N > IO", "IO", 2, 200),
        ("iteration N > WU", "WU", 2, 120),
        ("iteration N > WU > gradient exchange", "WU", 2, 280),
    ]


def test_stages_reach_as_deep_as_ranges_lie(builder: TraceBuilder) -> None:
    builder.range(0, 100, "FP")
    for depth in range(1, 14):
        builder.range(depth, 100 - depth, f"part {chr(96 + depth)}")
    builder.range(20, 30, "WU")
    table = breakdown(builder.attributed(), "range,stage").rows
    assert sorted(zip(table["stage"], table["busy_ns"], strict=True)) == [
        *[("FP", 2)] * 13, ("FP", 64), ("WU", 10),
    ]  # fmt: skip


def test_percentiles_are_over_iterations(steps: Trace) -> None:
    table = breakdown(steps, per_iteration=True).rows
    assert table.filter(pl.col("stage") == "FP")["median_ns"].to_list() == [300]


def test_percentiles_of_processes_that_number_their_steps_differently(
    builder: TraceBuilder,
) -> None:
    for process in (0, 1):
        for number in range(2):
            at = 100 * number
            builder.iteration(number + 10 * process, at, at + 90, process=process)
            builder.range(at + 10, at + 30, "FP", thread=10 * process)
    table = breakdown(builder.attributed(), per_iteration=True).rows
    assert table.select("iterations", "median_ns", "devices").rows() == [(2, 40, 2)]


def test_each_process_is_a_window_of_its_own(builder: TraceBuilder) -> None:
    builder.range(0, 100, "FP")
    builder.range(50, 250, "FP", thread=10)
    answer = breakdown(builder.attributed())
    found, meta = answer.rows, answer.meta
    assert found["busy_ns"].to_list() == [300]
    assert (meta["processes"], meta["window_ns"]) == (2, 300)


def test_ranges_of_two_domains_that_cross(builder: TraceBuilder) -> None:
    """Each is busy for all its time; what is exposed of the second is what the first leaves."""
    builder.range(0, 10, "FP", domain="a")
    builder.range(5, 100, "WU", domain="b")
    builder.range(200, 300, "FP", domain="a", thread=1)  # these nest, whatever their domains
    builder.range(220, 240, "IO", domain="b", thread=1)
    builder.range(290, 300, "IO", domain="b", thread=1)
    table = breakdown(builder.attributed()).rows
    assert table.select("stage", "busy_ns", "exposed_ns").rows() == [
        ("FP", 80, 80),
        ("WU", 95, 90),
        ("IO", 30, 30),
    ]


@pytest.mark.parametrize("key", ["kernel", "kind", "device", "stream"])
def test_what_only_gpu_work_can_be_broken_down_by(steps: Trace, key: str) -> None:
    with pytest.raises(MissingDataError, match=rf"no GPU work.* nothing by {key}: record with"):
        breakdown(steps, ["stage", key])
    with pytest.raises(MissingDataError, match="nothing by layer"):
        breakdown(steps, "layer")
    with pytest.raises(MissingDataError, match="its ranges launch no ops"):
        breakdown(steps, "range", inclusive=True)


def test_neither_work_nor_ranges(builder: TraceBuilder) -> None:
    builder.range(0, 10, "something")
    with pytest.raises(MissingDataError, match="neither GPU work nor NVTX ranges"):
        breakdown(builder.attributed())


def test_iterations_that_are_not_there(builder: TraceBuilder) -> None:
    builder.range(0, 10, "FP")
    with pytest.raises(UsageError, match="no iterations"):
        breakdown(builder.attributed(), "iteration")


_NAMES = ("FP", "BP", "WU", "IO", "ME", "no stage")


@st.composite
def _nested(draw: Any, low: int, high: int, depth: int = 3) -> list[tuple[int, int, str]]:
    """Draw ranges one after the other, each with others inside, that may share their edges."""
    found, at = [], low
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(at, high))
        end = draw(st.integers(start, high))
        found.append((start, end, draw(st.sampled_from(_NAMES))))
        if depth and end > start:
            found += draw(_nested(start, end, depth - 1))
        at = end
    return found


@settings(deadline=None, max_examples=examples(18, thorough=300))
@given(st.lists(_nested(0, 40), min_size=1, max_size=2), st.lists(_nested(0, 40, 0), max_size=1))
def test_stages_as_if_laid_out_by_the_nanosecond(
    threads: list[list[tuple[int, int, str]]], apart: list[list[tuple[int, int, str]]]
) -> None:
    builder = TraceBuilder()
    builder.range(0, 1, "FP")  # something is there, whatever else is drawn
    here: list[set[str]] = [set() for _ in range(41)]
    here[0].add("FP")
    for number, rows in enumerate(threads, 1):
        for start, end, name in rows:
            builder.range(start, end, name, thread=number)
        for time in range(40):
            around = [name for start, end, name in rows if start <= time < end]
            staged = [name for name in around if name in STAGES]
            if staged:  # the draws are in the order in which they nest
                here[time].add("ME" if "ME" in staged else staged[-1])
    for start, end, name in chain.from_iterable(apart):
        builder.start_end(start, end, name)
        for time in range(start, end):
            here[time] |= {name} & set(STAGES)
    table = breakdown(builder.attributed()).rows
    for stage in STAGES:
        found = table.filter(pl.col("stage") == stage)
        above = set(STAGES[: STAGES.index(stage)])
        assert found["busy_ns"].sum() == sum(stage in each for each in here)
        assert found["exposed_ns"].sum() == sum(stage in e and not e & above for e in here)
