from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.report._names import readable


def test_names_lose_what_tells_nothing() -> None:
    assert readable(["void at::native::elementwise_kernel<4, float>(int, float)"]) == [
        "elementwise_kernel"
    ]
    assert readable(["void cutlass::Kernel<cutlass_80_gemm>(Params)"]) == ["cutlass::Kernel"]
    assert readable(["[CUDA memcpy HtoD]", "ncclKernel_AllReduce"]) == [
        "[CUDA memcpy HtoD]", "ncclKernel_AllReduce",
    ]  # fmt: skip


def test_names_that_shorten_alike_keep_what_differs() -> None:
    names = ["void f<128, float>(int)", "void f<64, float>(int)", "g"]
    assert readable(names) == ["f [128]", "f [64]", "g"]


@given(st.lists(st.text("abf<>():_ 1", min_size=1, max_size=90)))
def test_no_two_names_look_alike(names: list[str]) -> None:
    short = readable(names)
    assert len(short) == len(names)
    told = {}
    for name, text in zip(names, short, strict=True):
        assert told.setdefault(text, name) == name
