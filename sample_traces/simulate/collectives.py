"""NCCL's collectives as rings over the links.

A collective meets on all GPUs: each part starts when its stream lets it, all end together. Once the
last has joined, starting up takes a time, each hop of a ring adds its latency, and the bytes cross
all rings at once, an equal share on each.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement, pairwise, permutations
from typing import TYPE_CHECKING

from .gpu import Op, Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .doing import Doing
    from .machine import Machine, Route
    from .world import World

Ring = tuple[int, ...]


@cache
def find_rings(machine: Machine, gpus: tuple[int, ...]) -> tuple[Ring, ...]:
    """Return as many rings through all GPUs as NVLinks carry at once, both directions of each.

    A ring takes a brick of every NVLink that it crosses; run both ways it takes both directions of
    those bricks. Without an NVLink ring there is one over the host.
    """
    if len(gpus) == 1:
        return ()
    first, *others = gpus
    cycles = [
        (first, *order)
        for order in permutations(others)
        if order[0] <= order[-1] and all(machine.bricks(a, b) for a, b in _hops((first, *order)))
    ]
    if len(gpus) == 2:  # noqa: PLR2004 - there and back over the same bricks
        return (gpus,) * (machine.bricks(*gpus) or 1)
    most = min(sum(machine.bricks(a, b) for b in gpus if b != a) for a in gpus) // 2
    for count in range(most, 0, -1):
        for chosen in combinations_with_replacement(cycles, count):
            if _fits(machine, chosen):
                return tuple(ring for each in chosen for ring in (each, each[::-1]))
    return (gpus,)


def _hops(ring: Ring) -> list[tuple[int, int]]:
    return list(pairwise((*ring, ring[0])))


def _fits(machine: Machine, rings: tuple[Ring, ...]) -> bool:
    used: dict[frozenset[int], int] = {}
    for ring in rings:
        for a, b in _hops(ring):
            used[frozenset((a, b))] = used.get(frozenset((a, b)), 0) + 1
    return all(machine.bricks(*pair) >= count for pair, count in used.items())


def ring_volume(kind: str, ring: Ring, root: int, size: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes that cross each hop of a ring, and those hops.

    An all-reduce sends ``2 (n - 1) / n`` of the bytes over every hop; a broadcast all of them over
    all hops but the one back into its root; a reduction over all but the one out of it.
    """
    hops, n = _hops(ring), len(ring)
    if kind == "all_reduce":
        return 2 * (n - 1) * size // n, hops
    if kind == "broadcast":
        return size, [hop for hop in hops if hop[1] != root]
    return size, [hop for hop in hops if hop[0] != root]


_KERNELS = {
    "all_reduce": ("ncclAllReduceRingLLKernel_sum_f32", "AllReduce_Sum_f32_RING_LL"),
    "reduce": ("ncclReduceRingLLKernel_sum_f32", "Reduce_Sum_f32_RING_LL"),
    "broadcast": ("ncclBroadcastRingLLKernel_copy_i8", "Broadcast_RING_LL"),
    "send_recv": ("ncclSendRecvKernel_copy_i8", "SendRecv"),
}


def kernel_name(kind: str, *, recent: bool) -> str:
    """Return how NCCL calls the kernel of a collective: of 2.19 and later, or before 2.8."""
    old, new = _KERNELS[kind]
    if recent:
        return f"ncclDevKernel_{new}(ncclDevComm*, unsigned long, ncclWork*)"
    return f"{old}(ncclColl)"


class Collective:
    """A collective of some GPUs; each of its parts is the work of an op."""

    def __init__(
        self, world: World, kind: str, size: int, gpus: tuple[int, ...], root: int
    ) -> None:
        self._world, self.kind, self.size = world, kind, size
        self.gpus, self._root = gpus, root
        self.number = world.next_collective()
        self._joined: list[Op] = []
        self._done = world.env.event()

    def part(self, purpose: Purpose, *, recent: bool) -> Op:
        """Return the op by which a GPU takes part."""
        name = kernel_name(self.kind, recent=recent)
        return Op(name, purpose, self, size=self.size, collective=self.number)

    def run(self, op: Op) -> Doing[None]:
        """Wait until the last GPU has joined and the bytes have moved."""
        self._joined.append(op)
        if len(self._joined) == len(self.gpus):
            self._world.env.process(self._move())
        yield self._done

    def _move(self) -> Doing[None]:
        env, p = self._world.env, self._world.parameters
        for op in self._joined:
            op.met = env.now
        hops = (len(self.gpus) - 1) * (2 if self.kind == "all_reduce" else 1)
        yield env.timeout(p.collective_start_ns + hops * p.collective_hop_ns)
        yield from [self._world.links.move(way, size, by_kernel=True) for way, size in self.ways()]
        self._done.succeed()

    def ways(self) -> Iterator[tuple[Route, int]]:
        """Return what moves: the links that each ring crosses, and the bytes over each of them."""
        machine = self._world.machine
        rings = find_rings(machine, self.gpus)
        for number, ring in enumerate(rings):
            share = (number + 1) * self.size // len(rings) - number * self.size // len(rings)
            volume, hops = ring_volume(self.kind, ring, self._root, share)
            yield tuple(way for hop in hops for way in machine.peer_route(*hop)), volume


class SendReceive(Collective):
    """Bytes from one GPU to another, by a kernel on each."""

    def __init__(self, world: World, size: int, src: int, dst: int) -> None:
        super().__init__(world, "send_recv", size, (src, dst), root=src)
        self._ends = src, dst

    def ways(self) -> Iterator[tuple[Route, int]]:
        """Return the route between the two, and all of the bytes."""
        yield self._world.machine.peer_route(*self._ends), self.size
