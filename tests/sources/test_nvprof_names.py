"""Names of kernels that nvprof records mangled."""

from __future__ import annotations

import time

import pytest

from tracekit.sources._kernel_names import readable, short_name

UNNAMED = (
    "_ZN78_GLOBAL__N__54_tmpxft_00008e34_00000000_11_SoftMax_compute_75_cpp1_ii_a3310042"
    "7softmaxIfLi6ELb0EEEvPT_PKS1_i"
)


@pytest.mark.parametrize(
    ("mangled", "declaration", "short"),
    [
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        (
            "_Z33ncclAllReduceTreeLLKernel_sum_i328ncclColl",
            "ncclAllReduceTreeLLKernel_sum_i32(ncclColl)",
            "ncclAllReduceTreeLLKernel_sum_i32",
        ),
        (
            "_Z5pass2Il9ReduceMinIlEEviT_T0_PS2_S4_",
            "void pass2<long, ReduceMin<long>>(int, long, ReduceMin<long>, long*, long*)",
            "pass2",
        ),
        (
            UNNAMED,
            "void (anonymous namespace)::softmax<float, 6, false>(float*, float const*, int)",
            "softmax",
        ),
        ("_Z", "_Z", "_Z"),
        ("_ZN", "_ZN", "_ZN"),
        ("_Z3fooIIII", "_Z3fooIIII", "_Z3fooIIII"),
        ("Z3foov", "Z3foov", "Z3foov"),
        ("", "", ""),
        (None, None, None),
    ],
)
def test_names(mangled, declaration, short):
    assert readable(mangled) == declaration
    if declaration is not None:
        assert short_name(declaration) == short


@pytest.mark.parametrize(
    ("declaration", "short"),
    [
        ("void a::b<c<d>, e(f)>::kernel<(x)1>(g<h>, i)", "kernel"),
        ("void f<a::{lambda(int)#1}>(a::{lambda(int)#1})", "f"),
        ("void a::{lambda()#1}::g<int>()", "g"),
        ("unsigned long h(int)", "h"),
        ("(", "("),
        ("<<<", "<<<"),
        (">>>", ">>>"),
        ("::", "::"),
    ],
)
def test_short_names_of_declarations(declaration, short):
    assert short_name(declaration) == short


def test_names_that_would_explode_or_run_deep_do_no_harm():
    doubling = "_Z1f1a1bIS_S_E" + "".join(
        f"1{letter}IS{number}_S{number}_E"
        for letter, number in zip("cdefghijklmnopqr", "13579BDFHJLNPRTV", strict=True)
    )
    began = time.process_time()
    for name in (doubling, "_Z1f" + "N" * 50_000, "_Z3foo" + "I" * 50_000, "_Z1f" + "P" * 50_000):
        assert short_name(readable(name) or "")
    assert time.process_time() - began < 5
