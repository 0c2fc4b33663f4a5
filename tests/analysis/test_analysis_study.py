"""Rows of studies, of literal traces."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.studies import overhead, scaling, study, study_row, study_stages
from tracekit.analysis.studies._study import STUDY
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Trace

US = 1000
STAGES = ("FP", "BP", "WU", "IO", "ME", "OTHER")
PARTS = ("fp_bp_ns", "wu_exposed_ns", "io_exposed_ns", "me_exposed_ns", "other_exposed_ns")


def _op(builder: TraceBuilder, stage: str, start: int, end: int, **row: Any) -> None:
    """Add an op of a stage that was launched as it started."""
    name = str(row.pop("name", f"{stage.lower()} kernel"))
    builder.op(name, row.pop("at", start), start=start, end=end, stage=stage, **row)


def _copy(builder: TraceBuilder, start: int, size: int | None, **row: Any) -> None:
    ends = {"src_device": 1, "dst_device": 0, "kind": "p2p", "name": "PtoP"}
    _op(builder, "WU", start, start + 10, bytes=size, **(ends | row))


def _row(builder: TraceBuilder, labels: dict[str, str] | None = None, **options: Any) -> Any:
    return study_row(_numbered(builder), labels or {}, "a run", **options)


def _numbered(builder: TraceBuilder) -> Trace:
    """Give ops the iterations that they were launched in."""
    trace = builder.trace()
    ops = trace.read("ops").with_columns(iteration=pl.lit(None, pl.Int64))
    for step in trace.read("iterations").iter_rows(named=True):
        inside = (
            (pl.col("process") == step["process"])
            & (pl.col("launch_start") >= step["start"])
            & (pl.col("launch_start") < step["end"])
        )
        ops = ops.with_columns(
            iteration=pl.when(inside).then(pl.lit(step["iteration"])).otherwise("iteration")
        )
    return trace.with_tables({"ops": ops})


# Time.


def test_a_training_step(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 101 * US)
    _op(builder, "IO", 0, 10 * US, kind="h2d")
    _op(builder, "FP", 10 * US, 30 * US)
    _op(builder, "BP", 30 * US, 60 * US)
    _op(builder, "WU", 50 * US, 70 * US, stream=14)
    _op(builder, "WU", 70 * US, 75 * US)
    _op(builder, "WU", 75 * US, 80 * US)
    _op(builder, "WU", 80 * US, 95 * US, stream=14)
    _op(builder, "ME", 95 * US, 98 * US)
    _op(builder, "OTHER", 100 * US, 100 * US, kind="memset")
    row = _row(builder)
    sums = {name: value for name, value in row.items() if name.endswith("_total_ns")}
    assert sums == {name.replace("_ns", "_total_ns"): row[name] for name in (
        "step_ns", "fp_bp_ns", "wu_ns", "wu_exposed_ns", "io_exposed_ns", "me_exposed_ns",
        "other_exposed_ns", "idle_ns", "between_steps_ns",
    )}  # fmt: skip
    lengths = {name: row[name] for name in row if name.endswith("_ns") and name not in sums}
    assert lengths == {
        "window_ns": 100 * US,
        "step_ns": 100 * US,
        "step_low_ns": None,
        "step_high_ns": None,
        "step_se_ns": None,
        "step_sd_ns": None,
        "step_p5_ns": None,  # one step has no spread
        "step_p50_ns": 100 * US,
        "step_p95_ns": None,
        "epoch_ns": None,
        "fp_bp_ns": 50 * US,
        "wu_ns": 45 * US,
        "wu_exposed_ns": 35 * US,
        "io_exposed_ns": 10 * US,
        "me_exposed_ns": 3 * US,
        "other_exposed_ns": 0,
        "wu_residual_ns": 50 * US,
        "idle_ns": 2 * US,
        "between_steps_ns": 0,
    }
    assert row["wu_ns"] - row["wu_exposed_ns"] == 10 * US
    assert list(row) == list(STUDY)


def test_the_interval_of_a_mean_step(builder: TraceBuilder) -> None:
    """Nine steps of 90, 110, 90 ..., and one that ends with its op: mean 90, ± 2.776 errors."""
    begin = 0
    for number in range(10):
        _op(builder, "FP", begin, begin + 10)
        length = 90 + 20 * (number % 2)
        builder.iteration(number, begin, begin + length)
        begin += length
    row = _row(builder)
    steps = [90, 110] * 4 + [90, 10]
    cosines = [
        sum(s * math.cos(math.pi * order * (n + 0.5) / 10) for n, s in enumerate(steps))
        for order in (1, 2, 3, 4)
    ]
    error = 1.2 * (sum(each**2 * 2 / 10 for each in cosines) / 4 / 10) ** 0.5
    assert (row["step_ns"], sum(steps) / 10) == (90, 90)
    assert row["step_se_ns"] == pytest.approx(error)
    variance = sum((s - 90) ** 2 for s in steps) / 9
    assert row["step_sd_ns"] == pytest.approx(variance**0.5)
    assert row["step_effective"] == pytest.approx(variance / (error / 1.2) ** 2)
    assert (row["step_low_ns"], row["step_high_ns"]) == pytest.approx(
        (90 - 2.776445 * error, 90 + 2.776445 * error)
    )


def test_no_step_is_known_to_be_shorter_than_nothing(builder: TraceBuilder) -> None:
    """Five steps of 10, 10, 10, 10 and 500: Student's interval would begin at -164."""
    begin = 0
    for number, length in enumerate((10, 10, 500, 10, 10)):
        _op(builder, "FP", begin, begin + 10)
        builder.iteration(number, begin, begin + length)
        begin += length
    row = _row(builder)
    assert row["step_ns"] == 108
    assert row["step_se_ns"] == pytest.approx(1.3 * 98)
    # The lower end is where times end; the upper one, and so all that was known, stays.
    assert row["step_low_ns"] == 0
    assert row["step_high_ns"] == pytest.approx(108 + 2.776445 * 1.3 * 98, rel=1e-6)


