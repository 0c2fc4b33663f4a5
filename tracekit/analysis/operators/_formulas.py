"""FLOPs of an operator from the sizes of its operands.

A multiply-add counts as two. Only products that are summed over a dimension count: no bias, no
scaling, no softmax. ``docs/flops.md`` has the formulas.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import polars as pl

Form = Literal[
    "matrix", "linear", "convolution", "transposed", "linear_backward", "convolution_backward",
    "attention", "attention_backward", "attention_by_position", "attention_by_position_backward",
    "attention_by_position_gradients", "attention_paged", "attention_cached",
    "elementwise", "comparison", "arguments", "results", "rows", "joined", "rotated", "stored",
]  # fmt: skip
"""Kind of computation of an operator; the last eight have no products, only bytes."""

_MOST = 1 << 62
_BATCHES = 6
"""Largest number of batch dimensions of a matrix product."""
_AXES = 3
"""Largest number of dimensions along which a convolution slides."""


@dataclass(frozen=True)
class Operator:
    """Positions, in an operator's recorded argument list, of the arguments that FLOPs depend on."""

    form: Form
    """Kind of formula, such as a matrix product."""
    operands: tuple[int, ...]
    """Positions of its operands: left and right matrix; input and weight of a convolution or linear
    layer (backward: gradient, input and weight); query, key and value of attention."""
    geometry: tuple[int, int, int] | None = None
    """Positions of a convolution's stride, padding and dilation."""
    transposed: int | None = None
    """Position of the flag for a transposed convolution."""
    mask: int | None = None
    """Position of the flags for the gradients to compute."""
    causal: int | None = None
    """Position of the flag for causal attention (later keys left out)."""
    starts: int | None = None
    """Position of the argument with the cumulative sequence lengths (starts and the last end)."""
    inputs: int | None = None
    """Number of arguments that are read; those after them are outputs."""


_PLAIN = Operator("matrix", (0, 1))
_ADDING = Operator("matrix", (1, 2))
_SLIDING = Operator("convolution", (0, 1), geometry=(3, 4, 5))
_TRANSPOSED = Operator("transposed", (0, 1))


_attending = functools.partial(Operator, "attention", (0, 1, 2))
_attending_backward = functools.partial(Operator, "attention_backward", (1, 2, 3))
_by_position = functools.partial(Operator, "attention_by_position", (0, 1, 2))
_by_position_backward = functools.partial(Operator, "attention_by_position_backward", (1, 2, 3))
_gradients_by_position = functools.partial(Operator, "attention_by_position_gradients", (1, 2, 3))


def _elementwise(inputs: int, names: str, form: Form = "elementwise") -> dict[str, Operator]:
    return dict.fromkeys(names.split(), Operator(form, (), inputs=inputs))


MULTIPLYING = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "_scaled_mm", "__matmul__"), _PLAIN),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"), _ADDING),
    "linear": Operator("linear", (0, 1)),
    "linear_backward": Operator("linear_backward", (1, 0, 2), mask=3),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _SLIDING),
    **dict.fromkeys(
        ("convolution", "_convolution"),
        Operator("convolution", (0, 1), geometry=(3, 4, 5), transposed=6),
    ),
    "cudnn_convolution": Operator("convolution", (0, 1), geometry=(3, 2, 4)),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
         "cudnn_convolution_transpose"), _TRANSPOSED
    ),
    "convolution_backward": Operator(
        "convolution_backward", (0, 1, 2), transposed=7, mask=10
    ),
    "cudnn_convolution_backward": Operator("convolution_backward", (1, 0, 2)),
    "scaled_dot_product_attention": _attending(causal=5),
    "_scaled_dot_product_flash_attention": _attending(causal=4),
    "_scaled_dot_product_efficient_attention": _attending(causal=6),
    "_scaled_dot_product_cudnn_attention": _attending(causal=6),
    "_scaled_dot_product_attention_math": _attending(causal=5),
    "_scaled_dot_product_fused_attention_overrideable": _attending(causal=5),
    "_scaled_dot_product_flash_attention_backward": _attending_backward(causal=11),
    "_scaled_dot_product_efficient_attention_backward": _attending_backward(causal=11),
    "_scaled_dot_product_cudnn_attention_backward": _attending_backward(causal=14),
    "_scaled_dot_product_fused_attention_overrideable_backward": _attending_backward(causal=13),
    **dict.fromkeys(("_flash_attn_forward", "FlashAttnFunc"), _by_position(causal=5)),
    "_flash_attn_varlen_forward": _by_position(causal=9, starts=3),
    "FlashAttnVarlenFunc": _by_position(starts=3),
    "_flash_attn_backward": _by_position_backward(causal=11),
    "_flash_attn_varlen_backward": _by_position_backward(causal=15, starts=9),
    "_flash_attention_forward": _by_position(causal=8, starts=3),
    "_efficient_attention_forward": _by_position(starts=4),
    "_flash_attention_backward": _gradients_by_position(causal=11, starts=6),
    "_efficient_attention_backward": _gradients_by_position(starts=6),
    "aiter::mha_batch_prefill": Operator("attention_paged", (0, 1, 2), causal=12),
    **dict.fromkeys(("vllm::unified_attention", "vllm::unified_attention_with_output"),
                    Operator("attention_cached", (0, 1, 2))),
    **dict.fromkeys(("aiter::gemm_a16w16", "vllm::rocm_unquantized_gemm"),
                    Operator("linear", (0, 1))),
}  # fmt: skip
"""The operators that are counted, by their names in PyTorch, or with another namespace."""

