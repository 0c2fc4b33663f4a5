"""Op to launching call, and what is said when that does not come out even."""

from __future__ import annotations

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.attribution import Rules, attribute
from tracekit.model import Trace

COLUMNS = ("name", "call", "launch_thread", "launch_start", "launch_end")


def _launches(trace: Trace) -> list[tuple[object, ...]]:
    return trace.read("ops").select(COLUMNS).rows()


def test_a_correlation_id_counts_in_its_own_process() -> None:
    builder = TraceBuilder()
    for thread, at in ((0, 10), (10, 20), (11, 30)):
        builder.call(at, at + 3, thread=thread, correlation=7 if thread < 11 else 8)
    builder.op("of 1", start=25, process=1, correlation=7)
    builder.op("of 0", start=26, process=0, correlation=7)
    builder.op("another of 1", start=40, process=1, correlation=8)
    builder.op("of nobody", start=41, process=0, correlation=8)
    trace = builder.attributed()
    assert _launches(trace) == [
        ("of 1", 1, 10, 20, 23),
        ("of 0", 0, 0, 10, 13),
        ("another of 1", 2, 11, 30, 33),
        ("of nobody", None, None, None, None),
    ]
    assert trace.warnings == (
        "1 of 4 ops have no launching call: no range is known of these",
    )  # fmt: skip


@pytest.mark.parametrize("calls", [0, 1])
def test_work_of_a_process_without_calls(calls: int) -> None:
    """nvprof records none with --profile-api-trace none."""
    builder = TraceBuilder()
    for _ in range(calls):
        builder.call(0, 5, correlation=3)
    for process in range(3):
        builder.op(f"of {process}", start=10 + process, process=process, correlation=3)
    found = [call for _, call, *_ in _launches(builder.attributed())]
    assert found == ([0] if calls else [None]) + [None, None]


def test_one_call_may_launch_several_ops() -> None:
    builder = TraceBuilder()
    builder.call(0, 5, correlation=3)
    builder.op("first node", start=10, correlation=3)
    builder.op("second node", start=20, correlation=3)
    trace = builder.attributed()
    assert _launches(trace) == [("first node", 0, 0, 0, 5), ("second node", 0, 0, 0, 5)]
    assert trace.warnings == ()


def test_a_repeated_key_warns_and_makes_no_second_op() -> None:
    builder = TraceBuilder()
    builder.call(4, 6, correlation=3)
    builder.call(0, 2, correlation=3)
    builder.call(7, 8, correlation=3)
    builder.op("gemm", start=10, correlation=3)
    trace = builder.attributed()
    assert _launches(trace) == [("gemm", 0, 0, 0, 2)]
    assert trace.warnings == ("2 CUDA calls repeat the correlation id of another one",)


def test_a_launch_after_its_op_warns() -> None:
    builder = TraceBuilder()
    builder.op("early", 10, start=9)
    builder.op("just so", 20, start=20)
    trace = builder.attributed()
    [warning] = trace.warnings
    assert warning == (
        "1 ops start before the call that launched them, by a median of 0.001 us (5 to 95 %: 0.001 "
        "to 0.001 us): the clock of the GPU is at least so much early"
    )


def test_calls_and_ops_without_id() -> None:
    builder = TraceBuilder()
    builder.call(0, 2, correlation=None)
    builder.call(3, 4, correlation=None)
    builder.op("gemm", start=10, correlation=None)
    trace = builder.attributed()
    assert _launches(trace) == [("gemm", None, None, None, None)]
    assert trace.warnings == ("1 of 1 ops have no launching call: no range is known of these",)


def test_an_op_without_call_finds_no_range() -> None:
    builder = TraceBuilder()
    builder.range(-100, 100, "forward")
    builder.start_end(-100, 100, "backward")
    builder.op("gemm", start=10)
    ops = builder.attributed().read("ops")
    assert ops.select("range", "stage", "stage_source", "iteration").rows() == [
        (None, "OTHER", "none", None)
    ]


def _everything() -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(3):
        begin = 100 * number
        builder.range(begin, begin + 90, f"step {number}")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 30, begin + 60, "backward")
        builder.range(begin + 60, begin + 80, "optimizer")
        builder.op(f"f{number}", begin + 15)
        builder.op(f"b{number}", begin + 35, thread=1)
        builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 50, thread=1)
        builder.op(f"w{number}", begin + 65)
    builder.thread(1, "pt_autograd_0")
    return builder


def test_attributing_again_changes_nothing() -> None:
    rules = Rules.load()
    once = attribute(_everything().trace(), rules)
    twice = attribute(once, rules)
    assert twice.warnings == once.warnings
    for name in once.tables:
        assert twice.read(name).equals(once.read(name)), name


def test_attributing_again_by_other_rules_forgets_the_first() -> None:
    empty = Rules(dict.fromkeys(Rules.load().lists, ()))
    raw = _everything().trace()
    again = attribute(attribute(raw, Rules.load()), empty)
    fresh = attribute(raw, empty)
    for name in fresh.tables:
        assert again.read(name).equals(fresh.read(name)), name
    assert set(fresh.read("ops")["stage"]) == {"OTHER"}
    assert set(fresh.read("ops")["kind"]) == {"compute"}
    assert fresh.read("iterations").is_empty()


@pytest.mark.parametrize("absent", ["ranges", "calls", "ops", "threads"])
def test_a_trace_that_lacks_a_table(absent: str) -> None:
    raw = _everything().trace()
    trace = raw.with_tables({absent: raw.read(absent).clear()})
    attributed = attribute(trace, Rules.load())
    ops = attributed.read("ops")
    assert ops.height == (0 if absent == "ops" else 12)
    if absent in {"ranges", "calls"}:
        assert ops.filter(pl.col("stage") == "WU").height == 3
        assert ops["range"].null_count() == 12


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    attribute(_everything().trace(), Rules.load(), lambda *step: told.append(step))
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}
