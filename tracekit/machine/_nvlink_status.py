"""Read `nvidia-smi nvlink`: the NVLinks of GPUs (`-s`) and their other ends (`-R`, `-p`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tracekit.errors import InputError
from tracekit.machine._graph import Link, Machine
from tracekit.machine._pcie import pci_bus

_MAX_LINE = 400
_GPU = re.compile(r"GPU (\d{1,4}): (\S.{0,200}?) \(UUID: (?:GPU-)?([0-9a-fA-F-]{1,64})\)")
_LINK = re.compile(r"Link (\d{1,3}): (.+)")
_RATE = re.compile(r"(\d{1,4}(?:\.\d{1,6})?) GB/s")
_REMOTE = re.compile(r"(?:Remote Device )?([0-9a-fA-F:.]{7,20}?)(?:: Link (\d{1,3}))?")
_INACTIVE = re.compile(r"<?(inactive|disabled)>?", re.IGNORECASE)


@dataclass
class Brick:
    """One NVLink of a GPU, as `nvidia-smi nvlink` prints it; fields not printed are None."""

    active: bool | None = None
    """Whether it is up."""
    bandwidth: int | None = None
    """Bandwidth per direction that nvidia-smi prints, bytes/s."""
    remote: tuple[str, int | None] | None = None
    """PCI address of the device at its other end, and the link's number there."""


@dataclass
class GpuBricks:
    """A GPU in the output of `nvidia-smi nvlink`: product name, UUID, and its NVLinks by number."""

    product: str
    uuid: str
    bricks: dict[int, Brick] = field(default_factory=dict)

    @property
    def active(self) -> list[Brick]:
        """The NVLinks of the GPU, without those known to be down."""
        return [brick for brick in self.bricks.values() if brick.active is not False]

    @property
    def bandwidth(self) -> int | None:
        """Bandwidth of the slowest active NVLink per direction, bytes/s; None if not printed."""
        widths = [brick.bandwidth for brick in self.active if brick.bandwidth is not None]
        return min(widths, default=None)


Status = Mapping[str, GpuBricks]
"""Name of a GPU (`GPU0`) -> the output about it."""


def parse_status(text: str, source: str) -> Status:
    """Parse output of `nvidia-smi nvlink -s`, `-R` or `-p`: GPU -> its NVLinks; may be empty.

    Several outputs of one machine may follow each other and are combined, as is the list of
    `nvidia-smi -L`, which names GPUs but not their NVLinks.

    Raises
    ------
    InputError
        If the outputs come from several machines.
    """
    status: dict[str, GpuBricks] = {}
    current: GpuBricks | None = None
    for line in map(str.strip, text.splitlines()):
        if len(line) > _MAX_LINE:
            continue
        if found := _GPU.fullmatch(line):
            number, product, uuid = found.groups()
            current = status.setdefault(f"GPU{int(number)}", GpuBricks(product, uuid.lower()))
            if current.uuid != uuid.lower():
                raise InputError(
                    f"GPU {number} is {current.uuid} and also {uuid.lower()} in {source}",
                    "keep the output of one machine",
                )
        elif current is not None and (found := _LINK.fullmatch(line)):
            brick = current.bricks.setdefault(int(found[1]), Brick())
            _note(brick, found[2])
    # Links of which nothing is known were counters of errors, or the like.
    for gpu in status.values():
        gpu.bricks = {n: brick for n, brick in gpu.bricks.items() if brick != Brick()}
    return status


def _note(brick: Brick, text: str) -> None:
    if found := _RATE.fullmatch(text):
        brick.active, brick.bandwidth = True, round(float(found[1]) * 1e9)
    elif _INACTIVE.fullmatch(text):
        brick.active = False
    elif (found := _REMOTE.fullmatch(text)) and (bus := pci_bus(found[1])):
        brick.remote = bus, int(found[2]) if found[2] else None


def active_bricks(status: Status) -> dict[str, int]:
    """Return GPU -> number of its active NVLinks; GPUs without a list of links are absent."""
    return {gpu: len(each.active) for gpu, each in status.items() if each.bricks}


def machine_of_status(status: Status, name: str) -> Machine:
    """Return the machine with the NVLinks that `nvidia-smi nvlink` printed, without PCIe links.

    `-s` alone does not show where NVLinks lead: then GPUs have the attribute ``bricks`` (their
    number of links), but no links. `-R` and `-p` print the PCI address at the other end of each
    link. If each link is listed at both its ends, the addresses are those of the GPUs: in order,
    the n-th address is that of the n-th GPU. Otherwise, if any two GPUs have either all remote
    addresses in common or none, the addresses belong to NVSwitches. Otherwise the links are left
    out, with a warning.
    """
    nodes = {gpu: {"type": "gpu", **_known(each)} for gpu, each in status.items()}
    buses = _buses_of_gpus(status)
    warnings = []
    if buses:
        for bus, gpu in buses.items():
            nodes[gpu]["pci_bus"] = bus
        links = _direct(status, buses)
    elif _is_switched(status):
        nodes["NVSwitch0"] = {"type": "nvswitch"}
        links = [
            _widened(Link((gpu, "NVSwitch0"), "nvlink", len(_remotes(each))), status)
            for gpu, each in status.items()
        ]
    else:
        links = []
        for gpu, each in status.items():
            nodes[gpu]["bricks"] = len(each.active)
        warnings.append(
            "it lacks the ends of the NVLinks: append the output of `nvidia-smi topo -m`"
        )
    return Machine.of(name, nodes, links, "file", warnings)


