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
    from tracekit.analysis.step_sums._sums import (
        KeySums,
        StepTimes,
        group_lengths,
        grouped_sums,
        stages_of,
        step_times,
        steps_by_keys,
        sums_by_keys,
    )

_HOMES = {
    "KeySums": "tracekit.analysis.step_sums._sums",
    "Measured": "tracekit.analysis.step_sums._per_iteration",
    "PARTS": "tracekit.analysis.step_sums._per_iteration",
    "StepTimes": "tracekit.analysis.step_sums._sums",
    "group_lengths": "tracekit.analysis.step_sums._sums",
    "grouped_sums": "tracekit.analysis.step_sums._sums",
    "in_one_account": "tracekit.analysis.step_sums._per_iteration",
    "parse_compare_keys": "tracekit.analysis.step_sums._per_iteration",
    "peak_memory": "tracekit.analysis.step_sums._per_iteration",
    "per_iteration": "tracekit.analysis.step_sums._per_iteration",
    "stages_of": "tracekit.analysis.step_sums._sums",
    "step_times": "tracekit.analysis.step_sums._sums",
    "steps_by_keys": "tracekit.analysis.step_sums._sums",
    "steps_of": "tracekit.analysis.step_sums._per_iteration",
    "sums_by_keys": "tracekit.analysis.step_sums._sums",
    "with_hosts_matched": "tracekit.analysis.step_sums._per_iteration",
}

__all__ = [
    "PARTS",
    "KeySums",
    "Measured",
    "StepTimes",
    "group_lengths",
    "grouped_sums",
    "in_one_account",
    "parse_compare_keys",
    "peak_memory",
    "per_iteration",
    "stages_of",
    "step_times",
    "steps_by_keys",
    "steps_of",
    "sums_by_keys",
    "with_hosts_matched",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
