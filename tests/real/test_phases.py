"""Phases of real serving traces, against the annotations in their JSON and TraceLens's tables."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest

import tracekit as tk


@pytest.mark.parametrize(
    ("trace", "phase", "requests", "tokens", "busy_ms"),
    [
        # step[EXTEND bs=15 toks=15360] inside of execute_15360_context_15(sq15360...)
        ("sglang_prefilldecode", "prefill", 15, 15_360, 492.8068642578125),
        # execute_32_context_0(...)_generation_32(sq32...)
        ("vllm_decode_replay", "decode", 32, 32, 10.717697265625),
    ],
)
def test_phases_are_those_of_the_annotations(
    real_run, trace: str, phase: str, requests: int, tokens: int, busy_ms: float
) -> None:
    (row,) = real_run(f"tracelens/{trace}").breakdown("phase").to_dicts()
    assert (row["phase"], row["steps"], row["requests"], row["tokens"]) == (
        phase,
        1,
        requests,
        tokens,
    )
    assert row["busy_ns"] / 1e6 == pytest.approx(busy_ms, abs=0.001)
    assert row["token_ns"] == pytest.approx(row["window_ns"] / tokens)


@pytest.mark.parametrize("trace", ["sglang_prefilldecode", "vllm_decode_replay"])
def test_questions_by_phase_are_those_of_the_annotation(trace: str, real_run, real_trace) -> None:
    """Hold them against the ops that the raw events say were launched inside of the step."""
    with gzip.open(real_trace(f"tracelens/{trace}")) as file:
        events = json.load(file)["traceEvents"]
    step = next(
        each for each in events
        if each.get("cat") == "user_annotation" and each["name"].startswith("execute_")
    )  # fmt: skip
    begin, end = step["ts"], step["ts"] + step["dur"]
    calls = {
        each["args"]["correlation"] for each in events
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and begin <= each["ts"] <= end
        and "correlation" in each["args"]
    }  # fmt: skip
    ops = [
        each for each in events
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and each["args"].get("correlation") in calls
    ]  # fmt: skip
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in ops)
    idle, reached = 0.0, spans[0][0]
    for first, last in spans:
        idle += max(0.0, first - reached)
        reached = max(reached, last)
    run = real_run(f"tracelens/{trace}")
    (row,) = run.idle("phase").to_dicts()
    assert row["idle_ns"] == pytest.approx(1_000 * idle, abs=len(spans))
    (phase,) = run.breakdown("phase")["phase"]
    assert row["phase"] == phase
    copies = [each for each in ops if "HtoD" in each["name"] or "Host -> Device" in each["name"]
              or "HostToDevice" in each["name"]]  # fmt: skip
    moved = run.links("phase,method").filter(method="h2d")
    assert moved.select("phase", "transfers").rows() == ([(phase, len(copies))] if copies else [])
    assert moved["bytes"].sum() == sum(each["args"]["bytes"] for each in copies)
    compared = tk.compare(run, run, "phase")
    (same,) = compared.rows.to_dicts()
    assert (same["phase"], same["verdict"]) == (phase, "not enough iterations")
    assert same["a_ns"] == pytest.approx(1_000 * (reached - spans[0][0]), abs=2)


def test_phases_of_two_runs_stand_beside_each_other(real_run) -> None:
    runs = [
        real_run(f"tracelens/{name}") for name in ("sglang_prefilldecode", "vllm_decode_replay")
    ]
    rows = tk.compare(*runs, "phase").rows
    assert rows.select("phase", "only_in").rows() == [("prefill", "A"), ("decode", "B")]
    assert rows.select(pl.col("a_ns", "b_ns").null_count()).row(0) == (1, 1)
