"""Analyses: pure functions from a run's tables to an answer.

What one run is asked in general is here; the wings export what is theirs: `communication`,
`clocks`, `comparison`, `idle_time`, `studies` and others.

Names are loaded when they are first used: who asks for one table waits for no other.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.breakdowns import breakdown
    from tracekit.analysis.facts import (
        confusion,
        identify,
        summarise,
        verdict_evidence,
        verdict_meta,
    )
    from tracekit.analysis.overview import features, query
    from tracekit.analysis.studies import api_by_run, api_calls, profiler_overhead

__getattr__, __dir__ = lazily(__name__)
