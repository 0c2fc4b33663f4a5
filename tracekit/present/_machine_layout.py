"""Positions of the nodes and links of a machine in a drawing.

GPUs are above the PCIe switches and CPUs that they are attached to, so that these lines are
vertical. If NVLinks connect more than pairs of GPUs, the GPUs of each CPU are the corners of a
square, rotated until no two share a column or a row, so that no line between two GPUs crosses a
third. If squares do not work, all GPUs are on an ellipse. NVSwitches are bars above their GPUs,
and the fabric between hosts is a bar below everything. All lengths are pixels, y points upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.machine import Link, Machine

GPU_SIZE = 46
"""Width and height of a GPU."""

_BAR_HEIGHT = 26
_LEAST_BAR = 64
_NIC_WIDTH, _NIC_HEIGHT = 46, 18
_NIC_STEP, _NIC_ASIDE = 52, 30
_NIC_BELOW = 40
_STEP = 104
_LEAST_STEP = 72
_WIDEST_ROW = 1010
_TIER = 78
_NIC_ROOM = 24
_ABOVE_GPUS = 116
_BETWEEN_GROUPS = 0.7
_BETWEEN_ROWS = 0.6
_ARC = 0.35
_FLATNESS = 0.24
_DEEPEST = 32

_CORNERS = ((0.0, 2.0), (1.0, 0.0), (2.0, 3.0), (3.0, 1.0))
"""Columns and rows of the GPUs of a group."""
_PAIR = 2

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """Rectangle for one node, or for several drawn as one."""

    nodes: tuple[str, ...]
    """Names of the nodes."""
    kind: str
    """Their type."""
    x: float
    y: float
    """Coordinates of the centre."""
    width: float
    height: float
    """The size."""

    def covers(self, other: Box) -> bool:
        """Test whether two boxes overlap."""
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2
            and abs(self.y - other.y) < (self.height + other.height) / 2
        )


@dataclass(frozen=True)
class Wire:
    """The links between two boxes, drawn as one line."""

    ends: tuple[Box, Box]
    """The two boxes."""
    links: tuple[Link, ...]
    """The links."""
    points: tuple[Point, ...]
    """Points of the line, from the first box to the second."""


@dataclass
class Drawing:
    """A machine's drawing: boxes (by node), and wires, the lines for the links between boxes."""

    boxes: dict[str, Box] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Nodes that have no place."""

    def put(self, box: Box) -> None:
        """Add a box under the names of its nodes."""
        self.boxes.update(dict.fromkeys(box.nodes, box))

    def put_free(self, box: Box, up: int = -1) -> Box:
        """Add a box, moved down (or up) as little as needed to overlap no other box.

        A box has to move only if NVLinks and PCIe suggest different orders of the GPUs.
        """
        while any(box.covers(other) for other in self.boxes.values()):
            box = replace(box, y=box.y + up * _BAR_HEIGHT / 2)
        self.put(box)
        return box

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Least and greatest x, least and greatest y."""
        boxes = self.boxes.values()
        return (
            min((box.x - box.width / 2 for box in boxes), default=0),
            max((box.x + box.width / 2 for box in boxes), default=0),
            min((box.y - box.height / 2 for box in boxes), default=0),
            max((box.y + box.height / 2 for box in boxes), default=0),
        )


def machine_layout(machine: Machine) -> Drawing:
    """Return the positions of a machine's nodes, and the lines between them."""
    drawing = Drawing()
    tree = _Tree.of(machine)
    places = _places(machine, _leaves(machine, tree))
    columns = [column for column, _ in places.values()] or [0.0]
    step = min(max(_WIDEST_ROW / (max(columns) - min(columns) + 1), _LEAST_STEP), _STEP)
    for node, (column, row) in places.items():
        if node in tree.gpus:
            box = Box((node,), "gpu", column * step, row * step, GPU_SIZE, GPU_SIZE)
            drawing.put(box)
    _put_switches(drawing, machine)
    for root in tree.roots:
        _put_bars(drawing, machine, tree, root, {node: x * step for node, (x, _) in places.items()})
    _put_told_nics(drawing, machine)
    _put_fabric(drawing, machine)
    drawing.missing = sorted(set(machine.graph) - set(drawing.boxes))
    drawing.wires = _wires(drawing, machine)
    return drawing


