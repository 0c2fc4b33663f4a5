"""What `nvidia-smi topo -m` prints, of machines of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_machines import HYBRID_CUBE_MESH

from tracekit.errors import InputError
from tracekit.machine import Machine, adjacency, read_topology, with_bandwidths
from tracekit.machine._topo_matrix import parse_matrix

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""

DGX_1V = """\
$ nvidia-smi topo -m
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tmlx5_2\tmlx5_3\tCPU Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tPHB\tSYS\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tPHB\tSYS\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tPIX\tSYS\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tPIX\tSYS\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tSYS\tPIX\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tSYS\tPIX\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tPHB\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tPHB\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tPHB\tSYS\tSYS\t
mlx5_1\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tPHB\t X \tSYS\tSYS\t
mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\t X \tPHB\t
mlx5_3\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tPHB\t X \t
"""  # noqa: E501

FOUR_H100 = """
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV6     NV6     NV6     PIX     SYS     SYS     SYS     6,14,22,30      3               N/A
GPU1    NV6      X      NV6     NV6     SYS     PIX     SYS     SYS     4,12,20,28      1               N/A
GPU2    NV6     NV6      X      NV6     SYS     SYS     PIX     SYS     7,15,23,31      7               N/A
GPU3    NV6     NV6     NV6      X      SYS     SYS     SYS     PIX     5,13,21,29      5               N/A
NIC0    PIX     SYS     SYS     SYS      X      SYS     SYS     SYS
NIC1    SYS     PIX     SYS     SYS     SYS      X      SYS     SYS
NIC2    SYS     SYS     PIX     SYS     SYS     SYS      X      SYS
NIC3    SYS     SYS     SYS     PIX     SYS     SYS     SYS      X
"""  # noqa: E501

A100_PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\t0-31\t0
GPU1\tNV12\t X \tSYS\tSYS\t0-31\t0
GPU2\tSYS\tSYS\t X \tNV12\t32-63\t1
GPU3\tSYS\tSYS\tNV12\t X \t32-63\t1
"""

