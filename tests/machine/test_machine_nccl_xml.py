"""The XML of NCCL_TOPO_DUMP_FILE."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.errors import InputError
from tracekit.machine import Machine, read_topology

GEN3 = 'link_speed="8.0 GT/s PCIe" link_width="16"'
GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'


def read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "system.txt"
    path.write_text(text, encoding="utf-8")
    return read_topology(path)


def gpu(bus: str, dev: int, inside: str = "", sm: int = 70, link: str = GEN3) -> str:
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x030200" {link}>'
        f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{inside}</gpu></pci>'
    )


def nvlink(target: str, count: int, kind: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


BRIDGED = f"""<?xml version="1.0" encoding="UTF-8"?>
<!-- of three V100 and two NICs -->
<system version="1">
  <cpu numaid="0" affinity="000fffff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:03:00.0" class="0x060400" {GEN3}>
      <pci busid="0000:04:00.0" class="0x060400" {GEN3}>
        {gpu("06", 0, nvlink("0000:07:00.0", 1) + nvlink("0000:85:00.0", 2))}
        {gpu("07", 1, nvlink("0000:06:00.0", 1))}
        <pci busid="0000:08:00.0" class="0x020700" {GEN3}>
          <nic><net name="mlx5_0" dev="0" speed="100000" port="1"/></nic>
        </pci>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="fff00000" arch="x86_64" vendor="GenuineIntel">
    {gpu("85", 2, nvlink("0000:06:00.0", 2))}
    <nic><net name="eth0" dev="1" speed="10000" port="0"/></nic>
  </cpu>
