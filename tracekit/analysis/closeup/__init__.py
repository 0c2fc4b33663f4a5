"""Single steps in detail: their place on each GPU, their ops, and exposed communication."""

from tracekit.analysis.closeup._communication import exposed_communication
from tracekit.analysis.closeup._inside import details, driving_threads, ops_inside, ranges_inside
from tracekit.analysis.closeup._spans import median_step, slowest_step, step_lengths, step_spans
from tracekit.analysis.closeup._tracks import idle_spans, stage_spans, whole_spans

__all__ = [
    "details",
    "driving_threads",
    "exposed_communication",
    "idle_spans",
    "median_step",
    "ops_inside",
    "ranges_inside",
    "slowest_step",
    "stage_spans",
    "step_lengths",
    "step_spans",
    "whole_spans",
]
