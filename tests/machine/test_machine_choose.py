"""Which machine is meant, and which one a run was recorded on."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import InputError, MissingDataError, UsageError
from tracekit.machine import (
    Link,
    find_machine,
    find_rings,
    is_topology,
    load_preset,
    machine_of,
    machine_toml,
    with_nics,
)
from tracekit.machine._choose import side_by_side
from tracekit.machine._graph import with_fabric
from tracekit.model import DEVICES

V100 = "Tesla V100-SXM2-16GB"


def devices(names: list[str | None], active: list[bool] | None = None) -> pl.DataFrame:
    rows = {
        "device": list(range(len(names))), "report": 0, "name": pl.Series(names, dtype=pl.String),
        "active": active or [True] * len(names), "identity": "ordinal",
    }  # fmt: skip
    return DEVICES.conform(pl.DataFrame(rows))


def test_a_preset_a_file_or_neither(tmp_path: Path) -> None:
    file = tmp_path / "any name"
    file.write_text(machine_toml(load_preset("dgx1v")))
    assert is_topology("dgx1v")
    assert is_topology("pcie-3")
    assert is_topology(str(file))
    assert not is_topology("@latest")
    assert find_machine(str(file)).nvlink_matrix() == load_preset("dgx1v").nvlink_matrix()
    assert find_machine("pcie-3").gpus == [0, 1, 2]
    with pytest.raises(UsageError, match="no topology file and no preset 'dgx9'"):
        find_machine("dgx9")


def test_a_trace_is_no_topology(tmp_path: Path) -> None:
    trace = tmp_path / "run.sqlite"
    trace.write_bytes(b"SQLite format 3\0" + bytes(1000))
    assert not is_topology(str(trace))
    with pytest.raises(InputError):
        find_machine(str(trace))


def test_eight_v100_are_recognised() -> None:
    placed = machine_of(devices([V100] * 8))
    assert (placed.machine.name, placed.machine.origin, placed.by) == (
        "dgx1v", "recognised", "number",
    )  # fmt: skip
    assert placed.place == {n: n for n in range(8)}


def test_what_is_known_of_products_fills_a_file(tmp_path: Path) -> None:
    file = tmp_path / "topo.toml"
    file.write_text(
        "version = 1\n[nodes]\nGPU = 4\n[[links]]\ntype = 'nvlink'\nbricks = 2\n"
        "between = 'GPU0-GPU1'\n"
    )
    placed = machine_of(devices([V100, V100]), str(file))
    link = placed.machine.link("GPU0", "GPU1")
    assert link is not None
    assert link.bandwidth == 50_000_000_000
    # The GPUs that the run does not name stand for themselves.
    assert placed.place == {0: 0, 1: 1, 2: 2, 3: 3}


def test_gpus_of_several_hosts_are_in_several_machines() -> None:
    """Two servers of four V100 are no DGX-1: no NVLink leads from one to the other."""
    hosts = pl.Series("host", ["node1"] * 4 + ["node2"] * 4)
    cluster = devices([V100] * 8).with_columns(hosts)
    placed = machine_of(cluster)
    single = machine_of(devices([V100] * 4)).machine
    inside = single.nvlink_matrix()
    assert [row[:4] for row in placed.machine.nvlink_matrix()[:4]] == inside
    assert [row[4:] for row in placed.machine.nvlink_matrix()[4:]] == inside
    assert placed.machine.origin == single.origin
    assert placed.place == {n: n for n in range(8)}
    across = placed.machine.route(0, 4)
    assert across is not None
    assert (across.name, across.type, across.bandwidth) == ("GPU0>Fabric0>GPU4", "network", None)
    near, far = placed.machine.route(0, None), placed.machine.route(4, None)
    assert near is not None
    assert far is not None
    assert not set(near.nodes) & set(far.nodes)
    assert "of 2 hosts (node1, node2)" in placed.warnings[-1]
    # What a user says is believed, and said.
    told = machine_of(cluster, "dgx1v")
    assert told.machine.name == "dgx1v"
    assert "2 hosts (node1, node2) are taken for those of one machine" in told.warnings[-1]


@pytest.mark.parametrize(
    ("name", "units", "warns"),
    [
        (V100, 80, True), (V100 + " MIG 1g.5gb", 14, False), ("AMD Instinct MI300X", 304, True),
        ("AMD Instinct MI300X", 38, False),
    ],
)  # fmt: skip
def test_gpus_at_one_bus_are_of_machines_of_one_name(name: str, units: int, warns: bool) -> None:
    told = {"host": "worker", "pci_bus": ["1", "2", "1", None], "uuid": ["a", "b", "c", "d"],
            "sm_count": units}  # fmt: skip
    cluster = devices([name] * 4).with_columns(**{
        key: pl.Series(key, value) if isinstance(value, list) else pl.lit(value)
        for key, value in told.items()
    })  # fmt: skip
    warnings = machine_of(cluster).warnings
    assert any(each.startswith("1 GPUs have the host name and PCI bus") for each in warnings) == (
        warns
    )


@pytest.mark.parametrize(
    ("name", "units"), [("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42), ("AMD Instinct MI300X", 38)]
)
@pytest.mark.parametrize("hosts", [["a"] * 3, ["a", "a", "b"]])
def test_parts_of_one_gpu_share_its_links(name: str, units: int, hosts: list[str]) -> None:
    sliced = devices([name] * 3).with_columns(
        host=pl.Series(hosts), pci_bus=pl.Series(["1", "1", "2"]), uuid=pl.Series(["a", "b", "c"]),
        sm_count=pl.lit(units), active=pl.Series([False, True, True]),
    )  # fmt: skip
    placed = machine_of(sliced)
    assert placed.place == {0: 0, 1: 0, 2: 1}
    assert [link.type for link in placed.machine.links].count("pcie") == 2
    assert machine_of(sliced[1:2]).warnings == machine_of(sliced[:2]).warnings == ()


def test_a_topology_of_each_host() -> None:
    """One of eight GPUs is that of each of two hosts of eight; their NICs join them."""
    hosts = pl.Series("host", ["node1"] * 8 + ["node2"] * 8)
    cluster = devices(["NVIDIA H100 80GB HBM3"] * 16).with_columns(hosts)
    placed = machine_of(cluster, "dgx-h100")
    route = placed.machine.route(3, 12)
    assert route is not None
    assert route.name == "GPU3>PCIe3>NIC3>Fabric0>NIC12>PCIe12>GPU12"
    assert placed.machine.link("NIC3", "Fabric0") == Link(
        ("NIC3", "Fabric0"), "network", None, 50_000_000_000, "assumed"
    )
    told = placed.machine.route(3, 12, nics=(1, 0))
    assert told is not None
    assert {"NIC1", "NIC8"} < {*told.nodes}
    assert placed.machine.route(3, 12, nics=(9, 0)) is None
    with pytest.raises(UsageError, match="cannot carry a run on 8 GPUs"):
        machine_of(cluster, "pcie-4")
    # Also where half of each host ran nothing, so that as many ran as one of them has.
    half = cluster.with_columns(active=pl.col("device") % 8 < 4)
    assert machine_of(half, "dgx-h100").machine.name == "2 x dgx-h100"


def test_nics_have_the_numbers_that_their_host_gives_them() -> None:
    """A DGX A100 leaves numbers out: what NCCL calls NIC 6 is its fifth here."""
    two, _ = side_by_side([load_preset("dgx-a100")] * 2, "two")
    machine = with_nics(with_fabric(two), [(0, 6), (8, 4)])
    assert machine.nics(0)[6] == "NIC6"
    assert machine.nics(1)[6] == "NIC16"
    route = machine.route(0, 8, nics=(6, 4))
    assert route is not None
    # One that the topology lacks is joined with the GPU that a log says uses it.
    assert route.nodes[-3:] == ("Fabric0", machine.nics(1)[4], "GPU8")
    assert machine.link("GPU8", machine.nics(1)[4]) is not None


def test_data_between_a_nic_and_a_gpu_may_go_through_host_memory() -> None:
    """GPU 0 sends through memory and receives directly; GPU 9 does both through memory."""
    staged = [(0, 0, True), (9, 0, True), (9, 0, False)]
    for preset, known in (("dgx-a100", True), ("hgx-a100-8", False)):
        two, _ = side_by_side([load_preset(preset)] * 2, "two")
        machine = with_nics(with_fabric(two), [(0, 0)], through_host=staged)
        here, there = machine.nics(0)[0], machine.nics(1)[0]
        onward, back = (machine.route(*ends, nics=(0, 0)) for ends in ((0, 9), (9, 0)))
        assert onward is not None
        assert back is not None
        up = ["GPU0", "PCIe0", "CPU0", "PCIe0"] if known else ["GPU0", "CPU0"]
        down = ["PCIe4", "CPU2", "PCIe4", "GPU9"] if known else ["CPU1", "GPU9"]
        assert onward.nodes == (*up, here, "Fabric0", there, *down)
        direct = ("PCIe0", "GPU0") if known else ("GPU0",)
        assert back.nodes == (*down[::-1], there, "Fabric0", here, *direct)
        assert machine.link("GPU9", there) is None


def test_nics_of_a_log_are_those_of_their_names() -> None:
    """NCCL lists two of the NICs of host 0 in an order of its own; those of host 1 have no name."""
    two, _ = side_by_side([load_preset("dgx-a100")] * 2, "two")
    joined = with_fabric(two)
    for number, nic in joined.nics(0).items():
        joined.graph.nodes[nic]["name"] = f"mlx5_{number}"
    names = {0: {0: "mlx5_7", 1: "mlx5_0"}, 1: {0: "ens1", 5: "ens6"}}
    machine = with_nics(joined, [(0, 0), (8, 5)], names)
    assert machine.nics(0) == {1: "NIC0", 0: "NIC7"}
    assert machine.nics(1)[0] == "NIC10"
    named = machine.graph.nodes(data="name")
    assert (named["NIC10"], named[machine.nics(1)[5]]) == ("ens1", "ens6")
    # What the log does not list carries nothing, be it the nearest.
    across = machine.route(0, 8)
    assert across is not None
    assert across.nodes[2] == "NIC0"
    assert machine.route(4, 8, nics=(None, 5)).nodes[-2:] == (machine.nics(1)[5], "GPU8")


def test_routes_of_many_hosts_take_as_long_each_as_those_of_one() -> None:
    machine = with_fabric(side_by_side([load_preset("hgx-a100-8")] * 64, "")[0])
    started = time.process_time()
    found = [machine.route(gpu, None) for gpu in machine.gpus]
    assert len({route.links for route in found if route}) == 512
    assert {machine.switch(gpu) for gpu in machine.gpus} == {*machine.nodes("nvswitch")}
    assert [len(ring.gpus) for ring in find_rings(machine, machine.gpus)] == [512] * 8
    assert time.process_time() - started < 1


def test_nvlinks_of_racks_may_join_hosts() -> None:
    hosts = pl.Series("host", ["node1"] * 4 + ["node2"] * 4)
    placed = machine_of(devices(["NVIDIA GB200"] * 8).with_columns(hosts))
    assert placed.machine.route(0, 4) is None
    assert "is on no link, as NVLinks of such GPUs may join hosts" in placed.warnings[-1]


def test_a_host_that_ran_nothing_is_no_machine() -> None:
    idle = devices([V100] * 3, [True, True, False]).with_columns(
        host=pl.Series(["node1", "node1", "node2"])
    )
    assert len(machine_of(idle).machine.gpus) == 3


def test_hosts_of_other_gpus_are_as_sure_as_the_least_of_them() -> None:
    mixed = devices([V100] * 8 + ["Tesla T4"] * 2).with_columns(
        host=pl.Series(["node1"] * 8 + ["node2"] * 2)
    )
    placed = machine_of(mixed)
    assert (placed.machine.name, placed.machine.origin) == ("dgx1v + pcie-2", "assumed")
    assert placed.machine.bricks(0, 3) == 2
    assert placed.place[9] == 9


def test_too_small_a_topology() -> None:
    with pytest.raises(UsageError, match=r"a topology of 4 GPUs .* cannot carry a run on 8 GPUs"):
        machine_of(devices([V100] * 8), "pcie-4")
    idle = devices([V100] * 8, [True] * 2 + [False] * 6)
    assert machine_of(idle, "pcie-4").place == {n: n for n in range(4)}


def test_no_gpu_at_all() -> None:
    with pytest.raises(MissingDataError, match="no GPU is in this run"):
        machine_of(DEVICES.empty())


@pytest.mark.parametrize("names", [("dgx1v", "pcie-2"), ("dgx2", "dgx2"), ("pcie-1", "dgx-h100")])
def test_machines_beside_each_other_are_what_they_are_alone(names: tuple[str, str]) -> None:
    parts = [load_preset(name) for name in names]
    whole, firsts = side_by_side(parts, "two of them")
    assert firsts == [0, len(parts[0].gpus)]
    assert whole.gpus == list(range(sum(len(part.gpus) for part in parts)))
    assert len(whole.links) == sum(len(part.links) for part in parts)
    for part, first in zip(parts, firsts, strict=True):
        for src, dst in itertools.product([None, *part.gpus], repeat=2):
            there = [None if gpu is None else gpu + first for gpu in (src, dst)]
            own, found = part.route(src, dst), whole.route(*there)
            assert (own is None) == (found is None)
            if own is not None and found is not None:
                assert (own.type, own.bandwidth) == (found.type, found.bandwidth)
                assert len(own.nodes) == len(found.nodes)
    assert whole.route(0, firsts[1]) is None
    assert whole.warnings[-1] == "two of them"
