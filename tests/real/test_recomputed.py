"""What a backward pass computes again, held against the numbers that PyTorch gives operators."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

import tracekit as tk

NODE = re.compile(r"evaluate_function|(^|::)(\w+Backwards?\d*|AccumulateGrad)(, seq = \d+)?$")
NUMBERED = re.compile(r", seq = \d+")


def test_kernels_of_numbered_operators_in_backward_nodes_are_computed_again(
    real_run: Callable[[str], tk.Run],
) -> None:
    """Without a graph of its own a backward pass numbers only what runs forward again."""
    trace = real_run("tracelens/mi300_resnet_checkpoint.json.gz").trace
    ranges = {row["range"]: row for row in trace.read("ranges").iter_rows(named=True)}

    def runs_again(number: int) -> bool:
        numbered = False
        while (each := ranges.get(number)) is not None:
            if NODE.search(each["name"]):
                return numbered
            numbered |= NUMBERED.search(each["name"]) is not None
            number = each["parent"]
        return False

    ops = trace.read("ops").filter(pl.col("stage") == "BP", pl.col("range").is_not_null())
    expected = [runs_again(number) for number in ops["range"]]
    assert sum(expected) == 615
    assert ops["recomputed"].to_list() == expected
