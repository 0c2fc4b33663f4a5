"""Bubbles of pipelines: schedules worked by hand, theory, and a second implementation."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

import tracekit
from tracekit.analysis.studies import Bubbles, bubble_theory, bubbles_of_run, pipeline_bubbles
from tracekit.analysis.studies._bubbles import _without
from tracekit.analysis.studies._stalls import bubbles_answer
from tracekit.errors import MissingDataError, UsageError

FORWARD, BACKWARD = 100, 200


def gpipe(stages: int, micro_batches: int, steps: int = 1) -> TraceBuilder:
    """A pipeline that runs all forward passes, then all backward passes; a device for each stage.

    A backward pass takes twice as long as a forward pass.
    """
    b = TraceBuilder()
    turns = micro_batches + stages - 1
    for step in range(steps):
        begin = step * 10_000
        for stage in range(stages):
            thread = 10 * stage
            b.iteration(step, begin, begin + 9_000, thread=thread)
            for each in range(micro_batches):
                forward = begin + (stage + each) * FORWARD
                after = (stages - 1 - stage + each) * BACKWARD
                backward = begin + turns * FORWARD + after
                b.range(forward, forward + 1, f"FP micro-batch {each}", thread=thread, stage="FP")
                for name, at, long in (("FP", forward, FORWARD), ("BP", backward, BACKWARD)):
                    b.op(
                        name, at, thread=thread, device=stage, start=at, end=at + long,
                        stage=name, iteration=step,
                    )  # fmt: skip
    return b


def test_gpipe_of_four_stages_and_eight_micro_batches() -> None:
    found = pipeline_bubbles(gpipe(4, 8).trace())
    assert found.steps["window_ns"].to_list() == [33 * FORWARD]
    assert found.stages["busy_ns"].to_list() == [24 * FORWARD] * 4
    assert 100 * found.share == pytest.approx(27.27, abs=0.005)
    assert 100 * found.of_ideal == pytest.approx(37.5)
    assert (found.basis, found.micro_batches) == ("gpu", 8)


def test_without_micro_batches_one_stage_works_at_a_time() -> None:
    found = pipeline_bubbles(gpipe(4, 1).trace())
    assert found.steps["window_ns"].to_list() == [12 * FORWARD]
    assert 100 * found.share == pytest.approx(75)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (3, 5), (4, 8), (8, 2)])
def test_equal_stages_lose_what_theory_says(stages: int, micro_batches: int) -> None:
    found = pipeline_bubbles(gpipe(stages, micro_batches, steps=2).trace())
    theory = bubble_theory(stages, micro_batches, "gpipe")
    assert found.share == pytest.approx(theory["theory_share"])
    assert found.of_ideal == pytest.approx(theory["theory_ideal_share"])


def test_a_time_line_is_that_of_the_median_step() -> None:
    """2 stages, 2 micro-batches: passes that follow each other without a gap are one piece."""
    found = pipeline_bubbles(gpipe(2, 2, steps=2).trace())
    assert found.timeline.rows() == [
        (0, "FP", 0, 200), (0, "BP", 500, 900), (1, "FP", 100, 300), (1, "BP", 300, 700),
    ]  # fmt: skip
    assert pipeline_bubbles(on_host().trace()).timeline["part"].null_count() > 0


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, False),
        ({"kind": "p2p", "stage": "FP"}, True),
        ({"kind": "p2p", "stage": "WU"}, False),
        ({"kind": "collective", "stage": "BP", "name": "ncclDevKernel_SendRecv"}, True),
        ({"kind": "collective", "stage": "FP", "name": "ncclDevKernel_AllGather"}, False),
    ],
)
def test_what_shows_that_it_is_a_pipeline(row: dict[str, str], told: bool, b: TraceBuilder) -> None:
    for device in (0, 1):
        b.iteration(0, 0, 900, thread=10 * device)
        b.op("FP", 1, thread=10 * device, device=device, start=1, end=100, stage="FP", iteration=0)
    b.op(row.pop("name", "op"), 200, start=200, end=300, iteration=0, **row)
    assert pipeline_bubbles(b.trace()).is_told is told


@pytest.mark.parametrize(("collective", "told"), [("all_to_all", False), ("send_recv", True)])
def test_an_all_to_all_in_a_pass_hands_nothing_on(
    collective: str, told: bool, b: TraceBuilder
) -> None:
    """NCCL runs both with one kernel."""
    for device in (0, 1):
        b.iteration(0, 0, 900, thread=10 * device)
        b.op("FP", 1, thread=10 * device, device=device, start=1, end=100, stage="FP", iteration=0)
    b.op("ncclDevKernel_SendRecv", 200, start=202, end=300, iteration=0, stage="FP",
         kind="collective", collective=collective)  # fmt: skip
    assert pipeline_bubbles(b.trace()).is_told is told


@pytest.mark.parametrize(("ranks", "told"), [(2, True), (3, False)])
def test_sends_of_more_than_two_at_once_hand_nothing_on(
    ranks: int, told: bool, b: TraceBuilder
) -> None:
    """Experts are on all GPUs: each sends to all others, in a kernel that names no collective."""
    for device in range(ranks):
        place: dict[str, Any] = {"thread": 10 * device, "device": device, "iteration": 0}
        b.iteration(0, 0, 3_000, thread=10 * device)
        for n in range(10):
            b.op("gemm", 300 * n, start=300 * n, end=300 * n + 90, stage="FP", **place)
            b.op("ncclDevKernel_SendRecv", 300 * n, start=300 * n + 100 + 30 * device,
                 end=300 * n + 290, kind="collective", stage="FP", collective="send_recv",
                 **place)  # fmt: skip
    assert pipeline_bubbles(b.trace()).is_told is told
    run: Any = SimpleNamespace(trace=b.trace(), labels={}, name="alike")
    options: dict[str, Any] = {"micro_batches": None, "waiting": None, "per_step": False, "skip": 0}
    if told:  # by sends alone, as between two parts of a sequence
        (warning,) = bubbles_answer([run], schedule=None, **options).warnings
        assert warning.startswith("alike: all GPUs run the same kernels")


def test_theory() -> None:
    assert bubble_theory(4, 8) == {
        "theory_share": pytest.approx(3 / 11), "theory_ideal_share": pytest.approx(0.375)
    }  # fmt: skip
    assert bubble_theory(4, 8, "1F1B") == bubble_theory(4, 8, "gpipe")
    unknown = {"theory_share": None, "theory_ideal_share": None}
    assert bubble_theory(4, 8, "interleaved") == unknown
    assert bubble_theory(4, None) == unknown
    with pytest.raises(UsageError, match="a pipeline needs stages"):
        bubble_theory(0, 1)


def test_a_bubble_is_a_dependency_while_a_neighbour_works() -> None:
    """With one micro-batch the stage next to one that waits works twice as long as it does."""
    found = pipeline_bubbles(gpipe(3, 1).trace())
    assert found.stages["bubble_ns"].to_list() == [600, 600, 600]
    # Stage 0 has a neighbour on one side, which works for 300; stage 1 has two of them.
    assert found.stages["dependency_ns"].to_list() == [300, 600, 300]


def test_communication_counts_where_nothing_is_computed() -> None:
    b = gpipe(2, 1)
    b.op("ncclDevKernel_SendRecv", 100, thread=10, device=1, start=50, end=150, iteration=0,
         kind="collective")  # fmt: skip
    found = pipeline_bubbles(b.trace())
    assert found.stages["communication_ns"].to_list() == [0, 50]
    assert found.stages["busy_ns"].to_list() == [300, 300]


def on_host() -> TraceBuilder:
    """Two processes: 0 works 0-40 and 70-100, 1 waits 0-45 in its forward pass, works 45-65."""
    b = TraceBuilder()
    for process in (0, 1):
        b.iteration(0, 0, 110, thread=10 * process)
    b.range(0, 40, "FP micro-batch 0", stage="FP")
    b.range(50, 100, "BP micro-batch 0", stage="BP")
    b.range(50, 70, "receive activation gradient")
    b.range(0, 60, "FP micro-batch 0", thread=10, stage="FP")
    b.range(0, 45, "receive activation", thread=10)
    b.range(60, 70, "BP micro-batch 0", thread=10, stage="BP")
    b.range(65, 70, "send activation gradient", thread=10)
    b.range(105, 108, "FP of no one", thread=10, stage="ME")
    return b


def test_time_in_spans_and_in_no_others() -> None:
    """Spans that begin, end or meet at one time, of two processes."""

    def frame(*rows: tuple[int, int, int]) -> pl.DataFrame:
        return pl.DataFrame(rows, {"process": pl.Int32, "start": pl.Int64, "end": pl.Int64},
                            orient="row")  # fmt: skip

    spans = frame((0, 0, 10), (0, 0, 20), (0, 20, 30), (1, 5, 9))
    others = frame((0, 5, 8), (0, 8, 9), (2, 0, 9))
    assert [row for row in _without(spans, others).rows() if row[2] > row[1]] == [
        (0, 0, 5), (0, 9, 10), (0, 10, 20), (0, 20, 30), (1, 5, 9)
    ]  # fmt: skip


def test_without_gpu_work_ranges_tell() -> None:
    found = pipeline_bubbles(on_host().trace())
    assert found.basis == "host"
    assert found.stages["busy_ns"].to_list() == [70, 20]
    assert found.stages["window_ns"].to_list() == [100, 100]
    assert found.stages["dependency_ns"].to_list() == [20, 70]
    assert found.stages["communication_ns"].to_list() == [20, 50]
    assert found.stages["bubble_share"].to_list() == [0.3, 0.8]
    row = bubbles_of_run(found, "gpipe")
    assert (row["stages"], row["micro_batches"], row["bubble_share"]) == (2, 1, 0.55)
    with pytest.raises(UsageError, match="cannot read the pattern"):
        pipeline_bubbles(on_host().trace(), waiting="(")


def test_the_first_steps_can_be_left_out() -> None:
    assert pipeline_bubbles(gpipe(2, 2, steps=3).trace(), skip=1).steps["iteration"].to_list() == [
        1, 2
    ]  # fmt: skip


def test_a_cold_step_does_not_count() -> None:
    """GPUs work through the first of six steps, twenty times as long as in the others."""
    b = gpipe(2, 2, steps=6)
    for each in b.rows["iterations"]:
        each["whole"] = True
    for op in b.rows["ops"][:2]:
        op["start"] = op["end"] - 9_000
    run: Any = SimpleNamespace(trace=b.trace(), name="a", labels={})
    asked: dict[str, Any] = {
        "micro_batches": None, "schedule": "gpipe", "waiting": None, "per_step": True,
    }  # fmt: skip
    found = bubbles_answer([run], skip="auto", **asked)
    assert found.rows["iteration"].to_list() == [1, 2, 3, 4, 5]
    assert found.meta["notes"] == ["left out at the beginning: 1 of a; --skip 0 keeps all"]
    assert bubbles_answer([run], skip=0, **asked).rows["iteration"].to_list() == [*range(6)]


def test_what_is_no_pipeline() -> None:
    with pytest.raises(
        UsageError, match="one GPU or process alone has forward and backward work in steps"
    ):
        pipeline_bubbles(gpipe(1, 4).trace())
    b = TraceBuilder()
    b.op("gemm", 1)
    with pytest.raises(MissingDataError, match="no steps"):
        pipeline_bubbles(b.trace())


SPAN = st.tuples(st.integers(0, 80), st.integers(1, 20))


@settings(deadline=None, max_examples=examples(30, thorough=600))
@given(st.lists(st.lists(SPAN, min_size=1, max_size=5), min_size=2, max_size=4))
def test_times_are_those_of_a_count_by_the_nanosecond(stages: list[list[tuple[int, int]]]) -> None:
    b = TraceBuilder()
    for stage, spans in enumerate(stages):
        b.iteration(0, 0, 200, thread=10 * stage)
        for start, length in spans:
            b.op("k", start, thread=10 * stage, device=stage, start=start, end=start + length,
                 stage="FP", iteration=0)  # fmt: skip
    found: Bubbles = pipeline_bubbles(b.trace())
    busy = [{t for start, n in spans for t in range(start, start + n)} for spans in stages]
    every = set().union(*busy)
    window = max(every) + 1 - min(every)
    for stage, own in enumerate(busy):
        row = found.stages.row(stage, named=True)
        near = set().union(*busy[max(stage - 1, 0) : stage + 2])
        assert (row["window_ns"], row["busy_ns"]) == (window, len(own))
        assert (row["bubble_ns"], row["dependency_ns"]) == (window - len(own), len(near - own))


RECORDED = Path(__file__).parents[2] / "sample_traces" / "recorded" / "pipeline_1f1b.sqlite"


def test_a_recorded_pipeline_as_plain_loops_over_its_file_say(tmp_path: Path) -> None:
    """Busy time of a stage: passes less what of them is sending and receiving, range by range."""
    with sqlite3.connect(f"file:{RECORDED}?mode=ro", uri=True) as file:
        rows = file.execute(
            "SELECT coalesce(text, s.value), start, end, globalTid >> 24 FROM NVTX_EVENTS"
            " LEFT JOIN StringIds s ON textId = s.id WHERE end IS NOT NULL"
        ).fetchall()
    steps: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for name, start, end, process in rows:
        if found := re.fullmatch(r"iteration (\d+)", name or ""):
            steps[int(found[1])][process] = [start, end]
    busy = window = 0
    for step in steps.values():
        edges = []
        for process, (begin, until) in step.items():
            passes, talks = (
                [(s, e) for name, s, e, p in rows
                 if p == process and begin <= s < until and re.match(pattern, name or "")]
                for pattern in (r"(FP|BP) micro-batch", r"(send|receive) ")
            )  # fmt: skip
            # Sends and receives lie within passes, and neither overlaps its like.
            assert all(any(s <= a and b <= e for s, e in passes) for a, b in talks)
            busy += sum(e - s for s, e in passes) - sum(e - s for s, e in talks)
            edges += [min(s for s, _ in passes), max(e for _, e in passes)]
        window += max(edges) - min(edges)
    found_bubbles = pipeline_bubbles(tracekit.ingest(RECORDED, store=tmp_path)[0].trace)
    assert len(steps) == 10
    assert found_bubbles.stages["window_ns"].to_list() == [window] * 2
    assert found_bubbles.stages["busy_ns"].sum() == busy
