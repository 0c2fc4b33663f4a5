"""Known GPU products (NVLinks, PCIe, peaks), presets of machines, and recognition by GPU name."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import polars as pl

from tracekit.errors import UsageError
from tracekit.machine._graph import Link, Machine, Origin, number_of
from tracekit.machine._toml import machine_of, pcie_interface
from tracekit.support.files import schemas
from tracekit.support.toml import read_toml

_TERA = 10**12
_HOPPER = 4
"""Generation of NVLink from which NVSwitches reduce and multicast."""
_MOST_BEFORE_HOPPER = 12


@dataclass(frozen=True)
class Product:
    """NVLinks, PCIe and bandwidths of a GPU product."""

    nvlink: int | None = None
    """Generation of its NVLinks; None if it has none."""
    bricks: int | None = None
    """Number of its NVLinks (for AMD's GPUs, xGMI links), including unconnected ones; 0 if it has
    none, None if unknown."""
    brick_bandwidth: int | None = None
    """Peak bandwidth of one of these links per direction, bytes/s."""
    pcie: int | None = None
    """Generation of its PCIe interface; None if it has none or it is unknown."""
    pcie_bandwidth: int | None = None
    """Peak bandwidth of that interface per direction, bytes/s."""


def nvlink_of(product: str | None) -> Product | None:
    """Return NVLinks, PCIe and bandwidths of a GPU by product name, such as `Tesla V100-SXM2-16GB`.

    The known values are in ``schemas/machines/products.toml``, with sources. Slices of a GPU (MIG,
    virtual GPUs) and mobile parts count as unknown, though they share a name with a known GPU.

    Returns
    -------
    The product; None if it is unknown.
    """
    entry = _entry("products", "product", product)
    if not entry:
        return None
    numbers = {key: entry.get(key) for key in ("nvlink", "bricks", "brick_bandwidth")}
    if "pcie" in entry:
        numbers["pcie"] = int(entry["pcie"][0])
        numbers["pcie_bandwidth"] = pcie_interface(entry["pcie"])
    return Product(**numbers)


def with_bandwidths(machine: Machine, products: Mapping[int, str | None]) -> Machine:
    """Fill in the unknown bandwidths of a machine from the names of its GPUs.

    A link of several NVLinks gets their number times the bandwidth of one NVLink (the lower one if
    its two GPUs differ). A GPU's PCIe link gets the peak of the GPU's PCIe interface. Known
    bandwidths and other links stay as they are. `products` is GPU number -> product name; a GPU
    that is absent or None stays unknown.
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
    """Return the GPUs whose NVSwitch can reduce and multicast (NVLink SHARP): Hopper and later.

    A GPU of unknown name counts if it has more than 12 NVLinks, as no GPU before Hopper has more.
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
    """Return GPU number -> product name that the machine's description states."""
    names = machine.graph.nodes(data="product")
    return {number_of(node): names[node] for node in machine.nodes("gpu")}


def products_of_gpus(devices: pl.DataFrame) -> pl.Series:
    """Return the products of the GPUs `devices` (``name, sm_count``), as other functions take them.

    The name of a part of a GPU, which has fewer units than the product, also tells how many.
    """
    names = devices["name"].unique().drop_nulls()
    units = {name: _entry("peaks", "units", name).get("whole") for name in names}
    whole = pl.col("name").replace_strict(units, default=None, return_dtype=pl.Int32)
    part = pl.format("{} ({} of {} units)", "name", "sm_count", whole)
    product = pl.when(pl.col("sm_count") < whole).then(part).otherwise("name").alias("name")
    return devices.select(product).to_series()


def peak_flops(product: str | None) -> Mapping[str, int]:
    """Return precision -> peak FLOP/s of a GPU of this product name; empty if it is unknown.

    The peaks are those of dense matrices in data sheets: ``schemas/machines/peaks.toml`` has the
    numbers and their sources. Slower variants that share a GPU's name count as unknown.
    """
    peaks = _entry("peaks", "product", product)
    return {precision: round(peak * _TERA) for precision, peak in peaks.items()}


def peak_memory_bandwidth(product: str | None) -> int | None:
    """Return the peak memory bandwidth of a GPU by product name, bytes/s; None if it is unknown."""
    if product is None or not peak_flops(product):  # slices and mobile parts have none of either
        return None
    entry = _entry("peaks", "memory", product)
    return round(entry["peak"] * _TERA) if entry else None


def _entry(file: str, table: str, product: str | None) -> Mapping[str, Any]:
    """Return the first entry of a table that is about a product, without its name; else empty."""
    found = (each for name, each in _entries(file, table) if product and name.search(product))
    return next(found, {})


@cache
def _entries(file: str, table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    entries = read_toml(schemas() / "machines" / f"{file}.toml")[table]
    return tuple((re.compile(each.pop("name")), each) for each in entries)


# -- machines that are known -------------------------------------------------------------------


_MOST_GPUS = 9999
_PLAIN = re.compile(r"pcie-([1-9][0-9]{0,3})")
_PLAIN_LISTED = ("pcie-1", "pcie-2", "pcie-4", "pcie-8")


def preset_names() -> list[str]:
    """Return names of preset machines; ``pcie-N`` exists for other numbers N of GPUs, too."""
    return sorted([*_files(), *_PLAIN_LISTED])


def is_preset(name: str) -> bool:
    """Test whether a text is the name of a preset machine."""
    return name in preset_names() or _PLAIN.fullmatch(name) is not None


def load_preset(name: str) -> Machine:
    """Return the preset machine of this name, with the origin ``preset``.

    Raises
    ------
    UsageError
        If there is no preset of that name.
    """
    return _made(name, "preset")


def recognise(products: Sequence[str | None]) -> Machine | None:
    """Return the machine that GPUs of these product names most likely belong to.

    A machine is recognised if a board with exactly these GPUs is sold; its warnings list what
    remains unknown. Otherwise a plain box is assumed: GPUs are joined by PCIe only, with the
    bandwidths that follow from their names. If such GPUs are also sold on a board with NVLinks, no
    route between them is known. For a run on several machines, pass the GPUs of one.

    Parameters
    ----------
    products
        Product name of each GPU; None if unknown.

    Returns
    -------
    A machine with the origin ``recognised`` or ``assumed``; None if there are no GPUs, or more than
    any machine has.
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
    knows_peers = len(products) == 1 or not boards
    return replace(machine, warnings=_unknown(products, boards), tells_peers=knows_peers)


def _is_on_a_board(product: str) -> bool:
    """Test whether GPUs of this product are sold on boards with NVLinks, in any number."""
    if not nvlink_of(product):
        return False
    patterns = (content.get("recognise", {}).get("products") for content in _files().values())
    return any(re.search(pattern, product) for pattern in patterns if pattern)


def _unknown(products: Sequence[str | None], boards: Sequence[str]) -> tuple[str, ...]:
    """Return warnings that GPUs of these products match no preset, so only PCIe links are assumed.

    `boards` names the boards with more GPUs of these products than given.
    """
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
    """Yield the presets that have this number of GPUs and are recognised by GPU names.

    A preset comes with the pattern of these names, and a text for users.
    """
    for preset, content in _files().items():
        if "recognise" in content and content["nodes"]["GPU"] == gpus:
            rule = content["recognise"]
            yield preset, re.compile(rule["products"]), rule["warning"]


def _made(name: str, origin: Origin) -> Machine:
    plain = _PLAIN.fullmatch(name)
    content = _read("pcie") if plain else _files().get(name)
    if content is None:
        raise UsageError(f"unknown machine {name!r}", f"choose one of {', '.join(preset_names())}")
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
    return read_toml(schemas() / "machines" / f"{name}.toml")
