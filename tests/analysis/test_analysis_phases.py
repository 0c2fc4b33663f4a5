"""Phases of serving engines: what names of steps say, and what a breakdown by them holds."""

from __future__ import annotations

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.breakdowns import breakdown
from tracekit.analysis.facts import with_phases
from tracekit.errors import MissingDataError, UsageError

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
    assert (rows["idle_ns"] + rows["between_ns"] + rows["busy_ns"]).to_list() == rows[
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
