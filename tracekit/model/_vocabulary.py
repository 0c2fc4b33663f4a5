"""Enumerated texts that columns may contain, such as stages and kinds of ops."""

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

NO_KERNELS = "no kernels were recorded, so GPU time is that of copies and memsets alone"
WORK_MISSING = "GPU work is missing"
"""Begin of the warning about a run whose idle time is not its GPUs'."""
STEPS_UNMARKED = "ranges do not mark every step"
"""Begin of the warning about a run in which one recorded step may be several."""

STAGES = ("FP", "BP", "WU", "IO", "ME", "OTHER")
"""Why an op runs, highest precedence first: where two stages are busy at once the time is exposed
time of the first one. FP and BP rank equally; where both are busy the time counts once, for FP."""

STAGE_SOURCES = (
    "pass_exchange",
    "weight_exchange",
    "gradient_exchange",
    "nvtx",
    "thread_name",
    "process_range",
    "backward_thread",
    "autograd",
    "structure",
    "kernel_name",
    "copy_kind",
    "verdict",
    "none",
)
"""How an op's stage was found, in the order in which the rules are tried (metric evaluation, which
is tried first of all, has the source ``nvtx``)."""

VERDICTS = ("training", "inference", "other", "unknown")
"""What a process does with its GPUs; ``unknown`` is a network whose purpose is not known."""

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

METHODS = ("p2p", "staged", "two_hop", "nccl", "collective", "mpi", "h2d", "d2h")
"""How bytes moved: by a copy between GPUs, by a copy through host memory, by two copies through
another GPU, by NCCL, by a collective kernel of another library, by a copy within an MPI call, or
between a GPU and host memory."""

EVIDENCES = ("measured", "modelled", "modelled between")
"""How a transfer is known: recorded with both ends; by a model; or by several models, one of which
holds, so that it lies between two bounds."""

METRICS_SAMPLED = (
    "nvlink_rx", "nvlink_tx", "pcie_rx", "pcie_tx", "sm_active", "nic_rx", "nic_tx", "nic_wait"
)  # fmt: skip
"""Counters that are sampled: received (rx) and transmitted (tx) by NVLink, PCIe and network, the
share of streaming multiprocessors that are active, and how long a NIC waited to send."""

SYNC_TYPES = ("event", "stream_wait_event", "stream", "context")
"""What a wait is for: the host for an event, a stream for an event, the host for a stream, and the
host for all work of a context."""

TESTED = ("holds", "untested", "fails")
"""Results of testing an assumption, the worst last; `untested`: nothing in the trace could
contradict it."""

KIND = pl.Enum(KINDS)
STAGE = pl.Enum(STAGES)
STAGE_SOURCE = pl.Enum(STAGE_SOURCES)
HOST_MEMORY = pl.Enum(["pageable", "pinned", "managed"])
"""Type of host memory of a copy; `managed` is unified memory."""
VERDICT = pl.Enum(VERDICTS)
COLLECTIVE = pl.Enum(COLLECTIVES)
RANGE_STYLE = pl.Enum(RANGE_STYLES)
METHOD = pl.Enum(METHODS)
EVIDENCE = pl.Enum(EVIDENCES)
METRIC = pl.Enum(METRICS_SAMPLED)
TEST_RESULT = pl.Enum(TESTED)
SYNC_TYPE = pl.Enum(SYNC_TYPES)


def is_migration() -> pl.Expr:
    """Return an expression: whether an op migrates pages of unified memory; no call launches it."""
    return pl.col("copy_kind").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
