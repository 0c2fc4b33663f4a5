"""What each format of a topology says of NVLinks where real files omit them.

A template of a cloud provider numbers no GPUs and names no NVLinks; that is no proof that there are
none. `nvidia-smi topo -m` tells of every pair; so does a dump of NCCL's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import InputError
from tracekit.machine import (
    Machine,
    link_table,
    load_preset,
    machine_of,
    machine_toml,
    problems,
    read_machine_toml,
    read_topology,
)

GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
A100, V100, L4 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "NVIDIA L4"


def template(gpus: int, kind: str = "0x030200", nics: int = 0) -> str:
    """An XML such as cloud providers give: PCI devices by class, no GPU, no NVLink."""
    devices = [f'<pci busid="{n:04x}:00:00.0" class="{kind}" {GEN4}/>' for n in range(1, gpus + 1)]
    devices += [f'<pci busid="{n:04x}:01:00.0" class="0x020700" {GEN4}/>' for n in range(nics)]
    return f'<system version="1"><cpu numaid="0">{"".join(devices)}</cpu></system>'


def dump(inside: str = "", kind: str = "0x030200") -> str:
    """An XML such as NCCL dumps, of two GPUs."""
    gpus = "".join(
        f'<pci busid="0000:{bus}:00.0" class="{kind}" {GEN4}><gpu dev="{dev}" sm="80" rank="{dev}"'
        f' gdr="1">{inside.replace("OTHER", other)}</gpu></pci>'
        for dev, (bus, other) in enumerate((("07", "0a"), ("0a", "07")))
    )
    return f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'


def topo(
    cell: str, affinities: tuple[str, str], columns: str = "CPU Affinity\tNUMA Affinity"
) -> str:
    rows = [f"GPU0\t X \t{cell}\t{affinities[0]}", f"GPU1\t{cell}\t X \t{affinities[1]}"]
    return "\n".join(["\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", *rows, ""])


NVLINK = '<nvlink target="0000:OTHER:00.0" count="2" tclass="0x030200"/>'
XGMI = '<xgmi target="0000:OTHER:00.0" count="1" tclass="0x038000"/>'
NEAR = "0-31\t0\t\tN/A"
TOML = 'version = 1\n[nodes]\nGPU = 2\nCPU = 1\n[[links]]\ntype = "pcie"\nbetween = "GPU*-CPU0"\n'

TABLE = {
    "topo -m with NVLinks": (topo("NV2", (NEAR,) * 2), [V100] * 2, "GPU0>GPU1", "stated"),
    "topo -m without": (topo("PIX", (NEAR,) * 2), [V100] * 2, "GPU0>PCIe0>GPU1", "stated"),
    "topo -m, CPU affinity empty": (
        topo("SYS", ("\t0\t\tN/A", "\t1\t\tN/A")), [V100] * 2, "GPU0>CPU0>CPU1>GPU1", "stated",
    ),
    "topo -m, NUMA affinity empty": (
        topo("SYS", ("0-31\t\t\tN/A", "32-63\t\t\tN/A")), [V100] * 2, "GPU0>CPU0>CPU1>GPU1",
        "stated",
    ),
    "a dump of NCCL's with NVLinks": (dump(NVLINK), [A100] * 2, "GPU0>GPU1", "stated"),
    "a dump of NCCL's without": (dump(), [L4] * 2, "GPU0>CPU0>GPU1", "stated"),
    "a dump of RCCL's": (dump(XGMI, "0x038000"), [None] * 2, "GPU0>GPU1", "stated"),
    "a dump of RCCL's, accelerators": (dump(XGMI, "0x120000"), [None] * 2, "GPU0>GPU1", "stated"),
    "a template of 8 A100": (template(8), [A100] * 8, "GPU0>NVSwitch0>GPU1", "recognised"),
    "a template of 8 V100": (template(8), [V100] * 8, "GPU0>GPU1", "recognised"),
    "a template of 8, 2 ran": (template(8), [A100] * 2, "GPU0>NVSwitch0>GPU1", "recognised"),
    "a template without NVLinks to have": (template(8), [L4] * 8, "GPU0>CPU0>GPU1", "stated"),
    "a template with NICs": (template(8, nics=2), [A100] * 8, "GPU0>NVSwitch0>GPU1", "recognised"),
    "a template of a number of no board": (template(3), [A100] * 3, None, None),
    "a template of mixed models": (template(8), [A100] * 7 + [V100], None, None),
    "a template of slices (MIG)": (template(8), [f"{A100} MIG 1g.5gb"] * 8, None, None),
    "a template of unknown GPUs": (template(8), ["Graphics Device"] * 8, None, None),
    "TOML without NVLinks": (TOML, [V100] * 2, "GPU0>CPU0>GPU1", "stated"),
    "TOML that tells of none": (
        TOML.replace("version = 1", "version = 1\ntells_peers = false"), [V100] * 2, None, None,
    ),
}  # fmt: skip


def used(path: Path, products: list[str | None]) -> Machine:
    devices = pl.DataFrame(
        [{"device": n, "name": name, "uuid": None, "pci_bus": None, "active": True, "host": "a",
          "sm_count": None}
         for n, name in enumerate(products)],
        schema_overrides={"name": pl.String, "uuid": pl.String, "pci_bus": pl.String,
                          "sm_count": pl.Int32},
    )  # fmt: skip
    return machine_of(devices, str(path)).machine


@pytest.mark.parametrize("case", TABLE)
def test_what_is_told_completed_and_untold(case: str, tmp_path: Path) -> None:
    text, products, route, known = TABLE[case]
    path = tmp_path / "topology"
    path.write_text(text)
    machine = used(path, products)
    found = machine.route(0, 1)
    assert (found and found.name) == route
    if found is None:
        assert any("no route between two GPUs is known" in text for text in machine.warnings)
        # What goes to the host is known all the same.
        assert machine.route(0, None) is not None
    else:
        assert machine.known(found.links[0]) == known
    if known == "recognised":
        assert any("names no NVLinks" in text for text in machine.warnings)
        assert {"stated", "recognised"} == set(link_table(machine)["known"])


def test_a_template_is_odd_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    path.write_text(template(8))
    machine = read_topology(path)
    assert problems(machine)[0].startswith("it names no NVLinks")
    copy = tmp_path / "copy.toml"
    copy.write_text(machine_toml(machine))
    assert not read_machine_toml(copy).tells_peers


def test_completed_links_are_those_of_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    path.write_text(template(8))
    machine = used(path, [V100] * 8)
    assert machine.nvlink_matrix() == load_preset("dgx1v").nvlink_matrix()
    assert machine.route(0, 3) is not None


def test_xgmi_links_are_a_type_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    path.write_text(dump(XGMI, "0x038000"))
    rows = link_table(read_topology(path)).filter(type="xgmi").rows()
    assert rows == [("GPU0-GPU1", "xgmi", 1, None, "stated")]
    path.write_text(dump(XGMI, "0x038000").replace('count="1"', 'count="2"', 1))
    with pytest.raises(InputError, match="GPU0-GPU1 has 2 NVLinks but GPU1-GPU0 has 1"):
        read_topology(path)


def test_how_links_of_presets_are_known() -> None:
    machine = load_preset("dgx1v")
    assert set(link_table(machine)["known"]) == {"recognised"}
    assert set(link_table(replace(machine, origin="assumed"))["known"]) == {"assumed"}


@pytest.mark.parametrize("gap", ["\t", "    "])
def test_an_empty_cell_shifts_no_column(gap: str, tmp_path: Path) -> None:
    """Without tabs a row of fewer words does not say which they are: then nothing is read of it."""
    path = tmp_path / "topology"
    path.write_text(topo("SYS", ("\t0\t\tN/A", "\t1\t\tN/A")).replace("\t", gap))
    machine = read_topology(path)
    numa = [machine.graph.nodes[f"GPU{n}"].get("numa") for n in range(2)]
    assert numa == ([0, 1] if gap == "\t" else [None, None])
