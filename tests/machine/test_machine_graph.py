"""Machines as graphs: routes, relays and bandwidths, on the DGX-1 and on small ones by hand."""

from __future__ import annotations

import itertools

import pytest
from known_machines import HYBRID_CUBE_MESH

from tracekit.machine import Link, Machine, Relay, load_preset

# Relay and bricks of both hops, best first, for each two GPUs that no NVLink joins.
RELAYS = {
    (0, 5): [(1, (1, 2)), (4, (2, 1))],
    (0, 6): [(4, (2, 1)), (2, (1, 1))],
    (0, 7): [(4, (2, 2)), (3, (2, 1))],
    (1, 4): [(0, (1, 2)), (5, (2, 1))],
    (1, 6): [(5, (2, 2)), (2, (2, 1))],
    (1, 7): [(5, (2, 1)), (3, (1, 1))],
    (2, 4): [(0, (1, 2)), (6, (1, 1))],
    (2, 5): [(1, (2, 2)), (6, (1, 2))],
    (2, 7): [(3, (2, 1)), (6, (1, 2))],
    (3, 4): [(0, (2, 2)), (7, (1, 2))],
    (3, 5): [(1, (1, 2)), (7, (1, 1))],
    (3, 6): [(2, (2, 1)), (7, (1, 2))],
}


@pytest.fixture(scope="module")
def dgx1v() -> Machine:
    return load_preset("dgx1v")


def test_dgx1v_is_the_hybrid_cube_mesh(dgx1v: Machine) -> None:
    matrix = dgx1v.nvlink_matrix()
    assert matrix == HYBRID_CUBE_MESH
    assert [sum(row) for row in matrix] == [6] * 8
    edges = [dgx1v.bricks(*pair) for pair in itertools.combinations(dgx1v.gpus, 2)]
    assert sum(edges) == 24
    assert [edges.count(bricks) for bricks in (1, 2, 0)] == [8, 8, 12]


def test_each_two_gpus_of_dgx1v_without_nvlink_have_two_relays(dgx1v: Machine) -> None:
    found = {
        pair: [(relay.gpu, relay.bricks) for relay in dgx1v.relays(*pair)]
        for pair in itertools.combinations(dgx1v.gpus, 2)
        if not dgx1v.bricks(*pair)
    }
    assert found == RELAYS
    for pair, via in {(0, 7): 4, (1, 6): 5, (2, 5): 1, (3, 4): 0}.items():
        assert dgx1v.relays(*pair)[0] == Relay(via, (2, 2), 50_000_000_000)
        others = [relay.bandwidth for relay in dgx1v.relays(*pair)[1:]]
        assert others == [25_000_000_000]


def test_no_relays_where_none_is_needed(dgx1v: Machine) -> None:
    assert dgx1v.relays(0, 3) == []
    assert dgx1v.relays(2, 2) == []
    assert load_preset("dgx2").relays(0, 9) == []


def test_utilisation_by_link_bandwidth(dgx1v: Machine) -> None:
    """240 MB in 9.6 ms are 25 GB/s: all of a single edge and half of a double one."""
    achieved = 240_000_000 * 10**9 // 9_600_000
    assert achieved == 25_000_000_000
    single, double = dgx1v.link("GPU0", "GPU1"), dgx1v.link("GPU3", "GPU0")
    assert single is not None
    assert double is not None
    assert single.bandwidth is not None
    assert double.bandwidth is not None
    assert achieved / single.bandwidth == 1
    assert achieved / double.bandwidth == 0.5


@pytest.mark.parametrize(
    ("ends", "nodes", "kind", "bandwidth"),
    [
        ((0, 3), "GPU0>GPU3", "nvlink", 50_000_000_000),
        ((3, 0), "GPU3>GPU0", "nvlink", 50_000_000_000),
        ((0, 5), "GPU0>PCIe0>CPU0>CPU1>PCIe2>GPU5", "socket", None),
        ((0, None), "GPU0>PCIe0>CPU0", "pcie", 15_753_846_154),
        ((None, 7), "CPU1>PCIe3>GPU7", "pcie", 15_753_846_154),
    ],
)
def test_routes_of_dgx1v(
    dgx1v: Machine,
    ends: tuple[int | None, int | None],
    nodes: str,
    kind: str,
    bandwidth: int | None,
) -> None:
    route = dgx1v.route(*ends)
    assert route is not None
    assert (route.name, route.type, route.bandwidth) == (nodes, kind, bandwidth)


def test_a_staged_copy_crosses_no_nvlink(dgx1v: Machine) -> None:
    near, far = dgx1v.route(0, 1, through_host=True), dgx1v.route(0, 7, through_host=True)
    assert near is not None
    assert far is not None
    assert (near.name, near.type) == ("GPU0>PCIe0>CPU0>PCIe0>GPU1", "pcie")
    assert (far.name, far.type) == ("GPU0>PCIe0>CPU0>CPU1>PCIe3>GPU7", "socket")


def test_routes_through_a_switch_and_none() -> None:
    dgx2 = load_preset("dgx2")
    route = dgx2.route(0, 15)
    assert route is not None
    assert (route.name, route.bandwidth) == ("GPU0>NVSwitch0>GPU15", 150_000_000_000)
    assert dgx2.switch_bricks(3) == 6
    assert dgx2.bricks(0, 15) == 0
    assert dgx2.route(0, 16) is None
    assert dgx2.route(4, 4) is None


def test_a_route_over_a_link_of_unknown_bandwidth_has_none() -> None:
    route = load_preset("dgx-a100").route(0, 7, through_host=True)
    assert route is not None
    assert route.type == "socket"
    assert route.bandwidth is None


def test_nvlinks_to_the_host_are_ways_to_it_and_join_no_gpus() -> None:
    """On POWER9 both GPUs of a socket have NVLinks to its CPU."""
    nodes = {"GPU0": {"type": "gpu"}, "GPU1": {"type": "gpu"}, "CPU0": {"type": "host"}}
    links = [Link((f"GPU{gpu}", "CPU0"), "nvlink", 3, 75_000_000_000) for gpu in (0, 1)]
    links.append(Link(("GPU0", "GPU1"), "nvlink", 3, 75_000_000_000))
    machine = Machine.of("power9", nodes, links)
    to_host, direct, staged = (
        machine.route(0, None),
        machine.route(0, 1),
        machine.route(0, 1, through_host=True),
    )
    assert to_host is not None
    assert direct is not None
    assert staged is not None
    assert (to_host.name, to_host.type) == ("GPU0>CPU0", "nvlink")
    assert direct.name == "GPU0>GPU1"
    assert staged.name == "GPU0>CPU0>GPU1"


def test_a_machine_with_other_links_keeps_the_rest(dgx1v: Machine) -> None:
    bare = dgx1v.with_links([])
    assert bare.gpus == dgx1v.gpus
    assert bare.links == []
    assert (bare.name, bare.origin, bare.source) == ("dgx1v", "preset", dgx1v.source)
