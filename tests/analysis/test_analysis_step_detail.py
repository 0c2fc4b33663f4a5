from __future__ import annotations

import polars as pl
from trace_builder import TraceBuilder

from tracekit.analysis import step_detail


def _two_steps() -> TraceBuilder:
    """Two steps of 100 ns on one GPU: work, and a collective that is hidden for a part of it."""
    b = TraceBuilder()
    for number in (0, 1):
        begin = 100 * number
        b.iteration(number, begin, begin + 90)
        b.op("gemm", at=begin, start=begin + 10, end=begin + 60, stage="FP")
        b.op("nccl", at=begin + 1, start=begin + 40, end=begin + 80 + 5 * number,
             kind="collective", stage="WU", stream=8)  # fmt: skip
        b.op("copy", at=begin + 2, start=begin + 90, end=begin + 95, kind="p2p", stage="WU")
    return b


def test_steps_lie_where_the_definition_says() -> None:
    spans = step_detail.step_spans(_two_steps().trace())
    assert spans.select("device", "iteration", "start", "end").rows() == [
        (0, 0, 10, 110),
        (0, 1, 110, 195),
    ]
    lengths = step_detail.step_lengths(spans)
    assert lengths.rows() == [(0, 100.0), (1, 85.0)]


def test_a_run_without_steps_is_one_span() -> None:
    b = TraceBuilder()
    b.op("gemm", start=5, end=10)
    b.op("gemm", start=20, end=50)
    spans = step_detail.step_spans(b.trace())
    assert spans.select("iteration", "start", "end").rows() == [(None, 5, 50)]
    assert step_detail.step_lengths(spans).is_empty()


def test_communication_is_exposed_while_nothing_else_runs() -> None:
    trace = _two_steps().trace()
    found = step_detail.work_in_steps(trace, step_detail.step_spans(trace)).communication
    # By hand: the collective runs from 40 to 80 and 140 to 185, hidden until 60 and 160; the copies
    # run alone for 5 ns each.
    assert found.rows() == [(0, 0, 0, 100, 45, 25), (0, 0, 1, 85, 50, 30)]


def test_exposed_and_idle_and_work_make_up_the_step() -> None:
    trace = _two_steps().trace()
    found = step_detail.work_in_steps(trace, step_detail.step_spans(trace)).communication
    work, idle = pl.Series([50, 50]), pl.Series([25, 5])
    assert (found["exposed_ns"] + work + idle).to_list() == found["step_ns"].to_list()


def test_median_and_slowest_are_the_first_of_equals() -> None:
    lengths = pl.DataFrame({"iteration": [3, 4, 5, 6], "step_ns": [20.0, 30.0, 20.0, 30.0]})
    assert step_detail.median_step(lengths) in {3, 4}
    assert step_detail.slowest_step(lengths) == 4
    assert step_detail.median_step(lengths.clear()) is None
    assert step_detail.slowest_step(lengths.clear()) is None


def test_what_is_inside() -> None:
    b = _two_steps()
    b.range(0, 90, "step 0")
    b.range(10, 50, "forward")
    b.range(120, 130, "later")
    trace = b.trace()
    first = step_detail.step_spans(trace).filter(iteration=0)
    inside = step_detail.ops_inside(trace, first)
    assert inside["name"].cast(pl.String).to_list() == ["gemm", "nccl", "copy"]
    whole = first.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    assert step_detail.ranges_inside(trace, whole)["name"].to_list() == ["step 0", "forward"]
