"""Presets, what is recognised as which, our TOML, and what product names tell."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError, UsageError
from tracekit.machine import (
    Link,
    Machine,
    load_preset,
    machine_toml,
    nvlink_of,
    preset_names,
    read_machine_toml,
    recognise,
    with_bandwidths,
)
from tracekit.machine._choose import completed

GB = 1_000_000_000

# GPUs, their NVLinks each, bandwidth of all those of a GPU, PCIe at a GPU.
FACTS = {
    "a100-pcie-nvlink-4": (4, 12, 300 * GB, 31_507_692_308),
    "dgx-a100": (8, 12, 300 * GB, 31_507_692_308),
    "dgx-b200": (8, 18, 900 * GB, 63_015_384_615),
    "dgx-h100": (8, 18, 450 * GB, 63_015_384_615),
    "dgx1p": (8, 4, 80 * GB, 15_753_846_154),
    "dgx1v": (8, 6, 150 * GB, 15_753_846_154),
    "dgx2": (16, 6, 150 * GB, 15_753_846_154),
    "gb200-4": (4, 18, 900 * GB, None),
    "hgx-a100-4": (4, 12, 300 * GB, 31_507_692_308),
    "hgx-a100-8": (8, 12, 300 * GB, 31_507_692_308),
    "hgx-a800-8": (8, 8, 200 * GB, 31_507_692_308),
    "hgx-b200-8": (8, 18, 900 * GB, 63_015_384_615),
    "hgx-h100-4": (4, 18, 450 * GB, 63_015_384_615),
    "hgx-h100-8": (8, 18, 450 * GB, 63_015_384_615),
    "hgx-h800-8": (8, 8, 200 * GB, 63_015_384_615),
    "mi300x-8": (8, 7, 448 * GB, 63_015_384_615),
    "mi325x-8": (8, 7, 0, 63_015_384_615),
    "mi350x-8": (8, 7, 7 * 76_800_000_000, 63_015_384_615),
    "pcie-1": (1, 0, 0, None),
    "pcie-2": (2, 0, 0, None),
    "pcie-4": (4, 0, 0, None),
    "pcie-8": (8, 0, 0, None),
}


def _links_at(machine: Machine, gpu: int, *types: str) -> list[Link]:
    return [link for link in machine.links if f"GPU{gpu}" in link.ends and link.type in types]


def test_every_preset_is_described_here() -> None:
    assert preset_names() == sorted(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_preset(name: str) -> None:
    machine = load_preset(name)
    gpus, bricks, bandwidth, pcie = FACTS[name]
    assert (machine.name, machine.origin) == (name, "preset")
    assert machine.source
    assert machine.gpus == list(range(gpus))
    assert nx.is_connected(machine.graph)
    for gpu in machine.gpus:
        nvlinks = _links_at(machine, gpu, "nvlink", "xgmi")
        assert sum(link.bricks or 0 for link in nvlinks) == bricks
        assert sum(link.bandwidth or 0 for link in nvlinks) == bandwidth
        assert [link.bandwidth for link in _links_at(machine, gpu, "pcie", "c2c")] == [pcie]
        assert machine.route(gpu, None) is not None


def test_dgx1p_joins_quads_and_counterparts() -> None:
    matrix = load_preset("dgx1p").nvlink_matrix()
    joined = [
        [
            int(one != other and (one // 4 == other // 4 or abs(one - other) == 4))
            for other in range(8)
        ]
        for one in range(8)
    ]
    assert matrix == joined


@pytest.mark.parametrize("name", FACTS)
def test_no_bandwidth_between_sockets_is_guessed(name: str) -> None:
    sockets = [link for link in load_preset(name).links if link.type == "socket"]
    assert [link.bandwidth for link in sockets] == [None] * len(sockets)


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("dgx1v", 15_753_846_154),
        ("dgx1p", None),
        ("dgx2", None),
        ("dgx-a100", None),
        ("dgx-h100", None),
    ],
)
def test_only_uplinks_that_were_seen_have_a_bandwidth(name: str, bandwidth: int | None) -> None:
    route = load_preset(name).route(0, None)
    assert route is not None
    assert "PCIe0" in route.nodes
    assert route.bandwidth == bandwidth


def test_nics_share_the_switches_of_gpus() -> None:
    dgx2 = load_preset("dgx2")
    for nic in range(8):
        for gpu in (2 * nic, 2 * nic + 1):
            near = nx.shortest_path(dgx2.graph, f"NIC{nic}", f"GPU{gpu}")
            assert near == [f"NIC{nic}", f"PCIe{nic}", f"GPU{gpu}"]
    assert load_preset("dgx-a100").nodes("nic") == [f"NIC{n}" for n in (0, 1, 2, 3, 6, 7, 8, 9)]


def test_plain_boxes_of_any_number_of_gpus() -> None:
    machine = load_preset("pcie-3")
    assert (machine.name, machine.gpus) == ("pcie-3", [0, 1, 2])
    assert load_preset("pcie-8").gpus == list(range(8))


@pytest.mark.parametrize("name", ["dgx3", "pcie-0", "pcie-", "pcie", "products", "../x", ""])
def test_unknown_preset(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown machine .*choose one of .*dgx1v"):
        load_preset(name)


@pytest.mark.parametrize(
    ("product", "gpus", "name"),
    [
        ("Tesla V100-SXM2-16GB", 8, "dgx1v"),
        ("Tesla V100-SXM2-32GB", 8, "dgx1v"),
        ("Tesla V100-SXM2-32GB", 16, "dgx2"),
        ("Tesla V100-SXM3-32GB", 16, "dgx2"),
        ("Tesla P100-SXM2-16GB", 8, "dgx1p"),
        ("A100-SXM4-40GB", 8, "hgx-a100-8"),
        ("NVIDIA A100-SXM4-80GB", 4, "hgx-a100-4"),
        ("NVIDIA A800-SXM4-80GB", 8, "hgx-a800-8"),
        ("NVIDIA H100 80GB HBM3", 8, "hgx-h100-8"),
        ("NVIDIA H100 80GB HBM3", 4, "hgx-h100-4"),
        ("NVIDIA H200", 8, "hgx-h100-8"),
        ("NVIDIA H20", 8, "hgx-h100-8"),
        ("NVIDIA H800", 8, "hgx-h800-8"),
        ("NVIDIA B200", 8, "hgx-b200-8"),
        ("NVIDIA GB200", 4, "gb200-4"),
        ("AMD Instinct MI300X", 8, "mi300x-8"),
        ("AMD Instinct MI355X", 8, "mi350x-8"),
    ],
)
def test_recognised(product: str, gpus: int, name: str) -> None:
    machine = recognise([product] * gpus)
    assert machine is not None
    assert (machine.name, machine.origin) == (name, "recognised")
    assert len(machine.warnings) == 1
    peers = [link for link in machine.links if link.type in ("nvlink", "xgmi")]
    assert {link.bandwidth is None for link in peers} == {False}


@pytest.mark.parametrize(
    ("products", "pcie"),
    [
        (["NVIDIA A40"] * 8, 31_507_692_308),
        (["NVIDIA H100 PCIe"] * 4, 63_015_384_615),
        (["NVIDIA H100 NVL"] * 2, 63_015_384_615),
        (["NVIDIA H200 NVL"] * 8, 63_015_384_615),
        (["NVIDIA H800 PCIe"] * 8, 63_015_384_615),
        (["NVIDIA A100 80GB PCIe"] * 4, 31_507_692_308),
        (["NVIDIA H100 80GB HBM3"] * 3, 63_015_384_615),
        (["NVIDIA A100-SXM4-40GB MIG 1g.5gb"] * 8, None),
        (["NVIDIA Thing 9000"] * 8, None),
        ([None] * 8, None),
    ],
)
def test_a_plain_box_is_assumed(products: list[str | None], pcie: int | None) -> None:
    machine = recognise(products)
    assert machine is not None
    assert (machine.name, machine.origin) == (f"pcie-{len(products)}", "assumed")
    assert {link.bandwidth for link in machine.links} == {pcie}
    assert "NVLinks between them" in machine.warnings[0]


@pytest.mark.parametrize(
    "products",
    [
        ["NVIDIA A100-SXM4-40GB"] * 2,
        ["NVIDIA H100 80GB HBM3"] * 6,
        ["Tesla V100-SXM2-16GB"] * 4,
        ["NVIDIA A100-SXM4-40GB", "NVIDIA L4"],
    ],
)
def test_a_share_of_a_board_has_nvlinks_of_which_none_is_known(products: list[str]) -> None:
    """As containers and schedulers give two of eight GPUs: no route is PCIe's."""
    machine = recognise(products)
    assert machine is not None
    assert (machine.origin, machine.tells_peers) == ("assumed", False)
    assert machine.route(0, 1) is None
    assert machine.warnings[0].endswith(
        " come on boards with NVLinks: no route between two GPUs is known: give --topology"
    )
    assert completed(machine, dict(enumerate(products))).warnings == machine.warnings


