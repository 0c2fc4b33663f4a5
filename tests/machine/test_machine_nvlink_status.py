"""What `nvidia-smi nvlink` prints, alone and after a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from test_machine_topo_matrix import A100_PAIRS, HYBRID_CUBE_MESH, matrix_text

from tracekit.errors import InputError
from tracekit.machine import Machine, problems, read_topology

UUID = "GPU-{:08x}-0cc5-7959-855b-28f0d7bac243"
MESH_BUSES = ["06", "07", "0A", "0B", "85", "86", "89", "8A"]


def printed(links: Sequence[Sequence[str]], product: str = "Tesla V100-SXM2-16GB") -> str:
    lines = []
    for gpu, each in enumerate(links):
        lines.append(f"GPU {gpu}: {product} (UUID: {UUID.format(gpu)})")
        lines += [f"\t Link {number}: {said}" for number, said in enumerate(each)]
    return "\n".join(lines) + "\n"


def mesh_ends() -> list[list[tuple[int, int]]]:
    """Return, for each link of each GPU of the hybrid cube mesh, the GPU and link it leads to."""
    ends: list[list[tuple[int, int]]] = [[] for _ in range(8)]
    for one, row in enumerate(HYBRID_CUBE_MESH):
        for other, bricks in enumerate(row[:one]):
            for _ in range(bricks):
                here, there = len(ends[one]), len(ends[other])
                ends[one].append((other, there))
                ends[other].append((one, here))
    return ends


def remote(links: Sequence[Sequence[tuple[int, int]]]) -> str:
    return printed(
        [
            [f"Remote Device 00000000:{MESH_BUSES[gpu]}:00.0: Link {link}" for gpu, link in each]
            for each in links
        ]
    )


def peers(links: Sequence[Sequence[tuple[int, int]]]) -> str:
    return printed([[f"00000000:{MESH_BUSES[gpu]}:00.0" for gpu, _ in each] for each in links])


def read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "nvlink"
    path.write_text(text, encoding="utf-8")
    return read_topology(path)


RATES = printed([["25.781 GB/s"] * 6] * 8)


@pytest.mark.parametrize("told", [remote(mesh_ends()), peers(mesh_ends())])
def test_links_that_lead_to_gpus(tmp_path: Path, told: str) -> None:
    machine = read(tmp_path, told)
    assert machine.nvlink_matrix() == HYBRID_CUBE_MESH
    assert machine.graph.nodes["GPU4"] == {
        "type": "gpu",
        "product": "Tesla V100-SXM2-16GB",
        "uuid": "00000004-0cc5-7959-855b-28f0d7bac243",
        "pci_bus": "0000:85:00.0",
    }
    assert {link.bandwidth for link in machine.links} == {None}
    with_rates = read(tmp_path, RATES + told)
    link = with_rates.link("GPU0", "GPU3")
    assert link is not None
    assert (link.bricks, link.bandwidth) == (2, 2 * 25_781_000_000)


def test_a_link_that_only_one_end_tells_of(tmp_path: Path) -> None:
    ends = mesh_ends()
    ends[0][0] = (5, 0)
    machine = read(tmp_path, remote(ends))
    assert machine.links == []


def test_links_that_lead_to_switches(tmp_path: Path) -> None:
    switches = ["05", "05", "06", "06", "07", "08"]
    ports = [[f"Remote Device 00000000:{bus}:00.0: Link {n}" for n, bus in enumerate(switches)]] * 3
    rates = [["26.562 GB/s"] * 6] * 3
    machine = read(tmp_path, printed(rates, "NVIDIA H100") + printed(ports, "NVIDIA H100"))
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [6, 6, 6]
    assert [link.bandwidth for link in machine.links] == [6 * 26_562_000_000] * 3


def test_as_many_switches_as_gpus(tmp_path: Path) -> None:
    ports = [[f"00000000:{bus}:00.0" for bus in ("05", "06", "07", "08")] for _ in range(4)]
    machine = read(tmp_path, printed(ports))
    assert machine.nodes("nvswitch") == ["NVSwitch0"]


def test_gpus_whose_peers_are_hidden(tmp_path: Path) -> None:
    machine = read(tmp_path, remote(mesh_ends()[:2]))
    assert machine.links == []
    assert len(machine.warnings) == 1


def test_rates_alone_do_not_tell_where_links_lead(tmp_path: Path) -> None:
    down = [["25.781 GB/s"] * 3 + ["<inactive>", "25.781 GB/s", "<inactive>"]]
    machine = read(tmp_path, printed([["25.781 GB/s"] * 6, *down]))
    assert machine.links == []
    assert [machine.graph.nodes[f"GPU{gpu}"]["bricks"] for gpu in machine.gpus] == [6, 4]
    (warning,) = machine.warnings
    assert warning.startswith("it lacks the ends of the NVLinks")
    assert "GPU0, GPU1: no link at all" in problems(machine)


PAIR_RATES = printed([["25 GB/s"] * 12] * 4, "NVIDIA A100 80GB PCIe")


@pytest.mark.parametrize("text", [A100_PAIRS + PAIR_RATES, PAIR_RATES + A100_PAIRS])
def test_rates_beside_a_matrix(tmp_path: Path, text: str) -> None:
    machine = read(tmp_path, text)
    link = machine.link("GPU2", "GPU3")
    assert link is not None
    assert (link.bricks, link.bandwidth) == (12, 300_000_000_000)
    assert {link.bandwidth for link in machine.links if link.type != "nvlink"} == {None}
    assert machine.graph.nodes["GPU3"] == {
        "type": "gpu",
        "numa": 1,
        "product": "NVIDIA A100 80GB PCIe",
        "uuid": "00000003-0cc5-7959-855b-28f0d7bac243",
    }


def test_how_many_links_are_up_tells_switches_from_direct_links(tmp_path: Path) -> None:
    cells = [["X" if one == other else "NV6" for other in range(4)] for one in range(4)]
    matrix = matrix_text(cells)
    direct = read(tmp_path, matrix + printed([["26.562 GB/s"] * 18] * 4, "NVIDIA H100"))
    assert (direct.bricks(0, 1), direct.nodes("nvswitch")) == (6, [])
    switched = read(tmp_path, matrix + printed([["25.781 GB/s"] * 6] * 4))
    assert [switched.switch_bricks(gpu) for gpu in switched.gpus] == [6] * 4
    for machine in (direct, switched):
        assert not any("switch joins" in warning for warning in machine.warnings)


def test_fewer_links_in_the_matrix_than_are_up(tmp_path: Path) -> None:
    rates = printed([["25 GB/s"] * 12] * 3 + [["25 GB/s"] * 11 + ["<inactive>"]])
    machine = read(tmp_path, A100_PAIRS.replace("NV12", "NV11") + rates)
    assert "GPU0 has 12 NVLinks that are up, but 11 in the matrix" in machine.warnings
    assert not any(warning.startswith("GPU3") for warning in machine.warnings)


def test_a_list_of_gpus_names_them(tmp_path: Path) -> None:
    machine = read(tmp_path, A100_PAIRS + printed([[]] * 4, "NVIDIA A100 80GB PCIe"))
    assert machine.graph.nodes["GPU2"]["product"] == "NVIDIA A100 80GB PCIe"
    assert machine.nvlink_matrix()[0] == [0, 12, 0, 0]


def test_output_of_other_machines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lists 8 GPUs in .*, but its matrix is of 4"):
        read(tmp_path, A100_PAIRS + RATES)
    other = PAIR_RATES.replace("00000001-0cc5", "ffffffff-0cc5")
    with pytest.raises(InputError, match=r"GPU 1 is 00000001-.* and also ffffffff-.* in "):
        read(tmp_path, PAIR_RATES + other)


def test_counters_of_errors_are_no_links(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no topology of a known format"):
        read(tmp_path, printed([["Replay Errors: 0", "CRC Errors: 12"]] * 2))
