"""Timelines of pipeline-parallel training jobs: what each worker did in each step, by kind of work.

Format: Chrome events as StragglerAnalysis publishes them (Lin et al., OSDI 2025), a JSON list. They
hold no kernels, and so are no traces.
"""

from tracekit.sources.job_timelines._timeline import TIMELINE_SCHEMA, read_job_timeline

__all__ = ["TIMELINE_SCHEMA", "read_job_timeline"]
