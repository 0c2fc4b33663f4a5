"""The machine that a real nvprof trace describes is the DGX-1V that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from known_machines import HYBRID_CUBE_MESH

import tracekit as tk
from tracekit.machine import Machine, load_preset, read_topology


@pytest.fixture(scope="module")
def recorded(real_trace: Callable[[str], Path]) -> Machine:
    beside = real_trace("jacobi_p2p_nvlink_8xv100")
    path = beside.with_name("nccl_4xv100_nvlink_topology.nvvp")
    if not path.is_file():
        pytest.skip(f"no {path.name} in {path.parent}")
    return read_topology(path)


def _bonds(matrix: list[list[int]]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(matrix)))
    graph.add_edges_from(
        (one, other, {"bricks": bricks})
        for one, row in enumerate(matrix)
        for other, bricks in enumerate(row)
        if bricks
    )
    return graph


def _same_but_for_numbers(one: list[list[int]], other: list[list[int]]) -> bool:
    match = nx.algorithms.isomorphism.numerical_edge_match("bricks", 0)
    return bool(nx.is_isomorphic(_bonds(one), _bonds(other), edge_match=match))


def test_the_nvlinks_are_those_of_the_hybrid_cube_mesh(recorded: Machine) -> None:
    assert _same_but_for_numbers(recorded.nvlink_matrix(), HYBRID_CUBE_MESH)
    # Where bricks count for nothing, the test above could not fail this way.
    halved = [[min(bricks, 1) for bricks in row] for row in HYBRID_CUBE_MESH]
    assert not _same_but_for_numbers(recorded.nvlink_matrix(), halved)


def test_the_nvlinks_are_those_of_the_preset(recorded: Machine) -> None:
    assert _same_but_for_numbers(recorded.nvlink_matrix(), load_preset("dgx1v").nvlink_matrix())


def test_each_nvlink_carries_25_gb_s_per_direction(recorded: Machine) -> None:
    nvlinks = [link for link in recorded.links if link.type == "nvlink"]
    assert len(nvlinks) == 16
    assert sum(link.bricks or 0 for link in nvlinks) == 24
    assert all(link.bandwidth == (link.bricks or 0) * 25_000_000_000 for link in nvlinks)


def test_each_two_gpus_share_a_pcie_switch(recorded: Machine) -> None:
    shared = [set(recorded.graph[switch]) for switch in recorded.nodes("pcie")]
    assert shared == [
        {"GPU0", "GPU1", "CPU0"},
        {"GPU2", "GPU3", "CPU0"},
        {"GPU4", "GPU5", "CPU1"},
        {"GPU6", "GPU7", "CPU1"},
    ]
    buses = [recorded.graph.nodes[f"GPU{gpu}"]["pci_bus"] for gpu in recorded.gpus]
    numbers = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
    assert buses == [f"0000:{number:02x}:00.0" for number in numbers]
    assert recorded.origin == "trace"
    assert recorded.warnings == ()


def test_copies_that_a_machine_cannot_carry(real_run: Callable[[str], tk.Run]) -> None:
    """Peer copies over a double NVLink contradict a machine that has none."""
    run = real_run("jacobi_p2p_nvlink_8xv100")
    assert run.traffic().contradictions() == ()
    plain = run.traffic(topology="pcie-8")
    assert len(plain.contradictions()) == 2
    assert all("are faster than GPU" in text for text in plain.contradictions())
    warnings = plain.meta()["warnings"]
    assert any("1 link would be fuller than full" in text for text in warnings)
    assert not any("fuller than full" in text for text in run.traffic().meta()["warnings"])
