"""Choose the machine (topology) for a run, and find which GPU of it each device of the run is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl

from tracekit.errors import InputError, MissingDataError, UsageError
from tracekit.machine._graph import PEER_LINKS, Machine, number_of, with_fabric
from tracekit.machine._pcie import pci_bus
from tracekit.machine._products import (
    is_preset,
    load_preset,
    nvlink_of,
    preset_names,
    products_of_gpus,
    recognise,
    with_bandwidths,
)
from tracekit.machine._read import read_topology
from tracekit.machine._toml import machine_of_text
from tracekit.support.wording import count

_HEAD = 64
_SHOWN = 4
_SPANS_HOSTS = r"\bGB[23]00\b"
"""GPU products of racks whose NVSwitches join the GPUs of many hosts."""
_UNTOLD = "{} names no NVLinks, as templates do that were written by hand"
_NUMBER = re.compile(r"\d+$")
_TRACES = (b"SQLite format 3\0",)


@dataclass(frozen=True)
class Placed:
    """A machine (topology), and which of its GPUs each device of a run is."""

    machine: Machine
    """The machine."""
    place: Mapping[int, int]
    """Number of a device in the run -> number of its GPU in the machine. Each other GPU of the
    machine is in it with its own number as key, unless a device has that number."""
    by: PlacedBy
    """Property by which devices were matched to GPUs: ``uuid``, ``pci_bus`` or ``number``."""
    warnings: tuple[str, ...] = ()
    """Sentences to display about the machine and the match."""


def is_topology(reference: str) -> bool:
    """Test whether a user's argument names a topology (preset or file) instead of a run."""
    path = Path(reference)
    return is_preset(reference) or (path.is_file() and not _is_trace(path))


def _is_trace(path: Path) -> bool:
    """Test whether a file is an SQLite trace (nsys, nvprof) that contains no topology.

    An nvprof database may be a trace and a topology at once; then it counts as a topology.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head.startswith(_TRACES):
        return False
    try:
        read_topology(path)
    except InputError:
        return True
    return False


def find_machine(reference: str) -> Machine:
    """Return the preset machine named `reference`, or the machine in a topology file of that path.

    Raises
    ------
    UsageError
        If there is neither a preset of this name nor a file.
    InputError
        If the file is no topology, or contradicts itself.
    """
    if is_preset(reference):
        return load_preset(reference)
    path = Path(reference)
    if not path.exists():
        names = ", ".join(preset_names())
        raise UsageError(
            f"no topology file and no preset {reference!r}",
            f"give the output of `nvidia-smi topo -m`, or one of {names}",
        )
    return read_topology(path)


def machine_of(
    devices: pl.DataFrame, topology: str | None = None, recorded: Sequence[str] = ()
) -> Placed:
    """Return the machine (topology) that a run was recorded on, and which GPU each device is.

    The first of these sources that exists is used: `topology`, the machine in `recorded`, the names
    of the GPUs. By names, each host is recognised as a separate machine; the links between hosts
    are unknown.

    Parameters
    ----------
    devices
        The canonical table ``devices``, optionally with ``host``.
    topology
        A topology file or a preset. It describes all hosts together or, if it has too few GPUs for
        the run, each single host. None: no topology is given.
    recorded
        The machines recorded in the run's files, as TOML; used if all are the same.

    Raises
    ------
    UsageError
        If the machine has fewer GPUs than the run used, or no such preset or file exists.
    MissingDataError
        If the run names no GPU.
    InputError
        If the file is no topology, or contradicts itself.
    """
    devices = devices.with_columns(products_of_gpus(devices))
    gpus = _whole_gpus(devices)
    if not all(gpu == part for part, gpu in gpus.items()):
        placed = machine_of(
            devices.filter(pl.col("device").is_in({*gpus.values()})), topology, recorded
        )
        parts = {part: placed.place[gpu] for part, gpu in gpus.items() if gpu in placed.place}
        return replace(placed, place={**placed.place, **parts})
    hosts = _hosts(devices)
    if topology is not None:
        named = find_machine(topology)
        if len(hosts) > 1 and devices.height > len(named.gpus):
            return _of_hosts(hosts, topology)
        chosen: Machine | None = named
    elif len(set(recorded)) == 1:
        chosen = machine_of_text(recorded[0])
    elif len(hosts) > 1:
        return _of_hosts(hosts)
    else:
        chosen = recognise(devices.sort("device")["name"].to_list())
    if chosen is None:
        raise MissingDataError("no GPU is in this run", "record with `nsys profile -t cuda`")
    placed = _placed(chosen, devices)
    warnings, name = [*placed.warnings], placed.machine.name
    if len(hosts) > 1:
        warnings.append(f"GPUs of {_named(hosts)} are taken for those of one machine, {name}")
    if alike := _sharing_a_bus(devices):
        warnings.append(
            f"{alike} GPUs have the host name and PCI bus of another one: machines of one name are "
            "taken for one machine; give --topology, and a different host name to each"
        )
    return replace(placed, warnings=tuple(warnings))


def _whole_gpus(devices: pl.DataFrame) -> dict[int, int]:
    """Return device -> device that stands for its GPU: the same one for all parts of a GPU."""
    keys = [key for key in ("host", "pci_bus") if key in devices.columns]
    is_part = pl.col("name").str.contains(r"\bMIG\b|\(\d+ of \d+ units\)")
    first = pl.col("device").sort_by(~pl.col("active"), "device").first().over(keys)
    gpu = pl.when(is_part, pl.col("pci_bus").is_not_null()).then(first).otherwise("device")
    return dict(devices.select("device", gpu.alias("gpu")).rows())


def _sharing_a_bus(devices: pl.DataFrame) -> int:
    """Count devices that share a PCI address with another one of the same host."""
    if "host" not in devices.columns:
        return 0
    known = devices.drop_nulls(["host", "pci_bus", "uuid"])
    return known.height - known.select("host", "pci_bus").n_unique()


def _placed(chosen: Machine, devices: pl.DataFrame) -> Placed:
    products = dict(devices.select("device", "name").rows())
    placing = place(chosen, devices)
    found = dict(placing.gpus)
    rest = set(chosen.gpus) - set(found.values())
    named = {gpu: products.get(dev) for dev, gpu in found.items()}
    machine = with_bandwidths(completed(chosen, named), named)
    placed = {gpu: gpu for gpu in sorted(rest) if gpu not in found} | found
    return Placed(machine, placed, placing.by, (*machine.warnings, *placing.warnings))


def _hosts(devices: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return host -> its devices, for hosts with a device that ran ops.

    It is empty if `devices` has no column ``host``.
    """
    if "host" not in devices.columns:
        return {}
    active = devices.filter("active")["host"].drop_nulls().unique(maintain_order=True)
    known = devices.filter(pl.col("host").is_in(active.implode())).sort("device")
    parts = known.partition_by("host", as_dict=True, maintain_order=True)
    return {str(host): part for (host,), part in parts.items()}


