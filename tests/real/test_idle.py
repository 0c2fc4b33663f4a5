"""Idle time of the real traces: causes add up to it, and are what a look at the traces says."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import tracekit as tk

NAMES = (
    "ddp_unet_4xa100_rank0", "jacobi_p2p_nvlink_8xv100", "jacobi_p2p_staged_8xv100",
    "lm_pyprof_nvprof", "mnist_1xa100_phases", "sendrecv_2xh100_two_processes",
    "transformer_rtx3070ti",
)  # fmt: skip
ALIKE = ("jacobi_p2p_staged_8xv100", "lm_pyprof_nvprof", "mnist_1xa100_phases")
"""Added up by night: others stand for their kind by day."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in ALIKE else []) for name in NAMES],
)
def test_causes_add_up_to_idle(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    whole = run.breakdown.answer().meta["idle_ns"]
    for by in ("cause", "stage,device", "range"):
        found = run.idle.answer(by)
        assert found.rows["idle_ns"].sum() == found.meta["idle_ns"] == whole
    if run.trace.read("iterations").height:
        steps = run.breakdown("iteration")
        lost = steps["idle_ns"].sum() + steps["between_steps_ns"].sum()
        assert run.idle("iteration,cause")["idle_ns"].sum() == lost


def _shares(run: tk.Run) -> dict[str, float]:
    return dict(run.idle().select("cause", "share").rows())


def test_mnist_waits_for_its_loader(real_run: Callable[[str], tk.Run]) -> None:
    shares = _shares(real_run("mnist_1xa100_phases"))
    # Its ranges `Data loading` take nearly all of training, and evaluation starts loaders anew.
    assert shares["input"] + shares["between_steps"] > 0.98


def test_the_loader_is_waited_for_in_poll(real_run: Callable[[str], tk.Run]) -> None:
    run = real_run("mnist_1xa100_phases")
    waits = run.table("host").filter(library="os", name="poll").collect()
    assert waits.height == 71  # of 100 us and more on its threads, as in the export
    assert (waits["end"] - waits["start"]).sum() // 10**6 == 14_451
    first = run.idle(longest=1).row(0, named=True)
    assert "the host waited for input (asleep in poll)" in first["evidence"]
    (finding,) = run.diagnose(only=["input_bound"]).rows(named=True)
    assert any("asleep in poll" in text for text in finding["evidence"])


def _causes(run: tk.Run) -> dict[str, float]:
    return dict(run.idle().select("cause", pl.col("idle_ns") / 1e6).rows())


def test_a_gap_in_which_code_is_compiled_is_no_late_launch(
    real_run: Callable[[str], tk.Run],
) -> None:
    run = real_run("jax_compile.nsys-rep")
    causes = _causes(run)
    # Of 948 ms; launching and copying calls take 0.8 ms, and all large gaps link code. For 2.3 ms
    # of these all threads of the process sleep.
    assert causes["compiling"] == pytest.approx(931.4, abs=0.1)
    assert causes["host_delay"] + causes["launch_latency"] < 15
    rules = run.diagnose()["rule"].to_list()
    assert rules[0] == "compilation"
    assert "launch_bound" not in rules


@pytest.mark.nightly
def test_a_thread_that_sleeps_until_input_is_copied_waits_for_it(
    real_run: Callable[[str], tk.Run],
) -> None:
    """Between its steps the main thread is off the CPU for 39.198 of 39.208 s."""
    run = real_run("unet_1xa100_1worker.nsys-rep")
    assert _causes(run)["input"] == pytest.approx(36_673.7, abs=0.1)
    finding = run.diagnose().row(0, named=True)
    assert (finding["rule"], finding["confidence"]) == ("input_bound", "likely")
    assert finding["win_low_ns"] == pytest.approx(0.9 * finding["win_ns"], rel=0.01)


@pytest.mark.nightly
def test_a_thread_that_does_not_get_to_run_is_one_finding(
    real_run: Callable[[str], tk.Run],
) -> None:
    """26 gaps of 1,264 ms in `forward` and `data copy in`, off the CPU for 99 % of them."""
    run = real_run("unet_1xa100_16workers.nsys-rep")
    causes = _causes(run)
    assert causes["off_cpu"] == pytest.approx(1_252.2, abs=0.1)
    assert causes["input"] == pytest.approx(3_163.4, abs=0.1)
    found = {row["rule"]: row for row in run.diagnose(top=None).rows(named=True)}
    assert found["off_cpu"]["confidence"] == "likely"  # who holds Python's lock was not recorded
    assert any("Python's lock" in each for each in found["off_cpu"]["evidence"])
    assert "launch_bound" not in found
    assert "sync_in_loop" not in found


def test_what_the_profiler_took_is_not_the_programs(real_run: Callable[[str], tk.Run]) -> None:
    longest = real_run("ddp_unet_4xa100_rank0").idle(longest=1).row(0, named=True)
    assert longest["cause"] == "profiler"
    assert "data flush" in longest["evidence"]
    assert longest["idle_ns"] == 11_183_795