@dataclass(frozen=True)
class _Tree:
    """Tree of the machine: GPUs and NICs below PCIe switches, and these below CPUs."""

    gpus: frozenset[str]
    nics: frozenset[str]
    roots: list[str] = field(default_factory=list)
    children: dict[str, list[str]] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, machine: Machine) -> _Tree:
        tree = cls(frozenset(machine.nodes("gpu")), frozenset(machine.nodes("nic")))
        hangs = nx.Graph(link.ends for link in machine.links if link.type in {"pcie", "c2c"})
        # All CPUs at once, so that each switch hangs from the nearest one.
        tree._grow(machine.nodes("host"), hangs)
        for switch in machine.nodes("pcie"):
            tree._grow([switch], hangs)
        return tree

    def _grow(self, starts: Sequence[str], hangs: nx.Graph) -> None:
        """Add nodes attached to the nodes `starts` that are not in the tree yet, nearest first."""
        level = [start for start in starts if start not in self.depth]
        self.roots.extend(level)
        self.depth.update(dict.fromkeys(level, 0))
        while level and self.depth[level[0]] < _DEEPEST:
            below = []
            for node in level:
                new = [each for each in hangs.adj.get(node, ()) if each not in self.depth]
                self.depth.update(dict.fromkeys(new, self.depth[node] + 1))
                self.children[node] = sorted(new, key=_number)
                below += [each for each in new if each not in self.gpus | self.nics]
            level = below

    @property
    def deepest(self) -> int:
        """Greatest number of PCIe switches one below the other."""
        leaves = self.gpus | self.nics
        return max((depth for node, depth in self.depth.items() if node not in leaves), default=0)

    def branches(self, node: str) -> list[str]:
        """Return a node's children that need a column of their own in the drawing: all but NICs."""
        return [child for child in self.children.get(node, []) if child not in self.nics]

    def leaves(self, node: str) -> list[str]:
        """Return the GPUs below a node in order, and the last node of each branch without GPUs."""
        if node in self.gpus:
            return [node]
        found = sorted((self.leaves(child) for child in self.branches(node)), key=self._first_gpu)
        return [leaf for branch in found for leaf in branch] or [node]

    def _first_gpu(self, leaves: list[str]) -> tuple[bool, list[int]]:
        numbers = [_number(leaf) for leaf in leaves if leaf in self.gpus]
        return not numbers, [min(numbers)] if numbers else []


def _number(node: str) -> int:
    digits = node.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    return int(digits[:9]) if digits.isdecimal() else 0


def _leaves(machine: Machine, tree: _Tree) -> list[list[str]]:
    """Return the nodes that need a column of their own in the drawing, grouped by their CPU."""
    groups = [tree.leaves(root) for root in tree.roots]
    alone = [gpu for gpu in machine.nodes("gpu") if gpu not in tree.depth]
    return [*groups, alone] if alone else groups


def _places(machine: Machine, groups: list[list[str]]) -> dict[str, Point]:
    """Return column and row in the drawing of each GPU, and of each GPU-less branch's last node."""
    joined = nx.Graph()
    joined.add_nodes_from(machine.nodes("gpu"))
    links = (link.ends for link in machine.links if link.is_peer)
    joined.add_edges_from(ends for ends in links if all(end in joined for end in ends))
    if all(len(part) <= _PAIR for part in nx.connected_components(joined)):
        nodes = [(node, group) for group, nodes in enumerate(groups) for node in nodes]
        return {node: (n + group * _BETWEEN_ROWS, 0.0) for n, (node, group) in enumerate(nodes)}
    return _in_squares(groups, joined) or _on_an_ellipse(groups, joined)


