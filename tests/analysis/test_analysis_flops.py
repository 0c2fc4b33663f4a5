"""What operators compute, by hand: one of each nest, backward passes, precision, peaks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.arithmetic import flops
from tracekit.analysis.operators import multiplies, precision_by_name
from tracekit.errors import UsageError
from tracekit.machine import peak_flops
from tracekit.model import TABLES, Trace

GEMM = "ampere_sgemm_128x64_nn"
DGRAD, WGRAD = "sm80_xmma_dgrad_tf32f32", "sm80_xmma_wgrad_tf32f32"


def nvtx(name: str, *sizes: list[int], seq: int | None = None) -> str:
    number = "" if seq is None else f", seq = {seq}"
    return f"aten::{name}{number}, sizes = {list(sizes)}"


def pyprof(name: str, *shapes: tuple[int, ...]) -> str:
    given = [{"name": "", "type": "tensor", "shape": s, "dtype": "float32"} for s in shapes]
    return str({"mod": "torch", "op": name, "args": given})


def kineto(dims: list[Any], concrete: list[str] | None = None, dtype: str = "float") -> str:
    given = {
        "Input Dims": json.dumps(dims),
        "Input type": json.dumps([dtype if each else "" for each in dims]),
        "Concrete Inputs": None if concrete is None else json.dumps(concrete),
    }
    return json.dumps(given, separators=(",", ":"))


def each(calls: Iterable[tuple[str, str | None]], kernel: str = GEMM) -> list[dict[str, Any]]:
    """Return the row of each operator of a program that calls one a step: name and payload."""
    b = TraceBuilder()
    for number, (name, payload) in enumerate(calls):
        at = 1000 * number
        b.iteration(number, at, at + 1000)
        b.range(at, at + 100, name, payload=payload)
        b.op(kernel, at=at + 10, iteration=number)
    return flops(b.trace(), "iteration").rows.to_dicts()


COMPUTE = [
        (nvtx("mm", [2, 3], [3, 4]), 2 * 2 * 3 * 4),
        (nvtx("addmm", [4], [2, 3], [3, 4], [], []), 48),
        (nvtx("mv", [2, 3], [3]), 12),
        (nvtx("bmm", [7, 2, 3], [7, 3, 4]), 7 * 48),
        (nvtx("baddbmm_", [7, 2, 4], [7, 2, 3], [7, 3, 4]), 7 * 48),
        (nvtx("matmul", [5, 1, 2, 3], [6, 3, 4]), 5 * 6 * 48),
        (nvtx("matmul", [5, 2, 3], [3]), 5 * 12),
        (nvtx("matmul", [2, 3], [4, 4]), None),  # these do not multiply
        (nvtx("linear", [8, 2, 3], [5, 3], [5]), 2 * 16 * 3 * 5),
        (nvtx("linear", [8, 2, 3], [3]), 2 * 16 * 3),
        (nvtx("mm", [2, 0], [0, 4]), 0),
        (nvtx("conv_transpose2d", [1, 4, 5, 5], [4, 6, 3, 3], []), 2 * (4 * 6 * 9) * 25),
        # 2 heads of 3 queries by 5 keys of 4, and these by 5 values of 6
        (nvtx("scaled_dot_product_attention", [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 6]),
         2 * (2 * 3 * 4 * 5 + 2 * 3 * 5 * 6)),
        (nvtx("_scaled_dot_product_flash_attention_backward", [1, 2, 3, 6], [1, 2, 3, 4],
              [1, 2, 5, 4], [1, 2, 5, 6]), 2 * 2 * (120 + 180)),
        ("flash_attn::_flash_attn_forward, sizes = [[1, 3, 2, 4], [1, 5, 2, 4], [1, 5, 2, 6]]",
         2 * (120 + 180)),
        (nvtx("mm", [1 << 40, 1 << 40], [1 << 40, 1 << 40]), None),  # of no machine
        ("aten::mm, seq = 3", None),
        (f"aten::mm, seq = {10**30}, sizes = [[2, 3], [3, 4]]", 48),
        ("aten::mm, seq = 3, op_id = 9, sizes = [[2, 3], [3, 4]], input_op_ids = [[1,0]]", 48),
        ("aten::mm, sizes = [[2, 3], [3", None),
        (pyprof("mm", (2, 3), (3, 4)), 48),
]  # fmt: skip


def test_what_an_operator_computes() -> None:
    found = each((name, None) for name, _ in COMPUTE)
    told = [(row["flops"], row["unknown"]) for row in found]
    assert told == [(flops, int(flops is None)) for _, flops in COMPUTE]


def test_sizes_that_are_none_are_unknown() -> None:
    wrong = [
        "[[2 3], [3, 4]]", "[[2, 3,], [3, 4]]", "[[02, 3], [3, 4]]", "[[2, -3], [-3, 4]]", "[[]]",
        "[[2, 3] [3, 4]]", "[[99999999999999999999, 3], [3, 4]]", "[2, 3]", "[]", "[[2, 3]]", "{}",
        '["2, 3"]', "[[[2, 3], [3, 4]]]", "null", "[[1e3, 3], [3, 4]]",
    ]  # fmt: skip
    names = ("Input Dims", "Input type", "Concrete Inputs")
    payloads = [json.dumps(dict.fromkeys(names, sizes), separators=(",", ":")) for sizes in wrong]
    calls: list[tuple[str, str | None]] = [(f"aten::mm, sizes = {sizes}", None) for sizes in wrong]
    calls += [("aten::mm", payload) for payload in payloads]
    calls += [("aten::mm", payload[:-3]) for payload in payloads]
    assert [row["flops"] for row in each(calls)] == [None] * len(calls)


CONV = [[8, 3, 20, 20], [6, 3, 5, 5], [6]]


def test_a_convolution_by_its_arguments() -> None:
    cases: list[tuple[list[list[int]], list[str] | None, float | None]] = [
        (CONV, ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"], 16 * 16),
        (CONV, ["", "", "", "[2, 2]", "[2, 2]", "[1, 1]", "1"], 10 * 10),
        (CONV, ["", "", "", "[1]", "[4]", "[2]", "1"], 20 * 20),
        ([[3, 20, 20], *CONV[1:]], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"], 16 * 16 / 8),
        # 3 groups of 1 channel each: a third of the multiplications
        ([CONV[0], [6, 1, 5, 5], []], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "3"],
         16 * 16 / 3),
        (CONV, None, None),
        # a kernel that is larger than what it slides over, in one of the two dimensions
        ([[8, 3, 20, 1], *CONV[1:]], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"], None),
        (CONV, ["", "", "", "same", "", "[1, 1]", "1"], None),
    ]  # fmt: skip
    found = each(("aten::conv2d", kineto(dims, concrete)) for dims, concrete, _ in cases)
    assert [row["flops"] for row in found] == [
        None if out is None else pytest.approx(2 * 8 * (6 * 3 * 25) * out) for *_, out in cases
    ]


def test_a_convolution_along_one_dimension() -> None:
    dims = [[8, 3, 20], [6, 3, 5], []]
    concrete = ["", "", "", "[1]", "[0]", "[1]", "1"]
    (found,) = each([("aten::conv1d", kineto(dims, concrete))])
    assert found["flops"] == 2 * 8 * 6 * 3 * 5 * 16


def test_one_operator_of_a_nest_counts(b: TraceBuilder) -> None:
    dims = kineto(CONV, ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"])
    b.range(0, 100, "aten::conv2d, seq = 1", payload=dims)
    b.range(10, 90, "aten::convolution, seq = 1", payload=kineto(CONV))
    b.range(20, 80, "aten::cudnn_convolution", payload=kineto(CONV))
    b.op("implicit_convolve_sgemm", at=30, start=40, end=60)
    b.op("elementwise_kernel", at=85, start=90, end=95)
    (row,) = flops(b.trace()).rows.to_dicts()
    assert (row["operator"], row["operators"], row["flops"]) == ("conv2d", 1, 2 * 8 * 450 * 256)
    assert row["kernel_ns"] == 20 + 5
    assert row["achieved_flops_s"] == pytest.approx(2 * 8 * 450 * 256 / 25e-9)


def test_of_operators_that_begin_together_the_longer_one_is_around(b: TraceBuilder) -> None:
    b.range(0, 40, nvtx("mm", [2, 3], [3, 4]))
    b.range(0, 100, nvtx("linear", [5, 3], [4, 3], [4]))
    b.op(GEMM, at=15)
    found = flops(b.trace()).rows
    assert found.select("operator", "flops").rows() == [("linear", 120)]


def test_by_layer(b: TraceBuilder) -> None:
    b.range(0, 90, "encoder, seq = 1")
    b.range(10, 80, nvtx("mm", [2, 3], [3, 4]))
    b.op(GEMM, at=15)
    rows = flops(b.attributed(), "layer").rows
    assert (rows.columns[0], rows["flops"].to_list()) == ("layer", [48])


def test_an_inner_operator_counts_where_the_outer_one_is_not_known(b: TraceBuilder) -> None:
    b.range(0, 100, "aten::matmul, seq = 1")
    b.range(10, 40, nvtx("mm", [2, 3], [3, 4]))
    b.op(GEMM, at=15)
    found = flops(b.trace()).rows
    assert found.select("operator", "flops").rows() == [("mm", 48)]


def convolution(backward: str, *kernels: str, **row: Any) -> Trace:
    """A convolution of which only the backward pass says how large its output was."""
    b = TraceBuilder()
    b.range(0, 100, nvtx("conv2d", *CONV, seq=12))
    b.range(10, 90, nvtx("cudnn_convolution", *CONV, seq=12))
    b.op("sm80_xmma_fprop_implicit_gemm_tf32f32", at=20)
    b.range(200, 300, "ConvolutionBackward0, seq = 12", thread=1)
    b.range(210, 290, backward, thread=1, **row)
    for place, kernel in enumerate(kernels):
        b.op(kernel, at=220 + 10 * place, thread=1)
    return b.trace()


BACK = [[8, 6, 16, 16], [8, 3, 20, 20], [6, 3, 5, 5]]
ONE = 2 * 8 * 450 * 256


def test_a_gradient_tells_the_size_of_what_a_convolution_returned() -> None:
    trace = convolution(nvtx("convolution_backward", *BACK), DGRAD, WGRAD)
    found = flops(trace, "operator,precision").rows
    assert found.select("operator", "flops", "precision").rows() == [
        ("convolution_backward", 2 * ONE, "tf32"),
        ("conv2d", ONE, "tf32"),
    ]


@pytest.mark.parametrize(
    ("kernels", "mask", "factor"),
    [
        ((WGRAD,), None, 1),
        ((DGRAD, WGRAD), None, 2),
        (("sm80_xmma_fprop_implicit_gemm", WGRAD), None, 2),  # which cuDNN runs as dgrad
        (("sgemm", "sgemm"), None, None),
        (("sgemm", "sgemm"), "[True, True, False]", 2),
        (("sgemm",), "[False, True, True]", 1),
        (("sgemm",), "[]", None),
    ],
)
def test_which_gradients_are_wanted(
    kernels: tuple[str, ...], mask: str | None, factor: int | None
) -> None:
    concrete = None if mask is None else [*[""] * 10, mask]
    trace = convolution("aten::convolution_backward", *kernels, payload=kineto(BACK, concrete))
    found = dict(flops(trace).rows.select("operator", "flops").iter_rows())
    assert found["convolution_backward"] == (None if factor is None else factor * ONE)
    assert found["conv2d"] == ONE


def test_a_convolution_that_may_be_transposed() -> None:
    cases = [
        ([1, 6, 8, 8], [1, 4, 4, 4], [4, 6, 2, 2], 4 * 4),  # transposed, by its channels
        ([1, 4, 2, 2], [1, 4, 4, 4], [4, 4, 2, 2], None),  # either
        ([1, 4, 4, 4], [1, 4, 4, 4], [4, 4, 3, 3], 4 * 4),  # either, and the same
    ]
    found = each(((nvtx("convolution_backward", *sizes), None) for *sizes, _ in cases), WGRAD)
    assert [row["flops"] for row in found] == [
        positions and 2 * math.prod(weight) * positions for *_, weight, positions in cases
    ]


def test_numbers_that_two_convolutions_show_tell_nothing(b: TraceBuilder) -> None:
    for start in (0, 100):
        b.range(start, start + 50, nvtx("conv2d", *CONV, seq=12))
        b.op(GEMM, at=start + 10)
    b.range(200, 300, "ConvolutionBackward0, seq = 12", thread=1)
    b.range(210, 290, nvtx("convolution_backward", *BACK), thread=1)
    b.op(WGRAD, at=220, thread=1)
    found = flops(b.trace()).rows.filter(pl.col("operator") == "conv2d")
    assert found.select("operators", "unknown", "flops").rows() == [(2, 2, None)]


def test_backward_matrices_cost_what_the_forward_one_did(b: TraceBuilder) -> None:
    b.range(0, 100, nvtx("linear", [5, 3], [4, 3], [4]))
    b.range(10, 90, "aten::addmm, seq = 7")
    b.op(GEMM, at=20)
    b.range(200, 300, "AddmmBackward0, seq = 7", thread=1)
    for start in (210, 250):
        b.range(start, start + 20, "aten::mm", thread=1)
        b.op(GEMM, at=start + 5, thread=1)
    b.range(300, 320, "aten::mm", thread=1)  # of no known pass
    b.op(GEMM, at=305, thread=1)
    found = flops(b.trace()).rows
    assert found.select("operator", "operators", "unknown", "flops").rows() == [
        ("mm", 3, 1, 2 * 120),
        ("linear", 1, 0, 120),
    ]


def two_steps(**kernel: Any) -> TraceBuilder:
    """Two steps of 100 and 300 ns, in each 48 FLOPs by one matrix of 20 ns."""
    b = TraceBuilder()
    b.rows["devices"].append(
        {"device": 0, "report": 0, "name": "NVIDIA A100-SXM4-40GB", "active": True,
         "identity": "ordinal"}
    )  # fmt: skip
    for number, start, end in ((0, 0, 100), (1, 100, 400)):
        b.iteration(number, start, end)
        b.range(start, start + 50, nvtx("mm", [2, 3], [3, 4]))
        op = {"at": start, "start": start, "end": start + 20, "iteration": number}
        b.op(**{"name": "ampere_bf16_s16816gemm_bf16", "stage": "FP", **op, **kernel})
    b.op("elementwise", at=380, start=390, end=400, iteration=1)
    return b


def test_shares_of_the_peak() -> None:
    b = two_steps()
    # What ran outside of all steps is in no number of a step.
    b.op("elementwise", at=-9, start=-8, end=-2)
    answer = flops(b.trace(), "iteration")
    found = answer.rows.select("iteration", "flops", "step_flops")
    assert found.rows() == [(0, 48, 48), (1, 48, 48)]
    ideal = 48 / 312e12 * 1e9  # ns
    assert answer.rows["mfu"].to_list() == pytest.approx([ideal / 100, ideal / 300])
    assert answer.rows["peak_share"].to_list() == pytest.approx([ideal / 20, ideal / 20])
    assert answer.meta["mfu"] == pytest.approx(2 * ideal / 400)
    assert answer.meta["step_flops"] == 48
    assert answer.meta["step_ns"] == 200
    assert answer.meta["known_share"] == pytest.approx(40 / 50)
    assert answer.meta["peaks"] == {"NVIDIA A100-SXM4-40GB": {"bf16": 312 * 10**12}}


def test_what_is_known_has_its_share_of_the_peak_beside_what_is_not() -> None:
    b = two_steps()
    b.range(200, 250, "aten::mm")
    b.op("ampere_bf16_s16816gemm_bf16", at=210, start=220, end=230, iteration=1, stage="FP")
    rows = flops(b.trace(), "iteration").rows
    assert rows["unknown"].to_list() == [0, 1]
    ideal = 48 / 312e12 * 1e9  # ns
    assert rows["peak_share"].to_list() == pytest.approx([ideal / 20, ideal / 20])
    assert rows["mfu"].to_list() == [pytest.approx(ideal / 100), None]


def test_a_peak_that_is_given_counts_for_all() -> None:
    trace = two_steps(name="gemm").trace()
    unknown = flops(trace)
    assert unknown.meta["mfu"] is None
    assert unknown.meta["mfu_unknown"] == "the GPU's peak is not for unknown: give --peak"
    assert flops(trace, peak=48 * 10**9).meta["mfu"] == pytest.approx(2 / 400)
    with pytest.raises(UsageError, match="the peak is"):
        flops(trace, peak=0)


def test_skipped_steps_are_left_out() -> None:
    answer = flops(two_steps().trace(), skip=1)
    assert answer.rows["flops"].to_list() == [48]
    assert (answer.meta["steps"], answer.meta["outside_flops"]) == (1, 48)


def test_kernels_that_multiply_without_an_operator_make_it_unknown() -> None:
    b = two_steps()
    b.op("cutlass_gemm", at=60, start=60, end=70, iteration=0)
    answer = flops(b.trace())
    found = answer.rows.select("operator", "operators", "unknown")
    assert found.rows() == [("mm", 2, 0), (None, 1, 1)]
    assert answer.meta["mfu"] is None
    assert "kernels without an operator (1)" in answer.meta["mfu_unknown"]


def test_a_run_without_sizes_says_what_to_record(b: TraceBuilder) -> None:
    b.range(0, 100, "aten::mm, seq = 3")
    b.op(GEMM, at=10)
    assert "record_shapes=True" in flops(b.trace()).warnings[0]


def test_operators_of_the_cpu_are_none_of_a_gpu(b: TraceBuilder) -> None:
    b.range(0, 100, nvtx("mm", [2, 3], [3, 4]))
    b.op(GEMM, at=200)
    assert flops(b.trace()).rows["operator"].to_list() == [None]


def test_types_tell_the_precision_where_kernels_do_not(b: TraceBuilder) -> None:
    for start, dtype in ((0, "c10::Half"), (100, "float")):
        b.range(start, start + 50, "aten::mm", payload=kineto([[2, 3], [3, 4]], dtype=dtype))
        b.op("mystery", at=start + 10)
    assert set(flops(b.trace(), "precision").rows["precision"]) == {"fp16", None}


def test_what_only_moves_says_nothing_of_the_precision(b: TraceBuilder) -> None:
    """AMD's transposes are named after halves, whatever two bytes they move."""
    b.range(0, 50, "aten::mm", payload=kineto([[2, 3], [3, 4]], dtype="c10::BFloat16"))
    b.op("batched_transpose_16x32_half", at=10)
    b.op("kernel_gemm_xdl_cshuffle", at=20)
    assert flops(b.trace(), "precision").rows["precision"].to_list() == ["bf16"]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "fp16"),
        ("turing_h1688gemm_128x128_ldg8_nn", "fp16"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_relu_stages_64x3_tn", "fp16"),
        ("ampere_bf16_s1688gemm_bf16_128x64_ldg8_f2f_nn", "bf16"),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "tf32"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "fp8"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "fp16"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>", "bf16"),
        ("void implicit_convolve_sgemm<float, float, 1024>", "fp32"),
        ("void kentry<256, FmhaFwdKernel<Problem<_Float16, _Float16, float, float>>>", "fp16"),
        ("volta_dgemm_64x64_nn", "fp64"),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize128x64x16", "fp64"),
        ("void gemv2T_kernel_val<int, int, double, double, double, 128>(double)", "fp64"),
        ("transpose_NCHW2CNHW_V2_2D_WG_off64", None),
        ("void kernel<3, (anonymous)::stats(at::Tensor const&, double, double, long)>(int)", None),
        ("Cijk_Ailk_Bljk", None),
    ],
)
def test_precisions_of_kernels(name: str, precision: str | None) -> None:
    assert pl.select(precision_by_name(pl.lit(name))).item() == precision


