"""How tables display columns, by name of the column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """How tables display a column: heading, wrapping, rounding, and when to leave it out."""

    label: str | None = None
    """Heading displayed in place of the column's name."""
    spare: int | None = None
    """Order in which columns are left out of a table that is too wide: the lowest number first.
    Columns with None follow, from the right."""
    needs: frozenset[str] = frozenset()
    """Columns with about the same information: `spare` applies only if the table has one of
    them."""
    essential: bool = False
    """Whether it is left out last, even after other columns with None in `spare`, as the table is
    useless without it."""
    prose: bool = False
    """Whether it contains sentences, which are wrapped and not cut."""
    wraps: bool = False
    """Whether its texts, shorter than sentences, are wrapped rather than cut."""
    names: bool = False
    """Whether its integers are identifiers (such as ranks), shown without thousands separators."""
    kernel_beside: frozenset[str] = frozenset()
    """If a table has one of these columns (this column may be among them), the texts of this column
    are kernel names."""
    exact: bool = False
    """Whether its sizes in bytes are shown unrounded, each cell in its own unit."""


_SPARE = (
    "method_source", "p_value", "a_outside_steps_ns", "b_outside_steps_ns", "a_count", "b_count",
    "mode",
    "baseline_runs", "baseline_gpus", "throughput_ratio", "style", "launching", "self_busy_ns",
    "ratio", "p5_ns", "p95_ns", "median_ns", "min_ns", "max_ns", "mean_ns", "overlap_ns", "idle_ns",
    "busy_ns", "files", "id", "duration_p5_ns", "duration_p95_ns", "duration_max_ns",
    "straggler_rank", "bytes_source", "basis", "library", "unsized", "link", "nvlinks", "steps",
    "baseline_steps", "time_low_ns", "time_high_ns", "baseline_low_ns", "baseline_high_ns",
    "speedup_low", "speedup_high", "low_percent", "high_percent", "interval_of", "gradient_bytes",
    "star_root_bytes", "ring_gpu_bytes", "observed_evidence", "points", "smallest", "largest",
    "dependencies", "segments", "slack_p50_ns",
    "chance_share", "late_ns", "last", "outside_steps_ns", "flops", "recomputed_flops", "unknown",
    "bound_ns", "tensor_core_unknown_ns", "headroom_ns", "flops_per_byte", "achieved_flops_s",
    "achieved_gb_s", "tensor_core_ns", "algorithm_bandwidth_gb_s", "ranks", "bytes", "kernel_ns",
)  # fmt: skip
_NEEDS = {
    "busy_ns": {"exposed_ns", "total_ns"},
    "idle_ns": {"busy_ns", "window_ns"},
    "bytes": {"kernel_ns"},
}
_ESSENTIAL = (
    "verdict", "delta_ns", "step_ns", "time_ns", "speedup", "efficiency", "overhead_percent",
    "count", "images_per_s", "bus_bandwidth_gb_s", "utilisation", "share", "exposed_ns", "busy_ns",
    "duration_p50_ns", "speedup_from", "speedup_to", "from_percent", "to_percent", "step_low_ns",
    "step_high_ns", "expected_bytes", "observed_bytes", "crossing",
    "bubble_share", "data_stall_ns", "data_stall_share",
    "caused_ns", "excess_in", "bytes", "least_bytes", "most_bytes", "evidence", "only_in",
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
            needs=frozenset(_NEEDS.get(name, ())),
            essential=name in _ESSENTIAL,
            wraps=name == "basis",
            names=name.rpartition("_")[2] in _NAMES,
        )
        for place, name in enumerate(_SPARE)
    },
    "name": Traits(kernel_beside=frozenset({"kind", "segments", "on_path"})),
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
    "nvlinks": Traits(label="NVLinks", spare=_SPARE.index("nvlinks")),
    "pipeline_stage": Traits(label="stage", names=True),
    "launched": Traits(label="launches known"),
    "coverage": Traits(label="coverage (stages known)"),
}
"""Traits of columns: name -> traits; other columns have the defaults."""


def traits(column: str) -> Traits:
    """Return the display traits of a column.

    Columns such as ``src_device`` or ``straggler_rank`` contain identifiers, and have the traits of
    the column ``rank``.
    """
    if column in TRAITS:
        return TRAITS[column]
    return TRAITS["rank"] if column.rpartition("_")[2] in _NAMES else _PLAIN
