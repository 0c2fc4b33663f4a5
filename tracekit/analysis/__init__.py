"""Analyses: pure functions from a run's tables to an answer.

What one run is asked in general is here; the wings export what is theirs: `communication`,
`clocks`, `comparison`, `idle_time`, `studies` and others.

Names are loaded when they are first used: who asks for one table waits for no other.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis._api import api_by_run, api_calls, profiler_overhead
    from tracekit.analysis._device_sums import DeviceSums
    from tracekit.analysis._features import capabilities, features
    from tracekit.analysis._inclusive import projected_ranges
    from tracekit.analysis._query import query
    from tracekit.analysis._range_paths import range_paths
    from tracekit.analysis._some_steps import chosen_steps, parse_iterations, some_steps
    from tracekit.analysis._summary import identify, summarise
    from tracekit.analysis._verdicts import confusion, verdict_evidence, verdict_meta
    from tracekit.analysis.questions import breakdown

_HOMES = {
    "DeviceSums": "tracekit.analysis._device_sums",
    "api_by_run": "tracekit.analysis._api",
    "api_calls": "tracekit.analysis._api",
    "breakdown": "tracekit.analysis.questions",
    "capabilities": "tracekit.analysis._features",
    "chosen_steps": "tracekit.analysis._some_steps",
    "confusion": "tracekit.analysis._verdicts",
    "features": "tracekit.analysis._features",
    "identify": "tracekit.analysis._summary",
    "parse_iterations": "tracekit.analysis._some_steps",
    "profiler_overhead": "tracekit.analysis._api",
    "projected_ranges": "tracekit.analysis._inclusive",
    "query": "tracekit.analysis._query",
    "range_paths": "tracekit.analysis._range_paths",
    "some_steps": "tracekit.analysis._some_steps",
    "summarise": "tracekit.analysis._summary",
    "verdict_evidence": "tracekit.analysis._verdicts",
    "verdict_meta": "tracekit.analysis._verdicts",
}

__all__ = [
    "DeviceSums",
    "api_by_run",
    "api_calls",
    "breakdown",
    "capabilities",
    "chosen_steps",
    "confusion",
    "features",
    "identify",
    "parse_iterations",
    "profiler_overhead",
    "projected_ranges",
    "query",
    "range_paths",
    "some_steps",
    "summarise",
    "verdict_evidence",
    "verdict_meta",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
