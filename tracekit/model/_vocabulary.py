"""The words of tracekit that are stored as enumerations: one place names each value."""

from __future__ import annotations

import polars as pl

KINDS = (
    "compute",
    "collective",
    "p2p",
    "staged",
    "h2d",
    "d2h",
    "d2d",
    "h2h",
    "memset",
    "graph",
    "unknown",
)
"""What an op does. ``graph`` is a whole CUDA graph whose nodes were not recorded; ``unknown`` is a
copy whose ends were not recorded."""

KERNEL_KINDS = ("compute", "collective")
"""The kinds that are kernels; all others but ``graph`` are copies and memsets."""

STAGES = ("FP", "BP", "WU", "IO", "ME", "OTHER")
"""Why an op runs, highest precedence first: where two stages are busy at once the time is exposed
time of the first one. FP and BP rank equally; where both are busy the time counts once, for FP."""

STAGE_SOURCES = (
    "gradient_exchange",
    "nvtx",
    "thread_name",
    "process_range",
    "backward_thread",
    "autograd",
    "kernel_name",
    "copy_kind",
    "none",
)
"""How an op's stage was found, in the order in which the rules are tried (metric evaluation, which
is tried first of all, has the source ``nvtx``)."""

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
    "unknown",
)
"""Collective operations; ``unknown`` is a communication kernel that does not name its operation."""

RANGE_STYLES = ("push_pop", "start_end")

KIND = pl.Enum(KINDS)
STAGE = pl.Enum(STAGES)
STAGE_SOURCE = pl.Enum(STAGE_SOURCES)
COLLECTIVE = pl.Enum(COLLECTIVES)
RANGE_STYLE = pl.Enum(RANGE_STYLES)
