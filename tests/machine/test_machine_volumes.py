"""Bytes of collectives by edge: worked by hand, and against collectives played step by step."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.machine import Ring, bus_factor, find_rings, load_preset, shares
from tracekit.machine._volumes import Edge

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def _table(edges: list[Edge]) -> dict[tuple[int | None, int | None], Fraction]:
    return {(edge.src, edge.dst): edge.share for edge in edges}


def _sent(edges: list[Edge]) -> dict[int, Fraction]:
    sums: Counter[int] = Counter()
    for edge in edges:
        sums[edge.src] += edge.share  # type: ignore[assignment]
    return dict(sums)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "root", "expected"),
    [
        ("all_reduce", None, {(5, 7): 4 * THIRD, (7, 6): 4 * THIRD, (6, 5): 4 * THIRD}),
        ("all_gather", None, {(5, 7): 2 * THIRD, (7, 6): 2 * THIRD, (6, 5): 2 * THIRD}),
        ("reduce_scatter", None, {(5, 7): 2 * THIRD, (7, 6): 2 * THIRD, (6, 5): 2 * THIRD}),
        ("broadcast", 1, {(7, 6): 1, (6, 5): 1}),
        ("reduce", 1, {(5, 7): 1, (6, 5): 1}),
        ("gather", 1, {(5, 7): THIRD, (6, 7): THIRD}),
        ("scatter", 1, {(7, 5): THIRD, (7, 6): THIRD}),
        (
            "all_to_all",
            None,
            dict.fromkeys(((5, 7), (5, 6), (7, 5), (7, 6), (6, 5), (6, 7)), THIRD),
        ),
        ("broadcast", None, {}),
        ("reduce", None, {}),
        ("gather", None, {}),
        ("send_recv", None, {}),
        ("barrier", None, {}),
        ("unknown", None, {}),
    ],
)
def test_shares_of_three_ranks(
    collective: str, root: int | None, expected: dict[tuple[int, int], Fraction]
) -> None:
    """Rank 1 is GPU 7; without rings, the ring is in order of ranks."""
    assert _table(shares(collective, [5, 7, 6], root=root)) == expected


def test_rings_share_by_their_bricks() -> None:
    rings = [Ring((0, 1, 2), 3), Ring((0, 2, 1), 1)]
    found = _table(shares("all_gather", [0, 1, 2], rings=rings))
    forward, backward = Fraction(2, 3) * Fraction(3, 4), Fraction(2, 3) * Fraction(1, 4)
    assert found == {
        (0, 1): forward, (1, 2): forward, (2, 0): forward,
        (0, 2): backward, (2, 1): backward, (1, 0): backward,
    }  # fmt: skip
    equal = [Ring((0, 1, 2), 3), Ring((0, 2, 1))]
    assert set(_table(shares("all_gather", [0, 1, 2], rings=equal)).values()) == {THIRD}


def test_rings_of_both_directions() -> None:
    found = shares("broadcast", [0, 1, 2], root=0, rings=[Ring((0, 1, 2), 2)], bidirectional=True)
    assert _table(found) == {(0, 1): HALF, (1, 2): HALF, (0, 2): HALF, (2, 1): HALF}
    both = shares("all_reduce", [0, 3], rings=[Ring((0, 3), 2)], bidirectional=True)
    assert _table(both) == {(0, 3): 1, (3, 0): 1}


def test_trees_carry_all_up_and_down() -> None:
    trees = [[(1, 0), (2, 1)], [(0, 1), (2, 1)]]
    found = _table(shares("all_reduce", [0, 1, 2], algorithm="TREE", trees=trees))
    assert found == {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1}
    assert shares("all_reduce", [0, 1, 2], algorithm="tree") == []
    assert shares("broadcast", [0, 1, 2], algorithm="tree", trees=trees, root=0) == []


@pytest.mark.parametrize("algorithm", ["collnet_direct", "collnet_chain", "pat", "direct", ""])
def test_algorithms_that_are_not_modelled(algorithm: str) -> None:
    assert shares("all_reduce", [0, 1], algorithm=algorithm) == []


SIZES = 800, 8 << 20, 1 << 30
"""Of a collective of 8 GPUs; the others are those of 800 bytes, worked by hand."""


@pytest.mark.parametrize(
    ("collective", "algorithm", "up", "down"),
    [
        ("all_reduce", "nvls", (900, 9_437_184, 1_207_959_552), (900, 9_437_184, 1_207_959_552)),
        ("all_reduce", "nvls_tree", (900, 9_437_184, 1_207_959_552),
         (900, 9_437_184, 1_207_959_552)),
        ("all_gather", "nvls", (100, 1_048_576, 134_217_728), (800, 8_388_608, 1_073_741_824)),
        ("reduce_scatter", "nvls", (800, 8_388_608, 1_073_741_824), (100, 1_048_576, 134_217_728)),
        ("all_reduce", "multicast_one_shot", (800, 8_388_608, 1_073_741_824),
         (6_400, 67_108_864, 8_589_934_592)),
        ("all_reduce", "reduced_one_shot", (6_400, 67_108_864, 8_589_934_592),
         (800, 8_388_608, 1_073_741_824)),
    ],
)  # fmt: skip
def test_gpus_and_their_switch(
    collective: str, algorithm: str, up: tuple[int, ...], down: tuple[int, ...]
) -> None:
    found = _table(shares(collective, range(8), algorithm=algorithm))
    assert len(found) == 16
    for gpu in range(8):
        assert tuple(found[gpu, None] * size for size in SIZES) == up
        assert tuple(found[None, gpu] * size for size in SIZES) == down


@pytest.mark.parametrize(
    ("collective", "algorithm", "each"),
    [
        ("all_reduce", "one_shot", (800, 8_388_608, 1_073_741_824)),
        ("all_reduce", "two_shot", (200, 2_097_152, 268_435_456)),
        ("all_gather", "direct", (100, 1_048_576, 134_217_728)),
        ("reduce_scatter", "direct", (100, 1_048_576, 134_217_728)),
    ],
)
def test_each_two_gpus(collective: str, algorithm: str, each: tuple[int, ...]) -> None:
    found = _table(shares(collective, range(8), algorithm=algorithm))
    assert len(found) == 8 * 7
    for share in found.values():
        assert tuple(share * size for size in SIZES) == each


@pytest.mark.parametrize(
    ("collective", "algorithm", "each"),
    [
        ("all_reduce", "ring", (1_400, 14_680_064, 1_879_048_192)),
        ("all_gather", "ring", (700, 7_340_032, 939_524_096)),
        ("all_gather", "pat", (700, 7_340_032, 939_524_096)),
        ("reduce_scatter", "pat", (700, 7_340_032, 939_524_096)),
    ],
)
def test_what_each_gpu_sends(collective: str, algorithm: str, each: tuple[int, ...]) -> None:
    for share in _sent(shares(collective, range(8), algorithm=algorithm)).values():
        assert tuple(share * size for size in SIZES) == each


def test_trees_of_three_sizes() -> None:
    """A chain of 4: its ends have one edge each, of S in either direction."""
    chain = [[(1, 0), (2, 1), (3, 2)]]
    found = shares("all_reduce", range(4), algorithm="tree", trees=chain)
    assert [(edge.src, edge.dst) for edge in found] == [
        (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)
    ]  # fmt: skip
    for size in SIZES:
        assert [edge.share * size for edge in found] == [size] * 6


def test_pat_sends_most_to_the_nearest() -> None:
    """Of 6 parts of 100 bytes: 3 go to the next rank, 1 each to those 2 and 4 further."""
    found = _table(shares("all_gather", range(6), algorithm="pat"))
    assert {dst: share * 600 for (src, dst), share in found.items() if src == 0} == {
        1: 300, 2: 100, 4: 100
    }  # fmt: skip
    back = _table(shares("reduce_scatter", range(6), algorithm="pat"))
    assert {dst: share * 600 for (src, dst), share in back.items() if src == 0} == {
        5: 300, 4: 100, 2: 100
    }  # fmt: skip


@given(st.integers(2, 40))
def test_pat_brings_every_part_to_every_rank_once(size: int) -> None:
    """Play the trees of all ranks, from the furthest step to the nearest."""
    moved: Counter[tuple[int, int]] = Counter()
    holds = {rank: {rank} for rank in range(size)}
    for step in reversed([1 << k for k in range((size - 1).bit_length())]):
        before = {rank: set(parts) for rank, parts in holds.items()}
        for rank, parts in before.items():
            after = (rank + step) % size
            passed = {part for part in parts if (rank - part) % size + step < size}
            assert not passed & holds[after]
            holds[after] |= passed
            moved[rank, after] += len(passed)
    assert all(len(parts) == size for parts in holds.values())
    found = _table(shares("all_gather", range(size), algorithm="pat"))
    assert found == {pair: Fraction(parts, size) for pair, parts in moved.items() if parts}


def test_several_switches() -> None:
    """Of two switches with 4 and 2 GPUs: a fourth and a half more than S; parts are unknown."""
    islands = [[0, 1, 2, 3], [4, 5]]
    found = _table(shares("all_reduce", range(6), algorithm="nvls_tree", islands=islands))
    assert {gpu: found[gpu, None] * 800 for gpu in range(6)} == {
        **dict.fromkeys(range(4), 1_000), 4: 1_200, 5: 1_200
    }  # fmt: skip
    assert shares("all_gather", range(6), algorithm="nvls", islands=islands) == []
    assert shares("all_reduce", range(6), algorithm="multicast_one_shot", islands=islands) == []


def test_nothing_moves_where_one_rank_is_alone() -> None:
    assert shares("all_reduce", [3]) == []
    assert shares("all_to_all", [3]) == []
    assert shares("all_reduce", []) == []


def test_rings_trees_and_roots_of_others() -> None:
    with pytest.raises(UsageError, match=r"a ring of GPUs \[0, 1, 2\] is not one of GPUs \[0, 1\]"):
        shares("all_reduce", [0, 1], rings=[Ring((0, 1, 2))])
    with pytest.raises(UsageError, match="a tree leads to a GPU"):
        shares("all_reduce", [0, 1], algorithm="tree", trees=[[(0, 4)]])
    with pytest.raises(UsageError, match="root 2 is not one of 2 ranks"):
        shares("broadcast", [0, 1], root=2)
    with pytest.raises(UsageError, match="share a GPU"):
        shares("all_reduce", [0, 0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("preset", "gpus"), [("dgx1v", 8), ("dgx1v", 4), ("dgx1p", 8), ("dgx2", 16)]
)
def test_every_gpu_sends_what_a_ring_all_reduce_takes(
    preset: str, gpus: int, *, bidirectional: bool
) -> None:
    ranks = list(range(gpus))
    rings = find_rings(load_preset(preset), ranks)
    edges = shares("all_reduce", ranks, rings=rings, bidirectional=bidirectional)
    assert _sent(edges) == dict.fromkeys(ranks, Fraction(2 * (gpus - 1), gpus))


def test_dgx1v_moves_as_much_over_each_brick() -> None:
    """Two rings of 2 and 1 bricks: a double edge carries twice what a single one does."""
    machine = load_preset("dgx1v")
    rings = find_rings(machine, range(8))
    edges = shares("all_reduce", range(8), rings=rings, bidirectional=True)
    assert len(edges) == 32
    for edge in edges:
        assert edge.share / machine.bricks(edge.src, edge.dst) == Fraction(7, 4) / 6


def test_worked_volumes_of_alexnet() -> None:
    sent = _sent(shares("all_reduce", range(8)))
    assert sent[0] * 240_000_000 == 420_000_000


def test_bus_bandwidth_of_256_mib_on_16_ranks_in_a_tenth_of_a_second() -> None:
    factor = bus_factor("all_reduce", 16)
    assert factor is not None
    assert round(float((256 << 20) / Fraction(1, 10) * factor) / 1e9, 4) == 5.0332


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", Fraction(3, 2)),
        ("all_gather", Fraction(3, 4)),
        ("reduce_scatter", Fraction(3, 4)),
        ("all_to_all", Fraction(3, 4)),
        ("gather", Fraction(3, 4)),
        ("scatter", Fraction(3, 4)),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
        ("barrier", None),
        ("unknown", None),
    ],
)
def test_bus_factors_of_four_ranks(collective: str, factor: Fraction | None) -> None:
    assert bus_factor(collective, 4) == factor
    assert bus_factor(collective, 0) is None


def _played(collective: str, gpus: list[int], root: int) -> Counter[tuple[int, int]]:
    """Play a ring algorithm chunk by chunk; S is a chunk per rank."""
    size = len(gpus)
    moved: Counter[tuple[int, int]] = Counter()
    holds = {rank: {rank} for rank in range(size)}  # chunks that a rank has to pass on
    rounds = {"all_reduce": 2}.get(collective, 1)
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        for _ in range(rounds * (size - 1)):
            passed = {rank: set(chunks) for rank, chunks in holds.items()}
            for rank, chunks in passed.items():
                after = (rank + 1) % size
                moved[gpus[rank], gpus[after]] += len(chunks)
                holds[after] = chunks
    else:
        start = root if collective == "broadcast" else root + 1
        for step in range(size - 1):
            rank = (start + step) % size
            moved[gpus[rank], gpus[(rank + 1) % size]] += size
    return moved


@settings(deadline=None)
@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]),
    st.permutations(range(6)),
    st.integers(2, 6),
    st.data(),
)
def test_shares_of_a_ring_are_those_of_one_that_is_played(
    collective: str, order: list[int], size: int, data: st.DataObject
) -> None:
    gpus = order[:size]
    root = data.draw(st.integers(0, size - 1))
    played = _played(collective, gpus, root)
    found = _table(shares(collective, gpus, root=root))
    assert found == {pair: Fraction(chunks, size) for pair, chunks in played.items()}


@pytest.mark.parametrize(
    ("nodes", "pairs"),
    [
        (2, {(0, 1): 2}),
        (3, {(1, 2): 1, (0, 2): 2, (0, 1): 1}),
        (4, {(1, 2): 2, (0, 2): 1, (1, 3): 1, (2, 3): 1, (0, 1): 1}),
    ],
)
def test_switches_exchange_what_each_gpu_stands_for(
    nodes: int, pairs: dict[tuple[int, int], int]
) -> None:
    """Half of 1/h along each of NCCL's two trees of the nodes, up and down (``ncclGetDtree``)."""
    islands = [[2 * node, 2 * node + 1] for node in range(nodes)]
    found = shares("all_reduce", range(2 * nodes), algorithm="nvls_tree", islands=islands)
    between = {
        (each.src, each.dst): each.share for each in found if None not in (each.src, each.dst)
    }
    expected = {
        (2 * one + rail, 2 * other + rail): Fraction(trees, 4)
        for pair, trees in pairs.items()
        for one, other in (pair, pair[::-1])
        for rail in (0, 1)
    }
    assert between == expected