</system>
"""


def test_bridges_gpus_and_nics(tmp_path: Path) -> None:
    machine = read(tmp_path, BRIDGED)
    assert {link.name: (link.type, link.bricks, link.bandwidth) for link in machine.links} == {
        "CPU0-CPU1": ("socket", None, None),
        "GPU0-GPU1": ("nvlink", 1, 25_000_000_000),
        "GPU0-GPU2": ("nvlink", 2, 50_000_000_000),
        "GPU0-PCIe0": ("pcie", None, 15_753_846_154),
        "GPU1-PCIe0": ("pcie", None, 15_753_846_154),
        "GPU2-CPU1": ("pcie", None, 15_753_846_154),
        "NIC0-PCIe0": ("pcie", None, 15_753_846_154),
        "NIC1-CPU1": ("pcie", None, None),
        "PCIe0-CPU0": ("pcie", None, 15_753_846_154),
    }
    assert dict(machine.graph.nodes(data=True)) == {
        "CPU0": {"type": "host", "numa": 0},
        "CPU1": {"type": "host", "numa": 1},
        "GPU0": {"type": "gpu", "pci_bus": "0000:06:00.0"},
        "GPU1": {"type": "gpu", "pci_bus": "0000:07:00.0"},
        "GPU2": {"type": "gpu", "pci_bus": "0000:85:00.0"},
        "NIC0": {"type": "nic", "name": "mlx5_0", "bandwidth": 12_500_000_000},
        "NIC1": {"type": "nic", "name": "eth0", "bandwidth": 1_250_000_000},
        "PCIe0": {"type": "pcie", "pci_bus": "0000:04:00.0"},
    }
    assert (machine.origin, machine.warnings) == ("file", ())


def test_the_narrowest_part_of_a_way_counts(tmp_path: Path) -> None:
    narrow = 'link_speed="8.0 GT/s PCIe" link_width="8"'
    inside = f'<pci busid="0000:01:00.0" class="0x060400" {narrow}>{gpu("02", 0, link=GEN4)}</pci>'
    machine = read(tmp_path, f'<system version="1"><cpu numaid="-1">{inside}</cpu></system>')
    (link,) = machine.links
    assert (link.name, link.bandwidth) == ("GPU0-CPU0", 7_876_923_077)
    assert machine.graph.nodes["CPU0"] == {"type": "host"}


@pytest.mark.parametrize(
    ("speed", "width", "bandwidth"),
    [
        ("2.5 GT/s PCIe", 16, 4_000_000_000),
        ("5 GT/s", 8, 4_000_000_000),
        ("8 GT/s", 16, 15_753_846_154),
        ("16.0 GT/s PCIe", 16, 31_507_692_308),
        ("32.0 GT/s PCIe", 16, 63_015_384_615),
        ("64.0 GT/s PCIe", 16, 121_000_000_000),
        ("Unknown", 16, None),
        ("", 16, None),
        ("7.0 GT/s", 16, None),
        ("8.0 GT/s", 0, None),
        ("8.0 GT/s", 255, None),
    ],
)
def test_widths_of_pcie(tmp_path: Path, speed: str, width: int, bandwidth: int | None) -> None:
    link = f'link_speed="{speed}" link_width="{width}"'
    text = f'<system version="1"><cpu numaid="0">{gpu("01", 0, link=link)}</cpu></system>'
    (found,) = read(tmp_path, text).links
    assert found.bandwidth == bandwidth


@pytest.mark.parametrize(("sm", "brick"), [(60, 20), (70, 25), (80, 25), (90, 25), (100, 50)])
def test_gpus_behind_switches(tmp_path: Path, sm: int, brick: int) -> None:
    to_switches = nvlink("0000:c4:00.0", 2, "0x068000") + nvlink("fffffff:ffff:ff", 4, "0x068000")
    gpus = "".join(gpu(f"0{dev + 1}", dev, to_switches, sm) for dev in range(3))
    machine = read(tmp_path, f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    switched = [link for link in machine.links if link.type == "nvlink"]
    assert [link.name for link in switched] == [f"GPU{dev}-NVSwitch0" for dev in range(3)]
    assert {link.bandwidth for link in switched} == {6 * brick * 10**9}
    assert machine.graph.nodes["NVSwitch0"] == {"type": "nvswitch"}


def test_links_to_the_host(tmp_path: Path) -> None:
    grace = gpu("01", 0, '<c2c bw="44712" count="10"/>', 90)
    power = gpu("02", 1, nvlink("0004:04:00.0", 3, "0x068001"))
    machine = read(
        tmp_path,
        f'<system version="1"><cpu numaid="0">{grace}</cpu><cpu numaid="8">{power}</cpu></system>',
    )
    assert {link.name: (link.type, link.bricks, link.bandwidth) for link in machine.links} == {
        "CPU0-CPU8": ("socket", None, None),
        "GPU0-CPU0": ("c2c", None, 447_120_000_000),
        "GPU1-CPU8": ("nvlink", 3, 75_000_000_000),
    }
    assert machine.nodes("nvswitch") == []


def test_a_nic_of_two_ports_shares_one_slot(tmp_path: Path) -> None:
    nets = '<nic><net name="mlx5_4" dev="4"/><net name="mlx5_5" dev="5"/></nic>'
    nic = f'<pci busid="0000:61:00.0" class="0x020700" {GEN4}>{nets}</pci>'
    text = f'<system version="1"><cpu numaid="0">{gpu("01", 0)}{nic}</cpu></system>'
    machine = read(tmp_path, text)
    assert set(machine.graph["PCIe0"]) == {"NIC4", "NIC5", "CPU0"}


def test_a_topology_that_was_written_by_hand(tmp_path: Path) -> None:
    machine = read(
        tmp_path,
        """<system version="1"><cpu numaid="1">
          <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
            <pci busid="0004:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
            <pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
            <pci busid="0103:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
          </pci></cpu></system>""",
    )
    assert machine.graph.nodes["GPU0"] == {"type": "gpu", "pci_bus": "0003:00:00.0"}
    assert set(machine.graph["PCIe0"]) == {"GPU0", "GPU1", "NIC0", "CPU1"}
    assert machine.warnings == ("it numbers no GPUs: they are numbered by their PCI addresses",)


def test_of_several_machines_the_first_is_taken(tmp_path: Path) -> None:
    one, other = (f'<cpu host_hash="{h}" numaid="0">{gpu("01", 0)}</cpu>' for h in ("0xa", "0xb"))
    machine = read(tmp_path, f'<system version="2">{one}{other}</system>')
    assert machine.gpus == [0]
    assert machine.warnings == ("only the first of the 2 machines in it is taken",)


def test_links_to_gpus_that_are_hidden(tmp_path: Path) -> None:
    lone = gpu("01", 0, nvlink("0000:99:00.0", 2) + '<nvlink target="0000:98:00.0" count="1"/>')
    machine = read(tmp_path, f'<system version="1"><cpu numaid="0">{lone}</cpu></system>')
    assert [link.name for link in machine.links] == ["GPU0-CPU0"]
    assert machine.warnings == ("2 nvlink elements lead to devices that are not in it",)


def test_links_that_lead_to_the_gpu_itself(tmp_path: Path) -> None:
    lone = gpu("01", 0, nvlink("0000:01:00.0", 2) + nvlink("0000:99:00.0", 1))
    machine = read(tmp_path, f'<system version="1"><cpu numaid="0">{lone}</cpu></system>')
    assert [link.name for link in machine.links] == ["GPU0-CPU0"]
    assert machine.warnings == (
        "1 nvlink elements of GPU0 lead to GPU0 itself, whose PCI address (busid) is their target",
        "1 nvlink elements lead to devices that are not in it",
    )


ENTITY = '<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTITY + BRIDGED.partition("\n")[2], "declares a document type"),
        (BRIDGED.replace('06:00.0" count="1"', '06:00.0" count="3"'),
         "GPU0-GPU1 has 1 NVLinks but GPU1-GPU0 has 3 in "),
        (BRIDGED.replace('<nvlink target="0000:06:00.0" count="2" tclass="0x030200"/>', ""),
         "GPU0-GPU2 has 2 NVLinks but GPU2-GPU0 has none in "),
        (BRIDGED[:-40], r"is damaged XML \("),
        (BRIDGED.replace('dev="1" sm', 'dev="0" sm'), "has two elements gpu dev=0"),
        (BRIDGED.replace('dev="1" sm', "sm"), "has a gpu without a number"),
        (BRIDGED.replace('dev="1" speed', 'dev="x" speed'), "has a net without a number"),
        ("<system version='1'/>", "is XML, but not a topology of NCCL"),
        ("<html><body/></html>", "is XML, but not a topology of NCCL"),
        ("<system><cpu numaid='0'/></system>", "names no GPU"),
        ("<graphs version='1'><graph id='0'/></graphs>", "graphs that NCCL chose, not the machine"),
        ("<system><cpu>" + "<pci>" * 5000 + "</pci>" * 5000 + "</cpu></system>", "4,096 elements"),
        ("<", "is damaged XML"),
    ],
)  # fmt: skip
def test_xml_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)
