"""Sums by keys and by step: what breakdowns show, and comparisons and studies measure.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.step_sums._per_iteration import (
        PARTS,
        Measured,
        in_one_account,
        parse_compare_keys,
        peak_memory,
        per_iteration,
        steps_of,
        with_hosts_matched,
    )

_HOMES = {
    "Measured": "tracekit.analysis.step_sums._per_iteration",
    "PARTS": "tracekit.analysis.step_sums._per_iteration",
    "in_one_account": "tracekit.analysis.step_sums._per_iteration",
    "parse_compare_keys": "tracekit.analysis.step_sums._per_iteration",
    "peak_memory": "tracekit.analysis.step_sums._per_iteration",
    "per_iteration": "tracekit.analysis.step_sums._per_iteration",
    "steps_of": "tracekit.analysis.step_sums._per_iteration",
    "with_hosts_matched": "tracekit.analysis.step_sums._per_iteration",
}

__all__ = [
    "PARTS",
    "Measured",
    "in_one_account",
    "parse_compare_keys",
    "peak_memory",
    "per_iteration",
    "steps_of",
    "with_hosts_matched",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
