"""The library of a collective kernel, and its algorithm if it implements only one.

NCCL's general kernels (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``) run any algorithm and protocol:
the name is that of the code that was inlined into them. Its kernels for symmetric memory, and those
of other libraries, do what their names say. What each reads and writes is that of vLLM's
``custom_all_reduce.cuh`` (SGLang and AITER have the same), FlashInfer's and TensorRT-LLM's
``trtllm_allreduce_fusion.cuh`` and ``customAllReduceKernels.cu``, and PyTorch's
``CUDASymmetricMemoryOps.cu``.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

_LIBRARIES = {
    "(?i)nccl": "nccl",
    "(?i)msccl": "msccl",
    "(?i)nvshmem": "nvshmem",
    r"(?i)deep_?ep|dpsk(::|\d)ep": "deep_ep",
    "(?i)hybrid_?ep": "hybrid_ep",
    "mori::|^Ep(Dispatch|Combine)": "mori",
    "cross_device_reduce": "vllm",
    "(?i)moeA2A|allreduce_fusion_kernel|(one|two)shot_?allreduce": "tensorrt_llm",
    "(one|two)_shot_all_reduce|multimem_all": "pytorch",
}
"""Libraries by patterns of the names of their kernels; the first that fits applies."""
_ALGORITHMS = {
    "cross_device_reduce_1stage": "one_shot",
    "cross_device_reduce_2stage": "two_shot",
    r"allreduce_fusion_kernel_oneshot_lamport|\boneShotAllReduceKernel\b": "one_shot",
    r"allreduce_fusion_kernel_twoshot_sync|\btwoShotAllReduceKernel\b": "two_shot",
    r"\bone_shot_all_reduce(_out)?_kernel\b": "one_shot",
    # Without the suffix it may be a reduce-scatter: its template says, which short names lack.
    r"\btwo_shot_all_reduce_kernel_inplace\b": "two_shot",
    r"\bmultimem_one_shot_all_reduce_kernel\b": "reduced_one_shot",
    r"\bmultimem_all_(reduce|gather)_kernel\b": "nvls",
}
_EXPERTS = r"(?i)deep_?ep|dpsk(::|\d)ep|hybrid_?ep|mori::|moeA2A|^Ep(Dispatch|Combine)"
_PARTS = {
    "(?i)notify|barrier|device_sync|rdma_sync|update_expected|fetch_wait": "wait",
    "(?i)dispatch": "dispatch",
    "(?i)combine": "combine",
}
"""What kernels of expert parallelism do, by patterns of their names; the first that fits applies.
What waits does so for counts of tokens, or for all ranks."""
_SYMMETRIC = r"ncclSymk?DevKernel_(\w+?)(?:_(?:sum|avg|profile)\w*)?(?:\(|$)"


def with_libraries(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the library and algorithm of each collective kernel, by its short name.

    Returns
    -------
    `kernels` with ``library`` (``other`` if unknown); ``algorithm`` in the spelling of
    `machine.shares` (null if the kernel implements several); and ``part``, the phase of expert
    parallelism by the whole name: dispatch, combine or wait (null for other kernels).
    """
    from tracekit.machine import SYMMETRIC  # noqa: PLC0415 - a machine takes time to load

    # One without a name, as in a trace that was trimmed, is taken for NCCL's, as most are.
    names = pl.coalesce(pl.col("short_name", "name").cast(pl.String), pl.lit("nccl"))
    name = pl.col("kernel_name")
    # One of a later version runs what is not known, but neither a ring nor NVLS.
    kernel = name.str.extract(_SYMMETRIC)
    symmetric = pl.when(kernel.is_not_null()).then(
        kernel.replace_strict(SYMMETRIC, default="symmetric", return_dtype=pl.String)
    )
    told = kernels.select(kernel_name=names).unique().with_columns(
        library=_first(name, _LIBRARIES, pl.lit("other")),
        algorithm=pl.coalesce(symmetric, _first(name, _ALGORITHMS, pl.lit(None, pl.String))),
    )  # fmt: skip
    whole = pl.col("name").cast(pl.String)
    parts = (
        kernels.select("name")
        .unique()
        .with_columns(
            part=pl.when(whole.str.contains(_EXPERTS)).then(
                _first(whole, _PARTS, pl.lit(None, pl.String))
            )
        )
    )
    named = kernels.with_columns(kernel_name=names).join(
        parts, on="name", how="left", maintain_order="left"
    )
    return named.join(told, on="kernel_name", how="left", maintain_order="left").drop("kernel_name")


def _first(name: pl.Expr, patterns: Mapping[str, str], otherwise: pl.Expr) -> pl.Expr:
    """Return the value of the first pattern that occurs in a name, else `otherwise`."""
    each = [
        pl.when(name.str.contains(pattern)).then(pl.lit(text)) for pattern, text in patterns.items()
    ]
    return pl.coalesce(*each, otherwise)