def test_passes_that_overlap_are_busy_once(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 100)
    _op(builder, "FP", 0, 60)
    _op(builder, "BP", 40, 90, stream=8)
    _op(builder, "BP", 50, 100, stream=9)
    assert _row(builder)["fp_bp_ns"] == 100


def _steps() -> TraceBuilder:
    """Three steps of 100, 150 and 50 ns, the second with 50 ns after it; work before and after."""
    builder = TraceBuilder()
    builder.iteration(0, 100, 200)
    builder.iteration(1, 200, 300)
    builder.iteration(2, 350, 400)
    _op(builder, "OTHER", 0, 50, name="before")
    for start, stage in ((100, "FP"), (200, "FP"), (310, "ME"), (350, "FP"), (450, "ME")):
        _op(builder, stage, start, start + 40)
    _op(builder, "WU", 390, 400)
    return builder


def test_steps_take_until_the_next_one_begins() -> None:
    row = _row(_steps())
    # 100 to 200, 200 to 350 with the evaluation in it, 350 to 400 where its own last op ends.
    assert (row["iterations"], row["window_ns"]) == (3, 300)
    assert row["step_ns"] == pytest.approx(300 / 3)
    assert (row["step_p5_ns"], row["step_p50_ns"], row["step_p95_ns"]) == (50, 100, 150)
    assert row["fp_bp_ns"] == pytest.approx(120 / 3)
    assert row["me_exposed_ns"] == pytest.approx(40 / 3)
    assert row["other_exposed_ns"] == 0
    assert row["wu_exposed_ns"] == pytest.approx(10 / 3)
    # Nothing runs from 140 to 200 and from 240 to 310; the host is in no step from 300 on.
    assert (row["idle_total_ns"], row["between_steps_total_ns"]) == (60 + 60, 10)


def test_skipped_steps_do_not_count() -> None:
    row = _row(_steps(), skip=2)
    assert (row["iterations"], row["window_ns"], row["step_ns"]) == (1, 50, 50)
    assert (row["fp_bp_ns"], row["me_exposed_ns"]) == (40, 0)
    with pytest.raises(
        UsageError, match=r"run 'a run': all iterations would be skipped \(3 of 3\)"
    ):
        _row(_steps(), skip=3)


