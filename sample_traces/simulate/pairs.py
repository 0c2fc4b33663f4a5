"""Pairs of jobs of which one thing was changed: what replays of the first say of the second.

Ten of them were drawn and sealed before the rules of replays were made that their ranges follow
from: `SEALED` names them. They were run against these rules once. `DRAWN` were sealed later,
before the rules were changed: their networks, changes and numbers are drawn from a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from .job import Job
from .network import load_network
from .parameters import load_parameters
from .run import simulate, write
from .truth import step_times

SKIPPED = 2
"""Steps at the beginning that count in no mean."""


@dataclass(frozen=True)
class Pair:
    """A job, the same with something changed, and how `tracekit whatif` is asked for it.

    Parameters
    ----------
    name
        Its name, of which variations are drawn.
    asked
        Options of `Run.whatif`.
    job
        Fields of the job.
    changed
        Those of the changed one.
    hidden
        What a batch takes to prepare over a step without any wait for it, for one worker.
    faster
        Names or stages of kernels that take half the time in the changed job.
    """

    name: str
    asked: Mapping[str, Any]
    job: Mapping[str, Any]
    changed: Mapping[str, Any] = field(default_factory=dict)
    hidden: float = 0.05
    faster: tuple[str, ...] = ()

    def jobs(self) -> tuple[Job, Job]:
        """Return the job, and the changed one."""
        common = {"loader": "ordered", "steps": 16, "evaluate": 0}
        plain = Job.read({**common, "seed": zlib.crc32(self.name.encode()), **self.job})
        fed = replace(plain, loader_factor=0.0)
        step = mean(step_times(simulate(fed).books.ops)[SKIPPED:])
        elements = load_network(plain.network).input_elements * plain.batch
        alone = elements * load_parameters().decode_ns_per_element
        job = replace(plain, loader_factor=self.hidden * step / alone)
        changed = dict(self.changed)
        if "loader_factor" in changed:
            changed["loader_factor"] *= job.loader_factor
        if "parameters" in changed:
            changed["parameters"] = {**job.parameters, **changed["parameters"]}
        faster = dict.fromkeys(self.faster, 0.5)
        return job, replace(job, **{"kernel_factors": faster, **changed})


_ALEXNET: Mapping[str, Any] = {"network": "alexnet", "batch": 16}
_GOOGLENET: Mapping[str, Any] = {"network": "googlenet", "batch": 32}
_LENET: Mapping[str, Any] = {"network": "lenet", "batch": 64}
_PASSES = ("FP", "BP")
_FASTER: Mapping[str, Any] = {"stage": ["FP=2x", "BP=2x"]}
_DDP: Mapping[str, Any] = {"gpus": 4, "pattern": "all_reduce", "processes": "per_gpu"}
_AFTER: Mapping[str, Any] = {**_DDP, "overlap": False}


def _workers(count: float, **more: float) -> dict[str, Any]:
    return {"parameters": {"loader_workers": count, **more}}


_ONE, _TWO = _workers(1), _workers(2)
_ITEM: Mapping[str, Any] = {"synchronise": "layer"}
_NVLINK: Mapping[str, Any] = {"link_factors": {"nvlink": 2.0}}
PAIRS = (
    Pair("hidden-65-alexnet", _FASTER, {**_ALEXNET, **_ONE}, hidden=0.65, faster=_PASSES),
    Pair("hidden-65-googlenet", _FASTER, {**_GOOGLENET, **_ONE}, hidden=0.65, faster=_PASSES),
    Pair("hidden-65-two", _FASTER, {**_ALEXNET, **_TWO}, hidden=1.3, faster=_PASSES),
    Pair("hidden-93-alexnet", _FASTER, {**_ALEXNET, **_ONE}, hidden=0.93, faster=_PASSES),
    Pair("hidden-93-googlenet", _FASTER, {**_GOOGLENET, **_ONE}, hidden=0.93, faster=_PASSES),
    Pair("hidden-93-wgrad", {"speed": ["conv_wgrad=2x"]}, {**_ALEXNET, **_ONE}, hidden=0.93,
         faster=("conv_wgrad",)),
    Pair("jitter-bound", {"loader": "2x"}, {**_ALEXNET, **_workers(1, loader_jitter=0.6)},
         {"loader_factor": 0.5}, hidden=3.0),
    Pair("jitter-bound-two", {"loader": "1.5x"}, {**_ALEXNET, **_workers(2, loader_jitter=0.5)},
         {"loader_factor": 1 / 1.5}, hidden=4.0),
    Pair("jitter-fed", {"loader": "4x"}, {**_ALEXNET, **_workers(1, loader_jitter=0.4)},
         {"loader_factor": 0.25}, hidden=2.0),
    Pair("loader-inf", {"loader": "inf"}, {**_GOOGLENET, **_TWO}, {"loader_factor": 0.0},
         hidden=5.0),
    Pair("loader-2x", {"loader": "2x"}, {**_GOOGLENET, **_ONE}, {"loader_factor": 0.5}, hidden=1.6),
    Pair("workers-1-4", {"workers": 4}, {**_ALEXNET, **_ONE}, _workers(4), hidden=1.5),
    Pair("workers-2-4", {"workers": 4}, {**_ALEXNET, **_TWO}, _workers(4), hidden=3.0),
    Pair("workers-1-4-contended", {"workers": 4},
         {**_ALEXNET, **_workers(1, loader_contention=0.15)},
         _workers(4, loader_contention=0.15), hidden=1.8),
    Pair("workers-2-8", {"workers": 8}, {**_GOOGLENET, **_workers(2, loader_contention=0.05)},
         _workers(8, loader_contention=0.05), hidden=2.6),
    Pair("item-no-sync-lenet", {"no_sync": True}, {**_LENET, **_ITEM}, {"synchronise": "never"}),
    Pair("item-no-sync-alexnet", {"no_sync": True}, {**_ALEXNET, **_ITEM},
         {"synchronise": "never"}),
    Pair("item-no-sync-googlenet", {"no_sync": True}, {**_GOOGLENET, "batch": 16, **_ITEM},
         {"synchronise": "never"}),
    Pair("item-kernels-alexnet", _FASTER, {**_ALEXNET, **_ITEM}, faster=_PASSES),
    Pair("item-kernels-lenet", _FASTER, {**_LENET, **_ITEM}, faster=_PASSES),
    Pair("queue-kernels", _FASTER,
         {**_GOOGLENET, "synchronise": "never", "parameters": {"queue_capacity": 300}},
         faster=_PASSES),
    Pair("queue-no-sync", {"no_sync": True},
         {**_GOOGLENET, "synchronise": "stage", "parameters": {"queue_capacity": 300}},
         {"synchronise": "never"}),
    Pair("straggler-kernels", _FASTER, {**_ALEXNET, **_DDP, "gpu_pace": {2: 1.4}}, faster=_PASSES),
    Pair("straggler-nvlink", {"bandwidth": ["nvlink=2x"]},
         {**_ALEXNET, **_AFTER, "gpu_pace": {1: 1.3}}, _NVLINK),
    Pair("nccl-nvlink", {"bandwidth": ["nvlink=2x"]}, {**_ALEXNET, **_AFTER}, _NVLINK),
    Pair("nccl-collective", {"bandwidth": ["collective=2x"]},
         {**_GOOGLENET, **_AFTER, "batch": 16}, _NVLINK),
    Pair("nccl-update", {"stage": ["WU=2x"]}, {**_ALEXNET, **_AFTER}, faster=("WU",)),
    Pair("kernels-alexnet", _FASTER, {**_ALEXNET, "batch": 64}, faster=_PASSES),
    Pair("kernels-wgrad", {"speed": ["conv_wgrad=2x"]}, {**_GOOGLENET}, faster=("conv_wgrad",)),
    Pair("kernels-resnet", _FASTER, {"network": "resnet-110", "batch": 32}, faster=_PASSES),
)  # fmt: skip

SEALED = (
    "hidden-65-two", "hidden-93-wgrad", "item-kernels-alexnet", "item-no-sync-googlenet",
    "item-no-sync-lenet", "nccl-collective", "nccl-nvlink", "queue-kernels", "straggler-nvlink",
    "workers-2-4",
)  # fmt: skip
"""The pairs that no rule was made on: ``Random(20261123).sample`` of the names above."""


def _drawn_pair(index: int, seed: int) -> Pair:
    """Return one of some pairs that a seed draws, of the kinds above by turns."""
    random = Random(f"{seed}/{index}")
    plain = {**random.choice((_ALEXNET, _GOOGLENET)), "batch": random.choice((16, 24, 48))}
    workers = _workers(random.choice((1, 2, 3)))
    times = random.choice((1.5, 2, 3))
    kinds = ("hidden", "loader", "workers", "item", "nccl", "kernels", "hidden", "straggler")
    name = f"drawn-{index}-{kinds[index % len(kinds)]}"
    work = workers["parameters"]["loader_workers"]
    fed = {**plain, **workers}
    more = random.choice((4, 6))
    pace = {random.randrange(4): random.uniform(1.1, 1.6)}
    overlap = random.choice((True, False))
    pairs = {
        "hidden": lambda: Pair(name, _FASTER, fed, hidden=random.uniform(0.3, 0.95) * work,
                               faster=_PASSES),
        "loader": lambda: Pair(name, {"loader": f"{times}x"}, fed, {"loader_factor": 1 / times},
                               hidden=random.uniform(1.2, 4) * work),
        "workers": lambda: Pair(name, {"workers": more}, fed, _workers(more),
                                hidden=random.uniform(1.2, 2) * work),
        "item": lambda: Pair(name, {"no_sync": True}, {**plain, **_ITEM},
                             {"synchronise": "never"}),
        "nccl": lambda: Pair(name, {"bandwidth": ["nvlink=2x"]},
                             {**plain, **_DDP, "overlap": overlap}, _NVLINK),
        "straggler": lambda: Pair(name, _FASTER, {**plain, **_DDP, "gpu_pace": pace},
                                  faster=_PASSES),
        "kernels": lambda: Pair(name, _FASTER, plain, faster=_PASSES),
    }  # fmt: skip
    return pairs[kinds[index % len(kinds)]]()


DRAWN = tuple(_drawn_pair(index, 20261126) for index in range(10))
"""Pairs that were sealed before ranges were given where none had been."""


def _slow_pair(index: int, seed: int) -> Pair:
    """Return a drawn job of four GPUs of which one is slow, and the same where none is."""
    random = Random(f"{seed}/{index}")
    plain = {**random.choice((_ALEXNET, _GOOGLENET)), "batch": random.choice((16, 24, 48))}
    pace = {random.randrange(4): random.uniform(1.1, 1.6)}
    job = {**plain, **_DDP, "gpu_pace": pace, "overlap": random.choice((True, False))}
    return Pair(f"slow-{index}", {"without_straggler": "rank"}, job, {"gpu_pace": {}})


SLOW = tuple(_slow_pair(index, 20261128) for index in range(8))
"""Pairs of which the change is that no GPU is slow."""


def write_pair(pair: Pair, folder: Path) -> dict[str, float]:
    """Write a pair's trace; return how long its steps take in the mean, before and after."""
    job, changed = pair.jobs()
    write(job, folder, pair.name)
    times = [step_times(simulate(each).books.ops) for each in (job, changed)]
    before, after = (mean(each[SKIPPED:]) for each in times)
    return {"before_ns": before, "after_ns": after}
