"""A pipeline: each GPU has some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import sgd, weight_buffers
from .gpu import Purpose
from .host import Gate
from .network import FLOAT, load_network
from .parameters import kernel_ns
from .parts import (
    Engine,
    Loader,
    fetch,
    input_op,
    kernel_op,
    launch_copy,
    peer_ops,
    release,
    run_forward,
    synchronise_device,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import simpy

    from .gpu import Stream
    from .host import Event, Process, Thread
    from .network import Layer
    from .parameters import Parameters
    from .world import World

Pass = tuple[str, int]
"""A pass of a micro-batch: ``F`` or ``B``, and its number."""


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
    world, process, number
        Where it runs: stage N is on GPU N.
    layers
        What it computes.
    others
        All stages; this one adds itself.
    """

    def __init__(
        self, world: World, process: Process, number: int, layers: Sequence[Layer],
        others: list[Stage],
    ) -> None:  # fmt: skip
        self.world, self.process, self.gpu, self.layers = world, process, number, layers
        self.job, self._others = world.job, others
        self._images = self.job.batch // self.job.micro_batches
        self.main = process.thread("python3" if number == 0 else f"stage {number}")
        self.engine = Engine(world, process.thread(f"pt_autograd_{number}"))
        self.compute = process.stream(number)
        self._comm = {way: process.stream(number) for way in "FB"}
        self._mail: dict[tuple[int, Pass], Gate] = {}
        elements = load_network(self.job.network).input_elements
        self._input_bytes = FLOAT * elements * self._images
        self._loader = Loader(world, "0", self.job.batch, elements) if number == 0 else None
        self._held: list[int] = []
        others.append(self)

    def run(self) -> Iterator[simpy.Event]:
        """Train for some steps."""
        main, p = self.main, self.world.parameters
        yield self.world.env.timeout(p.start_ns)
        weights = sum(layer.weight_bytes for layer in self.layers)
        kept = 2 * FLOAT * self.job.batch * sum(layer.outputs for layer in self.layers)
        for what, size in (*weight_buffers(weights), ("activations", kept)):
            if size:
                yield from main.allocate(self.gpu, size, what)
        for step in range(self.job.steps):
            main.factor = p.first_step_factor if step == 0 else 1.0
            with (yield from main.range(f"step {step}")):
                yield from self._step(step)
            yield from main.spend(p.between_steps_ns, "between_steps")
        yield from synchronise_device(main, self.process, self.gpu)

    def _step(self, step: int) -> Iterator[simpy.Event]:
        main, last = self.main, self.gpu == len(self._others) - 1
        if self._loader is not None:
            with (yield from main.range("IO")):
                yield from self._load(Purpose("IO", step, "input"))
        for each in order_passes(
            self.job.schedule, self.gpu, len(self._others), self.job.micro_batches
        ):
            name = {"F": "FP", "B": "BP"}[each[0]]
            with (yield from main.range(f"{name} micro-batch {each[1]}")):
                yield from self._pass(step, each)
        with (yield from main.range("WU")):
            for layer in reversed(self.layers):
                if layer.weights:
                    op = kernel_op(self.world, sgd(layer), 0, Purpose("WU", step, "update"))
                    yield from main.launch(op, self.compute)
        yield from release(main, self.gpu, self._held)
        if last and self.job.synchronise == "loss":
            yield from fetch(main, self.compute, Purpose("OTHER", step, "result"))

    def _load(self, purpose: Purpose) -> Iterator[simpy.Event]:
        if self._loader is not None:
            yield from self._loader.next(self.main)
        for _ in range(self.job.micro_batches):
            op = input_op(self.world, self.gpu, self._input_bytes, purpose)
            yield from launch_copy(self.main, op, self.compute)

    def _letter(self, step: int, each: Pass) -> Gate:
        """Return the gate by which the event of a micro-batch's arrival is handed over."""
        return self._mail.setdefault((step, each), Gate(self.world.env))

    def _pass(self, step: int, each: Pass) -> Iterator[simpy.Event]:
        """Take a micro-batch from the neighbour before, work on it, hand it to the one after."""
        way = each[0]
        before, after = (self.gpu - 1, self.gpu + 1) if way == "F" else (self.gpu + 1, self.gpu - 1)
        if 0 <= before < len(self._others):
            gate = self._letter(step, each)
            event = yield from self._receive(gate)
            yield from self.main.hold(self.compute, event)
            del self._mail[step, each]
        if way == "F":
            purpose = Purpose("FP", step)
            yield from run_forward(
                self.main, self.compute, self.layers, self._images, purpose, self._held
            )
            yield from self._send(self.main, step, each, after)
        else:
            yield from self.engine.run(
                self.main, lambda thread: self._backward(thread, step, each, after)
            )

    def _receive(self, gate: Gate) -> Iterator[simpy.Event]:
        if gate.event.triggered:
            return gate.event.value
        return (yield from self.main.wait(gate, "pipeline"))

    def _backward(self, thread: Thread, step: int, each: Pass, to: int) -> Iterator[simpy.Event]:
        purpose = Purpose("BP", step)
        for layer in reversed(self.layers):
            for kernel in layer.backward:
                op = kernel_op(self.world, kernel, self._images, purpose)
                yield from thread.launch(op, self.compute)
        yield from self._send(thread, step, each, to)

    def _send(self, thread: Thread, step: int, each: Pass, to: int) -> Iterator[simpy.Event]:
        """Copy what a neighbour needs to go on, and tell its thread."""
        if not 0 <= to < len(self._others):
            return
        edge = self.layers[-1] if to > self.gpu else self._others[to].layers[-1]
        purpose = Purpose("FP" if each[0] == "F" else "BP", step, "activations")
        event: Event = yield from thread.record(self.compute)
        size = FLOAT * edge.outputs * self._images
        for gpu, op in peer_ops(self.world, self.gpu, to, size, purpose):
            stream = self._others[gpu].comm(each[0])
            yield from thread.hold(stream, event)
            yield from launch_copy(thread, op, stream)
            event = yield from thread.record(stream)
        self._others[to].deliver(step, each, event, thread)

    def comm(self, way: str) -> Stream:
        """Return the stream for copies in a direction."""
        return self._comm[way]

    def deliver(self, step: int, each: Pass, event: Event, sender: Thread) -> None:
        """Hand over the event of a micro-batch's arrival."""
        self._letter(step, each).open(by=sender, value=event)


def start(world: World) -> list[simpy.Process]:
    """Start the job's stages; return what is to be waited for."""
    job = world.job
    layers = load_network(job.network).layers
    stages: list[Stage] = []
    process = world.process()
    images = job.batch // job.micro_batches
    for number, own in enumerate(cut(layers, job.gpus, images, world.parameters)):
        Stage(world, process, number, own, stages)
    return [world.env.process(stage.run()) for stage in stages]
