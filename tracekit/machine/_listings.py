"""List the links and routes of a machine as tables, and find implausible or missing parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx
import polars as pl

from tracekit.machine._graph import PEER_LINKS, Machine, Route
from tracekit.machine._products import nvlink_of, products_of
from tracekit.support.wording import count

_GB = 1e9
_LINKS = {
    "link": pl.String, "type": pl.String, "nvlinks": pl.Int64, "bandwidth_gb_s": pl.Float64,
    "known": pl.String,
}  # fmt: skip
_ROUTES = {
    "src": pl.String, "dst": pl.String, "route": pl.String, "type": pl.String,
    "bottleneck_gb_s": pl.Float64,
}  # fmt: skip
_RELAYS = {
    "src": pl.String, "dst": pl.String, "relay": pl.String, "nvlinks_in": pl.Int64,
    "nvlinks_out": pl.Int64, "bottleneck_gb_s": pl.Float64, "best": pl.Boolean,
}  # fmt: skip


def adjacency(machine: Machine) -> pl.DataFrame:
    """Return how each pair of GPUs is connected, as a matrix like that of ``nvidia-smi topo -m``.

    Returns
    -------
    ``gpu``, and one column per GPU: ``X`` for the GPU itself. If the machine was read from such a
    matrix, all other entries are copied from it. Otherwise ``NVn`` for n NVLinks (to the switch, if
    a switch joins the GPUs), ``XGMI``, ``PIX`` for one PCIe switch, ``PXB`` for several, ``NODE``
    for the host bridge of one CPU, ``SYS`` across CPUs; null if no route is known. ``nvlinks``:
    number of NVLinks of the GPU, null if it is unknown for one of its connections. ``cpu``: the
    nearest CPU.
    """
    rows = [
        {
            "gpu": f"GPU{src}",
            **{f"GPU{dst}": _relation(machine, src, dst) for dst in machine.gpus},
            "nvlinks": _bricks(machine, src),
            "cpu": _nearest_cpu(machine, src),
        }
        for src in machine.gpus
    ]
    types = {"gpu": pl.String, "nvlinks": pl.Int64, "cpu": pl.String}
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)


def link_table(machine: Machine) -> pl.DataFrame:
    """Return a table of the links of a machine (NVLink, PCIe, between sockets, network).

    Returns
    -------
    ``link, type, nvlinks, bandwidth_gb_s`` (peak per direction, GB/s; null if unknown) and
    ``known``: ``stated`` by a file or the trace; ``recognised`` by product name from
    a preset; or ``assumed``.
    """
    rows = [
        (link.name, link.type, link.bricks, _gb_s(link.bandwidth), machine.known(link))
        for link in machine.links
    ]
    return pl.DataFrame(rows, schema=_LINKS, orient="row")


def route_table(machine: Machine) -> pl.DataFrame:
    """Return the route of a copy between each pair of GPUs.

    Returns
    -------
    ``src, dst, route, type`` (`nvlink`, `pcie`, `socket`) and ``bottleneck_gb_s``, the peak
    bandwidth of the slowest link, GB/s; null if there is no route, or if the peak of a link is
    unknown.
    """
    rows = [
        (f"GPU{src}", f"GPU{dst}", *_described(machine.route(src, dst)))
        for src, dst in itertools.combinations(machine.gpus, 2)
    ]
    return pl.DataFrame(rows, schema=_ROUTES, orient="row")


def relay_table(machine: Machine) -> pl.DataFrame:
    """Return the relays of GPU pairs without a common NVLink: GPUs joined to both by NVLink.

    Returns
    -------
    One row per pair and relay: ``src, dst, relay, nvlinks_in, nvlinks_out, bottleneck_gb_s`` (peak
    of the slower hop, GB/s) and ``best``: true if no other relay of the pair has more NVLinks in
    its narrower hop.
    """
    rows = []
    for src, dst in itertools.combinations(machine.gpus, 2):
        relays = machine.relays(src, dst)
        widest = max((min(relay.bricks) for relay in relays), default=0)
        rows += [
            (f"GPU{src}", f"GPU{dst}", f"GPU{relay.gpu}", *relay.bricks, _gb_s(relay.bandwidth),
             min(relay.bricks) == widest)
            for relay in relays
        ]  # fmt: skip
    return pl.DataFrame(rows, schema=_RELAYS, orient="row")


def _bricks(machine: Machine, gpu: int) -> int | None:
    """Return the number of NVLinks of a GPU; None if unknown for any of its connections."""
    counts = [link.bricks for link in machine.links if link.is_peer and f"GPU{gpu}" in link.ends]
    known = [bricks for bricks in counts if bricks is not None]
    return sum(known) if len(known) == len(counts) else None


def _gb_s(bandwidth: int | None) -> float | None:
    return None if bandwidth is None else bandwidth / _GB


def _described(route: Route | None) -> Sequence[str | float | None]:
    return (None, None, None) if route is None else (route.name, route.type, _gb_s(route.bandwidth))


def _relation(machine: Machine, src: int, dst: int) -> str | None:
    if src == dst:
        return "X"
    cell = machine.given.get((f"GPU{src}", f"GPU{dst}"))
    route = machine.route(src, dst)
    return cell if cell is not None or route is None else _word(route)


def _word(route: Route) -> str:
    between = route.nodes[1:-1]
    if route.type == "nvlink":
        return f"NV{min(link.bricks or 0 for link in route.links)}"
    if route.type == "xgmi":
        return "XGMI"
    if route.type == "socket" or any(node.startswith("CPU") for node in between):
        return "SYS" if route.type == "socket" else "NODE"
    return "PIX" if len(between) == 1 else "PXB"


def _nearest_cpu(machine: Machine, gpu: int) -> str | None:
    route = machine.route(gpu, None)
    return None if route is None else route.nodes[-1]


_MOST_BRICKS = 18
_SHOWN = 4


def problems(machine: Machine) -> tuple[str, ...]:
    """Return warnings about implausible or missing parts of a machine, one sentence each.

    Problems are: no information on NVLinks; GPUs without any link; GPUs with more NVLinks than any
    product has, or with a number that differs between GPUs; GPUs without a route between them; and
    groups of nodes that neither PCIe nor a host bridge joins.
    """
    tests = (_untold, _unlinked, _brick_counts, _unjoined, _islands)
    return tuple(text for test in tests for text in test(machine))


def unknown_bandwidths(machine: Machine) -> tuple[str, ...]:
    """Return a sentence for each type of link with unknown bandwidth.

    Unknown bandwidths are not among the `problems`: few inputs give the bandwidth of links between
    sockets, and `nvidia-smi topo -m` gives none, though product names of GPUs in a run imply some.
    """
    found = []
    for kind in ("nvlink", "xgmi", "c2c", "pcie", "socket", "network"):
        names = [
            link.name for link in machine.links if link.type == kind and link.bandwidth is None
        ]
        if names:
            found.append(
                f"{count(len(names), f'{kind} link of unknown bandwidth')}: {_list(names)}"
            )
    return tuple(found)


def _untold(machine: Machine) -> list[str]:
    if machine.tells_peers or len(machine.gpus) == 1:
        return []
    text = (
        "it names no NVLinks, and does not state that there are none, as in templates written by"
        " hand and shares of a board: routes between its GPUs are unknown, unless a run has GPUs"
        " with known links"
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
    """Return the largest number of NVLinks that a GPU of this product name can have."""
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
    return [f"{count(len(pairs), 'pair of GPUs without a route')}: {_list(pairs)}"] if pairs else []


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
