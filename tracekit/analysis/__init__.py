"""Analyses: pure functions from a run's tables to an answer.

Names are loaded when they are first used: who asks for one table waits for no other.
"""

from typing import TYPE_CHECKING

from tracekit._lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis._align import align, aligned, clock_evidence
    from tracekit.analysis._api import api_by_run, api_calls, profiler_overhead
    from tracekit.analysis._breakdown import breakdown
    from tracekit.analysis._bubbles import (
        WAITING,
        Bubbles,
        bubble_theory,
        bubbles_of_run,
        pipeline_bubbles,
    )
    from tracekit.analysis._collectives import collective_calls, collectives
    from tracekit.analysis._compare import Comparison, compare
    from tracekit.analysis._epochs import (
        BatchScope,
        epoch_bytes,
        epoch_time,
        images_per_step,
        iterations_per_epoch,
    )
    from tracekit.analysis._features import capabilities, features
    from tracekit.analysis._hardware import Hardware, hardware_names, load_hardware
    from tracekit.analysis._headline import Metric
    from tracekit.analysis._idle import idle_ranges
    from tracekit.analysis._idle_time import idle
    from tracekit.analysis._inclusive import projected_ranges
    from tracekit.analysis._job_features import job_features
    from tracekit.analysis._jobs import JOBS, MEDIA, jobs_frame, read_jobs
    from tracekit.analysis._labels import batch_label
    from tracekit.analysis._latency import (
        Buckets,
        Measure,
        latency,
        latency_speedup,
        message_histogram,
    )
    from tracekit.analysis._limit import check_limit
    from tracekit.analysis._links import links
    from tracekit.analysis._memory import largest_batch, memory_extra, memory_growth, memory_use
    from tracekit.analysis._memory_table import read_memory_table
    from tracekit.analysis._nccl_calls import communicators
    from tracekit.analysis._overhead import overhead, overhead_matrix
    from tracekit.analysis._pointer_queries import pointer_queries, staging
    from tracekit.analysis._projection import (
        COMPONENTS,
        distribution,
        gains,
        measured_against,
        project_architectures,
        step_times,
        sweep_hardware,
        weighted_means,
    )
    from tracekit.analysis._query import query
    from tracekit.analysis._range_paths import range_paths
    from tracekit.analysis._scaling import ScalingMode, ScalingTime, scaling
    from tracekit.analysis._stalls import (
        before_and_after,
        data_stalls,
        differential_stalls,
        stalls_of_run,
    )
    from tracekit.analysis._study import basis_of, study, study_row, study_stages
    from tracekit.analysis._summary import identify, summarise
    from tracekit.analysis._times import read_times
    from tracekit.analysis._traffic import Traffic
    from tracekit.analysis._verdicts import confusion, verdict_evidence, verdict_meta

