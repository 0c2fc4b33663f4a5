"""Threads that train side by side in one process, each with its own GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from trace_builder import TraceBuilder, iterations_of, stages, steps

from tracekit.attribution._trainers import Teams

BACKWARD = ("BP", "backward_thread")


def _side_by_side(
    shift: int, devices: Sequence[int] = (0, 1), steps: Sequence[str] = ("step {}", "step {}")
) -> TraceBuilder:
    """Two threads train for two steps of 100 ns, the second of them `shift` ns after the first.

    Threads 0 and 2 train: forward 10-30, backward 30-70, optimizer 70-90; thread 1 runs backward
    passes on the GPU of the first, thread 3 on that of the second.
    """
    builder = TraceBuilder()
    for number, (device, name) in enumerate(zip(devices, steps, strict=True)):
        trainer, backward = 2 * number, 2 * number + 1
        builder.thread(backward, f"pt_autograd_{number}")
        for step in range(2):
            begin = 100 * step + shift * number
            builder.range(begin, begin + 98, name.format(step), thread=trainer)
            builder.range(begin + 10, begin + 30, "forward", thread=trainer)
            builder.range(begin + 30, begin + 70, "backward", thread=trainer)
            builder.range(begin + 70, begin + 90, "optimizer", thread=trainer)
            builder.op(f"{number} f{step}", begin + 20, thread=trainer, device=device)
            for at in (35, 65):
                builder.op(f"{number} b{step} {at}", begin + at, thread=backward, device=device)
            builder.op(f"{number} u{step}", begin + 80, thread=trainer, device=device)
    return builder


@pytest.mark.parametrize("shift", [0, 45, -45, 130])
def test_a_backward_thread_serves_the_training_thread_of_its_gpu(shift: int) -> None:
    found = stages(_side_by_side(shift).attributed())
    assert {found[name] for name in found if " b" in name} == {BACKWARD}


@pytest.mark.parametrize("shift", [0, 45, -45, 130])
def test_ops_are_of_the_step_that_their_own_training_thread_is_in(shift: int) -> None:
    found = iterations_of(_side_by_side(shift).attributed())
    assert found == {name: int(name[3]) for name in found}


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (45, [(0, 0, 0, 100), (0, 1, 100, 243)]),
        (-45, [(0, 0, -45, 55), (0, 1, 55, 198)]),
    ],
)
def test_an_iteration_lasts_as_long_as_any_training_thread_is_in_it(
    shift: int, expected: list[tuple[int, int, int, int]]
) -> None:
    assert steps(_side_by_side(shift).attributed()) == expected


def test_steps_that_are_counted_are_paired_in_their_order() -> None:
    """Each thread's steps are told by their passes; both threads are in each at the same time."""
    builder = _side_by_side(45, steps=("work {}", "work {}"))
    found = iterations_of(builder.attributed())
    assert found == {name: int(name[3]) for name in found}


def test_counted_steps_that_are_not_as_many_are_not_paired() -> None:
    """Which of three belongs to which of two is not known: time tells, as of any other thread.

    The thread with more passes is the process' own: it begins steps at -60, 55 and 155.
    """
    builder = _side_by_side(45, steps=("work {}", "work {}"))
    builder.range(-60, -55, "forward", thread=2)
    builder.range(-55, -50, "backward", thread=2)
    builder.range(-50, -45, "optimizer", thread=2)
    builder.op("before", -58, thread=2, device=1)
    trace = builder.attributed()
    found = iterations_of(trace)
    assert {name: found[name] for name in found if name[0] != "1"} == {
        "before": 0, "0 f0": 0, "0 b0 35": 0, "0 b0 65": 1, "0 u0": 1,
        "0 f1": 1, "0 b1 35": 1, "0 b1 65": 2, "0 u1": 2,
    }  # fmt: skip
    assert [start for *_, start, _ in steps(trace)] == [-60, 55, 155]


def test_a_step_that_only_the_other_thread_names_is_none() -> None:
    builder = _side_by_side(0)
    builder.range(92, 94, "optimizer")  # the first thread holds more passes, and is the process'
    builder.range(200, 298, "step 2", thread=2)
    builder.op("alone", 250, thread=2, device=1)
    found = iterations_of(builder.attributed())
    assert found.pop("alone") is None
    assert found == {name: int(name[3]) for name in found}


def test_threads_on_one_gpu_share_the_ranges_of_one_of_them() -> None:
    """Nothing tells whom a backward thread of that GPU serves."""
    found = stages(_side_by_side(45, devices=(0, 0)).attributed())
    assert found["0 b0 35"] == BACKWARD
    assert found["1 b0 35"] == ("WU", "backward_thread")


def test_a_thread_that_works_on_all_gpus_is_of_the_process() -> None:
    builder = _side_by_side(45)
    builder.thread(4, "pt_autograd_2")
    builder.op("on 0", 50, thread=4, device=0)
    builder.op("on 1", 80, thread=4, device=1)
    found = stages(builder.attributed())
    assert (found["on 0"], found["on 1"]) == (BACKWARD, ("WU", "backward_thread"))


def test_a_thread_with_fewer_passes_does_not_train_beside_the_other() -> None:
    """Replicas of a forward pass on threads of their own are driven by the training thread."""
    builder = TraceBuilder()
    builder.range(0, 30, "forward")
    builder.range(30, 70, "backward")
    builder.range(70, 90, "optimizer")
    builder.op("f", 20, device=0)
    builder.range(5, 60, "forward", thread=2)
    builder.op("r", 15, thread=2, device=1)
    builder.thread(3, "pt_autograd_1")
    builder.op("b", 50, thread=3, device=1)
    assert stages(builder.attributed())["b"] == BACKWARD


def test_a_team_has_a_training_thread_or_none() -> None:
    trainers = pl.DataFrame({"process": [0, 0], "thread": [4, 6], "team": [0, 2]}).cast(pl.Int32)
    assert Teams(trainers, np.array([-1]), 4).trainer_of_each().tolist() == [4, -1, 6, -1]
