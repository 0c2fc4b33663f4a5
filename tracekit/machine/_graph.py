"""A machine as a graph: GPUs, switches, host bridges and NICs, and the links between them.

Nodes are named `GPU3`, `NVSwitch0`, `PCIe2`, `CPU1` and `NIC0`; the network
between hosts is the node `Fabric0`. An edge is one link, of a type and with a bandwidth per
direction; an NVLink edge is a bond of `bricks` NVLinks.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import networkx as nx

NodeType = Literal["gpu", "nvswitch", "pcie", "host", "nic", "fabric"]
LinkType = Literal["nvlink", "xgmi", "c2c", "pcie", "socket", "network"]
Origin = Literal["file", "trace", "preset", "recognised", "assumed"]
Known = Literal["told", "recognised", "assumed"]
PEER_LINKS: tuple[LinkType, ...] = ("nvlink", "xgmi")
"""Types of links that are made to join GPUs, NVIDIA's and AMD's."""

PREFIXES: Mapping[NodeType, str] = {
    "gpu": "GPU", "nvswitch": "NVSwitch", "pcie": "PCIe", "host": "CPU", "nic": "NIC",
    "fabric": "Fabric",
}  # fmt: skip
"""How the names of nodes begin, by their type."""
FABRIC = "Fabric0"
"""The network between hosts, of whose switches nothing is known."""

_KNOWN: Mapping[Origin, Known] = {
    "file": "told", "trace": "told", "preset": "recognised", "recognised": "recognised",
    "assumed": "assumed",
}  # fmt: skip

_HOPS: Mapping[LinkType, int] = {
    "nvlink": 1, "xgmi": 1, "c2c": 1, "pcie": 1, "socket": 4, "network": 64,
}  # fmt: skip
"""What a link adds to the length of a route: sockets are crossed where it cannot be helped."""


@dataclass(frozen=True)
class Link:
    """A link between two nodes.

    Parameters
    ----------
    ends
        Names of the nodes, in the order of the graph.
    type
        ``nvlink``, ``xgmi`` (AMD's), ``c2c``, ``pcie``, ``socket`` (between CPUs) or ``network``.
    bricks
        Number of NVLinks or xGMI links that are bonded; None for other types.
    bandwidth
        Peak per direction, bytes/s; None where unknown.
    known
        How it is known, where not as the machine is that it is of.
    """

    ends: tuple[str, str]
    type: LinkType
    bricks: int | None = None
    bandwidth: int | None = None
    known: Known | None = None

    @property
    def name(self) -> str:
        """The two ends, such as `GPU0-GPU3`."""
        return "-".join(self.ends)

    @property
    def is_peer(self) -> bool:
        """True for a type of link that joins GPUs."""
        return self.type in PEER_LINKS


@dataclass(frozen=True)
class Route:
    """Links that a transfer crosses.

    Parameters
    ----------
    nodes
        The nodes on the way, both ends included.
    links
        The links between them.
    """

    nodes: tuple[str, ...]
    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        """The nodes, such as `GPU0>PCIe0>CPU0`."""
        return ">".join(self.nodes)

    @property
    def bandwidth(self) -> int | None:
        """Peak of the narrowest link, bytes/s; None where that of any is unknown."""
        widths = [link.bandwidth for link in self.links]
        known = [width for width in widths if width is not None]
        return min(known) if known and len(known) == len(widths) else None

    @property
    def type(self) -> str:
        """`nvlink`, `xgmi`, `pcie` (within a socket), `socket` (across sockets) or `network`."""
        types = {link.type for link in self.links}
        order = ("network", "socket", "pcie", "c2c", "xgmi", "nvlink")
        return next((each for each in order if each in types), "local")


@dataclass(frozen=True)
class Relay:
    """A GPU through which two others, which no NVLink joins, reach each other in two hops.

    Parameters
    ----------
    gpu
        The GPU between them.
    bricks
        NVLinks of the first and of the second hop.
    bandwidth
        Peak of the narrower hop, bytes/s.
    """

    gpu: int
    bricks: tuple[int, int]
    bandwidth: int | None


@dataclass(frozen=True)
class Machine:
    """GPUs and the links between them.

    Parameters
    ----------
    name
        What it is called: a preset, or the file it was read from.
    graph
        Nodes with ``type`` (`NodeType`) and what else is known of them (``pci_bus``, ``uuid``,
        ``product``, ``numa``); edges with ``link`` (`Link`).
    origin
        Where it comes from, which says how sure it is: a ``file`` that the user gave, the ``trace``
        itself, a ``preset`` that the user named, one that was ``recognised`` from the names and
        number of GPUs, or ``assumed`` where nothing was.
    warnings
        What a user should know about it, one sentence each.
    source
        Where the facts about it come from, in words; None where it was read from a dump.
    tells_peers
        Whether links between GPUs other than PCIe are known, or known to be absent. If not, no
        route between two GPUs is known.
    given
        Relation of two GPUs in the topology matrix that was read, such as `PHB`, by the names of
        both in either order.
    untold
        Pairs of GPUs whose connection is unknown, though links of each are told: no route is known.
    through_host
        GPU and NIC between which data go through host memory, not directly: the names of both
        nodes in the direction of the data.
    """

    name: str
    graph: nx.Graph
    origin: Origin = "file"
    warnings: tuple[str, ...] = field(default=())
    source: str | None = None
    tells_peers: bool = True
    given: Mapping[tuple[str, str], str] = field(default_factory=dict)
    untold: frozenset[frozenset[int]] = frozenset()
    through_host: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(
        cls,
        name: str,
        nodes: Mapping[str, Mapping[str, object]],
        links: Iterable[Link],
        origin: Origin = "file",
        warnings: Sequence[str] = (),
        source: str | None = None,
    ) -> Machine:
        """Make a machine of its nodes, with their attributes (``type`` is one), and links."""
        graph = nx.Graph()
        graph.add_nodes_from((node, dict(attributes)) for node, attributes in nodes.items())
        graph.add_edges_from((*link.ends, {"link": link}) for link in links)
        return cls(name, graph, origin, tuple(warnings), source)

    def with_links(self, links: Iterable[Link]) -> Machine:
        """Return the same nodes, joined by other links."""
        nodes = dict(self.graph.nodes(data=True))
        return replace(self, graph=Machine.of(self.name, nodes, links).graph)

    def nodes(self, kind: NodeType) -> list[str]:
        """Return the names of the nodes of a type, in order of their numbers."""
        named = [node for node, each in self.graph.nodes(data="type") if each == kind]
        return sorted(named, key=number_of)

    @cached_property
    def gpus(self) -> list[int]:
        """Numbers of the GPUs."""
        return [number_of(node) for node in self.nodes("gpu")]

    @cached_property
    def links(self) -> list[Link]:
        """All links, in order of the names of their ends."""
        found: list[Link] = [link for _, _, link in self.graph.edges(data="link")]
        return sorted(found, key=lambda link: [(len(end), end) for end in link.ends])

    def link(self, one: str, other: str) -> Link | None:
        """Return the link between two nodes, or None."""
        found: Link | None = self.graph.get_edge_data(one, other, {}).get("link")
        return found

    def known(self, link: Link) -> Known:
        """Return how a link is known: told by a file or the trace, recognised, or assumed."""
        return link.known or _KNOWN[self.origin]

    def bricks(self, src: int, dst: int) -> int:
        """Return how many NVLinks (or xGMI links) join two GPUs directly; 0 where none does.

        Where it is not known how many, at least one does.
        """
        link = self.link(f"GPU{src}", f"GPU{dst}")
        return link.bricks or 1 if link is not None and link.type in PEER_LINKS else 0

    def nvlink_matrix(self) -> list[list[int]]:
        """Return the bricks between each two GPUs, in order of their numbers.

        NVLinks to a switch are in no cell: every GPU behind it shares them with all others.
        """
        return [[self.bricks(src, dst) for dst in self.gpus] for src in self.gpus]

    def switch_bricks(self, gpu: int) -> int:
        """Return how many NVLinks lead from a GPU to NVSwitches."""
        node = f"GPU{gpu}"
        links = [self.link(node, switch) for switch in self.nodes("nvswitch")]
        return sum(link.bricks or 0 for link in links if link is not None)

    def switch(self, gpu: int) -> str | None:
        """Return the NVSwitch that a GPU's NVLinks lead to; None where none do."""
        joined = (node for node in self.nodes("nvswitch") if self.link(f"GPU{gpu}", node))
        return next(joined, None)

    def switch_route(self, src: int | None, dst: int | None) -> Route | None:
        """Return the piece between a GPU and its NVSwitch; None where it has none."""
        gpu = dst if src is None else src
        switch = None if gpu is None else self.switch(gpu)
        if switch is None:
            return None
        nodes = (f"GPU{gpu}", switch)
        return self._along(nodes[::-1] if src is None else nodes)

    @cached_property
    def hosts(self) -> list[frozenset[str]]:
        """The nodes of each host, in order of their GPUs; all of them where no fabric joins any."""
        inside = self.graph.subgraph(set(self.graph) - set(self.nodes("fabric")))
        parts = [frozenset(part) for part in nx.connected_components(inside)]
        if not self.nodes("fabric"):
            return [frozenset(inside)]
        gpus = {node: number_of(node) for node in self.nodes("gpu")}
        first = {part: min((gpus[node] for node in part if node in gpus), default=len(gpus))
                 for part in parts}  # fmt: skip
        return sorted(parts, key=lambda part: first[part])

    @cached_property
    def host_of(self) -> dict[str, int]:
        """Index in `hosts` of the host of each node."""
        return {node: place for place, part in enumerate(self.hosts) for node in part}

    def nics(self, host: int) -> dict[int, str]:
        """Return the NICs of one of `hosts` by their number on it, as NCCL logs name them.

        Those whose ``index`` is None have none.
        """
        own = [nic for nic in self.nodes("nic") if nic in self.hosts[host]]
        numbers = (self.graph.nodes[nic].get("index", place) for place, nic in enumerate(own))
        return {
            int(number): nic for number, nic in zip(numbers, own, strict=True) if number is not None
        }

    def route(
        self,
        src: int | None,
        dst: int | None,
        *,
        through_host: bool = False,
        nics: tuple[int | None, int | None] = (None, None),
    ) -> Route | None:
        """Return the route of a copy between two GPUs, or a GPU and its host (None).

        That is the direct NVLink edge if there is one, else NVLink through a switch, else PCIe and
        the host: a copy takes no GPU as a relay. Between GPUs of two hosts it is the fabric, by the
        NIC of each host that is nearest to the GPU; to and from that directly, or through host
        memory where `through_host` says so.

        Parameters
        ----------
        src, dst
            Numbers of the GPUs; None for the host memory nearest to the other one.
        through_host
            Whether it is staged: a copy to host memory near the one GPU, and one from there.
        nics
            Which NICs of the two hosts are taken, counted from 0 at each; None for the nearest.

        Returns
        -------
        The route, or None where the machine has none, as where a GPU is not in it.
        """
        key = (src, dst, through_host, nics)
        if key not in self._routes:
            found = self._find_route(src, dst, through_host=through_host)
            self._routes[key] = found or self._over_fabric(src, dst, nics)
        return self._routes[key]

    def relays(self, src: int, dst: int) -> list[Relay]:
        """Return the two-hop relays between two GPUs that no NVLink joins, best first."""
        if src == dst or self.bricks(src, dst):
            return []
        found = []
        for gpu in self.gpus:
            bricks = self.bricks(src, gpu), self.bricks(gpu, dst)
            if all(bricks):
                route = self._along((f"GPU{src}", f"GPU{gpu}", f"GPU{dst}"))
                found.append(Relay(gpu, bricks, route.bandwidth))
        return sorted(found, key=lambda relay: (-min(relay.bricks), -sum(relay.bricks), relay.gpu))

    @cached_property
    def _routes(self) -> dict[tuple[object, ...], Route | None]:
        return {}

    def _find_route(self, src: int | None, dst: int | None, *, through_host: bool) -> Route | None:
        if src == dst:
            return None
        if src is None or dst is None:
            return self._to_host(src, dst)
        if through_host:
            return self._staged(src, dst)
        if {src, dst} in self.untold:
            return None
        ways = (self._nvlink_paths, self._host_paths) if self.tells_peers else ()
        for paths in ways:
            nodes = _path(paths, f"GPU{src}", f"GPU{dst}")
            if nodes is not None:
                return self._along(nodes)
        return None

    def _staged(self, src: int, dst: int) -> Route | None:
        up, down = self._to_host(src, None), self._to_host(None, dst)
        if up is None or down is None:
            return None
        across = _path(self._host_paths, up.nodes[-1], down.nodes[0])
        return None if across is None else self._along([*up.nodes, *across[1:], *down.nodes[1:]])

    def _over_fabric(
        self, src: int | None, dst: int | None, nics: tuple[int | None, int | None]
    ) -> Route | None:
        ends = [(f"GPU{gpu}", nic) for gpu, nic in zip((src, dst), nics, strict=True)]
        hosts = {self.host_of.get(gpu) for gpu, _ in ends}
        if len(hosts) == 1 or None in hosts:
            return None
        up, down = (
            self._to_fabric(gpu, nic, sends=sends)
            for (gpu, nic), sends in zip(ends, (True, False), strict=True)
        )
        return self._along([*up, *down[-2::-1]]) if up and down else None

    def _to_fabric(self, gpu: str, nic: int | None, *, sends: bool) -> list[str] | None:
        """Return the way from a GPU to the fabric by a NIC of its host, or by the nearest one."""
        fabric = self.nodes("fabric")[0]
        host = self.host_of[gpu]
        joined = {
            number: each for number, each in self.nics(host).items() if self.link(each, fabric)
        }
        chosen = joined.values() if nic is None else [joined[nic]] if nic in joined else []
        ways = [_path(self._host_paths, gpu, each) for each in chosen]
        known = [way for way in ways if way is not None]
        if not known:
            return [gpu, fabric] if self.link(gpu, fabric) else None
        # GPUs that have several NICs as near take turns, as libraries deal them out.
        near = [way for way in known if len(way) == min(map(len, known))]
        own = [each for each in self.nodes("gpu") if self.host_of[each] == host]
        way = near[own.index(gpu) % len(near)]
        ends = (gpu, way[-1]) if sends else (way[-1], gpu)
        return [*(self._by_memory(way) if ends in self.through_host else way), fabric]

    def _by_memory(self, way: list[str]) -> list[str]:
        """Return a way from a GPU to a NIC by the host memory nearest to the GPU."""
        up = self._to_host(number_of(way[0]), None)
        across = None if up is None else _path(self._host_paths, up.nodes[-1], way[-1])
        return way if up is None or across is None else [*up.nodes, *across[1:]]

    def _to_host(self, src: int | None, dst: int | None) -> Route | None:
        gpu = f"GPU{dst if src is None else src}"
        ways = [_path(self._host_paths, gpu, host) for host in self.nodes("host")]
        nodes = min((way for way in ways if way is not None), key=len, default=None)
        if nodes is None:
            return None
        return self._along(nodes[::-1] if src is None else nodes)

    def _along(self, nodes: Sequence[str]) -> Route:
        links = [self.graph.edges[pair]["link"] for pair in itertools.pairwise(nodes)]
        return Route(tuple(nodes), tuple(links))

    @cached_property
    def _nvlink_paths(self) -> nx.Graph:
        """The NVLinks through which a copy may go between GPUs."""
        return _weighted(link for link in self.links if self._joins_gpus(link))

    @cached_property
    def _host_paths(self) -> nx.Graph:
        return _weighted(
            link
            for link in self.links
            if not self._joins_gpus(link) and not any(map(self._is_fabric, link.ends))
        )

    def _is_fabric(self, node: str) -> bool:
        return bool(self.graph.nodes[node].get("type") == "fabric")

    def _joins_gpus(self, link: Link) -> bool:
        """Tell whether an NVLink joins GPUs; on POWER9 some lead to a CPU."""
        hosts = (self.graph.nodes[end].get("type") == "host" for end in link.ends)
        return link.type in PEER_LINKS and not any(hosts)


def number_of(node: str) -> int:
    """Return the number at the end of a node's name."""
    digits = re.search(r"\d+$", node)
    return int(digits[0]) if digits else 0


def _weighted(links: Iterable[Link]) -> nx.Graph:
    graph = nx.Graph()
    for link in links:
        graph.add_edge(*link.ends, hops=_HOPS[link.type])
    return graph


def _path(graph: nx.Graph, start: str, end: str) -> list[str] | None:
    """Return the shortest path on which no third GPU or NIC lies, or None."""
    if start not in graph or end not in graph:
        return None
    between = [node for node in graph if not node.startswith(("GPU", "NIC"))]
    part = graph.subgraph([start, end, *between])
    try:
        path: list[str] = nx.shortest_path(part, start, end, weight="hops")
    except nx.NetworkXNoPath:
        return None
    return path


# -- the network between hosts: NICs, and one fabric that joins them all -----------------------


def with_fabric(machine: Machine) -> Machine:
    """Join the parts of a machine by a fabric: the NICs of each, or the GPUs of one without any.

    Peaks of these links are those that the machine gives its NICs (attribute ``bandwidth``).
    """
    nodes = dict(machine.graph.nodes(data=True))
    parts = [set(part) for part in nx.connected_components(machine.graph)]
    ends = [
        end
        for part in parts
        for end in (part & {*machine.nodes("nic")} or part & {*machine.nodes("gpu")})
    ]
    links = [
        Link((end, FABRIC), "network", None, nodes[end].get("bandwidth"), "assumed")
        for end in sorted(ends, key=number_of)
    ]
    return _more(machine, {FABRIC: {"type": "fabric"}}, links)


def with_nics(
    machine: Machine,
    used: Iterable[tuple[int, int]],
    names: Mapping[int, Mapping[int, str]] | None = None,
    *,
    through_host: Iterable[tuple[int, int, bool]] = (),
) -> Machine:
    """Add the NICs that an NCCL log names, where the machine does not.

    Parameters
    ----------
    machine
        The machine, whose hosts a fabric joins.
    used
        Pairs of a GPU and the number of a NIC of its host, counted from 0, between which data go
        directly.
    names
        What the systems of hosts (by their index) call the NICs that the log numbers. Where the
        machine has NICs of these names, their numbers are the log's, and others are not taken.
    through_host
        GPU, NIC and whether that one sends, where data go between them through host memory.
    """
    names = names or {}
    staged = list(through_host)
    pairs = {(gpu, nic) for gpu, nic, _ in staged}
    found = _with_used(_numbered(machine, names), set(used), pairs)
    graph = found.graph.copy()
    for host, listed in names.items():
        for number, node in found.nics(host).items():
            if number in listed:
                graph.nodes[node]["name"] = listed[number]
    ends = [
        (f"GPU{gpu}", found.nics(found.host_of[f"GPU{gpu}"])[nic], sends)
        for gpu, nic, sends in staged
    ]
    ways = frozenset((gpu, nic) if sends else (nic, gpu) for gpu, nic, sends in ends)
    return replace(found, graph=graph, through_host=ways)


def _numbered(machine: Machine, names: Mapping[int, Mapping[int, str]]) -> Machine:
    """Give NICs the numbers of a log, on hosts that have NICs of the names in it."""
    graph = machine.graph.copy()
    for host, listed in names.items():
        known = {node: graph.nodes[node].get("name") for node in machine.nics(host).values()}
        if set(known.values()) & set(listed.values()):
            numbers = {name: number for number, name in listed.items()}
            for node, name in known.items():
                graph.nodes[node]["index"] = numbers.get(name)
    return replace(machine, graph=graph)


def _with_used(
    machine: Machine, used: Set[tuple[int, int]], staged: Set[tuple[int, int]]
) -> Machine:
    """Add NICs that the machine does not have, joined with GPUs, those of `staged` with CPUs."""
    by_host: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for gpu, nic in used | staged:
        by_host[machine.host_of[f"GPU{gpu}"]].add((gpu, nic))
    nodes: dict[str, dict[str, object]] = {}
    ends: dict[tuple[str, str], None] = {}
    number = max(map(number_of, machine.nodes("nic")), default=-1) + 1
    for host, pairs in sorted(by_host.items()):
        named = machine.nics(host)
        new = {nic: f"NIC{number + nic}" for _, nic in sorted(pairs) if nic not in named}
        number += max(new, default=-1) + 1
        nodes |= {node: {"type": "nic", "index": nic} for nic, node in new.items()}
        for gpu, nic in sorted(pairs):
            if nic in new:
                memory = machine.route(gpu, None) if (gpu, nic) in staged else None
                if memory is not None:
                    ends[memory.nodes[-1], new[nic]] = None
                if memory is None or (gpu, nic) in used:
                    ends[f"GPU{gpu}", new[nic]] = None
    used_gpus = {f"GPU{gpu}" for gpu, _ in used | staged}  # of these it is no longer unknown
    links = [Link((node, FABRIC), "network", known="told") for node in nodes]
    links += [Link(each, "pcie", known="told") for each in ends]
    kept = [
        link for link in machine.links if link.ends[0] not in used_gpus or FABRIC not in link.ends
    ]
    return _more(machine.with_links(kept), nodes, links)


def _more(
    machine: Machine, nodes: Mapping[str, Mapping[str, object]], links: Iterable[Link]
) -> Machine:
    graph = machine.graph.copy()
    graph.add_nodes_from((node, dict(known)) for node, known in nodes.items())
    graph.add_edges_from((*link.ends, {"link": link}) for link in links)
    return replace(machine, graph=graph)
