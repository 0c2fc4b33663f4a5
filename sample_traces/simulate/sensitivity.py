"""How long steps of the studies' jobs take with each assumption at the ends of its range.

Ends are the ``range`` of an entry of ``parameters.toml``, or the other choices of a job. One thing
changes at a time, and all else is drawn alike, so that what differs is of that one thing.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from .grid import BATCHES, grid
from .job import CHOICES
from .parameters import described
from .run import simulate
from .truth import step_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .job import Job

STEPS, COLD = 5, 2
NETWORKS = {"lenet": (1, 2, 4, 8), "alexnet": (1, 8)}
"""The networks that are looked at unless others are asked for, and on how many GPUs."""
CURVED = "collective_call_ns"
"""What has many values between the ends of its range: the host's cost of a call of NCCL."""
BY_LAYER = f"{CURVED}, messages=layers"
"""The same where a group of NCCL is one call."""
POINTS = 9
_CHOICES = ("messages", "pattern", "unlinked")
_OF_P2P = {"pattern": ("star", "spread")}

Row = dict[str, Any]


def assumptions() -> list[Row]:
    """Return what is varied: name, value, low, high and unit, and what is known of it."""
    rows = [
        {"assumption": name, "value": _text(entry["value"]),
         "low": _text(entry["range"][0]), "high": _text(entry["range"][1]),
         "unit": entry["unit"], "source": entry["source"]}
        for name, entry in described().items() if "range" in entry
    ]  # fmt: skip
    curved = next(row for row in rows if row["assumption"] == CURVED)
    rows.append(curved | {"assumption": BY_LAYER})
    job = _jobs("lenet", (8,))[0]
    for name in _CHOICES:
        own = getattr(job, name)
        others = [each for each in _OF_P2P.get(name, CHOICES[name]) if each != own]
        rows.append({"assumption": name, "value": own, "low": others[0], "high": others[-1],
                     "unit": "", "source": "a choice of the job"})  # fmt: skip
    return rows


def _text(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def step_rows(networks: Sequence[str] = (), workers: int | None = None) -> Iterator[Row]:
    """Yield the mean step of each job under each variant, ns; no assumption is the job as it is."""
    tasks = [
        ({"assumption": name, "value": value, "network": job.network, "method": job.method,
          "gpus": job.gpus}, replace(job, **changes))
        for network in networks or NETWORKS
        for job in _jobs(network, NETWORKS.get(network, (1, 8)))
        for name, value, changes in _variants(job)
    ]  # fmt: skip
    with ProcessPoolExecutor(workers) as pool:
        steps = pool.map(_mean_step, [job for _, job in tasks], chunksize=8)
        for (row, _), step in zip(tasks, steps, strict=True):
            yield row | {"step_ns": step}


def _jobs(network: str, gpus: Sequence[int]) -> list[Job]:
    """Return the jobs with the smallest batch; on one GPU both methods are one."""
    return [
        replace(job, steps=STEPS, evaluate=0)
        for _, job in grid([network], gpus)
        if job.batch == min(BATCHES) and job.scaling == "strong"
        and (job.gpus > 1 or job.method == "p2p")
    ]  # fmt: skip


def _variants(job: Job) -> Iterator[tuple[str | None, str | None, Row]]:
    """Yield each assumption with each of its values and what that changes of a job."""
    yield None, None, {}
    for name, entry in described().items():
        if "range" in entry:
            for kept in _values(name, entry):
                yield name, _text(kept), {"parameters": {name: kept}}
    if job.method == "nccl" or job.gpus == 1:
        for kept in _values(CURVED, described()[CURVED]):
            changes = {"messages": "layers", "parameters": {CURVED: kept}}
            yield BY_LAYER, _text(kept), changes
    for name in _CHOICES if job.method == "p2p" else _CHOICES[:1]:
        for value in _OF_P2P.get(name, CHOICES[name]):
            if value != getattr(job, name):
                yield name, value, {name: value}


def _values(name: str, entry: Row) -> list[float]:
    """Return the ends of a range; of what is curved also values between, evenly by ratio."""
    low, high = entry["range"]
    if name != CURVED:
        return [low, high]
    steps = [low * (high / low) ** (place / (POINTS - 1)) for place in range(POINTS)]
    return [round(each) for each in steps]


def _mean_step(job: Job) -> float:
    return mean(step_times(simulate(job).books.ops)[COLD:])
