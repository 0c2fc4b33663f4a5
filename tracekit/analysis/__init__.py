"""Analyses: pure functions from a run's tables to one table."""

from tracekit.analysis._align import align, aligned, clock_evidence
from tracekit.analysis._api import (
    API_KEYS,
    api_by_run,
    api_calls,
    api_calls_with_meta,
    profiler_overhead,
)
from tracekit.analysis._breakdown import (
    breakdown,
    breakdown_for_people,
    breakdown_meta,
    breakdown_with_meta,
)
from tracekit.analysis._collectives import (
    collective_calls,
    collectives,
    collectives_meta,
    collectives_with_meta,
)
from tracekit.analysis._comparability import comparability
from tracekit.analysis._compare import Comparison, compare
from tracekit.analysis._epochs import (
    BatchScope,
    epoch_bytes,
    epoch_time,
    images_per_step,
    iterations_per_epoch,
)
from tracekit.analysis._features import capabilities, features
from tracekit.analysis._idle import idle_ranges
from tracekit.analysis._inclusive import projected_ranges
from tracekit.analysis._kernel_names import normalised_name
from tracekit.analysis._keys import KEYS, parse_keys, share_meaning
from tracekit.analysis._labels import batch_label
from tracekit.analysis._latency import (
    latency,
    latency_meta,
    latency_speedup,
    message_histogram,
    speedup_by_class,
)
from tracekit.analysis._limit import Limit, check_limit
from tracekit.analysis._link_time import link_counters, link_timeline
from tracekit.analysis._links import LINK_KEYS, expected_traffic, links, parse_link_keys
from tracekit.analysis._memory import (
    largest_batch,
    memory_at,
    memory_extra,
    memory_growth,
    memory_use,
    memory_use_with_meta,
)
from tracekit.analysis._memory_table import read_memory_table
from tracekit.analysis._nccl_calls import communicators, nccl_calls
from tracekit.analysis._overhead import overhead, overhead_matrix, overhead_meta
from tracekit.analysis._per_iteration import COMPARE_KEYS
from tracekit.analysis._pointer_queries import (
    pointer_queries,
    pointer_queries_meta,
    staging,
    staging_calls,
)
from tracekit.analysis._query import query
from tracekit.analysis._range_paths import range_paths
from tracekit.analysis._routes import crossings, with_routes
from tracekit.analysis._scaling import scaling, scaling_meta
from tracekit.analysis._study import basis_of, study, study_row, study_stages
from tracekit.analysis._summary import identify, summarise
from tracekit.analysis._times import read_times
from tracekit.analysis._traffic import Traffic
from tracekit.analysis._transfers import copy_transfers, traffic_root
from tracekit.analysis._verdicts import confusion, verdict_evidence, verdict_meta

__all__ = [
    "API_KEYS",
    "COMPARE_KEYS",
    "KEYS",
    "LINK_KEYS",
    "BatchScope",
    "Comparison",
    "Limit",
    "Traffic",
    "align",
    "aligned",
    "api_by_run",
    "api_calls",
    "api_calls_with_meta",
    "basis_of",
    "batch_label",
    "breakdown",
    "breakdown_for_people",
    "breakdown_meta",
    "breakdown_with_meta",
    "capabilities",
    "check_limit",
    "clock_evidence",
    "collective_calls",
    "collectives",
    "collectives_meta",
    "collectives_with_meta",
    "communicators",
    "comparability",
    "compare",
    "confusion",
    "copy_transfers",
    "crossings",
    "epoch_bytes",
    "epoch_time",
    "expected_traffic",
    "features",
    "identify",
    "idle_ranges",
    "images_per_step",
    "iterations_per_epoch",
    "largest_batch",
    "latency",
    "latency_meta",
    "latency_speedup",
    "link_counters",
    "link_timeline",
    "links",
    "memory_at",
    "memory_extra",
    "memory_growth",
    "memory_use",
    "memory_use_with_meta",
    "message_histogram",
    "nccl_calls",
    "normalised_name",
    "overhead",
    "overhead_matrix",
    "overhead_meta",
    "parse_keys",
    "parse_link_keys",
    "pointer_queries",
    "pointer_queries_meta",
    "profiler_overhead",
    "projected_ranges",
    "query",
    "range_paths",
    "read_memory_table",
    "read_times",
    "scaling",
    "scaling_meta",
    "share_meaning",
    "speedup_by_class",
    "staging",
    "staging_calls",
    "study",
    "study_row",
    "study_stages",
    "summarise",
    "traffic_root",
    "verdict_evidence",
    "verdict_meta",
    "with_routes",
]
