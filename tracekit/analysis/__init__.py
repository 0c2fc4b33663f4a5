"""Analyses: pure functions from a run's tables to one table."""

from tracekit.analysis._breakdown import breakdown, breakdown_meta, breakdown_with_meta
from tracekit.analysis._collectives import (
    collective_calls,
    collectives,
    collectives_meta,
    collectives_with_meta,
)
from tracekit.analysis._keys import KEYS, parse_keys, share_meaning
from tracekit.analysis._link_time import link_counters, link_timeline
from tracekit.analysis._links import LINK_KEYS, expected_traffic, links, parse_link_keys
from tracekit.analysis._nccl_calls import communicators, nccl_calls
from tracekit.analysis._query import query
from tracekit.analysis._routes import crossings, with_routes
from tracekit.analysis._summary import features, identify, summarise
from tracekit.analysis._traffic import Traffic
from tracekit.analysis._transfers import copy_transfers, traffic_root

__all__ = [
    "KEYS",
    "LINK_KEYS",
    "Traffic",
    "breakdown",
    "breakdown_meta",
    "breakdown_with_meta",
    "collective_calls",
    "collectives",
    "collectives_meta",
    "collectives_with_meta",
    "communicators",
    "copy_transfers",
    "crossings",
    "expected_traffic",
    "features",
    "identify",
    "link_counters",
    "link_timeline",
    "links",
    "nccl_calls",
    "parse_keys",
    "parse_link_keys",
    "query",
    "share_meaning",
    "summarise",
    "traffic_root",
    "with_routes",
]