MOVING = {
    **_elementwise(1, "abs ceil clamp clamp_max clamp_min cos cumsum elu erf exp floor gelu "
                      "hardswish hardtanh leaky_relu log log1p logical_not neg pow reciprocal relu "
                      "round rsqrt sigmoid sign silu sin softplus sqrt tanh"),
    **_elementwise(2, "add atan2 div gelu_backward maximum minimum mul rsub sigmoid_backward "
                      "silu_backward sub tanh_backward threshold_backward masked_fill"),
    **_elementwise(3, "addcdiv addcmul lerp where"),
    **_elementwise(2, "eq ne lt le gt ge logical_and logical_or", "comparison"),
    # Of reductions the result is left out: which dimensions vanish is seldom recorded.
    **dict.fromkeys(
        ("copy", "fill", "zero", "sum", "mean", "prod", "max", "min", "amax", "amin", "argmax",
         "all", "any", "var", "std", "norm", "linalg_vector_norm", "rmsnorm", "add_rmsnorm",
         "rms_norm", "aiter::rmsnorm2d_fwd_with_add_ck", "silu_and_mul",
         "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
        Operator("arguments", ()),
    ),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
         "native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm",
         "miopen_batch_norm", "native_dropout", "native_dropout_backward", "aiter::rms_norm"),
        Operator("results", (0,)),
    ),
    "native_layer_norm_backward": Operator("results", (1, 5, 6)),
    "native_batch_norm_backward": Operator("results", (1, 2, 2)),
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), Operator("results", (0, 2, 2))
    ),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "mse_loss_backward"),
                    Operator("results", (1,))),
    "embedding": Operator("rows", (0, 1)),
    "cat": Operator("joined", ()),
    **dict.fromkeys(("_C::rotary_embedding", "sgl_kernel::rotary_embedding"),
                    Operator("rotated", (1, 2, 4))),
    **dict.fromkeys(("_C_cache_ops::reshape_and_cache_flash", "sglang::store_cache"),
                    Operator("stored", (0, 1, 4))),
}  # fmt: skip
"""The operators that only move data, by their names without the underscore of those in place."""

GRADIENTS = ("linear_backward", "convolution_backward")
"""Forms that multiply once for each gradient that is wanted: of the input, and of the weight."""
MULTIPLYING_FORMS = frozenset(each.form for each in MULTIPLYING.values())
OPERATORS = {**MULTIPLYING, **MOVING}
"""All known operators."""


