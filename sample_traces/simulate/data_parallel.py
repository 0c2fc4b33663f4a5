"""Data-parallel training: each GPU has a replica of the network, a main and a backward thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import exchange
from .gpu import Purpose
from .host import Barrier
from .network import FLOAT, Kernel, load_network
from .parts import (
    Engine,
    Loader,
    OrderedLoader,
    fetch,
    input_op,
    kernel_op,
    launch_copy,
    release,
    run_forward,
    synchronise_device,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import simpy

    from .doing import Doing
    from .host import Event, Gate, Thread
    from .network import Layer
    from .world import World

ACCURACY = Kernel("accuracy", 0, 3 * 4_000)


class Replica:
    """The network on one GPU, and what its threads do for it.

    Parameters
    ----------
    main
        The thread that drives it, its process' main thread or one of its own.
    gpu
        Where it runs.
    exchanger
        How it exchanges gradients with the others.
    peers
        All replicas by GPU; this one adds itself.
    """

    def __init__(
        self, main: Thread, gpu: int, exchanger: exchange.Exchange, peers: dict[int, Replica]
    ) -> None:
        self.main, self.gpu, self.exchanger, self.peers = main, gpu, exchanger, peers
        self.process, self.world = main.process, main.world
        self.job = self.world.job
        self.network = load_network(self.job.network)
        self._engine = Engine(self.world, self.process.thread(f"pt_autograd_{gpu}"))
        kind = OrderedLoader if self.job.loader == "ordered" else Loader
        self._loader = kind(self.world, str(gpu), self.job.batch, self.network.input_elements)
        self.compute = self.process.stream(gpu)
        self.comm = [self.process.stream(gpu) for _ in range(self.world.parameters.copy_streams)]
        self.exchanged: dict[int, Event] = {}
        self._held: list[int] = []
        peers[gpu] = self

    def allocate(self) -> Doing[None]:
        """Allocate what the replica needs on its GPU."""
        network, p = self.network, self.world.parameters
        sizes = [
            *exchange.weight_buffers(network.weight_bytes),
            ("exchange", self.exchanger.buffers(self.gpu)),
            ("workspace", p.memory_workspace),
            ("input", FLOAT * network.input_elements * self.job.batch),
            # In training, outputs and their gradients are held from layer to layer.
            ("activations", 2 * network.activation_bytes * self.job.batch),
        ]
        for what, size in sizes:
            if size:
                yield from self.main.allocate(self.gpu, size, what)

    def load(self, purpose: Purpose) -> Doing[None]:
        """Copy a batch and its labels to the GPU."""
        yield from self._loader.next(self.main)
        size = FLOAT * self.network.input_elements * self.job.batch
        for each in (size, 8 * self.job.batch):
            op = input_op(self.world, self.gpu, each, purpose)
            yield from launch_copy(self.main, op, self.compute)

    def forward(self, purpose: Purpose) -> Doing[None]:
        """Launch the forward pass."""
        layers = self.network.layers
        yield from run_forward(
            self.main, self.compute, layers, self.job.batch, purpose, self._held
        )  # fmt: skip

    def begin_backward(self, step: int) -> Gate:
        """Let the backward thread launch its pass."""
        return self._engine.begin(self.main, lambda thread: self._backward(thread, step))

    def _backward(self, thread: Thread, step: int) -> Doing[None]:
        purpose = Purpose("BP", step)
        for layer in reversed(self.network.layers):
            for kernel in layer.backward:
                op = kernel_op(self.world, kernel, self.job.batch, purpose)
                yield from thread.launch(op, self.compute)
            if self.job.overlap:
                yield from self._exchange(thread, [layer], step)

    def exchange_late(self, step: int) -> Doing[None]:
        """Begin the exchange now, where it did not begin during the backward pass."""
        if not self.job.overlap:
            yield from self._exchange(self.main, self.network.layers[::-1], step)

    def _exchange(self, thread: Thread, layers: Sequence[Layer], step: int) -> Doing[None]:
        for key in exchange.keys_of(self.world, layers):
            yield from self.exchanger.ready(self, thread, key, step)

    def evaluate(self) -> Doing[None]:
        """Count right answers on a batch that was not trained on."""
        yield from self.load(Purpose("ME", None, "input"))
        yield from self.forward(Purpose("ME", None))
        op = kernel_op(self.world, ACCURACY, self.job.batch, Purpose("ME", None))
        yield from self.main.launch(op, self.compute)
        yield from fetch(self.main, self.compute, Purpose("ME", None, "result"))
        yield from self.release()

    def release(self) -> Doing[None]:
        """Release what the forward pass allocated."""
        yield from release(self.main, self.gpu, self._held)

    def synchronise(self) -> Doing[None]:
        """Wait until the GPU has done everything."""
        yield from synchronise_device(self.main, self.process, self.gpu)


class Driver:
    """The training loop of a thread that drives one replica or more.

    Parameters
    ----------
    thread, replicas
        Who drives whom.
    barrier
        Where all drivers meet between the phases of an exchange that needs it.
    """

    def __init__(self, thread: Thread, replicas: Sequence[Replica], barrier: Barrier) -> None:
        self._thread, self._replicas, self._barrier = thread, replicas, barrier
        self._exchanger = replicas[0].exchanger
        self._job = thread.world.job

    def run(self) -> Doing[None]:
        """Train for some steps, then evaluate."""
        thread, p = self._thread, self._thread.world.parameters
        yield thread.env.timeout(p.start_ns)
        for replica in self._replicas:
            yield from replica.allocate()
        for step in range(self._job.steps):
            thread.factor = p.first_step_factor if step == 0 else 1.0
            with (yield from thread.range(f"step {step}")):
                yield from self._step(step)
            yield from thread.spend(p.between_steps_ns, "between_steps")
        yield from self._synchronise()
        if self._job.evaluate:
            with (yield from thread.range("ME")):
                for _ in range(self._job.evaluate):
                    for replica in self._replicas:
                        yield from replica.evaluate()
        yield from self._synchronise()

    def _step(self, step: int) -> Doing[None]:
        thread = self._thread
        with (yield from thread.range("IO")):
            for replica in self._replicas:
                yield from replica.load(Purpose("IO", step, "input"))
        with (yield from thread.range("FP")):
            for replica in self._replicas:
                yield from replica.forward(Purpose("FP", step))
            yield from self._after_stage()
        with (yield from thread.range("BP")):
            for gate in [replica.begin_backward(step) for replica in self._replicas]:
                yield from thread.wait(gate)
            yield from self._after_stage()
        with (yield from thread.range("WU")):
            yield from self._update(step)
            yield from self._after_stage()
        for replica in self._replicas:
            yield from replica.release()
            if self._job.synchronise == "loss":
                yield from fetch(thread, replica.compute, Purpose("OTHER", step, "result"))

    def _update(self, step: int) -> Doing[None]:
        for replica in self._replicas:
            yield from replica.exchange_late(step)
        for phase in self._exchanger.phases():
            if self._exchanger.meet:
                yield from self._barrier.pass_by(self._thread)
            for replica in self._replicas:
                yield from phase(replica, step)

    def _after_stage(self) -> Doing[None]:
        if self._job.synchronise == "stage":
            yield from self._synchronise()

    def _synchronise(self) -> Doing[None]:
        for replica in self._replicas:
            yield from replica.synchronise()


def start(world: World) -> list[simpy.Process]:
    """Start the job's replicas; return what is to be waited for."""
    job = world.job
    keys = exchange.keys_of(world, reversed(load_network(job.network).layers))
    exchanger, peers = exchange.choose(world, keys), dict[int, Replica]()
    shared = world.process()
    driven: dict[Thread, list[Replica]] = {}
    main = shared.thread("python3")
    for gpu in range(job.gpus):
        if gpu and job.processes == "per_gpu":
            main = world.process().thread("python3")
        elif gpu and job.drivers == "per_gpu":
            main = shared.thread(f"replica {gpu}")
        driven.setdefault(main, []).append(Replica(main, gpu, exchanger, peers))
    barrier = Barrier(world.env, len(driven))
    drivers = [Driver(thread, replicas, barrier) for thread, replicas in driven.items()]
    return [world.env.process(driver.run()) for driver in drivers]
