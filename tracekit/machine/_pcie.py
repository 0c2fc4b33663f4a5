"""PCIe tree of a machine: hosts, the switches below them, and the devices below those."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracekit.machine._graph import Link, number_of

_CODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130,
    64.0: 242 / 256}  # fmt: skip
"""Rate of a lane -> share of it that carries data: 8b/10b, 128b/130b, and the flits of PCIe 6."""

_MAX_LANES = 32
_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)

_BRICKS = {60: 20e9, 70: 25e9, 75: 25e9, 80: 25e9, 86: 14.0625e9, 90: 25e9, 100: 50e9, 103: 50e9}


@dataclass(frozen=True)
class Wire:
    """PCIe slot that a device or a bridge is plugged into."""

    parent: str
    """Name of the bridge or host (`CPU0`) that the slot belongs to."""
    bandwidth: int | None = None
    """Peak per direction, bytes/s; None where unknown."""


def known(**attributes: object) -> dict[str, object]:
    """Return the given attributes of a node as a dict, without those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}


def pcie_bandwidth(rate: float, width: int) -> int | None:
    """Return the peak of PCIe lanes per direction, bytes/s; None for impossible values.

    This is the rate in GT/s times the lanes times the efficiency of the line code: 8 GT/s on 16
    lanes carry 8e9 * 16 / 8 * 128 / 130 = 15.75 GB/s.
    """
    if rate not in _CODING or not 0 < width <= _MAX_LANES:
        return None
    return round(rate * 1e9 * width / 8 * _CODING[rate])


def brick_bandwidth(capability: int | None) -> int | None:
    """Return the nominal peak of one NVLink per direction, bytes/s, by the GPU's `capability`.

    The peak is 20 GB/s for P100, 25 GB/s from V100 to H100, 50 GB/s for B200 (the NVLink page of
    nvidia.com), and 14.0625 GB/s for the GA102 boards (from the RTX A6000).
    """
    found = _BRICKS.get(capability or 0)
    return None if found is None else round(found)


def pci_bus(text: str) -> str | None:
    """Return a PCI address in Linux's notation (`0000:06:00.0`); None if `text` is none."""
    found = _BUS.fullmatch(text.strip())
    if not found:
        return None
    domain, bus, device, function = found.groups(default="0")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def pcie_links(wires: Mapping[str, Wire]) -> tuple[list[Link], dict[str, str]]:
    """Return the PCIe links of a machine, and the names of its switches.

    A bridge with a single device below it is left out: the link then leads from the device past the
    bridge, with the lowest known bandwidth on this path.

    Parameters
    ----------
    wires
        Name of each device (`GPU0`, `NIC1`) and each bridge (any other name) -> the slot that it is
        plugged into.

    Returns
    -------
    The links; and for each bridge with several devices below it, its name -> name of its switch
    node (`PCIe0`).

    Raises
    ------
    ValueError
        If bridges hang from each other in a circle.
    """
    devices = sorted(
        (name for name in wires if re.fullmatch(r"(GPU|NIC)\d+", name)),
        key=lambda name: (name[:3], number_of(name)),
    )
    ways = {device: _way_up(device, wires) for device in devices}
    below: dict[str, set[str]] = {}
    for device, way in ways.items():
        for child, parent in itertools.pairwise([device, *way]):
            below.setdefault(parent, set()).add(child)
    bridges = dict.fromkeys(
        each for way in ways.values() for each in way if each in wires and len(below[each]) > 1
    )
    names = {bridge: f"PCIe{number}" for number, bridge in enumerate(bridges)}
    links = (_up(start, wires, names) for start in [*devices, *bridges])
    return [link for link in links if link is not None], names


def socket_links(hosts: Iterable[str]) -> list[Link]:
    """Join every two CPUs (`hosts`) by a socket link; no file states its bandwidth (unknown)."""
    return [Link(pair, "socket") for pair in itertools.combinations(hosts, 2)]


def _way_up(device: str, wires: Mapping[str, Wire]) -> list[str]:
    way: list[str] = []
    seen = {device}
    at = device
    while at in wires:
        at = wires[at].parent
        if at in seen:
            raise ValueError(f"{at} hangs below itself")
        seen.add(at)
        way.append(at)
    return way


def _up(start: str, wires: Mapping[str, Wire], names: Mapping[str, str]) -> Link | None:
    """Return the link from a device or a switch to the next switch or the host above it."""
    if start not in wires:
        return None
    widths = []
    at = start
    while at in wires and (at == start or at not in names):
        if (width := wires[at].bandwidth) is not None:
            widths.append(width)
        at = wires[at].parent
    ends = names.get(start, start), names.get(at, at)
    return Link(ends, "pcie", bandwidth=min(widths, default=None))
