"""Simulated runs whose faults are known, to try findings on.

What is clean was chosen by the simulator alone: with no loader, a host that never waits, launches
or NVLinks twice as fast, a step of these jobs takes at most 0.3 % less. The simulator copies input
on the stream that computes, which is a fault: the PCIe of clean jobs is so fast that it costs them
nothing, as if the copy was hidden.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).resolve().parents[1] / "sample_traces"))

from simulate.grid import scenarios
from simulate.job import Job
from simulate.run import simulate, usual_changes
from simulate.truth import step_windows

_NETWORKS = ("googlenet", "inception-v3", "resnet-110", "alexnet")
_BATCHES = (32, 64)
_GPUS = (1, 2, 4)
_STEPS = 6
_HIDDEN = {"pcie": 100.0}
"""Factors on links that make copies of input as good as hidden."""


@dataclass(frozen=True)
class Fault:
    """A job with a fault, and the same one without.

    Parameters
    ----------
    job, mended
        The job, and without the fault.
    rules
        The rules that should see it; one of them is enough.
    """

    job: Job
    mended: Job
    rules: tuple[str, ...]


def clean_jobs(number: int) -> Iterator[Job]:
    """Yield jobs without a fault, each drawn anew."""
    kinds = [
        kind for kind in itertools.product(_NETWORKS, _BATCHES, _GPUS)
        if kind[:2] != ("alexnet", 32)
    ]  # fmt: skip
    for seed, (network, batch, gpus) in zip(range(number), itertools.cycle(kinds), strict=False):
        yield Job(
            network=network, batch=batch, gpus=gpus, steps=_STEPS, pattern="all_reduce",
            processes="per_gpu", synchronise="never", seed=seed, link_factors=_HIDDEN,
        )  # fmt: skip


def _scenario(name: str) -> Job:
    return replace(scenarios()[name].job, steps=_STEPS)


def _of(name: str, rules: str, **mended: object) -> Callable[[int], Fault]:
    def drawn(seed: int) -> Fault:
        job = replace(_scenario(name), seed=seed)
        return Fault(job, replace(job, **mended), tuple(rules.split()))  # type: ignore[arg-type]

    return drawn


def _launch_bound(seed: int) -> Fault:
    job = replace(_scenario("launch_bound"), seed=seed)
    return Fault(job, usual_changes(job)["host launches twice as fast"], ("launch_bound",))


def _unhidden_copies(seed: int) -> Fault:
    job = Job(
        network="alexnet", batch=64, steps=_STEPS, pattern="all_reduce", processes="per_gpu",
        synchronise="never", seed=seed,
    )  # fmt: skip
    return Fault(job, replace(job, link_factors=_HIDDEN), ("unhidden_copies",))


def _small_buckets(seed: int) -> Fault:
    job = replace(
        _scenario("clean"), network="resnet-110", batch=4, gpus=4, seed=seed,
        parameters={"bucket_bytes": 20_000}, overlap=False, steps=3,
    )  # fmt: skip
    return Fault(job, replace(job, parameters={}), ("small_buckets",))


def _pipeline(seed: int) -> Fault:
    job = replace(_scenario("pipeline_gpipe"), seed=seed, micro_batches=2)
    return Fault(job, replace(job, micro_batches=4), ("pipeline_bubbles",))


FAULTS: Mapping[str, Callable[[int], Fault]] = {
    "a loader slower than the GPU": _of("input_bound", "input_bound", loader_factor=0.0),
    "a wait after each layer": _of("synchronised", "sync_in_loop", synchronise="never"),
    "input in pageable memory": _of("pageable", "pageable_copies", pageable=False),
    "input copied on the computing stream": _unhidden_copies,
    "kernels shorter than launches": _launch_bound,
    "memory allocated in each step": _of("allocating", "allocation_in_loop", allocate=False),
    "one GPU slower by 40 %": _of("straggler", "stragglers slow_clocks", gpu_pace={}),
    "exchange after the backward pass": _of("exposed_nccl", "late_buckets", overlap=True),
    "one slow NVLink": _of("slow_link", "exposed_collectives", link_factors={}),
    "buckets of 20 kB": _small_buckets,
    "all weights updated on GPU 0": _of("star_8", "central_update", pattern="spread"),
    "a pipeline of two micro-batches": _pipeline,
}  # fmt: skip
"""By its name, what draws a job with a fault."""


def step_ns(job: Job, first: int) -> float:
    """Return the mean length of a step on a GPU from a step on, by simulation."""
    windows = step_windows(simulate(job).books.ops)
    return mean(end - start for (_, step), (start, end) in windows.items() if step >= first)
