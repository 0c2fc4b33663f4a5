"""FLOPs and times of operators with their kernels; properties of kernels by their names."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.operators._bounds import element_bytes, with_bytes
from tracekit.analysis.operators._formulas import GRADIENTS, MULTIPLYING_FORMS
from tracekit.analysis.operators._recorded import (
    backward_graphs,
    backward_nodes,
    counted_operators,
    named_operators,
    operand_types,
    recorded_operators,
)
from tracekit.model import Trace

_MULTIPLIES = (
    r"(?i)gemm|gemv|gemmk1|nvjet|xmma|fprop|dgrad|wgrad|winograd|implicit_con|convolve|"
    r"conv\dd_|conv_depthwise|scudnn|hcudnn|flash_(fwd|bwd|attn)|fmha|"
    # torch.compile's own templates; Triton's and cuDNN's attention; AMD's matrices
    r"triton_tem|_attn_(fwd|bwd)|sdpa|\bcijk_"
)
_NO_MULTIPLICATION = r"(?i)fbgemm\w*"
"""Library (FBGEMM) whose name, in those of all its kernels, looks like that of a product."""
_WEIGHT, _INPUT = "(?i)wgrad", "(?i)dgrad|fprop|bprop_data"
_BY_NAME = (
    ("fp8", "(?i)e4m3|e5m2|fp8|nvjet_(sm[0-9]+_)?q"),
    ("bf16", "(?i)bf16|bfloat16|nvjet_(sm[0-9]+_)?t"),
    ("tf32", "(?i)tf32"),
    ("fp16", "(?i)fp16|f(loat)?16|half|[hs]884|h1688|h16816|nvjet_(sm[0-9]+_)?h|hcudnn|hgemm"),
    ("tf32", "(?i)s1688|s161616"),
    ("fp64", r"(?i)dgemm|(^|[^a-z])f64|d884|<([^<>()]*, )?double\b"),
    ("fp32", "(?i)sgemm|scudnn|simt|ffma|f32f32_f32f32|<float|, float"),
)
"""Precision, and pattern of kernel names, surest first: ``s1688`` alone is TF32, beside ``fp16``
FP16. An offset may be named ``off64``, and kernels of any type may take ``double`` arguments."""
_BY_TYPE = {
    **dict.fromkeys(("float16", "c10::Half", "half", "Half"), "fp16"),
    **dict.fromkeys(("bfloat16", "c10::BFloat16", "BFloat16"), "bf16"),
    **dict.fromkeys(("double", "float64"), "fp64"),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "float8_e4m3fn"), "fp8"),
}
"""Type of an operand -> precision; `float` is absent, since it may be TF32."""


_TENSOR_CORES = (
    r"(?i)(884|1688|161616|16816|16832)gemm|tensorop_|xdl|hmma|imma|gmma|wmma|nvjet|"
    r"cijk_\w*_MI\d+x|xmma_\w*(bf16|f16|tf32|e4m3|e5m2)|flash_(fwd|bwd)"
)
_PLAIN_CORES = (
    r"at::native::|elementwise|reduce_kernel|softmax|(layer|batch|group|rms)_?norm|bn_(fw|bw)|pool|"
    r"triton_(poi|red|per)_|multi_tensor_apply|transpose|[nN]chwTo[nN]hwc|[nN]hwcTo[nN]chw|\bcopy|fill|embedding"
)
"""Pattern of names of kernels that multiply no matrices."""
_OF_TENSOR_CORES = ("tf32", "bf16", "fp8")
_LENGTH = pl.col("end") - pl.col("start")
_OF_KERNEL = ("process", "device", "iteration", "stage", "kernel")
_COLUMNS = (
    "range", *_OF_KERNEL, "operator", "sizes", "types", "form", "precision", "flops", "bytes",
    "kernels", "kernel_ns", "recomputed",
    "tensor_core_ns", "tensor_core_unknown_ns",
)  # fmt: skip
_NO_TYPES = ("", "Scalar", "ScalarList")
_ON_TENSOR_CORES = {
    "tensor_core_ns": pl.when("is_on_tensor_cores").then(_LENGTH).otherwise(0),
    "tensor_core_unknown_ns": pl.when(pl.col("is_on_tensor_cores").is_null())
    .then(_LENGTH)
    .otherwise(0),
}
_MULTIPLYING = pl.col("form").is_in(list(MULTIPLYING_FORMS))


def on_tensor_cores(name: pl.Expr) -> pl.Expr:
    """Find which kernels use Tensor Cores (AMD: matrix cores), by their names; null if unclear.

    Matrix products in TF32, BF16 and FP8 always use Tensor Cores, products in FP32 never do. For
    FP16, the name of the instruction in the kernel's name decides.
    """
    precision = precision_by_name(name)
    multiplying = multiplies(name)
    is_there = name.str.contains(_TENSOR_CORES) | (multiplying & precision.is_in(_OF_TENSOR_CORES))
    is_not = pl.when(multiplying).then(precision == "fp32").otherwise(
        name.str.contains(_PLAIN_CORES)
    )  # fmt: skip
    return (
        pl.when(is_there.fill_null(value=False)).then(pl.lit(value=True))
        .when(is_not.fill_null(value=False)).then(pl.lit(value=False))
    )  # fmt: skip


def multiplies(name: pl.Expr) -> pl.Expr:
    """Find which kernels multiply matrices, or convolve."""
    plain = name.str.replace_all(_NO_MULTIPLICATION, "")
    return plain.str.contains(_MULTIPLIES).fill_null(value=False)


def of_weight(name: pl.Expr) -> pl.Expr:
    """Test which kernels compute the gradient of a convolution's weight, by their names."""
    return name.str.contains(_WEIGHT).fill_null(value=False)


