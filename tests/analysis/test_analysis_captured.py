"""Operators whose kernels a CUDA graph replays: counted once for each replay."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from nsys_builder import NsysBuilder
from trace_builder import default_rules, training

from tracekit.analysis.arithmetic import flops, roofline
from tracekit.attribution import attribute
from tracekit.model import Trace
from tracekit.sources import read

MM, LINEAR = "aten::mm, sizes = [[2, 3], [3, 4]]", "aten::linear, sizes = [[8, 2], [5, 2], [5]]"
GEMM = "ampere_sgemm_128x64_nn"


def captured(path: Path, *, is_known: bool = True) -> Trace:
    """Two operators that are captured before two steps, which replay them; then one runs eagerly.

    Of `linear` two kernels are captured, of `mm` one; a fourth node is in no operator.
    """
    nsys = NsysBuilder(path)
    for at, name, nodes in ((100, MM, (1,)), (200, LINEAR, (2, 3)), (300, "other", (4,))):
        nsys.push_pop(at, at + 90, name)
        for place, node in enumerate(nodes):
            begin = at + 10 + 20 * place
            nsys.call(begin, begin + 9, correlation=begin)
            if is_known:
                nsys.graph_node(begin + 1, node)
                nsys.graph_node(500 + node, 10 + node, node)
    for step in range(2):
        at = 1_000 * (step + 1)
        nsys.push_pop(at, at + 900, f"step {step}")
        nsys.call(at + 10, at + 20, correlation=at, name="cudaGraphLaunch_v10000")
        for place, name in enumerate((GEMM, GEMM, "bias", "elementwise")):
            start = at + 30 + 100 * place
            nsys.kernel(start, start + 50 + place, correlation=at, graph_node=11 + place, name=name)
    nsys.push_pop(3_000, 3_100, MM)
    nsys.call(3_010, 3_020, correlation=9)
    nsys.kernel(3_030, 3_060, correlation=9, name=GEMM)
    nsys.close()
    return attribute(read(path), training(default_rules()))


def test_each_replay_counts_as_its_operator(tmp_path: Path) -> None:
    rows = roofline(captured(tmp_path / "t.sqlite"), "operator,sizes").rows.sort("operator")
    # By hand: 2 x 2 x 3 x 4 and 2 x 8 x 2 x 5 FLOPs; in the steps each twice, and `mm` eagerly
    # after them, which is in no step.
    columns = ["operator", "operators", "flops", "bytes", "kernel_ns"]
    assert rows.select(columns).rows() == [
        (None, 2, None, None, 2 * 53),
        ("linear", 2, 2 * 160.0, 2 * 4 * (16 + 10 + 5 + 40.0), 2 * (51 + 52)),
        ("mm", 2, 2 * 48.0, 2 * 4 * (6 + 12 + 8.0), 2 * 50),
    ]


def test_replays_are_of_their_own_steps(tmp_path: Path) -> None:
    answer = flops(captured(tmp_path / "t.sqlite"), "iteration")
    assert answer.rows.select("iteration", "operators", "flops").rows() == [
        (0, 2, 208.0), (1, 2, 208.0)
    ]  # fmt: skip
    assert answer.meta["outside_flops"] == 48.0


def test_kernels_of_graphs_without_a_known_capture_have_no_operator(tmp_path: Path) -> None:
    rows = flops(captured(tmp_path / "t.sqlite", is_known=False)).rows
    assert rows.select("operator", "operators", "flops").rows() == [(None, 4, None)]
    every = flops(captured(tmp_path / "u.sqlite")).rows
    assert every.filter(pl.col("operator").is_null()).is_empty()