def with_status(machine: Machine, status: Status, source: str) -> Machine:
    """Return a machine to which the NVLinks in `status` (`nvidia-smi nvlink`) are added.

    Raises
    ------
    InputError
        If the output lists other GPUs than the machine has.
    """
    gpus = machine.nodes("gpu")
    if set(gpus) != set(status):
        raise InputError(
            f"`nvidia-smi nvlink` lists {len(status)} GPUs in {source}, but its matrix is of"
            f" {len(gpus)}",
            "keep the output of one machine",
        )
    nodes = {node: dict(each) for node, each in machine.graph.nodes(data=True)}
    nodes |= {gpu: nodes[gpu] | _known(each) for gpu, each in status.items()}
    links = [_widened(link, status) for link in machine.links]
    warnings = list(machine.warnings)
    for gpu, count in active_bricks(status).items():
        used = sum(link.bricks or 0 for link in links if gpu in link.ends)
        if used != count:
            warnings.append(f"{gpu} has {count} NVLinks that are up, but {used} in the matrix")
    graph = Machine.of(machine.name, nodes, links).graph
    return replace(machine, graph=graph, warnings=tuple(warnings))


def _known(gpu: GpuBricks) -> dict[str, object]:
    return {"product": gpu.product, "uuid": gpu.uuid}


def _widened(link: Link, status: Status) -> Link:
    if link.type != "nvlink" or link.bricks is None:
        return link
    widths = [status[end].bandwidth for end in link.ends if end in status]
    known = [width for width in widths if width is not None]
    complete = known and len(known) == len(widths)
    return replace(link, bandwidth=link.bricks * min(known)) if complete else link


def _remotes(gpu: GpuBricks) -> list[tuple[str, int | None]]:
    return [brick.remote for brick in gpu.active if brick.remote is not None]


def _buses_of_gpus(status: Status) -> dict[str, str]:
    """Return PCI address -> GPU if NVLinks join the GPUs directly; otherwise empty.

    nvidia-smi numbers GPUs in the order of their addresses.
    """
    linked = [gpu for gpu in _by_number(status) if _remotes(status[gpu])]
    buses = sorted({bus for gpu in linked for bus, _ in _remotes(status[gpu])}, key=_bus_key)
    if not linked or len(buses) != len(linked):
        return {}
    gpu_of_bus = dict(zip(buses, linked, strict=True))
    bus_of = {gpu: bus for bus, gpu in gpu_of_bus.items()}
    there: Counter[tuple[str, str, int | None, int | None]] = Counter()
    for gpu in linked:
        for number, brick in status[gpu].bricks.items():
            if brick.active is False or brick.remote is None:
                continue
            bus, remote = brick.remote
            near = None if remote is None else number
            there[bus_of[gpu], bus, near, remote] += 1
    is_symmetric = all(
        near != far and there[far, near, remote, number] == count
        for (near, far, number, remote), count in list(there.items())
    )
    return gpu_of_bus if is_symmetric else {}


def _by_number(status: Iterable[str]) -> list[str]:
    return sorted(status, key=lambda gpu: (len(gpu), gpu))


def _bus_key(bus: str) -> tuple[int, str]:
    domain, _, rest = bus.partition(":")
    return int(domain, 16), rest


def _direct(status: Status, buses: Mapping[str, str]) -> list[Link]:
    joined: Counter[tuple[str, str]] = Counter()
    for gpu in _by_number(status):
        joined.update((gpu, buses[bus]) for bus, _ in _remotes(status[gpu]))
    return [
        _widened(Link((one, other), "nvlink", bricks), status)
        for (one, other), bricks in joined.items()
        if (len(one), one) < (len(other), other)
    ]


def _is_switched(status: Status) -> bool:
    """Test whether NVLinks lead to switches: any two GPUs have equal or disjoint remote devices.

    At least two GPUs must have the same remote devices.
    """
    sets = [frozenset(bus for bus, _ in _remotes(gpu)) for gpu in status.values()]
    return (
        len(sets) > 1
        and all(sets)
        and all(one == other or not one & other for one in sets for other in sets)
        and len(set(sets)) < len(sets)
    )
