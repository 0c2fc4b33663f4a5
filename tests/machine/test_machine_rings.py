"""Rings over NVLinks, against every ring there is on small machines."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.machine import Link, Machine, Ring, find_rings, load_preset
from tracekit.machine._choose import side_by_side
from tracekit.machine._graph import with_fabric


def _machine(gpus: int, bricks: dict[tuple[int, int], int]) -> Machine:
    nodes = {f"GPU{gpu}": {"type": "gpu"} for gpu in range(gpus)}
    links = [
        Link((f"GPU{one}", f"GPU{other}"), "nvlink", width)
        for (one, other), width in bricks.items()
        if width
    ]
    return Machine.of("m", nodes, links)


@pytest.mark.parametrize(
    ("preset", "gpus", "rings"),
    [
        ("dgx1v", range(8), [Ring((0, 3, 2, 1, 5, 6, 7, 4), 2), Ring((0, 1, 3, 7, 5, 4, 6, 2), 1)]),
        ("dgx1v", [3, 2, 1, 0], [Ring((0, 1, 2, 3), 1), Ring((0, 2, 1, 3), 1)]),
        ("dgx1v", [3, 0], [Ring((0, 3), 2)]),
        ("dgx1v", [0, 7], [Ring((0, 7))]),
        ("dgx1v", [0, 1, 5], [Ring((0, 1, 5))]),
        ("dgx1v", [0], []),
        ("dgx1v", [], []),
        (
            "hgx-a100-4",
            range(4),
            [Ring((0, 1, 2, 3), 2), Ring((0, 1, 3, 2), 2), Ring((0, 2, 1, 3), 2)],
        ),
        ("hgx-a100-8", [6, 1, 3], [Ring((1, 3, 6))]),
        ("a100-pcie-nvlink-4", [2, 3], [Ring((2, 3), 12)]),
        ("a100-pcie-nvlink-4", range(4), [Ring((0, 1, 2, 3))]),
        ("dgx2", range(16), [Ring(tuple(range(16)))]),
        ("pcie-2", [0, 1], [Ring((0, 1))]),
        ("pcie-2", [0, 9], [Ring((0, 9))]),
    ],
)
def test_rings_of_presets(preset: str, gpus: list[int], rings: list[Ring]) -> None:
    assert find_rings(load_preset(preset), gpus) == rings


def test_all_nvlinks_of_a_dgx1_with_p100_are_in_rings() -> None:
    rings = find_rings(load_preset("dgx1p"), range(8))
    assert [ring.bricks for ring in rings] == [1, 1]
    edges = [frozenset(edge) for ring in rings for edge in ring.edges]
    assert len(set(edges)) == len(edges) == 16


def test_two_gpus_are_a_ring_of_both_directions() -> None:
    assert Ring((4, 7), 2).edges == [(4, 7), (7, 4)]
    assert Ring((0, 2, 1)).edges == [(0, 2), (2, 1), (1, 0)]


def test_the_search_is_bounded() -> None:
    """Two cliques of eight that one NVLink joins have no ring, which takes long to prove."""
    pairs = itertools.combinations(range(16), 2)
    cliques = {pair: 2 for pair in pairs if pair[0] // 8 == pair[1] // 8} | {(7, 8): 2}
    started = time.process_time()
    assert find_rings(_machine(16, cliques), range(16)) == [Ring(tuple(range(16)))]
    assert time.process_time() - started < 20
    many = dict.fromkeys(itertools.combinations(range(17), 2), 1)
    assert find_rings(_machine(17, many), range(17)) == [Ring(tuple(range(17)))]


PAIRS = list(itertools.combinations(range(5), 2))
BRICKS = st.lists(st.integers(0, 2), min_size=len(PAIRS), max_size=len(PAIRS)).map(
    lambda widths: dict(zip(PAIRS, widths, strict=True))
)


def _most_bricks(bricks: dict[tuple[int, int], int]) -> int:
    """Return how many rings of one brick fit at most, trying all in all numbers."""
    cycles = [
        [(min(edge), max(edge)) for edge in itertools.pairwise((0, *order, 0))]
        for order in itertools.permutations(range(1, 5))
        if order[0] < order[-1]
    ]

    def most(first: int, left: dict[tuple[int, int], int]) -> int:
        best = 0
        for number in range(first, len(cycles)):
            if all(left[edge] for edge in cycles[number]):
                rest = {pair: width - (pair in cycles[number]) for pair, width in left.items()}
                best = max(best, 1 + most(number, rest))
        return best

    return most(0, bricks)


@settings(deadline=None)
@given(BRICKS)
def test_rings_use_no_brick_twice_and_as_many_as_can_be(bricks: dict[tuple[int, int], int]) -> None:
    rings = find_rings(_machine(5, bricks), range(5))
    most = _most_bricks(bricks)
    if not most:
        assert rings == [Ring((0, 1, 2, 3, 4))]
        return
    left = dict(bricks)
    for ring in rings:
        assert sorted(ring.gpus) == [0, 1, 2, 3, 4]
        assert ring.gpus[0] == 0
        assert ring.gpus[1] < ring.gpus[-1]
        for one, other in ring.edges:
            left[min(one, other), max(one, other)] -= ring.bricks or 0
    assert min(left.values()) >= 0
    assert sum(ring.bricks or 0 for ring in rings) == most
    assert len({ring.gpus for ring in rings}) == len(rings)


def test_rings_over_hosts_enter_each_of_them_at_every_gpu() -> None:
    """Behind a switch in order of numbers; on a DGX-1 along its own widest ring."""
    two, _ = side_by_side([load_preset("dgx-h100")] * 2, "two")
    rings = find_rings(with_fabric(two), [0, 1, 2, 9, 10, 11])
    assert [ring.gpus for ring in rings] == [
        (0, 1, 2, 9, 10, 11), (1, 2, 0, 10, 11, 9), (2, 0, 1, 11, 9, 10)
    ]  # fmt: skip
    two, _ = side_by_side([load_preset("dgx1v")] * 2, "two")
    assert find_rings(with_fabric(two), range(16))[1].gpus == (
        3, 2, 1, 5, 6, 7, 4, 0, 11, 10, 9, 13, 14, 15, 12, 8
    )  # fmt: skip
    assert [ring.gpus for ring in find_rings(with_fabric(two), [3, 11])] == [(3, 11)]
