"""Declarations of the commands `flops` and `roofline`: options and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.questions import AutoSkip, ChosenRows, Option, grouped_by, question
from tracekit.support.schemas import Json, Said, by_name

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


_KEYS = (
    "operator", "sizes", "types", "dtype", "layer", "stage", "precision", "kernel", "iteration",
    "device",
)  # fmt: skip
_BY: Said = {
    "operator?": "text or null: Name of the operator; null of kernels without one; collective, p2p "
    "or staged of what moves data between GPUs.",
    "sizes?": "text or null: Sizes of its arguments, as recorded.",
    "types?": "text or null: Types of the tensors among them, as recorded.",
    "dtype?": "text or null: The same by their names in PyTorch, each once; numbers left out.",
    "layer?": "text or null: Its layer, null if unknown.",
    "stage?": "text or null: Stage of its kernels.",
    "precision?": "one of fp64, fp32, tf32, fp16, bf16, fp8 or null: Precision in which it "
    "multiplies; null where not known.",
    "kernel?": "text or null: Name of its longest kernel.",
    "iteration?": "integer or null: Number of the iteration.",
    **columns("device?"),
    "operators": "count: Number of operators, and of kernels without one.",
}
_SPREAD: Said = {
    "min_ns": "count: Time of the kernels of the shortest of them.",
    "median_ns": "count: Median of that.",
    "max_ns": "count: Time of the kernels of the longest of them.",
}
_PEAKS: Said = {
    "peaks": by_name(
        "Peaks that shares refer to, by product (or given) and precision, FLOP/s.",
        by_name("FLOP/s, by precision.", "count"),
    ),
    "attention": "one of full, causal: How attention is counted: in full, or half of it where it "
    "was recorded as causal.",
}
Attention = Annotated[
    Literal["full", "causal"],
    Option("Count attention in full, or half of it where it was recorded as causal."),
]
Peak = Annotated[
    int | None,
    Option(
        "FLOP/s of a GPU at its peak, such as 312TFLOPS, whatever the precision.",
        "RATE",
        unit="FLOP/s",
    ),
]

_WRITES = Json(
    "flops",
    meta={
        "steps": "count: Number of steps that count, on each GPU one.",
        "step_ns": "amount or null: Their mean length; null without steps.",
        "step_flops": "amount or null: FLOPs that are known, mean per step and GPU; null where "
        "none are, or without steps.",
        "step_recomputed_flops": "amount or null: Of these, FLOPs of operators that a backward "
        "pass runs again; null where that is not known.",
        "mfu": "amount or null: FLOPs without recomputed ones over what the GPUs could have done "
        "in the time of the steps, at the peak of the precision; null where anything of this is "
        "not known.",
        "hfu": "amount or null: All FLOPs over the same.",
        "mfu_unknown?": "text: Why mfu is null.",
        "known_share": "amount or null: How much of the time of kernels that compute, in the steps "
        "that count, is that of operators whose FLOPs are known.",
        "outside_flops": "amount: FLOPs of work that is in no step that counts.",
        **_PEAKS,
        **keys("skip", "cold?", "shares?", "warnings?"),
    },
    rows={
        **_BY,
        "unknown": "count: Of how many of these the FLOPs are not known.",
        "flops": "amount or null: FLOPs of the others, added up; null where there are none.",
        "recomputed_flops": "amount or null: Of these, FLOPs of operators that a backward pass "
        "runs again; null where that is not known.",
        "step_flops": "amount or null: `flops`, mean per step and GPU; null without steps.",
        "kernel_ns": "count: How long the kernels of all these operators ran, added up.",
        **_SPREAD,
        "achieved_flops_s": "amount or null: FLOPs over the time of the kernels, of operators "
        "that are known.",
        "peak_share": "amount or null: That over the peak of its precision; null where a peak is "
        "not known.",
        "mfu?": "amount or null: FLOPs without recomputed ones over what the GPUs could have "
        "done in the time of the steps; null where anything of this is not known.",
        "hfu?": "amount or null: All FLOPs over the same.",
        "share": "amount or null: flops over those of all rows.",
    },
)


@question(
    "tracekit flops",
    "tracekit flops mnist --by layer",
    "tracekit flops mnist --by operator,sizes,dtype",
    "tracekit flops mnist --by iteration --peak 312TFLOPS",
    writes=_WRITES,
)
def flops(
    trace: "Trace",
    by: Annotated[
        str | Sequence[str],
        grouped_by(*_KEYS),
    ] = "operator",
    *,
    peak: Peak = None,
    attention: Attention = "full",
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Count the floating-point operations (FLOPs) of steps, and their share of the GPUs' peak.

    FLOPs are known for operators whose sizes were recorded. docs/flops.md explains the formulas.
    """
    from tracekit.analysis.arithmetic._flops import flops

    return flops(trace, chosen_keys(by, _KEYS, "FLOPs"), skip=skip, peak=peak, attention=attention)


