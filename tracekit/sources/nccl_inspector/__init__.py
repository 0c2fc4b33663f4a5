"""Logs of NCCL's inspector: how long each rank was in each collective.

Unless they are verbose they do not say when a collective ran, and so are no traces.
"""

from tracekit.sources.nccl_inspector._logs import (
    DROPPED_SCHEMA,
    RECORD_SCHEMA,
    InspectorLogs,
    read_inspector_logs,
)

__all__ = ["DROPPED_SCHEMA", "RECORD_SCHEMA", "InspectorLogs", "read_inspector_logs"]