def test_which_kernels_multiply() -> None:
    names = [GEMM, "void fbgemm_gpu::bounds_check_kernel<long>", "convertTensor_kernel",
             "conv2d_c1_k1_nhwc_kernel", "vectorized_elementwise_kernel", None,
             "triton_tem_fused_addmm_3", "triton_poi_fused_add_relu_1", "Cijk_Ailk_Bljk_HHS_BH",
             "cudnn_generated_fort_native_sdpa_sm80_flash_fprop", "_attn_fwd"]  # fmt: skip
    found = pl.DataFrame({"name": names}).select(multiplies(pl.col("name"))).to_series()
    assert found.to_list() == [
        True, False, False, True, False, False, True, False, True, True, True
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("product", "precision", "peak"),
    [
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("NVIDIA A100-PG509-200", "tf32", 156e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 NVL", "fp8", 1670e12),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16", None),
        ("NVIDIA L40S-8Q", "bf16", None),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("AMD Instinct MI300X", "bf16", 1_307_400_000_000_000),
        ("AMD Instinct MI250X", "bf16", 191_500_000_000_000),
        ("AMD Instinct MI300X VF", "bf16", None),
        ("some GPU", "fp32", None),
        (None, "fp32", None),
    ],
)
def test_peaks_of_products(product: str | None, precision: str, peak: float | None) -> None:
    assert peak_flops(product).get(precision) == peak


