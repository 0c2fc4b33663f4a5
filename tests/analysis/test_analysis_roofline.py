"""What operators move, and what bounds them, by hand and by a second implementation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.arithmetic import flops, roofline
from tracekit.analysis.operators._work_done import on_tensor_cores
from tracekit.errors import UsageError
from tracekit.machine import peak_flops, peak_memory_bandwidth
from tracekit.present import notes
from tracekit.present._drawings import DRAWINGS

GEMM = "ampere_sgemm_128x64_nn"
BF16 = "c10::BFloat16"


def kineto(dims: list[Any], types: str | list[str] = "float", values: Any = None) -> str:
    """Return what PyTorch's profiler says of an operator's arguments."""
    told = [types if each else "" for each in dims] if isinstance(types, str) else types
    given = {
        "Input Dims": json.dumps(dims),
        "Input type": json.dumps(told),
        "Concrete Inputs": None if values is None else json.dumps(values),
    }
    return json.dumps(given, separators=(",", ":"))


def only(name: str, *kernels: str, payload: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the one row of a program that calls one operator."""
    b = TraceBuilder()
    b.range(0, 100, name, payload=payload)
    for place, kernel in enumerate(kernels or (GEMM,)):
        b.op(kernel, at=10 + 5 * place, start=100 * place + 10, end=100 * place + 30)
    (found,) = roofline(b.trace(), **options).rows.to_dicts()
    return found


def each(calls: Iterable[tuple[str, str]], *, inside: str | None = None) -> list[dict[str, Any]]:
    """Return the row of each operator of a program that calls one a step: name and payload."""
    b = TraceBuilder()
    for number, (name, payload) in enumerate(calls):
        at = 1000 * number
        b.iteration(number, at, at + 1000)
        if inside is not None:
            b.range(at, at + 200, inside)
        b.range(at + 10, at + 100, name, payload=payload)
        b.op(GEMM, at=at + 20, start=at + 120, end=at + 130, iteration=number)
    return roofline(b.trace(), "iteration").rows.to_dicts()


CONV = [[8, 3, 20, 20], [6, 3, 5, 5], [6]]
BACK = [[8, 6, 16, 16], [8, 3, 20, 20], [6, 3, 5, 5]]
QKV = [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 6]]


