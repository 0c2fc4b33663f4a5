"""Why an op runs: each rule alone, and each against its neighbours in the order of rules."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from trace_builder import TraceBuilder, stages

from tracekit.attribution._processes import Verdicts

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"
EXCHANGED = ("WU", "gradient_exchange")
UNKNOWN = ("OTHER", "none")


def _stage(builder: TraceBuilder, name: str = "op") -> tuple[str, str]:
    return stages(builder.attributed())[name]


def _within(*ranges: str, op: str = "op", **row: Any) -> tuple[str, str]:
    """The stage of an op that is launched inside some nested ranges of its thread."""
    builder = TraceBuilder()
    for depth, name in enumerate(ranges):
        builder.range(depth, 100 - depth, name)
    builder.op(op, 50, **row)
    return _stage(builder, op)


def _within_each(*cases: tuple[str, ...], ops: Sequence[str]) -> list[tuple[str, str]]:
    """The stage of each op, in a process of its own, inside the ranges of its case."""
    builder = TraceBuilder()
    for process, ranges in enumerate(cases):
        for depth, name in enumerate(ranges):
            builder.range(depth, 100 - depth, name, thread=10 * process)
        builder.op(ops[process], 50, thread=10 * process)
    told = builder.attributed().read("ops").sort("process").select("stage", "stage_source")
    return [(stage, source) for stage, source in told.rows()]


# 1. Metric evaluation dominates.


def test_metric_evaluation() -> None:
    cases = [
        (("validation",), "op", ("ME", "nvtx")),
        (("validation", "forward", "layer 3"), "op", ("ME", "nvtx")),
        (("step 1", "forward", "accuracy"), "op", ("ME", "nvtx")),
        (("validation", "data loading"), "op", ("ME", "nvtx")),
        (("validation",), ALL_REDUCE, ("ME", "nvtx")),
        (("validation", "optimizer"), "adam_kernel", ("ME", "nvtx")),
        (("train",), ALL_REDUCE, EXCHANGED),
    ]
    found = _within_each(*(ranges for ranges, *_ in cases), ops=[op for _, op, _ in cases])
    assert found == [expected for *_, expected in cases]


def test_metric_evaluation_ends_with_its_range() -> None:
    builder = TraceBuilder()
    builder.range(0, 50, "validation")
    builder.range(50, 100, "forward")
    builder.op("before", 49)
    builder.op("after", 50)
    assert stages(builder.attributed()) == {"before": ("ME", "nvtx"), "after": ("FP", "nvtx")}


def test_metric_evaluation_of_another_thread_says_nothing() -> None:
    builder = TraceBuilder()
    builder.range(0, 100, "validation", thread=1)
    builder.op("op", 50)
    assert _stage(builder) == UNKNOWN


def test_process_wide_evaluation_dominates_too() -> None:
    builder = TraceBuilder()
    builder.start_end(0, 100, "validation")
    builder.start_end(0, 100, "forward")
    builder.range(40, 60, "optimizer", thread=1)
    builder.op("op", 50, thread=1)
    builder.op(ALL_REDUCE, 51, thread=1)
    builder.op("elsewhere", 50, thread=10)
    assert stages(builder.attributed()) == {
        "op": ("ME", "process_range"),
        ALL_REDUCE: ("ME", "process_range"),
        "elsewhere": UNKNOWN,
    }


# 2. The exchange of gradients.


def test_gradient_exchange_wherever_it_is_launched() -> None:
    kernels = [
        ALL_REDUCE,
        "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
        "ncclDevKernel_Broadcast_RING_LL",
        "ncclDevKernel_AllGather_RING_LL",
    ]
    for ranges in ((), ("forward",), ("backward",), ("data loading",)):
        found = _within_each(*[ranges] * len(kernels), ops=kernels)
        assert dict(zip(kernels, found, strict=True)) == dict.fromkeys(kernels, EXCHANGED), ranges


def test_peer_copies_exchange_gradients() -> None:
    assert _within("backward", kind="p2p", src_device=0, dst_device=1) == EXCHANGED
    assert _within(kind="p2p") == EXCHANGED
    assert _within(kind="staged") == EXCHANGED
    assert _within("validation", kind="p2p") == ("ME", "nvtx")
    assert _within("backward", kind="d2d") == ("BP", "nvtx")


def _relayed(**second: object) -> tuple[tuple[str, str], tuple[str, str]]:
    """A backward thread copies 8192 bytes to the host, and then what `second` says."""
    builder = TraceBuilder()
    builder.thread(1, "pt_autograd_0")
    builder.range(0, 100, "backward")
    builder.range(100, 120, "optimizer")
    builder.op("gemm", 5, thread=1)
    builder.op("down", 10, thread=1, kind="d2h", device=0, bytes=8192)
    builder.op("between", 20, thread=1)
    row = {"thread": 1, "kind": "h2d", "device": 1, "bytes": 8192, **second}
    builder.op("up", 30, **row)
    found = stages(builder.attributed())
    assert found["between"] == ("BP", "backward_thread")
    return found["down"], found["up"]


def test_gradients_that_a_backward_thread_copies_through_the_host() -> None:
    assert _relayed() == (EXCHANGED, EXCHANGED)


@pytest.mark.parametrize(
    "second",
    [
        {"device": 0},  # back to where it came from
        {"bytes": 8193},
        {"kind": "d2h"},
        {"start": 16},  # before the first one's end
        {"thread": 2},
    ],
)
def test_copies_that_do_not_belong_together_exchange_nothing(second: dict[str, object]) -> None:
    assert EXCHANGED not in _relayed(**second)


@pytest.mark.parametrize("kernel", [SEND_RECV, "ncclSymkDevKernel_AllToAll_LL"])
def test_what_carries_activations_keeps_its_ranges_stage(kernel: str) -> None:
    assert _within("forward", op=kernel) == ("FP", "nvtx")
    assert _within("backward", op=kernel) == ("BP", "nvtx")
    assert _within(op=kernel) == UNKNOWN


def test_a_collective_of_unknown_operation_keeps_its_ranges_stage() -> None:
    kernel = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096>)"
    assert _within("forward", op=kernel) == ("FP", "nvtx")
    assert _within("backward", op=kernel) == UNKNOWN  # it may exchange gradients
    assert _within(op=kernel) == ("WU", "kernel_name")


def test_a_collective_of_unknown_operation_in_a_range_named_all_reduce() -> None:
    kernel = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    assert _within("backward", "nccl:all_reduce", op=kernel) == EXCHANGED
    assert _within("forward", "nccl:all_to_all", op=kernel) == ("FP", "nvtx")


# 3. Ranges on the launching thread.


def test_the_nearest_range_that_means_a_stage() -> None:
    cases = [
        (("forward",), "FP"),
        (("backward", "forward"), "FP"),
        (("forward", "backward"), "BP"),
        (("forward", "layer 1", "aten::conv2d, seq = 4"), "FP"),
        (("step 3", "optimizer", "nvFuser::executor"), "WU"),
        (("backward", "Optimizer.step#AdamW.step", "aten::add_"), "WU"),
    ]
    found = _within_each(*(ranges for ranges, _ in cases), ops=["op"] * len(cases))
    assert found == [(stage, "nvtx") for _, stage in cases]


def test_a_range_decides_against_what_comes_after_it() -> None:
    assert _within("forward", op="adam_kernel") == ("FP", "nvtx")
    assert _within("forward", kind="h2d", bytes=1 << 20) == ("FP", "nvtx")
    assert _within("forward", "autograd::engine::evaluate_function: MmBackward0") == ("FP", "nvtx")


def test_ranges_of_other_threads_and_processes_say_nothing() -> None:
    builder = TraceBuilder()
    builder.range(0, 100, "forward")
    builder.op("same thread", 50)
    builder.op("other thread", 50, thread=1)
    builder.op("other process", 50, thread=10)
    assert stages(builder.attributed()) == {
        "same thread": ("FP", "nvtx"),
        "other thread": UNKNOWN,
        "other process": UNKNOWN,
    }


def test_it_is_the_launch_that_counts_not_the_run() -> None:
    builder = TraceBuilder()
    builder.range(0, 50, "forward")
    builder.range(50, 100, "optimizer")
    builder.op("op", 49, start=60, end=90)
    assert _stage(builder) == ("FP", "nvtx")


def test_a_domain_says_the_stage() -> None:
    builder = TraceBuilder()
    builder.range(0, 100, "forward", thread=3)
    builder.range(10, 90, "anything", thread=3, domain="DALI")
    builder.range(0, 100, "forward", thread=4)
    builder.range(10, 90, "ncclAllReduce", thread=4, domain="NCCL")
    builder.op("decode", 50, thread=3)
    builder.op("gemm", 50, thread=4)
    assert stages(builder.attributed()) == {"decode": ("IO", "nvtx"), "gemm": ("FP", "nvtx")}


def test_the_innermost_range_is_told_even_where_it_means_nothing() -> None:
    builder = TraceBuilder()
    builder.range(0, 100, "forward")
    builder.range(10, 90, "layer 1")
    builder.range(20, 30, "aten::mm")
    for name, at in (("in mm", 25), ("in layer", 35), ("in forward", 95), ("out", 120)):
        builder.op(name, at)
    ops = builder.attributed().read("ops")
    assert ops["range"].to_list() == [2, 1, 0, None]


# The names of threads, and ranges that are open in the whole process.


@pytest.mark.parametrize(
    "name", ["[DALI][WT]GPU executor", "pt_data_worker", "pt_data_pin", "PrefetchWorker-2"]
)
def test_a_data_loader_thread_is_input(name: str) -> None:
    builder = TraceBuilder()
    builder.thread(3, name)
    builder.range(0, 100, "forward")
    builder.op("resize", 50, thread=3)
    assert _stage(builder, "resize") == ("IO", "thread_name")


def test_what_has_no_launch_is_input_on_the_stream_of_a_data_loader_alone() -> None:
    builder = TraceBuilder()
    builder.thread(3, "pt_data_pin")
    builder.range(0, 10, "forward")
    builder.op("gemm", 5)
    builder.op("of the loader", 20, thread=3, stream=9)
    builder.op("no launch, its stream", start=60, stream=9)
    builder.op("no launch, another stream", start=80, stream=7)
    found = stages(builder.attributed())
    assert found["no launch, its stream"] == ("IO", "copy_kind")
    assert found["no launch, another stream"] == UNKNOWN


def test_a_data_loader_thread_against_its_neighbours() -> None:
    builder = TraceBuilder()
    builder.thread(3, "pt_data_pin")
    builder.range(0, 10, "forward", thread=3)
    builder.start_end(20, 30, "backward")
    builder.start_end(40, 50, "validation")
    builder.op("in its range", 5, thread=3)
    builder.op("in the process' range", 25, thread=3)
    builder.op("in the process' evaluation", 45, thread=3)
    builder.op("ncclDevKernel_Broadcast_RING_LL", 60, thread=3)
    assert stages(builder.attributed()) == {
        "in its range": ("FP", "nvtx"),
        "in the process' range": ("IO", "thread_name"),
        "in the process' evaluation": ("ME", "process_range"),
        "ncclDevKernel_Broadcast_RING_LL": EXCHANGED,
    }


def test_process_ranges_decide_where_exactly_one_stage_is_open() -> None:
    builder = TraceBuilder()
    builder.start_end(0, 30, "forward")
    builder.start_end(10, 20, "forward", thread=1)
    builder.start_end(25, 50, "backward")
    builder.start_end(40, 45, "some layer")
    for at in (5, 15, 27, 30, 42, 50):
        builder.op(f"at {at}", at, thread=2)
    builder.op("elsewhere", 5, thread=10)
    assert stages(builder.attributed()) == {
        "at 5": ("FP", "process_range"),
        "at 15": ("FP", "process_range"),
        "at 27": UNKNOWN,
        "at 30": ("BP", "process_range"),
        "at 42": ("BP", "process_range"),
        "at 50": UNKNOWN,
        "elsewhere": UNKNOWN,
    }


def test_an_own_range_decides_against_one_of_the_process() -> None:
    builder = TraceBuilder()
    builder.start_end(0, 100, "backward")
    builder.range(10, 90, "optimizer", thread=2)
    builder.op("op", 50, thread=2)
    builder.op("memset", 95, thread=2, kind="memset")
    builder.op("adam_kernel", 96, thread=2)
    assert stages(builder.attributed()) == {
        "op": ("WU", "nvtx"),
        "memset": ("BP", "process_range"),
        "adam_kernel": ("BP", "process_range"),
    }


def test_start_end_ranges_that_touch_and_repeat() -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.start_end(10 * number, 10 * number + 10, ("forward", "backward")[number % 2])
    for at in (0, 9, 10, 19, 20, 49, 50):
        builder.op(f"at {at}", at, thread=2)
    stage = {name: stage for name, (stage, _) in stages(builder.attributed()).items()}
    assert stage == {
        "at 0": "FP", "at 9": "FP", "at 10": "BP", "at 19": "BP", "at 20": "FP", "at 49": "FP",
        "at 50": "OTHER",
    }  # fmt: skip


# 5. Backward work of another thread.


def _training(*, backward: bool, steps: int = 4, thread_name: str | None = None) -> TraceBuilder:
    """Steps of 100 ns: data, forward 10-30, backward 30-70 on thread 1, optimizer 70-90."""
    builder = TraceBuilder()
    builder.thread(1, thread_name)
    for begin in range(0, 100 * steps, 100):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 10, begin + 30, "forward")
        if backward:
            builder.range(begin + 30, begin + 70, "backward")
        builder.range(begin + 70, begin + 90, "optimizer")
        for at in (40, 50, 60):
            builder.op(f"b{begin + at}", begin + at, thread=1)
    return builder


def _all_of(builder: TraceBuilder, prefix: str) -> set[tuple[str, str]]:
    return {s for name, s in stages(builder.attributed()).items() if name.startswith(prefix)}


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("name", ["pt_autograd_0", None])
def test_backward_work_of_another_thread(name: str | None, *, backward: bool) -> None:
    builder = _training(backward=backward, thread_name=name)
    builder.op("loader", 155, thread=2)
    builder.op("main", 195)
    found = stages(builder.attributed())
    assert found.pop("loader") == UNKNOWN
    assert found.pop("main") == UNKNOWN
    assert set(found.values()) == {("BP", "backward_thread")}


@pytest.mark.parametrize("backward", [True, False])
def test_a_thread_with_autograd_markers_needs_neither_name_nor_habit(*, backward: bool) -> None:
    builder = _training(backward=backward)
    builder.range(145, 150, "autograd::engine::evaluate_function: AddBackward0", thread=2)
    builder.op("x marked", 147, thread=2)
    builder.op("x beside the marker", 155, thread=2)
    assert _all_of(builder, "x") == {("BP", "backward_thread")}


def test_without_backward_range_only_the_gap_is_backward() -> None:
    builder = _training(backward=False, thread_name="pt_autograd_0")
    for name, at in (
        ("x before", 105), ("x within it", 120), ("x in update", 180),
        ("x after update", 195), ("x between steps", 199), ("x after all", 500),
    ):  # fmt: skip
        builder.op(name, at, thread=1)
    builder.op("y first in the gap", 130, thread=1)
    builder.op("y last in the gap", 169, thread=1)
    builder.op("x when the update begins", 170, thread=1)
    assert _all_of(builder, "x") == {UNKNOWN}
    assert _all_of(builder, "y") == {("BP", "backward_thread")}


def test_with_backward_ranges_the_training_thread_says_the_stage() -> None:
    builder = _training(backward=True, thread_name="pt_autograd_0")
    expected = {"FP": 120, "BP": 130, "WU": 180, "OTHER": 195}
    for stage, at in expected.items():
        builder.op(f"x {stage}", at, thread=1)
    found = {n: s for n, s in stages(builder.attributed()).items() if n.startswith("x")}
    assert found == {
        "x FP": ("FP", "backward_thread"),
        "x BP": ("BP", "backward_thread"),
        "x WU": ("WU", "backward_thread"),
        "x OTHER": UNKNOWN,
    }


def test_a_gap_outside_of_all_steps_is_not_backward() -> None:
    builder = _training(backward=False, thread_name="pt_autograd_0")
    for begin in (-1000, 1000):
        builder.range(begin, begin + 10, "forward")
        builder.op(f"x{begin}", begin + 20, thread=1)
        builder.range(begin + 100, begin + 110, "optimizer")
    assert _all_of(builder, "x") == {UNKNOWN}


@pytest.mark.parametrize("backward", [True, False])
def test_gradient_accumulation(*, backward: bool) -> None:
    builder = TraceBuilder()
    for begin in (0, 1000, 2000):
        builder.range(begin, begin + 990, f"step {begin // 1000}")
        for start in (begin, begin + 200, begin + 400):
            builder.range(start, start + 100, "forward")
            if backward:
                builder.range(start + 100, start + 200, "backward")
            builder.op(f"f{start}", start + 50)
            builder.op(f"b{start}", start + 150, thread=1)
        builder.range(begin + 600, begin + 700, "optimizer")
        builder.op(f"w{begin}", begin + 650)
        builder.op(f"n{begin}", begin + 750)
    assert _all_of(builder, "f") == {("FP", "nvtx")}
    assert _all_of(builder, "b") == {("BP", "backward_thread")}
    assert _all_of(builder, "w") == {("WU", "nvtx")}
    assert _all_of(builder, "n") == {UNKNOWN}


def test_clearing_gradients_before_backward_is_not_the_weight_update() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 30, begin + 35, "Optimizer.zero_grad#SGD.zero_grad")
        builder.range(begin + 70, begin + 90, "Optimizer.step#SGD.step")
        builder.op(f"b{begin}", begin + 50, thread=1)
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


def test_clearing_gradients_of_the_next_step_does_not_stretch_the_gap() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 1, begin + 5, "zero_grad")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 60, begin + 80, "optimizer")
        for at in (40, 45, 50, 55):
            builder.op(f"b{begin + at}", begin + at, thread=1)
    builder.op("late", 290, thread=1)  # after the last step's weight update, one of 13 launches
    assert _all_of(builder, "b") == {("BP", "backward_thread")}
    assert _all_of(builder, "late") == {("OTHER", "none")}


def test_the_loss_after_forward_leaves_the_gap_open() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 32, begin + 38, "loss")
        builder.range(begin + 70, begin + 90, "optimizer")
        builder.op(f"b{begin}", begin + 50, thread=1)
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


def test_a_backward_range_that_holds_others_is_one_backward_pass() -> None:
    builder = _training(backward=True)
    for begin in range(0, 400, 100):
        builder.range(begin + 31, begin + 33, "loss.backward")
        builder.range(begin + 34, begin + 36, "backward hook")
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


@pytest.mark.parametrize("backward", [True, False])
def test_evaluation_dominates_what_an_autograd_thread_launches(*, backward: bool) -> None:
    builder = _training(backward=backward, thread_name="pt_autograd_0")
    builder.range(400, 500, "step 4")
    builder.range(410, 480, "validation")
    builder.range(420, 440, "forward")
    builder.op("x within forward", 430, thread=1)
    builder.op("x after it", 450, thread=1)
    builder.op("y after all", 485, thread=1)
    assert _all_of(builder, "x") == {("ME", "backward_thread")}
    assert _all_of(builder, "y") == {UNKNOWN}


@pytest.mark.parametrize("backward", [True, False])
def test_a_thread_that_also_works_elsewhere_is_no_autograd_thread(*, backward: bool) -> None:
    builder = _training(backward=backward)
    for begin in range(0, 400, 100):
        builder.op(f"x{begin}", begin + 55, thread=2)
        builder.op(f"x{begin}", begin + 25, thread=2)
    assert _all_of(builder, "x") == {UNKNOWN}
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


@pytest.mark.parametrize("backward", [True, False])
def test_a_thread_that_works_in_few_backward_passes_is_no_autograd_thread(
    *, backward: bool
) -> None:
    builder = _training(backward=backward)
    builder.op("x", 155, thread=2)
    builder.op("x", 255, thread=2)
    assert _all_of(builder, "x") == {UNKNOWN}


@pytest.mark.parametrize("backward", [True, False])
def test_one_step_shows_no_habit(*, backward: bool) -> None:
    assert _all_of(_training(backward=backward, steps=1), "b") == {UNKNOWN}
    named = _training(backward=backward, steps=1, thread_name="pt_autograd_0")
    if backward:
        assert _all_of(named, "b") == {("BP", "backward_thread")}


@pytest.mark.parametrize("backward", [True, False])
def test_a_data_loader_is_never_backward(*, backward: bool) -> None:
    builder = _training(backward=backward)
    builder.thread(2, "[DALI][WT]GPU executor")
    for begin in range(0, 400, 100):
        builder.op(f"x{begin}", begin + 45, thread=2)
        builder.range(begin + 40, begin + 60, "decode", thread=3, domain="DALI")
        builder.op(f"y{begin}", begin + 45, thread=3)
    assert _all_of(builder, "x") == {("IO", "thread_name")}
    assert _all_of(builder, "y") == {("IO", "nvtx")}
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


@pytest.mark.parametrize("backward", [True, False])
def test_processes_are_told_apart(*, backward: bool) -> None:
    builder = _training(backward=backward)
    for begin in range(0, 400, 100):  # the other process runs half a step behind
        builder.range(begin + 50, begin + 148, f"step {begin // 100}", thread=10)
        builder.range(begin + 60, begin + 80, "forward", thread=10)
        builder.range(begin + 120, begin + 140, "optimizer", thread=10)
        builder.op(f"c{begin}", begin + 100, thread=11)
    assert _all_of(builder, "b") == {("BP", "backward_thread")}
    assert _all_of(builder, "c") == {("BP", "backward_thread")}


def test_the_training_thread_is_never_its_own_autograd_thread() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 70, begin + 90, "optimizer")
        builder.op(f"m{begin}", begin + 50)
    assert _all_of(builder, "m") == {UNKNOWN}


def test_gradient_exchange_of_the_autograd_thread() -> None:
    builder = _training(backward=True, thread_name="pt_autograd_0")
    builder.op(ALL_REDUCE, 155, thread=1)
    assert _stage(builder, ALL_REDUCE) == EXCHANGED


def test_what_ddp_marks_on_the_autograd_thread_makes_it_no_training_thread() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 98, f"step {begin // 100}")
        builder.range(begin + 70, begin + 90, "Optimizer.step#SGD.step")
        builder.range(begin + 10, begin + 60, "backward")
        for start in (20, 30, 40):
            marker = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            builder.range(begin + start, begin + start + 8, marker, thread=1)
            builder.range(begin + start + 1, begin + start + 7, "nccl:all_reduce", thread=1)
            builder.range(begin + start + 2, begin + start + 4, "optimizer hook", thread=1)
        builder.op(f"b{begin}", begin + 55, thread=1)
    assert _all_of(builder, "b") == {("BP", "backward_thread")}


# 6. and after: markers, names of kernels, sizes of copies.


def test_autograd_markers() -> None:
    for marker in (
        "autograd::engine::evaluate_function: AddmmBackward0",
        "AddmmBackward0, seq = 17",
        "MulBackward0, seq = 17, op_id = 9, sizes = [[2, 3], []]",
        "torch::autograd::AccumulateGrad",
        "CompiledFunctionBackward",
        "mul, stashed seq=17",
    ):
        cases = (marker,), (marker, "aten::mm"), ("step 4", marker), ("backward", marker)
        found = _within_each(*cases, ops=("op", "adam_kernel", "op", "op"))
        assert found == [("BP", "autograd")] * 3 + [("BP", "nvtx")], marker


def test_what_is_no_autograd_marker() -> None:
    cases = ("aten::add, seq = 17",), ("aten::_softmax_backward_data",)
    assert _within_each(*cases, ops=["op", "op"]) == [UNKNOWN, UNKNOWN]


def test_a_backward_thread_decides_against_its_markers() -> None:
    builder = _training(backward=True, thread_name="pt_autograd_0")
    builder.range(120, 125, "autograd::engine::evaluate_function: MmBackward0", thread=1)
    builder.range(190, 199, "autograd::engine::evaluate_function: MmBackward0", thread=1)
    builder.op("x recomputed", 122, thread=1)
    builder.op("y nothing open", 195, thread=1)
    assert _all_of(builder, "x") == {("FP", "backward_thread")}
    assert _all_of(builder, "y") == {("BP", "autograd")}


def test_a_backward_thread_decides_against_the_kernels_name() -> None:
    builder = _training(backward=True, thread_name="pt_autograd_0")
    builder.op("x_fprop", 155, thread=1)
    assert _all_of(builder, "x") == {("BP", "backward_thread")}


def test_kernel_names_are_for_kernels() -> None:
    assert _within(op="cudnn_dgrad") == ("BP", "kernel_name")
    assert _within(op="cudnn_dgrad", kind="memset") == UNKNOWN


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("h2d", 65536, ("IO", "copy_kind")),
        ("h2d", 65535, UNKNOWN),
        ("h2d", None, UNKNOWN),
        ("d2h", 1 << 30, UNKNOWN),
        ("d2d", 1 << 30, UNKNOWN),
        ("memset", 1 << 30, UNKNOWN),
        ("unknown", 1 << 30, UNKNOWN),
        ("Unified HtoD", 1 << 30, UNKNOWN),
    ],
)
def test_large_copies_from_the_host_are_input(
    kind: str, size: int | None, expected: tuple[str, str]
) -> None:
    migrates = {"kind": "h2d", "copy_kind": kind} if kind.startswith("Unified") else {}
    assert _within(**{"kind": kind, "bytes": size} | migrates) == expected


def test_nothing_known() -> None:
    assert _within() == UNKNOWN
    assert _within("epoch 3", "step 4", "layer 5") == UNKNOWN


def test_every_op_has_a_stage_and_a_source() -> None:
    builder = _training(backward=False)
    builder.op("no launch", start=55)
    builder.op("graph", 66, kind="graph")
    builder.op(SEND_RECV, 67)
    ops = builder.attributed().read("ops")
    assert ops.height == 15
    assert ops.select(pl.col("stage", "stage_source").null_count()).row(0) == (0, 0)
    assert ops.filter((pl.col("stage") == "OTHER") != (pl.col("stage_source") == "none")).is_empty()


def test_ops_without_a_call_are_a_data_loaders_where_it_alone_works_on_their_stream() -> None:
    """Those of other streams are not, nor those that another thread is known to have launched."""
    streams = pl.DataFrame({"process": [0, 0], "context": [1, None], "stream": [9, 4]})
    ops = pl.DataFrame(
        {"process": [0, 0, 0, 0, 1], "context": [1, 1, 1, None, 1], "stream": [9, 9, 7, 4, 9]}
    )
    says: Any = SimpleNamespace(input_streams=streams)
    found = Verdicts.on_input_stream(says, ops, np.array([-1, 3, -1, -1, -1]))
    assert found.tolist() == [True, False, False, True, False]
    assert not Verdicts.on_input_stream(says, ops, np.full(5, 3)).any()