# -- a second implementation, operator by operator -----------------------------------------------


def counted_by_hand(ranges: list[tuple[int, int, int, str]], kernels: list[tuple[int, int]]) -> int:
    """Return the FLOPs of operators that launch a kernel, the outermost known one of each nest."""
    known = [(t, s, e, *_sizes(name)) for t, s, e, name in ranges if "sizes" in name]
    total = 0
    for thread, start, end, a, b in known:
        around = [
            each for each in known
            if each[0] == thread and each[1] <= start and each[2] >= end
            and (each[1], each[2]) != (start, end)
        ]  # fmt: skip
        if not around and any(t == thread and start <= at <= end for t, at in kernels):
            batch = math.prod(_broadcast(a[:-2], b[:-2]))
            total += 2 * batch * a[-2] * a[-1] * b[-1]
    return total


def _sizes(name: str) -> tuple[list[int], list[int]]:
    a, b = json.loads(name.partition("sizes = ")[2])
    return a, b


def _broadcast(a: list[int], b: list[int]) -> list[int]:
    width = max(len(a), len(b))
    pairs = zip([1] * (width - len(a)) + a, [1] * (width - len(b)) + b, strict=True)
    return [y if x == 1 else x for x, y in pairs]


dims = st.integers(1, 9)


@st.composite
def nests(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, str]], list[tuple[int, int]]]:
    """Operators inside each other on two threads, and when kernels are launched."""
    ranges, kernels = [], []
    for thread in (0, 1):
        at = 0
        for _ in range(draw(st.integers(0, 4))):
            depth = draw(st.integers(1, 3))
            for level in range(depth):
                m, k, n = draw(dims), draw(dims), draw(dims)
                batch = draw(st.lists(dims, max_size=2))
                other = [draw(st.sampled_from([1, each])) for each in batch]
                name = nvtx("matmul", [*batch, m, k], [*other, k, n])
                name = name if draw(st.booleans()) else "aten::matmul"
                ranges.append((thread, at + level, at + 20 - level, name))
            kernels += [(thread, at + shift) for shift in draw(st.sets(st.integers(0, 29)))]
            at += 30
    return ranges, kernels