def of_input(name: pl.Expr) -> pl.Expr:
    """Find which kernels of a backward pass compute the gradient of a convolution's input.

    cuDNN also uses kernels that are named after the forward pass.
    """
    return (name.str.contains(_INPUT) & ~name.str.contains(_WEIGHT)).fill_null(value=False)


def precision_by_name(name: pl.Expr) -> pl.Expr:
    """Return a kernel's precision by its name: ``fp64, fp32, tf32, fp16, bf16, fp8``, or null."""
    return pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(precision))
        for precision, pattern in _BY_NAME
    )


def precision_by_type(types: pl.Expr) -> pl.Expr:
    """Return the precision that an operator's known operand types share; null if they differ."""
    precisions = types.list.eval(
        pl.element().replace_strict(_BY_TYPE, default=None, return_dtype=pl.String)
    )
    return pl.when(precisions.list.drop_nulls().list.n_unique() == 1).then(
        precisions.list.drop_nulls().list.first()
    )


def work_done(trace: Trace, *, causal: bool = False, moving: bool = False) -> pl.DataFrame:
    """Return one row per operator with FLOPs, such as a matrix product, and per lone kernel.

    A lone kernel was launched outside of all operators with recorded sizes; its name shows a matrix
    product or convolution.

    Parameters
    ----------
    causal
        Whether to count half the FLOPs of attention recorded as causal, instead of all.
    moving
        Whether to return all other operators (bound by memory) and compute kernels, too.

    Returns
    -------
    ``range`` (of the operator), ``process, device, iteration, stage, kernel`` (of the kernel that
    took longest), ``operator, sizes, types, dtype, form`` (kind of FLOPs formula), ``precision,
    flops, bytes`` (null where unknown), ``kernels`` and ``kernel_ns``: number and total time of its
    kernels; ``tensor_core_ns`` and ``tensor_core_unknown_ns``: time on Tensor Cores, and time of
    kernels that may use them or not, by their names; and ``recomputed``, see `counted_operators`.
    """
    counted = counted_operators(
        recorded_operators(trace), backward_nodes(trace), backward_graphs(trace)
    )
    owned = _owned(_kernels(trace), counted)
    operators = _of_operators(owned.filter(pl.col("range").is_not_null()), counted, causal=causal)
    others = owned.filter(pl.col("range").is_null(), *(() if moving else ("multiplies",)))
    if moving:
        innermost = named_operators(trace).rename({"range": "innermost"})
        others = others.join(innermost, on="innermost", how="left").with_columns(range="innermost")
    nulls = {name: pl.lit(None, operators.schema[name])
            for name in {*_COLUMNS, "types"}.difference(others.columns)}  # fmt: skip
    alone = others.with_columns(
        **nulls
        | {"precision": precision_by_name(pl.col("name")), "kernel_ns": _LENGTH,
           "kernels": pl.lit(1, pl.UInt32), **_ON_TENSOR_CORES},
    )  # fmt: skip
    chosen = operators if moving else operators.filter(_MULTIPLYING)
    both = operand_types(pl.concat([each.select(_COLUMNS) for each in (chosen, alone)]))
    shown = pl.col("types").list.eval(pl.element().filter(~pl.element().is_in(_NO_TYPES)))
    return both.with_columns(types=pl.when(shown.list.len() > 0).then(shown.list.join(", ")))


def _kernels(trace: Trace) -> pl.DataFrame:
    """Return compute kernels, and whether they multiply and use Tensor Cores, by their names."""
    name = pl.col("name").cast(pl.String)
    kernels = (
        trace["ops"].filter(pl.col("kind") == "compute")
        .select("process", "device", "iteration", "stage", "launch_thread", "launch_start", "start",
                "end", "graph_node", innermost="range", name=name,
                kernel=pl.coalesce(pl.col("short_name").cast(pl.String), name))
        .collect()
    )  # fmt: skip
    kernels = _with_captures(trace, kernels)
    name = pl.col("name")
    traits = kernels.select("name").unique().with_columns(
        multiplies=multiplies(name), is_on_tensor_cores=on_tensor_cores(name)
    )  # fmt: skip
    return kernels.join(traits, on="name", how="left", nulls_equal=True, maintain_order="left")


