"""Traits of columns of answers: unit, label, short form, and how essential.

Units follow from names everywhere (``_ns``, ``_bytes``, ``_gb_s``, ``_percent``). What does not is
declared here once, and whoever shows a table asks for it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """Traits of a column.

    Parameters
    ----------
    label
        What people read in place of the name.
    spare
        Its place among the columns that leave a table that is too wide, first come first; None for
        one that leaves only when none of these is left.
    needs
        It is spare only beside one of these columns, which say about the same.
    essential
        Whether it leaves a table last of all: an answer is not one without it.
    prose
        Whether it holds sentences, which are wrapped and not cut.
    wraps
        Whether its texts, which are short, are wrapped and not cut either.
    names
        Whether its numbers name things: they are shown as they are, without separators.
    kernel_beside
        Its texts are names of kernels where one of these columns is in the table, be it itself.
    exact
        Whether its sizes are shown without rounding, each in a unit of its own.
    """

    label: str | None = None
    spare: int | None = None
    needs: frozenset[str] = frozenset()
    essential: bool = False
    prose: bool = False
    wraps: bool = False
    names: bool = False
    kernel_beside: frozenset[str] = frozenset()
    exact: bool = False


_SPARE = (
    "method_source", "p_value", "a_outside_ns", "b_outside_ns", "a_count", "b_count", "mode",
    "baseline_runs", "baseline_gpus", "throughput_ratio", "style", "launching", "own_busy_ns",
    "ratio", "p5_ns", "p95_ns", "median_ns", "min_ns", "max_ns", "mean_ns", "overlap_ns", "idle_ns",
    "busy_ns", "files", "id", "duration_p5_ns", "duration_p95_ns", "duration_max_ns",
    "straggler_rank", "bytes_source", "basis", "library", "unsized", "link", "bricks", "steps",
    "baseline_steps", "time_low_ns", "time_high_ns", "baseline_low_ns", "baseline_high_ns",
    "speedup_low", "speedup_high", "low_percent", "high_percent", "interval_of", "gradient_bytes",
    "star_root_bytes", "ring_gpu_bytes", "observed_evidence", "points", "smallest", "largest",
    "edges", "segments", "slack_p50_ns",
    "late_ns", "last", "outside_ns", "flops", "recomputed_flops", "kernel_ns", "unknown",
    "bound_ns", "untold_ns", "headroom_ns", "achieved_flops_s", "flops_per_byte",
)  # fmt: skip
_ESSENTIAL = (
    "verdict", "delta_ns", "step_ns", "time_ns", "speedup", "efficiency", "overhead_percent",
    "images_per_s", "bus_bandwidth_gb_s", "utilisation", "share", "exposed_ns", "busy_ns",
    "duration_p50_ns", "speedup_from", "speedup_to", "from_percent", "to_percent", "step_low_ns",
    "step_high_ns", "expected_bytes", "observed_bytes", "crossing",
    "bubble_share", "data_stall_ns", "data_stall_share",
    "caused_ns", "late_in", "bytes", "least_bytes", "most_bytes", "evidence", "only_in",
    "least_utilisation", "most_utilisation", "least_gpu_bytes", "most_gpu_bytes",
    "step_flops", "mfu", "hfu", "bound", "bound_share", "step_headroom_ns",
)  # fmt: skip
_NAMES = (
    "call", "context", "correlation", "depth", "device", "id", "iteration", "node", "numa", "op",
    "parent", "pid", "process", "range", "rank", "report", "result", "stream", "thread", "tid",
)  # fmt: skip
_PLAIN = Traits()

TRAITS: Mapping[str, Traits] = {
    **{name: Traits(names=True) for name in _NAMES},
    **{name: Traits(essential=True) for name in _ESSENTIAL},
    **{
        name: Traits(
            spare=place,
            needs=frozenset({"exposed_ns", "total_ns"} if name == "busy_ns" else ()),
            essential=name in _ESSENTIAL,
            wraps=name == "basis",
            names=name.rpartition("_")[2] in _NAMES,
        )
        for place, name in enumerate(_SPARE)
    },
    "name": Traits(kernel_beside=frozenset({"kind", "segments"})),
    "kernel": Traits(kernel_beside=frozenset({"kernel"})),
    "before": Traits(kernel_beside=frozenset({"after"})),
    "after": Traits(kernel_beside=frozenset({"before"})),
    "found": Traits(prose=True),
    "record_with": Traits(prose=True),
    "fault": Traits(prose=True),
    "todo": Traits(prose=True),
    "warnings": Traits(prose=True),
    "change": Traits(essential=True),
    "size_bytes": Traits(exact=True),
    "feature": Traits(wraps=True),
    "pipeline_stage": Traits(label="stage", names=True),
    "late_in_ns": Traits(label="by"),
    "launched": Traits(label="launches known"),
    "coverage": Traits(label="coverage (stages known)"),
}
"""By the name of a column; others have none."""


def traits(column: str) -> Traits:
    """Return the traits of a column.

    A column such as ``src_device`` or ``straggler_rank`` names things as its last word does.
    """
    if column in TRAITS:
        return TRAITS[column]
    return TRAITS["rank"] if column.rpartition("_")[2] in _NAMES else _PLAIN
