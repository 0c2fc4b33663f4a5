"""Tell from kernel names and operand types whether kernels multiply, and in which precision."""

from __future__ import annotations

import polars as pl

_MULTIPLIES = (
    r"(?i)gemm|gemv|gemmk1|nvjet|xmma|fprop|dgrad|wgrad|winograd|implicit_con|convolve|"
    r"conv\dd_|conv_depthwise|scudnn|hcudnn|flash_(fwd|bwd|attn)|fmha|"
    # torch.compile's own templates; Triton's and cuDNN's attention; AMD's matrices
    r"triton_tem|_attn_(fwd|bwd)|sdpa|\bcijk_"
)
_NO_MULTIPLICATION = r"(?i)fbgemm\w*"
"""A library whose name is in those of all its kernels."""
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
"""What names say, the surest first: ``s1688`` alone is TF32, beside ``fp16`` it is that. An offset
may be named ``off64``, and a kernel of any type takes arguments that are ``double``."""
_BY_TYPE = {
    **dict.fromkeys(("float16", "c10::Half", "half", "Half"), "fp16"),
    **dict.fromkeys(("bfloat16", "c10::BFloat16", "BFloat16"), "bf16"),
    **dict.fromkeys(("double", "float64"), "fp64"),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "float8_e4m3fn"), "fp8"),
}
"""What types of operands say; of `float` they leave open whether it is TF32."""


_TENSOR_CORES = (
    r"(?i)(884|1688|161616|16816|16832)gemm|tensorop_|xdl|hmma|imma|gmma|wmma|nvjet|"
    r"cijk_\w*_MI\d+x|xmma_\w*(bf16|f16|tf32|e4m3|e5m2)|flash_(fwd|bwd)"
)
_PLAIN_CORES = (
    r"at::native::|elementwise|reduce_kernel|softmax|(layer|batch|group|rms)_?norm|bn_(fw|bw)|pool|"
    r"triton_(poi|red|per)_|multi_tensor_apply|transpose|[nN]chwTo[nN]hwc|[nN]hwcTo[nN]chw|\bcopy|fill|embedding"
)
"""Kernels that multiply no matrices, by what they are named after."""
_OF_TENSOR_CORES = ("tf32", "bf16", "fp8")


def on_tensor_cores(name: pl.Expr) -> pl.Expr:
    """Tell which kernels multiply on Tensor Cores (AMD: matrix cores), by their names.

    TF32, BF16 and FP8 are multiplied there alone, FP32 never; of FP16, the name of the instruction
    tells. Null where a name tells neither that nor that nothing is multiplied.
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
    """Tell which kernels multiply matrices, or convolve."""
    told = name.str.replace_all(_NO_MULTIPLICATION, "")
    return told.str.contains(_MULTIPLIES).fill_null(value=False)


def of_weight(name: pl.Expr) -> pl.Expr:
    """Tell which kernels find the gradient of a convolution's weight."""
    return name.str.contains(_WEIGHT).fill_null(value=False)


def of_input(name: pl.Expr) -> pl.Expr:
    """Tell which kernels, backward, find the gradient of a convolution's input.

    cuDNN finds it with kernels that are named after the forward pass too.
    """
    return (name.str.contains(_INPUT) & ~name.str.contains(_WEIGHT)).fill_null(value=False)


def precision_by_name(name: pl.Expr) -> pl.Expr:
    """Return ``fp64, fp32, tf32, fp16, bf16`` or ``fp8``; null where the name does not tell."""
    return pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(precision))
        for precision, pattern in _BY_NAME
    )


def precision_by_type(types: pl.Expr) -> pl.Expr:
    """Return the precision of an operator whose operands all have one type that says it."""
    said = types.list.eval(
        pl.element().replace_strict(_BY_TYPE, default=None, return_dtype=pl.String)
    )
    return pl.when(said.list.drop_nulls().list.n_unique() == 1).then(
        said.list.drop_nulls().list.first()
    )