MOVED = [
        ("mm", kineto([[2, 3], [3, 4]]), 4 * (6 + 12 + 8)),
        ("addmm", kineto([[4], [2, 3], [3, 4], [], []], "c10::Half"), 2 * (4 + 6 + 12 + 8)),
        ("bmm", kineto([[7, 2, 3], [7, 3, 4]], BF16), 2 * 7 * (6 + 12 + 8)),
        ("linear", kineto([[8, 2, 3], [5, 3], [5]], BF16), 2 * (48 + 15 + 5 + 8 * 2 * 5)),
        # Of the convolution the output is 8 x 6 x 16 x 16.
        ("conv2d", kineto(CONV, values=["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]),
         4 * (9600 + 450 + 6 + 12288)),
        # The gradient, and for each gradient that is wanted what it reads and what it is.
        ("convolution_backward", kineto(BACK, values=[*[""] * 10, "[True, True, False]"]),
         4 * (12288 + 2 * (9600 + 450))),
        ("convolution_backward", kineto(BACK, values=[*[""] * 10, "[False, True, False]"]),
         4 * (12288 + 9600 + 450)),
        ("scaled_dot_product_attention", kineto(QKV, BF16), 2 * (24 + 40 + 60 + 36)),
        ("_scaled_dot_product_flash_attention_backward",
         kineto([[1, 2, 3, 6], *QKV, [1, 2, 3, 6]], BF16), 2 * (36 + 124 + 36 + 124)),
        ("native_layer_norm", kineto([[10, 8], [], [8], [8], []]), 4 * (80 + 8 + 8 + 80)),
        ("native_layer_norm_backward",
         kineto([[10, 8], [10, 8], [], [10, 1], [10, 1], [8], [8], []]),
         4 * (80 + 80 + 10 + 10 + 8 + 8 + 80 + 8 + 8)),
        # Results are as wide as the input, however wide weights and statistics are.
        ("native_layer_norm", kineto([[10, 8], [], [8], [8], []],
                                     [BF16, "ScalarList", "float", "float", "Scalar"]),
         2 * 80 + 4 * (8 + 8) + 2 * 80),
        ("native_batch_norm", kineto([[2, 8, 5], [8], [8], [8], [8], [], [], []],
                                     [BF16, *["float"] * 4, *["Scalar"] * 3]),
         2 * 80 + 4 * 4 * 8 + 2 * 80),
        ("native_batch_norm_backward",
         kineto([[2, 8, 5], [2, 8, 5], [8], [8], [8], [8], [8], [], [], []],
                [BF16, BF16, "float", *["float"] * 4, *["Scalar"] * 3]),
         2 * (80 + 80) + 4 * 5 * 8 + 2 * 80 + 4 * 2 * 8),
        ("_softmax", kineto([[10, 8], [], []]), 4 * 160),
        ("mul", kineto([[3, 1], [4]], BF16), 2 * (3 + 4 + 12)),
        ("mul_", kineto([[3, 4], []], ["float", "double"]), 4 * 24 + 8),
        ("mul", kineto([[3], [], [3]], [BF16, "double", BF16]), 2 * 6 + 8),  # into the third
        ("add", kineto([[5], [5], []], [BF16, "float", "Scalar"]), 2 * 5 + 4 * 5 + 4 * 5),
        ("eq", kineto([[16], []], ["long int", "Scalar"]), 16 * 8 + 16),
        ("copy_", kineto([[5], [5], []], ["float", BF16, "Scalar"]), 4 * 5 + 2 * 5),
        ("fill_", kineto([[], []], [BF16, "Scalar"]), 2),
        ("sum", kineto([[10, 8], [], []], ["float", "ScalarList", "Scalar"]), 320),
        ("embedding", kineto([[100, 8], [3, 2], []], [BF16, "long int", "Scalar"]),
         6 * 8 + 2 * 2 * 6 * 8),
        ("mul", kineto([[5], [5]], ["float", "a_type_of_its_own"]), None),
        # No kernel says how wide the elements are.
        ("cat", kineto([[[2, 3], [2, 3]], []], ["TensorList", "Scalar"]), None),
        ("mse_loss_backward", kineto([[], [10, 8], [10, 8], []], [BF16, BF16, BF16, "Scalar"]),
         2 * (1 + 3 * 80)),
        # FlashAttention: batch, length, heads, width.
        ("_flash_attention_forward", kineto([[1, 3, 2, 4], [1, 5, 2, 4], [1, 5, 2, 6]], BF16),
         2 * (24 + 40 + 60 + 36)),
        ("_efficient_attention_backward",
         kineto([[1, 3, 2, 6], [1, 3, 2, 4], [1, 5, 2, 4], [1, 5, 2, 6], [], [1, 3, 2, 6]], BF16),
         2 * (36 + 124 + 36 + 124)),
        ("erfinv", kineto([[5]]), None),
        ("mm", kineto([[1 << 40, 1 << 40], [1 << 40, 1 << 40]]), None),  # of no machine
]  # fmt: skip


def test_bytes_of_an_operator() -> None:
    found = each((f"aten::{name}", payload) for name, payload, _ in MOVED)
    assert [row["bytes"] for row in found] == [moved for *_, moved in MOVED]


@pytest.mark.parametrize(
    ("module", "operands", "moved"),
    [("torch.nn.functional", (("(3, 2)", "int64"), ("(100, 8)", "float32")), 8 * 6 + 2 * 4 * 6 * 8),
     ("torch", (("(100, 8)", "int8"), ("(3, 2)", "int64")), None)],
)  # fmt: skip
def test_a_look_up_by_pyprof_may_list_its_indices_first(
    module: str, operands: Sequence[tuple[str, str]], moved: int | None
) -> None:
    """As `torch.nn.functional` does; of the table only the rows that are taken count.

    Of a table of integers that is not known: its width is taken for that of the indices.
    """
    tensor = "{'name': '', 'type': 'tensor', 'shape': %s, 'dtype': '%s'}"
    given = ", ".join(tensor % each for each in operands)
    row = only(f"{{'mod': '{module}', 'op': 'embedding', 'args': [{given}]}}")
    assert row["bytes"] == moved


def test_attention_to_sequences_of_several_lengths() -> None:
    cases = [
        # A cache of 100 keys; the step's two requests attend from 3 tokens to 9, in 14 pairs.
        ("aiter::mha_batch_prefill",
         kineto([[3, 4, 8], [100, 2, 8], [100, 2, 8], [3]], [BF16, BF16, BF16, "int"]),
         2 * 14 * 4 * (8 + 8), 2 * (96 + 9 * 2 * (8 + 8) + 96) + 4 * 3),
        ("vllm::unified_attention_with_output",
         kineto([[3, 4, 8], [3, 2, 8], [3, 2, 8], [3, 4, 8]], BF16), 2 * 14 * 4 * 16, None),
        # As many queries as there are in neither part of the step.
        ("aiter::mha_batch_prefill", kineto([[2, 4, 8], [100, 2, 8], [100, 2, 8]], BF16),
         None, None),
        # One sequence of 5 keys, and several, whose lengths nothing says.
        ("flash_attn::_flash_attn_varlen_forward",
         kineto([[3, 2, 4], [5, 2, 4], [5, 2, 4], [2], [2]], [BF16, BF16, BF16, "int", "int"]),
         2 * 15 * 2 * 8, 2 * (24 + 40 + 40 + 24) + 4 * 4),
        ("aten::_flash_attention_forward",
         kineto([[6, 2, 4], [7, 2, 4], [7, 2, 4], [3], [3]], [BF16, BF16, BF16, "int", "int"]),
         None, 2 * (48 + 56 + 56 + 48) + 4 * 6),
        # Keys in pages are those of all requests that there are.
        ("flash_attn::_flash_attn_varlen_forward",
         kineto([[6, 2, 4], [9, 16, 2, 4], [9, 16, 2, 4], [2], [2]], BF16), None, None),
        ("FlashAttnVarlenFunc", kineto([[3, 2, 4], [5, 2, 4], [5, 2, 4], [2], [2]], BF16),
         2 * 15 * 2 * 8, 2 * (24 + 40 + 40 + 24 + 4)),
    ]  # fmt: skip
    step = "execute_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq3sk9sqsq5sqsk14)"
    found = each(((name, payload) for name, payload, *_ in cases), inside=step)
    assert [(row["flops"], row["bytes"]) for row in found] == [
        (flops, moved) for *_, flops, moved in cases
    ]


def test_which_part_of_a_mixed_step_attention_is_of() -> None:
    """Prefill, decode, both, and neither."""
    step = "execute_7_context_1(sq5sk5sqsq25sqsk9)_generation_2(sq2sk6sqsq2sqsk6)"
    payloads = [
        kineto([[queries, 1, 4], [100, 1, 4], [100, 1, 4]], BF16) for queries in (5, 2, 7, 3)
    ]
    found = each((("aiter::mha_batch_prefill", payload) for payload in payloads), inside=step)
    assert [row["flops"] for row in found] == [2 * 9 * 8, 2 * 6 * 8, 2 * 15 * 8, None]


@pytest.mark.parametrize(
    ("kernel", "dims", "expected"),
    [
        ("CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int>",
         [[[2, 3], [4, 3]], []], 2 * 2 * 18),
        ("CatArrayBatchedCopy_contig<float, unsigned int, 2, 128, 1>", [[[5], [0], [7]], []],
         2 * 4 * 12),
        ("CatArrayBatchedCopy<c10::BFloat16, unsigned int, 2>", [[[2, 3]], []], 2 * 2 * 6),
        # Of a long list PyTorch records no sizes.
        ("CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", [[], []], None),
        ("elementwise_kernel<128, 2, direct_copy_kernel_cuda>", [[[5], [7]], []], None),
    ],
)  # fmt: skip
def test_bytes_of_cat_are_as_wide_as_its_kernels_say(
    kernel: str, dims: list[Any], expected: int | None
) -> None:
    payload = kineto(dims, ["TensorList", "Scalar"])
    assert only("aten::cat", kernel, payload=payload)["bytes"] == expected


def test_cat_under_nvtx_is_recorded_without_the_list_around_it() -> None:
    copy = "CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>"
    assert only("aten::cat, sizes = [[2, 3], [4, 3], []]", copy)["bytes"] == 8 * 18
    # What it joins into is behind the dimension.
    assert only("aten::cat, sizes = [[2, 3], [4, 3], [], [6, 3]]", copy)["bytes"] == 8 * 18


def test_bytes_of_operators_of_serving_engines() -> None:
    cases = [
        # Of the table of 50 rows those of 3 positions are read; query and key are turned in place.
        ("_C::rotary_embedding",
         kineto([[3], [3, 8], [3, 4], [], [50, 6], []],
                ["long int", BF16, BF16, "Scalar", "float", "Scalar"]),
         8 * 3 + 2 * 2 * (24 + 12) + 4 * 3 * 6),
        # Two tokens are kept of three, the last of which pads, in caches of one byte an element.
        ("_C_cache_ops::reshape_and_cache_flash",
         kineto([[3, 2, 4], [3, 2, 4], [9, 16, 2, 4], [9, 16, 2, 4], [2], [], [], []],
                [BF16, BF16, "unsigned char", "unsigned char", "long int", "", "float", "float"]),
         2 * 2 * 8 * (2 + 1) + 8 * 2 + 4 + 4),
        ("sglang::store_cache",
         kineto([[3, 8], [3, 8], [99, 8], [99, 8], [3], [], []],
                [BF16, BF16, BF16, BF16, "long int", "Scalar", "Scalar"]), 2 * 4 * 24 + 8 * 3),
        ("vllm::rocm_unquantized_gemm", kineto([[3, 4], [5, 4], [5]], BF16),
         2 * (12 + 20 + 5 + 15)),
        # AITER's norm returns its result, that of vLLM takes the place of it as an argument.
        ("aiter::rms_norm", kineto([[3, 4], [4], []], BF16), 2 * (12 + 4 + 12)),
        ("_C::rms_norm", kineto([[3, 4], [3, 4], [4], []], BF16), 2 * (12 + 12 + 4)),
    ]  # fmt: skip
    found = each((name, payload) for name, payload, _ in cases)
    assert [row["bytes"] for row in found] == [moved for *_, moved in cases]


def test_nvtx_says_no_types_so_names_of_kernels_that_multiply_do() -> None:
    assert only("aten::mm, seq = 3, sizes = [[2, 3], [3, 4]]")["bytes"] == 4 * 26
    bf16 = only("aten::mm, sizes = [[2, 3], [3, 4]]", "ampere_bf16_s16816gemm_bf16")
    assert (bf16["flops"], bf16["bytes"]) == (48, 2 * 26)
    assert only("aten::mm, sizes = [[2, 3], [3, 4]]", "mystery")["bytes"] is None
    assert only("aten::add, sizes = [[5], [5], []]", "add<float, float>")["bytes"] is None


def test_of_a_table_only_the_rows_that_are_looked_up_are_read() -> None:
    """PyProf names two operators; of the outer one, whose table comes second, all was read."""
    b = TraceBuilder()
    indices = "{'name': '', 'type': 'tensor', 'shape': (3, 2), 'dtype': 'int64'}"
    rows = "{'name': '', 'type': 'tensor', 'shape': (100, 8), 'dtype': 'float16'}"
    for depth, (module, tensors) in enumerate(
        [("torch.nn.functional", (indices, rows)), ("torch", (rows, indices))]
    ):
        name = f"{{'mod': '{module}', 'op': 'embedding', 'args': [{', '.join(tensors)}]}}"
        b.range(depth, 100 - depth, name)
    b.op("gather", at=10)
    (found,) = roofline(b.trace()).rows.to_dicts()
    assert (found["operator"], found["bytes"]) == ("embedding", 6 * 8 + 2 * 2 * 6 * 8)


def test_a_range_of_a_user_is_no_operator() -> None:
    assert only("sum", payload=kineto([[10, 8]]))["operator"] is None


def test_gradients_that_kernels_tell() -> None:
    name = f"aten::convolution_backward, sizes = {[*BACK, [], []]}"
    wgrad, dgrad = "sm80_xmma_wgrad_tf32f32", "sm80_xmma_dgrad_tf32f32"
    assert only(name, wgrad)["bytes"] == 4 * (12288 + 9600 + 450)
    assert only(name, dgrad, wgrad)["bytes"] == 4 * (12288 + 2 * (9600 + 450))


A100 = {"device": 0, "report": 0, "name": "NVIDIA A100-SXM4-40GB", "active": True,
        "identity": "ordinal"}  # fmt: skip


def two_steps(**device: Any) -> TraceBuilder:
    """Two steps, in each 48 FLOPs and 52 bytes in 20 ns; the shortest kernel takes 10 ns."""
    b = TraceBuilder()
    b.rows["devices"].append({**A100, **device})
    for number, start, end in ((0, 0, 100), (1, 100, 400)):
        b.iteration(number, start, end)
        b.range(start, start + 50, "aten::mm, sizes = [[2, 3], [3, 4]]")
        b.op("ampere_bf16_s16816gemm_bf16", at=start, start=start, end=start + 20,
             iteration=number, stage="FP")  # fmt: skip
    b.op("elementwise", at=380, start=390, end=400, iteration=1)
    b.op("ncclKernel", at=300, start=300, end=330, iteration=1, kind="collective", stage="WU")
    return b


@pytest.mark.parametrize(
    ("options", "bound", "least"),
    [
        ({}, "launch", 10.0),
        ({"memory_bandwidth": 4 * 10**9}, "memory", 13.0),
        ({"peak": 3 * 10**9}, "computing", 16.0),
        ({"peak": 2 * 10**9}, "computing", 24.0),  # kernels cannot be faster, but these were
    ],
)
def test_the_longest_of_three_limits_bounds(
    options: dict[str, Any], bound: str, least: float
) -> None:
    answer = roofline(two_steps().trace(), **options)
    rows = {row["operator"]: row for row in answer.rows.to_dicts()}
    mm = rows["mm"]
    assert (mm["bound"], mm["bound_ns"]) == (bound, pytest.approx(2 * least))
    assert mm["bound_share"] == pytest.approx(least / 20)
    assert mm["headroom_ns"] == pytest.approx(2 * max(20 - least, 0))
    assert mm["step_headroom_ns"] == answer.meta["step_headroom_ns"]
    assert mm["step_headroom_ns"] == pytest.approx(max(20 - least, 0))
    assert answer.meta["bounds"] == {bound: 40, "communication": 30, "unknown": 10}
    assert answer.meta["known_share"] == pytest.approx(40 / 50)
    assert (rows[None]["unknown"], rows[None]["bound"], rows[None]["headroom_ns"]) == (
        1,
        None,
        None,
    )
    assert (rows["collective"]["bound"], rows["collective"]["unknown"]) == ("communication", 0)


def test_work_launched_between_steps_is_of_the_step_in_which_it_runs() -> None:
    """As kernels of DALI are, 682 of which ran in no step."""
    b = two_steps()
    for start, end, kind in ((-9, -2, "compute"), (40, 47, "compute"), (50, 53, "collective")):
        b.op("resize", at=-12, start=start, end=end, kind=kind)
    answer = roofline(b.trace(), "kernel,iteration").rows.filter(kernel="resize")
    assert answer.select("iteration", "kernel_ns").rows() == [(0, 7 + 3)]
    assert roofline(b.trace()).meta["outside_ns"] == 7
    assert roofline(b.trace(), skip=1).meta["outside_ns"] == 20 + 7 + 7 + 3
    assert flops(b.trace()).meta["known_share"] == pytest.approx(40 / 57)


def test_nothing_is_said_of_kernels_that_are_not_recorded_or_not_known() -> None:
    """`0 ns on Tensor Cores` was said of a recording of copies alone."""
    b = TraceBuilder()
    b.op("ncclKernel", at=0, start=10, end=40, kind="collective")
    none = "known of nothing: no kernel that computes was recorded"
    assert notes(roofline(b.trace()).meta) == [f"bounds {none}", "communication 30 ns"]
    assert notes(flops(b.trace()).meta)[0].endswith(none)
    b.op(GEMM, at=50)
    for answer in (flops(b.trace()), roofline(b.trace())):
        assert not any(
            word in note for note in notes(answer.meta) for word in ("attention", "each")
        )


def test_rates_and_flop_per_byte() -> None:
    mm = roofline(two_steps().trace(), "operator,sizes").rows.row(0, named=True)
    assert mm["sizes"] == "[[2,3],[3,4]]"
    assert mm["flops_per_byte"] == pytest.approx(48 / 52)
    assert mm["achieved_flops_s"] == pytest.approx(48 / 20e-9)
    assert mm["achieved_gb_s"] == pytest.approx(52 / 20)
    assert (mm["min_ns"], mm["median_ns"], mm["max_ns"]) == (20, 20, 20)


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        ([[2, 3], [3, 4]], ["float", "float"], "float32"),
        ([[2, 3], [3, 4]], [BF16, "float"], "bfloat16, float32"),
        ([[2, 3], []], ["c10::Half", "double"], "float16"),  # by a number
        ([[], []], ["long int", "Scalar"], "int64"),  # a number alone
        ([[2], [3], []], ["a_type", "", "Scalar"], "a_type"),
        ([[[2], [3]], []], ["TensorList", "Scalar"], None),
    ],
)
def test_dtypes_of_an_operator(dims: list[Any], types: list[str], expected: str | None) -> None:
    row = only("aten::mul", payload=kineto(dims, types), by="dtype")
    assert (row["dtype"], row["operators"]) == (expected, 1)


