"""Choose the machine that a user names or a run was recorded on, and match its GPUs."""

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
    recognise,
    with_bandwidths,
)
from tracekit.machine._read import read_topology
from tracekit.machine._toml import machine_of_text

_HEAD = 64
_SHOWN = 4
_SPANS_HOSTS = r"\bGB[23]00\b"
"""GPUs of racks whose NVSwitches join the GPUs of many hosts."""
_UNTOLD = "{} names no NVLinks, as templates do that were written by hand"
_NUMBER = re.compile(r"\d+$")
_TRACES = (b"SQLite format 3\0",)


@dataclass(frozen=True)
class Placed:
    """A machine, and which of its GPUs the devices of a run are.

    Parameters
    ----------
    machine
        The machine.
    place
        Its GPU for each device of the run; GPUs of it that the run does not name stand for
        themselves where no device has their number.
    by
        What devices were known by: ``uuid``, ``pci_bus`` or ``number``.
    warnings
        What a user should know about the machine and that, one sentence each.
    """

    machine: Machine
    place: Mapping[int, int]
    by: PlacedBy
    warnings: tuple[str, ...] = ()


def is_topology(reference: str) -> bool:
    """Tell whether a user means a preset or a topology file, and no run."""
    path = Path(reference)
    return is_preset(reference) or (path.is_file() and not _is_trace(path))


def _is_trace(path: Path) -> bool:
    """Tell whether a file may be a trace that is no topology: an SQLite file without NVLINK table.

    An nvprof database is both; as a topology it is meant where it is one.
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
    """Return a preset by its name, or the machine that a topology file describes.

    Raises
    ------
    UsageError
        If there is neither.
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
    """Return the machine that a run was recorded on.

    Where no topology tells otherwise, the GPUs of each host are in a machine of their own, and
    nothing is known to join these.

    Parameters
    ----------
    devices
        The canonical table, and perhaps ``host``.
    topology
        A topology file or a preset, of the whole machine, or of each host where it has too few
        GPUs for the run; without one, the machine is what was recorded, else told by the names of
        the GPUs.
    recorded
        The machines that reports of the run hold, as TOML; they count if they are one.

    Raises
    ------
    UsageError
        If the machine has fewer GPUs than ran, or there is no such topology.
    MissingDataError
        If the run names no GPU.
    InputError
        If the file is no topology.
    """
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
    if len(hosts) > 1:
        what = f"GPUs of {_named(hosts)} are taken for those of one machine, {placed.machine.name}"
        placed = replace(placed, warnings=(*placed.warnings, what))
    return placed


def _placed(chosen: Machine, devices: pl.DataFrame) -> Placed:
    products = dict(devices.select("device", "name").rows())
    placing = place(chosen, devices)
    found = dict(placing.gpus)
    rest = set(chosen.gpus) - set(found.values())
    named = {gpu: products.get(dev) for dev, gpu in found.items()}
    machine = with_bandwidths(completed(chosen, named), named)
    whole = {gpu: gpu for gpu in sorted(rest) if gpu not in found} | found
    return Placed(machine, whole, placing.by, (*machine.warnings, *placing.warnings))


