"""Interface of a method of training on several devices for the training loop.

A job is one or more processes that run the same loop. In each of them a `Method` holds what the
process trains: copies of the network, or a part of it. The loop knows nothing of devices or of the
other processes. Per step it hands the method the parts of the global batch that are its own, and
gets back the process' share of the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from workloads._annotate import Annotations
from workloads._options import Options
from workloads.networks import Network

if TYPE_CHECKING:
    from workloads._stores import Store


class Part(NamedTuple):
    """A part of a global batch."""

    inputs: Tensor
    labels: Tensor


class Launch(StrEnum):
    """How the processes of a job come to be, where the environment has not started them."""

    ALONE = "alone"  # there is one process
    SPAWN = "spawn"  # the first process starts the others on its host
    MPI = "mpi"  # mpiexec starts all


class Evidence(StrEnum):
    """Meaning of a count of exchanged bytes."""

    COPIED = "copied"  # what was moved between devices or processes, each copy counted once
    MESSAGE = "message"  # what was handed to a collective, whatever that moves over links


@dataclass
class Exchanged:
    """How many bytes a process exchanged so far.

    The job's count is the sum over its processes: what moves between two of them is counted in one,
    and a message that all hand to a collective is counted in the one of rank 0.

    Parameters
    ----------
    evidence
        What is counted.
    gather
        Bytes of gradients on their way to where they are averaged; of an all-reduce, all.
    scatter
        Bytes of weights on their way back.
    activations
        Bytes of activations and their gradients, in model parallelism.
    """

    evidence: Evidence = Evidence.COPIED
    gather: int = 0
    scatter: int = 0
    activations: int = 0


@dataclass(frozen=True)
class World:
    """The processes of a job, and which of them this one is.

    Parameters
    ----------
    rank, size
        Number of this process, and how many there are.
    local_rank
        Number of this process among those on its host.
    make_store
        Makes a store through which all processes of the job find each other; to be called once in
        each of them. It is what ``torch.distributed.init_process_group(store=...)`` takes, and
        serves as well to tell others an address (``set``, ``get`` and ``wait``).
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    make_store: Callable[[], Store] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Setup:
    """Parts that a method is made from."""

    options: Options
    network: Network
    world: World
    notes: Annotations


class Method(ABC):
    """A way of training on several devices, in one process of the job.

    A method is a context: leaving it frees what it holds. Each process builds its network with the
    same seed (`build_network`), so all begin with the same weights.

    Attributes
    ----------
    launch
        How its processes are started.
    parts
        In how many parts of equal size the global batch is cut (1 in a pipeline without replicas).
    own
        Which of the parts this process gets in `step` and `evaluate`.
    devices
        The devices of this process.
    exchanged
        What was exchanged so far; the loop reads it before and after the measured steps.
    """

    launch: ClassVar[Launch]
    parts: int
    own: range
    devices: Sequence[torch.device]
    exchanged: Exchanged

    @classmethod
    @abstractmethod
    def check(cls, options: Options, local: int) -> None:
        """Find out, before any process is started or joined, whether options can be met here.

        Parameters
        ----------
        options
            What is asked for.
        local
            How many devices this host has to have for it, at least.

        Raises
        ------
        OptionError
            If they make no sense with this method.
        MissingError
            If a device or library is missing.
        """

    @classmethod
    def processes(cls, options: Options) -> int:
        """Return how many processes a job has."""
        return 1 if cls.launch is Launch.ALONE else options.gpus

    @classmethod
    def starter(cls, options: Options) -> Sequence[str]:
        """Return the command that starts the processes of a method of `Launch.MPI`.

        The command of one process follows it, such as ``python -m workloads.train ...``.

        Raises
        ------
        MissingError
            If there is none, saying what to run instead.
        """
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network and connect to the other processes; called once in each."""

    @abstractmethod
    def load(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the process' parts on its devices; called within ``IO`` or ``ME``."""

    @abstractmethod
    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Train one step; called within a range ``iteration N``.

        The method annotates what it does: ``FP``, ``BP`` (a start/end range) and ``WU``, with
        ``gradient exchange`` and ``optimizer`` in the latter.

        Returns
        -------
        The mean loss of each part of which the process knows it, as scalars without gradient on
        whatever device, not waited for. Each part is known in one process (in a pipeline, that of
        the last stage).
        """

    @abstractmethod
    def evaluate(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Evaluate the network as it is; called within a range ``ME``.

        Returns
        -------
        Likewise of each part, with shape (2,): mean loss, and share of right answers.
        """

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of each process' values, on the CPU.

        All processes call this with the same shape and type (float64 or int64), outside iterations.
        """
        return values.cpu()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def close(self) -> None:  # noqa: B027  most methods hold nothing
        """Free what the method holds, when training is over; all processes call this."""

    def abort(self) -> None:  # noqa: B027
        """Free what the method holds, when this process fails; it waits for no other one."""


def parameter_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of all parameters that are trained: S."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