def table() -> pl.DataFrame:
    """Return `OPERATORS` as a table: one row per operator, one column per argument position."""
    rows = [
        {
            "operator": name,
            "form": each.form,
            **{f"place_{n}": p for n, p in zip("abc", (*each.operands, None, None, None),
                                            strict=False)},
            **dict(zip(("stride_at", "padding_at", "dilation_at"),
                       each.geometry or (None, None, None), strict=True)),
            "transposed_at": each.transposed,
            "mask_at": each.mask,
            "causal_at": each.causal,
            "starts_at": each.starts,
            "inputs": each.inputs,
        }
        for name, each in OPERATORS.items()
    ]  # fmt: skip
    numbers = ("place_a", "place_b", "place_c", "stride_at", "padding_at", "dilation_at",
               "transposed_at", "mask_at", "causal_at", "starts_at", "inputs")  # fmt: skip
    schema = {"operator": pl.String, "form": pl.String, **dict.fromkeys(numbers, pl.Int64)}
    return pl.DataFrame(rows, schema=schema)


def times(*factors: pl.Expr) -> pl.Expr:
    """Return the product of factors; null if implausibly large or a factor is null or negative."""
    return size(pl.concat_list(each.cast(pl.Int64) for each in factors))


def size(shape: pl.Expr) -> pl.Expr:
    """Return the number of elements of a tensor, the product of the sizes in the list `shape`."""
    # Each use of a long expression is computed anew, so the list is read once.
    each = pl.element()
    is_known = (each.is_not_null() & (each >= 0)).all()
    fits = each.cast(pl.Float64).product() < _MOST
    return shape.list.eval(pl.when(is_known & fits).then(each.product())).list.first()


