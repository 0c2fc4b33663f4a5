"""Simulated jobs with injected faults, and what mends what each rule of `tracekit diagnose` names.

Networks, batches, numbers of GPUs, faults and their strength are drawn from a seed: no rule was
made with these jobs at hand. What a claim is worth is known by simulating the job once more with
the advice followed. The simulator copies input on the stream that computes, which is a fault; half
of the jobs have a PCIe so fast that it costs them nothing, as if the copy was hidden.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1] / "sample_traces"))

from simulate.job import Job
from simulate.parameters import load_parameters
from simulate.run import simulate, usual_changes
from simulate.truth import step_windows

_HIDDEN = {"pcie": 100.0}
"""Factors on links that make copies of input as good as hidden."""
_SIZES = {"lenet": (8, 128), "alexnet": (4, 96), "googlenet": (4, 64)}
"""Networks, with the least and the greatest batch that is drawn."""
_WEIGHTS = (3, 6, 4)
_HALF = 0.5

_LENGTHS: dict[str, list[tuple[int, int]]] = {}
_MOST_KNOWN = 100

Change = Callable[[Job, Random], Job]


def clean_jobs(number: int) -> Iterator[Job]:
    """Yield jobs without a fault, each drawn anew.

    By the simulator alone: with no loader, a host that never waits, launches or NVLinks twice as
    fast, a step of these takes at most 0.3 % less.
    """
    networks = ("googlenet", "inception-v3", "resnet-110", "alexnet")
    kinds = [
        kind for kind in itertools.product(networks, (32, 64), (1, 2, 4))
        if kind[:2] != ("alexnet", 32)
    ]  # fmt: skip
    for seed, (network, batch, gpus) in zip(range(number), itertools.cycle(kinds), strict=False):
        yield Job(
            network=network, batch=batch, gpus=gpus, steps=6, pattern="all_reduce",
            processes="per_gpu", synchronise="never", seed=seed, link_factors=_HIDDEN,
        )  # fmt: skip


def drawn_jobs(number: int, seed: int) -> Iterator[tuple[str, Job]]:
    """Yield jobs with one or two faults, and the names of these."""
    for index in range(number):
        random = Random(f"{seed}/{index}")
        names = random.sample(list(FAULTS), random.choice((1, 1, 2)))
        job = plain_job(random)
        for name in names:
            job = FAULTS[name](job, random)
        yield " + ".join(names), job


def plain_job(random: Random) -> Job:
    """Return a job without a fault, drawn anew."""
    (network,) = random.choices(list(_SIZES), _WEIGHTS)
    return Job(
        network=network,
        batch=random.randint(*_SIZES[network]),
        gpus=random.choice((1, 2, 3, 4)),
        steps=random.randint(5, 9),
        pattern="all_reduce",
        processes="per_gpu",
        synchronise=random.choice(("never", "loss")),
        ranges=random.choice(("full", "full", "full", "stages", "none")),
        link_factors=random.choice(({}, _HIDDEN)),
        seed=random.randrange(1 << 30),
    )


def _with(job: Job, **parameters: float) -> Job:
    return replace(job, parameters={**job.parameters, **parameters})


def _on_several(job: Job, random: Random) -> Job:
    return replace(job, gpus=max(job.gpus, random.choice((2, 4))))


def _slow_loader(job: Job, random: Random) -> Job:
    slow = _with(job, loader_prefetch=1, loader_workers=random.choice((1, 2, 4)))
    return replace(slow, loader_factor=random.uniform(2, 30))


def _slow_host(job: Job, random: Random) -> Job:
    factor = random.uniform(1.5, 8)
    own = load_parameters(**job.parameters)
    return _with(
        job,
        operator_ns=round(factor * own.operator_ns),
        launch_call_ns=round(factor * own.launch_call_ns),
    )


def _slow_gpu(job: Job, random: Random) -> Job:
    several = _on_several(job, random)
    return replace(several, gpu_pace={random.randrange(several.gpus): random.uniform(1.08, 1.7)})


def _slow_link(job: Job, random: Random) -> Job:
    several = _on_several(job, random)
    factor = random.uniform(0.05, 0.5)
    return replace(several, link_factors={**several.link_factors, "nvlink": factor})


def _exposed(job: Job, random: Random) -> Job:
    return replace(_on_several(job, random), overlap=False)


def _small_buckets(job: Job, random: Random) -> Job:
    several = _on_several(job, random)
    return _with(several, bucket_bytes=round(10 ** random.uniform(3.7, 5.7)))


def _star(job: Job, random: Random) -> Job:
    several = _on_several(job, random)
    if random.random() < _HALF:
        return replace(several, pattern="reduce_broadcast", overlap=random.random() < _HALF)
    return replace(several, method="p2p", pattern="star", processes="one",
                   drivers=random.choice(("one", "per_gpu")))  # fmt: skip


def _pipeline(job: Job, random: Random) -> Job:
    return replace(
        job, method="pipeline", pattern="", gpus=random.choice((2, 3, 4)),
        batch=random.choice((32, 64, 96)), micro_batches=random.choice((1, 2, 4, 8)),
        schedule=random.choice(("gpipe", "1f1b")), drivers="per_gpu",
        processes=random.choice(("one", "per_gpu")),
    )  # fmt: skip


FAULTS: Mapping[str, Change] = {
    "a pipeline": _pipeline,
    "one GPU updates all weights": _star,
    "a slow loader": _slow_loader,
    "a host that waits": lambda job, random: replace(
        job, synchronise=random.choice(("stage", "layer"))
    ),
    "pageable input": lambda job, _: replace(job, pageable=True, link_factors={}),
    "input on the computing stream": lambda job, _: replace(job, link_factors={}),
    "a slow host": _slow_host,
    "allocation in steps": lambda job, _: replace(job, allocate=True),
    "a slow GPU": _slow_gpu,
    "slow NVLinks": _slow_link,
    "exchange after the backward pass": _exposed,
    "small buckets": _small_buckets,
    "none": lambda job, _: job,
}
"""What brings a fault into a job."""


def _hidden_exchange(job: Job) -> tuple[Job, ...]:
    """Return the job whose gradients cost nothing but the time of the last of many buckets."""
    if job.gpus == 1 or job.method != "nccl":
        return ()
    early = _with(job, bucket_bytes=1 << 20)
    free = _with(job, collective_start_ns=0, collective_hop_ns=0, collective_call_ns=0)
    return (
        replace(job, overlap=True),
        replace(early, overlap=True),
        replace(free, link_factors={**job.link_factors, "nvlink": 1e4, "socket": 1e4}),
    )


def _spread(job: Job) -> tuple[Job, ...]:
    if job.pattern == "star":
        ranks = replace(job, method="nccl", processes="per_gpu", drivers="per_gpu")
        return replace(job, pattern="spread"), replace(ranks, pattern="all_reduce")
    return (replace(job, pattern="all_reduce"),) if job.pattern == "reduce_broadcast" else ()


def _more_micro_batches(job: Job) -> tuple[Job, ...]:
    """Return pipelines of more micro-batches, and of stages between which nothing is sent."""
    more = (2 * job.micro_batches, 4 * job.micro_batches)
    return tuple(replace(job, micro_batches=each) for each in more if each <= job.batch) if (
        job.method == "pipeline"
    ) else ()  # fmt: skip


def _only(changed: Job, job: Job) -> tuple[Job, ...]:
    return () if changed == job else (changed,)


def _fast_host(job: Job) -> tuple[Job, ...]:
    return (usual_changes(job)["host launches twice as fast"],)


NOT_TRIED = (
    "compilation", "off_cpu", "small_copies", "unified_memory", "profiler_overhead",
    "largest_headroom",
)  # fmt: skip
"""Rules on what the simulator does not know: what they claim cannot be judged by it."""
MENDS: Mapping[str, Callable[[Job], tuple[Job, ...]]] = {
    "input_bound": lambda job: (
        replace(job, loader_factor=0.0),
        replace(_with(job, between_steps_ns=0), loader_factor=0.0),
    ),
    "exposed_collectives": _hidden_exchange,
    "late_buckets": _hidden_exchange,
    "small_buckets": lambda job: _only(_with(job, bucket_bytes=26_214_400), job),
    "stragglers": lambda job: _only(replace(job, gpu_pace={}), job),
    "slow_clocks": lambda job: _only(replace(job, gpu_pace={}), job),
    "sync_in_loop": lambda job: (
        replace(job, synchronise="never"), replace(job, synchronise="never", pageable=False)
    ),
    "pageable_copies": lambda job: _only(replace(job, pageable=False), job),
    "unhidden_copies": lambda job: () if job.pageable else (
        replace(job, link_factors={**job.link_factors, **_HIDDEN}),
    ),
    "launch_bound": _fast_host,
    "busy_host": _fast_host,
    "tiny_kernels": _fast_host,
    "allocation_in_loop": lambda job: _only(replace(job, allocate=False), job),
    "central_update": _spread,
    "pipeline_bubbles": _more_micro_batches,
    "slow_links": lambda job: _only(
        replace(job, link_factors={k: v for k, v in job.link_factors.items() if k != "nvlink"}), job
    ),
    **dict.fromkeys(NOT_TRIED, lambda _: ()),
}  # fmt: skip
"""By rule, the jobs in which its advice is followed, of which the best counts; none where that
would change nothing."""
TOGETHER = (
    {"exposed_collectives", "late_buckets"}, {"stragglers", "slow_clocks"},
    {"launch_bound", "busy_host", "tiny_kernels"}, {"pageable_copies", "unhidden_copies"},
)  # fmt: skip
"""Rules of which each may speak for the other: they name one fault."""


def step_ns(job: Job, first: int) -> float:
    """Return the mean length of a step on a GPU from a step on, by simulation."""
    lengths = [length for step, length in _lengths(job) if step >= first]
    return sum(lengths) / len(lengths)


def first_step_ratio(job: Job) -> float:
    """Return how many times as long as the median of the others the first step takes."""
    lengths = _lengths(job)
    first = [length for step, length in lengths if step == 0]
    others = [length for step, length in lengths if step > 0]
    return sum(first) / len(first) / median(others)


def _lengths(job: Job) -> list[tuple[int, int]]:
    known = str(job.described())
    if known not in _LENGTHS:
        # What mends one rule often mends another; of a job before no one asks again.
        if len(_LENGTHS) > _MOST_KNOWN:
            _LENGTHS.clear()
        windows = step_windows(simulate(job).books.ops)
        _LENGTHS[known] = [(step, end - start) for (_, step), (start, end) in windows.items()]
    return _LENGTHS[known]
