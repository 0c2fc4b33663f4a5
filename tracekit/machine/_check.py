"""Find implausible and missing parts of a machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx

from tracekit.machine._graph import PEER_LINKS, Machine
from tracekit.machine._products import nvlink_of, products_of

_MOST_BRICKS = 18
_SHOWN = 4


def problems(machine: Machine) -> tuple[str, ...]:
    """Return the problems of a machine to look at before trusting it, one sentence each.

    That is: that nothing is told of NVLinks, GPUs without any link, GPUs with more NVLinks than any
    GPU has or with another number than the others, GPUs that no route joins, and parts that neither
    PCIe nor the host joins.
    """
    tests = (_untold, _unlinked, _brick_counts, _unjoined, _islands)
    return tuple(text for test in tests for text in test(machine))


def unknown_bandwidths(machine: Machine) -> tuple[str, ...]:
    """Return which links are of unknown bandwidth, one sentence each type.

    That is no problem of a topology: few inputs tell the bandwidth of links between sockets, and
    `nvidia-smi topo -m` tells none, though names of GPUs in a run do.
    """
    found = []
    for kind in ("nvlink", "xgmi", "c2c", "pcie", "socket", "network"):
        names = [
            link.name for link in machine.links if link.type == kind and link.bandwidth is None
        ]
        if names:
            found.append(f"{len(names)} {kind} links of unknown bandwidth: {_list(names)}")
    return tuple(found)


def _untold(machine: Machine) -> list[str]:
    if machine.tells_peers or len(machine.gpus) == 1:
        return []
    text = (
        "it names no NVLinks, and does not say that there are none, as templates that were written"
        " by hand and shares of a board do: no route between its GPUs is known, unless a run tells"
        " of GPUs whose links are"
    )
    return [text]


def _unlinked(machine: Machine) -> list[str]:
    lone = [gpu for gpu in machine.nodes("gpu") if not machine.graph.degree(gpu)]
    return [f"{_list(lone)}: no link at all"] if lone else []


def _brick_counts(machine: Machine) -> list[str]:
    sums = {
        f"GPU{gpu}": sum(row) + machine.switch_bricks(gpu)
        for gpu, row in zip(machine.gpus, machine.nvlink_matrix(), strict=True)
    }
    products = {f"GPU{number}": name for number, name in products_of(machine).items()}
    found = [
        f"{gpu}: {count} NVLinks, more than {products.get(gpu) or 'any GPU'} has ({most})"
        for gpu, count in sums.items()
        if count > (most := _most_bricks(products.get(gpu)))
    ]
    if len(set(sums.values())) > 1:
        by_count = {
            count: _list([gpu for gpu in sums if sums[gpu] == count])
            for count in sorted(set(sums.values()))
        }
        each = "; ".join(f"{count} of {gpus}" for count, gpus in by_count.items())
        found.append(f"GPUs differ in their number of NVLinks: {each}")
    return found


def _most_bricks(product: str | None) -> int:
    """Return how many NVLinks a GPU of this name can have."""
    known = nvlink_of(product)
    return _MOST_BRICKS if known is None or known.bricks is None else known.bricks


def _unjoined(machine: Machine) -> list[str]:
    if not machine.tells_peers:
        return []
    pairs = [
        f"GPU{src}-GPU{dst}"
        for src, dst in itertools.combinations(machine.gpus, 2)
        if machine.route(src, dst) is None
    ]
    return [f"{len(pairs)} pairs of GPUs without a route: {_list(pairs)}"] if pairs else []


def _islands(machine: Machine) -> list[str]:
    graph = nx.Graph()
    graph.add_nodes_from(machine.nodes("gpu"))
    graph.add_edges_from(link.ends for link in machine.links if link.type not in PEER_LINKS)
    parts = [sorted(part & set(machine.nodes("gpu"))) for part in nx.connected_components(graph)]
    with_gpus = [part for part in parts if part]
    if len(with_gpus) < 2:  # noqa: PLR2004
        return []
    each = " | ".join(_list(part) for part in with_gpus[:_SHOWN])
    return [f"{len(with_gpus)} parts that PCIe and hosts do not join: {each}"]


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