def test_devices_and_processes_are_averaged(builder: TraceBuilder) -> None:
    for process, length in ((0, 100), (1, 200)):
        for number in range(2):
            start = number * length
            # Processes count their iterations as they like.
            place = {"thread": 10 * process}
            builder.iteration(number + 7 * process, start, start + length, **place)
            _op(builder, "FP", start, start + length, device=process, **place)
    row = _row(builder)
    # The second step of both ends with that of process 1, which lasts from 200 to 400.
    assert (row["iterations"], row["window_ns"], row["step_ns"], row["gpus"]) == (2, 400, 200, 2)
    assert (row["fp_bp_ns"], row["idle_ns"], row["between_steps_ns"]) == (150, 0, 50)
    assert (row["step_p5_ns"], row["step_p95_ns"]) == (150, 250)


def test_a_stray_context_is_no_training(builder: TraceBuilder) -> None:
    for number in range(3):
        builder.iteration(number, 100 * number, 100 * number + 100)
        _op(builder, "FP", 100 * number, 100 * number + 100)
    _op(builder, "OTHER", 10, 11, device=1, kind="memset")
    row = _row(builder)
    assert (row["step_ns"], row["fp_bp_ns"], row["idle_ns"]) == (100, 100, 0)


def test_a_device_that_works_in_every_other_step(builder: TraceBuilder) -> None:
    for number in range(5):
        builder.iteration(number, 100 * number, 100 * number + 100)
        for device in range(1 + (number + 1) % 2):
            _op(builder, "FP", 100 * number, 100 * number + 100, device=device)
    row = _row(builder)
    assert (row["iterations"], row["step_ns"], row["fp_bp_ns"]) == (5, 100, (100 + 60) / 2)


def test_a_run_without_steps_has_a_window(builder: TraceBuilder) -> None:
    _op(builder, "FP", 10, 40)
    _op(builder, "FP", 20, 70, device=1)
    _copy(builder, 90, 100, device=1)
    row = _row(builder, {"batch": "16"})
    assert (row["iterations"], row["window_ns"]) == (0, (30 + 80) / 2)
    assert (row["method"], row["gpus"]) == ("p2p", 2)
    unknown = set(STUDY) - {
        "run", "batch", "gpus", "method", "method_source", "basis", "iterations", "window_ns"
    }  # fmt: skip
    assert {row[name] for name in unknown} == {None}
    with pytest.raises(UsageError, match="run 'a run': this run has no iterations"):
        _row(builder, skip=1)


def test_steps_of_which_no_launch_is_known(builder: TraceBuilder) -> None:
    builder.iteration(0, 0, 100)
    builder.op("kernel", start=10, end=40)
    row = _row(builder)
    assert (row["iterations"], row["window_ns"], row["step_ns"]) == (0, 30.0, None)


@pytest.mark.parametrize("with_steps", [True, False])
def test_a_run_without_gpu_work_or_stages(with_steps: bool, builder: TraceBuilder) -> None:
    builder.range(0, 10, "step 0")
    if with_steps:
        builder.iteration(0, 0, 10)
    with pytest.raises(MissingDataError, match=r"run 'a run': .*neither GPU work nor"):
        _row(builder)


