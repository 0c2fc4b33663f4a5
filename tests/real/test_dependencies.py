"""Critical paths and replays of the real traces: they add up, and replays agree with what was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracekit as tk

TRAINING = (
    "ddp_unet_4xa100_rank0", "jacobi_p2p_nvlink_8xv100", "lm_pyprof_nvprof",
    "mnist_1xa100_phases", "transformer_rtx3070ti",
)  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
def test_paths_add_up_and_the_unchanged_replay_agrees(
    real_run: Callable[[str], tk.Run], name: str
) -> None:
    run = real_run(name)
    path = run.critical_path.answer("cause,stage")
    assert path.rows["path_ns"].sum() == path.meta["steps_ns"]
    assert path.meta["unexplained_share"] <= 0.1
    replay = run.whatif.answer(stage=["FP=1x"])
    assert replay.meta["replay_error_share"] < 0.03
    assert replay.meta["trusted"]
    measured, unchanged, same = replay.rows["step_ns"]
    assert same == pytest.approx(unchanged, rel=0.01)
    assert unchanged == pytest.approx(measured, rel=0.03)


def test_mnist_is_bound_by_its_loader(real_run: Callable[[str], tk.Run]) -> None:
    run = real_run("mnist_1xa100_phases")
    shares = dict(run.critical_path(skip=1).select("cause", "share").rows())
    assert shares["input"] > 0.95
    rows = run.whatif(loader="2x", stage=["FP=2x", "BP=2x"], skip=1)
    assert rows["speedup"].to_list()[2:] == pytest.approx([1, 1, 1.99, 1.99], abs=0.02)


@pytest.mark.nightly
def test_more_workers_make_what_they_made(real_run: Callable[[str], tk.Run]) -> None:
    # With 16 a step takes 132 ms once fed, and 185.5 in the mean: its GPU waits for two batches.
    one, many = (real_run(f"unet_1xa100_{n}.nsys-rep") for n in ("1worker", "16workers"))
    low, high = one.whatif(workers=16, skip=1).select("low_ns", "high_ns").row(-1)
    assert 130e6 < low < 132.5e6
    assert 185.5e6 < high < 220e6
    # Its GPU works for 129.8 ms a step, and these two batches come no sooner.
    assert many.whatif(no_sync=True, skip=1)["low_ns"][-1] > 155.4e6


def test_hidden_collectives_cost_nothing(real_run: Callable[[str], tk.Run]) -> None:
    # Its last all-reduce ends 0.66 ms before the backward pass does.
    rows = real_run("ddp_unet_4xa100_rank0").whatif(
        bandwidth=["collective=2x"], overlap=True, skip=1
    )
    assert rows["saved_share"].to_list()[2:] == pytest.approx([0, 0, 0], abs=0.001)


def test_a_trace_of_pytorch_is_bound_by_its_host(real_run: Callable[[str], tk.Run]) -> None:
    run = real_run("kineto_ddp_2xa100_rank0")
    found = run.critical_path.answer("iteration,cause")
    assert found.rows["path_ns"].sum() == found.meta["steps_ns"]
    host = found.rows.filter(cause="host")
    # HolisticTraceAnalysis 0.5 calls all of the critical path of its first two steps `cpu_bound`.
    assert host.height == 3
    assert host["share"].sum() > 0.99
    assert run.whatif.answer(no_sync=True).meta["replay_error_share"] < 0.03