def test_gpus_of_amd_are_joined_by_xgmi() -> None:
    whole, share = (recognise(["AMD Instinct MI300X"] * count) for count in (8, 4))
    assert whole is not None
    assert share is not None
    assert {whole.route(0, gpu).type for gpu in range(1, 8)} == {"xgmi"}  # type: ignore[union-attr]
    assert share.route(0, 1) is None
    assert "xGMI links between them" in share.warnings[0]
    assert "NVLink" not in share.warnings[0]


def test_mixed_single_and_no_gpus() -> None:
    mixed = recognise(["Tesla V100-PCIE-16GB", "NVIDIA L4"])
    assert mixed is not None
    assert [link.bandwidth for link in mixed.links] == [15_753_846_154, 31_507_692_308]
    assert "NVLinks" not in mixed.warnings[0]
    one = recognise(["NVIDIA H100 80GB HBM3"])
    assert one is not None
    assert (one.name, one.warnings) == ("pcie-1", ())
    assert recognise([]) is None
    assert recognise([None] * 10_000) is None


@pytest.mark.parametrize(
    ("name", "bricks", "bandwidth", "pcie"),
    [
        ("Tesla P100-SXM2-16GB", 4, 20 * GB, 3),
        ("Tesla P100-PCIE-16GB", 0, None, 3),
        ("Tesla V100-SXM2-16GB", 6, 25 * GB, 3),
        ("Tesla V100-DGXS-32GB", None, 25 * GB, 3),
        ("NVIDIA A100-SXM4-40GB", 12, 25 * GB, 4),
        ("NVIDIA A100 80GB PCIe", 12, 25 * GB, 4),
        ("A100-PCIE-40GB", 12, 25 * GB, 4),
        ("NVIDIA A800 80GB PCIe", 8, 25 * GB, 4),
        ("NVIDIA A30", 4, 25 * GB, 4),
        ("NVIDIA A40", 4, 14_062_500_000, 4),
        ("NVIDIA RTX A6000", 4, 14_062_500_000, 4),
        ("NVIDIA GeForce RTX 3090", 4, 14_062_500_000, 4),
        ("NVIDIA GeForce RTX 3090 Ti", None, None, 4),
        ("NVIDIA GeForce RTX 3070 Ti", 0, None, 4),
        ("NVIDIA RTX 6000 Ada Generation", 0, None, 4),
        ("NVIDIA GeForce RTX 2080 Ti", 2, 25 * GB, 3),
        ("Quadro RTX 8000", 2, 25 * GB, 3),
        ("GeForce RTX 2080 SUPER", 1, 25 * GB, 3),
        ("NVIDIA GeForce RTX 2070 SUPER", 1, 25 * GB, 3),
        ("GeForce RTX 2070", 0, None, 3),
        ("NVIDIA TITAN V", None, None, 3),
        ("NVIDIA H100 80GB HBM3", 18, 25 * GB, 5),
        ("AMD Instinct MI300X", 7, 64 * GB, 5),
        ("AMD Instinct MI325X", 7, None, 5),
        ("AMD Instinct MI350X", 7, 76_800_000_000, 5),
        ("NVIDIA H100 PCIe", 12, 25 * GB, 5),
        ("NVIDIA H800", 8, 25 * GB, 5),
        ("NVIDIA H800 PCIe", None, 25 * GB, 5),
        ("NVIDIA GH200 480GB", 18, 25 * GB, None),
        ("NVIDIA B200", 18, 50 * GB, 5),
        ("NVIDIA B300", 18, 50 * GB, None),
        ("NVIDIA GB200", 18, 50 * GB, None),
        ("NVIDIA GeForce RTX 5090", 0, None, 5),
    ],
)
def test_what_product_names_tell(
    name: str, bricks: int | None, bandwidth: int | None, pcie: int | None
) -> None:
    product = nvlink_of(name)
    assert product is not None
    assert (product.bricks, product.brick_bandwidth, product.pcie) == (bricks, bandwidth, pcie)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "GRID V100-4Q",
        "NVIDIA L40S-8Q",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_what_product_names_do_not_tell(name: str | None) -> None:
    assert nvlink_of(name) is None


