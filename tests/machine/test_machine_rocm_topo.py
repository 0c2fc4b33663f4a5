"""What `rocm-smi --showtopo` prints, in the forms of its versions."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import InputError
from tracekit.machine import (
    Machine,
    adjacency,
    find_rings,
    link_table,
    machine_toml,
    read_machine_toml,
    read_topology,
)

HEAD = "======================= ROCm System Management Interface ======================="
END = "============================= End of ROCm SMI Log =============================="


def table(title: str, rows: list[list[str]]) -> str:
    """Print a table as rocm-smi does."""
    names = [f"GPU{n}" for n in range(len(rows))]
    text = [f"========================== {title} between two GPUs =========================="]
    text.append("       " + "".join(name.ljust(13) for name in names))
    text += [name.ljust(7) + "".join(cell.ljust(13) for cell in row)
             for name, row in zip(names, rows, strict=True)]  # fmt: skip
    return "\n".join(text) + "\n"


def square(cells: dict[tuple[int, int], str], size: int, rest: str) -> list[list[str]]:
    return [
        ["0" if one == other else cells.get((min(one, other), max(one, other)), rest)
         for other in range(size)]
        for one in range(size)
    ]  # fmt: skip


def numa(nodes: list[int], form: str = "GPU[{n}]\t\t: (Topology) Numa {what}: {node}") -> str:
    lines = ["================================== Numa Nodes =================================="]
    lines += [form.format(n=n, what=what, node=node) for n, node in enumerate(nodes)
              for what in ("Node", "Affinity")]  # fmt: skip
    return "\n".join(lines)


def read(folder: Path, *parts: str) -> Machine:
    path = folder / "topo.txt"
    path.write_text("\n".join([HEAD, "WARNING: a device is in a low-power state", *parts, END]))
    return read_topology(path)


def in_two_halves(weight: str = "15") -> tuple[str, str, str]:
    """Four GPUs, 0 and 1, 2 and 3 of which XGMI joins."""
    near = {(0, 1): "XGMI", (2, 3): "XGMI"}
    weights = square(dict.fromkeys(near, weight), 4, "72")
    hops = square(dict.fromkeys(near, "1"), 4, "3")
    return (
        table("Weight", weights), table("Hops", hops), table("Link Type", square(near, 4, "PCIE"))
    )  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        "GPU[{n}]\t\t: (Topology) Numa {what}: {node}",
        "GPU {n}          : (Topology) Numa {what}: {node}",
    ],
)
def test_xgmi_and_pcie(tmp_path: Path, form: str) -> None:
    machine = read(tmp_path, *in_two_halves(), numa([0, 0, 1, 1], form))
    assert link_table(machine).select("link", "type", "nvlinks", "known").rows() == [
        ("CPU0-CPU1", "socket", None, "stated"),
        ("GPU0-CPU0", "pcie", None, "stated"), ("GPU0-GPU1", "xgmi", None, "stated"),
        ("GPU1-CPU0", "pcie", None, "stated"), ("GPU2-CPU1", "pcie", None, "stated"),
        ("GPU2-GPU3", "xgmi", None, "stated"), ("GPU3-CPU1", "pcie", None, "stated"),
    ]  # fmt: skip
    assert machine.warnings == ()
    names = {pair: getattr(machine.route(*pair), "name", None) for pair in ((0, 1), (0, 2))}
    assert names == {(0, 1): "GPU0>GPU1", (0, 2): "GPU0>CPU0>CPU1>GPU2"}
    shown = adjacency(machine)
    assert shown.select(pl.exclude("nvlinks")).rows()[0] == (
        "GPU0", "X", "XGMI", "PCIE", "PCIE", "CPU0"
    )  # fmt: skip
    assert shown["nvlinks"].null_count() == 4


def test_all_to_all_with_weights_of_a_package(tmp_path: Path) -> None:
    weights, types = square({(0, 1): "13"}, 4, "15"), square({}, 4, "XGMI")
    machine = read(
        tmp_path, table("Weight", weights), table("Link Type", types), numa([0, 1, 2, 3])
    )
    xgmi = link_table(machine).filter(type="xgmi")
    assert xgmi.height == 6
    assert all(len(ring.gpus) == 4 for ring in find_rings(machine, range(4)))


def test_links_of_several_hops_are_no_link_of_their_own(tmp_path: Path) -> None:
    """GPUs 0 and 2 of a chain reach each other through 1: which way is not said, but not PCIe."""
    weights = square({(0, 2): "30"}, 3, "15")
    machine = read(
        tmp_path, table("Weight", weights), table("Link Type", square({}, 3, "XGMI")), numa([0] * 3)
    )
    assert machine.route(0, 2) is None
    assert machine.route(0, 1) is not None
    assert adjacency(machine)["GPU2"].to_list() == ["XGMI", "XGMI", "X"]
    [said] = machine.warnings
    assert "XGMI of several hops joins GPU0-GPU2" in said
    path = tmp_path / "machine.toml"
    path.write_text(machine_toml(machine))
    again = read_machine_toml(path)
    assert again.route(0, 2) is None
    assert link_table(again).equals(link_table(machine))


def test_a_type_that_is_not_told(tmp_path: Path) -> None:
    types = square({(0, 1): "XXXX"}, 2, "")
    machine = read(tmp_path, table("Link Type", types))
    assert machine.route(0, 1) is None
    assert machine.warnings == ("it lacks NUMA nodes of some GPUs: CPU0 is assumed",)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((table("Weight", square({}, 2, "15")),), "has no table of link types between GPUs"),
        ((table("Link Type", square({}, 2, "XGMI"))[:-40],), "not square; it may be cut short"),
        ((table("Link Type", [["0", "XGMI"], ["PCIE", "0"]]),), "which contradicts it"),
        ((table("Link Type", [["XGMI", "XGMI"], ["XGMI", "0"]]),), "which contradicts it"),
    ],
)
def test_what_is_cut_short_or_contradicts_itself(
    tmp_path: Path, parts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, *parts)
