"""What the training programs share: their ops, the data loader, the backward thread, evaluation."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import simpy

from .gpu import DTOH, HTOD, PTOP, Lasting, Moving, Op, Purpose
from .host import Gate
from .network import FLOAT
from .parameters import kernel_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .doing import Doing
    from .gpu import Stream
    from .host import Process, Thread
    from .network import Kernel, Layer
    from .world import World

KERNEL = "void simulated::{}_kernel<float>(float*, float const*, int)"


def kernel_op(world: World, kernel: Kernel, images: int, purpose: Purpose) -> Op:
    """Return a kernel for a batch."""
    factors = world.job.kernel_factors
    factor = factors.get(kernel.name, 1.0) * factors.get(purpose.stage, 1.0)
    duration = round(kernel_ns(*kernel.work(images), world.parameters) * factor)
    return Op(KERNEL.format(kernel.name), purpose, Lasting(duration))


def input_op(world: World, gpu: int, size: int, purpose: Purpose) -> Op:
    """Return the copy of a batch to a GPU."""
    route = world.machine.host_route(world.machine.socket(gpu), f"GPU{gpu}")
    pageable = world.job.pageable
    return Op("[CUDA memcpy HtoD]", purpose, Moving(pageable), "MEMCPY", size, HTOD,
              pageable=pageable, route=route)  # fmt: skip


def result_op(world: World, gpu: int, purpose: Purpose) -> Op:
    """Return the copy of a number to the host."""
    route = world.machine.host_route(gpu, world.machine.socket(gpu))
    return Op("[CUDA memcpy DtoH]", purpose, Moving(), "MEMCPY", FLOAT, DTOH, route=route)


def peer_ops(world: World, src: int, dst: int, size: int, purpose: Purpose) -> list[tuple[int, Op]]:
    """Return the copies that bring bytes from a GPU to another, each with the GPU that makes it."""
    machine, how = world.machine, world.job.unlinked
    linked = bool(machine.bricks(src, dst))
    relay = machine.relay(src, dst)
    number = world.next_transfer()
    if how == "staged" and not linked:
        cpu = machine.socket(src)
        routes = (machine.host_route(src, cpu), machine.host_route(cpu, f"GPU{dst}"))
        kinds = ((src, DTOH, "DtoH"), (dst, HTOD, "HtoD"))
        ops = [
            (gpu, Op(f"[CUDA memcpy {name}]", purpose, Moving(), "MEMCPY", size, kind, route=route))
            for (gpu, kind, name), route in zip(kinds, routes, strict=True)
        ]
    else:
        hops = [(src, dst)]
        if how == "two_hop" and not linked and relay is not None:
            hops = [(src, relay), (relay, dst)]
        ops = [
            (a, Op("[CUDA memcpy PtoP]", purpose, Moving(), "MEMCPY", size, PTOP, (a, b),
                   route=machine.peer_route(a, b)))
            for a, b in hops
        ]  # fmt: skip
    for _, op in ops:
        op.transfer = number
    return ops


_CALLS = {
    HTOD: "cudaMemcpyAsync_v3020",
    DTOH: "cudaMemcpyAsync_v3020",
    PTOP: "cudaMemcpyPeerAsync_v4000",
}


def launch_copy(thread: Thread, op: Op, stream: Stream) -> Doing[None]:
    """Launch a copy by the call that its kind has."""
    yield from thread.launch(op, stream, _CALLS[op.copy_kind])


class Loader:
    """Workers that prepare batches ahead of the training thread, up to a limit."""

    def __init__(self, world: World, name: str, images: int, elements: int) -> None:
        p = world.parameters
        self._env = world.env
        self._batches: simpy.Store = simpy.Store(world.env, p.loader_workers * p.loader_prefetch)
        taken = images * elements * p.decode_ns_per_element * world.job.loader_factor
        for worker in range(p.loader_workers):
            rng = Random(f"{world.job.seed} loader {name} {worker}")
            world.env.process(self._work(taken, p.host_jitter, rng))

    def _work(self, taken: float, jitter: float, rng: Random) -> Doing[None]:
        while True:
            yield self._env.timeout(round(taken * (1 + jitter * (2 * rng.random() - 1))))
            yield self._batches.put(None)

    def next(self, thread: Thread) -> Doing[None]:
        """Take a batch; the thread sleeps if none is ready."""
        if self._batches.items:
            yield self._batches.get()
            yield from thread.spend(4_000)
            return
        gate = Gate(self._env)
        gate.event = self._batches.get()
        yield from thread.wait(gate, "loader")


class OrderedLoader:
    """Workers as PyTorch's: each makes every n-th batch, and batches are taken in their order.

    They start when the first batch is asked for, each with some batches to make; whenever one is
    taken, the worker that made it is told to make another. Workers that work at once slow each
    other by `loader_contention`.
    """

    def __init__(self, world: World, name: str, images: int, elements: int) -> None:
        self._world, self._name, self._p = world, name, world.parameters
        self._taken = images * elements * self._p.decode_ns_per_element * world.job.loader_factor
        self._ready: list[Gate] = []
        self._told: list[simpy.Store] = []
        self._next = self._working = 0

    def next(self, thread: Thread) -> Doing[None]:
        """Take a batch; the thread sleeps until it is ready."""
        if not self._told:
            yield from self._start(thread)
        gate = self._ready[self._next]
        self._next += 1
        if gate.event.triggered:
            yield from thread.spend(4_000)
        else:
            yield from thread.wait(gate, "loader")
        self._tell()

    def _start(self, thread: Thread) -> Doing[None]:
        for worker in range(self._p.loader_workers):
            yield from thread.fork(self._p.loader_start_ns)
            self._told.append(simpy.Store(self._world.env))
            self._world.env.process(self._work(worker))
        for _ in range(self._p.loader_workers * self._p.loader_prefetch):
            self._tell()

    def _tell(self) -> None:
        gate = Gate(self._world.env)
        self._told[len(self._ready) % len(self._told)].put(gate)
        self._ready.append(gate)

    def _work(self, worker: int) -> Doing[None]:
        env, p = self._world.env, self._p
        rng = Random(f"{self._world.job.seed} loader {self._name} {worker}")
        while True:
            gate: Any = yield self._told[worker].get()
            self._working += 1
            slower = 1 + p.loader_contention * (self._working - 1)
            spread = 1 + p.loader_jitter * (2 * rng.random() - 1)
            yield env.timeout(round(self._taken * slower * spread))
            self._working -= 1
            gate.open(by=None)


class Engine:
    """A thread that runs backward passes for another, which waits meanwhile."""

    def __init__(self, world: World, thread: Thread) -> None:
        self.thread = thread
        self._env = world.env
        self._bell = Gate(world.env)
        world.env.process(self._serve())

    def begin(self, caller: Thread, work: Callable[[Thread], Doing[None]]) -> Gate:
        """Hand work over; the gate opens when all of it is launched."""
        finished = Gate(self._env)
        self.thread.factor = caller.factor
        self._bell.open(by=caller, value=(work, finished))
        return finished

    def run(self, caller: Thread, work: Callable[[Thread], Doing[None]]) -> Doing[None]:
        """Hand work over, and wait until it is launched."""
        yield from caller.wait(self.begin(caller, work))

    def _serve(self) -> Doing[None]:
        while True:
            work, finished = yield from self.thread.wait(self._bell)
            self._bell = Gate(self._env)
            yield from work(self.thread)
            finished.open(by=self.thread)


def run_forward(
    thread: Thread, stream: Stream, layers: Iterable[Layer], images: int, purpose: Purpose,
    held: list[int],
) -> Doing[None]:  # fmt: skip
    """Launch the forward pass, with what the job does in each layer beside.

    The addresses of what it allocates are added to `held`, for `release`.
    """
    world, job = thread.world, thread.world.job
    for layer in layers:
        with (yield from thread.range(layer.name, "layer")):
            if job.allocate:
                size = max(512, FLOAT * layer.outputs * images)
                held.append((yield from thread.allocate(stream.device, size, layer.name)))
            for kernel in layer.forward:
                yield from thread.launch(kernel_op(world, kernel, images, purpose), stream)
            if job.synchronise == "layer":
                yield from fetch(thread, stream, Purpose(purpose.stage, purpose.step, "result"))


def release(thread: Thread, device: int, held: list[int]) -> Doing[None]:
    """Release what `run_forward` allocated."""
    while held:
        yield from thread.free(device, held.pop(0))


def fetch(thread: Thread, stream: Stream, purpose: Purpose) -> Doing[None]:
    """Copy a number to the host and wait for it, as ``.item()`` does."""
    yield from launch_copy(thread, result_op(thread.world, stream.device, purpose), stream)
    yield from thread.synchronise([stream], "cudaStreamSynchronize_v3020")


def synchronise_device(thread: Thread, process: Process, device: int) -> Doing[None]:
    """Wait for everything that the process launched on a GPU."""
    yield from thread.synchronise(process.streams[device], "cudaDeviceSynchronize_v3020")
