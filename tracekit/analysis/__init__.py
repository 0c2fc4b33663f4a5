"""Analyses: pure functions from a run's tables to an answer.

Analyses of one run in general are exported here; each subpackage exports its own analyses:
`communication`, `clocks`, `comparison`, `idle_time`, `studies` and others.

Names are loaded when they are first used, so that asking for one table imports no other.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.breakdowns import breakdown
    from tracekit.analysis.facts import confusion, summarise, verdict_evidence, verdict_meta
    from tracekit.analysis.overview import features, query

__getattr__, __dir__ = lazily(__name__)
