"""Names of kernels as people read them: short, and no two alike."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model import Answer
from tracekit.present import readable_names, terminal, with_readable_names
from tracekit.support.wording import cells, shorten_apart

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::"
XMMA = (
    "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::wgrad_indexed::Kernel_traits<"
    "xmma_cudnn::Ampere_hmma_tf32_traits<unsigned int, float>, "
    "xmma_cudnn::Cta_tile<xmma_cudnn::Ampere, (int)128, (int)64, (int)32, (int)2>>>(T1::Params)"
)


TENSILE = "Cijk_Alik_Bljk_F8HS_BH_BiasSH_UserArgs_MT256x224x128_MI16x16x1_SN_LBSPPA"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]"),
        ("", ""),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(Params)", "fmha_cutlassF_f16_aligned_64x64_rf"),
        (f"{TENSILE}512_GSU1", "gemm tn F8HS 256x224x128"),
        (XMMA, "gemm wgrad tf32 128x64x32"),
        (XMMA.replace("tf32_traits<unsigned int, float>", "fp32_traits"),
         "gemm wgrad f16 128x64x32"),
        (XMMA.replace("::kernel<", "::split_k_kernel<"), "gemm wgrad tf32 128x64x32 split_k"),
        (
            ("sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_"
            "tilesize128x128x32_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel_cudnn"),
            "gemm fprop f16 128x128x32",
        ),
        (
            (f"{ELEMENTWISE}BinaryFunctor<float, float, float, at::native::AddFunctor<float>>, "
            "at::detail::Array<char *, (int)3>>(int, T2, T3)"),
            "add (vectorized_elementwise)",
        ),
        (
            (f"{ELEMENTWISE}<unnamed>::leaky_relu_kernel(at::TensorIteratorBase &)::[lambda() "
            "(instance 1)]::operator ()() const::[lambda(float) (instance 1)]>(int, T2)"),
            "leaky_relu (vectorized_elementwise)",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)",
            "cutlass_simt_sgemm_128x64_8x5_nt_align1",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("void dali::kernels::FlipKernel<(int)5, float>(T3 *, const T3 *)", "FlipKernel"),
    ],
)  # fmt: skip
def test_a_name_is_cut_to_what_it_says(name: str, short: str) -> None:
    assert readable_names([name]) == {name: short}


def test_names_that_would_read_alike_say_what_tells_them_apart() -> None:
    flip = "void dali::kernels::FlipKernel<(int){}, {}>(T3 *, const T3 *)"
    names = [flip.format(5, "float"), flip.format(4, "float"), flip.format(4, "half")]
    assert [*readable_names(names).values()] == [
        "FlipKernel <5>",
        "FlipKernel <4, float>",
        "FlipKernel <half>",
    ]


def test_products_of_tensile_are_told_apart_by_a_word() -> None:
    """Their names are one word of 400 letters, which filled 25 lines of a table."""
    names = [f"{TENSILE}{amount}_GSU1" for amount in (512, 1024)]
    assert [*readable_names(names).values()] == [
        "gemm tn F8HS 256x224x128 <LBSPPA512>", "gemm tn F8HS 256x224x128 <LBSPPA1024>"
    ]  # fmt: skip


def test_names_without_a_word_of_their_own_are_numbered() -> None:
    names = ["void f<(int)1>(int)", "void f<(int) 1>(int)", "void f< (int)1>(int)"]
    assert [*readable_names(names).values()] == ["f", "f #2", "f #3"]


PIECES = st.sampled_from(
    ["void ", "f", "g", "a::", "<", ">", "(int)", "1", ", ", "float", "(", ")", "fprop", "nccl",
     "Cta_tile<A, 1, 2, 3>", "[lambda]", " #2", " "]
)  # fmt: skip


@given(st.lists(st.lists(PIECES, max_size=9).map("".join), max_size=12))
def test_no_two_names_are_ever_alike(names: list[str]) -> None:
    short = readable_names(names)
    assert short.keys() == {*names}
    assert len({*short.values()}) == len(short)


@given(st.lists(st.text("ab<>() x", max_size=40), max_size=12), st.integers(8, 30))
def test_texts_that_differ_do_so_when_they_are_cut(texts: list[str], width: int) -> None:
    short = dict(zip(texts, shorten_apart(texts, width), strict=True))
    assert all(cells(text) <= width for text in short.values())
    assert len({*short.values()}) == len(short)


def test_what_is_cut_is_what_long_texts_share() -> None:
    texts = [f"one_beginning_{middle}_and_one_ending" for middle in ("fprop", "wgrad")]
    assert shorten_apart(texts, 12) == ["one_…fprop_…", "one_…wgrad_…"]


def test_only_columns_of_kernels_are_shortened() -> None:
    name = "void a::f<int>(int)"
    runs = pl.DataFrame({"name": [name], "id": ["1"]})
    kernels = pl.DataFrame({"name": [name, None], "kind": ["compute", "h2d"]})
    gaps = pl.DataFrame({"before": [name], "after": ["[CUDA memset]"]})
    assert with_readable_names(runs).equals(runs)
    assert with_readable_names(kernels)["name"].to_list() == ["f", None]
    assert with_readable_names(gaps).row(0) == ("f", "[CUDA memset]")


def test_names_tell_rows_apart_that_are_not_listed() -> None:
    """`compare --top` called a kernel by its short name `only in B`, where A runs one of it."""
    kernels = [f"void a::f<{kind}>(int)" for kind in ("float", "half")]
    answer = Answer(rows=pl.DataFrame({"name": kernels, "kind": ["compute"] * 2}))
    some = answer.choosing(top=1).choosing(sort="name")
    assert with_readable_names(some.rows, some.every)["name"].to_list() == ["f <float>"]
    assert with_readable_names(some.rows)["name"].to_list() == ["f"]


def test_a_table_that_goes_to_no_terminal_has_200_columns_at_most() -> None:
    frame = pl.DataFrame({"text": ["x" * 300], "ops": [1]})
    lines = terminal(frame, {}).splitlines()
    assert max(map(len, lines)) == 200 - 1  # the margin on the right is blank
    assert terminal(frame.with_columns(text=pl.lit("x" * 150)), {}).count("x" * 150) == 1


@pytest.mark.parametrize("beside", ["kind", "on_path"])
def test_names_of_kernels_are_short_in_each_of_their_tables(beside: str) -> None:
    """The longest ops of the critical path had other names than in `breakdown`."""
    frame = pl.DataFrame({"name": [XMMA], beside: [1]})
    assert with_readable_names(frame)["name"].item() == "gemm wgrad tf32 128x64x32"
