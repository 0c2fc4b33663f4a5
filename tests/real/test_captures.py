"""A CUDA graph's replay joined with its capture, against the capture's own events and a table."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit as tk

REPLAY, CAPTURE = "tracelens/vllm_decode_replay", "tracelens/vllm_decode_capture"


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


@pytest.fixture(scope="module")
def joined(real_trace, tmp_path_factory: pytest.TempPathFactory) -> tk.Run:
    store = tmp_path_factory.mktemp("store")
    captures = [real_trace(CAPTURE)]
    return tk.ingest(real_trace(REPLAY), captures=captures, store=store)[0]


def test_each_replayed_kernel_is_of_the_operator_that_was_captured(joined, real_trace) -> None:
    """Compare with the innermost operator around the launch of the same place, event by event."""
    captured = events(real_trace(CAPTURE))
    begin, end = (
        next(each["ts"] for each in captured if which in each["name"])
        for which in ("StreamBeginCapture", "StreamEndCapture")
    )
    launches = sorted(
        (each["ts"], each["args"]["kernel"]) for each in captured
        if each.get("cat") == "cuda_runtime" and "kernel" in each["args"]
        and begin < each["ts"] < end
    )  # fmt: skip
    operators = [each for each in captured if each.get("cat") in ("cpu_op", "user_annotation")]
    expected = [
        min((each for each in operators if each["ts"] <= at <= each["ts"] + each["dur"]),
            key=lambda each: each["dur"])["name"]
        for at, _ in launches
    ]  # fmt: skip
    trace = joined.trace
    ranges = trace.read("ranges").select("range", around="name")
    graph = (
        trace.read("ops").filter(pl.col("graph_node").is_not_null()).sort("start")
        .join(ranges, on="range", how="left", maintain_order="left")
    )  # fmt: skip
    assert graph.height == len(launches) == 421
    assert graph["name"].cast(pl.String).to_list() == [kernel for _, kernel in launches]
    names = graph["around"].str.replace(r", seq = \d+$", "").to_list()
    assert names == expected
    assert joined.warnings == ()


def test_times_by_operator_are_those_of_the_published_table(joined, real_trace) -> None:
    rows = joined.roofline()
    times = dict(rows.select("operator", pl.col("kernel_ns") / 1_000).rows())
    assert times["vllm::moe_forward"] == pytest.approx(7_171.5, abs=0.1)
    # 72 projections in the graph, and the last one, of 276.68 us, behind it.
    assert times["vllm::rocm_unquantized_gemm"] == pytest.approx(953.9 + 276.678, abs=0.1)
    by_hand = Counter(
        {"vllm::rocm_unquantized_gemm": 73, "aiter::rmsnorm2d_fwd_with_add_ck": 48,
         "_C::rotary_embedding": 24}
    )  # fmt: skip
    counts = dict(rows.select("operator", "operators").rows())
    assert {name: counts[name] for name in by_hand} == by_hand
    # 24 layers of a projection of 32 x 2,880 to 5,120, 32 x 4,096 to 2,880, and the experts' gate
    # of 32 outputs; and of 201,088 words at the end.
    products = 24 * (2_880 * 5_120 + 4_096 * 2_880 + 2_880 * 32) + 2_880 * 201_088
    flops = dict(joined.flops().select("operator", "flops").rows())
    assert flops["vllm::rocm_unquantized_gemm"] == 2 * 32 * products


def test_a_capture_changes_no_time(joined, real_run) -> None:
    plain = real_run(REPLAY)
    for key in ("device", "kind", "iteration"):
        columns = ["busy_ns", "total_ns"] if key == "kind" else ["busy_ns", "window_ns", "idle_ns"]
        assert joined.breakdown(key).select(columns).equals(plain.breakdown(key).select(columns))
    assert joined.breakdown("phase").equals(plain.breakdown("phase"))
    assert joined.idle().equals(plain.idle())
