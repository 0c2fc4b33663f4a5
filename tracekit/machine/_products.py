"""NVLinks, PCIe interface and peaks of GPUs by product name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from tracekit.machine._graph import Link, Machine, number_of
from tracekit.machine._toml import load_toml, pcie_interface
from tracekit.support.files import schemas

_TERA = 10**12
_HOPPER = 4
"""Generation of the NVLinks of GPUs whose switches reduce and multicast."""
_MOST_BEFORE_HOPPER = 12


@dataclass(frozen=True)
class Product:
    """Facts about a GPU product.

    Parameters
    ----------
    nvlink
        Generation of its NVLinks; None where it has none.
    bricks
        Number of its NVLinks (of AMD's GPUs xGMI links), wired or not; 0 where it has none, None
        where that is not known.
    brick_bandwidth
        Peak of one of these per direction, bytes/s.
    pcie
        Generation of its PCIe interface; None where it has none or that is not known.
    pcie_bandwidth
        Peak of that interface per direction, bytes/s.
    """

    nvlink: int | None = None
    bricks: int | None = None
    brick_bandwidth: int | None = None
    pcie: int | None = None
    pcie_bandwidth: int | None = None


def nvlink_of(product: str | None) -> Product | None:
    """Return the NVLinks of a GPU product, such as `Tesla V100-SXM2-16GB`.

    What is known is in ``schemas/machines/products.toml``, with its sources. Slices of a GPU (MIG,
    virtual GPUs) and mobile parts are not known, though they share a name with one that is.

    Returns
    -------
    None where nothing is known.
    """
    if product is None:
        return None
    known = next((each for pattern, each in _products() if pattern.search(product)), None)
    return None if known == Product() else known


def with_bandwidths(machine: Machine, products: Mapping[int, str | None]) -> Machine:
    """Fill in bandwidths that a machine leaves open, from the names of its GPUs.

    That of an NVLink edge is its bricks times the bandwidth of one (the narrower one where its GPUs
    differ), that of a GPU's PCIe edge is the peak of its interface. Known ones stay, and other
    links stay as they are.

    Parameters
    ----------
    machine
        The machine.
    products
        Product names by number of the GPU; a GPU that is absent or None stays unknown.
    """
    known = {f"GPU{number}": nvlink_of(product) for number, product in products.items()}
    return machine.with_links(_filled(link, known) for link in machine.links)


def _filled(link: Link, known: Mapping[str, Product | None]) -> Link:
    if link.bandwidth is not None or link.type not in ("nvlink", "pcie"):
        return link
    each = [known.get(end) for end in link.ends if end.startswith("GPU")]
    if not each or None in each:
        return link
    products = [product for product in each if product is not None]
    if link.type == "pcie":
        widths = [product.pcie_bandwidth for product in products]
    else:
        widths = [_times(product.brick_bandwidth, link.bricks) for product in products]
    narrowest = min((width for width in widths if width is not None), default=None)
    return link if None in widths else replace(link, bandwidth=narrowest)


def _times(bandwidth: int | None, bricks: int | None) -> int | None:
    return None if bandwidth is None or bricks is None else bandwidth * bricks


def reducing_gpus(machine: Machine, products: Mapping[int, str | None]) -> frozenset[int]:
    """Return the GPUs whose NVSwitch can reduce and multicast, as those of Hopper and later do.

    Where a GPU's name tells nothing, its NVLinks do: before Hopper no GPU has more than 12.
    """
    known = {gpu: nvlink_of(products.get(gpu)) for gpu in machine.gpus if machine.switch(gpu)}
    return frozenset(
        gpu
        for gpu, product in known.items()
        if (
            machine.switch_bricks(gpu) > _MOST_BEFORE_HOPPER
            if product is None or product.nvlink is None
            else product.nvlink >= _HOPPER
        )
    )


def products_of(machine: Machine) -> dict[int, str | None]:
    """Return the product names that a machine's own GPUs have, by their numbers."""
    names = machine.graph.nodes(data="product")
    return {number_of(node): names[node] for node in machine.nodes("gpu")}


@cache
def _products() -> tuple[tuple[re.Pattern[str], Product], ...]:
    content = load_toml(schemas() / "machines" / "products.toml")
    return tuple((re.compile(each["name"]), _product(each)) for each in content["product"])


def _product(entry: Mapping[str, object]) -> Product:
    numbers = {
        key: value
        for key, value in entry.items()
        if key in ("nvlink", "bricks", "brick_bandwidth") and isinstance(value, int)
    }
    pcie = entry.get("pcie")
    if not isinstance(pcie, str):
        return Product(**numbers)
    return Product(**numbers, pcie=int(pcie[0]), pcie_bandwidth=pcie_interface(pcie))


def peak_flops(product: str | None) -> Mapping[str, int]:
    """Return the peak of a GPU of this name, FLOP/s, by precision; nothing where it is not known.

    They are those of dense matrices, as data sheets have them: ``schemas/machines/peaks.toml`` has
    the numbers and their sources. What shares a name with a GPU and is slower is not known.
    """
    if product is None:
        return {}
    return next((each for pattern, each in _peaks("product") if pattern.search(product)), {})


def peak_memory_bandwidth(product: str | None) -> int | None:
    """Return the peak of the memory of a GPU of this name, bytes/s; None where it is not known."""
    if product is None or not peak_flops(product):  # slices and mobile parts have none of either
        return None
    return next((each["peak"] for name, each in _peaks("memory") if name.search(product)), None)


@cache
def _peaks(what: str) -> tuple[tuple[re.Pattern[str], Mapping[str, int]], ...]:
    content = load_toml(schemas() / "machines" / "peaks.toml")
    return tuple(
        (
            re.compile(each["name"]),
            {key: round(value * _TERA) for key, value in each.items() if key != "name"},
        )
        for each in content[what]
    )
