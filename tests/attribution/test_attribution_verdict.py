"""What a process does, and how that is put into words: literal tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from chunk_helpers import recording_of
from trace_builder import TraceBuilder, default_rules

from tracekit.attribution import Rules, attribute
from tracekit.attribution._verdict import count_names, judge, kernel_hints
from tracekit.errors import RuleError
from tracekit.support.wording import count

SIGNS = ("optimizer", "backward", "layers", "exchanges")
ALL_SIGNS = (*SIGNS, "data_gradients", "weight_gradients", "compiled", "unnamed", "kernels",
             "kinds")  # fmt: skip
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"


def _signs(builder: TraceBuilder, chunk: int = 1_000_000) -> list[tuple[int, ...]]:
    ops = recording_of(builder.trace(), [chunk]).streams["ops"]
    found = kernel_hints(count_names(ops), default_rules()).sort("process")
    return found.select("process", "ops", *SIGNS).rows()


@pytest.mark.parametrize(
    ("name", "row", "signs"),
    [
        ("vectorAdd(float const*, float const*, float*, int)", {}, (0, 0, 0, 0)),
        ("void jacobi_kernel<(int)32, (int)32>(float*, float const*)", {}, (0, 0, 0, 0)),
        ("void check_convergence<double>(double const*, int)", {}, (0, 0, 0, 0)),
        ("void convert_layout<double>(double const*, int)", {}, (0, 0, 0, 0)),
        ("void implicit_convolve_sgemm<float, (int)128>", {}, (0, 0, 1, 0)),
        ("void conv2d_grouped_direct_kernel<float>", {}, (0, 0, 1, 0)),
        ("void DepthwiseConvFwdKernel<float>", {}, (0, 0, 1, 0)),
        ("ampere_sgemm_128x64_tn", {}, (0, 0, 1, 0)),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", {}, (0, 0, 1, 0)),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", {}, (0, 0, 1, 0)),
        ("void layer_norm_kernel<float>", {}, (0, 0, 1, 0)),
        ("softmax_warp_backward<float>", {}, (0, 1, 1, 0)),
        ("sm80_xmma_wgrad_implicit_gemm_tf32f32", {}, (0, 1, 1, 0)),
        ("threshold_backward_kernel", {}, (0, 1, 0, 0)),
        ("multi_tensor_apply_kernel<AdamFunctor>", {}, (1, 0, 0, 0)),
        ("amp_update_scale_cuda_kernel", {}, (1, 0, 0, 0)),
        (ALL_REDUCE, {}, (0, 0, 0, 1)),
        (SEND_RECV, {}, (0, 0, 0, 0)),  # may carry activations, or halos
        ("[CUDA memcpy PtoP]", {"kind": "p2p"}, (0, 0, 0, 0)),
        ("gemm backward", {"kind": "h2d"}, (0, 0, 0, 0)),  # no kernel
    ],
)
def test_what_the_name_of_a_kernel_is_a_sign_of(
    name: str, row: Mapping[str, Any], signs: tuple[int, ...]
) -> None:
    builder = TraceBuilder()
    builder.op(name, 10, **row)
    assert _signs(builder) == [(0, 1, *signs)]


@pytest.mark.parametrize(
    ("name", "signs"),
    [
        # AMD's: convolutions of MIOpen by pass, and what both passes run
        ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x256x32", ("layers",)),
        ("igemm_bwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x128x32", ("data_gradients", "layers")),
        ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x16",
         ("backward", "layers", "weight_gradients")),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS",
         ("backward", "layers", "weight_gradients")),
        ("batched_transpose_16x64_pack_1x4_ediv_1x2_half", ()),
        ("SubTensorOpWithScalar1d", ()),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT32x32x64", ("layers",)),
        ("MIOpenBatchNormBwdSpatial", ("backward", "layers")),
        ("MIOpenBatchNormFwdTrainSpatial", ("layers",)),
        ("_ZN7ck_tile6kentryILi2ENS_22FmhaBwdDQDKDVKernelINS", ("backward", "layers")),
        # or a transposed convolution's forward pass
        ("sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32", ("data_gradients", "layers")),
        # compilers'
        ("fusion_3", ("compiled", "unnamed")),
        ("input_add_reduce_fusion", ("compiled",)),
        ("triton__0d1d2d3", ("compiled", "unnamed")),
        ("r_64_32_8_16_3n1", ("compiled", "unnamed")),  # tinygrad: r_ reduces, E_ does not
        ("E_1024_32_4", ("compiled", "unnamed")),
        ("E_field", ("unnamed",)),
        ("triton_poi_fused_add_0", ()),
        ("triton_for_fused_0", ("optimizer",)),
        ("jacobi_kernel(float*, float const*, float*, int, int, int)", ("unnamed",)),
    ],
)  # fmt: skip
def test_names_of_amd_and_of_compilers(name: str, signs: tuple[str, ...]) -> None:
    builder = TraceBuilder()
    builder.op(name, 10)
    ops = recording_of(builder.trace(), [1]).streams["ops"]
    found = (
        kernel_hints(count_names(ops), default_rules())
        .drop("process", "ops", "kinds")
        .row(0, named=True)
    )
    assert {sign for sign, count in found.items() if count} == {*signs, "kernels"}


def test_signs_are_added_up_by_process_over_chunks() -> None:
    builder = TraceBuilder()
    for n in range(5):
        builder.op("sgemm", 10 * n)
        builder.op("softmax_warp_backward", 10 * n + 1, thread=10)
    builder.op("adam", 60, thread=10)
    builder.op("copy", 70, thread=20, kind="h2d")
    expected = [(0, 5, 0, 0, 5, 0), (1, 6, 1, 5, 5, 0), (2, 1, 0, 0, 0, 0)]
    assert _signs(builder) == expected
    assert _signs(builder, 2) == expected


def test_a_trace_without_ops_has_no_signs() -> None:
    builder = TraceBuilder()
    builder.range(0, 9, "forward")
    assert _signs(builder) == []


def _judged(rules: Rules | None = None, **known: Any) -> list[tuple[object, ...]]:
    """Judge one process by what is known of it; `claimed` is what its structure says."""
    passes = [(0, stage, known[stage]) for stage in ("FP", "BP", "WU") if stage in known]
    autograd = [(0, known["autograd"])] if "autograd" in known else []
    serving = [(0, known["serves"])] if "serves" in known else []
    usual = {"kernels": 1_000, "kinds": min(known.get("layers", 0), 9)}
    signs = [(0, 1_000, *((usual | known).get(sign, 0) for sign in ALL_SIGNS))]
    found = judge(
        pl.Series([0], dtype=pl.Int32),
        _frame(passes, stage=pl.String, count=pl.UInt32),
        _frame(autograd, count=pl.UInt32),
        _frame(serving, count=pl.UInt32),
        _frame(signs, ops=pl.Int64, **dict.fromkeys(ALL_SIGNS, pl.Int64)),
        {0: True} if known.get("claimed") else {},
        rules or default_rules(),
    )
    assert found.columns == ["process", "verdict", "given", "evidence", "trains", "infers"]
    return found.select(pl.col("verdict").cast(pl.String), "given", "evidence", "trains").rows()


def _frame(rows: list[tuple[Any, ...]], **columns: Any) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"process": pl.Int32, **columns}, orient="row")


@pytest.mark.parametrize(
    ("known", "verdict", "evidence"),
    [
        ({}, "other", "no sign of a network"),
        ({"FP": 1}, "inference", "1 forward range"),
        ({"layers": 1}, "unknown", "1 kernel of layers"),
        ({"layers": 1_234, "kinds": 1}, "unknown", "1,234 kernels of layers"),
        ({"layers": 1_234}, "inference", "1,234 kernels of layers"),
        ({"FP": 3, "layers": 2}, "inference", "3 forward ranges, 2 kernels of layers"),
        ({"BP": 59}, "training", "59 backward ranges"),
        ({"FP": 2, "WU": 1}, "training", "2 forward ranges, 1 weight update range"),
        ({"FP": 2, "BP": 2, "layers": 9}, "training", "2 forward ranges, 2 backward ranges"),
        ({"autograd": 1}, "training", "1 autograd thread"),
        ({"claimed": True}, "training", "the structure of its GPU work"),
        # An update alone says little: a range called `optimizer` may be that of a query.
        ({"WU": 4}, "other", "4 weight update ranges"),
        # One kind of names alone says little: there are solvers called momentum, and halos.
        ({"optimizer": 7}, "unknown", "7 kernels of optimizers (by name)"),
        ({"exchanges": 7}, "other", "7 collectives"),
        ({"optimizer": 7, "exchanges": 7}, "unknown",
         "7 kernels of optimizers (by name), 7 collectives"),
        ({"backward": 7}, "unknown", "7 kernels of backward passes (by name)"),
        ({"backward": 7, "layers": 1}, "unknown",
         "7 kernels of backward passes (by name), 1 kernel of layers"),
        ({"FP": 7, "backward": 7}, "unknown",
         "7 forward ranges, 7 kernels of backward passes (by name)"),
        # Nothing but a backward pass computes gradients of weights.
        ({"backward": 7, "weight_gradients": 1}, "training",
         "7 kernels of backward passes (by name)"),
        # That of its input may be a transposed convolution, which generators of images run.
        ({"layers": 9, "data_gradients": 1}, "inference", "9 kernels of layers"),
        ({"data_gradients": 1, "optimizer": 1}, "training",
         "1 kernel of optimizers (by name), 1 kernel of backward passes (by name)"),
        # Names that say nothing may be a backward pass.
        ({"layers": 400, "unnamed": 100}, "inference", "400 kernels of layers"),
        ({"layers": 400, "unnamed": 101}, "unknown",
         "400 kernels of layers, 101 kernels of unknown purpose"),
        ({"FP": 1, "unnamed": 101}, "unknown", "1 forward range, 101 kernels of unknown purpose"),
        ({"unnamed": 1_000}, "other", "no sign of a network"),
        ({"compiled": 1, "unnamed": 1_000}, "unknown", "1,000 kernels of unknown purpose"),
        # A server serves, whatever its kernels are called.
        ({"serves": 2, "unnamed": 600}, "inference", "2 ranges of a server"),
        ({"serves": 2, "layers": 9, "backward": 1}, "unknown",
         "1 kernel of backward passes (by name), 2 ranges of a server, 9 kernels of layers"),
        ({"serves": 2, "autograd": 1}, "training", "1 autograd thread, 2 ranges of a server"),
        ({"backward": 7, "optimizer": 1}, "training",
         "1 kernel of optimizers (by name), 7 kernels of backward passes (by name)"),
        ({"backward": 1, "exchanges": 1}, "training",
         "1 kernel of backward passes (by name), 1 collective of data parallelism"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_process_does(known: dict[str, Any], verdict: str, evidence: str) -> None:
    assert _judged(**known) == [(verdict, False, evidence, verdict == "training")]


@pytest.mark.parametrize("verdict", ["training", "inference", "other"])
def test_what_the_user_says_stands_beside_the_evidence_that_is_there(verdict: str) -> None:
    given = replace(default_rules(), verdict=verdict)
    assert _judged(given, layers=2, backward=0) == [
        (verdict, True, "2 kernels of layers", verdict == "training")
    ]


@pytest.mark.parametrize("verdict", ["cut", "unknown"])
def test_there_is_no_other_verdict_to_give(verdict: str) -> None:
    with pytest.raises(RuleError, match=f"unknown verdict '{verdict}'"):
        Rules.load(verdict=verdict)


def test_processes_are_judged_apart() -> None:
    found = judge(
        pl.Series([0, 1, 3], dtype=pl.Int32),
        _frame([(1, "BP", 2), (3, "FP", 2)], stage=pl.String, count=pl.UInt32),
        _frame([], count=pl.UInt32),
        _frame([], count=pl.UInt32),
        _frame(
            [(0, 1, *([0] * len(ALL_SIGNS)))], ops=pl.Int64, **dict.fromkeys(ALL_SIGNS, pl.Int64)
        ),
        {},
        default_rules(),
    )
    assert found.select("process", "verdict", "evidence").rows() == [
        (0, "other", "no sign of a network"),
        (1, "training", "2 backward ranges"),
        (3, "inference", "2 forward ranges"),
    ]


def test_a_process_without_kernels_beside_one_that_has_some_infers_nothing() -> None:
    """As a data loader's worker, whose ranges are named after what a transform does."""
    builder = TraceBuilder()
    for n in range(4):
        builder.range(100 * n, 100 * n + 50, "forward", thread=10)
        builder.op("ampere_sgemm_128x64_tn", 100 * n + 10)
    verdicts = builder.judged().read("verdicts")
    found = dict(verdicts.select("process", pl.col("verdict").cast(pl.String)).iter_rows())
    assert found[1] == "unknown"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "autograd thread", "1 autograd thread"),
        (2, "autograd thread", "2 autograd threads"),
        (1_000, "kernel of layers", "1,000 kernels of layers"),
        (0, "backward range", "0 backward ranges"),
        (1, "collective of data parallelism", "1 collective of data parallelism"),
    ],
)
def test_numbers_with_nouns(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_a_process_that_no_table_lists_may_have_a_period() -> None:
    builder = TraceBuilder()
    for n in range(40):
        for place, name in enumerate(("gemm", "relu", "softmax")):
            builder.op(name, 100 * n + 10 * place)
    trace = builder.trace()
    found = attribute(
        trace.with_tables({"processes": trace.read("processes").head(0)}), default_rules()
    )
    assert found.read("iterations").height == 40


def test_names_are_counted_alike_in_a_table_and_by_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TraceBuilder()
    for at, name in enumerate(("gemm", "adam", "gemm", "relu", "gemm")):
        builder.op(name, 10 * at, thread=10 * (at % 2))
    ops = recording_of(builder.trace(), [5]).streams["ops"]
    columns = ["process", pl.col("name").cast(pl.String)]
    table = count_names(ops).sort(columns)
    assert table.select(*columns, "ops").rows() == [
        (0, "gemm", 3), (1, "adam", 1), (1, "relu", 1),
    ]  # fmt: skip
    monkeypatch.setattr("tracekit.attribution._verdict._DENSE", -1)
    assert count_names(ops).sort(columns).equals(table)


def test_structure_is_not_asked_of_work_whose_launches_are_not_known() -> None:
    builder = TraceBuilder()
    for step in range(12):
        for place, name in enumerate(("gemm", "gemm_dgrad", "adam")):
            builder.op(name, start=100 * step + 10 * place)
    [verdict] = builder.judged().read("verdicts").to_dicts()
    assert (verdict["verdict"], verdict["structure"]) == ("training", None)
