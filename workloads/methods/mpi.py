"""Gradients all-reduced by MPI, through host memory or right out of the devices' memory."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from workloads._devices import choose_devices
from workloads._errors import MissingError, RankError
from workloads._mpi import HOW_TO_GET_MPI, load_mpi, require_mpi4py
from workloads._options import Options, Staging
from workloads.methods._buckets import Bucket, bucket_bytes, fill_buckets
from workloads.methods._method import Evidence, Exchanged, Launch, Setup, World
from workloads.methods._replicas import Replicas

if TYPE_CHECKING:
    from mpi4py import MPI


class Mpi(Replicas):
    """A replica per process, whose gradients are averaged by ``MPI_Allreduce``.

    Gradients travel in buckets of at least ``bucket_mb``, packed on the device once the backward
    pass is done, or with ``overlap`` as soon as it has them. Staged through the host, a bucket is
    copied there, reduced, and copied back, while others are copied; otherwise MPI is handed the
    device's memory. On the CPU there is nothing to stage.

    Parameters
    ----------
    setup
        What the method is made from.
    device
        The device of this process.
    communicator
        All processes of the job.
    staged
        Whether buckets go through host memory.
    """

    launch = Launch.MPI

    def __init__(
        self, setup: Setup, device: torch.device, communicator: MPI.Intracomm, *, staged: bool
    ) -> None:
        rank, size = setup.world.rank, setup.world.size
        super().__init__(setup, [device], first=rank, parts=size)
        self.exchanged = Exchanged(Evidence.MESSAGE)
        self._communicator = communicator
        self._counts = rank == 0
        parameters = list(self._modules[0].parameters())
        self._optimizer = self._passes.optimizer(parameters)
        buckets = fill_buckets(parameters, bucket_bytes(setup.options))
        self._messages = [Message(bucket, staged=staged) for bucket in buckets]
        self._overlaps = setup.options.overlap
        if self._overlaps:
            for bucket, message in zip(buckets, self._messages, strict=True):
                bucket.when_full(message.pack)

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Make sure that the devices and mpi4py are there."""
        require_mpi4py()
        choose_devices(options.device, local)

    @classmethod
    def starter(cls, options: Options) -> Sequence[str]:
        """Return how mpiexec, of this environment or else of the PATH, starts the processes."""
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        found = shutil.which("mpiexec", path=places)
        if found is None:
            raise MissingError(
                "there is no mpiexec on the PATH",
                f"{HOW_TO_GET_MPI}, or run mpirun -n {options.gpus} python -m workloads.train ...",
            )
        return [found, "-n", str(options.gpus)]

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Connect to the other processes, and build the network."""
        communicator = _join(setup.world)
        local = setup.world.local_rank
        device = choose_devices(setup.options.device, local + 1)[local]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        staged = is_staged(setup.options.mpi_staging, device.type, knows_cuda=knows_cuda())
        if device.type == "cuda":  # on the CPU there is nothing to stage
            setup.notes.labels({"staging": "host" if staged else "direct"})
        return cls(setup, device, communicator, staged=staged)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of each process' values, added up on the CPU."""
        own = values.cpu()
        summed = torch.empty_like(own)
        self._communicator.Allreduce(own, summed)
        return summed

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # see load_mpi
            self.close()

    def close(self) -> None:
        """Leave the other processes."""
        load_mpi().Finalize()

    def _update(self) -> None:
        with self._notes.range("gradient exchange"):
            for message in () if self._overlaps else self._messages:
                message.pack()
            for message in self._messages:
                message.average(self._communicator)
                self.exchanged.gather += message.nbytes if self._counts else 0
        with self._notes.range("optimizer"):
            self._passes.update(self._optimizer)


class Message:
    """The gradients of a bucket, on their way through MPI.

    Parameters
    ----------
    bucket
        Whose gradients.
    staged
        Whether they go through host memory.
    """

    def __init__(self, bucket: Bucket, *, staged: bool) -> None:
        self._bucket = bucket
        self._staged = staged
        vector = bucket.vector
        self._sent = torch.empty_like(vector, device="cpu", pin_memory=True) if staged else vector
        # Not in place: from a trace, the size of a call in place cannot be told for certain.
        self._sum = torch.empty_like(self._sent, pin_memory=staged)
        self._packed: torch.cuda.Event | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients."""
        return self._bucket.nbytes

    def pack(self) -> None:
        """Begin to bring the gradients to where MPI takes them."""
        packed = self._bucket.take_gradients()
        if self._staged:
            self._sent.copy_(packed, non_blocking=True)
        if packed.is_cuda:
            self._packed = torch.cuda.current_stream().record_event()

    def average(self, communicator: MPI.Intracomm) -> None:
        """Put the mean over all processes in the place of each gradient."""
        if self._packed is not None:  # MPI does not know of streams
            self._packed.synchronize()
        communicator.Allreduce(self._sent, self._sum)
        self._bucket.vector.copy_(self._sum, non_blocking=True)
        self._bucket.vector /= communicator.size
        self._bucket.give_gradients()


def is_staged(wanted: Staging, device: str, *, knows_cuda: bool | None) -> bool:
    """Return whether gradients have to go through host memory.

    Parameters
    ----------
    wanted
        What is asked for. Only where MPI is known to take device memory, ``auto`` hands it some.
    device
        Type of the devices: only gradients in the memory of GPUs can be staged.
    knows_cuda
        Whether MPI takes their memory; None if it does not say.

    Raises
    ------
    MissingError
        MPI says that it does not take device memory, and is to be handed some.
    """
    if device != "cuda":
        return False
    if wanted is Staging.DIRECT and knows_cuda is False:
        raise MissingError(
            "this MPI says that it does not take memory of CUDA devices",
            "give --mpi-staging host, or run under an MPI that is built with CUDA",
        )
    return wanted is Staging.HOST or (wanted is Staging.AUTO and not knows_cuda)


def knows_cuda() -> bool | None:
    """Return whether MPI says that it takes memory of CUDA devices; None if it does not say.

    Asked is ``MPIX_Query_cuda_support``, an extension that Open MPI, MPICH and MVAPICH share.
    """
    library = ctypes.CDLL(load_mpi().__file__)
    try:
        answer: int = library.MPIX_Query_cuda_support()
    except AttributeError:
        return None
    return answer == 1


def _join(world: World) -> MPI.Intracomm:
    """Return the communicator of all processes, when it is as large as the launcher says."""
    communicator: MPI.Intracomm = load_mpi().COMM_WORLD
    if (communicator.rank, communicator.size) != (world.rank, world.size):
        library = load_mpi().Get_library_version().splitlines()[0].strip()
        raise RankError(
            f"MPI counts {communicator.size} processes and the launcher {world.size}: mpi4py has "
            f"loaded {library}",
            "start the job with the mpiexec of that library",
        )
    return communicator
