"""Collectives among processes with one device each: `nccl` between GPUs, `gloo` on the CPU."""

from __future__ import annotations

import gc
from abc import abstractmethod
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workloads._devices import require_gpus
from workloads._errors import MissingError, OptionError
from workloads._options import DeviceKind, Exchange, Options, Precision
from workloads.methods._buckets import Bucket, bucket_bytes, fill_buckets
from workloads.methods._method import (
    Evidence,
    Exchanged,
    Launch,
    Setup,
    World,
    parameter_bytes,
)
from workloads.methods._replicas import Replicas
from workloads.methods._shards import Volume, shard


class ProcessGroup(Replicas):
    """A replica per process, whose gradients are exchanged by collectives of PyTorch.

    With ``exchange`` all_reduce, DistributedDataParallel all-reduces gradients during the backward
    pass. With reduce_broadcast, rank 0 gets the sums of gradients, updates the parameters and
    broadcasts them, as MXNet's key-value store ``nccl`` does, but in buckets of at least
    ``bucket_mb`` (there each array is a message, which keeps the host busy). With sharded, each
    process keeps a part of every parameter (`fully_shard`): blocks of the network gather their
    parameters before each of their passes, and scatter gradients after the backward pass.

    Parameters
    ----------
    setup
        Everything that the method is made from.
    device
        The device of this process.
    """

    launch = Launch.SPAWN
    backend: ClassVar[str]

    def __init__(self, setup: Setup, device: torch.device) -> None:
        rank, size = setup.world.rank, setup.world.size
        super().__init__(setup, [device], first=rank, parts=size)
        self.exchanged = Exchanged(Evidence.MESSAGE)
        self._rank = rank
        self._module = self._modules[0]
        self._exchange = setup.options.exchange
        size_of_all = parameter_bytes(self._module)
        self._volume = Volume(size_of_all, 0)
        if self._exchange is Exchange.REDUCE_BROADCAST:
            self._volume = Volume(size_of_all, size_of_all)
        elif self._exchange is Exchange.SHARDED:
            self._volume = shard(self._module, device, size)
        parameters = list(self._module.parameters())
        self._optimizer = self._passes.optimizer(parameters)
        self._buckets: list[Bucket] = []
        if self._exchange is Exchange.REDUCE_BROADCAST:
            self._buckets = fill_buckets(parameters, bucket_bytes(setup.options))
        self._parallel: DistributedDataParallel | None = None
        if self._exchange is Exchange.ALL_REDUCE:
            self._parallel = DistributedDataParallel(
                self._module,
                device_ids=[device] if device.type == "cuda" else None,
                bucket_cap_mb=setup.options.bucket_mb,
                gradient_as_bucket_view=True,
            )

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error if the exchange does not support the precision."""
        del local
        is_whole = options.exchange is Exchange.ALL_REDUCE
        if not is_whole and options.precision is Precision.AMP:
            raise OptionError(
                "--precision amp scales gradients in each process by itself, and with --exchange "
                f"{options.exchange} none has all of them to see whether they overflow",
                "give --precision bf16",
            )

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Connect to the other processes, and build the network."""
        device = cls._device(setup.world)
        connect(setup.world, cls.backend, device)
        return cls(setup, device)

    @classmethod
    @abstractmethod
    def _device(cls, world: World) -> torch.device:
        """Return the device of this process."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of the values over all processes, computed on the CPU."""
        summed = values.cpu()
        dist.all_reduce(summed)
        return summed

    def close(self) -> None:
        """Leave the job."""
        self._parallel = None
        disconnect()

    def _callable(self) -> list[nn.Module]:
        return [self._parallel or self._module]

    def _update(self) -> None:
        if self._rank == 0:  # a message is that of all processes, and counted once
            self.exchanged.gather += self._volume.gradients
            self.exchanged.scatter += self._volume.weights
        if self._exchange is Exchange.REDUCE_BROADCAST:
            self._update_at_root()
        else:
            with self._notes.range("optimizer"):
                self._passes.update(self._optimizer)

    def _update_at_root(self) -> None:
        with self._notes.range("gradient exchange"):
            for bucket in self._buckets:
                dist.reduce(bucket.take_gradients(), dst=0)
        with self._notes.range("optimizer"):
            if self._rank == 0:
                self._optimize()
        with self._notes.range("weight exchange"):
            for bucket in self._buckets:
                # What others have in its place is overwritten.
                dist.broadcast(bucket.take_weights() if self._rank == 0 else bucket.vector, src=0)
                if self._rank != 0:
                    bucket.give_weights()

    def _optimize(self) -> None:
        for bucket in self._buckets:
            bucket.vector /= self.parts
            bucket.give_gradients()
        self._passes.update(self._optimizer)


class Nccl(ProcessGroup):
    """Collectives of NCCL between GPUs."""

    backend = "cpu:gloo,cuda:nccl"

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error if GPUs, or NCCL in PyTorch, are missing."""
        super().check(options, local)
        if options.device is DeviceKind.CPU:
            raise OptionError("the method nccl needs GPUs", "give --method gloo with --device cpu")
        require_gpus(local)
        if not dist.is_nccl_available():
            raise MissingError("this PyTorch is built without NCCL", "give --method p2p")

    @classmethod
    def _device(cls, world: World) -> torch.device:
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        return device


class Gloo(ProcessGroup):
    """Collectives of Gloo on the CPU."""

    backend = "gloo"

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error if another device than the CPU is requested."""
        super().check(options, local)
        if options.device is DeviceKind.CUDA:
            raise OptionError("the method gloo trains on the CPU", "give --method nccl for GPUs")

    @classmethod
    def _device(cls, world: World) -> torch.device:
        del world
        return torch.device("cpu")


def connect(world: World, backend: str, device: torch.device) -> None:
    """Create the process group of all processes of a job.

    Parameters
    ----------
    world
        The processes.
    backend
        Backend, as for ``torch.distributed.init_process_group``.
    device
        The device of this process.
    """
    if world.make_store is None:
        raise RuntimeError("a process that is alone has no process group")
    dist.init_process_group(
        backend,
        store=world.make_store(),
        rank=world.rank,
        world_size=world.size,
        device_id=device if device.type == "cuda" else None,
    )


def disconnect() -> None:
    """Destroy the process group, after freeing all objects that use it.

    Objects left at Python's exit would be destroyed too late, while the group's threads run.
    """
    gc.collect()
    dist.destroy_process_group()
