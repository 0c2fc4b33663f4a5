"""Machines as TOML: the presets that tracekit ships, and descriptions that users write.

    version = 1
    title = "Two GPUs"                  # optional, as are name, source and warnings
    tells_peers = true                  # false: no NVLinks are named, but there may be some
    untold = ["GPU0-GPU1"]              # pairs whose connection is unknown
    [nodes]                             # how many of each, or a list of their numbers
    GPU = 2
    CPU = 1
    [[links]]
    type = "nvlink"
    bricks = 4
    brick_bandwidth = 25_000_000_000    # or bandwidth, of all bricks; or pcie = "4x16"
    between = "GPU0-GPU1"               # or a list; "GPU*-CPU0" and "GPU0..3,6-CPU0" are many
    [attributes.GPU0]                   # or "NIC*"; uuid, pci_bus, product, numa, name, bandwidth
    uuid = "GPU-86e60957-0cc5-7959-855b-28f0d7bac243"

A brick is one NVLink. Bandwidths are peaks per direction in bytes/s, and absent where they are not
known.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tracekit.errors import InputError
from tracekit.machine._graph import (
    PEER_LINKS,
    PREFIXES,
    Link,
    LinkType,
    Machine,
    NodeType,
    Origin,
    number_of,
)
from tracekit.machine._pcie import pcie_bandwidth
from tracekit.support.toml import parse_toml, read_toml

VERSION = 1
_KEYS = {"version", "name", "title", "source", "warnings", "nodes", "links", "attributes",
         "recognise", "tells_peers", "untold"}  # fmt: skip
_LINK_KEYS = {"type", "between", "bricks", "bandwidth", "brick_bandwidth", "pcie"}
_ATTRIBUTES: Mapping[str, type] = {
    "uuid": str, "pci_bus": str, "product": str, "numa": int, "name": str, "bandwidth": int,
}  # fmt: skip
_TYPES: Mapping[str, NodeType] = {prefix: kind for kind, prefix in PREFIXES.items()}
_MOST_NODES = 9999
_MOST_BANDWIDTH = 10**15
_END = re.compile(rf"({'|'.join(_TYPES)})(\*|[0-9.,]+)")
_NUMBERS = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")
_PCIE = re.compile(r"([1-6])x(1|2|4|8|16)")

_RATES = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
"""Rate of a lane by generation of PCIe, from the first, GT/s."""


def pcie_interface(text: str) -> int | None:
    """Return the peak per direction, bytes/s, of PCIe such as ``3x16`` (generation x lanes).

    None if the text is invalid.
    """
    found = _PCIE.fullmatch(text)
    return pcie_bandwidth(_RATES[int(found[1]) - 1], int(found[2])) if found else None


def read_machine_toml(path: Path) -> Machine:
    """Read a machine that a user described in a TOML file, in the format of the presets.

    Raises
    ------
    InputError
        If the file cannot be read, is not TOML, or describes an impossible machine: an unknown key,
        type or node, a link given twice, a number out of range. The message names the place.
    """
    return machine_of(read_toml(path), path.stem, str(path), "file")


def machine_of_text(text: str) -> Machine:
    """Return the machine from the TOML that `machine_toml` wrote."""
    return machine_of(parse_toml(text), "machine", "the recorded machine", "trace")


def machine_of(content: Mapping[str, Any], name: str, where: str, origin: Origin) -> Machine:
    """Return the machine that the content of a TOML file describes.

    Parameters
    ----------
    content
        Parsed content of the file.
    name
        Name of the machine if the file gives none.
    where
        Name of the file in messages.
    origin
        Source of the machine, see `Machine`.

    Raises
    ------
    InputError
        As `read_machine_toml`.
    """
    _check_keys(content, _KEYS, where)
    if content.get("version") != VERSION:
        raise InputError(f"{where} has version {content.get('version')!r}", "version = 1 is read")
    nodes = _nodes(content, where)
    links = _links(content, nodes, where)
    named = _texts(content.get("name", name), f"{where}: name")[0]
    _texts(content.get("title", ""), f"{where}: title")
    warnings = _texts(content.get("warnings", []), f"{where}: warnings")
    source = _texts(content.get("source", []), f"{where}: source")
    peers = content.get("tells_peers", True)
    if not isinstance(peers, bool):
        raise InputError(f"{where}: tells_peers is {peers!r}", "give true or false")
    made = Machine.of(named, nodes, links, origin, warnings, " ".join(source) or None)
    return replace(made, tells_peers=peers, untold=frozenset(_untold(content, nodes, where)))


def _untold(
    content: Mapping[str, Any], nodes: Mapping[str, Mapping[str, object]], where: str
) -> Iterator[frozenset[int]]:
    """Yield the pairs of GPUs whose route is unknown according to the file."""
    for pattern in _texts(content.get("untold", []), f"{where}: untold"):
        for ends in _pairs(pattern, nodes, f"{where}: untold"):
            yield frozenset(map(number_of, ends))


def machine_toml(machine: Machine) -> str:
    """Return a machine as TOML text; only its topology matrix (`given`) is not kept."""
    lines = [f"version = {VERSION}", f"name = {_text(machine.name)}"]
    if not machine.tells_peers:
        lines.append("tells_peers = false")
    if machine.untold:
        pairs = (f"GPU{one}-GPU{other}" for one, other in sorted(map(sorted, machine.untold)))
        lines.append(f"untold = [{', '.join(map(_text, pairs))}]")
    if machine.source is not None:
        lines.append(f"source = {_text(machine.source)}")
    if machine.warnings:
        lines.append(f"warnings = [{', '.join(map(_text, machine.warnings))}]")
    lines += ["", "[nodes]"]
    for kind, prefix in PREFIXES.items():
        numbers = [number_of(node) for node in machine.nodes(kind)]
        if numbers:
            counted = numbers == list(range(len(numbers)))
            lines.append(f"{prefix} = {len(numbers) if counted else numbers}")
    for link in machine.links:
        lines += ["", "[[links]]", f'type = "{link.type}"', f'between = "{link.name}"']
        lines += [
            f"{key} = {value}"
            for key, value in (("bricks", link.bricks), ("bandwidth", link.bandwidth))
            if value is not None
        ]
    for node, attributes in machine.graph.nodes(data=True):
        known = {key: attributes.get(key) for key in _ATTRIBUTES}
        if any(value is not None for value in known.values()):
            lines += ["", f"[attributes.{node}]"]
            lines += [
                f"{key} = {value if isinstance(value, int) else _text(str(value))}"
                for key, value in known.items()
                if value is not None
            ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    # JSON's strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _texts(value: Any, where: str) -> list[str]:
    """Return a TOML value as a list of texts; a single text becomes a list of one."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InputError(f"{where} is {value!r}", "give text in quotes")
    return texts


