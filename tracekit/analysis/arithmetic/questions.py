"""The question `flops`, as it is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.questions import ChosenRows, Option, Skip, grouped_by, question
from tracekit.support.schemas import Json, by_name

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


_KEYS = ("operator", "sizes", "layer", "stage", "precision", "kernel", "iteration", "device")

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
        "known_share": "amount or null: How much of the time of kernels that compute is that of "
        "operators whose FLOPs are known.",
        "outside_flops": "amount: FLOPs of work that is in no step that counts.",
        "peaks": by_name(
            "Peaks that shares are of, by product (or given) and precision, FLOP/s.",
            by_name(
                "FLOP/s, by precision.",
                "count",
            ),
        ),
        **keys("skip", "shares?", "warnings?"),
    },
    rows={
        "operator?": "text or null: Name of the operator; null of kernels that multiply without "
        "one.",
        "sizes?": "text or null: Sizes of its arguments, as recorded.",
        "layer?": "text or null: Layer that it is of, null where not known.",
        "stage?": "text or null: Stage of its kernels.",
        "precision?": "one of fp64, fp32, tf32, fp16, bf16, fp8 or null: Precision in which it "
        "multiplies; null where not known.",
        "kernel?": "text or null: Name of its longest kernel.",
        "iteration?": "integer or null: Number of the iteration.",
        **columns("device?"),
        "operators": "count: Number of operators, and of kernels that multiply without one.",
        "unknown": "count: Of how many of these the FLOPs are not known.",
        "flops": "amount or null: FLOPs of the others, added up; null where there are none.",
        "recomputed_flops": "amount or null: Of these, FLOPs of operators that a backward pass "
        "runs again; null where that is not known.",
        "step_flops": "amount or null: `flops`, mean per step and GPU; null without steps.",
        "kernel_ns": "count: How long the kernels of all these operators ran, added up.",
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
    peak: Annotated[
        int | None,
        Option(
            "FLOP/s of a GPU at its peak, such as 312TFLOPS, whatever the precision.",
            "RATE",
            unit="FLOP/s",
        ),
    ] = None,
    skip: Skip = 0,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Say how many floating-point operations steps take, and at which share of the GPUs' peak.

    They are known where sizes of operators were recorded. docs/flops.md says how they are counted.
    """
    from tracekit.analysis.arithmetic._flops import flops

    return flops(trace, chosen_keys(by, _KEYS, "FLOPs"), skip=skip, peak=peak)
