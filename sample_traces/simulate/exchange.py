"""How replicas exchange gradients and weights: peer copies to a root, or rings of NCCL.

Each way has its parts: `ready` is called by the thread that runs the backward pass once a layer's
gradients are launched, and the weight update is made of `phases`: in each, the main threads do one
after the other what it says for their replicas, and they wait for each other in between if they
`meet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .collectives import Collective
from .gpu import Op, Purpose
from .network import Kernel, Layer
from .parts import kernel_op, launch_copy, peer_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .data_parallel import Replica
    from .doing import Doing
    from .gpu import Stream
    from .host import Event, Thread
    from .world import World

    Phase = Callable[[Replica, int], Doing[None]]


def sgd(layer: Layer) -> Kernel:
    """Read weights, gradients and momentum, write weights and momentum."""
    return Kernel("sgd_momentum_update", 0, 0, 5 * layer.weight_bytes)


def _sum(layer: Layer, gpus: int) -> Kernel:
    """Read the gradients of all GPUs, write their sum."""
    return Kernel("gradient_sum", 0, 0, (gpus + 1) * layer.weight_bytes)


def _optimise(replica: Replica, layer: Layer, step: int) -> Doing[None]:
    op = kernel_op(replica.world, sgd(layer), 0, Purpose("WU", step, "update"))
    yield from replica.main.launch(op, replica.compute)


class Alone:
    """One GPU: there is nothing to exchange, as in MXNet with either method."""

    meet = False

    def __init__(self, keys: Sequence[Layer]) -> None:
        self._keys = keys

    def buffers(self, gpu: int) -> int:
        """Return the bytes of buffers that a GPU needs for the exchange."""
        del gpu
        return 0

    def ready(self, replica: Replica, thread: Thread, layer: Layer, step: int) -> Doing[None]:
        """Do nothing."""
        del replica, thread, layer, step
        yield from ()

    def phases(self) -> list[Phase]:
        """Return the parts of a weight update."""
        return [self._update]

    def _update(self, replica: Replica, step: int) -> Doing[None]:
        for layer in self._keys:
            yield from _optimise(replica, layer, step)


class PeerExchange:
    """Each key's gradients go to its root GPU, which adds them, updates and sends weights back.

    A key is a layer, or one of its arrays (`keys_of`). The root of all is GPU 0 (``star``), or the
    GPU with the fewest bytes so far, largest keys first (``spread``), as in MXNet's kvstore.
    """

    meet = True

    def __init__(self, world: World, keys: Sequence[Layer]) -> None:
        self._world, self._keys = world, keys
        self._gpus = range(world.job.gpus)
        self._roots = self._choose_roots()
        self._arrivals: dict[tuple[int, str, int], Event] = {}
        self._weights: dict[tuple[int, int], dict[object, Event]] = {}

    def _choose_roots(self) -> dict[str, int]:
        if self._world.job.pattern == "star":
            return {layer.name: 0 for layer in self._keys}
        load, roots = [0] * len(self._gpus), {}
        for layer in sorted(self._keys, key=lambda layer: -layer.weights):
            root = min(self._gpus, key=lambda gpu: load[gpu])
            roots[layer.name] = root
            load[root] += layer.weight_bytes
        return roots

    def buffers(self, gpu: int) -> int:
        """Return the bytes of buffers that a GPU needs: a copy of the others' gradients."""
        own = (layer.weight_bytes for layer in self._keys if self._roots[layer.name] == gpu)
        return (len(self._gpus) - 1) * sum(own)

    def ready(self, replica: Replica, thread: Thread, layer: Layer, step: int) -> Doing[None]:
        """Send gradients to their root."""
        root = self._roots[layer.name]
        if root == replica.gpu:
            return
        made = yield from thread.record(replica.compute)
        purpose = Purpose("WU", step, "gradients")
        arrived = yield from self._send(replica, thread, root, layer, purpose, made)
        self._arrivals[step, layer.name, replica.gpu] = arrived

    def _send(
        self, replica: Replica, thread: Thread, dst: int, layer: Layer, purpose: Purpose,
        after: Event,
    ) -> Doing[Event]:  # fmt: skip
        """Copy to another GPU once an event has come; return the event of its arrival."""
        for gpu, op in peer_ops(self._world, replica.gpu, dst, layer.weight_bytes, purpose):
            stream = replica.peers[gpu].comm[dst % len(replica.comm)]
            yield from thread.hold(stream, after)
            yield from launch_copy(thread, op, stream)
            after = yield from thread.record(stream)
        return after

    def phases(self) -> list[Phase]:
        """Return the parts of a weight update: at roots, and where weights arrive."""
        return [self._update_rooted, self._take_weights]

    def _update_rooted(self, replica: Replica, step: int) -> Doing[None]:
        for layer in self._keys:
            if self._roots[layer.name] == replica.gpu:
                yield from self._update_layer(replica, layer, step)

    def _take_weights(self, replica: Replica, step: int) -> Doing[None]:
        for event in self._weights.pop((step, replica.gpu), {}).values():
            yield from replica.main.hold(replica.compute, event)

    def _update_layer(self, replica: Replica, layer: Layer, step: int) -> Doing[None]:
        main = replica.main
        others = [gpu for gpu in self._gpus if gpu != replica.gpu]
        for gpu in others:
            arrived = self._arrivals.pop((step, layer.name, gpu))
            yield from main.hold(replica.compute, arrived)
        added = kernel_op(
            self._world, _sum(layer, len(self._gpus)), 0, Purpose("WU", step, "update")
        )
        yield from main.launch(added, replica.compute)
        yield from _optimise(replica, layer, step)
        updated = yield from main.record(replica.compute)
        for gpu in others:
            purpose = Purpose("WU", step, "weights")
            event = yield from self._send(replica, main, gpu, layer, purpose, updated)
            # A stream works in order: its last event stands for those before.
            last = event.op.stream if event.op else None
            self._weights.setdefault((step, gpu), {})[last] = event


