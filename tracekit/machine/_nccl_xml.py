"""Read the topology that NCCL detected: the XML that it writes to NCCL_TOPO_DUMP_FILE."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree as ET

from tracekit.errors import InputError
from tracekit.machine._graph import PEER_LINKS, Link, LinkType, Machine
from tracekit.machine._pcie import (
    Wire,
    brick_bandwidth,
    known,
    pci_bus,
    pcie_bandwidth,
    pcie_links,
    socket_links,
)

_DECLARED = re.compile(r"<!(?!--)")
_RATE = re.compile(r"\s*(\d{1,3}(?:\.\d)?) GT/s")
_MAX_ELEMENTS = 4096  # NCCL itself stops at 256 of a kind
_GPU_CLASS, _NIC_CLASS, _NVSWITCH_CLASS = "0x03", "0x02", "0x068000"
_ACCELERATOR_CLASS = "0x12"
"""PCI class of some of AMD's GPUs."""


_Hanging = tuple[ET.Element, str, int | None]
"""An element, the name of its parent, and the bandwidth of its slot, bytes/s."""


@dataclass
class _Found:
    """Nodes, links, PCIe slots and warnings read from NCCL's XML so far."""

    nodes: dict[str, dict[str, object]] = field(default_factory=dict)
    wires: dict[str, Wire] = field(default_factory=dict)
    gpus: dict[str, ET.Element] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    bridges: dict[str, str] = field(default_factory=dict)
    nameless: list[tuple[str, str, Wire]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def bus(self, bridge: str) -> str | None:
        """Return the PCI address of a bridge in Linux's form (`0000:06:00.0`); None if invalid."""
        return pci_bus(self.bridges.get(bridge, ""))


def parse_nccl_xml(text: str, source: str, name: str) -> Machine:
    """Return the machine that NCCL's topology XML (NCCL_TOPO_DUMP_FILE) describes.

    `cpu` elements are hosts; `pci` elements are bridges and devices, nested as they are plugged in.
    `nvlink` elements of a GPU give the PCI address at the other end and its class: 0x068000 is an
    NVSwitch. The bandwidth of an NVLink follows from the GPU's generation (``sm``). `xgmi`
    elements, written by RCCL, are AMD's links, of unknown bandwidth. A hand-written topology may
    name no GPUs: then PCI devices of the GPU class are taken for GPUs, in order of their addresses,
    and nothing is known about NVLinks.

    Parameters
    ----------
    text
        The XML.
    source, name
        Name of the file in messages, and name of the machine.

    Raises
    ------
    InputError
        If the text is no XML of this kind, or contradicts itself.
    """
    found = _walk(_root(text, source), source)
    _name_by_class(found)
    if not any(node["type"] == "gpu" for node in found.nodes.values()):
        raise InputError(f"{source} names no GPU", "dump the topology with all GPUs in use")
    links, switches = pcie_links(found.wires)
    nvlinks = _nvlinks(found, source)
    to_hosts = _to_hosts(found)
    replaced = {frozenset(link.ends) for link in to_hosts}
    for bridge, switch in switches.items():
        found.nodes[switch] = known(type="pcie", pci_bus=found.bus(bridge))
    hosts = [node for node, each in found.nodes.items() if each["type"] == "host"]
    pcie = [link for link in links if frozenset(link.ends) not in replaced]
    every = [*nvlinks, *to_hosts, *pcie, *socket_links(hosts)]
    made = Machine.of(name, found.nodes, every, "file", found.warnings)
    return replace(made, tells_peers=bool(found.gpus))


def _root(text: str, source: str) -> ET.Element:
    # Entities could grow without bound or name other files; no dump of NCCL declares any.
    if _DECLARED.search(text):
        raise InputError(
            f"{source} declares a document type, which is not read", "give the file that NCCL wrote"
        )
    try:
        root = ET.fromstring(text)  # noqa: S314 (nothing is declared, so nothing is expanded)
    except ET.ParseError as error:
        raise InputError(
            f"{source} is damaged XML ({error})", "dump NCCL's topology again, or copy it again"
        ) from error
    if root.tag == "graphs":
        raise InputError(
            f"{source} has the graphs that NCCL chose, not the machine",
            "give the file of NCCL_TOPO_DUMP_FILE",
        )
    if sum(1 for _ in itertools.islice(root.iter(), _MAX_ELEMENTS + 1)) > _MAX_ELEMENTS:
        raise InputError(
            f"{source} has more than {_MAX_ELEMENTS:,} elements", "give the topology of one machine"
        )
    if root.tag != "system" or root.find("cpu") is None:
        raise InputError(
            f"{source} is XML, but not a topology of NCCL", "give the file of NCCL_TOPO_DUMP_FILE"
        )
    return root


def _walk(root: ET.Element, source: str) -> _Found:
    found = _Found()
    cpus = _of_one_machine(root.findall("cpu"), found)
    numbers = _host_numbers(cpus)
    explicit = any(True for cpu in cpus for _ in cpu.iter("gpu"))
    for cpu, number in zip(cpus, numbers, strict=True):
        host = f"CPU{number}"
        numa = _integer(cpu.get("numaid"))
        found.nodes[host] = known(type="host", numa=numa if numa == number else None)
        stack: list[_Hanging] = [(child, host, None) for child in reversed(cpu)]
        while stack:
            element, parent, width = stack.pop()
            stack += reversed(list(_place(element, Wire(parent, width), host, found, source)))
    if explicit:
        found.nameless = [each for each in found.nameless if each[0] != "gpu"]
    return found


def _of_one_machine(cpus: list[ET.Element], found: _Found) -> list[ET.Element]:
    first = cpus[0].get("host_hash")
    of_first = [cpu for cpu in cpus if cpu.get("host_hash") == first]
    if len(of_first) < len(cpus):
        hosts = len({cpu.get("host_hash") for cpu in cpus})
        found.warnings.append(f"only the first of the {hosts} machines in it is taken")
    return of_first


def _host_numbers(cpus: list[ET.Element]) -> list[int]:
    """Return a number for each `cpu` element: its NUMA node, else a number not in use."""
    numa_ids = [_integer(cpu.get("numaid")) for cpu in cpus]
    taken: set[int] = set()
    numbers: list[int | None] = []
    for numa in numa_ids:
        is_free = numa is not None and numa >= 0 and numa not in taken
        numbers.append(numa if is_free else None)
        taken |= {numa} if is_free and numa is not None else set()
    free = (number for number in range(len(taken) + len(cpus)) if number not in taken)
    return [next(free) if number is None else number for number in numbers]


def _place(
    element: ET.Element, wire: Wire, host: str, found: _Found, source: str
) -> Iterator[_Hanging]:
    """Add an XML element (bridge, GPU, NIC) to `found`; yield the elements plugged into it.

    `wire` is the PCIe slot that the element is plugged into.
    """
    if element.tag == "pci":
        bridge = f"pci {len(found.bridges)}"
        found.bridges[bridge] = element.get("busid", "")
        below = Wire(wire.parent, _width(element))
        found.wires[bridge] = below
        yield from ((child, bridge, below.bandwidth) for child in element)
        classes = {_GPU_CLASS: "gpu", _ACCELERATOR_CLASS: "gpu", _NIC_CLASS: "nic"}
        kind = classes.get((element.get("class") or "").lower()[:4])
        if kind and not len(element):
            found.nameless.append((kind, bridge, below))
            found.hosts[bridge] = host
    elif element.tag == "nic":
        yield from ((child, wire.parent, wire.bandwidth) for child in element)
    elif element.tag == "gpu":
        node = _new(found, "GPU", element, source)
        found.nodes[node] = known(type="gpu", pci_bus=found.bus(wire.parent))
        found.gpus[node], found.wires[node], found.hosts[node] = element, wire, host
    elif element.tag == "net":
        node = _new(found, "NIC", element, source)
        megabits = _integer(element.get("speed"))
        bandwidth = megabits * 125_000 if megabits and megabits > 0 else None
        found.nodes[node] = known(type="nic", name=element.get("name"), bandwidth=bandwidth)
        found.wires[node] = wire


def _new(found: _Found, prefix: str, element: ET.Element, source: str) -> str:
    number = _integer(element.get("dev"))
    if number is None or number < 0:
        raise InputError(f"{source} has a {element.tag} without a number (dev)", "dump it again")
    node = f"{prefix}{number}"
    if node in found.nodes:
        raise InputError(f"{source} has two elements {element.tag} dev={number}", "dump it again")
    return node


def _name_by_class(found: _Found) -> None:
    """Add a GPU or NIC for each `pci` element of that PCI class that the XML does not name."""
    for kind, prefix in (("gpu", "GPU"), ("nic", "NIC")):
        unnamed = [(bridge, wire) for each, bridge, wire in found.nameless if each == kind]
        unnamed.sort(key=lambda each: found.bus(each[0]) or "")
        taken = sum(each["type"] == kind for each in found.nodes.values())
        if kind == "nic" and taken:  # those that NCCL did not use
            continue
        for number, (bridge, wire) in enumerate(unnamed):
            found.nodes[f"{prefix}{number}"] = known(type=kind, pci_bus=found.bus(bridge))
            found.wires[f"{prefix}{number}"] = wire
        if unnamed and kind == "gpu":
            found.warnings.append("it numbers no GPUs: they are numbered by their PCI addresses")


def _width(pci: ET.Element) -> int | None:
    rate = _RATE.match(pci.get("link_speed") or "")
    width = _integer(pci.get("link_width"))
    return pcie_bandwidth(float(rate[1]), width) if rate and width else None


def _nvlinks(found: _Found, source: str) -> list[Link]:
    """Return the NVLinks from GPUs to GPUs and switches; warn about those to unknown devices."""
    by_bus = {str(found.nodes[gpu]["pci_bus"]): gpu for gpu in found.gpus
              if "pci_bus" in found.nodes[gpu]}  # fmt: skip
    links: list[Link] = []
    for kind in PEER_LINKS:
        joined, nv = _joined(found, kind, by_bus), kind == "nvlink"
        if any(end == "NVSwitch0" for _, end in joined):
            found.nodes["NVSwitch0"] = {"type": "nvswitch"}
        links += [
            Link((one, other), kind, bricks, _bond(found.gpus, bricks, one, other) if nv else None)
            for (one, other), bricks in joined.items()
            if _agreed(joined, one, other, source)
        ]
    return links


def _joined(found: _Found, kind: LinkType, by_bus: Mapping[str, str]) -> Counter[tuple[str, str]]:
    """Return (GPU, node at the other end) -> number of links of a kind, such as NVLinks.

    Warnings are added to `found`.
    """
    joined: Counter[tuple[str, str]] = Counter()
    lost, back = 0, Counter[str]()
    for gpu, element in found.gpus.items():
        for link in element.iter(kind):
            target = _target(link, by_bus)
            count = _integer(link.get("count")) or 0
            if target == "CPU":
                continue
            if target == gpu:
                back[gpu] += 1
            elif target is None or count < 1:
                lost += 1
            else:
                joined[gpu, target] += count
    found.warnings += [
        f"{count} {kind} elements of {gpu} lead to {gpu} itself, whose PCI address (busid) is "
        "their target"
        for gpu, count in back.items()
    ]
    if lost:
        found.warnings.append(f"{lost} {kind} elements lead to devices that are not in it")
    return joined


def _agreed(joined: Mapping[tuple[str, str], int], one: str, other: str, source: str) -> bool:
    """Return whether an entry `one`-`other` becomes a link, since GPUs list common links twice.

    It is True if `other` is no GPU; of the two entries of two GPUs, for that of the lower number.

    Raises
    ------
    InputError
        If the two entries give different numbers of links.
    """
    if not other.startswith("GPU"):
        return True
    here, there = joined.get((one, other)), joined.get((other, one))
    if here != there:
        raise InputError(
            f"{one}-{other} has {here} NVLinks but {other}-{one} has {there or 'none'} in {source}",
            "dump NCCL's topology again",
        )
    return (len(one), one) < (len(other), other)


def _target(nvlink: ET.Element, by_bus: Mapping[str, str]) -> str | None:
    """Return the node at the other end of an NVLink: a GPU, `NVSwitch0` or `CPU`; else None."""
    kind = (nvlink.get("tclass") or "").lower()
    gpu = by_bus.get(pci_bus(nvlink.get("target") or "") or "")
    if gpu or not kind or kind.startswith((_GPU_CLASS, _ACCELERATOR_CLASS)):
        return gpu
    return "NVSwitch0" if kind == _NVSWITCH_CLASS else "CPU"


def _bond(gpus: Mapping[str, ET.Element], bricks: int, *ends: str) -> int | None:
    """Return the bandwidth of `bricks` bonded NVLinks, bytes/s; None if an end's is unknown.

    A link has the bandwidth of its slower end.
    """
    each = [brick_bandwidth(_integer(gpus[end].get("sm"))) for end in ends if end in gpus]
    widths = [width for width in each if width is not None]
    return bricks * min(widths) if len(widths) == len(each) else None


def _to_hosts(found: _Found) -> list[Link]:
    """Return the links of GPUs to the CPU they belong to: C2C (Grace) and NVLink (POWER9).

    NCCL writes the bandwidth of each C2C link in MB/s.
    """
    links = []
    for gpu, element in found.gpus.items():
        ends = gpu, found.hosts[gpu]
        c2c = sum(
            (_integer(each.get("bw")) or 0) * (_integer(each.get("count")) or 0) * 1_000_000
            for each in element.iter("c2c")
        )
        bricks = sum(
            _integer(nvlink.get("count")) or 0
            for nvlink in element.iter("nvlink")
            if _target(nvlink, {}) == "CPU"
        )
        if c2c or element.find("c2c") is not None:
            links.append(Link(ends, "c2c", bandwidth=c2c or None))
        elif bricks > 0:
            links.append(Link(ends, "nvlink", bricks, _bond(found.gpus, bricks, gpu)))
    return links


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text.strip()) else None
