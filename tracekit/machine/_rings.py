"""Rings over NVLinks: a model of those that a collective library makes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.machine._graph import Machine

MOST_GPUS = 16
"""The most GPUs among which rings are searched for."""

_STEPS = 100_000
"""How many GPUs a search visits before it keeps what it has found."""

Bricks = dict[frozenset[int], int]


@dataclass(frozen=True)
class Ring:
    """A ring that visits each GPU once, and returns to the first.

    Parameters
    ----------
    gpus
        The GPUs in their order.
    bricks
        NVLinks that the ring has of each edge; None where it is not one of direct NVLinks.
    """

    gpus: tuple[int, ...]
    bricks: int | None = None

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges in the direction of the ring."""
        return list(zip(self.gpus, self.gpus[1:] + self.gpus[:1], strict=True))


def find_rings(machine: Machine, gpus: Sequence[int]) -> list[Ring]:
    """Return rings over the direct NVLinks among some GPUs, widest first.

    Each ring takes the most bricks that all of its edges have left; if more bricks can be used in
    all by taking others, those are returned. On a DGX-1 with V100 these are 0-3-2-1-5-6-7-4 of two
    bricks and 0-1-3-7-5-4-6-2 of one. A ring begins at the GPU of the lowest number, and of its two
    directions takes the one whose second GPU has the lower number; its bricks serve both. Two GPUs
    are a ring of both directions.

    Where no ring of direct NVLinks visits all GPUs (as behind an NVSwitch, where any order is as
    good, or over PCIe), or there are more than `MOST_GPUS`, there is one ring in order of numbers,
    whose ``bricks`` are None. Of GPUs of several hosts that a fabric joins, there is a ring for
    each GPU of the host that has fewest: it visits one host after the other, along a ring of the
    host's own, and enters it at another GPU, so that all NICs are used alike.
    """
    members = sorted(set(gpus))
    if len(members) < 2:  # noqa: PLR2004
        return []
    hosts = [[gpu for gpu in members if f"GPU{gpu}" in host] for host in machine.hosts]
    if len(parts := [host for host in hosts if host]) > 1:
        inner = [find_rings(machine, part)[0].gpus if len(part) > 1 else (*part,) for part in parts]
        return _from_each_gpu(inner)
    bricks = {frozenset(pair): machine.bricks(*pair) for pair in itertools.combinations(members, 2)}
    if len(members) == 2:  # noqa: PLR2004
        found = [Ring(tuple(members), width) for width in bricks.values() if width]
    elif len(members) <= MOST_GPUS:
        found = _Search(members).best_of(bricks)
    else:
        found = []
    return found or [Ring(tuple(members))]


def _from_each_gpu(inner: Sequence[tuple[int, ...]]) -> list[Ring]:
    """Join the rings of hosts into rings over all, each of which enters a host at another GPU."""
    number = min(map(len, inner))
    turned = (
        [own[first:] + own[:first] for own in inner for first in (turn * len(own) // number,)]
        for turn in range(number)
    )
    return [Ring(tuple(itertools.chain(*parts))) for parts in turned]


@dataclass
class _Search:
    """A depth-first search for rings that use the most bricks; the first found are the greedy."""

    members: list[int]
    steps: int = _STEPS
    best: list[Ring] = field(default_factory=list)

    def best_of(self, bricks: Bricks) -> list[Ring]:
        self._extend([], bricks)
        widths: Counter[tuple[int, ...]] = Counter()
        for ring in self.best:
            widths[ring.gpus] += ring.bricks or 0
        rings = [Ring(gpus, width) for gpus, width in widths.items()]
        return sorted(rings, key=lambda ring: (-widths[ring.gpus], ring.gpus))

    def _extend(self, rings: list[Ring], left: Bricks) -> None:
        used = _total(rings)
        if used > _total(self.best):
            self.best = rings
        for width in range(max(left.values()), 0, -1):
            for gpus in self._cycles(left, width):
                ring = Ring(gpus, width)
                self._extend([*rings, ring], _without(left, ring))
                if self.steps < 0 or used + self._bound(left) <= _total(self.best):
                    return

    def _bound(self, left: Bricks) -> int:
        """Return the most bricks that rings can have together: each takes two of every GPU."""
        return min(
            sum(width for pair, width in left.items() if gpu in pair) // 2 for gpu in self.members
        )

    def _cycles(self, left: Bricks, width: int) -> Iterator[tuple[int, ...]]:
        """Yield the rings whose edges all have so many bricks left, in order of their numbers."""
        self.steps -= 1
        wide = {
            gpu: [
                other
                for other in self.members
                if other != gpu and left[frozenset((gpu, other))] >= width
            ]
            for gpu in self.members
        }
        if all(len(others) > 1 for others in wide.values()):
            yield from self._walk([self.members[0]], wide)

    def _walk(self, path: list[int], wide: dict[int, list[int]]) -> Iterator[tuple[int, ...]]:
        self.steps -= 1
        if self.steps < 0:
            return
        if len(path) == len(self.members):
            if path[0] in wide[path[-1]] and path[1] < path[-1]:
                yield tuple(path)
            return
        for gpu in wide[path[-1]]:
            if gpu not in path:
                yield from self._walk([*path, gpu], wide)


def _total(rings: Sequence[Ring]) -> int:
    return sum(ring.bricks or 0 for ring in rings)


def _without(left: Bricks, ring: Ring) -> Bricks:
    taken = {frozenset(edge) for edge in ring.edges}
    return {
        pair: width - (ring.bricks or 0) if pair in taken else width for pair, width in left.items()
    }
