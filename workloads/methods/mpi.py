"""Gradients all-reduced by MPI, through host memory or directly from device memory."""

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

    Gradients are sent in buckets of at least ``bucket_mb``, packed on the device after the backward
    pass, or with ``overlap`` as soon as it has computed them. A staged bucket is copied to the
    host, reduced, and copied back, while others are copied; otherwise MPI gets device memory. On
    the CPU nothing is staged.

    Parameters
    ----------
    setup
        Everything that the method is made from.
    device
        The device of this process.
    communicator
        Communicator of all processes of the job.
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
        """Raise an error if devices or mpi4py are missing."""
        require_mpi4py()
        choose_devices(options.device, local)

    @classmethod
    def starter(cls, options: Options) -> Sequence[str]:
        """Return the command of mpiexec (of this environment, else of the PATH) for the job."""
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
        """Return the sum of the values over all processes, computed on the CPU."""
        own = values.cpu()
        summed = torch.empty_like(own)
        self._communicator.Allreduce(own, summed)
        return summed

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # see load_mpi
            self.close()

    def close(self) -> None:
        """Leave the job."""
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
    """Gradients of one bucket on their way to MPI_Allreduce and back.

    Parameters
    ----------
    bucket
        Bucket with the gradients.
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
        """Start copying the gradients into the buffer that MPI gets, in device or host memory."""
        packed = self._bucket.take_gradients()
        if self._staged:
            self._sent.copy_(packed, non_blocking=True)
        if packed.is_cuda:
            self._packed = torch.cuda.current_stream().record_event()

    def average(self, communicator: MPI.Intracomm) -> None:
        """Replace each gradient by its mean over all processes."""
        if self._packed is not None:  # MPI does not know of streams
            self._packed.synchronize()
        communicator.Allreduce(self._sent, self._sum)
        self._bucket.vector.copy_(self._sum, non_blocking=True)
        self._bucket.vector /= communicator.size
        self._bucket.give_gradients()


def is_staged(wanted: Staging, device: str, *, knows_cuda: bool | None) -> bool:
    """Tell whether gradients have to go through host memory.

    Parameters
    ----------
    wanted
        The option; ``auto`` passes device memory only if MPI is known to take it.
    device
        Type of the devices: only gradients in GPU memory can be staged.
    knows_cuda
        Whether MPI takes CUDA memory; None if not known.

    Raises
    ------
    MissingError
        If device memory is requested, but MPI reports that it does not take it.
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
    """Tell whether MPI reports that it takes CUDA memory; None if it does not report it.

    It calls ``MPIX_Query_cuda_support``, an extension that Open MPI, MPICH and MVAPICH share.
    """
    library = ctypes.CDLL(load_mpi().__file__)
    try:
        answer: int = library.MPIX_Query_cuda_support()
    except AttributeError:
        return None
    return answer == 1


def _join(world: World) -> MPI.Intracomm:
    """Return the communicator of all processes, after checking its size against the launcher's."""
    communicator: MPI.Intracomm = load_mpi().COMM_WORLD
    if (communicator.rank, communicator.size) != (world.rank, world.size):
        library = load_mpi().Get_library_version().splitlines()[0].strip()
        raise RankError(
            f"MPI counts {communicator.size} processes and the launcher {world.size}: mpi4py has "
            f"loaded {library}",
            "start the job with the mpiexec of that library",
        )
    return communicator
