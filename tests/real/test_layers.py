"""Layers of real trainings are those of the networks that they train."""

from __future__ import annotations

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis import breakdown

KINETO = "kineto_ddp_2xa100_rank0.json.gz"


def test_layers_of_mnist_are_those_of_its_network(real_run):
    """Two convolutions, two linear layers, two dropouts, in 59 steps; evaluation is none of it."""
    run = real_run("mnist_1xa100_phases")
    answer = breakdown(run.trace, "layer")
    table, meta = answer.rows, answer.meta
    network = table.head(12)
    assert network["layer"].str.strip_prefix("aten::").to_list() == [
        "conv2d 1", "relu 1", "conv2d 2", "relu 2", "max_pool2d 1", "dropout 1", "linear 1",
        "relu 3", "dropout 2", "linear 2", "log_softmax 1", "nll_loss_nd 1",
    ]  # fmt: skip
    assert (network["fp_ops"] % 59 == 0).all()
    assert (network["bp_ops"] >= 59).all()
    assert meta["joined"]["BP"]["sequence"] > 0.98
    stages = dict(run.breakdown("stage").select("stage", "ops").rows())
    assert (table["fp_ops"].sum(), table["bp_ops"].sum()) == (stages["FP"], stages["BP"])


def test_layers_of_a_pytorch_trace_are_those_of_resnet_50(real_trace, tmp_path):
    """Three steps: 53 convolutions and batch norms, 49 activations, one linear layer.

    The program takes its loss in the range of its backward pass, so it has no forward pass here.
    """
    path = real_trace("ddp_unet_4xa100_rank0").with_name(KINETO)
    if not path.exists():
        pytest.skip(f"no {KINETO} in {path.parent}")
    table = tk.ingest(path, store=tmp_path)[0].breakdown("layer")
    both = table.filter((pl.col("fp_ops") > 0) & (pl.col("bp_ops") > 0))
    kinds = both.group_by(pl.col("layer").str.replace(r" \d+$", "")).len()
    assert {name.rpartition("aten::")[2]: number for name, number in kinds.rows()} == {
        "conv2d": 53, "batch_norm": 53, "relu_": 49, "linear": 1, "max_pool2d": 1,
        "adaptive_avg_pool2d": 1,
    }  # fmt: skip


def test_backward_without_markers_is_of_no_known_layer(real_run):
    answer = breakdown(real_run("transformer_rtx3070ti").trace, "layer")
    table, why = answer.rows, answer.meta["unjoined"]
    assert why["BP"].startswith("autograd's numbered ranges were not recorded")
    assert table["layer"].to_list() == ["(forward, layer unknown)", "(backward, layer unknown)"]