@given(nests())
@settings(max_examples=examples(25), deadline=None)
def test_against_a_second_implementation(
    made: tuple[list[tuple[int, int, int, str]], list[tuple[int, int]]],
) -> None:
    ranges, kernels = made
    b = TraceBuilder()
    b.op("elementwise", at=1000)
    for thread, start, end, name in ranges:
        b.range(start, end, name, thread=thread)
    for thread, at in kernels:
        b.op("elementwise", at=at, thread=thread)
    found = flops(b.trace()).rows["flops"].sum()
    assert found == counted_by_hand(ranges, kernels)


MM = nvtx("mm", [2, 3], [3, 4])


def checkpointed(*inside: str, forward: str = MM, process: int = 1, b: TraceBuilder) -> None:
    """A product forward, and a node of its backward pass with some operators inside."""
    main, backward = 10 * process + 1, 10 * process + 2
    b.range(0, 100, forward, thread=main)
    b.op(GEMM, at=10, thread=main)
    b.range(200, 400, "MmBackward0, seq = 7", thread=backward)
    for at, name in enumerate(inside):
        b.range(210 + 40 * at, 230 + 40 * at, name, thread=backward)
        b.op(GEMM, at=212 + 40 * at, thread=backward)


def again(*inside: str, **row: Any) -> tuple[float | None, float | None]:
    b = TraceBuilder()
    checkpointed(*inside, b=b, **row)
    rows = flops(b.trace(), by="device").rows
    return rows["flops"].item(), rows["recomputed_flops"].item()