def _named(hosts: Mapping[str, pl.DataFrame]) -> str:
    names = list(hosts)
    shown = ", ".join(names[:_SHOWN])
    return f"{len(names)} hosts ({shown}{', ...' if len(names) > _SHOWN else ''})"


def _of_hosts(hosts: Mapping[str, pl.DataFrame], topology: str | None = None) -> Placed:
    """Join the machines of several hosts (see `machine_of`) into one; links between are unknown."""
    numbers = [devices["device"] for devices in hosts.values()]
    # A topology of each host numbers its GPUs from 0.
    parts = [
        devices if topology is None else devices.with_columns(device=pl.int_range(pl.len()))
        for devices in hosts.values()
    ]
    each = [machine_of(devices, topology) for devices in parts]
    names = pl.concat(list(hosts.values()))["name"].drop_nulls()
    joined = not names.str.contains(_SPANS_HOSTS).any()
    between = (
        "crosses a network" if joined else "is on no link, as NVLinks of such GPUs may join hosts"
    )
    warning = (
        f"the run is of {_named(hosts)}, each taken for a separate machine: traffic "
        f"between them {between}; if they are one machine, give --topology"
    )
    machine, firsts = side_by_side([placed.machine for placed in each], warning)
    if joined:
        machine = with_fabric(machine)
    places = {
        number: first + placed.place[device]
        for placed, devices, numbered, first in zip(each, parts, numbers, firsts, strict=True)
        for device, number in zip(devices["device"], numbered, strict=True)
        if device in placed.place
    }
    warnings = [text for placed in each for text in placed.warnings]
    return Placed(machine, places, each[0].by, tuple(dict.fromkeys([*warnings, warning])))


# -- machines that tell nothing of NVLinks, and several of them


