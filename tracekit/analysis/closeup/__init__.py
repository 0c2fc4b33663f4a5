"""Single steps in detail: their place on each GPU, their ops, and exposed communication."""

from tracekit.analysis.closeup._steps_in_detail import (
    details,
    driving_threads,
    exposed_communication,
    idle_spans,
    median_step,
    ops_inside,
    ranges_inside,
    slowest_step,
    stage_spans,
    step_lengths,
    step_spans,
    whole_spans,
)

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