NUMBERED = nvtx("mm", [2, 3], [3, 4], seq=9)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ((), (48, 0)),
        ((MM, MM), (144, 0)),  # its gradients, which record no graph
        ((NUMBERED, MM, MM), (192, 48)),
        ((nvtx("mm", [9, 3], [3, 4], seq=9), MM), (312, None)),  # nothing like it ran forward
        # An old PyTorch numbers gradients too, and a square one looks like a forward product.
        ((NUMBERED, NUMBERED), (144, None)),
        ((nvtx("mm", [9, 3], [3, 4], seq=9),), (264, 0)),
        # A gradient's own graph: the numbered product may be a gradient itself.
        ((NUMBERED, "aten::threshold_backward, seq = 12"), (96, None)),
    ],
)
def test_what_a_backward_pass_runs_again(
    inside: tuple[str, ...], expected: tuple[float, float | None]
) -> None:
    assert again(*inside) == expected


@pytest.mark.parametrize(("first", "expected"), [(NUMBERED, None), (MM, 0)])
def test_a_graph_of_one_process_says_nothing_of_another(
    first: str, expected: float | None, b: TraceBuilder
) -> None:
    checkpointed(first, "aten::threshold_backward, seq = 12", b=b, process=2)
    checkpointed(NUMBERED, MM, b=b)
    rows = flops(b.trace(), by="operator").rows.filter(operator="mm")
    assert rows["flops"].item() == 5 * 48
    assert rows["recomputed_flops"].item() == (None if expected is None else expected + 48)