def _check_keys(content: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise InputError(f"{where} has the unknown key {unknown[0]!r}", f"known: {_list(known)}")


def _list(names: Sequence[str] | set[str] | Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


def _table(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{where}: {key} is not a table")
    return table


def _nodes(content: Mapping[str, Any], where: str) -> dict[str, dict[str, object]]:
    nodes: dict[str, dict[str, object]] = {}
    for prefix, value in _table(content, "nodes", where).items():
        if prefix not in _TYPES:
            raise InputError(f"{where}: unknown type of node {prefix!r}", f"known: {_list(_TYPES)}")
        for number in _node_numbers(value, f"{where}: nodes.{prefix}"):
            nodes[f"{prefix}{number}"] = {"type": _TYPES[prefix]}
    if not any(each["type"] == "gpu" for each in nodes.values()):
        raise InputError(f"{where} names no GPU", "write `GPU = 8` under [nodes]")
    for named, attributes in _table(content, "attributes", where).items():
        known = _attributes(attributes, f"{where}: attributes.{named}")
        several = named.endswith("*") or ".." in named
        if named not in nodes and not several:
            raise InputError(f"{where}: attributes of {named}, which is not among the nodes")
        for node in _named(named, nodes, f"{where}: attributes") if several else [named]:
            nodes[node] |= known
    return nodes


def _node_numbers(value: Any, where: str) -> Sequence[int]:
    if _is_whole(value, 0, _MOST_NODES):
        return range(value)
    if not isinstance(value, list) or not all(_is_whole(each, 0, 9999) for each in value):
        raise InputError(f"{where} is {value!r}", f"give a number up to {_MOST_NODES}, or a list")
    if len(set(value)) != len(value):
        raise InputError(f"{where} names a number twice")
    return value


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _attributes(attributes: Any, where: str) -> dict[str, object]:
    if not isinstance(attributes, dict):
        raise InputError(f"{where} is not a table")
    _check_keys(attributes, set(_ATTRIBUTES), where)
    for key, value in attributes.items():
        if not isinstance(value, _ATTRIBUTES[key]):
            raise InputError(f"{where}.{key} is {value!r}, which is of the wrong type")
    return attributes


def _links(
    content: Mapping[str, Any], nodes: Mapping[str, Mapping[str, object]], where: str
) -> list[Link]:
    tables = content.get("links", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise InputError(f"{where}: links is not a list of tables", "write [[links]] for each")
    found: dict[frozenset[str], Link] = {}
    for number, table in enumerate(tables):
        for link in _links_of(table, nodes, f"{where}: links[{number}]"):
            ends = frozenset(link.ends)
            if ends in found:
                raise InputError(f"{where}: links[{number}] joins {link.name} a second time")
            found[ends] = link
    return list(found.values())


def _links_of(
    table: Mapping[str, Any], nodes: Mapping[str, Mapping[str, object]], where: str
) -> Iterator[Link]:
    _check_keys(table, _LINK_KEYS, where)
    types: tuple[LinkType, ...] = get_args(LinkType)
    kind = next((each for each in types if each == table.get("type")), None)
    if kind is None:
        raise InputError(
            f"{where} has the unknown type {table.get('type')!r}", f"known: {_list(types)}"
        )
    bricks = table.get("bricks")
    if (bricks is None and kind == "nvlink") or (bricks is not None and kind not in PEER_LINKS):
        raise InputError(f"{where} of type {kind}: give bricks for NVLinks, and only for them")
    if bricks is not None and not _is_whole(bricks, 1, 1000):
        raise InputError(f"{where}.bricks is {bricks!r}", "give an integer from 1 up")
    bandwidth = _bandwidth(table, where)
    for pattern in _texts(table.get("between"), f"{where}.between"):
        for ends in _pairs(pattern, nodes, where):
            yield Link(ends, kind, bricks, bandwidth)


def _bandwidth(table: Mapping[str, Any], where: str) -> int | None:
    keys = [key for key in ("bandwidth", "brick_bandwidth", "pcie") if key in table]
    if not keys:
        return None
    if len(keys) > 1:
        raise InputError(f"{where} gives {' and '.join(keys)}", "give one of them")
    key, value = keys[0], table[keys[0]]
    if key == "pcie":
        bandwidth = pcie_interface(value) if isinstance(value, str) else None
        if bandwidth is None:
            raise InputError(f"{where}.pcie is {value!r}", 'give generation x lanes, as "4x16"')
        return bandwidth
    if not _is_whole(value, 1, _MOST_BANDWIDTH):
        raise InputError(f"{where}.{key} is {value!r}", "give whole bytes per second from 1 up")
    if key == "bandwidth":
        return int(value)
    if "bricks" not in table:
        raise InputError(f"{where} gives brick_bandwidth without bricks")
    return int(value * table["bricks"])


def _pairs(
    pattern: str, nodes: Mapping[str, Mapping[str, object]], where: str
) -> list[tuple[str, str]]:
    """Expand `GPU0-GPU1`, `GPU0..3,6-CPU0` or `GPU*-GPU*` into pairs of nodes.

    If both sides are the same set, each two of its nodes form one pair.
    """
    sides = pattern.split("-")
    if len(sides) != 2:  # noqa: PLR2004
        raise InputError(f"{where} is between {pattern!r}", "give two nodes, as GPU0-GPU1")
    ones, others = (_named(side, nodes, where) for side in sides)
    if ones == others and len(ones) > 1:
        return list(itertools.combinations(ones, 2))
    pairs = list(itertools.product(ones, others))
    itself = next((one for one, other in pairs if one == other), None)
    if itself is not None:
        raise InputError(f"{where} joins {itself} with itself ({pattern!r})")
    return pairs


def _named(side: str, nodes: Mapping[str, Mapping[str, object]], where: str) -> list[str]:
    found = _END.fullmatch(side.strip())
    if found is None:
        raise InputError(
            f"{where} names {side!r}", f"nodes are named {_list(_TYPES)} and a number, as GPU0"
        )
    prefix, numbers = found[1], found[2]
    if numbers == "*":
        return [node for node in nodes if nodes[node]["type"] == _TYPES[prefix]]
    named = [f"{prefix}{number}" for part in numbers.split(",") for number in _numbers(part, where)]
    absent = next((node for node in named if node not in nodes), None)
    if absent is not None:
        raise InputError(f"{where} leads to {absent}, which is not among the nodes")
    return named


def _numbers(part: str, where: str) -> range:
    found = _NUMBERS.fullmatch(part)
    if found is None:
        raise InputError(
            f"{where} has {part!r} for a number", "give one, as 3, or a range, as 0..3"
        )
    return range(int(found[1]), int(found[2] or found[1]) + 1)
