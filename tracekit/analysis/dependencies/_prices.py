"""Prices of findings: the step's range when `whatif` replays the change that mends one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.analysis.dependencies._changes import parse_changes
from tracekit.analysis.dependencies._whatif import whatif
from tracekit.errors import UndecidedError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace

_MS = 10**6


def _faster(names: str, factor: str) -> tuple[str, Mapping[str, Any]]:
    """Return the change of kernels whose names match a pattern."""
    return f"--speed '{names}={factor}'", {"speed": [f"{names}={factor}"]}


_FP32_PRODUCTS = (
    r"sgemm|scudnn|simt|ffma|f32f32_f32f32|fmha_cutlass._f32|(gem[mv]|conv)\w*<(int, )*float"
)
CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "input_bound": ("--loader inf", {"loader": "inf"}),
    "sync_in_loop": ("--no-sync", {"no_sync": True}),
    "exposed_collectives": ("--overlap", {"overlap": True}),
    "late_buckets": ("--overlap", {"overlap": True}),
    "small_buckets": ("--bucket 25MB", {"bucket": 25_000_000}),
    **dict.fromkeys(("launch_bound", "tiny_kernels", "busy_host"), ("--host 2x", {"host": "2x"})),
    "fp32_products": _faster(_FP32_PRODUCTS, "2x"),
    "layout_transposes": _faster("nchwTo|nhwcTo|NCHW2CNHW|CNHW2NCHW|batched_transpose_", "inf"),
    "unfused_elementwise": _faster("elementwise", "2x"),
}
"""The findings that a replay can price, by rule: how it is asked for, and the same in Python."""


@dataclass(frozen=True)
class Price:
    """Options of `tracekit whatif` for a change, and the range of a step with it.

    The range is null where it is too wide to say.
    """

    options: str
    low_ns: float | None = None
    high_ns: float | None = None

    @property
    def text(self) -> str:
        """The `whatif` command, and the predicted range of a step, in words."""
        told = f"`tracekit whatif {self.options}`"
        if self.low_ns is None or self.high_ns is None:
            return f"{told}: too wide a range to say"
        return f"{told}: a step of {self.low_ns / _MS:,.3f} to {self.high_ns / _MS:,.3f} ms"


def price_of(rule: str, trace: Trace, traffic: Traffic) -> Price | None:
    """Replay the change that mends a rule's finding; return None where no replay can price it.

    Parameters
    ----------
    rule
        Name of the rule of `tracekit diagnose`.
    trace, traffic
        As `whatif` takes them.

    Raises
    ------
    MissingDataError
        As `whatif`.
    """
    if rule not in CHANGES:
        return None
    options, changes = CHANGES[rule]
    try:
        rows = whatif(trace, traffic, parse_changes(**changes)).rows
    except UndecidedError:
        return Price(options)
    except UsageError:  # kernels whose names say the same in other words
        return None
    row = rows.row(-1, named=True)
    return Price(options, row["low_ns"], row["high_ns"]) if row["edges"] else None
