"""Phases of serving engines: what names of steps say, and what a breakdown by them holds."""

from __future__ import annotations

import random

import polars as pl
import pytest
from compared_traces import compare
from effort import examples
from link_helpers import machine
from trace_builder import TraceBuilder

from tracekit.analysis.breakdowns import breakdown
from tracekit.analysis.comparison import Recorded, compare_recordings
from tracekit.analysis.facts import with_phases
from tracekit.analysis.idle_time import idle
from tracekit.analysis.traffic import Traffic
from tracekit.errors import MissingDataError, UsageError
from tracekit.machine import Placed

LONG = "execute_8192_context_9(sq8155sk8430sqsq20sqsk40)_generation_37(sq37sk34489sqsq37sqsk34489)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_context_1(888)_generation_0(0)", ("prefill", 1, 888)),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, 888)),
        ("execute_context_0(0)_generation_64(64)", ("decode", 64, 64)),
        ("execute_context_1(888)_generation_64(64)", ("mixed", 65, 952)),
        (LONG, ("mixed", 46, 8192)),
        ("execute_new_2_cached_0", ("prefill", 2, None)),
        ("execute_new_2_cached_30", (None, None, None)),
        ("execute_new_0_cached_3", (None, None, None)),
        ("step[EXTEND bs=15 toks=15360]", ("prefill", 15, 15360)),
        ("step[DECODE bs=32]", ("decode", 32, None)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=3]", ("mixed", 2, None)),
        ("step[IDLE]", (None, None, None)),
        ("step[DRAFT_EXTEND bs=3]", (None, None, None)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", ("prefill", 2, 14721)),
        ("decode[bs=117/128 tok=117 d=117]", ("decode", 117, 117)),
        ("my execute_context_1(8)_generation_0(0)", (None, None, None)),
        ("ProfilerStep#7", (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_what_names_say(name: str | None, said: tuple[str | None, int | None, int | None]) -> None:
    rows = with_phases(pl.DataFrame({"name": [name]}, schema={"name": pl.String}))
    assert rows.select("phase", "requests", "tokens").row(0) == said


def served(*names: str) -> TraceBuilder:
    """Steps of 100 ns by the host, in which a kernel runs for 10, 20, 30 ns and so on."""
    b = TraceBuilder()
    for number, name in enumerate(names):
        at = 100 * number
        b.iteration(number, at, at + 100, name=name)
        b.op("gemm", at=at, start=at, end=at + 10 * (number + 1), iteration=number, stage="FP")
    return b


STEPS = (
    "execute_context_2(50)_generation_0(0)",
    "execute_context_0(0)_generation_4(4)",
    "execute_context_0(0)_generation_4(4)",
)


def test_a_breakdown_by_phase() -> None:
    rows = breakdown(served(*STEPS).trace(), "phase").rows
    found = rows.sort("phase").select(
        "phase", "ops", "busy_ns", "window_ns", "steps", "requests", "tokens", "step_ns", "token_ns"
    )
    # The last step ends with its last op.
    assert found.rows() == [
        ("decode", 2, 50, 130, 2, 8, 8, 65.0, 130 / 8),
        ("prefill", 1, 10, 100, 1, 2, 50, 100.0, 2.0),
    ]
    assert (rows["idle_ns"] + rows["between_steps_ns"] + rows["busy_ns"]).to_list() == rows[
        "window_ns"
    ].to_list()


def test_by_phase_and_stage_rows_add_up_to_the_phase() -> None:
    rows = breakdown(served(*STEPS).trace(), "phase,stage").rows
    sums = rows.group_by("phase").agg(pl.col("exposed_ns").sum()).sort("phase")
    assert sums.rows() == [("decode", 130), ("prefill", 100)]


def test_tokens_that_a_step_does_not_say_are_unknown() -> None:
    rows = breakdown(served("step[DECODE bs=2]", "step[IDLE]").trace(), "phase").rows
    by_phase = {row["phase"]: row for row in rows.to_dicts()}
    assert (by_phase["decode"]["requests"], by_phase["decode"]["tokens"]) == (2, None)
    assert by_phase["decode"]["token_ns"] is None
    assert (by_phase[None]["steps"], by_phase[None]["ops"]) == (None, 1)


def test_what_serves_nothing_has_no_phases() -> None:
    with pytest.raises(MissingDataError, match="prefill or decode"):
        breakdown(served("step 1").trace(), "phase")
    with pytest.raises(UsageError, match="its iterations"):
        breakdown(served(*STEPS).trace(), "phase", per_iteration=True)


def test_idle_time_by_phase() -> None:
    trace = served(*STEPS).trace()
    rows = idle(trace, "phase").rows.sort("phase")
    # By hand: steps of 100, 100 and 30 ns (the last ends with its op), busy for 10, 20 and 30.
    assert rows.select("phase", "idle_ns", "step_ns").rows() == [
        ("decode", 80, 40.0),
        ("prefill", 90, 90.0),
    ]
    by_cause = idle(trace, "phase,cause").rows
    sums = by_cause.group_by("phase").agg(pl.col("idle_ns").sum()).sort("phase")
    assert sums.rows() == [("decode", 80), ("prefill", 90)]
    assert idle(trace, "phase").meta["idle_ns"] == idle(trace).meta["idle_ns"]


@pytest.mark.parametrize("seed", range(examples(5)))
def test_idle_time_by_phase_is_that_of_its_steps(seed: int) -> None:
    names = random.Random(seed).choices([*STEPS[:2], "step[IDLE]"], k=9)
    trace = served(*names).trace()
    by_step = dict(idle(trace, "iteration").rows.select("iteration", "idle_ns").rows())
    told = {number: with_phases(pl.DataFrame({"name": [name]}))["phase"][0]
            for number, name in enumerate(names)}  # fmt: skip
    expected: dict[str | None, int] = {}
    for number, length in by_step.items():
        phase = told.get(number)
        expected[phase] = expected.get(phase, 0) + length
    found = dict(idle(trace, "phase").rows.select("phase", "idle_ns").rows())
    assert found == {phase: length for phase, length in expected.items() if length}


def moved(*names: str) -> TraceBuilder:
    """The same steps; in each a copy of 1000 bytes to the GPU, in two of them."""
    b = served(*names)
    for number in range(len(names)):
        at = 100 * number + 60
        b.op("copy", at=at, start=at, end=at + 10, iteration=number, kind="h2d",
             bytes=1000 * (number + 1), copy_kind="h2d")  # fmt: skip
    return b


def compared(*lengths: tuple[str, int]) -> TraceBuilder:
    """Steps of a server one after another, each busy to its end."""
    b = TraceBuilder()
    at = 0
    for number, (name, length) in enumerate(lengths):
        b.iteration(number, at, at + length, name=name)
        b.op("gemm", at=at, start=at, end=at + length, iteration=number, stage="FP")
        at += length
    return b


PREFILL, DECODE = STEPS[:2]


def test_phases_are_compared_with_their_own_steps() -> None:
    # A step of decode takes 100 and 150 ns; prefill 1000 in both, but is rarer in B.
    a = compared(*[(PREFILL, 1000), (DECODE, 100), (DECODE, 101), (DECODE, 99)] * 6)
    b = compared(*[(PREFILL, 1000), *[(DECODE, 150), (DECODE, 151), (DECODE, 149)] * 2] * 6)
    found = compare(a.trace(), b.trace(), "phase", skip=0)
    columns = ["phase", "a_ns", "b_ns", "delta_ns", "verdict", "a_steps", "b_steps", "only_in"]
    assert found.rows.select(columns).rows() == [
        ("prefill", 1000.0, 1000.0, 0.0, "too small to matter", 6, 6, None),
        ("decode", 100.0, 150.0, 50.0, "slower", 18, 36, None),
    ]
    assert found.rows.select("a_tokens", "b_tokens").rows() == [(50.0, 50.0), (4.0, 4.0)]
    assert "Bonferroni" in found.meta["method"]
    assert "Benjamini" not in found.meta["method"]
    low, high = found.rows.filter(phase="decode").select("low_ns", "high_ns").row(0)
    assert 0 < low < 50 < high


def test_a_phase_of_one_run_is_named() -> None:
    a = compared(*[(DECODE, 100)] * 6)
    b = compared(*[(DECODE, 100)] * 6, (PREFILL, 500), ("step[IDLE]", 7))
    found = compare(a.trace(), b.trace(), "phase", skip=0).rows
    assert found.select("phase", "a_ns", "b_ns", "only_in", "b_steps").rows() == [
        ("prefill", None, 500.0, "B", 1),
        ("decode", 100.0, 100.0, None, 6),
        (None, None, 7.0, "B", 1),
    ]


def test_processes_in_several_phases_are_of_none() -> None:
    b = TraceBuilder()
    for number, names in enumerate([(PREFILL, PREFILL), (PREFILL, DECODE), (DECODE, DECODE)]):
        at = 100 * number
        for process, name in enumerate(names):
            b.iteration(number, at, at + 100, name=name, thread=10 * process)
            b.op("gemm", at=at, start=at, end=at + 100, iteration=number, stage="FP",
                 thread=10 * process, process=process, device=process)  # fmt: skip
    rows = compare(b.trace(), b.trace(), "phase", skip=0).rows
    assert rows.select("phase", "a_steps", "a_ns").rows() == [
        ("prefill", 1, 100.0), ("decode", 1, 100.0), (None, 1, 100.0)
    ]  # fmt: skip


def test_phases_are_compared_alone_and_of_two_runs() -> None:
    trace = compared(*[(DECODE, 100)] * 6).trace()
    with pytest.raises(UsageError, match="phase cannot be combined"):
        compare(trace, trace, "phase,stage")
    with pytest.raises(MissingDataError, match="prefill or decode"):
        compare(*[compared(*[("step", 100)] * 6).trace()] * 2, "phase", skip=0)
    sides = [Recorded(trace, name) for name in "ab"], [Recorded(trace, "c")]
    with pytest.raises(UsageError, match="two runs by phase"):
        compare_recordings(*sides, "phase", skip=0)


def test_links_by_phase() -> None:
    trace = moved(*STEPS).trace()
    traffic = Traffic(trace, Placed(machine(), {0: 0}, "number", ()))
    rows = traffic.links("method,phase").sort("phase")
    assert rows.select("phase", "method", "transfers", "bytes").rows() == [
        ("decode", "h2d", 2, 5000),
        ("prefill", "h2d", 1, 1000),
    ]
