"""Analyses: pure functions from a run's tables to an answer.

Names are loaded when they are first used: who asks for one table waits for no other.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis._api import api_by_run, api_calls, profiler_overhead
    from tracekit.analysis._breakdown import breakdown
    from tracekit.analysis._features import capabilities, features
    from tracekit.analysis._inclusive import projected_ranges
    from tracekit.analysis._query import query
    from tracekit.analysis._range_paths import range_paths
    from tracekit.analysis._summary import identify, summarise
    from tracekit.analysis._verdicts import confusion, verdict_evidence, verdict_meta
    from tracekit.analysis.clocks._align import align, aligned, clock_evidence
    from tracekit.analysis.communication._collectives import collective_calls, collectives
    from tracekit.analysis.communication._latency import (
        Buckets,
        Measure,
        latency,
        latency_speedup,
        message_histogram,
    )
    from tracekit.analysis.communication._links import links
    from tracekit.analysis.communication._nccl_calls import communicators
    from tracekit.analysis.communication._pointer_queries import pointer_queries, staging
    from tracekit.analysis.communication._traffic import Traffic
    from tracekit.analysis.comparison._compare import Comparison, compare
    from tracekit.analysis.comparison._headline import Metric
    from tracekit.analysis.comparison._limit import check_limit
    from tracekit.analysis.idle_time._idle import idle
    from tracekit.analysis.idle_time._idle_ranges import idle_ranges
    from tracekit.analysis.studies._bubbles import (
        WAITING,
        Bubbles,
        bubble_theory,
        bubbles_of_run,
        pipeline_bubbles,
    )
    from tracekit.analysis.studies._epochs import (
        BatchScope,
        epoch_bytes,
        epoch_time,
        images_per_step,
        iterations_per_epoch,
    )
    from tracekit.analysis.studies._hardware import Hardware, hardware_names, load_hardware
    from tracekit.analysis.studies._job_features import job_features
    from tracekit.analysis.studies._jobs import JOBS, MEDIA, jobs_frame, read_jobs
    from tracekit.analysis.studies._memory_table import read_memory_table
    from tracekit.analysis.studies._memory_use import (
        largest_batch,
        memory_extra,
        memory_growth,
        memory_use,
    )
    from tracekit.analysis.studies._overhead import overhead, overhead_matrix
    from tracekit.analysis.studies._projection import (
        COMPONENTS,
        distribution,
        gains,
        measured_against,
        project_architectures,
        step_times,
        sweep_hardware,
        weighted_means,
    )
    from tracekit.analysis.studies._run_labels import batch_label
    from tracekit.analysis.studies._scaling import ScalingMode, ScalingTime, scaling
    from tracekit.analysis.studies._stalls import (
        before_and_after,
        data_stalls,
        differential_stalls,
        stalls_of_run,
    )
    from tracekit.analysis.studies._study import basis_of, study, study_row, study_stages
    from tracekit.analysis.studies._times import read_times

_HOMES = {
    "BatchScope": "tracekit.analysis.studies._epochs",
    "Bubbles": "tracekit.analysis.studies._bubbles",
    "Buckets": "tracekit.analysis.communication._latency",
    "COMPONENTS": "tracekit.analysis.studies._projection",
    "Comparison": "tracekit.analysis.comparison._compare",
    "Hardware": "tracekit.analysis.studies._hardware",
    "JOBS": "tracekit.analysis.studies._jobs",
    "MEDIA": "tracekit.analysis.studies._jobs",
    "Measure": "tracekit.analysis.communication._latency",
    "Metric": "tracekit.analysis.comparison._headline",
    "ScalingMode": "tracekit.analysis.studies._scaling",
    "ScalingTime": "tracekit.analysis.studies._scaling",
    "Traffic": "tracekit.analysis.communication._traffic",
    "WAITING": "tracekit.analysis.studies._bubbles",
    "align": "tracekit.analysis.clocks._align",
    "aligned": "tracekit.analysis.clocks._align",
    "api_by_run": "tracekit.analysis._api",
    "api_calls": "tracekit.analysis._api",
    "basis_of": "tracekit.analysis.studies._study",
    "batch_label": "tracekit.analysis.studies._run_labels",
    "before_and_after": "tracekit.analysis.studies._stalls",
    "breakdown": "tracekit.analysis._breakdown",
    "bubble_theory": "tracekit.analysis.studies._bubbles",
    "bubbles_of_run": "tracekit.analysis.studies._bubbles",
    "capabilities": "tracekit.analysis._features",
    "check_limit": "tracekit.analysis.comparison._limit",
    "clock_evidence": "tracekit.analysis.clocks._align",
    "collective_calls": "tracekit.analysis.communication._collectives",
    "collectives": "tracekit.analysis.communication._collectives",
    "communicators": "tracekit.analysis.communication._nccl_calls",
    "compare": "tracekit.analysis.comparison._compare",
    "confusion": "tracekit.analysis._verdicts",
    "data_stalls": "tracekit.analysis.studies._stalls",
    "differential_stalls": "tracekit.analysis.studies._stalls",
    "distribution": "tracekit.analysis.studies._projection",
    "epoch_bytes": "tracekit.analysis.studies._epochs",
    "epoch_time": "tracekit.analysis.studies._epochs",
    "features": "tracekit.analysis._features",
    "gains": "tracekit.analysis.studies._projection",
    "hardware_names": "tracekit.analysis.studies._hardware",
    "identify": "tracekit.analysis._summary",
    "idle": "tracekit.analysis.idle_time._idle",
    "idle_ranges": "tracekit.analysis.idle_time._idle_ranges",
    "images_per_step": "tracekit.analysis.studies._epochs",
    "iterations_per_epoch": "tracekit.analysis.studies._epochs",
    "job_features": "tracekit.analysis.studies._job_features",
    "jobs_frame": "tracekit.analysis.studies._jobs",
    "largest_batch": "tracekit.analysis.studies._memory_use",
    "latency": "tracekit.analysis.communication._latency",
    "latency_speedup": "tracekit.analysis.communication._latency",
    "links": "tracekit.analysis.communication._links",
    "load_hardware": "tracekit.analysis.studies._hardware",
    "measured_against": "tracekit.analysis.studies._projection",
    "memory_extra": "tracekit.analysis.studies._memory_use",
    "memory_growth": "tracekit.analysis.studies._memory_use",
    "memory_use": "tracekit.analysis.studies._memory_use",
    "message_histogram": "tracekit.analysis.communication._latency",
    "overhead": "tracekit.analysis.studies._overhead",
    "overhead_matrix": "tracekit.analysis.studies._overhead",
    "pipeline_bubbles": "tracekit.analysis.studies._bubbles",
    "pointer_queries": "tracekit.analysis.communication._pointer_queries",
    "profiler_overhead": "tracekit.analysis._api",
    "project_architectures": "tracekit.analysis.studies._projection",
    "projected_ranges": "tracekit.analysis._inclusive",
    "query": "tracekit.analysis._query",
    "range_paths": "tracekit.analysis._range_paths",
    "read_jobs": "tracekit.analysis.studies._jobs",
    "read_memory_table": "tracekit.analysis.studies._memory_table",
    "read_times": "tracekit.analysis.studies._times",
    "scaling": "tracekit.analysis.studies._scaling",
    "staging": "tracekit.analysis.communication._pointer_queries",
    "stalls_of_run": "tracekit.analysis.studies._stalls",
    "step_times": "tracekit.analysis.studies._projection",
    "study": "tracekit.analysis.studies._study",
    "study_row": "tracekit.analysis.studies._study",
    "study_stages": "tracekit.analysis.studies._study",
    "summarise": "tracekit.analysis._summary",
    "sweep_hardware": "tracekit.analysis.studies._projection",
    "verdict_evidence": "tracekit.analysis._verdicts",
    "verdict_meta": "tracekit.analysis._verdicts",
    "weighted_means": "tracekit.analysis.studies._projection",
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
