"""What there is to simulate, the scenarios and the grid of the studies, and making many at once."""

from __future__ import annotations

import tomllib
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .job import Job
from .run import few_changes, usual_changes, write, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SCENARIOS = Path(__file__).with_name("scenarios.toml")
BUNDLED = (
    "clean", "input_bound", "launch_bound", "star_8", "exposed_nccl", "pipeline_1f1b",
    "pipeline_nccl",
)  # fmt: skip
"""The scenarios that lie in ``sample_traces/simulated``."""

NETWORKS = ("lenet", "alexnet", "googlenet", "inception-v3", "resnet-110")
BATCHES = (16, 32, 64)
GPUS = (1, 2, 4, 8)
METHODS = ("p2p", "nccl")
SCALINGS = ("strong", "weak")
STEPS = 10
"""Steps of a run of the studies: the first are cold, and an interval takes five or more."""


@dataclass(frozen=True)
class Scenario:
    """A job that shows something, and the causes that most of its idle time has."""

    name: str
    summary: str
    causes: tuple[str, ...]
    job: Job


@cache
def scenarios() -> Mapping[str, Scenario]:
    """Return the scenarios by name."""
    with SCENARIOS.open("rb") as file:
        described = tomllib.load(file)
    return {name: _scenario(name, dict(each)) for name, each in described.items()}


def _scenario(name: str, described: dict[str, Any]) -> Scenario:
    summary, causes = described.pop("summary"), tuple(described.pop("causes", ()))
    return Scenario(name, summary, causes, Job.read(described))


PROGRAMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mxnet": {method: {"locks": True, "messages": "arrays"} for method in METHODS},
    "pytorch": {
        "p2p": {"drivers": "one"},
        "nccl": {"pattern": "all_reduce", "processes": "per_gpu"},
    },
}
"""How the programs of the grid are built, by method: as the study's, which was of MXNet (a process
with a thread per GPU, which share the driver's lock; each array is a message; with NCCL, GPU 0
updates and the host waits for each group of collectives), or as those in ``workloads`` (peer copies
by one thread; with NCCL a process per GPU and all-reduces)."""


def grid(
    networks: Sequence[str] = NETWORKS, gpus: Sequence[int] = GPUS, program: str = "mxnet"
) -> Iterator[tuple[str, Job]]:
    """Yield the studies' jobs with their names.

    The batch is that of a GPU, so a step of weak scaling does what one of strong scaling does: they
    differ in the images of an epoch. Each is drawn anew.
    """
    for network, batch, count, method, scaling in product(
        networks, BATCHES, gpus, METHODS, SCALINGS
    ):
        name = f"{network}-batch{batch}-gpus{count}-{method}-{scaling}"
        yield name, Job(
            network=network, batch=batch, gpus=count, method=method, scaling=scaling, steps=STEPS,
            seed=zlib.crc32(name.encode()), **PROGRAMS[program][method],
        )  # fmt: skip


def study(networks: Sequence[str] = NETWORKS) -> Iterator[tuple[str, Job]]:
    """Yield the part of the grid that `tracekit study dgx1 --simulated` looks at.

    That is strong scaling of all, and weak scaling with the smallest batch on several GPUs.
    """
    for name, job in grid(networks):
        if job.scaling == "strong" or (job.batch == min(BATCHES) and job.gpus > 1):
            yield name, job


def make(
    jobs: Mapping[str, Job],
    folder: Path,
    *,
    workers: int | None = None,
    what_if: str | None = "all",
) -> Iterator[str]:
    """Write traces and their truth in parallel; yield the name of each when it is there.

    Parameters
    ----------
    jobs
        What to simulate, by the name of its files.
    folder
        Where they go.
    workers
        How many processes, as many as there are cores unless given; 0 for none beside this one.
    what_if
        With how many changes each job is simulated again, so that its truth says how long steps
        would take: ``none``, ``few`` or ``all``; None for traces without their truth, which takes
        most of the time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(job, folder, name, what_if) for name, job in jobs.items()]
    if workers == 0:
        yield from map(_make, tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_make, tasks)


CHANGES: Mapping[str, Callable[[Job], Mapping[str, Job]]] = {
    "none": lambda _: {},
    "few": few_changes,
    "all": usual_changes,
}


def _make(task: tuple[Job, Path, str, str | None]) -> str:
    job, folder, name, what_if = task
    if what_if is None:
        write_trace(job, folder, name)
    else:
        write(job, folder, name, CHANGES[what_if](job))
    return name
