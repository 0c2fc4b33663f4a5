"""The steps of a real trace are the same in every table about them, and without its ranges."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from trace_builder import default_rules

import tracekit as tk
from tracekit.attribution import attribute
from tracekit.engine import chosen_windows, with_steps
from tracekit.model import Trace

DAILY = (
    "ddp_unet_4xa100_rank0.sqlite", "mnist_1xa100_phases.sqlite", "transformer_rtx3070ti.sqlite",
    "kineto_ddp_2xa100_rank0.json.gz", "tracelens/mi300_resnet_checkpoint.json.gz",
)  # fmt: skip
REPORTS = (
    "mnist_1xa100_first_optimization.nsys-rep", "unet_1xa100_1worker.nsys-rep",
    "unet_1xa100_16workers.nsys-rep", "unet_1xa100_4workers.nsys-rep",
    "unet_1xa100_dali.nsys-rep", "unet_1xa100_dali_bf16_fused_jit.nsys-rep",
    "unet_1xgpu_dali.qdrep", "unet_1xgpu_dali_amp.qdrep",
)  # fmt: skip
RANGED = (*DAILY, *(pytest.param(name, marks=pytest.mark.nightly) for name in REPORTS))
WITHOUT_A_MIRROR = (
    "tracelens/h100_qwen.json.gz", "jacobi_p2p_nvlink_8xv100.sqlite",
    "kineto_dlrm_8xv100/worker1_step_12.1694128201556.pt.trace.json",
    "kineto_dlrm_8xv100/worker3_step_12.1694128201557.pt.trace.json",
)  # fmt: skip
"""Traces of which structure tells no steps, or of which nothing else does."""


def _launched(trace: Trace) -> dict[tuple[int, str], int]:
    """How many ops are launched in each step, by stage, input of other threads aside.

    What is launched between two steps is of the first one, but input that the thread of the steps
    brings, which is of the second one; without a launch, or beyond the last step, of none.
    """
    steps = trace.read("iterations").sort("process", "start")
    driver = steps.group_by("process").agg(
        driver=pl.col("thread").first(), last=pl.col("end").max()
    )
    begins = steps.select("process", step="iteration", time="start").sort("time")
    ops = (
        trace.read("ops").drop_nulls("launch_start").sort("launch_start")
        .join(driver, on="process")
        .join_asof(begins, left_on="launch_start", right_on="time", by="process",
                   check_sortedness=False)
        .join_asof(begins.rename({"step": "later"}), left_on="launch_start",
                   right_on="time", by="process", strategy="forward", check_sortedness=False)
    )  # fmt: skip
    is_input = pl.col("stage") == "IO"
    own = is_input & (pl.col("launch_thread") == pl.col("driver"))
    of_step = (
        pl.when(pl.col("iteration").is_not_null()).then("iteration")
        .when(pl.col("launch_start") >= pl.col("last")).then(pl.lit(None))
        .when(own & pl.col("step").is_not_null()).then("later")
        .otherwise("step")
    )  # fmt: skip
    told = ops.filter(~is_input | own).with_columns(of_step.alias("of")).drop_nulls("of")
    counts = told.group_by("of", pl.col("stage").cast(pl.String)).agg(ops=pl.len().cast(pl.Int64))
    return {(step, stage): count for step, stage, count in counts.iter_rows()}


def _has_input_beside(trace: Trace) -> bool:
    """Whether input runs beside steps: of other threads, or beside work from before all."""
    drivers, ops = trace.read("iterations")["thread"], trace.read("ops")
    input_threads = ops.filter(pl.col("stage") == "IO")["launch_thread"]
    launched = pl.col("launch_start").is_not_null()
    first = ops.filter(launched)["start"].min()
    lost = ops.filter(~launched, pl.col("end") > first)
    return lost.height > 0 or not input_threads.is_in(drivers.implode()).all()


@pytest.mark.parametrize("name", [*RANGED, *WITHOUT_A_MIRROR])
def test_a_step_holds_what_was_launched_in_it(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    table = run.breakdown("stage,iteration").filter(pl.col("ops") > 0)
    assert (
        run.breakdown("iteration")["ops"].sum()
        == run.table("ops").select(pl.len()).collect().item()
    )
    told = table.drop_nulls("iteration").with_columns(pl.col("stage").cast(pl.String))
    found = {
        (step, stage): ops for step, stage, ops in told["iteration", "stage", "ops"].iter_rows()
    }
    expected = _launched(run.trace)
    if _has_input_beside(run.trace):
        found, expected = (
            {key: ops for key, ops in each.items() if key[1] != "IO"} for each in (found, expected)
        )
    assert found == expected


@pytest.mark.parametrize("name", RANGED)
def test_every_table_has_the_same_steps(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    steps = run.breakdown("iteration").drop_nulls("iteration")
    whole = run.trace.read("iterations").filter("whole")["iteration"]
    counted = steps.filter(pl.col("iteration").is_in(whole.implode()))
    length, count = counted["window_ns"].sum(), counted.height
    flops = run.flops.answer(skip=0).meta
    assert (flops["steps"], round(flops["step_ns"] * count)) == (count, length)
    compared = tk.compare(run, run, skip=0)
    assert (compared.meta["a_iterations"], compared.meta["b_iterations"]) == (count, count)
    idle = dict(
        run.idle(by="iteration").drop_nulls("iteration")["iteration", "idle_ns"].iter_rows()
    )
    between = steps["idle_ns"] + steps["between_steps_ns"]
    assert idle == {step: ns for step, ns in zip(steps["iteration"], between, strict=True) if ns}
    parts = run.breakdown("stage,iteration").drop_nulls("iteration")
    summed = dict(parts.group_by("iteration").agg(pl.col("exposed_ns").sum()).iter_rows())
    assert summed == dict(steps["iteration", "window_ns"].iter_rows())


def _windows(trace: Trace) -> set[tuple[int, int]]:
    windows = with_steps(chosen_windows(trace, skip=0, per_iteration=True))
    steps = windows.drop_nulls("iteration").group_by("device", "iteration").agg(
        pl.col("start").min(), pl.col("end").max()
    )  # fmt: skip
    return set(steps["start", "end"].rows())


@pytest.mark.parametrize("name", RANGED)
def test_windows_are_the_same_without_ranges(real_run: Callable[[str], tk.Run], name: str) -> None:
    trace = real_run(name).trace
    nothing = trace.read("ranges").clear()
    bare = attribute(trace.with_tables({"ranges": nothing}, ()), default_rules())
    assert set(bare.read("iterations")["source"]) == {"structure"}
    assert _windows(bare) == _windows(trace)


@pytest.mark.parametrize(
    "name",
    ["kineto_ddp_2xa100_rank0.json.gz",
     pytest.param("unet_1xa100_1worker.nsys-rep", marks=pytest.mark.nightly)],
)  # fmt: skip
def test_links_have_the_copies_of_each_step(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    kinds = run.breakdown("kind,iteration").filter(
        pl.col("kind").cast(pl.String).is_in(["h2d", "d2h"])
    )
    copies = dict(kinds.group_by("iteration").agg(pl.col("ops").sum()).iter_rows())
    links = run.links(by="iteration").filter(pl.col("evidence") == "measured")
    assert dict(links["iteration", "transfers"].iter_rows()) == copies
