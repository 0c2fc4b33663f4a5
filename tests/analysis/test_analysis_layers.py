"""Layers of the network, with forward and backward joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.breakdowns._breakdown import LAYER_COLUMNS, NO_LAYER
from tracekit.engine._layer_ranges import _gathered
from tracekit.model import Trace

ENGINE = "autograd::engine::evaluate_function: "
AUTOGRAD = 1


def _forward(builder: TraceBuilder, begin: int, name: str, sequence: int) -> None:
    """An operator of 8 ns that launches a kernel of 5 ns."""
    builder.range(begin, begin + 8, f"{name}, seq = {sequence}")
    builder.op(f"{name} forward", begin + 1, start=begin + 2, end=begin + 7)


def _backward(builder: TraceBuilder, begin: int, node: str, sequence: int) -> None:
    """A node of 8 ns on the thread of the engine: a kernel of 6 ns, and one of 1 ns after it."""
    builder.range(begin, begin + 8, f"{ENGINE}{node}", thread=AUTOGRAD)
    builder.range(begin + 1, begin + 5, f"{node}, seq = {sequence}", thread=AUTOGRAD)
    builder.op(f"{node} kernel", begin + 2, start=begin + 2, end=begin + 8, thread=AUTOGRAD)
    # The engine sums what was broadcast once the node is done.
    builder.op(f"{node} sum", begin + 6, start=begin + 8, end=begin + 9, thread=AUTOGRAD)


def _training(*, modules: bool, steps: int = 2) -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(steps):
        begin, sequence = 200 * number, 10 * number
        builder.range(begin, begin + 190, f"step {number}")
        builder.range(begin + 5, begin + 60, "forward")
        if modules:
            builder.range(begin + 8, begin + 45, "encoder")
            builder.range(begin + 9, begin + 20, "linear 1")
            builder.range(begin + 29, begin + 44, "linear 2")
        _forward(builder, begin + 10, "aten::mm", sequence)
        _forward(builder, begin + 30, "aten::mm", sequence + 1)
        _forward(builder, begin + 50, "aten::relu", sequence + 2)
        builder.range(begin + 70, begin + 150, "backward")
        _backward(builder, begin + 80, "ReluBackward0", sequence + 2)
        _backward(builder, begin + 100, "MmBackward0", sequence + 1)
        _backward(builder, begin + 120, "MmBackward0", sequence)
        builder.range(begin + 135, begin + 140, f"{ENGINE}torch::autograd::AccumulateGrad",
                      thread=AUTOGRAD)  # fmt: skip
        builder.op("accumulate", begin + 136, start=begin + 140, end=begin + 143, thread=AUTOGRAD)
        builder.range(begin + 160, begin + 180, "optimizer")
        builder.op("sgd", begin + 165, start=begin + 170, end=begin + 180)
    return builder


def _rows(trace: Trace) -> list[tuple[Any, ...]]:
    return breakdown(trace, "layer").rows.drop("share").rows()


def test_a_layer_is_the_innermost_range_that_is_no_operator_with_both_passes() -> None:
    answer = breakdown(_training(modules=True).attributed(), "layer")
    table, meta = answer.rows, answer.meta
    assert tuple(table.columns) == LAYER_COLUMNS
    assert table.drop("share").rows() == [
        ("encoder > linear 1", 2, 10, 4, 14, 6, 24),
        ("encoder > linear 2", 2, 10, 4, 14, 6, 24),
        ("aten::relu 1", 2, 10, 4, 14, 6, 24),
        (NO_LAYER[1], 0, 0, 2, 6, 2, 6),
    ]
    # From 12 to 380 the window is 368 long.
    assert table["share"].to_list() == pytest.approx([24 / 368, 24 / 368, 24 / 368, 6 / 368])
    assert meta["joined"] == {
        "FP": {"range": 1.0},
        "BP": {"none": pytest.approx(6 / 48), "sequence": pytest.approx(42 / 48)},
    }
    assert meta["unjoined"] == {}


def test_values_of_rows_of_which_some_are_none() -> None:
    values = pl.Series(["first", "second"])
    assert _gathered(values, np.array([1, 0, -1])).to_list() == ["second", "first", None]
    assert _gathered(values, pl.Series([None, 0])).to_list() == [None, "first"]


def test_a_window_of_one_nanosecond_has_shares() -> None:
    b = _training(modules=True)
    b.rows["ops"] = b.rows["ops"][:1]
    b.rows["ops"][0]["end"] = b.rows["ops"][0]["start"] + 1
    assert breakdown(b.attributed(), "layer").rows["share"].to_list() == [1.0]


def test_where_layers_are_not_known_it_is_said_why(builder: TraceBuilder) -> None:
    for begin, name in ((0, "forward"), (20, "backward"), (40, "optimizer")):
        builder.range(begin, begin + 18, name)
        builder.op(name, begin + 10, start=begin + 11, end=begin + 15)
    unjoined = breakdown(builder.attributed(), "layer").meta["unjoined"]
    assert {name: why.partition(":")[0] for name, why in unjoined.items()} == {
        "FP": "no ranges of modules or operators were recorded",
        "BP": "autograd's numbered ranges were not recorded, and the order of kernels alone does"
        " not show where a layer ends",
    }


def test_where_ranges_hold_little_of_a_pass_it_is_said() -> None:
    builder = _training(modules=True)
    for begin in (0, 200):
        builder.op("late", begin + 47, start=begin + 60, end=begin + 160, stream=8)
        builder.range(begin + 151, begin + 158, "backward")
        builder.op("hand-made", begin + 152, start=begin + 153, end=begin + 199, stream=9)
    assert breakdown(builder.attributed(), "layer").meta["unjoined"] == {
        "FP": "most of it is launched outside of ranges of modules and operators",
        "BP": "most of it is launched outside of autograd's numbered ranges",
    }


def test_without_modules_a_layer_is_an_operator_by_its_turn() -> None:
    assert _rows(_training(modules=False).attributed()) == [
        ("aten::mm 1", 2, 10, 4, 14, 6, 24),
        ("aten::mm 2", 2, 10, 4, 14, 6, 24),
        ("aten::relu 1", 2, 10, 4, 14, 6, 24),
        (NO_LAYER[1], 0, 0, 2, 6, 2, 6),
    ]


def test_iterations_that_are_skipped_are_left_out() -> None:
    table = breakdown(_training(modules=True, steps=3).attributed(), "layer", skip=2).rows
    assert table.select("layer", "fp_ops", "bp_ops", "busy_ns").rows()[0] == (
        "encoder > linear 1", 1, 2, 12
    )  # fmt: skip


def test_layers_of_several_passes_say_which(builder: TraceBuilder) -> None:
    builder.range(0, 30, "forward")
    _forward(builder, 5, "aten::mul", 0)
    builder.range(40, 70, "loss")
    _forward(builder, 45, "aten::mul", 1)
    _forward(builder, 55, "aten::mean", 2)
    builder.range(80, 100, "backward")
    _backward(builder, 85, "MulBackward0", 1)
    _backward(builder, 105, "MulBackward0", 0)
    names = [row[0] for row in _rows(builder.attributed())]
    assert names == ["forward > aten::mul 1", "loss > aten::mul 1", "aten::mean 1"]


def test_the_number_is_of_the_last_operator_that_shows_it(builder: TraceBuilder) -> None:
    """PyTorch shows the number that is next on what needs no gradient, and on what is composed."""
    builder.range(0, 90, "forward")
    builder.range(5, 15, "norm")
    _forward(builder, 6, "aten::add_", 7)
    builder.range(20, 50, "conv")
    builder.range(22, 45, "aten::conv2d, seq = 7")
    _forward(builder, 25, "aten::convolution", 7)
    builder.range(100, 130, "backward")
    _backward(builder, 105, "ConvolutionBackward0", 7)
    assert _rows(builder.attributed()) == [
        ("norm", 1, 5, 0, 0, 1, 5), ("conv", 1, 5, 2, 7, 3, 12)
    ]  # fmt: skip


def test_qualified_names_are_operators_and_ranges_of_libraries_too(builder: TraceBuilder) -> None:
    builder.range(0, 90, "forward")
    builder.range(5, 30, "FSDP::pre_forward (block 0)")
    builder.range(6, 20, "gather")
    builder.op("copy", 7, start=8, end=12)
    builder.range(40, 60, "conv")
    builder.range(41, 55, "cudnnConvolutionForward", domain="cuDNN")
    builder.op("conv", 42, start=43, end=53)
    assert [row[0] for row in _rows(builder.attributed())] == ["gather", "conv"]


def test_a_range_inside_of_an_operator_is_no_layer(builder: TraceBuilder) -> None:
    """Else its forward pass were one layer, and its backward pass, joined by number, another."""
    builder.range(0, 90, "forward")
    builder.range(5, 60, "block 3")
    _forward(builder, 10, "aten::mm", 1)
    builder.range(11, 13, "launch")
    builder.range(20, 50, "Checkpoint, seq = 2")
    builder.range(22, 45, "linear")
    _forward(builder, 25, "aten::add", 2)
    builder.range(100, 140, "backward")
    _backward(builder, 105, "MmBackward0", 1)
    assert [row[:5] for row in _rows(builder.attributed())] == [
        ("block 3", 1, 5, 2, 7), ("block 3 > linear", 1, 5, 0, 0)
    ]  # fmt: skip


def test_a_number_of_another_process_is_another_one(builder: TraceBuilder) -> None:
    for process in (0, 10):
        builder.range(0, 50, "forward", thread=process)
        builder.range(5, 30, f"layer {process}", thread=process)
        builder.range(6, 14, "aten::mm, seq = 1", thread=process)
        builder.op("mm", 7, start=8, end=12, thread=process, device=process)
        builder.range(60, 70, "MmBackward0, seq = 1", thread=process + 1)
        builder.op("grad", 61, start=62, end=69, thread=process + 1, device=process)
    assert _rows(builder.attributed()) == [
        ("layer 0", 1, 4, 1, 7, 2, 11), ("layer 10", 1, 4, 1, 7, 2, 11)
    ]  # fmt: skip


def test_what_is_recomputed_in_backward_belongs_to_the_layer_that_is_differentiated(
    builder: TraceBuilder,
) -> None:
    builder.range(0, 50, "forward")
    builder.range(5, 40, "block 3")
    _forward(builder, 10, "CheckpointFunction", 4)
    builder.range(60, 100, f"{ENGINE}CheckpointFunctionBackward", thread=AUTOGRAD)
    builder.range(61, 99, "CheckpointFunctionBackward, seq = 4", thread=AUTOGRAD)
    builder.range(62, 70, "aten::mm, seq = 900", thread=AUTOGRAD)
    builder.op("again", 63, start=64, end=69, thread=AUTOGRAD)
    builder.range(75, 90, "MmBackward0, seq = 900", thread=AUTOGRAD)
    builder.op("grad", 76, start=77, end=80, thread=AUTOGRAD)
    assert _rows(builder.attributed()) == [("block 3", 1, 5, 2, 8, 3, 13)]


def test_a_range_in_backward_joins_by_its_name(builder: TraceBuilder) -> None:
    """As of hooks of modules that push their range in both passes."""
    builder.range(0, 50, "forward")
    builder.range(5, 40, "block 3")
    builder.op("mm", 10, start=12, end=20)
    builder.range(60, 100, "backward")
    builder.range(65, 90, "block 3")
    builder.op("grad", 70, start=72, end=79)
    answer = breakdown(builder.attributed(), "layer")
    table, meta = answer.rows, answer.meta
    assert table.drop("share").rows() == [("block 3", 1, 8, 1, 7, 2, 15)]
    assert meta["joined"]["BP"] == {"range": 1.0}


def test_work_of_no_known_layer_is_said(builder: TraceBuilder) -> None:
    builder.range(0, 50, "forward")
    builder.op("mm", 10, start=12, end=20)
    builder.range(60, 100, "backward")
    builder.op("grad", 70, start=72, end=79)
    assert _rows(builder.attributed()) == [
        (NO_LAYER[0], 1, 8, 0, 0, 1, 8), (NO_LAYER[1], 0, 0, 1, 7, 1, 7)
    ]  # fmt: skip


def test_a_run_without_passes_has_no_layers(builder: TraceBuilder) -> None:
    builder.range(0, 50, "solve")
    builder.op("stencil", 10, start=12, end=20)
    answer = breakdown(builder.attributed(), "layer")
    table, meta = answer.rows, answer.meta
    assert (table.rows(), meta["joined"]) == ([], {})


def test_loops_give_the_same_when_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = _training(modules=True).attributed()
    plain = breakdown(trace, "layer").rows
    monkeypatch.setattr("tracekit.support.compiled.FEW_ROWS", 0)
    assert breakdown(trace, "layer").rows.equals(plain)


LAYER = st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 3))


@settings(max_examples=examples(8, thorough=200))
@given(st.lists(LAYER, min_size=1, max_size=8), st.integers(1, 3))
def test_every_op_is_in_the_layer_that_launched_it(
    layers: list[tuple[int, bool, int]], steps: int
) -> None:
    """A network of some layers, of which some carry gradients, is found as it was made."""
    builder, sequence, time = TraceBuilder(), 0, 1
    expected: dict[str, list[int]] = {}
    for number in range(steps):
        begin, made = time, []
        time += 1
        for name, differentiates, kernels in layers:
            builder.range(time, time + 9, f"layer {name}")
            builder.range(time + 1, time + 8, f"aten::mm, seq = {sequence}")
            for _ in range(kernels):
                builder.op("mm", time + 2, start=time + 3, end=time + 5)
            sums = expected.setdefault(f"layer {name}", [0, 0])
            sums[0] += kernels
            if differentiates:
                sums[1] += 2
                made.append(sequence)
                sequence += 1
            time += 10
        builder.range(begin, time, "forward")
        builder.range(time + 1, time + 20 * len(made) + 9, "backward")
        for each in reversed(made):
            time += 20
            _backward(builder, time - 15, "MmBackward0", each)
        time += 10
        builder.range(begin - 1, time, f"step {number}")
        time += 2
    found = breakdown(builder.attributed(), "layer").rows.select("layer", "fp_ops", "bp_ops").rows()
    assert {name: [fp, bp] for name, fp, bp in found} == expected
    assert [name for name, *_ in found] == list(expected)
