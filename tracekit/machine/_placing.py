"""Match the devices of a run with the GPUs of a machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from tracekit.errors import UsageError
from tracekit.machine._graph import Machine, number_of
from tracekit.machine._pcie import pci_bus

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
