"""What is simulated: a training job on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Self

CHOICES = {
    "method": ("p2p", "nccl", "pipeline"),
    "pattern": ("star", "spread", "all_reduce", "reduce_broadcast", ""),
    "unlinked": ("pcie", "staged", "two_hop"),
    "processes": ("one", "per_gpu"),
    "drivers": ("per_gpu", "one"),
    "schedule": ("gpipe", "1f1b"),
    "scaling": ("strong", "weak"),
    "ranges": ("full", "stages", "none"),
    "synchronise": ("never", "loss", "stage", "layer"),
    "loader": ("pool", "ordered"),
    "messages": ("layers", "arrays"),
}


@dataclass(frozen=True)
class Job:
    """A training job.

    Parameters
    ----------
    network, batch, gpus
        What is trained, with how many images per GPU and step, on how many GPUs. A pipeline's
        batch is that of all its GPUs.
    method, pattern
        How gradients are exchanged: peer copies (``star``: GPU 0 gathers, updates and sends back;
        ``spread``: every GPU does so for some of the weights), NCCL (``all_reduce``, or
        ``reduce_broadcast``: GPU 0 updates); or a pipeline of the layers.
    unlinked
        How GPUs that share no NVLink copy: one peer copy over ``pcie``, ``staged`` by a copy to
        the host and one from there, or ``two_hop`` over a third GPU.
    processes
        Whether one process has all GPUs, or each its own. A pipeline of one process hands
        micro-batches on by peer copies, one of several by NCCL's send and receive.
    drivers
        Whether each GPU of a process has a thread that drives it, as in MXNet, or one thread drives
        all in turn, as in a plain PyTorch program. A backward thread has each GPU in either.
    overlap
        Whether gradients are exchanged while the backward pass goes on.
    schedule, micro_batches
        The pipeline's order of passes.
    steps, evaluate
        How many steps, and how many batches are evaluated afterwards.
    scaling, dataset
        Images of an epoch: ``dataset``, in weak scaling times the number of GPUs.
    ranges
        NVTX ranges: of steps, stages and layers, without those of layers, or none.
    synchronise
        When the host waits for the GPU: never, for the loss after each step, after each stage, or
        after each layer of the forward pass.
    loader
        Whether workers are there from the start and put batches where any is taken (``pool``), or
        start with the loop and each batch is taken in its turn, as PyTorch does (``ordered``).
    locks
        Whether threads of a process wait for each other's calls, and the work between them, as far
        as the parameters say: for the driver's lock, and the interpreter's.
    messages
        Whether gradients of a layer travel as one (``layers``), or each array apart (``arrays``),
        as keys of MXNet's store; NCCL launches operations of one group together from 2.2 on, so
        that with arrays each has a kernel of its own.
    pageable
        Whether inputs lie in pageable memory.
    allocate
        Whether each layer's output is allocated and released in every step.
    gpu_pace, link_factors, loader_factor, kernel_factors
        Factors on the kernels' time of a GPU, the bandwidth of links (by name, such as
        ``GPU0-GPU3``, or kind), the loader's time, and the time of kernels (by name or stage).
    parameters
        Assumptions that differ from ``parameters.toml``.
    seed, machine
        Of what the variations are drawn, and a description in ``schemas/machines``.
    """

    network: str = "alexnet"
    batch: int = 32
    gpus: int = 1
    method: str = "nccl"
    pattern: str = ""
    unlinked: str = "pcie"
    processes: str = "one"
    drivers: str = "per_gpu"
    overlap: bool = True
    schedule: str = "gpipe"
    micro_batches: int = 4
    steps: int = 4
    evaluate: int = 1
    scaling: str = "strong"
    dataset: int = 256 * 1024
    ranges: str = "full"
    synchronise: str = "loss"
    loader: str = "pool"
    locks: bool = False
    messages: str = "layers"
    pageable: bool = False
    allocate: bool = False
    gpu_pace: Mapping[int, float] = field(default_factory=dict)
    link_factors: Mapping[str, float] = field(default_factory=dict)
    loader_factor: float = 1.0
    kernel_factors: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)
    seed: int = 20261122
    machine: str = "dgx1v"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, not one of {allowed}")
        if not self.pattern:
            usual = {"p2p": "star", "nccl": "reduce_broadcast", "pipeline": ""}
            object.__setattr__(self, "pattern", usual[self.method])
        if self.method == "p2p" and self.processes == "per_gpu":
            raise ValueError("peer copies are simulated within one process")
        if self.method != "p2p" and self.drivers == "one":
            raise ValueError("only with peer copies one thread can drive several GPUs")

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Self:
        """Return the job that a table of a TOML or JSON file describes."""
        pace = {int(gpu): factor for gpu, factor in described.get("gpu_pace", {}).items()}
        return cls(**{**described, "gpu_pace": pace})

    def described(self) -> dict[str, Any]:
        """Return everything that the job is."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @property
    def images(self) -> int:
        """Images of an epoch."""
        return self.dataset * (self.gpus if self.scaling == "weak" else 1)

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch."""
        return ceil(self.images / (self.batch * (1 if self.method == "pipeline" else self.gpus)))

    def wants_range(self, domain: str) -> bool:
        """Whether ranges of a domain are recorded; NCCL makes its own."""
        return domain == "NCCL" or self.ranges == "full" or (
            self.ranges == "stages" and domain != "layer"
        )  # fmt: skip

    def labels(self) -> dict[str, object]:
        """Return what the program says of itself in the trace."""
        return {
            "network": self.network,
            "batch": self.batch,
            "batch_scope": "global" if self.method == "pipeline" else "gpu",
            "gpus": self.gpus,
            "method": self.method,
            "scaling": self.scaling,
            "images": self.images,
            "data": "simulated",
            "device": "simulated",
            "simulated": "yes",
        }


def _plain(value: Any) -> Any:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value
