"""Analyses: pure functions from a run's tables to one table."""

from tracekit.analysis._breakdown import breakdown, breakdown_meta, breakdown_with_meta
from tracekit.analysis._keys import KEYS, parse_keys, share_meaning
from tracekit.analysis._query import query
from tracekit.analysis._summary import features, identify, summarise

__all__ = [
    "KEYS",
    "breakdown",
    "breakdown_meta",
    "breakdown_with_meta",
    "features",
    "identify",
    "parse_keys",
    "query",
    "share_meaning",
    "summarise",
]
