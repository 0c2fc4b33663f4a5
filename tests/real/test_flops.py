"""FLOPs of real traces whose operators have sizes, counted again from the recorded text."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path

import pytest

import tracekit as tk

DLRM = "kineto_dlrm_8xv100/worker0_step_12.1694128201545.pt.trace.json"


def test_a_language_model_under_pyprof(real_run) -> None:
    """Its markers say the forward sizes; each gradient of C = A B costs what C did."""
    run = real_run("lm_pyprof_nvprof")
    markers = run.table("ranges").select("name").collect()["name"].drop_nulls()
    said = [ast.literal_eval(name) for name in markers if name.startswith("{'mod'")]
    forward = 0
    for each in said:
        shapes = [list(a["shape"]) for a in each["args"] if a["type"] == "tensor"]
        if each["op"] == "linear":
            forward += 2 * math.prod(shapes[0]) * shapes[1][0]
        elif each["op"] == "bmm":
            forward += 2 * math.prod(shapes[0]) * shapes[1][-1]
    found = dict(run.flops("operator").select("operator", "flops").iter_rows())
    assert found.keys() == {"linear", "bmm", "mm"}
    assert sum(found.values()) == 3 * forward == 30_087_120_000
    assert run.flops("device")["unknown"].to_list() == [0]
    assert run.flops.answer().meta["mfu_unknown"] == "no steps are known"
    # Look-ups of 35 x 20 and 35 x 1 rows of 200 numbers, read by 64-bit indices, and written.
    moved = dict(run.roofline().select("operator", "bytes").iter_rows())
    assert moved["embedding"] == (700 + 35) * (8 + 2 * 4 * 200)


def test_all_ranks_of_one_model_compute_the_same(dlrm_run: tk.Run, real_trace) -> None:
    rows = dlrm_run.flops("device")
    assert rows["unknown"].to_list() == [0] * 8
    assert set(rows["flops"]) == {_linears_and_products(real_trace(DLRM))}
    mfu = dlrm_run.flops.answer().meta["mfu"]
    assert 0 < mfu < 0.001


def _linears_and_products(path: Path) -> int:
    """Add up what the trace's JSON says: `linear` and `bmm` forward, `mm` and `bmm` backward."""
    total = 0
    for event in json.loads(path.read_text())["traceEvents"]:
        dims = (event.get("args") or {}).get("Input Dims")
        if dims and re.fullmatch("aten::(mm|bmm|linear)", event["name"]):
            a, b = dims[:2]
            total += 2 * math.prod(a) * (b[0] if event["name"].endswith("linear") else b[-1])
    return total


def test_what_checkpointing_computes_again(real_run) -> None:
    """Its README says 101.7 of 421 GFLOP; all its operands are bfloat16."""
    run = real_run("tracelens/mi300_resnet_checkpoint")
    answer = run.flops.answer("operator,precision")
    assert set(answer.rows["precision"]) == {"bf16"}
    assert answer.rows["flops"].sum() == pytest.approx(421e9, rel=0.001)
    again = answer.rows["recomputed_flops"].sum()
    assert again == pytest.approx(101.7e9, rel=0.001)
    meta = answer.meta
    own = 1 - meta["step_recomputed_flops"] / meta["step_flops"]
    assert meta["mfu"] / meta["hfu"] == pytest.approx(own, rel=1e-9)


def test_a_trace_without_sizes_says_so(real_run) -> None:
    answer = real_run("mnist_1xa100_phases").flops.answer("operator")
    assert answer.rows["flops"].null_count() == answer.rows.height
    assert any("record_shapes=True" in each for each in answer.warnings)
    assert answer.meta["mfu"] is None
