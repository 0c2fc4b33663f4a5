"""Links of the simulator: shares, contention and routes, by hand and against a naive account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simulate.collectives import find_rings, ring_volume
from simulate.doing import Clock
from simulate.links import Flow, Links, fair_rates
from simulate.machine import Link, Machine, load_machine
from simulate.parameters import load_parameters
from simulated import PLAIN

ONE = Machine((Link(("GPU0", "GPU1"), "nvlink", 25e9, 1),))
CHAIN = Machine(
    (
        Link(("GPU0", "GPU1"), "nvlink", 20e9, 1),
        Link(("GPU1", "GPU2"), "nvlink", 5e9, 1),
    )
)


def _arrivals(machine: Machine, *movements: tuple[int, tuple[str, ...], int]) -> list[int]:
    """When movements (begin, route, bytes) arrive; 25 GB/s are 25 bytes per ns."""
    env = Clock()
    links = Links(env, machine, load_parameters(**PLAIN))
    arrived = [0] * len(movements)

    def move(number: int, begin: int, route: tuple[str, ...], size: int) -> Iterator[simpy.Event]:
        yield env.timeout(begin)
        yield links.move(route, size)
        arrived[number] = env.now

    for number, movement in enumerate(movements):
        env.process(move(number, *movement))
    env.run()
    return arrived


def test_alone_a_movement_has_all_of_a_link() -> None:
    assert _arrivals(ONE, (0, ("GPU0>GPU1",), 1_000)) == [40]


def test_two_share_a_direction() -> None:
    # 20 ns alone are 500 bytes. Both share until the first is done at 60; the second has 500 left.
    way = ("GPU0>GPU1",)
    assert _arrivals(ONE, (0, way, 1_000), (20, way, 1_000)) == [60, 80]


def test_directions_are_apart() -> None:
    assert _arrivals(ONE, (0, ("GPU0>GPU1",), 1_000), (0, ("GPU1>GPU0",), 500)) == [40, 20]


def test_what_one_cannot_use_the_other_gets() -> None:
    # The long way is held to 5 by its second link, so 15 of the first link's 20 are left.
    long = ("GPU0>GPU1", "GPU1>GPU2")
    assert _arrivals(CHAIN, (0, long, 500), (0, ("GPU0>GPU1",), 1_500)) == [100, 100]


ways = st.sampled_from(("a", "b", "c", "d"))


@given(
    st.lists(st.lists(ways, min_size=1, max_size=3, unique=True), min_size=1, max_size=6),
    st.lists(st.integers(1, 50), min_size=4, max_size=4),
)
def test_shares_are_fair(routes: list[list[str]], widths: list[int]) -> None:
    """No link carries too much, and each flow crosses a full one on which none is faster."""
    width = dict(zip("abcd", map(float, widths), strict=True))
    rates = dict(fair_rates([Flow(tuple(route), 1, 1.0, 0) for route in routes], width))
    carried = {way: sum(rate for flow, rate in rates.items() if way in flow.route) for way in width}
    assert all(carried[way] <= width[way] * (1 + 1e-9) for way in width)
    for flow, rate in rates.items():
        full = [way for way in flow.route if carried[way] >= width[way] * (1 - 1e-9)]
        assert any(
            rate >= other * (1 - 1e-9)
            for way in full
            for other in [max(each for there, each in rates.items() if way in there.route)]
        )


DGX1 = load_machine("dgx1v", load_parameters())


def test_routes_of_a_dgx1() -> None:
    assert DGX1.peer_route(0, 3) == ("GPU0>GPU3",)
    assert DGX1.peer_route(0, 5) == (
        "GPU0>PCIe0", "PCIe0>CPU0", "CPU0>CPU1", "CPU1>PCIe2", "PCIe2>GPU5",
    )  # fmt: skip
    assert DGX1.relay(0, 7) == 4  # two bricks to either; by way of 3 it is one
    assert [DGX1.socket(gpu) for gpu in range(8)] == ["CPU0"] * 4 + ["CPU1"] * 4
    assert sum(DGX1.bricks(a, b) for a in range(8) for b in range(a)) == 24


def test_rings_of_a_dgx1() -> None:
    assert find_rings(DGX1, (0,)) == ()
    assert find_rings(DGX1, (0, 1)) == ((0, 1),)
    assert len(find_rings(DGX1, (0, 1, 2, 3))) == 4
    rings = find_rings(DGX1, tuple(range(8)))
    # Every GPU has 6 bricks, and a ring takes one in and one out: 3 rings, each way around.
    assert len(rings) == 6
    for a, b in ((a, b) for a in range(8) for b in range(8) if a != b):
        used = sum((a, b) in zip(ring, (*ring[1:], ring[0]), strict=True) for ring in rings)
        assert used == DGX1.bricks(a, b)


@pytest.mark.parametrize(
    ("kind", "volume", "hops"),
    [
        ("all_reduce", 150, [(0, 1), (1, 2), (2, 3), (3, 0)]),
        ("broadcast", 100, [(0, 1), (1, 2), (2, 3)]),
        ("reduce", 100, [(1, 2), (2, 3), (3, 0)]),
    ],
)
def test_bytes_around_a_ring(kind: str, volume: int, hops: list[tuple[int, int]]) -> None:
    assert ring_volume(kind, (0, 1, 2, 3), root=0, size=100) == (volume, hops)


def test_a_link_can_be_changed_by_name_or_kind() -> None:
    assert DGX1.changed({"GPU0-GPU3": 0.5}).directions["GPU3>GPU0"].bandwidth == 25e9
    assert DGX1.changed({"nvlink": 2.0}).directions["GPU0>GPU1"].bandwidth == 50e9
    with pytest.raises(ValueError, match="GPU0-GPU7"):
        DGX1.changed({"GPU0-GPU7": 2.0})
