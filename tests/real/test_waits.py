"""Data stalls and volumes of steps of real traces, beside what other commands say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracekit as tk

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINING = [
    "mnist_1xa100_phases",
    "transformer_rtx3070ti",
    "jacobi_p2p_nvlink_8xv100",
]


@pytest.mark.parametrize("name", TRAINING)
def test_steps_and_idle_time_are_those_of_the_study(
    real_run: Callable[[str], tk.Run], name: str
) -> None:
    run = real_run(name)
    row = tk.study([run]).row(0, named=True)
    found = tk.stalls([run])
    assert found["window_ns"].sum() == row["step_total_ns"]
    assert found["idle_ns"].sum() == row["idle_total_ns"] + row["between_steps_total_ns"]
    assert (found["wait_ns"] <= found["idle_ns"]).all()


def test_a_small_network_waits_for_its_loader(real_run: Callable[[str], tk.Run]) -> None:
    """MNIST on an A100: a step of 151 ms holds 6 ms of kernels, and the loader is named in NVTX."""
    row = tk.stalls([real_run("mnist_1xa100_phases")]).row(0, named=True)
    assert row["rests_on"] == "ranges"
    assert row["data_stall_share"] == pytest.approx(0.9451, abs=5e-4)
    assert row["utilisation"] == pytest.approx(0.0406, abs=5e-5)


@pytest.mark.parametrize("name", TRAINING)
def test_components_of_a_step_lie_within_it(real_run: Callable[[str], tk.Run], name: str) -> None:
    row = tk.project([real_run(name)], what="jobs").row(0, named=True)
    parts = [row[f"measured_{part}_s"] for part in ("input", "compute", "memory", "weights")]
    assert max(part for part in parts if part is not None) <= row["measured_s"]
    assert row["flops"] is None
    assert row["memory_bytes"] is None


def test_one_rank_of_four_does_not_say_how_many_there_are(
    real_run: Callable[[str], tk.Run],
) -> None:
    answer = tk.project.answer([real_run("ddp_unet_4xa100_rank0")], what="jobs")
    assert answer.rows.select("architecture", "workers").row(0) == (None, None)
    assert any("workers of" in text for text in answer.warnings)
