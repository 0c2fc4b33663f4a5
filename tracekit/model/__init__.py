"""The canonical tables, a run's tables as frames, and interval arithmetic."""

from tracekit.model._intervals import layered_lengths, union_length
from tracekit.model._tables import (
    CALLS,
    CONTENTS,
    DEVICES,
    ITERATIONS,
    OPS,
    PROCESSES,
    RANGES,
    REPORTS,
    TABLES,
    THREADS,
    Column,
    Table,
)  # fmt: skip
from tracekit.model._trace import Trace
from tracekit.model._vocabulary import (
    COLLECTIVE,
    COLLECTIVES,
    KERNEL_KINDS,
    KIND,
    KINDS,
    RANGE_STYLE,
    RANGE_STYLES,
    STAGE,
    STAGE_SOURCE,
    STAGE_SOURCES,
    STAGES,
)  # fmt: skip

__all__ = [
    "CALLS", "COLLECTIVE", "COLLECTIVES", "CONTENTS", "DEVICES", "ITERATIONS", "KERNEL_KINDS",
    "KIND", "KINDS", "OPS", "PROCESSES", "RANGES", "RANGE_STYLE", "RANGE_STYLES", "REPORTS",
    "STAGE", "STAGES", "STAGE_SOURCE", "STAGE_SOURCES", "TABLES", "THREADS", "Column", "Table",
    "Trace", "layered_lengths", "union_length",
]  # fmt: skip
