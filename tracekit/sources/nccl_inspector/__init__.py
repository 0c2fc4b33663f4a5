"""Logs of NCCL's inspector: how long each rank spent in each collective.

Only verbose logs tell when a collective ran; the others do not, and so are no traces.
"""

from tracekit.sources.nccl_inspector._logs import (
    DROPPED_SCHEMA,
    RECORD_SCHEMA,
    InspectorLogs,
    read_inspector_logs,
)

__all__ = ["DROPPED_SCHEMA", "RECORD_SCHEMA", "InspectorLogs", "read_inspector_logs"]
