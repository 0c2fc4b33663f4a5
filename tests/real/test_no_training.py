"""Real programs that train nothing: a solver on two GPUs, and an inference server's exchanges."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from trace_builder import default_rules

import tracekit as tk
from tracekit.analysis import breakdown
from tracekit.attribution import Rules, attribute

RunOf = Callable[[str], tk.Run]
SOLVERS = ("jacobi_p2p_nvlink_8xv100", "jacobi_p2p_staged_8xv100")
ALL = (*SOLVERS, "sendrecv_2xh100_two_processes")


def _stages(run: tk.Run) -> set[tuple[str, str]]:
    ops = run.table("ops").select("stage", "stage_source").unique().collect()
    return set(ops.cast(pl.String).rows())


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_training_by_names_or_copies(real_run: RunOf, name: str) -> None:
    verdicts = real_run(name).table("verdicts").select("verdict", "given", "decides").collect()
    assert "training" not in set(verdicts["verdict"])
    assert not verdicts["given"].any()
    assert not verdicts["decides"].any()
    # What ranges say stays: the inference marks forward passes of its decoder.
    assert _stages(real_run(name)) <= {("OTHER", "none"), ("FP", "nvtx"), ("FP", "verdict")}


@pytest.mark.parametrize("name", ALL)
def test_there_is_no_residual_of_passes(real_run: RunOf, name: str) -> None:
    meta = real_run(name).breakdown.answer().meta
    assert meta["wu_residual_ns"] is None
    assert meta["wu_residual_unknown"] == "no process is known to train"
    assert "training" not in meta["verdict"]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_is_no_network(real_run: RunOf, name: str) -> None:
    run = real_run(name)
    (verdict,) = run.table("verdicts").select("verdict", "evidence", "cut").collect().rows()
    assert verdict == ("other", "no sign of a network", None)
    assert _stages(run) == {("OTHER", "none")}
    assert run.breakdown.answer().meta["verdict"] == {"other": 1}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("new_formats/kineto_amd/mi210__gpu_only_trace__gpu_only_trace", "training"),
        ("tracelens/mi300_resnet_checkpoint", "training"),
        ("tracelens/h100_qwen", "inference"),
        ("tracelens/sglang_prefilldecode", "inference"),
        ("tracelens/vllm_decode_capture", "inference"),
        ("tracelens/vllm_decode_replay", "inference"),
        ("llm_2_7b_forward", "inference"),
    ],
)
def test_verdicts_of_programs_of_all_makers(real_run: RunOf, name: str, verdict: str) -> None:
    run = real_run(name)
    assert run.table("verdicts").select("verdict").collect()["verdict"].to_list() == [verdict]
    kernels = run.table("ops").filter(pl.col("kind").cast(pl.String) == "compute").collect()
    forward = kernels["stage"].cast(pl.String) == "FP"
    if verdict != "training":
        assert forward.all() == forward.any() == (verdict == "inference")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tracelens/sglang_prefilldecode", [534]),  # `step[...]` lies in `execute_...`
        ("tracelens/vllm_decode_replay", [434]),
        ("tracelens/vllm_decode_capture", []),
    ],
)
def test_steps_of_servers(real_run: RunOf, name: str, steps: list[int]) -> None:
    assert real_run(name).table("iterations").select("ops").collect()["ops"].to_list() == steps


def test_passes_that_repeat_exactly(real_run: RunOf) -> None:
    run = real_run("llm_2_7b_forward")
    steps = run.table("iterations").select("ops", "whole").collect()
    assert steps.rows() == [(1_832, True)] * 10
    (told,) = run.table("verdicts").select("period", "repeats", "whole").collect().rows()
    assert told == (1_832, 10.0, 10)


def test_grids_that_count_threads(real_run: RunOf) -> None:
    """Tensile's kernels are launched with 256 threads in each block, and grids of threads."""
    ops = real_run("tracelens/sglang_prefilldecode").table("ops").collect()
    sizes = dict(
        ops.group_by(pl.col("name").cast(pl.String)).agg(pl.col("launch_size").max()).rows()
    )
    found = sorted(size for name, size in sizes.items() if name.startswith("Cijk_"))
    assert found == [152_064, 229_632, 491_520, 2_949_120]


def test_halos_are_gradients_where_the_user_says_that_it_trains(real_run: RunOf) -> None:
    run = real_run(SOLVERS[0])
    trace = attribute(run.trace, Rules.load(verdict="training"))
    copies = trace.read("ops").filter(pl.col("kind") == "p2p")
    assert copies.height == 4_004
    told = copies.select("stage", "stage_source").cast(pl.String).unique().rows()
    assert told == [("WU", "gradient_exchange")]
    meta = breakdown(trace).meta
    assert meta["verdict"] == {"training": 1}
    assert meta["given"] is True
    (row,) = breakdown(trace).rows.filter(pl.col("stage") == "WU").to_dicts()
    assert row["ops"] >= 4_004
    # What is given is no evidence of passes.
    assert meta["wu_residual_ns"] is None
    assert "not known" in meta["wu_residual_unknown"]
    # Taken back, nothing of it stays.
    again = attribute(trace, default_rules()).read("ops")
    assert again["stage"].cast(pl.String).unique().to_list() == ["OTHER"]