def test_flops_by_dtype_with_counts_and_spread(b: TraceBuilder) -> None:
    for place, (dtype, taken) in enumerate([(BF16, 30), (BF16, 10), (BF16, 20), ("float", 7)]):
        at = 100 * place
        b.range(at, at + 50, "aten::mm", payload=kineto([[2, 3], [3, 4]], dtype))
        b.op(GEMM, at=at + 5, start=at + 10, end=at + 10 + taken)
    rows = flops(b.trace(), "operator,sizes,dtype").rows
    columns = ["dtype", "operators", "flops", "kernel_ns", "min_ns", "median_ns", "max_ns"]
    assert rows.select(columns).rows() == [
        ("bfloat16", 3, 144.0, 60, 10, 20, 30),
        ("float32", 1, 48.0, 7, 7, 7, 7),
    ]


def test_a_recorded_bandwidth_outranks_the_product() -> None:
    recorded = roofline(two_steps(peak_memory_bandwidth=4 * 10**9).trace())
    assert recorded.meta["memory_peaks"] == {"NVIDIA A100-SXM4-40GB": 4 * 10**9}
    by_name = roofline(two_steps().trace())
    assert by_name.meta["memory_peaks"] == {"NVIDIA A100-SXM4-40GB": 1_555_000_000_000}


