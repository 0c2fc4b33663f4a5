"""A machine as a graph: GPUs, switches, CPUs (host bridges) and NICs, and the links between them.

Nodes are named `GPU3`, `NVSwitch0`, `PCIe2`, `CPU1` and `NIC0`; the network between hosts is the
node `Fabric0`. An edge is one link, with a type and a bandwidth per direction; an NVLink edge bonds
several NVLinks (`bricks`).
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
Known = Literal["stated", "recognised", "assumed"]
PEER_LINKS: tuple[LinkType, ...] = ("nvlink", "xgmi")
"""Types of links between GPUs, of NVIDIA and AMD."""

PREFIXES: Mapping[NodeType, str] = {
    "gpu": "GPU", "nvswitch": "NVSwitch", "pcie": "PCIe", "host": "CPU", "nic": "NIC",
    "fabric": "Fabric",
}  # fmt: skip
"""Type of a node -> prefix of its name."""
FABRIC = "Fabric0"
"""Node of the network between hosts, whose switches are unknown."""

_KNOWN: Mapping[Origin, Known] = {
    "file": "stated", "trace": "stated", "preset": "recognised", "recognised": "recognised",
    "assumed": "assumed",
}  # fmt: skip

_HOPS: Mapping[LinkType, int] = {
    "nvlink": 1, "xgmi": 1, "c2c": 1, "pcie": 1, "socket": 4, "network": 64,
}  # fmt: skip
"""Length of a link in a route; sockets are so long that they are crossed only if unavoidable."""


@dataclass(frozen=True)
class Link:
    """A link between two nodes of a machine (GPU, switch, CPU, NIC, network)."""

    ends: tuple[str, str]
    """Names of the nodes, in the order of the graph."""
    type: LinkType
    """``nvlink``, ``xgmi`` (AMD's), ``c2c``, ``pcie``, ``socket`` (between CPUs) or ``network``."""
    bricks: int | None = None
    """Number of NVLinks or xGMI links that are bonded; None for other types."""
    bandwidth: int | None = None
    """Peak per direction, bytes/s; None where unknown."""
    known: Known | None = None
    """Evidence for the link (stated, recognised or assumed), if it differs from that for the
    machine; else None."""

    @property
    def name(self) -> str:
        """The names of both ends, such as `GPU0-GPU3`."""
        return "-".join(self.ends)

    @property
    def is_peer(self) -> bool:
        """Whether the link is of a type that joins GPUs to each other (NVLink, xGMI)."""
        return self.type in PEER_LINKS


@dataclass(frozen=True)
class Route:
    """The path of a transfer through a machine: the links that it crosses, in order."""

    nodes: tuple[str, ...]
    """Names of the nodes along the route, both ends included."""
    links: tuple[Link, ...]
    """The links between them."""

    @property
    def name(self) -> str:
        """The names of the nodes along the route, such as `GPU0>PCIe0>CPU0`."""
        return ">".join(self.nodes)

    @property
    def bandwidth(self) -> int | None:
        """Peak bandwidth of the slowest link, bytes/s; None if the peak of any link is unknown."""
        widths = [link.bandwidth for link in self.links]
        known = [width for width in widths if width is not None]
        return min(known) if known and len(known) == len(widths) else None

    @property
    def type(self) -> str:
        """Slowest kind of link on the route: `network`, `socket`, `pcie`, `c2c`, `xgmi`, `nvlink`.

        The kinds are listed from slow to fast. `socket` is a link between CPU sockets; a route of
        type `pcie` stays within one socket. A route without links is `local`.
        """
        types = {link.type for link in self.links}
        order = ("network", "socket", "pcie", "c2c", "xgmi", "nvlink")
        return next((each for each in order if each in types), "local")


@dataclass(frozen=True)
class Relay:
    """A GPU over which two GPUs without a common NVLink are joined by two NVLink hops."""

    gpu: int
    """Number of the GPU in between."""
    bricks: tuple[int, int]
    """Number of NVLinks of the first hop and of the second hop."""
    bandwidth: int | None
    """Peak bandwidth of the slower hop, bytes/s."""


@dataclass(frozen=True)
class Machine:
    """GPUs of one or more hosts, and the links between them."""

    name: str
    """Name of the machine: its preset, or the file it was read from."""
    graph: nx.Graph
    """Nodes have ``type`` (`NodeType`) and, as far as known, ``pci_bus``, ``uuid``, ``product`` and
    ``numa``; edges have ``link`` (`Link`)."""
    origin: Origin = "file"
    """Source of the description, which decides how certain it is: a ``file`` from the user, the
    ``trace`` itself, a ``preset`` that the user named, ``recognised`` from the names and number of
    the GPUs, or ``assumed`` without evidence."""
    warnings: tuple[str, ...] = field(default=())
    """Sentences to display about the machine."""
    source: str | None = None
    """Reference for the data, such as a data sheet, in words; None if the output of a tool was
    read."""
    tells_peers: bool = True
    """Whether the data show which GPUs NVLink or xGMI joins. If False, routes between GPUs are
    unknown."""
    given: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(GPU, GPU), in both orders -> their entry in the topology matrix that was read, such as
    `PHB`; empty if no matrix was read."""
    untold: frozenset[frozenset[int]] = frozenset()
    """Pairs of GPUs whose connection is unknown though other links of both are known; these have no
    known route."""
    through_host: frozenset[tuple[str, str]] = frozenset()
    """Pairs of node names, one of a GPU and one of a NIC, sender first, between which data go
    through host memory instead of directly."""

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
        """Build a machine from its nodes (name -> attributes, with ``type``) and links."""
        graph = nx.Graph()
        graph.add_nodes_from((node, dict(attributes)) for node, attributes in nodes.items())
        graph.add_edges_from((*link.ends, {"link": link}) for link in links)
        return cls(name, graph, origin, tuple(warnings), source)

    def with_links(self, links: Iterable[Link]) -> Machine:
        """Return a machine with the same nodes, whose links are replaced by `links`."""
        nodes = dict(self.graph.nodes(data=True))
        return replace(self, graph=Machine.of(self.name, nodes, links).graph)

    def nodes(self, kind: NodeType) -> list[str]:
        """Return the names of the nodes of a type, in order of their numbers."""
        return self._by_type[kind]

    @cached_property
    def _by_type(self) -> dict[NodeType, list[str]]:
        return {kind: self._of_type(kind, self.graph) for kind in PREFIXES}

    def _of_type(self, kind: NodeType, nodes: Iterable[str]) -> list[str]:
        """Return the `nodes` (names) that have the type `kind`, in order of their numbers."""
        known = self.graph.nodes
        return sorted((n for n in nodes if known[n].get("type") == kind), key=number_of)

    @cached_property
    def gpus(self) -> list[int]:
        """Indices of the GPUs, in order."""
        return [number_of(node) for node in self.nodes("gpu")]

    @cached_property
    def links(self) -> list[Link]:
        """All links of the machine, in order of the names of their ends."""
        found: list[Link] = [link for _, _, link in self.graph.edges(data="link")]
        return sorted(found, key=lambda link: [(len(end), end) for end in link.ends])

    def link(self, one: str, other: str) -> Link | None:
        """Return the link between the nodes named `one` and `other`; None if nothing joins them."""
        found: Link | None = self.graph.get_edge_data(one, other, {}).get("link")
        return found

    def known(self, link: Link) -> Known:
        """Return the evidence for a link: stated in a file or trace, recognised, or assumed."""
        return link.known or _KNOWN[self.origin]

    def bricks(self, src: int, dst: int) -> int:
        """Return the number of NVLinks (or xGMI links) between GPUs `src` and `dst`; 0 if none.

        If the number is not known, the result is 1: at least one link joins them.
        """
        link = self.link(f"GPU{src}", f"GPU{dst}")
        return link.bricks or 1 if link is not None and link.type in PEER_LINKS else 0

    def nvlink_matrix(self) -> list[list[int]]:
        """Return a matrix with the number of direct NVLinks between each two GPUs.

        Rows and columns are in order of GPU numbers. NVLinks to an NVSwitch are not counted, since
        all GPUs behind the switch share them.
        """
        return [[self.bricks(src, dst) for dst in self.gpus] for src in self.gpus]

    def switch_bricks(self, gpu: int) -> int:
        """Return the number of NVLinks from a GPU to NVSwitches."""
        links = [self.link(f"GPU{gpu}", switch) for switch in self._switches(gpu)]
        return sum(link.bricks or 0 for link in links if link is not None)

    def switch(self, gpu: int) -> str | None:
        """Return the name of the NVSwitch that a GPU's NVLinks lead to; None if there is none."""
        return next(iter(self._switches(gpu)), None)

    def _switches(self, gpu: int) -> list[str]:
        return self._of_type("nvswitch", self.graph.adj.get(f"GPU{gpu}", ()))

    def switch_route(self, src: int | None, dst: int | None) -> Route | None:
        """Return the route from a GPU to its NVSwitch, or back; None if the GPU has no switch.

        Parameters
        ----------
        src, dst
            Start and end of the route: one is the number of the GPU, the other None for the switch.
        """
        gpu = dst if src is None else src
        switch = None if gpu is None else self.switch(gpu)
        if switch is None:
            return None
        nodes = (f"GPU{gpu}", switch)
        return self._along(nodes[::-1] if src is None else nodes)

    @cached_property
    def hosts(self) -> list[frozenset[str]]:
        """The names of the nodes of each host, ordered by GPU.

        A machine without a network between hosts (fabric) is a single host.
        """
        inside = self.graph.subgraph(set(self.graph) - set(self.nodes("fabric")))
        parts = [frozenset(part) for part in nx.connected_components(inside)]
        if not self.nodes("fabric"):
            return [frozenset(inside)]
        last = f"GPU{len(self.gpus)}"
        return sorted(parts, key=lambda part: number_of([*self._of_type("gpu", part), last][0]))

    @cached_property
    def host_of(self) -> dict[str, int]:
        """Name of a node -> number of its host, which is the index in `hosts`."""
        return {node: place for place, part in enumerate(self.hosts) for node in part}

    def nics(self, host: int) -> dict[int, str]:
        """Return the NICs of a host: NIC number, counted per host as in NCCL logs -> node name.

        A NIC whose attribute ``index`` is None has no number and is left out.
        """
        own = self._of_type("nic", self.hosts[host])
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
        """Return the route of a copy between two GPUs, or between a GPU and host memory (None).

        The route is the direct NVLink if there is one, else NVLinks through a switch, else PCIe and
        host bridges; a copy does not use another GPU as a relay. Between GPUs of two hosts it leads
        over the fabric, through the NIC nearest to the GPU on each host. Between GPU and NIC data
        go directly, or through host memory for pairs in the machine's `through_host`.

        Parameters
        ----------
        src, dst
            Numbers of the GPUs; None for the host memory nearest to the other end.
        through_host
            Whether the copy is staged in host memory near the source GPU.
        nics
            Number of the NIC to use on the source host and on the destination host, counted from 0;
            None for the nearest one.

        Returns
        -------
        The route; None if no route is known, or a GPU is not in the machine.
        """
        key = (src, dst, through_host, nics)
        if key not in self._routes:
            found = self._find_route(src, dst, through_host=through_host)
            self._routes[key] = found or self._over_fabric(src, dst, nics)
        return self._routes[key]

    def relays(self, src: int, dst: int) -> list[Relay]:
        """Return relays between GPUs `src` and `dst` (GPUs joined to both by NVLink), best first.

        Empty if the two have a direct NVLink.
        """
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
        """Return the nodes from a GPU to the network between hosts (fabric).

        The path leads through the NIC of the given number, else through the nearest one. `sends`:
        whether the GPU sends (else it receives).
        """
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
        way = near[self._of_type("gpu", self.hosts[host]).index(gpu) % len(near)]
        ends = (gpu, way[-1]) if sends else (way[-1], gpu)
        return [*(self._by_memory(way) if ends in self.through_host else way), fabric]

    def _by_memory(self, way: list[str]) -> list[str]:
        """Return a path from a GPU to a NIC through the host memory that is nearest to the GPU.

        `way` is the direct path from the GPU to the NIC, by node names; it is returned if no path
        through host memory is known.
        """
        up = self._to_host(number_of(way[0]), None)
        across = None if up is None else _path(self._host_paths, up.nodes[-1], way[-1])
        return way if up is None or across is None else [*up.nodes, *across[1:]]

    def _to_host(self, src: int | None, dst: int | None) -> Route | None:
        gpu = f"GPU{dst if src is None else src}"
        memories = self._of_type("host", _reached(self._host_paths, gpu))
        ways = [_path(self._host_paths, gpu, host) for host in memories]
        nodes = min((way for way in ways if way is not None), key=len, default=None)
        if nodes is None:
            return None
        return self._along(nodes[::-1] if src is None else nodes)

    def _along(self, nodes: Sequence[str]) -> Route:
        links = [self.graph.edges[pair]["link"] for pair in itertools.pairwise(nodes)]
        return Route(tuple(nodes), tuple(links))

    @cached_property
    def _nvlink_paths(self) -> nx.Graph:
        """Graph of the NVLinks and xGMI links that a copy between GPUs may use."""
        return _weighted(link for link in self.links if self._joins_gpus(link))

    @cached_property
    def _host_paths(self) -> nx.Graph:
        return _weighted(
            link
            for link in self.links
            if not self._joins_gpus(link) and not self._of_type("fabric", link.ends)
        )

    def _joins_gpus(self, link: Link) -> bool:
        """Test whether an NVLink or xGMI link leads to no CPU (on POWER9 some NVLinks do).

        False for links of other types.
        """
        return link.type in PEER_LINKS and not self._of_type("host", link.ends)


def number_of(node: str) -> int:
    """Return the number at the end of a node's name, such as 3 for `GPU3`."""
    digits = re.search(r"\d+$", node)
    return int(digits[0]) if digits else 0


def _weighted(links: Iterable[Link]) -> nx.Graph:
    graph = nx.Graph()
    for link in links:
        graph.add_edge(*link.ends, hops=_HOPS[link.type])
    return graph


def _reached(graph: nx.Graph, start: str) -> set[str]:
    return nx.node_connected_component(graph, start) if start in graph else set()


def _path(graph: nx.Graph, start: str, end: str) -> list[str] | None:
    """Return the shortest path that passes no GPU or NIC on the way; None if there is none."""
    near = _reached(graph, start)
    if end not in near:
        return None
    between = [node for node in near if not node.startswith(("GPU", "NIC"))]
    part = graph.subgraph([start, end, *between])
    try:
        path: list[str] = nx.shortest_path(part, start, end, weight="hops")
    except nx.NetworkXNoPath:
        return None
    return path


# -- the network between hosts: NICs, and one fabric that joins them all -----------------------


def with_fabric(machine: Machine) -> Machine:
    """Add the network between hosts (a fabric node), linked to each host's NICs.

    If a host has no NICs, its GPUs are linked to the fabric. The peak bandwidth of a link is the
    attribute ``bandwidth`` of its NIC or GPU; without that attribute it is unknown.
    """
    nodes = dict(machine.graph.nodes(data=True))
    parts = [set(part) for part in nx.connected_components(machine.graph)]
    nics, gpus = {*machine.nodes("nic")}, {*machine.nodes("gpu")}
    ends = [end for part in parts for end in (part & nics or part & gpus)]
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
    """Add the NICs that an NCCL log mentions and the machine lacks.

    Parameters
    ----------
    machine
        The machine, which has a fabric node between its hosts.
    used
        Pairs of a GPU and the number of a NIC on its host, counted from 0, between which data go
        directly.
    names
        Index of a host -> number of a NIC in the log -> its system name. If the machine has NICs of
        these names, they get the log's numbers, and other NICs are not used.
    through_host
        Triples for data that go through host memory: GPU, NIC, and whether the GPU is the sender.
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
    """Give NICs the numbers that an NCCL log uses, on hosts where NIC names occur in the log.

    `names`: host -> number in the log -> NIC name.
    """
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
    """Add NICs that an NCCL log mentions and the machine lacks, for pairs of GPU and NIC number.

    A NIC is linked to the GPU in `used` pairs, and to the GPU's CPU in `staged` pairs.
    """
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
    links = [Link((node, FABRIC), "network", known="stated") for node in nodes]
    links += [Link(each, "pcie", known="stated") for each in ends]
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
