"""Where training steps begin and end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

import polars as pl
import pytest
from effort import by_day
from trace_builder import TraceBuilder, iterations_of, steps

from tracekit.attribution import Rules
from tracekit.errors import MissingDataError

Step = tuple[int, int, int, int]
"""Process, iteration, start, end."""


def _named(*ranges: tuple[int, int, str], iteration: str | None = None) -> list[Step]:
    """The iterations of a thread that holds some ranges."""
    builder = TraceBuilder()
    for start, end, name in ranges:
        builder.range(start, end, name)
    return steps(builder.attributed(Rules.load(iteration=iteration)))


def _each_named(*names: Sequence[str | None]) -> list[list[Step]]:
    """The iterations of processes, in each of which one thread has ranges 20 ns apart."""
    builder = TraceBuilder()
    for process, own in enumerate(names):
        for number, name in enumerate(own):
            builder.range(20 * number, 20 * number + 10, name, thread=10 * process)
    found: list[list[Step]] = [[] for _ in names]
    for process, *step in steps(builder.attributed()):
        found[process].append((0, *step))
    return found


def test_numbered_ranges() -> None:
    names = [
        "step {}", "Step {}", "step_{}", "step#{}", "step: {}", "train step {}", "training_step {}",
        "iteration {}", "iter {}", "iter={}", "Iteration-{}", "[step {}]", "ProfilerStep#{}",
        "epoch 3, step {}", "global_step {}", "step {}/100", "Warm-up Step {}", "batch {}",
        "mini-batch {}", "batch_{}", "train_step_{}", "step {}, seq = 3", "video batch {}",
        "train#step_num={}#", "Batch [{}]", "step({})", "Iter[{}/200]",
        "loss_fn#step_num={}#", "forward#_r=1,step_num={}#",
    ]  # fmt: skip
    found = _each_named(*((name.format(7), name.format(8)) for name in names))
    wanted = [(0, 7, 0, 10), (0, 8, 20, 30)]
    assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, wanted)


@pytest.mark.parametrize("inner", ["step {}", "batch {}"])
def test_a_range_around_steps_with_an_update_each_is_no_step(inner: str) -> None:
    """The range of a whole program, or of a part of it: it would be the only step."""
    batches = [(10 + 30 * n, 35 + 30 * n, inner.format(n)) for n in range(3)]
    updates = [(30 + 30 * n, 34 + 30 * n, "optimizer") for n in range(3)]
    assert _named((0, 120, "step 1"), *batches, *updates) == [
        (0, n, 10 + 30 * n, 35 + 30 * n) for n in range(3)
    ]
    # Batches whose gradients are accumulated are parts of a step.
    assert _named((0, 120, "step 1"), *batches, *updates[-1:]) == [(0, 1, 0, 120)]


def test_annotated_steps_of_evaluation_are_no_training_steps() -> None:
    assert _named((0, 10, "eval#step_num=0#"), (20, 30, "eval#step_num=1#")) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("execute_new_2_cached_30", "execute_new_0_cached_32"),
        ("execute_context_1(888)_generation_64(64)", "execute_context_0(0)_generation_64(64)"),
        ("execute_context_1(888_788544)_generation_0(0)", "execute_context_0(0)_generation_1(1)"),
        ("execute_8192_context_9(sq8155sk8430sqsq1sqsk2)_generation_37(sq37sk34489)",
         "execute_37_context_0(sq0sk0sqsq0sqsk0)_generation_37(sq37sk34489)"),
        ("step[EXTEND bs=15 toks=15360]", "step[DECODE bs=32]"),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "decode[bs=117/128 tok=117 d=117]"),
        ("execute_diffusion_1_256x256", "execute_diffusion_1_512x512"),
    ],
)  # fmt: skip
def test_engine_steps_of_servers(one: str, other: str) -> None:
    assert _named((0, 10, one), (20, 35, other)) == [(0, 0, 0, 10), (0, 1, 20, 35)]
    # What lies in them is no step: layers, and the steps of a server inside of another one.
    inner = [(2, 4, "forward"), (5, 7, "forward"), (1, 9, "step[EXTEND bs=1 toks=2]")]
    assert _named((0, 10, one), *inner, (20, 35, other)) == [(0, 0, 0, 10), (0, 1, 20, 35)]


@pytest.mark.parametrize("name", ["capture_32_FULL", "capture_8192_PIECEWISE", "capture_1_DECODE"])
def test_a_capture_of_graphs_holds_no_steps(name: str) -> None:
    layers = [(at, at + 5, "forward") for at in range(10, 60, 10)]
    assert len(_named(*layers)) == 5
    assert _named((0, 100, name), *layers) == []
    # What follows it is as ever.
    later = [(at, at + 5, "forward") for at in range(110, 160, 10)]
    assert len(_named((0, 100, name), *layers, *later)) == 5


@pytest.mark.parametrize("name", ["execute_plan", "step[3]", "prefill", "capture_output", "decode"])
def test_other_ranges_are_no_steps_of_servers(name: str) -> None:
    builder = TraceBuilder()
    builder.range(0, 10, name)
    builder.op("gemm", 5)
    builder.op("fusion_1", 6)
    (verdict,) = builder.judged().read("verdicts")["verdict"].cast(pl.String)
    assert verdict == "unknown"


def test_ranges_without_numbers_are_counted() -> None:
    names = [
        "step", "Iteration", "train_step", "training step", "iter", "train one batch",
        "[pl][profile]run_training_batch", "PipelineEngine.train_batch",
        "XlaModule:#hlo_module=jit_train_step,program_id=12#",
    ]  # fmt: skip
    found = _each_named(*((name, name) for name in names))
    wanted = [(0, 0, 0, 10), (0, 1, 20, 30)]
    assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, wanted)


def test_ranges_that_are_no_steps() -> None:
    names = [
        "optimizer step {}", "forward step {}", "eval step {}", "validation batch {}", "steps {}",
        "timestep {}", "step 0.{}", "epoch {}", "layer {}", "data copy in {}", "test iteration {}",
        "load batch {}", "minibatches {}", "literal {}", "micro batch {}", "train/micro-batch {}",
        "Micro_Batch_{}", None,
    ]  # fmt: skip
    found = _each_named(*([name and name.format(number) for number in (1, 2)] for name in names))
    assert {name: own for name, own in zip(names, found, strict=True) if own} == {}


def test_numbers_that_restart_are_counted_instead() -> None:
    found = _named(*((10 * n, 10 * n + 9, f"step {n % 3}") for n in range(6)))
    assert [number for _, number, _, _ in found] == [0, 1, 2, 3, 4, 5]


def test_a_number_that_is_too_long_is_counted_instead() -> None:
    found = _named((0, 9, "step 99999999999999999999"), (10, 19, "step 5"))
    assert [number for _, number, _, _ in found] == [0, 1]


def test_a_batch_inside_a_step_is_no_step() -> None:
    found = _named((0, 50, "step 4"), (5, 20, "batch 0"), (20, 40, "batch 1"), (60, 90, "step 5"))
    assert found == [(0, 4, 0, 50), (0, 5, 60, 90)]


def test_a_step_inside_a_step_is_no_step() -> None:
    found = _named((0, 50, "step 4"), (5, 20, "inner step 1"), (60, 90, "step 5"))
    assert found == [(0, 4, 0, 50), (0, 5, 60, 90)]
    found = _named((0, 50, "step 4"), (0, 50, "step 4"), (40, 50, "inner step 1"))
    assert found == [(0, 4, 0, 50)]


def test_the_first_rule_that_matches_anything_decides() -> None:
    found = _named((0, 50, "step"), (10, 40, "iteration 7"), (60, 70, "batch 3"), (70, 80, "step"))
    assert found == [(0, 7, 10, 40)]


def test_evaluation_steps_are_no_training_steps() -> None:
    found = _named(
        (0, 10, "step 0"), (10, 20, "step 1"), (20, 60, "validation"), (25, 30, "step 0"),
        (30, 35, "step 1"), (70, 80, "step 2"),
    )  # fmt: skip
    assert found == [(0, 0, 0, 10), (0, 1, 10, 20), (0, 2, 70, 80)]


def test_steps_inside_a_process_wide_evaluation_are_no_training_steps() -> None:
    builder = TraceBuilder()
    builder.range(0, 10, "step 0")
    builder.range(10, 20, "step 1")
    builder.start_end(20, 60, "validation")
    builder.range(25, 30, "step 0")
    builder.range(60, 70, "step 2")
    assert steps(builder.attributed()) == [(0, 0, 0, 10), (0, 1, 10, 20), (0, 2, 60, 70)]


def test_evaluation_that_another_range_crosses() -> None:
    # The evaluation is in a second lane: "epoch" ends while it is still open.
    found = _named((0, 30, "epoch"), (5, 15, "step 0"), (20, 60, "validation"), (40, 50, "step 0"))
    assert found == [(0, 0, 5, 15)]


def test_steps_that_overlap_a_little_are_cut_where_the_next_one_begins() -> None:
    builder = TraceBuilder()
    for number in range(4):
        builder.start_end(10 * number, 10 * number + 12, f"step {number}")
    for at in (11, 12, 31, 41, 42):
        builder.op(f"at {at}", at, thread=1)
    trace = builder.attributed()
    assert steps(trace) == [(0, 0, 0, 10), (0, 1, 10, 20), (0, 2, 20, 30), (0, 3, 30, 42)]
    assert iterations_of(trace) == {"at 11": 1, "at 12": 1, "at 31": 3, "at 41": 3, "at 42": None}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^tick (\d+)$", [(0, 7, 0, 10), (0, 9, 20, 30)]),
        (r"^tick", [(0, 0, 0, 10), (0, 1, 20, 30)]),
        (r"^(?P<word>tick) (?P<number>\d+)", [(0, 0, 0, 10), (0, 1, 20, 30)]),
        (r"forward of (\d)", [(0, 1, 2, 8), (0, 2, 22, 28)]),
    ],
)
def test_a_users_pattern(pattern: str, expected: list[Step]) -> None:
    ranges = [
        (0, 10, "tick 7"), (2, 8, "forward of 1"), (20, 30, "tick 9"), (22, 28, "forward of 2"),
        (40, 50, "validation"), (41, 42, "step 1"),
    ]  # fmt: skip
    assert _named(*ranges, iteration=pattern) == expected


@pytest.mark.parametrize("pattern", ["^tick", "^step 0$", "^validation$"])
def test_a_users_pattern_that_matches_no_training_step(pattern: str) -> None:
    ranges = [
        (0, 4, "step 1"), (1, 2, "forward"), (5, 9, "step 2"), (6, 7, "forward"),
        (10, 20, "validation"), (11, 12, "step 0"),
    ]  # fmt: skip
    with pytest.raises(MissingDataError, match=re.escape(f"--iteration {pattern!r}")):
        _named(*ranges, iteration=pattern)


# Steps told by the repetition of forward ranges.


def test_forward_backward_and_update_repeat() -> None:
    found = _named(
        (0, 10, "forward"), (10, 12, "loss"), (12, 30, "backward"), (30, 40, "optimizer"),
        (41, 42, "zero_grad"),
        (50, 60, "forward"), (60, 62, "loss"), (62, 80, "backward"), (80, 90, "optimizer"),
    )  # fmt: skip
    assert found == [(0, 0, 0, 50), (0, 1, 50, 90)]


@pytest.mark.parametrize(
    ("steps", "fed", "begins"),
    [
        (3, dict.fromkeys(range(3), (-8, -6)), [92, 192, 292]),
        # Those of weights before training, of evaluation, and of the loss are not of the step.
        (3, {0: (-60, -30, -4), 1: (-40, -4), 2: (-4,)}, [96, 196, 296]),
        (3, {1: (-4,)}, [100, 200, 300]),
        # Copies within the step before, and small ones.
        (3, dict.fromkeys(range(3), (-80,)), [100, 200, 300]),
        (2, dict.fromkeys(range(2), (-2,)), [98, 198]),
    ],
)
@pytest.mark.parametrize(
    ("op", "evaluates"),
    by_day(
        product(["copy", "ncclDevKernel_SendRecv"], [False, True]),
        ("copy", True), ("ncclDevKernel_SendRecv", False),
    ),
)  # fmt: skip
def test_a_step_begins_with_input_that_comes_before_its_forward_range(
    steps: int, fed: dict[int, tuple[int, ...]], begins: list[int], op: str, *, evaluates: bool
) -> None:
    builder, copies = TraceBuilder(), {"kind": "h2d", "bytes": 1 << 16} if op == "copy" else {}
    for n in range(steps):
        at = 100 * (n + 1)
        for start, name in ((0, "forward"), (10, "backward"), (20, "optimizer")):
            builder.range(at + start, at + start + 9, name)
        if evaluates:
            builder.range(at + 55, at + 62, "validation")
        for launch in fed.get(n, ()):
            builder.op(op, at + launch, **copies)
        builder.op("loss", at - 1, kind="h2d", bytes=8)
        builder.op("gemm", at + 5)
    found = builder.attributed().read("iterations")
    assert found["start"].to_list() == begins
    ends = found["end"].to_list()
    assert (
        ends == [155 + 100 * n if evaluates else at for n, at in enumerate(begins[1:])] + ends[-1:]
    )


def test_a_copy_of_unknown_size_begins_no_step() -> None:
    builder = TraceBuilder()
    for at in (100, 200):
        builder.range(at, at + 9, "forward")
        builder.range(at + 10, at + 19, "backward")
        builder.op("copy", at - 4, kind="h2d")
        builder.op("gemm", at + 5)
    assert builder.attributed().read("iterations")["start"].to_list() == [100, 200]


def test_gradients_accumulate_over_several_passes() -> None:
    found = _named(*(
        (begin + start, begin + start + 9, name)
        for begin in (0, 100, 200)
        for start, name in ((0, "forward"), (10, "backward"), (20, "forward"), (30, "backward"),
                            (40, "optimizer"))
    ))  # fmt: skip
    assert found == [(0, 0, 0, 100), (0, 1, 100, 200), (0, 2, 200, 249)]


def test_forward_and_backward_without_update() -> None:
    found = _named(*(
        (begin + start, begin + start + 9, name)
        for begin in (0, 100)
        for start, name in ((0, "forward embed"), (10, "forward rest"), (20, "backward"))
    ))  # fmt: skip
    assert found == [(0, 0, 0, 100), (0, 1, 100, 129)]


def test_forward_and_update_without_backward() -> None:
    found = _named((0, 9, "forward"), (40, 49, "optimizer"), (50, 59, "forward"),
                   (90, 99, "optimizer"))  # fmt: skip
    assert found == [(0, 0, 0, 50), (0, 1, 50, 99)]


def test_an_evaluation_between_steps_belongs_to_none() -> None:
    found = _named(
        (0, 9, "forward"), (10, 29, "optimizer"),
        (30, 45, "validation"), (31, 40, "forward"),
        (50, 59, "forward"), (60, 79, "optimizer"), (80, 90, "test"),
    )  # fmt: skip
    assert found == [(0, 0, 0, 30), (0, 1, 50, 79)]


def test_forward_alone() -> None:
    found = _named((0, 9, "forward"), (10, 19, "loss"), (50, 59, "forward"), (60, 69, "loss"))
    assert found == [(0, 0, 0, 50), (0, 1, 50, 69)]


def test_an_update_inside_the_backward_range() -> None:
    found = _named(*(
        (begin + start, begin + end, name)
        for begin in (0, 100)
        for start, end, name in ((0, 9, "forward"), (10, 50, "backward"), (20, 40, "optimizer"))
    ))  # fmt: skip
    assert found == [(0, 0, 0, 100), (0, 1, 100, 150)]


def test_recording_that_begins_within_a_step() -> None:
    found = _named((0, 5, "backward"), (6, 9, "optimizer"), (10, 15, "forward"),
                   (16, 18, "optimizer"), (20, 25, "forward"), (26, 28, "optimizer"))  # fmt: skip
    assert found == [(0, 0, 10, 20), (0, 1, 20, 28)]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 9, "forward")],
        [(0, 9, "forward"), (10, 19, "backward"), (20, 29, "optimizer")],
        [(0, 9, "backward"), (20, 29, "backward")],
        [(0, 9, "optimizer"), (20, 29, "optimizer")],
        [(0, 90, "validation"), (10, 20, "forward"), (30, 40, "forward")],
    ],
    ids=str,
)
def test_no_repetition_no_iterations(ranges: list[tuple[int, int, str]]) -> None:
    assert _named(*ranges) == []


def test_only_the_training_thread_tells_by_repetition() -> None:
    builder = TraceBuilder()
    for begin in (0, 100):
        for start, name in ((0, "forward"), (20, "backward"), (40, "optimizer")):
            builder.range(begin + start, begin + start + 10, name, thread=3)
    for begin in range(0, 200, 10):
        builder.range(begin, begin + 5, "forward", thread=1)
    assert steps(builder.attributed()) == [(0, 0, 0, 100), (0, 1, 100, 150)]
    assert set(builder.attributed().read("iterations")["thread"]) == {3}


def test_exchange_inside_autograd_markers_makes_no_training_thread() -> None:
    builder = TraceBuilder()
    for begin in (0, 100, 200):
        builder.range(begin, begin + 20, "forward")
        for start in (30, 40, 50):
            marker = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            builder.range(begin + start, begin + start + 8, marker, thread=1)
            builder.range(begin + start + 1, begin + start + 7, "nccl:all_reduce", thread=1)
    assert steps(builder.attributed()) == [(0, 0, 0, 100), (0, 1, 100, 200), (0, 2, 200, 220)]


# Threads and processes.


def test_named_steps_of_the_training_thread() -> None:
    builder = TraceBuilder()
    for number in range(3):
        begin = 100 * number
        builder.range(begin, begin + 90, f"step {number}", thread=2)
        builder.range(begin + 10, begin + 20, "forward", thread=2)
        for start in (0, 30, 60):  # a data loader counts batches of its own
            builder.range(begin + start, begin + start + 20, f"step {start}", thread=1)
    trace = builder.attributed()
    assert steps(trace) == [(0, 0, 0, 90), (0, 1, 100, 190), (0, 2, 200, 290)]
    assert trace.read("iterations").row(0, named=True) == {
        "report": 0, "process": 0, "thread": 2, "iteration": 0, "name": "step 0", "start": 0,
        "end": 90, "source": "ranges", "ops": None, "whole": None,
    }  # fmt: skip


def test_named_steps_of_another_thread_than_trains() -> None:
    builder = TraceBuilder()
    builder.range(0, 10, "step 5", thread=2)
    builder.range(10, 20, "step 6", thread=2)
    builder.range(3, 9, "step 1", thread=4)
    builder.range(0, 100, "forward", thread=3)
    assert steps(builder.attributed()) == [(0, 5, 0, 10), (0, 6, 10, 20)]


def test_each_process_has_its_own() -> None:
    builder = TraceBuilder()
    builder.range(0, 10, "step 5")
    builder.range(10, 20, "step 6")
    builder.range(1, 11, "iteration", thread=10)
    builder.range(12, 22, "iteration", thread=10)
    for start, name in ((0, "forward"), (5, "optimizer"), (10, "forward"), (15, "optimizer")):
        builder.range(start, start + 4, name, thread=20)
    builder.range(0, 50, "nothing of the kind", thread=30)
    builder.op("a", 9)
    builder.op("b", 11, thread=11)
    builder.op("c", 11, thread=1)
    builder.op("d", 11, thread=30)
    builder.op("e", 11, thread=20)
    trace = builder.attributed()
    assert steps(trace) == [
        (0, 5, 0, 10), (0, 6, 10, 20), (1, 0, 1, 11), (1, 1, 12, 22), (2, 0, 0, 10), (2, 1, 10, 19),
    ]  # fmt: skip
    assert iterations_of(trace) == {"a": 5, "b": None, "c": 6, "d": None, "e": 1}


def test_an_op_belongs_to_the_iteration_of_its_launch() -> None:
    builder = TraceBuilder()
    builder.range(0, 10, "step 0")
    builder.range(12, 20, "step 1")
    builder.op("first", 0)
    builder.op("late", 9, start=15)
    builder.op("between", 10)
    builder.op("last", 19)
    builder.op("after", 20)
    builder.op("without launch", start=5)
    assert iterations_of(builder.attributed()) == {
        "first": 0, "late": 0, "between": None, "last": 1, "after": None, "without launch": None,
    }  # fmt: skip


def test_start_end_ranges_may_be_steps() -> None:
    builder = TraceBuilder()
    builder.start_end(0, 10, "iteration 3")
    builder.start_end(10, 20, "iteration 4")
    builder.op("op", 15, thread=1)
    trace = builder.attributed()
    assert steps(trace) == [(0, 3, 0, 10), (0, 4, 10, 20)]
    assert iterations_of(trace) == {"op": 4}


def test_a_pass_that_begins_where_its_step_ends_is_in_it() -> None:
    """Coarse clocks give both one time."""
    builder = TraceBuilder()
    builder.range(0, 100, "iteration 0", style="start_end", domain="tracekit")
    builder.range(100, 120, "FP", domain="tracekit")
    assert steps(builder.attributed(Rules.load())) == [(0, 0, 0, 100)]


def _annotated(domain: str) -> list[Step]:
    """Two steps, and before and behind them batches that are asked for and not trained with."""
    builder = TraceBuilder()
    for start, name, inside in (
        (0, "iteration 0", "IO"), (100, "iteration 0", "FP"), (200, "iteration 1", "FP"),
        (300, "iteration 2", "IO"),
    ):  # fmt: skip
        builder.range(start, start + 90, name, style="start_end", domain=domain)
        builder.range(start + 10, start + 20, inside, domain=domain)
    return steps(builder.attributed(Rules.load()))


def test_input_that_is_not_trained_with_is_no_step_of_our_annotations() -> None:
    assert _annotated("tracekit") == [(0, 0, 100, 190), (0, 1, 200, 290)]
    assert len(_annotated("mine")) == 4


def _trains(builder: TraceBuilder, at: int) -> None:
    """Run a step whose passes have ranges."""
    for n, (name, kernel) in enumerate((("forward", "f"), ("backward", "b"), ("optimizer", "w"))):
        begin = at + 100 * n
        builder.range(begin, begin + 90, name)
        builder.op(kernel, begin + 10)


@pytest.mark.parametrize(
    ("marked", "told"),
    [
        (range(20), ""),
        (range(0, 20, 2), "9 of 20"),
        (range(0, 20, 3), "12 of 20"),
        (range(10, 20), ""),  # a warm-up has no ranges
    ],
)
def test_steps_that_ranges_do_not_mark_are_told(marked: range, told: str) -> None:
    builder = TraceBuilder()
    for step in range(20):
        if step in marked:
            builder.range(1000 * step, 1000 * step + 400, f"step {step}")
        _trains(builder, 1000 * step + 20)
    said = [text for text in builder.attributed().warnings if "every step" in text]
    assert [text.partition(" ops")[0] for text in said] == [
        f"ranges do not mark every step: {told}"
    ] * bool(told)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("every", "told"), [(1, []), (4, ["weights are updated in 5 of 17 steps that ranges mark"])]
)
def test_steps_without_an_update_are_told(every: int, told: list[str], *, inside: bool) -> None:
    """Ranges of micro-batches, whatever their name, of which four make a step."""
    builder = TraceBuilder()
    for step in range(20):
        begin = 1000 * step
        builder.range(begin, begin + (900 if inside else 300), f"step {step}")
        builder.range(begin + 10, begin + 90, "forward")
        builder.range(begin + 110, begin + 190, "backward")
        builder.op("f", begin + 20)
        builder.op("b", begin + 120)
        if step % every == every - 1:
            builder.range(begin + 310, begin + 390, "optimizer")
            builder.op("adam", begin + 320)
    said = [text for text in builder.judged().warnings if "updated" in text]
    assert [text.partition(":")[0] for text in said] == told


@pytest.mark.parametrize(
    ("device", "begin", "told"), [(0, 400, True), (1, 400, False), (0, 4000, False)]
)
def test_a_gpu_on_which_two_processes_run_steps_at_once_is_told(
    device: int, begin: int, *, told: bool
) -> None:
    builder = TraceBuilder()
    for thread, first, own in ((0, 0, 0), (10, begin, device)):
        for step in range(4):
            at = first + 1000 * step
            builder.range(at, at + 400, f"step {step}", thread=thread)
            builder.op("f", at + 10, thread=thread, device=own)
    said = [text for text in builder.attributed().warnings if "in the same period" in text]
    assert [text.partition(":")[0] for text in said] == [
        "2 processes run steps on device 0 in the same period"
    ] * told


@pytest.mark.parametrize(
    ("device", "length", "told"), [(1, 90, True), (1, 1, False), (0, 90, False)]
)
def test_a_gpu_without_steps_is_told(device: int, length: int, *, told: bool) -> None:
    builder = TraceBuilder()
    for step in range(4):
        at = 1000 * step
        builder.range(at, at + 400, f"step {step}")
        builder.op("f", at + 10, start=at + 20, end=at + 120)
        builder.op("g", at + 500, start=at + 510, end=at + 510 + length, device=device)
    said = [text for text in builder.attributed().warnings if "this GPU out" in text]
    assert (
        said
        == ["no work of device 1 (0.000 ms) is in a step: tables of steps leave this GPU out"]
        * told
    )


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([0, 1, 2, 3, 4, 5], []),
        ([0, 10, 20, 30, 40, 50], []),  # of ten steps one is marked
        ([0, 1, 2, 6, 7, 8], ["no step between 2 and 6"]),
    ],
)
def test_steps_that_lack_between_others_are_told(numbers: list[int], told: list[str]) -> None:
    builder = TraceBuilder()
    for number in numbers:
        at = 1000 * (number if number < 10 else number // 10)
        builder.range(at, at + 400, f"step {number}")
        builder.op("f", at + 10)
    said = [text for text in builder.attributed().warnings if "no step between" in text]
    assert [text.partition(" is marked")[0] for text in said] == told