def test_without_a_peak_nothing_is_bounded() -> None:
    found = roofline(two_steps(name="a GPU of its own").trace())
    assert found.rows["bound_ns"].null_count() == found.rows.height
    assert found.meta["step_headroom_ns"] is None
    assert set(found.meta["bounds"]) == {"unknown", "communication"}
    assert found.meta["bounds_unknown"] == (
        "no bound without the peak FLOP/s in bf16 and the bandwidth of memory of a GPU of its own:"
        " give --peak, such as 989TFLOPS, and --memory-bandwidth, such as 3.35TB"
    )
    with pytest.raises(UsageError, match="the memory bandwidth is"):
        roofline(two_steps().trace(), memory_bandwidth=0)


@pytest.mark.parametrize("name", [None, ""])
def test_why_bounds_are_unknown_of_a_gpu_without_a_name(name: str | None) -> None:
    trace = two_steps(name=name).trace()
    nameless = " of a GPU whose name was not recorded: give --"
    no_peak = roofline(trace, memory_bandwidth=10**12)
    assert f"peak FLOP/s in bf16{nameless}peak" in no_peak.meta["bounds_unknown"]
    no_memory = roofline(trace, peak=10**12)
    assert f"bandwidth of memory{nameless}memory" in no_memory.meta["bounds_unknown"]
    assert any("give --memory-bandwidth" in line for line in notes(no_memory.meta))
    given = roofline(trace, peak=10**12, memory_bandwidth=10**12)
    assert given.meta["bounds_unknown"] is None
    assert any(line.startswith("kernels by bound") for line in notes(given.meta))


