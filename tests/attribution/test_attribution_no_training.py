"""No training is claimed where there is none, whatever kernels are called."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from nsys_builder import NsysBuilder
from trace_builder import TraceBuilder, stages

import tracekit as tk
from tracekit.analysis import breakdown
from tracekit.attribution import Rules
from tracekit.model import Trace

UNKNOWN = ("OTHER", "none")
INFERRED = ("FP", "verdict")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096>)"
AS_TRAINING = Rules.load(verdict="training")
NO_ONE_TRAINS = "no process is known to train"


def _vector_addition() -> TraceBuilder:
    """Copy two vectors in and one out, and add them in between, again and again."""
    builder = TraceBuilder()
    for n in range(20):
        at = 100 * n
        for place, name in enumerate(("a", "b")):
            builder.op(f"{name} in {n}", at + place, kind="h2d", bytes=1 << 24)
        builder.op(f"vectorAdd {n}", at + 20)
        builder.op(f"sum out {n}", at + 40, kind="d2h", bytes=1 << 24)
    return builder


def _inference() -> TraceBuilder:
    """Answer requests of different length, with weights brought from the host for each layer."""
    builder = TraceBuilder()
    at = 0
    for request, length in enumerate((3, 1, 4, 1, 5, 9, 2, 6)):
        for layer in range(length):
            mark = f"{request} {layer}"
            builder.op(f"offloaded weights {mark}", at, kind="h2d", bytes=1 << 26)
            builder.op(f"nvjet_tst_qkv_gemm {mark}", at + 10)
            builder.op(f"flash_fwd_splitkv_kernel {mark}", at + 20)
            builder.op(f"cutlass_gemm_mlp {mark}", at + 30)
            builder.op(f"{ALL_REDUCE} {mark}", at + 40)
            at += 100 + 13 * layer
        builder.op(f"sampled {request}", at, kind="d2h", bytes=8)
        at += 1_000
    return builder


def _halos() -> TraceBuilder:
    """Exchange the edges of a field between two GPUs after each sweep."""
    builder = TraceBuilder()
    for n in range(30):
        builder.op(f"sweep {n}", 100 * n)
        builder.op(f"there {n}", 100 * n + 10, kind="p2p", src_device=0, dst_device=1)
        builder.op(f"back {n}", 100 * n + 20, kind="p2p", src_device=1, dst_device=0)
    return builder


@pytest.mark.parametrize(
    ("builder", "verdict", "found"),
    [
        (_vector_addition(), "other", ["OTHER"]),
        (_inference(), "inference", ["FP", "OTHER"]),
        (_halos(), "other", ["OTHER"]),
    ],
    ids=["vector addition", "inference", "halos"],
)
def test_nothing_has_a_stage_of_training(
    builder: TraceBuilder, verdict: str, found: list[str]
) -> None:
    trace = builder.judged()
    assert set(stages(trace).values()) <= {UNKNOWN, INFERRED}
    assert trace.read("verdicts")["verdict"].cast(pl.String).to_list() == [verdict]
    assert breakdown(trace).rows["stage"].cast(pl.String).to_list() == found
    meta = breakdown(trace).meta
    assert meta["wu_residual_ns"] is None
    assert meta["wu_residual_unknown"] == NO_ONE_TRAINS
    assert "given" not in meta


def test_kernels_of_inference_are_forward_and_copies_are_not() -> None:
    found = stages(_inference().judged())
    of_kernels = {
        at for name, at in found.items() if "weights" not in name and "sampled" not in name
    }
    assert of_kernels == {INFERRED}  # the collectives between layers, too
    assert found["offloaded weights 0 0"] == found["sampled 0"] == UNKNOWN


@pytest.mark.parametrize("lacking", [0, 30])
def test_work_from_before_the_recording_is_launched_before_all_others(lacking: int) -> None:
    """The host is passes ahead of the GPU: this work starts while later passes are launched."""
    builder = TraceBuilder()
    size = 20
    for op in range(6 * size):
        name = "cutlass_gemm" if op % 5 == 0 else f"elementwise_{chr(ord('a') + op % size)}"
        launch, start = 100 * op, 100 * op + 3_050
        builder.op(name, launch if op >= lacking else None, start=start, end=start + 90)
    assert builder.judged().read("verdicts").select("period", "repeats").rows() == [(size, 6.0)]


def test_where_it_is_not_known_whether_a_network_trains_nothing_is_forward() -> None:
    builder = TraceBuilder()
    for n in range(20):
        builder.op("cutlass_gemm", 100 * n)
        builder.op(f"fusion_{n}", 100 * n + 10)
    trace = builder.judged()
    assert set(stages(trace).values()) == {UNKNOWN}
    assert trace.read("verdicts")["verdict"].cast(pl.String).to_list() == ["unknown"]


def test_a_forward_range_makes_no_training_of_inference() -> None:
    builder = _inference()
    builder.range(0, 5, "forward")
    trace = builder.judged()
    found = stages(trace)
    assert found.pop("offloaded weights 0 0") == ("FP", "nvtx")
    assert set(found.values()) == {UNKNOWN, INFERRED}
    assert breakdown(trace).meta["wu_residual_unknown"] == NO_ONE_TRAINS
    assert _evidence(trace) == ("1 forward range, 31 collectives, 93 kernels of layers")


def _evidence(trace: Trace) -> str:
    return str(trace.read("verdicts")["evidence"].item())


def test_one_process_that_trains_makes_no_other_one_train() -> None:
    builder = _inference()
    builder.range(0, 1_000, "backward", thread=10)
    builder.op("trained", 5, thread=10)
    builder.op("adam_kernel", 2_000, thread=10)
    found = stages(builder.judged())
    assert (found.pop("trained"), found.pop("adam_kernel")) == (
        ("BP", "nvtx"), ("WU", "kernel_name"),
    )  # fmt: skip
    assert set(found.values()) == {UNKNOWN, INFERRED}


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        (_vector_addition(), {"a in 3": ("IO", "copy_kind"), "vectorAdd 3": UNKNOWN}),
        (
            _inference(),
            {
                "flash_fwd_splitkv_kernel 2 1": ("FP", "kernel_name"),
                "cutlass_gemm_mlp 2 1": UNKNOWN,
                "offloaded weights 2 1": ("IO", "copy_kind"),
                f"{ALL_REDUCE} 2 1": ("WU", "gradient_exchange"),
            },
        ),
        (_halos(), {"there 3": ("WU", "gradient_exchange"), "sweep 3": UNKNOWN}),
    ],
    ids=["vector addition", "inference", "halos"],
)
def test_the_user_may_say_that_it_trains(
    builder: TraceBuilder, said: dict[str, tuple[str, str]]
) -> None:
    trace = builder.judged(AS_TRAINING)
    found = stages(trace)
    assert {name: found[name] for name in said} == said
    verdict = trace.read("verdicts").select(pl.col("verdict").cast(pl.String), "given")
    assert verdict.rows() == [("training", True)]
    meta = breakdown(trace).meta
    assert meta["given"] is True
    assert meta["wu_residual_ns"] is None  # names alone tell no pass
    assert meta["wu_residual_unknown"] == (
        "the forward pass is not known by ranges, threads or structure"
    )


def test_the_user_may_say_that_it_does_not_train() -> None:
    builder = TraceBuilder()
    for n in range(4):
        builder.range(100 * n, 100 * n + 40, "forward")
        builder.range(100 * n + 40, 100 * n + 80, "backward")
        builder.op(f"forward {n}", 100 * n + 10)
        builder.op(f"backward {n}", 100 * n + 50)
        builder.op(f"adam {n}", 100 * n + 90)
    trained, told = builder.judged(), builder.judged(Rules.load(verdict="other"))
    assert stages(trained)["adam 1"] == ("WU", "kernel_name")
    assert breakdown(trained).meta["wu_residual_ns"] is not None
    found = stages(told)
    assert found["adam 1"] == UNKNOWN
    assert found["forward 1"] == ("FP", "nvtx")  # a range says what it says
    assert breakdown(told).meta["wu_residual_unknown"] == NO_ONE_TRAINS


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Inference of one layer, in a file."""
    path = tmp_path / "served.sqlite"
    with NsysBuilder(path, schema="3.11.1") as nsys:
        for n in range(10):
            at = 10_000 * n * (1 + n % 3)
            nsys.launch(at, at + 100, at + 600, name="flash_fwd_kernel")
            nsys.launch(at + 50, at + 600, at + 900, name="ampere_sgemm_128x64_tn")
    return path


def test_of_a_file(export: Path, tmp_path: Path) -> None:
    run, _ = tk.ingest(export, store=tmp_path / "store")
    assert run.breakdown()["stage"].cast(pl.String).to_list() == ["FP"]
    meta = run.info.answer().meta
    assert meta["verdict"] == {"inference": 1}
    assert meta["evidence"][0] == "inference: 20 kernels of layers"
    assert "given" not in meta


def test_of_a_file_that_is_said_to_train(export: Path, tmp_path: Path) -> None:
    run, _ = tk.ingest(export, store=tmp_path / "store", verdict="training")
    assert set(run.breakdown()["stage"].cast(pl.String)) == {"FP", "OTHER"}
    meta = run.info.answer().meta
    assert meta["verdict"] == {"training": 1}
    assert meta["given"] is True
    assert meta["weak"] == [{"stage": "FP", "source": "kernel_name", "share": 5 / 8}]
    assert meta["evidence"][0] == "training (as given): 20 kernels of layers"
