"""A pipeline: each GPU has some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import sgd, weight_buffers
from .gpu import Purpose
from .network import FLOAT, load_network
from .parameters import kernel_ns
from .parts import (
    Engine,
    Loader,
    fetch,
    input_op,
    kernel_op,
    launch_copy,
    release,
    run_forward,
    synchronise_device,
)
from .transport import NcclTransport, PeerTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    import simpy

    from .doing import Doing
    from .host import Process, Thread
    from .network import Layer
    from .parameters import Parameters
    from .transport import Parcel, Pass, Transport
    from .world import World


def order_passes(schedule: str, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """Return the passes of a stage in their order.

    GPipe goes forward with all, then backward with all. 1F1B goes forward as often as stages
    follow, then forward and backward in turn.
    """
    if schedule == "gpipe":
        return [(way, number) for way in "FB" for number in range(micro_batches)]
    warm_up = min(stages - 1 - stage, micro_batches)
    passes: list[Pass] = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        if warm_up + number < micro_batches:
            passes.append(("F", warm_up + number))
        passes.append(("B", number))
    return passes


def cut(
    layers: Sequence[Layer], stages: int, images: int, parameters: Parameters
) -> list[list[Layer]]:
    """Cut layers into consecutive stages of about equal time, each of one layer at least."""
    costs = [
        sum(
            kernel_ns(*kernel.work(images), parameters) for kernel in layer.forward + layer.backward
        )
        for layer in layers
    ]
    total, done = sum(costs), 0
    made: list[list[Layer]] = [[]]
    for number, (layer, cost) in enumerate(zip(layers, costs, strict=True)):
        left = len(layers) - number
        is_full = done + cost / 2 > total * len(made) / stages and len(made) < stages
        if made[-1] and (is_full or left <= stages - len(made)):
            made.append([])
        made[-1].append(layer)
        done += cost
    return made


class Stage:
    """The layers of one GPU, and the threads that drive them.

    Parameters
    ----------
    process, number
        Where it runs: stage N is on GPU N.
    layers, before
        What it computes, and the elements per image that the stage before hands on.
    transport
        How micro-batches come and go.
    """

    def __init__(
        self, process: Process, number: int, layers: Sequence[Layer], before: int,
        transport: Transport,
    ) -> None:  # fmt: skip
        self.process, self.gpu, self.layers = process, number, layers
        self.world = process.world
        self.job = self.world.job
        self._is_last = number == self.job.gpus - 1
        self._images = self.job.batch // self.job.micro_batches
        self._before, self._transport = before, transport
        self.main = process.thread(f"stage {number}" if process.threads else "python3")
        self._engine = Engine(self.world, process.thread(f"pt_autograd_{number}"))
        self.compute = process.stream(number)
        transport.connect(process, number)
        elements = load_network(self.job.network).input_elements
        self._input_bytes = FLOAT * elements * self._images
        self._loader = (
            None if number else Loader(self.world, "0", self.job.batch, elements)
        )  # fmt: skip
        self._held: list[int] = []

    def run(self) -> Doing[None]:
        """Train for some steps."""
        main, p = self.main, self.world.parameters
        yield self.world.env.timeout(p.start_ns)
        weights = sum(layer.weight_bytes for layer in self.layers)
        kept = 2 * FLOAT * self.job.batch * sum(layer.kept for layer in self.layers)
        for what, size in (*weight_buffers(weights), ("activations", kept)):
            if size:
                yield from main.allocate(self.gpu, size, what)
        for step in range(self.job.steps):
            main.factor = p.first_step_factor if step == 0 else 1.0
            with (yield from main.range(f"step {step}")):
                yield from self._step(step)
            yield from main.spend(p.between_steps_ns, "between_steps")
        yield from synchronise_device(main, self.process, self.gpu)

    def _step(self, step: int) -> Doing[None]:
        main, job = self.main, self.job
        if self._loader is not None:
            with (yield from main.range("IO")):
                yield from self._load(self._loader, Purpose("IO", step, "input"))
        for each in order_passes(job.schedule, self.gpu, job.gpus, job.micro_batches):
            name = {"F": "FP", "B": "BP"}[each[0]]
            with (yield from main.range(f"{name} micro-batch {each[1]}")):
                yield from (self._forward if name == "FP" else self._backward)((step, each))
        with (yield from main.range("WU")):
            for layer in reversed(self.layers):
                if layer.weights:
                    op = kernel_op(self.world, sgd(layer), 0, Purpose("WU", step, "update"))
                    yield from main.launch(op, self.compute)
        yield from release(main, self.gpu, self._held)
        if self._is_last and job.synchronise == "loss":
            yield from fetch(main, self.compute, Purpose("OTHER", step, "result"))

    def _load(self, loader: Loader, purpose: Purpose) -> Doing[None]:
        yield from loader.next(self.main)
        for _ in range(self.job.micro_batches):
            op = input_op(self.world, self.gpu, self._input_bytes, purpose)
            yield from launch_copy(self.main, op, self.compute)

    def _bytes(self, src: int) -> int:
        """Return the bytes of a micro-batch between this stage and the one after or before."""
        elements = self._before if src < self.gpu else self.layers[-1].outputs
        return FLOAT * elements * self._images

    def _receive(self, src: int, parcel: Parcel) -> Doing[None]:
        """Let the compute stream wait for what a neighbour hands on."""
        event = yield from self._transport.receive(
            self.main, (src, self.gpu), parcel, self._bytes(src)
        )
        yield from self.main.hold(self.compute, event)

    def _send(self, thread: Thread, dst: int, parcel: Parcel) -> Doing[None]:
        made = yield from thread.record(self.compute)
        yield from self._transport.send(
            thread, (self.gpu, dst), parcel, self._bytes(dst), made
        )  # fmt: skip

    def _forward(self, parcel: Parcel) -> Doing[None]:
        if self.gpu:
            yield from self._receive(self.gpu - 1, parcel)
        yield from run_forward(
            self.main, self.compute, self.layers, self._images, Purpose("FP", parcel[0]), self._held
        )
        if not self._is_last:
            yield from self._send(self.main, self.gpu + 1, parcel)

    def _backward(self, parcel: Parcel) -> Doing[None]:
        if not self._is_last:
            yield from self._receive(self.gpu + 1, parcel)
        yield from self._engine.run(self.main, lambda thread: self._go_back(thread, parcel))
        if self.gpu:
            yield from self._send(self.main, self.gpu - 1, parcel)

    def _go_back(self, thread: Thread, parcel: Parcel) -> Doing[None]:
        for layer in reversed(self.layers):
            for kernel in layer.backward:
                op = kernel_op(self.world, kernel, self._images, Purpose("BP", parcel[0]))
                yield from thread.launch(op, self.compute)


def start(world: World) -> list[simpy.Process]:
    """Start the job's stages; return what is to be waited for."""
    job = world.job
    parts = cut(
        load_network(job.network).layers, job.gpus, job.batch // job.micro_batches, world.parameters
    )
    shared = world.process()
    transport = (PeerTransport if job.processes == "one" else NcclTransport)(world)
    stages, before = [], 0
    for number, layers in enumerate(parts):
        process = shared if number == 0 or job.processes == "one" else world.process()
        stages.append(Stage(process, number, layers, before, transport))
        before = layers[-1].outputs
    return [world.env.process(stage.run()) for stage in stages]