def test_a_peak_may_be_unknown_for_one_precision() -> None:
    b = two_steps(name="Tesla V100-SXM2-16GB")
    assert roofline(b.trace()).meta["bounds_unknown"] == (
        "no bound without the peak FLOP/s in bf16 of Tesla V100-SXM2-16GB:"
        " give --peak, such as 989TFLOPS"
    )


def test_unrecorded_sizes_say_what_to_record(b: TraceBuilder) -> None:
    b.range(0, 100, "aten::mm, seq = 3")
    b.op(GEMM, at=10)
    assert "record_shapes=True" in roofline(b.trace()).warnings[0]


@pytest.mark.parametrize(("counted", "expected"), [("full", 600), ("causal", 300)])
def test_causal_attention_may_count_half(counted: str, expected: int) -> None:
    values = ["", "", "", "", "0.", "True"]
    payload = kineto([*QKV, [], [], []], BF16, values)
    b = TraceBuilder()
    b.range(0, 100, "aten::scaled_dot_product_attention", payload=payload)
    b.op("flash_fwd_kernel", at=10)
    answer = flops(b.trace(), attention=counted)
    assert answer.rows["flops"].to_list() == [expected]
    assert answer.meta["attention"] == counted
    unsaid = only("aten::scaled_dot_product_attention", payload=kineto(QKV, BF16),
                  attention=counted)  # fmt: skip
    assert unsaid["flops"] == 600


