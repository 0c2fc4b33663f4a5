"""Simulate a job, and write its trace with the truth beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import data_parallel, pipeline
from .export import write_export
from .parameters import load_parameters
from .truth import step_times, truth, write_truth
from .world import World

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .job import Job

_LINKS = ("nvlink", "pcie", "socket")


def simulate(job: Job) -> World:
    """Run a job to its end, and return the world with its books."""
    world = World(job)
    start = pipeline.start if job.method == "pipeline" else data_parallel.start
    world.env.run(until=world.env.all_of(start(world)))
    return world


def usual_changes(job: Job) -> dict[str, Job]:
    """Return the job with a link, kernel, GPU or loader changed, by what is changed.

    They vary one thing at a time, and draw the same variations: a thread's and a stream's do not
    depend on the others.
    """
    changes = {
        "loader takes no time": replace(job, loader_factor=0.0),
        "kernels of FP and BP twice as fast": _with_faster_kernels(job, "FP", "BP"),
        "kernels of WU twice as fast": _with_faster_kernels(job, "WU"),
        "convolutions' wgrad twice as fast": _with_faster_kernels(job, "conv_wgrad"),
        "host never waits": replace(job, synchronise="never"),
        "host launches twice as fast": _with_faster_host(job),
        **{f"{kind} twice as fast": _with_faster_links(job, kind) for kind in _LINKS},
    }
    if job.gpu_pace:
        changes["all GPUs alike"] = replace(job, gpu_pace={})
    if job.link_factors:
        changes["all links as described"] = replace(job, link_factors={})
    return changes


def few_changes(job: Job) -> dict[str, Job]:
    """Return those of the usual changes that say most: the loader, the kernels and the links."""
    wanted = ("loader", "kernels of FP", "nvlink", "socket")
    return {name: each for name, each in usual_changes(job).items() if name.startswith(wanted)}


def _with_faster_kernels(job: Job, *names: str) -> Job:
    faster = {name: 0.5 * job.kernel_factors.get(name, 1.0) for name in names}
    return replace(job, kernel_factors={**job.kernel_factors, **faster})


def _with_faster_links(job: Job, kind: str) -> Job:
    faster = 2.0 * job.link_factors.get(kind, 1.0)
    return replace(job, link_factors={**job.link_factors, kind: faster})


def _with_faster_host(job: Job) -> Job:
    p = load_parameters(**job.parameters)
    faster = {"operator_ns": p.operator_ns // 2, "launch_call_ns": p.launch_call_ns // 2}
    return replace(job, parameters={**job.parameters, **faster})


def write_trace(job: Job, folder: Path, name: str) -> World:
    """Write a job's trace, without its truth, and return the world that it is of."""
    world = simulate(job)
    write_export(world, folder / f"{name}.sqlite")
    return world


def write(job: Job, folder: Path, name: str, what_if: Mapping[str, Job] | None = None) -> None:
    """Write a job's trace and its truth; `what_if` are changed jobs, of which steps are timed."""
    world = write_trace(job, folder, name)
    changed = what_if or {}
    times = {each: step_times(simulate(other).books.ops) for each, other in changed.items()}
    write_truth(truth(world, changed, times), folder / f"{name}.truth.json.gz")