class RingExchange:
    """Gradients go around rings in groups of layers: to all GPUs, or to GPU 0, which updates.

    Within one process it is as MXNet does it: the host waits for NCCL's stream after the reduction
    of each group and after its broadcast. With a process per GPU it is as PyTorch does it: streams
    wait for each other, and the host goes on.
    """

    meet = False

    def __init__(self, world: World, keys: Sequence[Layer]) -> None:
        self._world = world
        self._gpus = tuple(range(world.job.gpus))
        self._recent = world.job.processes == "per_gpu"
        self._groups = self._group(keys)
        self._last = {group[-1].name: number for number, group in enumerate(self._groups)}
        self._calls: dict[tuple[int, int, str, int], Collective] = {}

    def _group(self, keys: Sequence[Layer]) -> list[list[Layer]]:
        """Group layers in the order of the backward pass: by number, or by bytes."""
        p = self._world.parameters
        groups: list[list[Layer]] = [[]]
        for layer in keys:
            full = (
                sum(each.weight_bytes for each in groups[-1]) >= p.bucket_bytes
                if self._recent
                else sum(len(each.arrays) for each in groups[-1]) >= p.collective_keys
            )
            if full:
                groups.append([])
            groups[-1].append(layer)
        return groups

    def buffers(self, gpu: int) -> int:
        """Return the bytes of buffers that a GPU needs: one for the sums."""
        del gpu
        return sum(layer.weight_bytes for group in self._groups for layer in group)

    def ready(self, replica: Replica, thread: Thread, layer: Layer, step: int) -> Doing[None]:
        """Launch the exchange of a group once its last gradients are there."""
        number = self._last.get(layer.name)
        if number is not None:
            kind = "all_reduce" if self._world.job.pattern == "all_reduce" else "reduce"
            replica.exchanged[number] = yield from self._call(replica, thread, kind, number, step)

    def _call(
        self, replica: Replica, thread: Thread, kind: str, number: int, step: int
    ) -> Doing[Event]:
        """Launch a GPU's part of a group behind its compute stream; return the event of its end.

        With messages of arrays each has a collective of its own, else the group has one.
        """
        sizes = [layer.weight_bytes for layer in self._groups[number]]
        if self._world.job.messages == "layers":
            sizes = [sum(sizes)]
        comm = replica.comm[0]
        made = yield from thread.record(replica.compute)
        yield from thread.hold(comm, made)
        for place, size in enumerate(sizes):
            key = (step, number, kind, place)
            if key not in self._calls:
                self._calls[key] = Collective(self._world, kind, size, self._gpus, root=0)
            op = self._calls[key].part(Purpose("WU", step, "collective"), recent=self._recent)
            yield from self._launch(thread, op, kind, comm, within=place > 0)
        return (yield from thread.record(comm))

    def _launch(
        self, thread: Thread, op: Op, kind: str, comm: Stream, *, within: bool
    ) -> Doing[None]:
        took = self._world.parameters.collective_call_ns
        if not self._recent:
            yield from thread.launch(op, comm, ns=took, within=within)
            return
        names = {
            "all_reduce": "ncclAllReduce",
            "reduce": "ncclReduce",
            "broadcast": "ncclBroadcast",
        }
        with (yield from thread.range(names[kind], "NCCL")):
            yield from thread.launch(op, comm, "cudaLaunchKernelExC_v11060", took)

    def phases(self) -> list[Phase]:
        """Return the parts of a weight update."""
        return [self._update]

    def _update(self, replica: Replica, step: int) -> Doing[None]:
        """Update the weights here, or on GPU 0 for all."""
        for number, group in enumerate(self._groups):
            yield from self._await(replica, number)
            if self._world.job.pattern == "all_reduce" or replica.gpu == 0:
                for layer in group:
                    yield from _optimise(replica, layer, step)
            if self._world.job.pattern == "reduce_broadcast":
                sent = yield from self._call(replica, replica.main, "broadcast", number, step)
                replica.exchanged[number] = sent
                yield from self._await(replica, number)

    def _await(self, replica: Replica, number: int) -> Doing[None]:
        """Let what follows wait for a group's collective."""
        yield from replica.main.hold(replica.compute, replica.exchanged[number])
        if not self._recent:
            yield from replica.main.synchronise(replica.comm[:1], "cudaStreamSynchronize_v3020")


Exchange = Alone | PeerExchange | RingExchange


def keys_of(world: World, layers: Iterable[Layer]) -> list[Layer]:
    """Return what is exchanged of some layers, in their order: each, or each of its arrays."""
    whole = [layer for layer in layers if layer.weights]
    if world.job.messages == "layers":
        return whole
    return [part for layer in whole for part in layer.parts]


def choose(world: World, keys: Sequence[Layer]) -> Exchange:
    """Return the exchange that a job asks for; `keys` are in the order of the backward pass."""
    if world.job.gpus == 1:
        return Alone(keys)
    return (PeerExchange if world.job.method == "p2p" else RingExchange)(world, keys)


def weight_buffers(bytes_of_weights: int) -> list[tuple[str, int]]:
    """Return what a replica allocates for its weights, whatever the exchange."""
    return [(name, bytes_of_weights) for name in ("weights", "gradients", "momentum")]