def _on_host(step: int, *, threads: int = 1) -> TraceBuilder:
    """Return three steps of so many processes: FP for half of each, WU for a quarter."""
    builder = TraceBuilder()
    for thread in range(0, 10 * threads, 10):
        for at in range(0, 3 * step, step):
            builder.range(at, at + step, f"iteration {at // step}", thread=thread)
            builder.range(at, at + step // 2, "FP", thread=thread)
            builder.range(at + step // 2, at + 3 * step // 4, "WU", thread=thread)
    return builder


def test_a_run_on_the_host() -> None:
    trace = _on_host(100, threads=2).attributed()
    row = study_row(trace, {"batch": "8", "gpus": "2", "method": "gloo"}, "host run")
    assert (row["basis"], row["iterations"], row["step_ns"]) == ("host", 3, 100)
    assert (row["fp_bp_ns"], row["wu_ns"], row["idle_ns"]) == (50, 25, 25)
    assert row["images_per_s"] == 16 / 100 * 1e9
    assert (row["gpus"], row["bytes_between_gpus"]) == (2, None)
    unlabelled = study_row(trace, {}, "host run")
    assert (unlabelled["gpus"], unlabelled["method"]) == (None, "none")


def test_times_of_the_host_and_of_gpus_are_not_set_against_each_other(
    builder: TraceBuilder,
) -> None:
    builder.iteration(0, 0, 100)
    _op(builder, "FP", 0, 100)
    labels = {"network": "x", "method": "p2p", "gpus": "1"}
    rows = [
        study_row(_on_host(100).attributed(), labels, "host run"),
        study_row(builder.trace(), {**labels, "method": "nccl"}, "gpu run"),
    ]
    table = study(rows)
    assert table.sort("run")["basis"].to_list() == ["gpu", "host"]
    for compared in (scaling, overhead):
        with pytest.raises(UsageError, match=r"'host run' has no GPU work.*--where"):
            compared(table)
    assert overhead(study(rows[:1])).rows["baseline_ns"].to_list() == [100]
    assert "NVTX ranges" in scaling(study(rows[:1])).meta["basis"]
    assert scaling(study(rows[1:])).meta["basis"] == "GPUs"


_SPANS = st.tuples(
    st.sampled_from(STAGES), st.integers(0, 400), st.integers(0, 60), st.integers(0, 1)
)


@settings(max_examples=examples(18, thorough=300), deadline=None)
@given(st.lists(_SPANS, min_size=1, max_size=25), st.integers(0, 2))
def test_parts_add_up_to_the_step(spans: list[tuple[str, int, int, int]], skip: int) -> None:
    builder = TraceBuilder()
    for number in range(4):
        builder.iteration(number, 100 * number, 100 * number + 90)
        _op(builder, "FP", 100 * number, 100 * number + 5)
    for stage, start, length, device in spans:
        _op(builder, stage, start, start + length, device=device)
    row = _row(builder, skip=skip)
    idle = ("idle_ns", "between_steps_ns")
    totals = [f"{name.removesuffix('_ns')}_total_ns" for name in (*PARTS, *idle)]
    assert sum(row[name] for name in totals) == row["step_total_ns"]
    assert row["step_ns"] == row["step_total_ns"] / (row["iterations"] * row["devices"])
    if any(stage == "BP" for stage, *_ in spans):  # else it is not known
        assert row["fp_bp_ns"] + row["wu_residual_ns"] == pytest.approx(row["step_ns"])
    assert row["wu_ns"] >= row["wu_exposed_ns"] - 1e-9
    assert row["idle_ns"] >= -1e-9


def test_a_run_of_nothing_but_steps_is_the_breakdown(builder: TraceBuilder) -> None:
    for number in range(4):
        builder.iteration(number, 100 * number, 100 * number + 100)
        for stage, start, end in (("FP", 0, 30), ("BP", 30, 70), ("WU", 50, 90)):
            _op(builder, stage, 100 * number + start, 100 * number + end)
    trace = builder.trace()
    row, meta = _row(builder), breakdown(trace).meta
    exposed = dict(breakdown(trace).rows.select("stage", "exposed_ns").iter_rows())
    assert row["window_ns"] == meta["window_ns"]
    assert 4 * row["idle_ns"] == meta["idle_ns"]
    assert 4 * row["wu_residual_ns"] == meta["wu_residual_ns"]
    assert 4 * row["wu_exposed_ns"] == exposed["WU"]


# Labels.


def _one_step() -> TraceBuilder:
    builder = TraceBuilder()
    builder.iteration(0, 0, 100)
    _op(builder, "FP", 0, 2_000_000)
    return builder


def test_labels() -> None:
    labels = {
        "network": " lenet ", "batch": "16", "gpus": "4", "method": "p2p", "scaling": "weak",
        "who": "me",
    }  # fmt: skip
    row = _row(_one_step(), labels)
    found = {name: row[name] for name in ("run", "network", "batch", "gpus", "method", "scaling")}
    assert found == {
        "run": "a run", "network": "lenet", "batch": 16, "gpus": 4, "method": "p2p",
        "scaling": "weak",
    }  # fmt: skip
    assert row["method_source"] == "label"
    # 64 images in 2 ms; 16 if the batch is that of all.
    assert row["images_per_s"] == pytest.approx(32_000)
    assert _row(_one_step(), labels, batch_scope="global")["images_per_s"] == pytest.approx(8_000)


def test_without_labels() -> None:
    row = _row(_one_step())
    assert (row["network"], row["batch"], row["scaling"], row["images_per_s"]) == (None,) * 4
    assert (row["gpus"], row["method"], row["method_source"]) == (1, "none", "recorded")


@pytest.mark.parametrize("key", ["batch", "gpus"])
@pytest.mark.parametrize("value", ["", "x", "0", "-1", "1.5", "1_6", "+4", "٤", "1e3", "9" * 30])
def test_numbers_that_are_none(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"run 'a run' has the label {key}=.*whole number"):
        _row(_one_step(), {key: value})


def test_other_labels_that_are_wrong() -> None:
    with pytest.raises(UsageError, match="run 'a run' has the label scaling=both: it is strong or"):
        _row(_one_step(), {"scaling": "both"})


# Communication.


@pytest.mark.parametrize(
    ("ops", "method"),
    [
        ([("compute", "ncclLooksLikeIt")], "none"),
        ([("p2p", "PtoP")], "p2p"),
        ([("collective", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")], "nccl"),
        ([("p2p", "PtoP"), ("collective", "ncclKernel_AllReduce")], "nccl"),
        ([("collective", "cross_device_reduce_1stage")], "collective"),
    ],
)
def test_methods_by_what_was_recorded(ops: list[tuple[str, str]], method: str) -> None:
    builder = _one_step()
    for kind, name in ops:
        _op(
            builder, "WU", 50, 60, name=name, kind=kind, collective="all_reduce", src_device=1,
            dst_device=0, short_name=name,
        )  # fmt: skip
    row = _row(builder)
    assert (row["method"], row["method_source"]) == (method, "recorded")
    assert _row(builder, {"method": "other"})["method"] == "other"


def test_copies_through_the_host() -> None:
    builder = _one_step()
    staged = {"kind": "staged", "bytes": 4096, "correlation": 77}
    builder.iteration(1, 100, 200)
    _op(builder, "WU", 110, 120, copy_kind="DtoH", src_device=0, name="DtoH", **staged)
    _op(builder, "WU", 120, 130, copy_kind="HtoD", dst_device=1, device=1, name="HtoD", **staged)
    row = _row(builder)
    assert row["method"] == "staged"
    assert (row["bytes_between_gpus"], row["bytes_evidence"]) == (2048, "measured")


def test_bytes_in_a_step(builder: TraceBuilder) -> None:
    for number in range(2):
        builder.iteration(number, 100 * number, 100 * number + 80)
        _op(builder, "FP", 100 * number, 100 * number + 10)
        _op(builder, "FP", 100 * number, 100 * number + 10, device=1)
        _copy(builder, 100 * number + 20, 1000)
        _copy(builder, 100 * number + 40, 500 * number, src_device=0, dst_device=1)
    _copy(builder, 190, 10**9)  # launched between steps
    row = _row(builder)
    assert (row["bytes_between_gpus"], row["bytes_evidence"]) == (1250, "measured")
    assert _row(builder, skip=1)["bytes_between_gpus"] == 1500


@pytest.mark.parametrize(
    ("activations", "weights", "told"),
    [(None, 0, None), (None, 10, True), (9, 10, True), (10, 10, False), (10, None, False)],
)
def test_what_a_pipeline_moves_is_no_exchange_of_gradients(
    activations: int | None, weights: int | None, *, told: bool | None, builder: TraceBuilder
) -> None:
    builder.iteration(0, 0, 100)
    _op(builder, "FP", 0, 10)
    if activations is not None:
        _op(builder, "FP", 20, 30, kind="p2p", src_device=1, dst_device=0, bytes=activations)
    if weights != 0:
        _copy(builder, 40, weights)
    assert _row(builder)["data_parallel"] is told


def test_copies_within_a_gpu_are_none_between_gpus() -> None:
    builder = _one_step()
    _copy(builder, 20, 1000, src_device=0, dst_device=0)
    row = _row(builder)
    assert (row["method"], row["bytes_between_gpus"]) == ("none", 0.0)
    # Of the other GPUs of a job that is said to be larger nothing was recorded.
    row = _row(builder, {"gpus": "4"})
    assert (row["bytes_between_gpus"], row["bytes_evidence"]) == (None, None)


def test_bytes_that_are_not_known() -> None:
    builder = _one_step()
    _copy(builder, 20, 1000)
    _copy(builder, 40, None)
    assert _row(builder)["bytes_between_gpus"] is None
    # A collective without a size, and two GPUs between which nothing was recorded.
    builder = _one_step()
    name = "ncclKernel_AllReduce"
    _op(builder, "WU", 50, 60, name=name, kind="collective", collective="all_reduce")
    assert _row(builder)["bytes_between_gpus"] is None
    builder = _one_step()
    _op(builder, "FP", 50, 60, device=1)
    row = _row(builder)
    assert (row["method"], row["bytes_between_gpus"], row["bytes_evidence"]) == ("none", None, None)


def test_one_rank_of_four_whose_collectives_are_of_known_size(builder: TraceBuilder) -> None:
    domain = {"domain": "NCCL"}
    builder.range(0, 5, "ncclCommInitRank", payload='{"No. of ranks": 4, "Rank": 1}', **domain)
    for number in range(2):
        start = 100 * (number + 1)
        builder.iteration(number, start, start + 100)
        _op(builder, "FP", start, start + 10)
        size = f'{{"Message size [bytes]": {1000 * (number + 1)}}}'
        builder.range(start + 20, start + 30, "ncclAllReduce", payload=size, **domain)
        _op(
            builder, "WU", start + 25, start + 60, short_name="ncclKernel_AllReduce",
            kind="collective", collective="all_reduce",
        )  # fmt: skip
    row = _row(builder)
    assert (row["gpus"], row["method"]) == (4, "nccl")
    # This rank's part: 2 x 3/4 of 1000 and 2000 bytes.
    assert (row["bytes_between_gpus"], row["bytes_evidence"]) == (2250, "modelled")
    assert _row(builder, {"gpus": "2"})["gpus"] == 2


def test_one_rank_of_an_unknown_number_is_no_run_of_one_gpu(builder: TraceBuilder) -> None:
    builder.iteration(0, 100, 200)
    _op(builder, "WU", 125, 160, short_name="ncclKernel_AllReduce", kind="collective",
        collective="all_reduce")  # fmt: skip
    row = _row(builder, {"batch": "16"})
    assert (row["method"], row["gpus"], row["images_per_s"]) == ("nccl", None, None)
    assert _row(builder, {"gpus": "4", "batch": "16"})["images_per_s"] == 64 / row["step_ns"] * 1e9


@pytest.mark.parametrize(("last", "gpus"), [(1, 2), (2, None)])
def test_a_rank_between_others_that_is_missing_leaves_the_number_of_gpus_unknown(
    last: int, gpus: int | None, builder: TraceBuilder
) -> None:
    for process, rank in enumerate((0, last)):
        builder.range(1, 1, f"tracekit.rank {rank}", thread=10 * process)
        builder.iteration(0, 100, 200, thread=10 * process)
        _op(builder, "FP", 105, 150, thread=10 * process, device=process)
    assert _row(builder)["gpus"] == gpus


def test_a_process_is_counted_by_its_own_steps(builder: TraceBuilder) -> None:
    for process, steps in ((0, 2), (1, 4)):
        for number in range(steps):
            builder.iteration(number, 100 * number, 100 * number + 90, thread=10 * process)
            _copy(builder, 100 * number + 5, 600, thread=10 * process, device=process)
    assert _row(builder)["bytes_between_gpus"] == 1200


@pytest.mark.parametrize(
    ("collective", "sent"),
    [
        ("all_reduce", 2 * 3 / 4 * 4000),
        ("all_gather", 3000),
        ("reduce_scatter", 3000),
        ("all_to_all", 3000),
        ("broadcast", 3000),
        ("reduce", 3000),
        ("gather", 750),
        ("scatter", 750),
        ("send_recv", 70),
        ("barrier", 0),
        ("unknown", None),
    ],
)
def test_what_a_participant_of_a_collective_sends(collective: str, sent: float | None) -> None:
    from tracekit.analysis.studies._study import _sent
    from tracekit.model import COLLECTIVE_CALLS

    call = {"ranks": 4, "bytes": 4000, "sent_bytes": 70, "collective": collective}
    names = ("report", "process", "start", "end")
    full = call | dict.fromkeys(names, 0) | {"library": "nccl"}
    table = COLLECTIVE_CALLS.conform(pl.DataFrame([full]))
    assert table.select(_sent()).item() == sent


def test_a_ring_moves_as_much_as_its_edges() -> None:
    from tracekit.analysis.studies._study import _sent
    from tracekit.machine import shares

    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                       "reduce", "gather", "scatter"):  # fmt: skip
        for ranks in (2, 3, 8):
            edges = shares(collective, range(ranks), root=0)
            call = pl.DataFrame(
                {"collective": collective, "ranks": ranks, "bytes": 1.0, "sent_bytes": 0}
            )
            each = call.select(_sent()).item()
            assert ranks * each == pytest.approx(float(sum(edge.share for edge in edges)))


# Tables.


def test_a_study() -> None:
    runs = {"b": ("p2p", "2"), "a": ("p2p", "1"), "c": ("nccl", "1"), "d": (None, "1")}
    rows = [
        study_row(
            _numbered(_one_step()),
            {"gpus": gpus, "network": "lenet"} | ({"method": method} if method else {}),
            name,
        )
        for name, (method, gpus) in runs.items()
    ]
    table = study(rows)
    assert table.schema == STUDY
    assert table["run"].to_list() == ["c", "d", "a", "b"]
    assert study([]).schema == STUDY


def test_stages_of_a_study() -> None:
    row = {
        "network": "lenet", "batch": 16, "gpus": 4, "method": "p2p", "run": "a", "step_ns": 100.0,
        "fp_bp_ns": 50.0, "wu_ns": 45.0, "wu_exposed_ns": 35.0, "io_exposed_ns": 10.0,
        "me_exposed_ns": 3.0, "other_exposed_ns": 0.0, "idle_ns": 1.5, "between_steps_ns": 0.5,
    }  # fmt: skip
    rows = [row, {**row, "gpus": 2, "fp_bp_ns": 10.0}, {**row, "gpus": 2, "fp_bp_ns": 20.0},
            {"network": "measured elsewhere", "epoch_ns": 1.0}]  # fmt: skip
    table = study([{name: each.get(name) for name in STUDY} for each in rows])
    found = study_stages(table)
    four = found.filter(gpus=4)
    assert four.select("stage", "exposed_ns", "busy_ns", "runs").rows() == [
        ("FP+BP", 50.0, 50.0, 1), ("WU", 35.0, 45.0, 1), ("IO", 10.0, None, 1),
        ("ME", 3.0, None, 1), ("OTHER", 0.0, None, 1), ("idle", 1.5, None, 1),
        ("between_steps", 0.5, None, 1),
    ]  # fmt: skip
    assert found.filter(stage="FP+BP", gpus=2).select("exposed_ns", "runs").rows() == [(15.0, 2)]
    assert found["network"].unique().to_list() == ["lenet"]
    assert four["exposed_ns"].sum() == 100.0


def test_runs_that_no_label_tells_apart_are_not_pooled() -> None:
    """Two programs without labels are two bars, and stand on no curve of scaling."""
    named = {"network": "lenet", "batch": "16", "gpus": "1", "method": "p2p"}
    bare = {"gpus": "1", "method": "p2p"}
    lengths = {"one": (bare, 100), "two": (bare, 500),
               "first": (named, 100), "again": (named, 300)}  # fmt: skip
    rows = []
    for name, (labels, length) in lengths.items():
        builder = TraceBuilder()
        builder.iteration(0, 0, 10)
        _op(builder, "FP", 0, length)
        rows.append(study_row(_numbered(builder), labels, name))
    table = study(rows)
    passes = study_stages(table).filter(stage="FP+BP")
    columns = ("run", "runs", "low_ns", "high_ns", "exposed_ns")
    assert sorted(passes.select(columns).rows(), key=str) == [
        ("one", 1, 100, 100, 100), ("two", 1, 500, 500, 500), (None, 2, 100, 300, 200),
    ]  # fmt: skip
    apart = study_stages(table, apart=True).filter(stage="FP+BP")
    assert sorted(apart["run"]) == ["again", "first", "one", "two"]
    for found, meta in (
        (scaling(table).rows, scaling(table).meta), (overhead(table).rows, overhead(table).meta)
    ):  # fmt: skip
        assert found["network"].to_list() == ["lenet"]
        assert meta["warnings"][0].startswith("left out: one, two; they lack labels")
    scaled = scaling(table).rows.row(0, named=True)
    assert [scaled[name] for name in ("runs", "time_ns", "time_low_ns", "time_high_ns")] == [
        2, 200, 100, 300,
    ]  # fmt: skip
