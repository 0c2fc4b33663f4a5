"""The network between hosts: NICs, and one fabric that joins them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

import networkx as nx

from tracekit.machine._graph import FABRIC, Link, Machine, number_of


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
    told = {f"GPU{gpu}" for gpu, _ in used | staged}  # of these it is no longer unknown
    links = [Link((node, FABRIC), "network", known="told") for node in nodes]
    links += [Link(each, "pcie", known="told") for each in ends]
    kept = [link for link in machine.links if link.ends[0] not in told or FABRIC not in link.ends]
    return _more(machine.with_links(kept), nodes, links)


def _more(
    machine: Machine, nodes: Mapping[str, Mapping[str, object]], links: Iterable[Link]
) -> Machine:
    graph = machine.graph.copy()
    graph.add_nodes_from((node, dict(known)) for node, known in nodes.items())
    graph.add_edges_from((*link.ends, {"link": link}) for link in links)
    return replace(machine, graph=graph)