def completed(machine: Machine, products: Mapping[int, str | None]) -> Machine:
    """Fill in the NVLinks of a machine whose description has no information about NVLinks.

    If a board is sold with exactly these GPUs, they get the NVLinks of the board's preset, GPU by
    GPU in order of their indices. GPUs of products without NVLink get none. For other GPUs the
    connection remains unknown. A machine with information about NVLinks is returned unchanged.
    `products` has each GPU's recorded product name, or None, by number.
    """
    names = {name for name in products.values() if name is not None}
    if machine.tells_peers or machine.origin == "assumed":  # which has said so itself
        return machine
    if len(names) != 1:
        return _without_routes(machine)
    [name] = names
    product = nvlink_of(name)
    if product is not None and product.bricks == 0:
        return replace(machine, tells_peers=True)
    preset = recognise([name] * len(machine.gpus))
    if preset is None or preset.origin != "recognised":
        return _without_routes(machine)
    return _with_links(machine, preset, name)


def _without_routes(machine: Machine) -> Machine:
    problem = _UNTOLD.format(machine.name)
    text = f"{problem}, and none are known of its GPUs: no route between two GPUs is known"
    return replace(machine, warnings=(*machine.warnings, text))


def _with_links(machine: Machine, preset: Machine, product: str) -> Machine:
    names = dict(zip(preset.nodes("gpu"), machine.nodes("gpu"), strict=True))
    names |= {switch: switch for switch in preset.nodes("nvswitch")}
    links = [
        replace(link, ends=(names[link.ends[0]], names[link.ends[1]]), known="recognised")
        for link in preset.links
        if link.type in PEER_LINKS and names.keys() >= {*link.ends}
    ]
    nodes = dict(machine.graph.nodes(data=True))
    nodes |= {switch: {"type": "nvswitch"} for switch in preset.nodes("nvswitch")}
    made = Machine.of(machine.name, nodes, [*machine.links, *links], machine.origin)
    text = (
        f"{_UNTOLD.format(machine.name)}: those of {preset.name} are taken, which is where"
        f" {len(machine.gpus)} {product} mostly are"
    )
    return replace(made, warnings=(*machine.warnings, text), source=machine.source)


def side_by_side(machines: Sequence[Machine], warning: str) -> tuple[Machine, list[int]]:
    """Join machines into one without links between them; GPUs and other nodes are renumbered.

    Parameters
    ----------
    machines
        The machines, one or more.
    warning
        What a user should know about joining several machines.

    Returns
    -------
    The joined machine, whose `origin` is the least certain one of the given machines; and for each
    given machine the number to add to its GPU numbers.
    """
    nodes: dict[str, Mapping[str, object]] = {}
    links = []
    firsts: list[int] = []
    used: Counter[str] = Counter()
    for machine in machines:
        names = {node: _raised(node, used) for node in machine.graph}
        firsts.append(used["GPU"])
        nodes |= {
            names[node]: {**each, "index": number_of(node)} if each.get("type") == "nic" else each
            for node, each in machine.graph.nodes(data=True)
        }
        links += [
            replace(link, ends=(names[link.ends[0]], names[link.ends[1]])) for link in machine.links
        ]
        for name in names.values():
            used[_prefix(name)] = max(used[_prefix(name)], number_of(name) + 1)
    sure = [machine.origin for machine in machines]
    names_of = Counter(machine.name for machine in machines)
    together = Machine.of(
        " + ".join(f"{n} x {name}" if n > 1 else name for name, n in names_of.items()),
        nodes,
        links,
        "assumed" if "assumed" in sure else sure[0],
        tuple(dict.fromkeys([*(text for one in machines for text in one.warnings), warning])),
    )
    tells_peers = all(machine.tells_peers for machine in machines)
    return replace(together, tells_peers=tells_peers), firsts


def _prefix(node: str) -> str:
    return _NUMBER.sub("", node)


def _raised(node: str, used: Mapping[str, int]) -> str:
    prefix = _prefix(node)
    return f"{prefix}{number_of(node) + used[prefix]}"


PlacedBy = Literal["uuid", "pci_bus", "number"]


@dataclass(frozen=True)
class Placing:
    """The GPUs of a machine (topology) that the devices of a run were matched to."""

    gpus: Mapping[int, int]
    """Number of the run's device -> number of the machine's GPU."""
    by: PlacedBy
    """Property by which devices were matched to GPUs: ``uuid``, ``pci_bus`` or ``number``."""
    warnings: tuple[str, ...] = ()
    """Sentences to display about the match."""