def _hosts(devices: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the devices of each host, where several have devices that ran anything."""
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
    """Return the machines of several hosts as one, as far as names of GPUs tell what they are."""
    numbers = [devices["device"] for devices in hosts.values()]
    # A topology of each host numbers its GPUs from 0.
    own = [
        devices if topology is None else devices.with_columns(device=pl.int_range(pl.len()))
        for devices in hosts.values()
    ]
    each = [machine_of(devices, topology) for devices in own]
    names = pl.concat(list(hosts.values()))["name"].drop_nulls()
    joined = not names.str.contains(_SPANS_HOSTS).any()
    between = (
        "crosses a network" if joined else "is on no link, as NVLinks of such GPUs may join hosts"
    )
    warning = (
        f"the run is of {_named(hosts)}, each of which is taken for a machine of its own: what "
        f"goes between them {between}; if they are one machine, give --topology"
    )
    machine, firsts = side_by_side([placed.machine for placed in each], warning)
    if joined:
        machine = with_fabric(machine)
    whole = {
        number: first + placed.place[device]
        for placed, devices, numbered, first in zip(each, own, numbers, firsts, strict=True)
        for device, number in zip(devices["device"], numbered, strict=True)
        if device in placed.place
    }
    warnings = [text for placed in each for text in placed.warnings]
    return Placed(machine, whole, each[0].by, tuple(dict.fromkeys([*warnings, warning])))


# -- machines that tell nothing of NVLinks, and several of them


def completed(machine: Machine, products: Mapping[int, str | None]) -> Machine:
    """Return a machine with the NVLinks that its GPUs have, where it tells nothing of them.

    GPUs of one product that come on one board in this number have the NVLinks of its preset, GPU by
    GPU in order of their numbers. GPUs that have none need none. Of others it stays unknown what
    joins them.

    Parameters
    ----------
    machine
        The machine; one that tells of its NVLinks is returned as it is.
    products
        Product names by number of the GPU, as far as a run knows them.
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
    what = _UNTOLD.format(machine.name)
    text = f"{what}, and none are known of its GPUs: no route between two GPUs is known"
    return replace(machine, warnings=(*machine.warnings, text))


def _with_links(machine: Machine, preset: Machine, product: str) -> Machine:
    ours = dict(zip(preset.nodes("gpu"), machine.nodes("gpu"), strict=True))
    ours |= {switch: switch for switch in preset.nodes("nvswitch")}
    links = [
        replace(link, ends=(ours[link.ends[0]], ours[link.ends[1]]), known="recognised")
        for link in preset.links
        if link.type in PEER_LINKS and ours.keys() >= {*link.ends}
    ]
    nodes = {
        **dict(machine.graph.nodes(data=True)),
        **{switch: {"type": "nvswitch"} for switch in preset.nodes("nvswitch")},
    }
    made = Machine.of(machine.name, nodes, [*machine.links, *links], machine.origin)
    text = (
        f"{_UNTOLD.format(machine.name)}: those of {preset.name} are taken, which is where"
        f" {len(machine.gpus)} {product} mostly are"
    )
    return replace(made, warnings=(*machine.warnings, text), source=machine.source)


def side_by_side(machines: Sequence[Machine], warning: str) -> tuple[Machine, list[int]]:
    """Put machines beside each other: their nodes are numbered on from one to the next.

    Parameters
    ----------
    machines
        The machines, one or more.
    warning
        What a user should know about their being several.

    Returns
    -------
    All of them as one machine, which is as sure as the least sure of them; and by how much the
    numbers of each one's GPUs are raised.
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
    """GPU of the machine for each device of a run.

    Parameters
    ----------
    gpus
        Number of the machine's GPU by number of the run's device.
    by
        How they were told: by ``uuid``, ``pci_bus`` or ``number``.
    warnings
        What a user should know about it, one sentence each.
    """

    gpus: Mapping[int, int]
    by: PlacedBy
    warnings: tuple[str, ...] = ()


def place(machine: Machine, devices: pl.DataFrame) -> Placing:
    """Find which GPU of a machine each device of a run is.

    That is told by UUID where the machine and the run share any, else by PCI bus location where the
    machine has those of all active devices, else by number. Where both have UUIDs, or locations,
    that differ, the topology is that of another machine: machines of one model are alike, so it is
    taken, with a warning. A device that ran nothing and has no place is left out. A machine that
    was recognised or assumed has no numbers of its own: devices are its GPUs in order.

    Parameters
    ----------
    machine
        The machine, whose GPUs may have ``uuid`` and ``pci_bus``.
    devices
        The run's canonical table ``devices``; columns ``device, uuid, pci_bus, active`` are read.

    Raises
    ------
    UsageError
        If an active device has no place, or two have the same.
    """
    active = devices.filter(pl.col("active"))["device"].to_list()
    if len(active) > len(machine.gpus):
        _refuse(machine, f"{len(active)} GPUs")
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
    """Return the GPU of each number; a machine made for the run's GPUs has them in their order."""
    if machine.origin in ("recognised", "assumed"):
        return dict(zip(sorted(devices), machine.gpus, strict=False))
    return {device: device for device in devices if device in set(machine.gpus)}


def _of_another(machine: Machine, other: Sequence[str], by: str) -> tuple[str, ...]:
    """Return the warning that the machine is another one, where that shows in something."""
    if not other:
        return ()
    what = " and ".join(other)
    return (
        (
            f"the GPUs of the topology {machine.name} have other {what} than those of the run: "
            f"it is of another machine, and GPUs are taken by their {by}"
        ),
    )


def _matched(
    machine: Machine, devices: pl.DataFrame, key: str, plain: Callable[[object], str | None]
) -> tuple[dict[int, int], bool]:
    """Return the devices that the machine has by a key, and whether both have that key at all."""
    nodes = machine.graph.nodes(data=key)
    places = {plain(value): number_of(node) for node, value in nodes if node.startswith("GPU")}
    places.pop(None, None)
    keys = dict(zip(devices["device"].to_list(), map(plain, devices[key].to_list()), strict=True))
    found = {device: places[text] for device, text in keys.items() if text in places}
    return found, bool(places) and any(text is not None for text in keys.values())


def _checked(
    machine: Machine, gpus: Mapping[int, int], active: list[int], what: str
) -> Mapping[int, int]:
    absent = sorted(set(active) - gpus.keys())
    if absent:
        _refuse(machine, f"GPU {absent[0]}, which is not in it by the {what} of its GPUs")
    # Of devices that are one GPU by their key, those that ran nothing stand back.
    taken = Counter(gpus[device] for device in active)
    twice = next((gpu for gpu, times in taken.items() if times > 1), None)
    if twice is not None:
        same = " and ".join(str(device) for device in active if gpus[device] == twice)
        raise UsageError(
            f"GPUs {same} of the run are GPU {twice} of the topology {machine.name}, by {what}",
            "they are in several machines, and a topology describes one",
        )
    return {device: gpu for device, gpu in gpus.items() if device in active or gpu not in taken}


def _refuse(machine: Machine, run: str) -> None:
    raise UsageError(
        f"a topology of {len(machine.gpus)} GPUs ({machine.name}) cannot carry a run on {run}",
        "give the topology of the machine that the run was recorded on",
    )


def _plain_uuid(value: object) -> str | None:
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower().removeprefix("gpu-"))
    return digits if value is not None and digits.strip("0") else None


def _plain_bus(value: object) -> str | None:
    return None if value is None else pci_bus(str(value))
