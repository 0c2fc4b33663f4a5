"""Analyses: pure functions from a run's tables to an answer.

What one run is asked in general is here; the wings export what is theirs: `communication`,
`clocks`, `comparison`, `idle_time`, `studies` and others.

Names are loaded when they are first used: who asks for one table waits for no other.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis._api import api_by_run, api_calls, profiler_overhead
    from tracekit.analysis._breakdown import breakdown
    from tracekit.analysis._features import capabilities, features
    from tracekit.analysis._query import query
    from tracekit.analysis._summary import identify, summarise
    from tracekit.analysis._verdicts import confusion, verdict_evidence, verdict_meta

_HOMES = {
    "api_by_run": "tracekit.analysis._api",
    "api_calls": "tracekit.analysis._api",
    "breakdown": "tracekit.analysis._breakdown",
    "capabilities": "tracekit.analysis._features",
    "confusion": "tracekit.analysis._verdicts",
    "features": "tracekit.analysis._features",
    "identify": "tracekit.analysis._summary",
    "profiler_overhead": "tracekit.analysis._api",
    "query": "tracekit.analysis._query",
    "summarise": "tracekit.analysis._summary",
    "verdict_evidence": "tracekit.analysis._verdicts",
    "verdict_meta": "tracekit.analysis._verdicts",
}

__all__ = [
    "api_by_run",
    "api_calls",
    "breakdown",
    "capabilities",
    "confusion",
    "features",
    "identify",
    "profiler_overhead",
    "query",
    "summarise",
    "verdict_evidence",
    "verdict_meta",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
