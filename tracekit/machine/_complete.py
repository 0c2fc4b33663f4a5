"""Machines whose description names no NVLinks, completed by what their GPUs are known to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracekit.machine._graph import PEER_LINKS, Machine
from tracekit.machine._presets import recognise
from tracekit.machine._products import nvlink_of

_UNTOLD = "{} names no NVLinks, as templates do that were written by hand"


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
        return _unknown(machine)
    [name] = names
    product = nvlink_of(name)
    if product is not None and product.bricks == 0:
        return replace(machine, tells_peers=True)
    preset = recognise([name] * len(machine.gpus))
    if preset is None or preset.origin != "recognised":
        return _unknown(machine)
    return _with_links(machine, preset, name)


def _unknown(machine: Machine) -> Machine:
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