def _in_squares(groups: list[list[str]], joined: nx.Graph) -> dict[str, Point]:
    """Put the GPUs of each group at the corners of a square, and other nodes to its right.

    Return nothing if a group has more than 4 GPUs, or a line between squares would not be level.
    """
    places: dict[str, Point] = {}
    corner: dict[str, tuple[int, int]] = {}
    start = 0.0
    for number, group in enumerate(groups):
        gpus = [node for node in group if node in joined]
        if len(gpus) > len(_CORNERS):
            return {}
        corner |= {gpu: (number, place) for place, gpu in enumerate(gpus)}
        places |= {gpu: (start + x, y) for gpu, (x, y) in zip(gpus, _CORNERS, strict=False)}
        others = [node for node in group if node not in joined]
        places |= {node: (start + len(gpus) + place, 0.0) for place, node in enumerate(others)}
        start += len(group) + _BETWEEN_GROUPS
    across = [(corner[a], corner[b]) for a, b in joined.edges if corner[a][0] != corner[b][0]]
    is_level = all(a[1] == b[1] and abs(a[0] - b[0]) == 1 for a, b in across)
    return places if is_level else {}


def _on_an_ellipse(groups: list[list[str]], joined: nx.Graph) -> dict[str, Point]:
    """Put the GPUs on an ellipse, alternately above and below, each in a separate column.

    No line between two points of an ellipse goes through a third.
    """
    nodes = [node for group in groups for node in group]
    half = len(nodes) * _FLATNESS
    places = {}
    for column, node in enumerate(nodes):
        across = (2 * column + 1) / len(nodes) - 1
        side = math.sqrt(1 - across**2) * (-1) ** column
        places[node] = (float(column), half * (1 + side) if node in joined else 0.0)
    return places


def _put_switches(drawing: Drawing, machine: Machine) -> None:
    """Put NVSwitches above the GPUs; switches linked to the same GPUs are drawn as one bar."""
    bars: dict[tuple[str, ...], list[str]] = {}
    for switch in machine.nodes("nvswitch"):
        gpus = tuple(sorted(n for n in machine.graph.adj[switch] if n in drawing.boxes))
        bars.setdefault(gpus, []).append(switch)
    above = drawing.bounds[3] + _ABOVE_GPUS - GPU_SIZE / 2
    for gpus, switches in bars.items():
        left, right = _extent([drawing.boxes[gpu] for gpu in gpus]) if gpus else (0.0, _STEP)
        middle, width = (left + right) / 2, right - left
        drawing.put_free(Box(tuple(switches), "nvswitch", middle, above, width, _BAR_HEIGHT), up=1)


def _put_told_nics(drawing: Drawing, machine: Machine) -> None:
    """Put NICs whose PCIe slot is unknown (their only links are to GPUs) below their host."""
    low = drawing.bounds[2] - _TIER
    for host, nodes in enumerate(machine.hosts):
        free = [nic for nic in machine.nics(host).values() if nic not in drawing.boxes]
        nics = [nic for nic in free if any(map(drawing.boxes.get, machine.graph.adj[nic]))]
        gpus = [drawing.boxes[node] for node in machine.nodes("gpu") if node in nodes]
        left, right = _extent(gpus) if gpus else (0.0, _STEP)
        for place, nic in enumerate(nics):
            x = left + (right - left) * (place + 0.5) / len(nics)
            drawing.put_free(Box((nic,), "nic", x, low, _NIC_WIDTH, _NIC_HEIGHT))


def _put_fabric(drawing: Drawing, machine: Machine) -> None:
    """Put the fabric between hosts below everything."""
    left, right, low, _ = drawing.bounds
    for fabric in machine.nodes("fabric"):
        middle, width = (left + right) / 2, right - left
        drawing.put_free(Box((fabric,), "fabric", middle, low - _TIER, width, _BAR_HEIGHT))


def _extent(boxes: Sequence[Box]) -> tuple[float, float]:
    return min(box.x - box.width / 2 for box in boxes), max(box.x + box.width / 2 for box in boxes)


