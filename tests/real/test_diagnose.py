"""Findings of the real traces, each judged by a look at the trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracekit as tk

FIRST = {
    "mnist_1xa100_phases": "input_bound",  # its loader has one worker
    "transformer_rtx3070ti": "unfused_elementwise",  # 27 % of a step in chains of them
    "ddp_unet_4xa100_rank0": "layout_transposes",
    "llm_2_7b_forward": "fp32_products",
    "lm_pyprof_nvprof": "launch_bound",
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_finding(real_run: Callable[[str], tk.Run], name: str) -> None:
    rows = real_run(name).diagnose()
    assert (rows["rule"][0] if rows.height else None) == FIRST[name]


def test_input_of_mnist(real_run: Callable[[str], tk.Run]) -> None:
    found = real_run("mnist_1xa100_phases").diagnose.answer()
    row = found.rows.row(0, named=True)
    assert row["share"] > 0.9
    assert row["win_low_ns"] <= row["win_ns"] <= row["win_high_ns"] <= found.meta["step_ns"]


@pytest.mark.nightly
def test_copies_of_a_loader_that_nothing_hides(real_run: Callable[[str], tk.Run]) -> None:
    """The loader's copies follow the kernels of the step before, on the stream that computes."""
    found = real_run("unet_1xa100_4workers.nsys-rep").diagnose()
    (row,) = found.filter(rule="unhidden_copies").rows(named=True)
    assert row["win_high_ns"] == pytest.approx(24.87e6, rel=0.001)
    assert row["win_low_ns"] < 0.01 * row["win_high_ns"]  # none is known to have waited
    assert row["confidence"] == "likely"


def test_the_last_rank_of_dlrm(dlrm_run: tk.Run) -> None:
    found = dlrm_run.stragglers()
    assert found.height == 8
    # Its first all_to_all begins 7.6 ms after that of rank 1, and takes 10 us in place of 7.6 ms.
    assert (found["device"][0], found["last"][0]) == (7, 5)
    assert found["late_ns"].null_count() == 0
    assert found["last"].sum() == 8
