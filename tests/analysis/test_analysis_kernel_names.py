"""Kernels that an upgrade or another GPU renames keep one name; others keep theirs."""

from __future__ import annotations

import time

import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.comparison._prepared import with_normalised_names
from tracekit.model import normalised_name

_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::"

RENAMED = [
    (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *, unsigned long, ncclWork *)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
        "nccl all_reduce",
    ),
    (
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "nccl send_recv",
    ),
    ("volta_sgemm_128x64_nn", "ampere_sgemm_128x64_nn", "sgemm_128x64_nn"),
    (
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "ampere_scudnn_128x64_relu_interior_nn",
        "scudnn_128x64_relu_interior_nn",
    ),
    (
        (
            "void cudnn::detail::bn_fw_tr_1C11_kernel_NCHW<float, float, int=512, bool=1, int=1>"
            "(cudnnTensorStruct, float const *)"
        ),
        (
            "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512, (bool)1, (int)1>"
            "(cudnn::bnFwTrainParams)"
        ),
        "cudnn::bn_fw_tr_1C11_kernel_NCHW",
    ),
    (
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
            "_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
        ),
        (
            "sm90_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
            "_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel_cudnn_infer"
        ),
        (
            "xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
            "_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel"
        ),
    ),
    (
        f"{_ELEMENTWISE}AddFunctor<float>, at::detail::Array<char *, (int)3>>(int, T2, T3)",
        f"{_ELEMENTWISE}CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        "at::native::vectorized_elementwise_kernel[add]",
    ),
    (
        (
            f"{_ELEMENTWISE}BinaryFunctor<float, float, float, at::native::MulFunctor<float>>,"
            " at::detail::Array<char *, (int)3>>(int, T2, T3)"
        ),
        (
            f"{_ELEMENTWISE}BinaryFunctor<float, float, float,"
            " at::native::binary_internal::MulFunctor<float>>,"
            " std::array<char *, (unsigned long)3>>(int, T2, T3)"
        ),
        "at::native::vectorized_elementwise_kernel[binary mul]",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)",
        "void cutlass::Kernel2<cutlass_75_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)",
        "cutlass::Kernel2[cutlass_simt_sgemm_128x64_8x5_nt_align1]",
    ),
    (
        "void cub::CUB_101702_860_NS::DeviceReduceSingleTileKernel<cub::X<int>>(int)",
        "void cub::CUB_200200_700_NS::DeviceReduceSingleTileKernel<cub::Y<int>>(int)",
        "cub::DeviceReduceSingleTileKernel",
    ),
    ("triton_poi_fused_add_0d1d2d3", "triton_poi_fused_add_0d1d2d3de", "triton_poi_fused_add"),
    ("fused_kernel_9f86d081884c", "fused_kernel_60303ae22b99", "fused_kernel"),
]


@pytest.mark.parametrize(("before", "after", "expected"), RENAMED)
def test_renamed_kernels_keep_one_name(before: str, after: str, expected: str) -> None:
    assert before != after
    assert normalised_name(before) == normalised_name(after) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nt"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_64x64_nn"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_Reduce_Sum_f32_RING_LL(x)"),
        ("ncclDevKernel_ReduceScatter_Sum_f32(x)", "ncclDevKernel_Reduce_Sum_f32_RING_LL(x)"),
        (f"{_ELEMENTWISE}AddFunctor<float>>(int)", f"{_ELEMENTWISE}MulFunctor<float>>(int)"),
        (
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::fprop_indexed::T<X>>(T1)",
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::wgrad_indexed::T<X>>(T1)",
        ),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_TNN", "nvjet_tst_192x192_64x4_2x1_v_bz_TNT"),
    ],
)
def test_different_kernels_stay_different(one: str, other: str) -> None:
    assert normalised_name(one) != normalised_name(other)


@pytest.mark.parametrize("name", ["", "()", "<<<", ">>>", "[CUDA memcpy HtoD]", "operator<", "::"])
def test_any_text_has_a_name(name: str) -> None:
    assert normalised_name(name) or not name


def test_no_name_takes_long() -> None:
    begin = time.process_time()
    for text in ("<", "a<([", "_1d", "_a1", "a", "_v1", "::", "_GLOBAL__N_", "sm80_", "functor"):
        normalised_name(text * 200_000)
    assert time.process_time() - begin < 2


def test_only_kernels_are_renamed() -> None:
    b = TraceBuilder()
    b.op("volta_sgemm_128x64_nn", at=0)
    b.op("volta_copy<T>(x)", at=10, kind="h2d")
    names = with_normalised_names(b.trace()).read("ops")["name"].to_list()
    assert names == ["sgemm_128x64_nn", "volta_copy<T>(x)"]