PCIE_BOX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tPXB\tNODE\tPHB\tSYS\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tPXB\tNODE\tPHB\tSYS\t0-31\t0\t\tN/A
GPU2\tPXB\tPXB\t X \tNODE\tPHB\tSYS\t0-31\t0\t\tN/A
GPU3\tNODE\tNODE\tNODE\t X \tNODE\tSYS\t0-31\t0\t\tN/A
GPU4\tPHB\tPHB\tPHB\tNODE\t X \tSYS\t0-31\t0\t\tN/A
GPU5\tSYS\tSYS\tSYS\tSYS\tSYS\t X \t32-63\t1\t\tN/A
"""


def dgx_a100() -> str:
    """Write the matrix of 8 A100 behind switches, with 10 NICs: two for each two GPUs, and two."""
    near = {0: 3, 1: 1, 2: 7, 3: 5}
    rows = []
    devices = [*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(10))]
    for one in devices:
        cells = [_a100_cell(one, other) for other in devices]
        if one.startswith("GPU"):
            numa = near[int(one[3:]) // 2]
            cells += [f"{numa * 16}-{numa * 16 + 15}", str(numa)]
        rows.append("\t".join([one, *cells]))
    return "\n".join(["\t".join(["", *devices, "CPU Affinity", "NUMA Affinity"]), *rows, LEGEND])


def _a100_cell(one: str, other: str) -> str:
    if one == other:
        return " X "
    if one.startswith("GPU") and other.startswith("GPU"):
        return "NV12"
    same = int(one[3:]) // 2 == int(other[3:]) // 2
    return "PXB" if same else "SYS"


def read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "topology.anything"
    path.write_text(text, encoding="utf-8")
    return read_topology(path)


def links(machine: Machine, kind: str) -> list[str]:
    return [link.name for link in machine.links if link.type == kind]


def matrix_text(cells: Sequence[Sequence[str]], columns: str = "") -> str:
    names = [f"GPU{number}" for number in range(len(cells))]
    rows = ["\t".join([name, *row]) for name, row in zip(names, cells, strict=True)]
    return "\n".join(["\t".join(["", *names, columns]), *rows]) + "\n"


def test_dgx_1v(tmp_path: Path) -> None:
    machine = read(tmp_path, DGX_1V + LEGEND)
    assert machine.nvlink_matrix() == HYBRID_CUBE_MESH
    assert machine.nodes("nvswitch") == []
    assert links(machine, "pcie") == [
        "GPU0-PCIe0", "GPU1-PCIe0", "GPU2-PCIe1", "GPU3-PCIe1", "GPU4-PCIe2", "GPU5-PCIe2",
        "GPU6-PCIe3", "GPU7-PCIe3", "NIC0-PCIe0", "NIC1-PCIe1", "NIC2-PCIe2", "NIC3-PCIe3",
        "PCIe0-CPU0", "PCIe1-CPU0", "PCIe2-CPU1", "PCIe3-CPU1",
    ]  # fmt: skip
    assert links(machine, "socket") == ["CPU0-CPU1"]
    assert {link.bandwidth for link in machine.links} == {None}
    assert machine.graph.nodes["NIC2"] == {"type": "nic", "name": "mlx5_2"}
    assert machine.graph.nodes["CPU0"] == {"type": "host"}
    assert machine.origin == "file"
    assert machine.warnings == ()


def test_dgx_a100_is_switched(tmp_path: Path) -> None:
    machine = read(tmp_path, dgx_a100())
    assert links(machine, "nvlink") == [f"GPU{n}-NVSwitch0" for n in range(8)]
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [12] * 8
    # Sockets are the NUMA nodes; the two NICs that are SYS to all GPUs are on one of their own.
    assert machine.nodes("host") == ["CPU1", "CPU3", "CPU5", "CPU7", "CPU8"]
    assert machine.graph.nodes["CPU3"] == {"type": "host", "numa": 3}
    assert machine.graph.nodes["CPU8"] == {"type": "host"}
    assert machine.graph.nodes["GPU0"] == {"type": "gpu", "numa": 3}
    assert set(machine.graph["PCIe0"]) == {"GPU0", "GPU1", "NIC0", "NIC1", "CPU3"}
    assert machine.graph.nodes["NIC1"]["name"] == "mlx5_1"
    assert machine.warnings == ("NIC8, NIC9: SYS from every GPU, so put on a separate CPU (CPU8)",)


def test_two_gpus_of_a_dgx_a100_are_joined_by_twelve_either_way(tmp_path: Path) -> None:
    machine = read(tmp_path, matrix_text([["X", "NV12"], ["NV12", "X"]]))
    assert machine.nvlink_matrix() == [[0, 12], [12, 0]]
    route = machine.route(0, 1)
    assert route is not None
    assert route.name == "GPU0>GPU1"


def test_sixteen_of_a_dgx_2_are_switched(tmp_path: Path) -> None:
    cells = [["X" if one == other else "NV6" for other in range(16)] for one in range(16)]
    machine = read(tmp_path, matrix_text(cells))
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [6] * 16


def test_a_gpu_behind_a_switch_that_lost_a_link(tmp_path: Path) -> None:
    cells = [["X" if one == other else "NV18" for other in range(8)] for one in range(8)]
    for other in range(7):
        cells[7][other] = cells[other][7] = "NV17"
    machine = read(tmp_path, matrix_text(cells))
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [18] * 7 + [17]


def test_four_h100_are_joined_directly(tmp_path: Path) -> None:
    machine = read(tmp_path, FOUR_H100 + LEGEND)
    assert machine.nvlink_matrix() == [[0 if a == b else 6 for a in range(4)] for b in range(4)]
    assert machine.nodes("host") == ["CPU1", "CPU3", "CPU5", "CPU7"]
    assert set(machine.graph["PCIe0"]) == {"GPU0", "NIC0", "CPU3"}
    (warning,) = machine.warnings
    assert warning.startswith("every two of GPU0 to GPU3 are NV6, taken for direct NVLinks;")


def test_four_a100_on_one_board_cannot_be_switched(tmp_path: Path) -> None:
    cells = [["X" if one == other else "NV4" for other in range(4)] for one in range(4)]
    machine = read(tmp_path, matrix_text(cells, "CPU Affinity\tNUMA Affinity"))
    assert machine.bricks(0, 3) == 4
    assert not any("switch joins" in warning for warning in machine.warnings)


def test_pairs_of_a100(tmp_path: Path) -> None:
    machine = read(tmp_path, A100_PAIRS)
    assert links(machine, "nvlink") == ["GPU0-GPU1", "GPU2-GPU3"]
    assert machine.bricks(2, 3) == 12
    route = machine.route(0, 2)
    assert route is not None
    assert route.name == "GPU0>CPU0>CPU1>GPU2"
    (warning,) = machine.warnings
    assert "append the output of `nvidia-smi topo -mp`" in warning


PAIRS_MP = A100_PAIRS.replace("NV12", "PIX")


@pytest.mark.parametrize("text", [A100_PAIRS + PAIRS_MP, PAIRS_MP + LEGEND + A100_PAIRS])
def test_two_matrices_of_one_machine(tmp_path: Path, text: str) -> None:
    machine = read(tmp_path, text)
    assert links(machine, "nvlink") == ["GPU0-GPU1", "GPU2-GPU3"]
    assert set(machine.graph["PCIe1"]) == {"GPU2", "GPU3", "CPU1"}
    assert machine.warnings == ()


def test_switches_below_switches(tmp_path: Path) -> None:
    machine = read(tmp_path, PCIE_BOX)
    assert links(machine, "pcie") == [
        "GPU0-PCIe0", "GPU1-PCIe0", "GPU2-PCIe1", "GPU3-CPU0", "GPU4-CPU0", "GPU5-CPU1",
        "PCIe0-PCIe1", "PCIe1-CPU0",
    ]  # fmt: skip
    assert machine.warnings == ()


def test_the_table_of_peer_states_is_left_aside(tmp_path: Path) -> None:
    states = "\n\tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n\nLegend:\n\n  OK   = Status Ok\n"
    machine = read(tmp_path, matrix_text([["X", "PHB"], ["PHB", "X"]]) + states)
    assert links(machine, "pcie") == ["GPU0-CPU0", "GPU1-CPU0"]
    assert machine.warnings == ()


def test_a_single_gpu(tmp_path: Path) -> None:
    machine = read(tmp_path, "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-11\tN/A\n")
    assert links(machine, "pcie") == ["GPU0-CPU0"]
    assert machine.warnings == ()


def test_sockets_without_affinities_follow_from_what_is_sys(tmp_path: Path) -> None:
    cells = [
        ["X" if one == other else f"NV{HYBRID_CUBE_MESH[one][other]}"
         if HYBRID_CUBE_MESH[one][other] else "SYS" for other in range(8)]
        for one in range(8)
    ]  # fmt: skip
    machine = read(tmp_path, matrix_text(cells))
    assert machine.nvlink_matrix() == HYBRID_CUBE_MESH
    assert set(machine.graph["CPU0"]) == {"GPU0", "GPU1", "GPU2", "GPU3", "CPU1"}
    assert machine.warnings[0] == "it has no NUMA nodes: sockets follow from what is SYS in it"


def test_a_machine_of_which_nothing_but_nvlinks_is_known(tmp_path: Path) -> None:
    machine = read(tmp_path, matrix_text([["X", "NV2"], ["NV2", "X"]]))
    assert machine.nodes("host") == ["CPU0"]
    assert "it lists no sockets: one CPU is assumed" in machine.warnings


def test_gb200_whose_gpus_are_near_to_many_numa_nodes(tmp_path: Path) -> None:
    near = ["0-71\t0,3-9,11-17\t\t2", "0-71\t0,3-9,11-17\t\t10", "72-143\t1,19-25,27-33\t18",
            "72-143\t1,19-25,27-33\t26"]  # fmt: skip
    cells = [
        [*("X" if one == other else "NV18" for other in range(4)), near[one]] for one in range(4)
    ]
    text = matrix_text(cells, "CPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    machine = read(tmp_path, text)
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [18] * 4
    assert links(machine, "pcie") == ["GPU0-CPU0", "GPU1-CPU0", "GPU2-CPU1", "GPU3-CPU1"]


def test_a_matrix_that_no_machine_has(tmp_path: Path) -> None:
    names = "\t".join(f"GPU{number}" for number in range(600))
    with pytest.raises(InputError, match="has a matrix of 600 devices"):
        read(tmp_path, f"\t{names}\nGPU0\tX\n")


def test_an_affinity_to_several_numa_nodes_tells_nothing(tmp_path: Path) -> None:
    text = matrix_text([["X", "SYS"], ["SYS", "X"]], "CPU Affinity\tNUMA Affinity")
    text = text.replace("X\tSYS", "X\tSYS\t0-63\t0-1").replace("SYS\tX", "SYS\tX\t0-63\t0-1")
    machine = read(tmp_path, text)
    assert links(machine, "pcie") == ["GPU0-CPU0", "GPU1-CPU1"]
    assert "numa" not in machine.graph.nodes["CPU1"]


def test_a_tab_that_was_lost_moves_no_affinity() -> None:
    names = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    text = matrix_text([["X", "SYS"], ["SYS", "X"]], names)
    text = text.replace("GPU0\tX\tSYS", "GPU0 X\tSYS\t0-19\t1\t\tN/A")
    text = text.replace("SYS\tX", "SYS\tX\t20-39\t0\t\tN/A")
    assert "GPU0 X\t" in text
    matrix = parse_matrix(text, "text")
    assert matrix is not None
    assert dict(matrix.cpus) == {"GPU0": "0-19", "GPU1": "20-39"}
    assert dict(matrix.numa) == {"GPU0": 1, "GPU1": 0}


ROW_3 = "GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tPIX\tSYS\tSYS\t0-19,40-59\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU3\tNV2", "GPU3\tNV1", "GPU0-GPU3 is NV2 but GPU3-GPU0 is NV1 in "),
        (ROW_3, "", "has a column GPU3, but no row of that name; it may be cut short"),
        (ROW_3, ROW_3[:33] + "\n", "row GPU3 has 7 cells in .*, but its header names 12 devices"),
        (ROW_3, ROW_3.replace("NV1\tPHB", "PHB"), "row GPU3 has 11 cells in .* names 12 devices"),
        (ROW_3, ROW_3.replace("PHB", "PHB\tPHB"), "row GPU3 has 13 cells in .* names 12 devices"),
        (ROW_3, ROW_3.replace("PHB", "HUH"), r"GPU3-mlx5_0 is 'HUH' in .*, which is no relation"),
        (ROW_3, ROW_3.replace("PHB", "NV0"), r"GPU3-mlx5_0 is 'NV0' in .*, which is no relation"),
        (ROW_3, ROW_3.replace(" X ", "NV2"), "GPU3-GPU3 is NV2 in "),
        (ROW_3, ROW_3.replace("NV2", "X"), "GPU3-GPU0 is X in |GPU0-GPU3 is NV2 but"),
        (ROW_3, ROW_3 + ROW_3.replace("PHB", "PXB"), "has two different rows GPU3"),
        (ROW_3, ROW_3 + ROW_3.replace("GPU3", "GPU8"), "has a row GPU8, but no column of that"),
        (DGX_1V[: DGX_1V.index("GPU0\t ")], "", "has rows of a matrix, but not the header"),
        ("mlx5_3\tSYS", "mlx5_3\tPIX", "GPU0-mlx5_3 is SYS but mlx5_3-GPU0 is PIX in "),
    ],
)
def test_matrices_that_are_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in DGX_1V
    with pytest.raises(InputError, match=message):
        read(tmp_path, DGX_1V.replace(old, new))


def test_matrices_of_two_machines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has matrices of different machines"):
        read(tmp_path, A100_PAIRS + FOUR_H100)
    with pytest.raises(InputError, match="has matrices that differ"):
        read(tmp_path, A100_PAIRS + A100_PAIRS.replace("NV12", "NV4"))


def test_other_text_has_no_matrix() -> None:
    assert parse_matrix("GPU0 is faulty\nGPU 0: Tesla V100\n\nNODE = here\n", "text") is None


@pytest.mark.parametrize("cut", range(0, len(DGX_1V), 97))
def test_a_matrix_cut_anywhere_is_no_machine(tmp_path: Path, cut: int) -> None:
    text = DGX_1V[:cut]
    if text.count("GPU7\t") < 2 or "\nGPU7" not in text:
        with pytest.raises(InputError):
            read(tmp_path, text)


CELLS = st.sampled_from(["NV1", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"])


@st.composite
def symmetric(draw: st.DrawFn) -> list[list[str]]:
    size = draw(st.integers(1, 6))
    cells = [["X"] * size for _ in range(size)]
    for one, other in itertools.combinations(range(size), 2):
        cells[one][other] = cells[other][one] = draw(CELLS)
    return cells


@settings(deadline=None)
@given(
    cells=symmetric(),
    gap=st.sampled_from(["\t", "  ", "\t\t", "      "]),
    underlined=st.booleans(),
    affinity=st.sampled_from([None, "0-15", "N/A"]),
    before=st.sampled_from(["", "user@host:~$ nvidia-smi topo -m\n\n"]),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_any_matrix_comes_back(
    cells: list[list[str]],
    gap: str,
    underlined: bool,
    affinity: str | None,
    before: str,
    newline: str,
) -> None:
    names = [f"GPU{number}" for number in range(len(cells))]
    columns = ["CPU Affinity"] if affinity else []
    header = gap + gap.join(names + columns)
    if underlined:
        header = f"\x1b[4m{header}\x1b[0m"
    rows = [
        gap.join([name, *row, *([affinity] if affinity else [])])
        for name, row in zip(names, cells, strict=True)
    ]
    text = before + newline.join([header, *rows, LEGEND])
    matrix = parse_matrix(text, "text")
    assert matrix is not None
    assert matrix.gpus == names
    for (one, left), (other, right) in itertools.permutations(enumerate(names), 2):
        cell = cells[one][other]
        nvlinks = matrix.nvlinks.get((left, right))
        assert nvlinks == (int(cell[2:]) if cell.startswith("NV") else None)
        assert matrix.relations.get((left, right)) == (None if nvlinks else cell)
    assert matrix.cpus == (dict.fromkeys(names, "0-15") if affinity == "0-15" else {})


def test_the_matrix_that_was_given_is_shown(tmp_path: Path) -> None:
    """Its words are kept, whatever else is known: what is PHB is not called NODE."""
    text = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\n" + "".join(
        f"GPU{n}\t{cells}\t0-7\n"
        for n, cells in enumerate((" X \tPHB\tNODE", "PHB\t X \tPSB", "NODE\tPSB\t X "))
    )
    path = tmp_path / "topo.txt"
    path.write_text(text)
    shown = adjacency(read_topology(path)).select("GPU0", "GPU1", "GPU2").rows()
    assert shown == [("X", "PHB", "NODE"), ("PHB", "X", "PSB"), ("NODE", "PSB", "X")]
    kept = with_bandwidths(read_topology(path), dict.fromkeys(range(3), "Tesla V100-SXM2-16GB"))
    assert adjacency(kept)["GPU1"].to_list() == ["PHB", "X", "PSB"]
