"""Interface between the training loop and methods of training on several devices.

A job is one or more processes that run the same loop. In each of them a `Method` holds the part of
the job that the process trains: copies of the network, or a part of it. The loop knows nothing of
devices or of other processes. In each step it passes the method its parts of the global batch, and
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
    """A part of a global batch: inputs and labels of some of its samples."""

    inputs: Tensor
    labels: Tensor


class Launch(StrEnum):
    """How the processes of a job are started, if no launcher has started them."""

    ALONE = "alone"  # there is one process
    SPAWN = "spawn"  # the first process starts the others on its host
    MPI = "mpi"  # mpiexec starts all


class Evidence(StrEnum):
    """What a number of exchanged bytes counts: bytes ``copied``, or in ``message`` buffers."""

    COPIED = "copied"  # what was moved between devices or processes, each copy counted once
    MESSAGE = "message"  # what was handed to a collective, whatever that moves over links


@dataclass
class Exchanged:
    """Number of bytes that a process has exchanged so far.

    The job's number is the sum over its processes: data between two processes are counted in one of
    them, and a message that all pass to a collective is counted in rank 0.

    Parameters
    ----------
    evidence
        Meaning of the numbers.
    gather
        Bytes of gradients sent to where they are averaged; for an all-reduce, all bytes.
    scatter
        Bytes of weights sent back.
    activations
        Bytes of activations and their gradients, in model parallelism.
    """

    evidence: Evidence = Evidence.COPIED
    gather: int = 0
    scatter: int = 0
    activations: int = 0


@dataclass(frozen=True)
class World:
    """The processes of a job, and the place of this one.

    Parameters
    ----------
    rank, size
        Rank of this process, and number of processes.
    local_rank
        Rank of this process among those on its host.
    make_store
        Function that creates the store by which all processes of the job find each other; each
        process has to call it once. It is the ``store`` of
        ``torch.distributed.init_process_group``, and can also pass addresses to others (``set``,
        ``get`` and ``wait``).
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    make_store: Callable[[], Store] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Setup:
    """Everything that `Method.open` needs: options, network, processes, annotations."""

    options: Options
    network: Network
    world: World
    notes: Annotations


class Method(ABC):
    """A way of training on several devices, in one process of the job.

    A method is a context manager: leaving it frees its resources. Each process builds its network
    with the same seed (`build_network`), so all start with the same weights.

    Attributes
    ----------
    launch
        How its processes are started.
    parts
        Number of equal parts that the global batch is cut into (1 in a pipeline without replicas).
    own
        Numbers of the parts that this process gets in `step` and `evaluate`.
    devices
        The devices of this process.
    exchanged
        Number of bytes exchanged so far; the loop reads it before and after the measured steps.
    """

    launch: ClassVar[Launch]
    parts: int
    own: range
    devices: Sequence[torch.device]
    exchanged: Exchanged

    @classmethod
    @abstractmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error, before any process is started or joined, if options cannot be met here.

        Parameters
        ----------
        options
            Options of the run.
        local
            Least number of devices that this host has to have.

        Raises
        ------
        OptionError
            If the options do not fit this method.
        MissingError
            If a device or library is missing.
        """

    @classmethod
    def processes(cls, options: Options) -> int:
        """Return the number of processes of a job."""
        return 1 if cls.launch is Launch.ALONE else options.gpus

    @classmethod
    def starter(cls, options: Options) -> Sequence[str]:
        """Return the command that starts the processes of a method of `Launch.MPI`.

        It is followed by the command of one process, such as ``python -m workloads.train ...``.

        Raises
        ------
        MissingError
            If no such command is found; the message says what to run instead.
        """
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network and connect to the other processes; called once in each process."""

    @abstractmethod
    def load(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return this process' parts of a batch, copied to its devices.

        It is called in a range ``IO`` or ``ME``.
        """

    @abstractmethod
    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Train one step; called in a range ``iteration N``.

        The method annotates its work: ``FP``, ``BP`` (a start/end range) and ``WU``, with
        ``gradient exchange`` and ``optimizer`` inside the latter.

        Returns
        -------
        Mean losses of the parts that this process knows, as scalars without gradient on any device,
        possibly not computed yet. Each part's loss is known in one process (in a pipeline, the one
        with the last stage).
        """

    @abstractmethod
    def evaluate(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Evaluate the network in its present state; called in a range ``ME``.

        Returns
        -------
        For each part known here, a tensor of shape (2,): mean loss, and share of correct answers.
        """

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of the values over all processes, on the CPU.

        All processes call this with the same shape and type (float64 or int64), outside of
        iterations.
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
        """Free all resources after training; all processes call this."""

    def abort(self) -> None:  # noqa: B027
        """Free all resources after a failure of this process, without waiting for others."""


def parameter_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of all trainable parameters (S)."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
