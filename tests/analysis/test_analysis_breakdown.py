"""Breakdowns of literal traces, with every number worked out by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.facts import KEYS, parse_keys, share_meaning, work_of
from tracekit.analysis.step_sums import _key_sums
from tracekit.engine._range_paths import OUTSIDE
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Stretch, Trace

US = 1000


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col("share").round(12))


def _op(builder: TraceBuilder, stage: str, start: int, end: int, **row: Any) -> None:
    """Add an op of a stage that was launched as it started."""
    name = str(row.pop("name", f"{stage.lower()} kernel"))
    source = row.pop("stage_source", "none" if stage == "OTHER" else "nvtx")
    builder.op(
        name, row.pop("at", start), start=start, end=end, stage=stage, stage_source=source, **row
    )


@pytest.fixture(scope="module")
def training() -> Trace:
    """One GPU, 100 us: peer copies of the weight update begin while backward still runs."""
    builder = TraceBuilder()
    copy = {"kind": "p2p", "stage_source": "gradient_exchange", "stream": 14}
    _op(builder, "IO", 0, 10 * US, name="HtoD", kind="h2d", stage_source="copy_kind")
    _op(builder, "FP", 10 * US, 30 * US)
    _op(builder, "BP", 30 * US, 60 * US)
    _op(builder, "WU", 50 * US, 70 * US, name="PtoP", **copy)
    _op(builder, "WU", 70 * US, 75 * US, name="sum")
    _op(builder, "WU", 75 * US, 80 * US, name="sgd")
    _op(builder, "WU", 80 * US, 95 * US, name="PtoP", **copy)
    _op(builder, "ME", 95 * US, 98 * US)
    _op(builder, "OTHER", 100 * US, 100 * US, name="end of the window", kind="memset")
    return builder.trace()


def test_stages_of_a_training_step(training: Trace) -> None:
    table = _rounded(breakdown(training).rows)
    assert table.columns == ["stage", "ops", "busy_ns", "exposed_ns", "overlap_ns", "share"]
    assert table.rows() == [
        ("FP", 1, 20 * US, 20 * US, 0, 0.2),
        ("BP", 1, 30 * US, 30 * US, 0, 0.3),
        ("WU", 4, 45 * US, 35 * US, 10 * US, 0.35),
        ("IO", 1, 10 * US, 10 * US, 0, 0.1),
        ("ME", 1, 3 * US, 3 * US, 0, 0.03),
        ("OTHER", 1, 0, 0, 0, 0.0),
    ]


def test_what_a_training_step_is_measured_against(training: Trace) -> None:
    assert breakdown(training).meta == {
        "window_ns": 100 * US,
        "idle_ns": 2 * US,
        "wu_residual_ns": 50 * US,
        "wu_residual_other_ns": (10 + 3 + 2) * US,
        "devices": 1,
        "iterations": 0,
        "skip": 0,
        "launched": 1.0,
        "coverage": {
            "gradient_exchange": pytest.approx(35 / 98),
            "nvtx": pytest.approx(63 / 98),
            "copy_kind": pytest.approx(10 / 98),
            "none": 0.0,
        },
        "sum_over": "1 GPU",
        "share": "exposed_ns / window_ns",
    }


def test_kinds(training: Trace) -> None:
    table = _rounded(breakdown(training, "kind").rows)
    assert table.columns == ["kind", "ops", "total_ns", "busy_ns", "share"]
    assert table.rows() == [
        ("compute", 5, 63 * US, 63 * US, 0.63),
        ("p2p", 2, 35 * US, 35 * US, 0.35),
        ("h2d", 1, 10 * US, 10 * US, 0.1),
        ("memset", 1, 0, 0, 0.0),
    ]


def test_stages_that_overlap_count_once_for_the_one_of_higher_rank(builder: TraceBuilder) -> None:
    for stage, start, end in (
        ("OTHER", 0, 100), ("ME", 5, 50), ("IO", 10, 60), ("WU", 20, 40), ("BP", 30, 45),
        ("FP", 35, 38),
    ):  # fmt: skip
        _op(builder, stage, start, end)
    table = breakdown(builder.trace()).rows.select("stage", "busy_ns", "exposed_ns", "overlap_ns")
    assert table.rows() == [
        ("FP", 3, 3, 0),
        ("BP", 15, 12, 3),
        ("WU", 20, 10, 10),
        ("IO", 50, 25, 25),
        ("ME", 45, 5, 40),
        ("OTHER", 100, 45, 55),
    ]


def test_stages_on_different_devices_do_not_overlap(builder: TraceBuilder) -> None:
    _op(builder, "FP", 0, 10, device=0)
    _op(builder, "WU", 0, 10, device=1)
    table = breakdown(builder.trace()).rows
    assert table.select("stage", "exposed_ns", "share").rows() == [("FP", 10, 0.5), ("WU", 10, 0.5)]


def _two_devices() -> Trace:
    builder = TraceBuilder()
    builder.range(0, 100, "forward", path="forward")
    builder.range(0, 50, "layer", path="forward > layer")
    for device, extra in ((0, 0), (1, 10)):
        row = {"device": device, "thread": 10 * device}
        _op(builder, "FP", 0, 40, name="gemm", range=1 - device, **row)
        _op(builder, "FP", 40, 60 + extra, name="relu", range=0, stream=8, **row)
        _op(builder, "WU", 50, 90, name="ncclAllReduce", kind="collective", stream=9, **row)
        _op(builder, "IO", 92, 100, name="HtoD", kind="h2d", **row)
    _op(builder, "FP", 60, 64, name="gemm", range=1)
    return builder.trace()


def test_by_device() -> None:
    table = breakdown(_two_devices(), "device").rows
    assert table.columns == [
        "device", "ops", "total_ns", "busy_ns", "window_ns", "idle_ns", "share",
    ]  # fmt: skip
    assert table.rows() == [(0, 5, 112, 98, 100, 2, 0.98), (1, 4, 118, 98, 100, 2, 0.98)]


def test_by_stage_and_device() -> None:
    expected = [
        (0, "FP", 3, 64, 64, 0, 0.64),
        (0, "WU", 1, 40, 26, 14, 0.26),
        (0, "IO", 1, 8, 8, 0, 0.08),
        (1, "FP", 2, 70, 70, 0, 0.7),
        (1, "WU", 1, 40, 20, 20, 0.2),
        (1, "IO", 1, 8, 8, 0, 0.08),
    ]
    table = breakdown(_two_devices(), ["device", "stage"]).rows
    assert table.columns[:2] == ["device", "stage"]
    assert table.rows() == expected
    other = breakdown(_two_devices(), "stage, device").rows
    assert other.columns[:2] == ["stage", "device"]
    assert other.select(table.columns).rows() == expected


def test_by_kernel() -> None:
    table = breakdown(_two_devices(), "kernel").rows
    assert table.columns == [
        "name", "kind", "ops", "total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "busy_ns",
        "share",
    ]  # fmt: skip
    assert table.rows() == [
        ("gemm", "compute", 3, 84, 28.0, 40.0, 4, 40, 84, 0.42),
        ("ncclAllReduce", "collective", 2, 80, 40.0, 40.0, 40, 40, 80, 0.4),
        ("relu", "compute", 2, 50, 25.0, 25.0, 20, 30, 50, 0.25),
        ("HtoD", "h2d", 2, 16, 8.0, 8.0, 8, 8, 16, 0.08),
    ]


def test_by_kernel_and_stage() -> None:
    table = breakdown(_two_devices(), "stage,kernel").rows
    assert "exposed_ns" not in table.columns
    assert table.select("stage", "name", "ops", "busy_ns").rows() == [
        ("FP", "gemm", 3, 84), ("FP", "relu", 2, 50), ("WU", "ncclAllReduce", 2, 80),
        ("IO", "HtoD", 2, 16),
    ]  # fmt: skip


def test_by_stream() -> None:
    table = breakdown(_two_devices(), "stream").rows
    assert table.columns == ["device", "pid", "stream", "ops", "total_ns", "busy_ns", "share"]
    assert table.rows() == [
        (0, 100, 7, 3, 52, 52, 0.26),
        (1, 101, 7, 2, 48, 48, 0.24),
        (0, 100, 9, 1, 40, 40, 0.2),
        (1, 101, 9, 1, 40, 40, 0.2),
        (1, 101, 8, 1, 30, 30, 0.15),
        (0, 100, 8, 1, 20, 20, 0.1),
    ]
    own = breakdown(_two_devices(), "device,stream").rows
    assert own.columns == table.columns
    assert own.rows()[0] == (0, 100, 7, 3, 52, 52, 0.52)


def test_by_range() -> None:
    table = breakdown(_two_devices(), "range").rows
    assert table.columns == ["range", "ops", "total_ns", "busy_ns", "share"]
    assert table.rows() == [
        (OUTSIDE[2], 4, 96, 96, 0.48),
        ("forward", 3, 90, 90, 0.45),
        ("forward > layer", 2, 44, 44, 0.22),
    ]


def test_by_stage_and_range_of_ops_outside_of_all_ranges() -> None:
    table = breakdown(_two_devices(), "stage,range").rows.select("stage", "range", "ops", "busy_ns")
    assert table.rows() == [
        ("FP", "forward", 3, 90), ("FP", "forward > layer", 2, 44), ("WU", OUTSIDE[2], 2, 80),
        ("IO", OUTSIDE[2], 2, 16),
    ]  # fmt: skip


def test_by_kind_and_device() -> None:
    table = breakdown(_two_devices(), "kind,device").rows.select("kind", "device", "ops", "busy_ns")
    assert table.rows() == [
        ("compute", 0, 3, 64), ("collective", 0, 1, 40), ("h2d", 0, 1, 8),
        ("compute", 1, 2, 70), ("collective", 1, 1, 40), ("h2d", 1, 1, 8),
    ]  # fmt: skip


# Iterations.


def _iterations() -> Trace:
    """Three steps on the host, and what they run on the GPU.

    The first one begins with its input. That of the second is copied while the first still
    computes; an op of the first runs into the second; after the third one something is left over.
    """
    builder = TraceBuilder()
    for number in range(3):
        builder.iteration(number, 100 * number, 100 * number + 90)
    io = {"name": "HtoD", "kind": "h2d"}
    _op(builder, "OTHER", 5, 9, at=-5, name="begin")
    _op(builder, "IO", 10, 15, at=1, **io)
    _op(builder, "FP", 20, 60, at=10)
    _op(builder, "WU", 60, 130, at=50, name="late", stream=9)
    _op(builder, "IO", 100, 110, at=101, **io)
    _op(builder, "FP", 120, 160, at=110)
    _op(builder, "WU", 160, 190, at=150)
    _op(builder, "FP", 220, 260, at=210)
    _op(builder, "OTHER", 270, 290, at=295, name="left over")
    return builder.trace()


def test_by_iteration() -> None:
    # Windows: begin [5, 10), step 0 [10, 120), 1 [120, 220), 2 [220, 260), left over [260, 290).
    table = breakdown(_iterations(), "iteration").rows
    assert table.columns == [
        "iteration", "iteration_name", "ops", "total_ns", "busy_ns", "window_ns", "idle_ns",
        "between_steps_ns", "share", "devices",
    ]  # fmt: skip
    # Between 190 and 220 nothing runs; the host is between its iterations from 190 to 200.
    assert table.rows() == [
        (0, "step 0", 4, 125, 105, 110, 5, 0, pytest.approx(105 / 110), 1),
        (1, "step 1", 2, 70, 70, 100, 20, 10, 0.7, 1),
        (2, "step 2", 1, 40, 40, 40, 0, 0, 1.0, 1),
        (None, None, 2, 24, 24, 35, 11, 0, pytest.approx(24 / 35), 1),
    ]


def test_ops_are_streamed_once_for_questions_about_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    streamed, stream = [], _key_sums.sum_up
    monkeypatch.setattr(_key_sums, "sum_up", lambda *a, **k: streamed.append(a) or stream(*a, **k))
    trace = _iterations()
    found = [
        _key_sums.sums_by_keys(work_of(trace, keys), keys, skip=skip)
        for keys in (("iteration",), ("device", "iteration"), ("stage", "iteration"))
        for skip in (0, 1)
    ]
    sums = [each.sums.groups["busy_ns"].sum() for each in found]
    assert sums == [239, 110] * 3
    assert len(streamed) == 4


def test_what_lies_outside_of_steps_has_a_name_for_people_alone() -> None:
    for by in ("iteration", "iteration,stage"):
        answer = breakdown(_iterations(), by)
        names = answer.rows["iteration_name"]
        assert names.null_count() > 0
        people = answer.readable_rows
        assert people["iteration_name"].to_list() == names.fill_null("(no step)").to_list()
        assert people["iteration"].equals(answer.rows["iteration"])


def test_by_iteration_and_stage() -> None:
    table = breakdown(_iterations(), "iteration,stage").rows
    assert table.columns == [
        "iteration", "iteration_name", "stage", "ops", "busy_ns", "exposed_ns", "overlap_ns",
        "share", "devices",
    ]  # fmt: skip
    assert table.drop("iteration_name", "devices").rows() == [
        (0, "FP", 1, 40, 40, 0, pytest.approx(40 / 110)),
        (0, "WU", 1, 60, 60, 0, pytest.approx(60 / 110)),
        (0, "IO", 2, 15, 5, 10, pytest.approx(5 / 110)),
        (0, "idle", None, None, 5, None, pytest.approx(5 / 110)),
        (1, "FP", 1, 40, 40, 0, 0.4),
        (1, "WU", 1, 40, 30, 10, 0.3),
        # Nothing runs from 190 to 220; the host is between its iterations from 190 to 200.
        (1, "idle", None, None, 20, None, 0.2),
        (1, "between_steps", None, None, 10, None, 0.1),
        (2, "FP", 1, 40, 40, 0, 1.0),
        (None, "OTHER", 2, 24, 24, 0, pytest.approx(24 / 35)),
        (None, "idle", None, None, 11, None, pytest.approx(11 / 35)),
    ]
    by_device = breakdown(_iterations(), "device,stage,iteration").rows
    assert by_device["exposed_ns"].to_list() == table["exposed_ns"].to_list()


def test_by_kernel_and_iteration_of_an_op_that_goes_on() -> None:
    table = breakdown(_iterations(), "kernel,iteration").rows.filter(pl.col("name") == "late")
    assert table.select("iteration", "ops", "total_ns", "mean_ns", "busy_ns").rows() == [
        (0, 1, 70, 70.0, 60),
        (1, 0, 0, None, 10),
    ]


def test_by_iteration_and_device() -> None:
    table = breakdown(_iterations(), "iteration,device").rows.select(
        "iteration", "device", "ops", "window_ns", "idle_ns"
    )
    assert table.rows() == [
        (0, 0, 4, 110, 5), (1, 0, 2, 100, 20), (2, 0, 1, 40, 0), (None, 0, 2, 35, 11),
    ]  # fmt: skip


def test_skip() -> None:
    # From the begin of step 1 at 120 to the end of step 2, with its last op, at 260.
    trace = _iterations()
    assert _rounded(breakdown(trace, skip=1).rows).rows() == [
        ("FP", 2, 80, 80, 0, pytest.approx(80 / 140)),
        ("WU", 1, 40, 30, 10, pytest.approx(30 / 140)),
    ]
    meta = breakdown(trace, skip=1).meta
    assert (meta["window_ns"], meta["idle_ns"], meta["wu_residual_ns"]) == (140, 30, None)
    assert (meta["iterations"], meta["skip"]) == (2, 1)
    assert breakdown(trace, "iteration", skip=2).rows.select("iteration", "ops").rows() == [(2, 1)]
    assert breakdown(trace, skip=0).rows["ops"].sum() == 9


def test_a_gpu_that_runs_nothing_in_a_stretch_is_idle_there(builder: TraceBuilder) -> None:
    for device, times in ((0, (0, 40, 90)), (1, (0, 90))):
        for start in times:
            _op(builder, "FP", start, start + 10, device=device)
    part = breakdown(builder.trace().limited_to(Stretch(between=(20, 60))), "device").rows
    assert part.select("device", "ops", "busy_ns", "window_ns", "idle_ns", "share").rows() == [
        (0, 1, 10, 40, 30, 0.25), (1, 0, 0, 40, 40, 0.0),
    ]  # fmt: skip


def test_skip_keeps_what_lies_between_the_steps_that_are_kept(builder: TraceBuilder) -> None:
    for number in range(3):
        builder.iteration(number, 100 * number, 100 * number + 50)
        _op(builder, "FP", 100 * number, 100 * number + 50)
        _op(builder, "ME", 100 * number + 60, 100 * number + 90)
    table = breakdown(builder.trace(), "iteration,stage", skip=1).rows
    assert table.select("iteration", "stage", "ops", "busy_ns", "exposed_ns").rows() == [
        (1, "FP", 1, 50, 50), (1, "ME", 1, 30, 30), (1, "between_steps", None, None, 20),
        (2, "FP", 1, 50, 50),
    ]  # fmt: skip


def test_skip_counts_from_each_process_own_first_iteration(builder: TraceBuilder) -> None:
    for thread, first in ((0, 7), (10, 3)):
        for number in range(3):
            builder.iteration(first + number, 100 * number, 100 * number + 100, thread=thread)
            row = {"thread": thread, "device": thread // 10}
            _op(builder, "FP", 100 * number + thread, 100 * number + 50, **row)
    table = breakdown(builder.trace(), "device,iteration", skip=2).rows
    assert table.select("device", "iteration", "ops", "window_ns").rows() == [
        (0, 9, 1, 50), (1, 5, 1, 40),
    ]  # fmt: skip


def test_a_step_that_never_ran_ahead_of_an_earlier_one(builder: TraceBuilder) -> None:
    # A launch of step 1 starts before those of step 0: step 0 ends as soon as it has begun.
    builder.iteration(0, 0, 10)
    builder.iteration(1, 10, 20)
    _op(builder, "FP", 30, 40, at=5, name="of 0")
    _op(builder, "FP", 20, 50, at=15, name="of 1", stream=8)
    _op(builder, "FP", 60, 70, at=16, name="of 1 too")
    trace = builder.trace()
    rows = (
        breakdown(trace, "iteration").rows.select("iteration", "ops", "busy_ns", "window_ns").rows()
    )
    assert rows == [(0, 1, 10, 10), (1, 2, 30, 40)]
    assert breakdown(trace, "iteration", skip=1).rows["iteration"].to_list() == [1]


def test_a_skipped_step_without_any_time_of_its_own_is_skipped(builder: TraceBuilder) -> None:
    # Step 1's window is empty, and begins where that of step 2 does.
    for number in range(3):
        builder.iteration(number, 10 * number, 10 * number + 10)
    _op(builder, "FP", 5, 15)
    _op(builder, "FP", 40, 50, at=15)
    _op(builder, "FP", 40, 60, at=25, stream=8)
    table = breakdown(builder.trace(), skip=2, per_iteration=True).rows
    assert table.select("ops", "busy_ns", "iterations", "median_ns").rows() == [(2, 20, 1, 20)]


def test_windows_that_begin_together_lose_nothing(builder: TraceBuilder) -> None:
    for number in range(40):
        builder.iteration(number, 10 * number, 10 * number + 10)
        at, early = 10 * number, 1000 - number
        _op(builder, "FP", early, early + 1, at=at, name="early", stream=number)
        _op(builder, "FP", 1000, 1100, at=at + 5, name="long", stream=number)
    table = breakdown(builder.trace(), "iteration").rows
    # Every step but the first would begin before the one ahead of it does.
    assert table.select("iteration", "ops", "busy_ns", "window_ns").rows() == [
        (0, 39, 39, 39), (39, 41, 100, 100),
    ]  # fmt: skip


def test_per_iteration_statistics() -> None:
    # Of the exposed times: FP 40, 40, 40; WU 60, 30, none; IO 5, none, none.
    table = breakdown(_iterations(), per_iteration=True).rows
    added = ["iterations", "p5_ns", "median_ns", "p95_ns", "devices"]
    assert table.columns[-5:] == added
    statistics = table.select("stage", "iterations", "p5_ns", "median_ns", "p95_ns").rows()
    assert statistics == [
        ("FP", 3, 40, 40, 40), ("WU", 3, 0, 30, 60), ("IO", 3, 0, 0, 5), ("OTHER", 3, 0, 0, 0),
    ]  # fmt: skip
    assert table.drop(added).equals(breakdown(_iterations()).rows)


def test_one_step_has_no_spread(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 10)
    _op(builder, "FP", 5, 15)
    answer = breakdown(builder.trace(), per_iteration=True)
    values = answer.rows.select("iterations", "p5_ns", "median_ns", "p95_ns").rows()
    assert values == [(1, None, 10, None)]
    assert answer.meta["percentiles_per"] == "step/GPU (one step, no spread)"


def test_percentiles_are_shown_per_gpu(builder: TraceBuilder) -> None:
    """Two GPUs are busy for 40 and 20 of each step: 60 in data, and 30 of the mean GPU."""
    for number in range(3):
        at = 100 * number
        builder.iteration(number, at, at + 90)
        for device, length in enumerate((40, 20)):
            builder.op("fw", device=device, at=at + 1, start=at + 5, end=at + 5 + length)
    trace = builder.trace()
    statistics = ("p5_ns", "median_ns", "p95_ns")
    answer = breakdown(trace, "kind", per_iteration=True)
    table, meta = answer.rows, answer.meta
    assert table.select(*statistics, "devices").rows() == [(60, 60, 60, 2)]
    assert (meta["sum_over"], meta["percentiles_per"]) == ("2 GPUs", "step/GPU")
    assert answer.readable_rows.select("busy_ns", *statistics).rows() == [(180, 30, 30, 30)]
    answer = breakdown(trace, "device", per_iteration=True)
    table, meta = answer.rows, answer.meta
    assert table.select("device", "median_ns", "devices").rows() == [(0, 40, 1), (1, 20, 1)]
    answer = breakdown(trace, "kernel", per_iteration=True)
    table, meta = answer.rows, answer.meta
    assert answer.readable_rows.select("median_ns", "iteration_median_ns").rows() == [(30, 30)]
    assert table["iteration_median_ns"].to_list() == [60]


def test_percentiles_are_of_steps_that_all_processes_have(builder: TraceBuilder) -> None:
    """Processes that number their steps differently have the same ones, by their order."""
    for process in (0, 1):
        for number in range(3):
            at = 100 * number
            builder.iteration(10 * process + number, at, at + 90, process=process)
            builder.op("fw", process=process, device=process, at=at + 1, start=at + 5, end=at + 25)
    table = breakdown(builder.trace(), "kind", per_iteration=True).rows
    assert table.select("iterations", "median_ns", "devices").rows() == [(3, 40, 2)]


def test_a_device_without_steps_has_no_percentiles(builder: TraceBuilder) -> None:
    for number in range(2):
        builder.iteration(number, 100 * number, 100 * number + 90)
        builder.op("fw", at=100 * number + 1, start=100 * number + 5, end=100 * number + 25)
    builder.op("stray", device=1, process=1, start=50, end=60)
    table = breakdown(builder.trace(), "device", per_iteration=True).rows
    assert table.select("device", "median_ns", "devices").rows() == [(0, 20, 1), (1, None, None)]


def test_per_iteration_statistics_with_skip() -> None:
    table = breakdown(_iterations(), "kind", skip=1, per_iteration=True).rows
    assert table.select("kind", "iterations", "p5_ns", "median_ns", "p95_ns").rows() == [
        ("compute", 2, 40, 70, 70)
    ]  # fmt: skip


def test_per_iteration_statistics_of_kernels_keep_their_names_apart() -> None:
    table = breakdown(_iterations(), "kernel", per_iteration=True).rows
    late = table.filter(pl.col("name") == "late")
    assert late.select("median_ns", "iteration_p5_ns", "iteration_median_ns").rows() == [
        (70.0, 0, 10)
    ]  # fmt: skip
    assert late["iteration_p95_ns"].to_list() == [60]


def test_per_iteration_statistics_by_range_of_ops_without_one() -> None:
    table = breakdown(_iterations(), "range", per_iteration=True).rows
    assert table.select("range", "iterations", "median_ns").rows() == [(OUTSIDE[2], 3, 70)]


def test_per_iteration_and_by_iteration_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="has its iterations in each row"):
        breakdown(_iterations(), "stage,iteration", per_iteration=True)


# Edges.


def test_ops_without_length_count(builder: TraceBuilder) -> None:
    for start in (0, 5, 10):
        _op(builder, "OTHER", start, start, kind="memset")
    _op(builder, "FP", 0, 10)
    assert breakdown(builder.trace()).rows.rows() == [
        ("FP", 1, 10, 10, 0, 1.0), ("OTHER", 3, 0, 0, 0, 0.0),
    ]  # fmt: skip


def test_a_window_without_length_has_no_shares(builder: TraceBuilder) -> None:
    _op(builder, "FP", 7, 7)
    assert breakdown(builder.trace()).rows.rows() == [("FP", 1, 0, 0, 0, None)]
    assert breakdown(builder.trace(), "device").rows.rows() == [(0, 1, 0, 0, 0, 0, None)]
    meta = breakdown(builder.trace()).meta
    assert (meta["window_ns"], meta["idle_ns"], meta["coverage"]) == (0, 0, {"nvtx": 0.0})


def test_times_above_what_a_float_holds() -> None:
    base = (1 << 60) + 1
    builder = TraceBuilder()
    _op(builder, "FP", base, base + 10)
    _op(builder, "WU", base + 9, base + 14)
    assert breakdown(builder.trace()).rows.select("stage", "busy_ns", "exposed_ns").rows() == [
        ("FP", 10, 10), ("WU", 5, 4),
    ]  # fmt: skip


def test_ops_that_no_launch_is_known_of(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 100)
    _op(builder, "FP", 10, 20)
    builder.op("unknown", start=30, end=50)
    trace = builder.trace()
    assert breakdown(trace).meta["launched"] == 0.5
    assert breakdown(trace).rows["ops"].sum() == 2
    # They count in the window in which they run.
    assert breakdown(trace, "iteration").rows.select("iteration", "ops", "busy_ns").rows() == [
        (0, 2, 30)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [("ranges", [(0, 2, 110), (1, 1, 10)]), ("structure", [(0, 1, 90), (1, 2, 30)])],
)
def test_a_step_begins_with_the_first_op_of_its_own_threads_step(
    source: str, expected: list[tuple[int, int, int]], builder: TraceBuilder
) -> None:
    """The process is in step 1 from 100 on, but the thread of GPU 1 still launches for step 0."""
    for number in (0, 1):
        builder.iteration(number, 100 * number, 100 * number + 100, source=source)
    for device, at, own in ((0, 10, 0), (0, 100, 1), (1, 20, 0), (1, 110, 0), (1, 130, 1)):
        builder.op("op", at, device=device, start=at, end=at + 10, stage="FP", iteration=own)
    rows = breakdown(builder.trace(), "device,iteration").rows
    second = rows.filter(pl.col("device") == 1)
    assert second.select("iteration", "ops", "window_ns").rows() == expected


def test_a_device_of_which_no_launch_is_known(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 100)
    builder.iteration(1, 100, 200)
    _op(builder, "FP", 10, 20)
    _op(builder, "FP", 110, 120)
    builder.op("unknown", start=30, end=50, device=1)
    trace = builder.trace()
    table = breakdown(trace, "iteration,device").rows.select(
        "iteration", "device", "ops", "window_ns"
    )
    assert table.rows() == [(0, 0, 1, 100), (1, 0, 1, 10), (None, 1, 1, 20)]
    assert breakdown(trace, "device", skip=1).rows.select("device", "ops").rows() == [(0, 1)]


@pytest.mark.parametrize("options", [{"by": "iteration"}, {"skip": 1}, {"per_iteration": True}])
def test_a_run_without_iterations(options: dict[str, Any], builder: TraceBuilder) -> None:
    _op(builder, "FP", 10, 20)
    with pytest.raises(UsageError, match=r"no iterations.*--iteration"):
        breakdown(builder.trace(), **options)


def test_skipping_too_much_or_too_little() -> None:
    with pytest.raises(UsageError, match=r"all iterations would be skipped \(3 of 3\)"):
        breakdown(_iterations(), skip=3)
    with pytest.raises(UsageError, match="-1 iterations cannot be skipped: give 0 or more"):
        breakdown(_iterations(), skip=-1)
    with pytest.raises(UsageError, match="all iterations would be skipped"):
        breakdown(_iterations(), skip=99)


def test_a_run_without_gpu_work_or_stages(builder: TraceBuilder) -> None:
    builder.range(0, 10, "step 0")
    builder.iteration(0, 0, 10)
    for options in ({}, {"by": "iteration"}, {"skip": 1}, {"per_iteration": True}):
        with pytest.raises(MissingDataError, match="neither GPU work nor NVTX ranges"):
            breakdown(builder.trace(), **options)
    with pytest.raises(MissingDataError, match="neither GPU work nor NVTX ranges"):
        breakdown(builder.trace())


@pytest.mark.parametrize("by", ["", "stages", "stage,", "stage,stage", "Stage", [], ["stage", ""]])
def test_wrong_keys(by: Any) -> None:
    with pytest.raises(UsageError, match="device, stream, rank, node, iteration"):
        breakdown(_iterations(), by)


def test_keys() -> None:
    assert list(KEYS) == [
        "stage", "kind", "kernel", "range", "layer", "device", "stream", "rank", "node",
        "iteration", "recomputed", "phase",
    ]  # fmt: skip
    assert parse_keys(" stage ,device") == ("stage", "device")
    assert parse_keys(["device", "stage"]) == ("device", "stage")


@pytest.mark.parametrize(
    ("by", "meaning"),
    [
        ("stage", "exposed_ns / window_ns"),
        ("kernel", "busy_ns / window_ns"),
        ("stage,device", "exposed_ns / window_ns of the device"),
        ("iteration,device", "busy_ns / window_ns of the iteration and device"),
        ("kernel,iteration", "busy_ns / window_ns of the iteration"),
        ("stage,kind", "busy_ns / window_ns"),
    ],
)
def test_meaning_of_shares(by: str, meaning: str) -> None:
    assert share_meaning(by) == meaning


OF_TRAINING = [key for key in KEYS if key != "phase"]


@cache
def _three_times() -> list[Trace]:
    return [_iterations() for _ in range(3)]


@pytest.mark.parametrize(
    "by", [*OF_TRAINING, "stage,kind", "stage,iteration,device", "range,device"]
)
def test_rows_come_in_the_same_order_each_time(by: str) -> None:
    tables = [breakdown(trace, by).rows for trace in _three_times()]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    unique = [c for c in tables[0].columns if c in {"stage", "kind", "name", "range", "device",
              "pid", "stream", "iteration"}]  # fmt: skip
    assert not tables[0].select(unique).is_duplicated().any()


def test_a_window_of_one_nanosecond_is_all_of_it(b: TraceBuilder) -> None:
    b.op("gemm", start=10, end=11, stage="FP")
    assert breakdown(b.trace()).rows.filter(stage="FP")["share"].to_list() == [1.0]


def test_what_backward_runs_again_is_told_beside_its_row(builder: TraceBuilder) -> None:
    """Kernels that overlap count once, as of all busy times; of two GPUs each has its own."""
    for device, again in ((0, [(30, 40), (35, 50)]), (1, [(20, 25)])):
        _op(builder, "FP", 0, 10, device=device)
        _op(builder, "BP", 10, 20, device=device, recomputed=False)
        for start, end in again:
            _op(builder, "BP", start, end, device=device, recomputed=True)
    trace = builder.trace()
    assert breakdown(trace).meta["recomputed"] == [{"ops": 3, "busy_ns": 25}]
    of_devices = [{"device": 0, "ops": 2, "busy_ns": 20}, {"device": 1, "ops": 1, "busy_ns": 5}]
    assert breakdown(trace, "stage,device").meta["recomputed"] == of_devices
    assert breakdown(trace, "recomputed").rows.select("recomputed", "ops", "busy_ns").rows() == [
        (True, 3, 25), (False, 2, 20), (None, 2, 20),
    ]  # fmt: skip


def test_nothing_is_said_of_what_no_pass_runs_again(training: Trace) -> None:
    assert "recomputed" not in breakdown(training).meta
