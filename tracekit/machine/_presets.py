"""Machines that are known: their presets, and which one a run's GPUs are recognised as."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tracekit.errors import UsageError
from tracekit.machine._graph import Machine, Origin
from tracekit.machine._products import nvlink_of, with_bandwidths
from tracekit.machine._toml import load_toml, machine_of
from tracekit.support.files import schemas

_MOST_GPUS = 9999
_PLAIN = re.compile(r"pcie-([1-9][0-9]{0,3})")
_PLAIN_LISTED = ("pcie-1", "pcie-2", "pcie-4", "pcie-8")


def preset_names() -> list[str]:
    """Return the names of the presets; ``pcie-3`` and other numbers are presets too."""
    return sorted([*_files(), *_PLAIN_LISTED])


def is_preset(name: str) -> bool:
    """Tell whether a machine is known by this name."""
    return name in preset_names() or _PLAIN.fullmatch(name) is not None


def load_preset(name: str) -> Machine:
    """Return a machine that is known, with the origin ``preset``.

    Raises
    ------
    UsageError
        If there is no preset of that name.
    """
    return _made(name, "preset")


def recognise(products: Sequence[str | None]) -> Machine | None:
    """Return the machine that GPUs of these names are most likely in.

    A machine is recognised where GPUs of these names are known to come on one board in this number;
    what that does not tell is in its warnings. Otherwise a plain box is assumed, in which nothing
    joins GPUs but PCIe, with the bandwidths that their names tell; but of GPUs that come on boards
    with NVLinks, of which this is a share, no route is known. Of a run on several machines, give
    the GPUs of one.

    Parameters
    ----------
    products
        The product name of each GPU; None where it is not known.

    Returns
    -------
    A machine with the origin ``recognised`` or ``assumed``; None where there are no GPUs, or more
    than any machine has.
    """
    if not products or len(products) > _MOST_GPUS:
        return None
    names = dict(enumerate(products))
    for preset, pattern, warning in _recognisable(len(products)):
        if all(name is not None and pattern.search(name) and nvlink_of(name) for name in products):
            machine = _made(preset, "recognised")
            return replace(machine, warnings=(*machine.warnings, warning))
    machine = with_bandwidths(_made(f"pcie-{len(products)}", "assumed"), names)
    boards = sorted({name for name in products if name and _is_on_a_board(name)})
    told = len(products) == 1 or not boards
    return replace(machine, warnings=_unknown(products, boards), tells_peers=told)


def _is_on_a_board(product: str) -> bool:
    """Tell whether GPUs of a name come on boards that join them, in whatever number."""
    if not nvlink_of(product):
        return False
    told = (content.get("recognise", {}).get("products") for content in _files().values())
    return any(re.search(pattern, product) for pattern in told if pattern)


def _unknown(products: Sequence[str | None], boards: Sequence[str]) -> tuple[str, ...]:
    """Return what a user should know where nothing but PCIe is assumed."""
    if len(products) == 1:
        return ()
    links = "xGMI links" if all(name and "Instinct" in name for name in products) else "NVLinks"
    if boards:
        text = (
            f"the machine of these {len(products)} GPUs and the {links} between them are unknown: "
            f"{', '.join(boards)} come on boards with {links}: no route between two GPUs is known: "
            "give --topology"
        )
        return (text,)
    linked = any(product is None or product.bricks != 0 for product in map(nvlink_of, products))
    nvlinks = f"{links} between them, " if linked else ""
    names = sorted({name or "of an unknown name" for name in products})
    return (
        (
            f"the machine of these {len(products)} GPUs ({', '.join(names)}) is unknown: "
            f"{nvlinks}PCIe switches and sockets are left out"
        ),
    )


def _recognisable(gpus: int) -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Yield the presets of so many GPUs that product names tell, with their patterns."""
    for preset, content in _files().items():
        if "recognise" in content and content["nodes"]["GPU"] == gpus:
            told = content["recognise"]
            yield preset, re.compile(told["products"]), told["warning"]


def _made(name: str, origin: Origin) -> Machine:
    plain = _PLAIN.fullmatch(name)
    content = _read("pcie") if plain else _files().get(name)
    if content is None:
        raise UsageError(f"no machine is called {name!r}", f"choose of {', '.join(preset_names())}")
    if plain:
        content = copy.deepcopy(content)
        content["nodes"]["GPU"] = int(plain[1])
    return machine_of(content, name, f"preset {name}", origin)


@cache
def _files() -> dict[str, dict[str, Any]]:
    files = sorted((schemas() / "machines").glob("*.toml"))
    return {
        file.stem: _read(file.stem)
        for file in files
        if file.stem not in ("pcie", "peaks", "products")
    }


@cache
def _read(name: str) -> dict[str, Any]:
    return load_toml(schemas() / "machines" / f"{name}.toml")