def _with_captures(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add thread and time of each kernel's launch: ``asked_thread, asked_start``, and ``replay``.

    For a kernel of a CUDA graph they are those of the capture of its node, so that it belongs to
    the operator that was captured; ``replay`` is the time of the replay, null for other kernels.
    """
    node = ["process", "graph_node"]
    nodes = trace.read("graph_nodes").sort("time").unique(node, keep="first", maintain_order=True)
    found = kernels.join(
        nodes.select(*node, "thread", "time"), on=node, how="left", maintain_order="left"
    )
    return found.with_columns(
        asked_thread=pl.coalesce("thread", "launch_thread"),
        asked_start=pl.coalesce("time", "launch_start"),
        replay=pl.when(pl.col("time").is_not_null()).then("launch_start"),
    ).drop("graph_node", "thread", "time", "launch_thread", "launch_start")


def _owned(kernels: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Add ``range``: the operator of `counted` in which a kernel was launched or captured."""
    spans = counted.select("range", asked_thread="thread", begun="start", until="end")
    found = kernels.sort("asked_start").join_asof(
        spans.sort("begun"), left_on="asked_start", right_on="begun", by="asked_thread",
        check_sortedness=False,
    )  # fmt: skip
    inside = pl.col("asked_start") <= pl.col("until")
    return found.with_columns(range=pl.when(inside).then("range")).drop("begun", "until")


def _of_operators(kernels: pl.DataFrame, counted: pl.DataFrame, *, causal: bool) -> pl.DataFrame:
    """Return the operators that launched kernels, with FLOPs, bytes, and times of the kernels.

    With `causal` half the FLOPs of attention recorded as causal are counted.
    """
    longest = kernels.with_columns(precision=precision_by_name(pl.col("name"))).sort(
        "multiplies", _LENGTH, "start", descending=[True, True, False]
    )
    name = pl.col("name")
    by_range = longest.group_by("range", "replay", maintain_order=True).agg(
        *(pl.col(column).first() for column in _OF_KERNEL),
        by_name=_kernel_precision(),
        kernels=pl.len(),
        kernel_ns=_LENGTH.sum(),
        **{name: each.sum() for name, each in _ON_TENSOR_CORES.items()},
        element_bytes=_only(element_bytes(name)),
        weight=of_weight(name).any(),
        input=of_input(name).any(),
        others=(pl.col("multiplies") & ~of_weight(name) & ~of_input(name)).any(),
    )
    rows = (
        counted.drop("process")
        .join(by_range, on="range")
        .with_columns(
            precision=pl.coalesce("by_name", precision_by_type(pl.col("types"))), **_wanted()
        )
    )
    wanted = pl.col("wants_input").cast(pl.Int64) + pl.col("wants_weight").cast(pl.Int64)
    is_backward = pl.col("form").is_in(GRADIENTS)
    factor = pl.when(is_backward).then(pl.coalesce("gradients", wanted)).otherwise(1)
    found = with_bytes(rows.with_columns(flops=pl.col("flops") * factor))
    if not causal:
        return found
    return found.with_columns(flops=pl.col("flops") // pl.when("causal").then(2).otherwise(1))


def _kernel_precision() -> pl.Expr:
    """Return an operator's precision by its kernels' names; if some multiply, only by these.

    A transpose of two-byte elements is named after FP16, whatever type it moves.
    """
    precision = pl.col("precision").filter(pl.col("multiplies")).drop_nulls().first()
    every = pl.col("precision").drop_nulls().first()
    return pl.when(pl.col("multiplies").any()).then(precision).otherwise(every)


def _only(values: pl.Expr) -> pl.Expr:
    """Return an aggregation: the value that all rows share, nulls aside; null if they differ."""
    known = values.drop_nulls()
    return pl.when(known.n_unique() == 1).then(known.first())


def _wanted() -> dict[str, pl.Expr]:
    """Return columns: whether a backward convolution computes the gradient of input, of weight."""
    masks = [pl.col("mask").list.get(place, null_on_oob=True) for place in (0, 1)]
    by_kernels = pl.when(pl.col("weight") & ~pl.col("others"))
    unsaid = pl.col("gradients").is_null()
    return {
        "wants_input": pl.when(unsaid).then(by_kernels.then("input")).otherwise(masks[0]),
        "wants_weight": pl.when(unsaid).then(by_kernels.then("weight")).otherwise(masks[1]),
    }