_BOUND = "computing, memory, launch, communication"


@question(
    "tracekit roofline",
    "tracekit roofline mnist --by operator,sizes,dtype",
    "tracekit roofline mnist --by layer --figure roofline.html",
    writes=Json(
        "roofline",
        meta={
            "steps": "count: Number of steps that count, on each GPU one.",
            "step_ns": "amount or null: Their mean length; null without steps.",
            "bounds": by_name(
                "How long kernels ran, added up, by what bounds their operators, ns.",
                "count",
                names=f"{_BOUND}, unknown",
            ),
            "known_share": "amount or null: How much of the time of kernels that compute is that "
            "of operators whose bound is known.",
            "bounds_unknown": "text or null: Which peaks are missing for bounds of operators whose "
            "FLOPs or bytes are known, and how to give them; null where none are.",
            "step_headroom_ns": "amount or null: Time above the bounds, mean per step and GPU; "
            "null without steps, or where no bound is known.",
            "outside_ns": "count: How long kernels, and copies between GPUs, ran in no step that "
            "counts, added up.",
            "tensor_core_ns": "count: How long kernels on Tensor Cores ran, by their names.",
            "tensor_core_unknown_ns": "count: Time in kernels whose names do not show that.",
            **_PEAKS,
            "memory_peaks": by_name("Peak bandwidths of memory, by product, bytes/s.", "count"),
            "modelled": "text: What bounds assume.",
            **keys("skip", "cold?", "warnings?"),
        },
        rows={
            **_BY,
            "unknown": "count: Of how many of these the bound is not known.",
            "kernel_ns": "count: How long their kernels ran, added up.",
            **_SPREAD,
            "tensor_core_ns": "count: How long kernels on Tensor Cores ran, by their names.",
            "tensor_core_unknown_ns": "count: Time in kernels whose names do not show that.",
            "flops": "amount or null: FLOPs, as `flops` counts them; null where none are known.",
            "bytes": "amount or null: Bytes that they must move at least, by sizes and types; null "
            "where none are known.",
            "flops_per_byte": "amount or null: FLOPs over bytes, of operators with both known.",
            "achieved_flops_s": "amount or null: FLOPs over the time of the kernels, of operators "
            "with known FLOPs.",
            "achieved_gb_s": "amount or null: Those bytes over the time of the kernels, GB/s.",
            "bound": f"one of {_BOUND} or null: What bounds most of their time; null where it is "
            "not known.",
            "bound_ns": "amount or null: The least time of the operators whose bound is known.",
            "bound_share": "amount or null: That over the time of their kernels; more than 1 where "
            "data were in a cache.",
            "headroom_ns": "amount or null: Time above the bound, added up.",
            "step_headroom_ns": "amount or null: The same, mean per step and GPU; null without "
            "steps.",
            "share": "amount or null: kernel_ns over that of all rows.",
        },
    ),
    figures={"figure": "Draw FLOP/s by FLOP per byte, under the roofs of the GPU"},
)
def roofline(
    trace: "Trace",
    by: Annotated[
        str | Sequence[str],
        grouped_by(*_KEYS),
    ] = "operator",
    *,
    peak: Peak = None,
    memory_bandwidth: Annotated[
        int | None,
        Option(
            "Bytes per second of a GPU's memory at its peak, such as 3.35TB.", "SIZE", unit="bytes"
        ),
    ] = None,
    attention: Attention = "full",
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Show what bounds each operator (FLOPs, bytes or launches), and its time beyond that bound.

    Bounds follow from recorded sizes and the GPU's peaks. docs/roofline.md explains them.
    """
    from tracekit.analysis.arithmetic._flops import roofline

    return roofline(
        trace, chosen_keys(by, _KEYS, "the roofline"), skip=skip, peak=peak,
        memory_bandwidth=memory_bandwidth, attention=attention,
    )  # fmt: skip