def test_bandwidths_are_filled_where_open() -> None:
    gpus = {f"GPU{gpu}": {"type": "gpu"} for gpu in range(4)}
    nodes = gpus | {"CPU0": {"type": "host"}, "PCIe0": {"type": "pcie"}}
    machine = Machine.of(
        "m",
        nodes,
        [
            Link(("GPU0", "GPU1"), "nvlink", 2),
            Link(("GPU0", "GPU2"), "nvlink", 2),
            Link(("GPU1", "GPU2"), "nvlink", 2, 7),
            Link(("GPU0", "GPU3"), "nvlink", 2),
            Link(("GPU0", "PCIe0"), "pcie"),
            Link(("GPU3", "PCIe0"), "pcie"),
            Link(("PCIe0", "CPU0"), "pcie"),
        ],
    )
    v100, p100 = "Tesla V100-SXM2-16GB", "Tesla P100-SXM2-16GB"
    filled = with_bandwidths(machine, {0: v100, 1: v100, 2: p100, 3: None})
    assert {link.name: link.bandwidth for link in filled.links} == {
        "GPU0-GPU1": 50 * GB,
        "GPU0-GPU2": 40 * GB,
        "GPU1-GPU2": 7,
        "GPU0-GPU3": None,
        "GPU0-PCIe0": 15_753_846_154,
        "GPU3-PCIe0": None,
        "PCIe0-CPU0": None,
    }