def _put_bars(
    drawing: Drawing, machine: Machine, tree: _Tree, node: str, columns: dict[str, float]
) -> None:
    """Put a CPU or a PCIe switch below all nodes attached to it, and its NICs below it."""
    branches = tree.branches(node)
    for branch in branches:
        if branch not in tree.gpus:
            _put_bars(drawing, machine, tree, branch, columns)
    spans = [drawing.boxes[branch] for branch in branches]
    left, right = _extent(spans) if spans else (columns[node], columns[node])
    step = _TIER + (_NIC_ROOM if tree.nics else 0)
    down = step * (1 + tree.deepest - tree.depth[node])
    kind = machine.graph.nodes[node].get("type", "")
    width = max(right - left, _LEAST_BAR)
    bar = Box((node,), kind, (left + right) / 2, -down, width, _BAR_HEIGHT)
    bar = drawing.put_free(bar)
    _put_nics(drawing, bar, [nic for nic in tree.children.get(node, []) if nic in tree.nics])


def _put_nics(drawing: Drawing, bar: Box, nics: list[str]) -> None:
    """Put NICs below a bar, beside the line down from its centre; many NICs share one box."""
    fits = len(nics) <= _PAIR or len(nics) * _NIC_STEP <= bar.width
    shown = [(nic,) for nic in nics] if fits else [tuple(nics)]
    # Outwards to both sides of the middle, and numbered from left to right.
    sides = sorted(
        (_NIC_STEP * (place // 2) + _NIC_ASIDE) * (-1) ** place for place in range(len(shown))
    )
    for side, names in zip(sides, shown, strict=True):
        x, y = bar.x + side, bar.y - _NIC_BELOW
        drawing.put_free(Box(names, "nic", x, y, _NIC_WIDTH, _NIC_HEIGHT))


def _wires(drawing: Drawing, machine: Machine) -> list[Wire]:
    between: dict[tuple[Box, Box], list[Link]] = {}
    for link in machine.links:
        one, other = (drawing.boxes.get(end) for end in link.ends)
        if one is not None and other is not None and one != other:
            ends = (other, one) if (other, one) in between else (one, other)
            between.setdefault(ends, []).append(link)
    boxes = list(dict.fromkeys(drawing.boxes.values()))
    return [Wire(ends, tuple(links), _path(*ends, boxes)) for ends, links in between.items()]


def _path(one: Box, other: Box, boxes: Sequence[Box]) -> tuple[Point, ...]:
    """Return the line between two boxes."""
    if one.y == other.y:
        return _level_path(one, other, boxes)
    wide, narrow = (one, other) if one.width >= other.width else (other, one)
    if wide.width > GPU_SIZE and abs(narrow.x - wide.x) <= wide.width / 2:
        # Beside the line from a GPU to its host, which leads down as well.
        aside = GPU_SIZE / 3 if (wide.kind, narrow.kind) == ("fabric", "gpu") else 0
        return tuple((narrow.x + aside, y) for y in _facing(one, other))
    return (one.x, one.y), (other.x, other.y)


def _facing(one: Box, other: Box) -> tuple[float, float]:
    """Return the y coordinates of the facing edges of two boxes, one of which is above."""
    up = 1 if other.y > one.y else -1
    return one.y + up * one.height / 2, other.y - up * other.height / 2


def _level_path(one: Box, other: Box, boxes: Sequence[Box]) -> tuple[Point, ...]:
    """Return the line between boxes of one height: straight, or around boxes between them."""
    left, right = sorted((one.x, other.x))
    if not any(box.y == one.y and left < box.x < right for box in boxes):
        side = 1 if other.x > one.x else -1
        ends = one.x + side * one.width / 2, other.x - side * other.width / 2
        return (ends[0], one.y), (ends[1], one.y)
    rise = (right - left) * _ARC * (1 if one.kind == "gpu" else -0.4)
    return tuple(
        (one.x + (other.x - one.x) * part, one.y + rise * 4 * part * (1 - part))
        for part in (step / 16 for step in range(17))
    )