def test_the_figure_draws_what_has_a_place_and_says_what_has_none() -> None:
    figure = DRAWINGS["roofline"](roofline(two_steps().trace()))
    points = [each for each in figure.data if each.mode == "markers+text"]
    assert [each.name for each in points] == ["launch"]
    assert points[0].x == pytest.approx((48 / 52,))
    assert "40 ns" in str(figure.layout.annotations)  # elementwise 10, NCCL 30


@pytest.mark.parametrize(
    ("product", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("AMD Instinct MI300X", 5.3e12),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA A100-PG509-200", None),
        (None, None),
    ],
)
def test_peaks_of_memory(product: str | None, peak: float | None) -> None:
    assert peak_memory_bandwidth(product) == peak


# -- a second implementation, operator by operator -----------------------------------------------

WIDTH = {"float": 4, BF16: 2, "double": 8, "long int": 8}
shapes = st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=3)


@given(st.lists(st.tuples(shapes, shapes, st.sampled_from([*WIDTH]), st.sampled_from([*WIDTH])),
                min_size=1, max_size=5))  # fmt: skip
@settings(max_examples=examples(25), deadline=None)
def test_elementwise_bytes_against_a_second_implementation(
    made: list[tuple[list[int], list[int], str, str]],
) -> None:
    b = TraceBuilder()
    expected = 0
    for place, (one, other, kind, of_other) in enumerate(made):
        rank = max(len(one), len(other))
        sides = [[1] * (rank - len(each)) + each for each in (one, other)]
        fitting = [
            max(pair) if 1 in pair or pair[0] == pair[1] else 1 for pair in zip(*sides, strict=True)
        ]
        left = [n if m != 1 else 1 for n, m in zip(fitting, sides[0], strict=True)]
        right = [n if m != 1 else 1 for n, m in zip(fitting, sides[1], strict=True)]
        out = math.prod(max(pair) for pair in zip(left, right, strict=True))
        floating = [WIDTH[each] for each in (kind, of_other) if each != "long int"]
        width = max(floating, default=8)
        expected += math.prod(left) * WIDTH[kind] + math.prod(right) * WIDTH[of_other] + out * width
        at = 100 * place
        b.range(at, at + 50, "aten::add", payload=kineto([left, right], [kind, of_other]))
        b.op("elementwise", at=at + 5)
    assert roofline(b.trace()).rows["bytes"].to_list() == [expected]


