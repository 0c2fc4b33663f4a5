"""The longest example of each finding: the idle time, copy or kernel that its rule is about."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit.analysis.diagnosis._compute_rules import KERNELS_OF

_CAUSES_OF = {
    "input_bound": ("input", "between_steps"), "sync_in_loop": ("waiting_call",),
    "launch_bound": ("host_delay", "launch_latency"), "busy_host": ("host_delay",),
    "tiny_kernels": ("host_delay", "launch_latency"),
    "off_cpu": ("off_cpu",), "compilation": ("compiling", "loading"),
    "allocation_in_loop": ("allocation",), "profiler_overhead": ("profiler",),
    "pipeline_bubbles": ("behind_stage",), "stragglers": ("behind_collective",),
    "central_update": ("behind_weight_update",),
}  # fmt: skip
"""Causes of idle time that a rule concerns: rule -> causes."""
_KINDS_OF = {
    "exposed_collectives": ("collective",), "late_buckets": ("collective",),
    "small_buckets": ("collective",), "pageable_copies": ("h2d", "d2h"),
    "unhidden_copies": ("h2d", "d2h"), "slow_links": ("p2p", "staged", "collective"),
}  # fmt: skip
"""Kinds of ops that a rule concerns: rule -> kinds."""


def longest_examples(ops: pl.DataFrame, idle: pl.DataFrame) -> Mapping[str, tuple[int, int, int]]:
    """Return the longest gap or op that each rule is about; rules without any are left out.

    Parameters
    ----------
    ops
        Ops to choose from.
    idle
        ``device, start, end, cause``: idle time to choose from.

    Returns
    -------
    rule -> GPU, start and end, ns.
    """
    cause, kind, name = (pl.col(column).cast(pl.String) for column in ("cause", "kind", "name"))
    about = [
        *((rule, idle, cause.is_in(values)) for rule, values in _CAUSES_OF.items()),
        *((rule, ops, kind.is_in(values)) for rule, values in _KINDS_OF.items()),
        *((rule, ops, (kind == "compute") & holds(name)) for rule, holds in KERNELS_OF.items()),
    ]
    found = {}
    for rule, rows, concerns in about:
        own = rows.filter(concerns).select("device", "start", "end")
        if own.height:
            found[rule] = own.row(int((own["end"] - own["start"]).arg_max() or 0))
    return found
