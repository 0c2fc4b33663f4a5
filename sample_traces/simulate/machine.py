"""The machine: its links and the routes over them, read from a description as data.

A link has a name such as ``GPU0-GPU3`` and two directions, ``GPU0>GPU3`` and ``GPU3>GPU0``.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .parameters import Parameters

MACHINES = Path(__file__).resolve().parents[2] / "schemas" / "machines"
_PCIE_LANE = {"3": 8e9 * 128 / 130 / 8}
"""Bytes per second and direction of a lane, by generation: transfers per second and encoding."""

Route = tuple[str, ...]
"""Directions of links, in the order in which they are crossed."""


@dataclass(frozen=True)
class Link:
    """A link between two nodes, with its bandwidth in each direction."""

    ends: tuple[str, str]
    kind: str
    bandwidth: float
    bricks: int = 0

    @property
    def name(self) -> str:
        """The name of the link, such as ``GPU0-GPU3``."""
        return "-".join(self.ends)


@dataclass(frozen=True)
class Machine:
    """Nodes and the links between them; routes follow from them."""

    links: tuple[Link, ...]

    @cached_property
    def directions(self) -> dict[str, Link]:
        """Each direction of each link."""
        both = ((a, b, link) for link in self.links for a, b in (link.ends, link.ends[::-1]))
        return {f"{a}>{b}": link for a, b, link in both}

    @cached_property
    def _neighbours(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for link in self.links:
            for a, b in (link.ends, link.ends[::-1]):
                found.setdefault(a, []).append(b)
        return found

    def bricks(self, a: int, b: int) -> int:
        """Return how many NVLinks join two GPUs."""
        link = self.directions.get(f"GPU{a}>GPU{b}")
        return link.bricks if link else 0

    def peer_route(self, src: int, dst: int) -> Route:
        """Return the route between two GPUs: their NVLink, else through the host."""
        direct = f"GPU{src}>GPU{dst}"
        return (direct,) if direct in self.directions else self.host_route(src, f"GPU{dst}")

    def host_route(self, src: int | str, dst: str) -> Route:
        """Return the shortest route that crosses no GPU."""
        start = f"GPU{src}" if isinstance(src, int) else src
        came: dict[str, str] = {start: ""}
        waiting = deque([start])
        while waiting and dst not in came:
            node = waiting.popleft()
            for other in self._neighbours[node]:
                nvlink = node.startswith("GPU") and other.startswith("GPU")
                through = other.startswith("GPU") and other != dst
                if other not in came and not nvlink and not through:
                    came[other] = node
                    waiting.append(other)
        return tuple(_steps(came, dst))[::-1]

    def socket(self, gpu: int) -> str:
        """Return the socket that a GPU hangs on."""
        reached = (self.host_route(gpu, cpu) for cpu in self._neighbours if cpu.startswith("CPU"))
        return min(reached, key=len)[-1].split(">")[1]

    def relay(self, src: int, dst: int) -> int | None:
        """Return the GPU joined to both by the widest NVLinks; the first of equals."""
        gpus = [int(name[3:]) for name in self._neighbours if name.startswith("GPU")]
        widths = {gpu: min(self.bricks(src, gpu), self.bricks(gpu, dst)) for gpu in sorted(gpus)}
        best = max(widths, key=lambda gpu: widths[gpu], default=None)
        return best if best is not None and widths[best] else None

    def changed(self, factors: Mapping[str, float]) -> Machine:
        """Return a machine with some bandwidths multiplied, by name or kind of link."""
        known = {link.name for link in self.links} | {link.kind for link in self.links}
        if unknown := set(factors) - known:
            raise ValueError(f"no such link: {', '.join(sorted(unknown))}")
        return Machine(
            tuple(
                Link(
                    link.ends,
                    link.kind,
                    link.bandwidth * factors.get(link.name, 1.0) * factors.get(link.kind, 1.0),
                    link.bricks,
                )
                for link in self.links
            )
        )


def _steps(came: Mapping[str, str], node: str) -> Iterator[str]:
    while came[node]:
        yield f"{came[node]}>{node}"
        node = came[node]


def load_machine(name: str, parameters: Parameters) -> Machine:
    """Read a machine's description from ``schemas/machines``."""
    with (MACHINES / f"{name}.toml").open("rb") as file:
        described = tomllib.load(file)["links"]
    return Machine(tuple(link for group in described for link in _expand(group, parameters)))


def _expand(group: Mapping[str, Any], parameters: Parameters) -> Iterator[Link]:
    bricks = group.get("bricks", 0)
    match group["type"]:
        case "nvlink":
            bandwidth = float(bricks * group["brick_bandwidth"])
        case "pcie":
            generation, lanes = group["pcie"].split("x")
            bandwidth = _PCIE_LANE[generation] * int(lanes)
        case _:
            bandwidth = float(parameters.socket_bandwidth)
    between = group["between"]
    for pair in [between] if isinstance(between, str) else between:
        left, right = (_nodes(side) for side in pair.split("-"))
        yield from (Link((a, b), group["type"], bandwidth, bricks) for a in left for b in right)


def _nodes(text: str) -> list[str]:
    """Return ``GPU0`` and ``GPU1`` for ``GPU0,1``."""
    kind, numbers = re.fullmatch(r"([A-Za-z]+)([\d,]+)", text).groups()  # type: ignore[union-attr]
    return [f"{kind}{number}" for number in numbers.split(",")]