def test_peaks_are_of_the_same_products() -> None:
    """A product whose memory is known and whose computing is not would be bounded by half."""
    for product in ("Tesla V100-SXM2-16GB", "NVIDIA H200", "AMD Instinct MI250X", "Tesla T4"):
        assert (peak_memory_bandwidth(product) or 0) > 0
        assert peak_flops(product)


@pytest.mark.parametrize("units", [38, 304, None])
def test_a_part_of_a_gpu_has_no_peaks(units: int | None) -> None:
    """Partition modes of an MI300X make up to eight GPUs of its name, with fewer compute units."""
    found = roofline(two_steps(name="AMD Instinct MI300X", sm_count=units).trace())
    whole = {} if units == 38 else {"AMD Instinct MI300X": 5_300_000_000_000}
    assert found.meta["memory_peaks"] == whole
    assert bool(found.meta["peaks"]) == bool(whole)
    told = found.meta["bounds_unknown"]
    assert told is None if whole else "AMD Instinct MI300X (38 of 304 units)" in told


def test_rows_are_sorted_by_headroom() -> None:
    rows = roofline(two_steps().trace()).rows
    assert rows["operator"].to_list() == ["mm", "collective", None]
    assert rows["share"].to_list() == pytest.approx([40 / 80, 30 / 80, 10 / 80])
    assert rows.schema["bytes"] == pl.Float64


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ampere_sgemm_128x64_nn", False),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4", True),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", True),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN", True),
        ("SubTensorOpWithCastTensor1d", None),
        ("void at::native::vectorized_elementwise_kernel<4, bfloat16>", False),
        ("triton_poi_fused_add_relu_1", False),
        ("triton_tem_fused_addmm_3", None),
        ("hgemm_of_some_library", None),
        (None, None),
    ],
)
def test_names_of_kernels_on_tensor_cores(name: str | None, told: bool | None) -> None:
    assert pl.select(on_tensor_cores(pl.lit(name, pl.String))).item() is told


def test_time_on_tensor_cores_by_stage() -> None:
    b = two_steps()
    b.op("mystery", at=60, start=60, end=67, iteration=0, stage="BP")
    answer = roofline(b.trace(), "stage")
    rows = dict(
        answer.rows.select("stage", pl.struct("tensor_core_ns", "tensor_core_unknown_ns")).rows()
    )
    assert rows["FP"] == {"tensor_core_ns": 40, "tensor_core_unknown_ns": 0}
    assert rows["BP"] == {"tensor_core_ns": 0, "tensor_core_unknown_ns": 7}
    assert (answer.meta["tensor_core_ns"], answer.meta["tensor_core_unknown_ns"]) == (40, 7)