def matrix(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    """Return FLOPs: 2 m k n per pair of matrices, (m, k) by (k, n); batches are broadcast."""
    ranks = a.list.len(), b.list.len()
    left, right = ranks[0] > 1, ranks[1] > 1
    rows = pl.when(left).then(_last(a, 2)).otherwise(1)
    columns = pl.when(right).then(_last(b, 1)).otherwise(1)
    inner = pl.when(right).then(_last(b, 2)).otherwise(_last(b, 1))
    pairs = [(_last(a, place, 1), _last(b, place, 1)) for place in range(3, _BATCHES + 3)]
    batches = [pl.when(one == 1).then(other).otherwise(one) for one, other in pairs]
    fits = [(one == other) | (one == 1) | (other == 1) for one, other in pairs]
    known = (_last(a, 1) == inner) & pl.all_horizontal(fits)
    known &= pl.all_horizontal(rank.is_between(1, _BATCHES + 2) for rank in ranks)
    product = times(pl.lit(2, pl.Int64), rows, inner, columns, *batches)
    return pl.when(known).then(product)


def linear(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    """Return FLOPs: 2 k n per row of `a`, (..., k), which is multiplied by `b`^T, `b` (n, k)."""
    columns = pl.when(b.list.len() > 1).then(b.list.first()).otherwise(1)
    known = (_last(a, 1) == _last(b, 1)) & b.list.len().is_between(1, 2)
    return pl.when(known).then(times(pl.lit(2, pl.Int64), size(a), columns))


def attention(query: pl.Expr, key: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Return FLOPs: 2 L S (E + F) per head, (L, E) by (E, S) by (S, F); masks save nothing."""
    known = _last(query, 1) == _last(key, 1)
    known &= _last(key, 2) == _last(value, 2)
    rows = size(query.list.slice(0, query.list.len() - 1))
    return pl.when(known & (query.list.len() > 1)).then(
        times(pl.lit(2, pl.Int64), rows, _last(key, 2), _last(query, 1) + _last(value, 1))
    )


def attention_by_position(query: pl.Expr, key: pl.Expr, value: pl.Expr, pairs: pl.Expr) -> pl.Expr:
    """Return the FLOPs of attention for tensors whose next-to-last dimension is the heads.

    Tensors without a batch dimension are concatenated sequences; `pairs` then is the number of
    pairs of a query and a key of the same sequence.
    """
    batched = 4
    known = _last(query, 1) == _last(key, 1)
    is_complete = (query.list.len() == batched) & (key.list.len() == batched)
    rows = size(query.list.slice(0, query.list.len() - 1))
    packed = (query.list.len() == batched - 1) & (key.list.len() == batched - 1)
    width = _last(query, 1) + _last(value, 1)
    return (
        pl.when(known & is_complete & (_last(key, 3) == _last(value, 3)))
        .then(times(pl.lit(2, pl.Int64), rows, _last(key, 3), width))
        .when(known & packed).then(times(pl.lit(2, pl.Int64), pairs, _last(query, 2), width))
    )  # fmt: skip


def attention_of_requests(query: pl.Expr, key: pl.Expr, value: pl.Expr, pairs: pl.Expr) -> pl.Expr:
    """Return attention FLOPs: 2 (E + F) per head and pair of a query and a key of one request."""
    packed = 3
    known = (query.list.len() == packed) & (_last(query, 1) == _last(key, 1))
    known &= key.list.len().is_between(packed, packed + 1)
    width = _last(query, 1) + _last(value, 1)
    return pl.when(known).then(times(pl.lit(2, pl.Int64), pairs, _last(query, 2), width))


def sliding(data: pl.Expr, weight: pl.Expr, positions: pl.Expr) -> pl.Expr:
    """Return convolution FLOPs: 2 N |weight| per position that the weight slides over.

    N is the number of samples. `positions` are those of the output, or, if the convolution is
    transposed, of the input. How channels are grouped does not matter.
    """
    axes = weight.list.len() - 2
    samples = pl.when(data.list.len() == axes + 2).then(data.list.first()).when(
        data.list.len() == axes + 1
    ).then(1)  # fmt: skip
    return pl.when(axes.is_between(1, _AXES)).then(
        times(pl.lit(2, pl.Int64), samples.cast(pl.Int64), size(weight), size(positions))
    )


def positions(shape: pl.Expr, weight: pl.Expr) -> pl.Expr:
    """Return the spatial sizes of a tensor (`shape`) that a convolution's `weight` slides over."""
    return shape.list.tail(weight.list.len() - 2)


def output_positions(
    data: pl.Expr, weight: pl.Expr, stride: pl.Expr, padding: pl.Expr, dilation: pl.Expr
) -> pl.Expr:
    """Return the number of output positions of a convolution that is not transposed, by its sizes.

    Along each dimension there are floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1.
    """
    axes = weight.list.len() - 2
    along = [
        (_last(data, n) + 2 * _axis(padding, n) - _axis(dilation, n) * (_last(weight, n) - 1) - 1)
        // _axis(stride, n) + 1
        for n in range(1, _AXES + 1)
    ]  # fmt: skip
    usual = stride.list.eval((pl.element() > 0).all()).list.first()
    sizes = pl.concat_list(reversed(along)).list.tail(axes)
    return pl.when(usual & axes.is_between(1, _AXES)).then(sizes)


def backward_positions(
    gradient: pl.Expr, data: pl.Expr, weight: pl.Expr, transposed: pl.Expr
) -> pl.Expr:
    """Return how often a convolution applied its weight, from the sizes in its backward pass.

    If it is not recorded whether the convolution is transposed, the numbers of channels decide. If
    these allow both and the results differ, the result is null.
    """
    axes = weight.list.len() - 2
    before = -1 - axes.cast(pl.Int64)
    out, into = (each.list.get(before, null_on_oob=True) for each in (gradient, data))
    plain = (weight.list.first() == out) & (into % weight.list.get(1, null_on_oob=True) == 0)
    other = (weight.list.first() == into) & (out % weight.list.get(1, null_on_oob=True) == 0)
    of_output, of_input = positions(gradient, weight), positions(data, weight)
    found = pl.when(plain & ~other).then(of_output).when(other & ~plain).then(of_input)
    found = found.when(plain & other & (size(of_output) == size(of_input))).then(of_output)
    direct = pl.when(transposed).then(of_input).when(~transposed).then(of_output)
    return pl.when(axes.is_between(1, _AXES)).then(pl.coalesce(direct, found))


def _last(shape: pl.Expr, place: int, default: int | None = None) -> pl.Expr:
    found = shape.list.get(-place, null_on_oob=True)
    return found if default is None else found.fill_null(default)


def _axis(values: pl.Expr, place: int) -> pl.Expr:
    """Return the stride, padding or dilation along dimension `place`; one value applies to all."""
    return pl.when(values.list.len() == 1).then(values.list.first()).otherwise(_last(values, place))