def place(machine: Machine, devices: pl.DataFrame) -> Placing:
    """Find the GPU of a machine (topology) that each device of a run is.

    Devices are matched by UUID if the machine and the run have any UUID in common; else by PCI bus
    location if the machine has the location of every active device; else by index. The GPUs of a
    preset that was recognised or assumed have no meaningful indices: devices get them in order. If
    machine and run have different UUIDs (or locations), the topology comes from another machine: it
    is used with a warning, since machines of one model are alike. A device that ran nothing and
    matches no GPU is left out.

    Parameters
    ----------
    machine
        The machine, whose GPUs may have ``uuid`` and ``pci_bus``.
    devices
        The run's canonical table ``devices``; columns ``device, uuid, pci_bus, active`` are read.

    Raises
    ------
    UsageError
        If an active device matches no GPU of the machine, or two devices match the same GPU.
    """
    active = devices.filter(pl.col("active"))["device"].to_list()
    if len(active) > len(machine.gpus):
        _refuse(machine, count(len(active), "GPU"))
    by_uuid, known = _matched(machine, devices, "uuid", _plain_uuid)
    if by_uuid:
        return Placing(_checked(machine, by_uuid, active, "UUIDs"), "uuid")
    other = ["UUIDs"] if known else []
    by_bus, known = _matched(machine, devices, "pci_bus", _plain_bus)
    if by_bus and by_bus.keys() >= set(active):
        gpus = _checked(machine, by_bus, active, "PCI bus locations")
        return Placing(gpus, "pci_bus", _of_another(machine, other, "PCI bus locations"))
    other += ["PCI bus locations"] if known else []
    by_number = _by_number(machine, devices["device"].to_list())
    gpus = _checked(machine, by_number, active, "numbers")
    return Placing(gpus, "number", _of_another(machine, other, "numbers"))


def _by_number(machine: Machine, devices: list[int]) -> dict[int, int]:
    """Return device -> GPU of the same number.

    GPUs of a recognised or assumed machine have no meaningful numbers: devices get them in order.
    """
    if machine.origin in ("recognised", "assumed"):
        return dict(zip(sorted(devices), machine.gpus, strict=False))
    return {device: device for device in devices if device in set(machine.gpus)}


def _of_another(machine: Machine, other: Sequence[str], by: str) -> tuple[str, ...]:
    """Return a warning that the topology is of another machine, if `other` is not empty.

    `other` names what differs from the run (UUIDs, PCI addresses); `by`: how GPUs were matched.
    """
    differing = " and ".join(other)
    text = (
        f"the GPUs of the topology {machine.name} have other {differing} than those of the run: "
        f"it is of another machine, and GPUs are taken by their {by}"
    )
    return (text,) if other else ()


def _matched(
    machine: Machine, devices: pl.DataFrame, key: str, plain: Callable[[object], str | None]
) -> tuple[dict[int, int], bool]:
    """Return device -> GPU with the same value of `key` (``uuid`` or ``pci_bus``).

    The second result is whether both run and machine have any such value. `plain` brings a value
    into one notation, or returns None if it is invalid.
    """
    nodes = machine.graph.nodes(data=key)
    places = {plain(value): number_of(node) for node, value in nodes if node.startswith("GPU")}
    places.pop(None, None)
    keys = dict(zip(devices["device"].to_list(), map(plain, devices[key].to_list()), strict=True))
    found = {device: places[text] for device, text in keys.items() if text in places}
    return found, bool(places) and any(text is not None for text in keys.values())


def _checked(
    machine: Machine, gpus: Mapping[int, int], active: list[int], identity: str
) -> Mapping[int, int]:
    absent = sorted(set(active) - gpus.keys())
    if absent:
        _refuse(machine, f"GPU {absent[0]}, which is not in it by the {identity} of its GPUs")
    # Of devices that are one GPU by their key, those that ran nothing stand back.
    taken = Counter(gpus[device] for device in active)
    twice = next((gpu for gpu, times in taken.items() if times > 1), None)
    if twice is not None:
        same = " and ".join(str(device) for device in active if gpus[device] == twice)
        raise UsageError(
            f"GPUs {same} of the run are GPU {twice} of the topology {machine.name}, by {identity}",
            "they are in several machines, and a topology describes one",
        )
    return {device: gpu for device, gpu in gpus.items() if device in active or gpu not in taken}


def _refuse(machine: Machine, run: str) -> None:
    raise UsageError(
        f"a topology of {count(len(machine.gpus), 'GPU')} ({machine.name}) cannot carry a run on"
        f" {run}",
        "give the topology of the machine that the run was recorded on",
    )


def _plain_uuid(value: object) -> str | None:
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower().removeprefix("gpu-"))
    return digits if value is not None and digits.strip("0") else None


def _plain_bus(value: object) -> str | None:
    return None if value is None else pci_bus(str(value))
