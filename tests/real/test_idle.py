"""Idle time of the real traces: causes add up to it, and are what a look at the traces says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracekit as tk

NAMES = (
    "ddp_unet_4xa100_rank0", "jacobi_p2p_nvlink_8xv100", "jacobi_p2p_staged_8xv100",
    "lm_pyprof_nvprof", "mnist_1xa100_phases", "sendrecv_2xh100_two_processes",
    "transformer_rtx3070ti",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_causes_add_up_to_idle(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    whole = run.breakdown.answer().meta["idle_ns"]
    for by in ("cause", "stage,device", "range"):
        found = run.idle.answer(by)
        assert found.rows["idle_ns"].sum() == found.meta["idle_ns"] == whole
    if run.trace.read("iterations").height:
        steps = run.breakdown("iteration")
        lost = steps["idle_ns"].sum() + steps["between_ns"].sum()
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
    assert "outside of its steps (asleep in poll)" in first["evidence"]
    (finding,) = run.diagnose(only=["input_bound"]).rows(named=True)
    assert any("asleep in poll" in text for text in finding["evidence"])


def test_what_the_profiler_took_is_not_the_programs(real_run: Callable[[str], tk.Run]) -> None:
    longest = real_run("ddp_unet_4xa100_rank0").idle(longest=1).row(0, named=True)
    assert longest["cause"] == "profiler"
    assert "data flush" in longest["evidence"]
    assert longest["idle_ns"] == 11_183_795