def _read(folder: Path, text: str) -> Machine:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return read_machine_toml(path)


HEAD = "version = 1\nnodes = {GPU = 4, CPU = 1}\n"


def test_a_machine_of_a_user(tmp_path: Path) -> None:
    machine = _read(
        tmp_path,
        """
        version = 1
        warnings = ["by hand"]
        [nodes]
        GPU = [0, 2, 5]
        CPU = 1
        [[links]]
        type = "nvlink"
        bricks = 2
        brick_bandwidth = 10
        between = ["GPU0,2-GPU5", "GPU0-GPU2"]
        [[links]]
        type = "pcie"
        pcie = "4x8"
        between = "GPU*-CPU0"
        [attributes.GPU2]
        uuid = "GPU-1"
        numa = 1
        """,
    )
    assert (machine.name, machine.origin, machine.warnings) == ("mine", "file", ("by hand",))
    assert machine.gpus == [0, 2, 5]
    assert machine.nvlink_matrix() == [[0, 2, 2], [2, 0, 2], [2, 2, 0]]
    assert [link.bandwidth for link in _links_at(machine, 0, "nvlink", "pcie")] == [
        15_753_846_154, 20, 20
    ]  # fmt: skip
    assert machine.graph.nodes["GPU2"] == {"type": "gpu", "uuid": "GPU-1", "numa": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1", "names no GPU"),
        ("version = 2", "has version 2: version = 1 is read"),
        ("= 1", "is not TOML"),
        ("version = 1\nnode = {GPU = 1}", "unknown key 'node'"),
        ("version = 1\nnodes = 3", "nodes is not a table"),
        ("version = 1\nnodes = {GPU = -1}", "nodes.GPU is -1"),
        ("version = 1\nnodes = {GPU = true}", "nodes.GPU is True"),
        ("version = 1\nnodes = {GPU = 1000000000}", "nodes.GPU is 1000000000"),
        ("version = 1\nnodes = {GPU = [1, 1]}", "nodes.GPU names a number twice"),
        ("version = 1\nnodes = {TPU = 1}", "unknown type of node 'TPU'"),
        ("name = 3\n" + HEAD, "name is 3"),
        ("warnings = [3]\n" + HEAD, "warnings is .3."),
        (HEAD + "attributes = {GPU9 = {}}", "attributes of GPU9, which is not among the nodes"),
        (HEAD + "attributes = {GPU1 = {uuid = 3}}", "attributes.GPU1.uuid is 3"),
        (HEAD + "attributes = {GPU1 = {id = 3}}", "attributes.GPU1 has the unknown key 'id'"),
        (HEAD + "attributes = {GPU1 = 3}", "attributes.GPU1 is not a table"),
        (HEAD + "links = 1", "links is not a list of tables"),
        (HEAD + "[[links]]\nbetween = 'GPU0-GPU1'", "links.0. has the unknown type None"),
        (HEAD + "[[links]]\ntype = 'wire'", "unknown type 'wire': known: c2c, network"),
        (HEAD + "[[links]]\ntype = ['pcie']", "unknown type"),
        (HEAD + "[[links]]\ntype = 'pcie'", "between is None"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = [1]", "between is .1."),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU0'", "between 'GPU0'"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU0-GPU9'", "leads to GPU9, which is not"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU0-XPU'", "names 'XPU': nodes are named"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU1...3-CPU0'", "has '1...3' for a number"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU1,-CPU0'", "has '' for a number"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU1-GPU1'", "joins GPU1 with itself"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbetween = 'GPU0,1-GPU1,2'", "joins GPU1 with itself"),
        (
            HEAD + "[[links]]\ntype = 'pcie'\nbetween = ['GPU0-CPU0', 'CPU0-GPU0']",
            "joins CPU0-GPU0 a second time",
        ),
        (HEAD + "[[links]]\ntype = 'nvlink'\nbetween = 'GPU0-GPU1'", "give bricks for NVL"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbricks = 1\nbetween = 'GPU0-GPU1'", "only for them"),
        (HEAD + "[[links]]\ntype = 'nvlink'\nbricks = -1", "bricks is -1"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbandwidth = -5", "bandwidth is -5"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbandwidth = 2.5e9", "bandwidth is 2500000000.0"),
        (HEAD + "[[links]]\ntype = 'pcie'\nbrick_bandwidth = 5", "brick_bandwidth without bricks"),
        (HEAD + "[[links]]\ntype = 'pcie'\npcie = '9x16'", "pcie is '9x16'"),
        (HEAD + "[[links]]\ntype = 'pcie'\npcie = '3x16'\nbandwidth = 1", "bandwidth and pcie"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        _read(tmp_path, text)
    assert "mine.toml" in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_machine_toml(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        read_machine_toml(tmp_path / "binary.toml")
    (tmp_path / "large.toml").write_text("#" * (4 << 20) + "\n")
    with pytest.raises(InputError, match="too large"):
        read_machine_toml(tmp_path / "large.toml")


@pytest.mark.parametrize("name", [*FACTS, "pcie-3"])
def test_presets_survive_being_written(tmp_path: Path, name: str) -> None:
    machine = load_preset(name)
    again = _read(tmp_path, machine_toml(machine))
    assert (again.name, again.source, again.warnings) == (name, machine.source, machine.warnings)
    assert set(again.links) == set(machine.links)
    assert dict(again.graph.nodes(data=True)) == dict(machine.graph.nodes(data=True))


@settings(deadline=None)
@given(name=st.text(min_size=1), warning=st.text(), uuid=st.text())
def test_any_text_survives_being_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, warning: str, uuid: str
) -> None:
    nodes = {"GPU4": {"type": "gpu", "uuid": uuid, "numa": None}}
    written = machine_toml(Machine.of(name, nodes, [], warnings=[warning]))
    again = _read(tmp_path_factory.mktemp("toml"), written)
    assert (again.name, again.warnings) == (name, (warning,))
    assert again.graph.nodes["GPU4"] == {"type": "gpu", "uuid": uuid}
