"""Parameter server: workers push gradients to it and pull weights from it, by gRPC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Self

import torch
from torch import Tensor, nn

from workloads._devices import choose_devices
from workloads._errors import MissingError, OptionError
from workloads._options import Options, Precision
from workloads._passes import Passes
from workloads.methods._buckets import bucket_bytes, fill_buckets
from workloads.methods._method import Exchanged, Launch, Setup, World
from workloads.methods._replicas import Replicas

_KEY = "parameter server"
"""Key of the server's address in the store."""
_PATIENCE_S = 300
"""Seconds that the server waits for workers to join, and at the end to leave."""


class ParameterServer(Replicas):
    """One worker per process; rank 0 also is the server, on its host's CPU.

    Steps are synchronous. The server's own worker needs no message, so for n workers and S bytes of
    parameters a step exchanges 2(n-1)S bytes.

    Parameters
    ----------
    setup
        Everything that the method is made from.
    device
        The device of this process.
    """

    launch = Launch.SPAWN

    def __init__(self, setup: Setup, device: torch.device) -> None:
        super().__init__(setup, [device], first=setup.world.rank, parts=setup.world.size)
        [self._bucket] = fill_buckets(list(self._modules[0].parameters()), math.inf)
        self._host = HostVector(self._bucket.vector, bucket_bytes(setup.options))
        self._end = (
            Server(setup.world, self._bucket.take_weights().cpu(), self._passes)
            if setup.world.rank == 0
            else Worker(setup.world, self.exchanged)
        )

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error if devices or gRPC are missing."""
        if find_spec("grpc") is None:
            raise MissingError(
                "the package grpcio is not installed", "pip install 'tracekit[workloads]'"
            )
        if options.precision is Precision.AMP:
            raise OptionError(
                "with --precision amp each worker scales its gradients by another factor, of which "
                "the method ps knows nothing",
                "give --precision bf16 or fp32",
            )
        choose_devices(options.device, local)

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network, and serve or connect to the server."""
        local = setup.world.local_rank
        device = choose_devices(setup.options.device, local + 1)[local]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return cls(setup, device)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of the values over all processes, computed by the server."""
        return self._end.total(values.cpu())

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # nobody else gets what they wait for, so they are not waited for
            self._end.close(0)

    def close(self) -> None:
        """Leave the job; the server leaves after all others."""
        self._end.close(_PATIENCE_S)

    def _update(self) -> None:
        with self._notes.range("gradient exchange"):
            self._bucket.take_gradients()
            self._end.push(self._host)
        if isinstance(self._end, Server):
            with self._notes.range("optimizer"):
                self._end.update()
        with self._notes.range("weight exchange"):
            self._host.fill(self._end.pull())
            self._bucket.give_weights()


class HostVector:
    """A vector on a device, and its copy in host memory; on the CPU both are the same.

    Parameters
    ----------
    vector
        The vector.
    piece_bytes
        Approximate number of bytes per copied piece.
    """

    def __init__(self, vector: Tensor, piece_bytes: int) -> None:
        self._vector = vector
        self._enough = max(piece_bytes // vector.element_size(), 1)
        pinned = vector.is_cuda
        self.host = torch.empty_like(vector, device="cpu", pin_memory=True) if pinned else vector

    def pieces(self) -> Iterator[Tensor]:
        """Copy the vector to the host, and yield each piece as soon as it has arrived."""
        if not self._vector.is_cuda:
            yield self.host
            return
        begun = []
        both = (torch.split(one, self._enough) for one in (self.host, self._vector))
        for here, there in zip(*both, strict=True):
            here.copy_(there, non_blocking=True)
            begun.append((here, torch.cuda.current_stream(there.device).record_event()))
        for here, there_is in begun:
            there_is.synchronize()
            yield here

    def fill(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Receive values, copying each piece to the device while the next one arrives."""
        bytes_of_host, begun, end = _bytes(self.host), 0, 0
        for chunk in chunks:
            bytes_of_host[end : end + len(chunk)] = chunk
            end += len(chunk)
            piece = slice(begun, end // self.host.element_size())
            if piece.stop - begun >= self._enough or piece.stop == len(self.host):
                begun = piece.stop
                if self._vector.is_cuda:
                    self._vector[piece].copy_(self.host[piece], non_blocking=True)


class Server:
    """The weights in the server process, and the gRPC server for the workers of other processes.

    Parameters
    ----------
    world
        The processes. Those of other ranks get the server's address, on the loopback.
    weights
        Initial weights as a vector.
    passes
        Computation that updates the weights.
    """

    def __init__(self, world: World, weights: Tensor, passes: Passes) -> None:
        from workloads.methods._mailbox import Mailbox  # noqa: PLC0415

        self._size = world.size
        self._weights = nn.Parameter(weights.clone())
        self._passes = passes
        self._optimizer = passes.optimizer([self._weights])
        self._mailbox = Mailbox(world.size - 1)
        if world.make_store:
            self._store = world.make_store()
            self._store.set(_KEY, self._mailbox.address)
        self._mailbox.await_all(_PATIENCE_S)

    def push(self, gradients: HostVector) -> None:
        """Average the gradients of all workers; `gradients` are those of the server's own worker.

        They are added in order of ranks.
        """
        for _ in gradients.pieces():
            pass  # each is waited for
        self._weights.grad = self._add(gradients.host).div_(self._size)

    def update(self) -> None:
        """Update the weights with the averaged gradients."""
        self._passes.update(self._optimizer)

    def pull(self) -> Iterable[memoryview]:
        """Return the weights to the server's own worker, and send them to the others."""
        weights = _bytes(self._weights.detach())
        self._mailbox.publish(weights)
        return [weights]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes; `values` are those of this process."""
        summed = self._add(values.clone())
        self._mailbox.publish(_bytes(summed))
        return summed

    def close(self, patience_s: float) -> None:
        """Stop serving once all workers have left, or after `patience_s` seconds."""
        self._mailbox.close(patience_s)

    def _add(self, own: Tensor) -> Tensor:
        """Add the vectors that the other workers have sent to `own`, in order of ranks."""
        for data in self._mailbox.collect():
            own += _tensor(data, own)
        return own


class Worker:
    """A worker's connection to the server.

    Parameters
    ----------
    world
        The processes.
    exchanged
        Counters for the bytes pushed (`gather`) and pulled (`scatter`).
    """

    def __init__(self, world: World, exchanged: Exchanged) -> None:
        from workloads.methods._mailbox import Courier  # noqa: PLC0415

        if world.make_store is None:
            raise RuntimeError("a worker cannot find its server without a store")
        self._store = world.make_store()
        self._courier = Courier(self._store.get(_KEY).decode(), world.rank)
        self._exchanged = exchanged

    def push(self, gradients: HostVector) -> None:
        """Send gradients, each piece while the next ones are copied to the host."""
        self._courier.put_all(map(_bytes, gradients.pieces()))
        self._exchanged.gather += gradients.host.nbytes

    def pull(self) -> Iterator[bytes]:
        """Receive weights, once the server has updated them."""
        for chunk in self._courier.take():
            self._exchanged.scatter += len(chunk)
            yield chunk

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes; `values` are those of this process."""
        self._courier.put(_bytes(values))
        return _tensor(bytearray(b"".join(self._courier.take())), values)

    def close(self, patience_s: float) -> None:
        """Leave the server at once, without waiting for others."""
        del patience_s
        self._courier.close()


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.contiguous().numpy().data
    return data.cast("B")


def _tensor(data: bytearray, like: Tensor) -> Tensor:
    return torch.frombuffer(data, dtype=like.dtype).view_as(like)