_HOMES = {
    "BatchScope": "tracekit.analysis._epochs",
    "Bubbles": "tracekit.analysis._bubbles",
    "Buckets": "tracekit.analysis._latency",
    "COMPONENTS": "tracekit.analysis._projection",
    "Comparison": "tracekit.analysis._compare",
    "Hardware": "tracekit.analysis._hardware",
    "JOBS": "tracekit.analysis._jobs",
    "MEDIA": "tracekit.analysis._jobs",
    "Measure": "tracekit.analysis._latency",
    "Metric": "tracekit.analysis._headline",
    "ScalingMode": "tracekit.analysis._scaling",
    "ScalingTime": "tracekit.analysis._scaling",
    "Traffic": "tracekit.analysis._traffic",
    "WAITING": "tracekit.analysis._bubbles",
    "align": "tracekit.analysis._align",
    "aligned": "tracekit.analysis._align",
    "api_by_run": "tracekit.analysis._api",
    "api_calls": "tracekit.analysis._api",
    "basis_of": "tracekit.analysis._study",
    "batch_label": "tracekit.analysis._labels",
    "before_and_after": "tracekit.analysis._stalls",
    "breakdown": "tracekit.analysis._breakdown",
    "bubble_theory": "tracekit.analysis._bubbles",
    "bubbles_of_run": "tracekit.analysis._bubbles",
    "capabilities": "tracekit.analysis._features",
    "check_limit": "tracekit.analysis._limit",
    "clock_evidence": "tracekit.analysis._align",
    "collective_calls": "tracekit.analysis._collectives",
    "collectives": "tracekit.analysis._collectives",
    "communicators": "tracekit.analysis._nccl_calls",
    "compare": "tracekit.analysis._compare",
    "confusion": "tracekit.analysis._verdicts",
    "data_stalls": "tracekit.analysis._stalls",
    "differential_stalls": "tracekit.analysis._stalls",
    "distribution": "tracekit.analysis._projection",
    "epoch_bytes": "tracekit.analysis._epochs",
    "epoch_time": "tracekit.analysis._epochs",
    "features": "tracekit.analysis._features",
    "gains": "tracekit.analysis._projection",
    "hardware_names": "tracekit.analysis._hardware",
    "identify": "tracekit.analysis._summary",
    "idle": "tracekit.analysis._idle_time",
    "idle_ranges": "tracekit.analysis._idle",
    "images_per_step": "tracekit.analysis._epochs",
    "iterations_per_epoch": "tracekit.analysis._epochs",
    "job_features": "tracekit.analysis._job_features",
    "jobs_frame": "tracekit.analysis._jobs",
    "largest_batch": "tracekit.analysis._memory",
    "latency": "tracekit.analysis._latency",
    "latency_speedup": "tracekit.analysis._latency",
    "links": "tracekit.analysis._links",
    "load_hardware": "tracekit.analysis._hardware",
    "measured_against": "tracekit.analysis._projection",
    "memory_extra": "tracekit.analysis._memory",
    "memory_growth": "tracekit.analysis._memory",
    "memory_use": "tracekit.analysis._memory",
    "message_histogram": "tracekit.analysis._latency",
    "overhead": "tracekit.analysis._overhead",
    "overhead_matrix": "tracekit.analysis._overhead",
    "pipeline_bubbles": "tracekit.analysis._bubbles",
    "pointer_queries": "tracekit.analysis._pointer_queries",
    "profiler_overhead": "tracekit.analysis._api",
    "project_architectures": "tracekit.analysis._projection",
    "projected_ranges": "tracekit.analysis._inclusive",
    "query": "tracekit.analysis._query",
    "range_paths": "tracekit.analysis._range_paths",
    "read_jobs": "tracekit.analysis._jobs",
    "read_memory_table": "tracekit.analysis._memory_table",
    "read_times": "tracekit.analysis._times",
    "scaling": "tracekit.analysis._scaling",
    "staging": "tracekit.analysis._pointer_queries",
    "stalls_of_run": "tracekit.analysis._stalls",
    "step_times": "tracekit.analysis._projection",
    "study": "tracekit.analysis._study",
    "study_row": "tracekit.analysis._study",
    "study_stages": "tracekit.analysis._study",
    "summarise": "tracekit.analysis._summary",
    "sweep_hardware": "tracekit.analysis._projection",
    "verdict_evidence": "tracekit.analysis._verdicts",
    "verdict_meta": "tracekit.analysis._verdicts",
    "weighted_means": "tracekit.analysis._projection",
}

__all__ = [
    "COMPONENTS",
    "JOBS",
    "MEDIA",
    "WAITING",
    "BatchScope",
    "Bubbles",
    "Buckets",
    "Comparison",
    "Hardware",
    "Measure",
    "Metric",
    "ScalingMode",
    "ScalingTime",
    "Traffic",
    "align",
    "aligned",
    "api_by_run",
    "api_calls",
    "basis_of",
    "batch_label",
    "before_and_after",
    "breakdown",
    "bubble_theory",
    "bubbles_of_run",
    "capabilities",
    "check_limit",
    "clock_evidence",
    "collective_calls",
    "collectives",
    "communicators",
    "compare",
    "confusion",
    "data_stalls",
    "differential_stalls",
    "distribution",
    "epoch_bytes",
    "epoch_time",
    "features",
    "gains",
    "hardware_names",
    "identify",
    "idle",
    "idle_ranges",
    "images_per_step",
    "iterations_per_epoch",
    "job_features",
    "jobs_frame",
    "largest_batch",
    "latency",
    "latency_speedup",
    "links",
    "load_hardware",
    "measured_against",
    "memory_extra",
    "memory_growth",
    "memory_use",
    "message_histogram",
    "overhead",
    "overhead_matrix",
    "pipeline_bubbles",
    "pointer_queries",
    "profiler_overhead",
    "project_architectures",
    "projected_ranges",
    "query",
    "range_paths",
    "read_jobs",
    "read_memory_table",
    "read_times",
    "scaling",
    "staging",
    "stalls_of_run",
    "step_times",
    "study",
    "study_row",
    "study_stages",
    "summarise",
    "sweep_hardware",
    "verdict_evidence",
    "verdict_meta",
    "weighted_means",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