def test_what_is_not_known_to_be_recomputed_leaves_hfu_alone() -> None:
    """Two steps of 48 FLOPs and, backward, 48 that may be a gradient's own."""
    b = two_steps()
    b.range(300, 390, "MmBackward0, seq = 7", thread=1)
    b.range(310, 330, NUMBERED, thread=1)
    b.op("ampere_bf16_s16816gemm_bf16", at=312, start=320, end=340, thread=1, iteration=1)
    b.range(350, 360, "aten::threshold_backward, seq = 12", thread=1)
    answer = flops(b.trace(), peak=48 * 10**9)
    assert answer.meta["hfu"] == pytest.approx(3 / 400)
    assert answer.meta["mfu"] is None
    assert answer.meta["mfu_unknown"] == "it is unknown whether 1 of 3 operators are recomputed"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("nsys SQLite", "emit_nvtx(record_shapes=True)"),
        ("PyTorch Kineto JSON", "torch.profiler.profile(record_shapes=True)"),
        ("rocprofv3 JSON", "rocprofv3 records none"),
    ],
)
def test_how_to_record_sizes_is_of_the_recorder(kind: str, told: str, b: TraceBuilder) -> None:
    b.op("ampere_sgemm_128x64_tn", 0, start=10, end=20)
    reports = pl.DataFrame([{"report": 0, "file": "a", "size": 1, "format": kind}])
    trace = b.trace().with_tables({"reports": TABLES["reports"].conform(reports)})
    found = flops(trace, ["operator"], skip=0, peak=None)
    assert [text for text in found.warnings if told in text]
