"""The tables that `rocm-smi --showtopo` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tracekit.errors import InputError
from tracekit.machine._graph import Link, Machine, number_of
from tracekit.machine._pcie import known, socket_links

_TITLE = re.compile(r"=+ *(Weight|Hops|Link Type) between two GPUs *=+|=[= ].*=")
_GPU = re.compile(r"GPU\d{1,4}")
_NUMA = re.compile(r"GPU *\[?(\d{1,4})\]?\s*: \(Topology\) Numa Node: (-?\d{1,4})\s*")
_TYPES = "Link Type"
_SELF = ("0", "X")
_ONE_HOP = 15
"""The most that Linux' driver weighs a direct link: 13 within a package, 15 between packages
(`kfd_crat.h`). Where GPUs of one hive are further apart it is 15 for each hop, and rocm-smi prints
one hop all the same."""
_GIVE = "give the whole output of `rocm-smi --showtopo`"

_Table = dict[tuple[str, str], str]


def is_rocm_topo(text: str) -> bool:
    """Tell whether a text has a table that `rocm-smi --showtopo` prints."""
    return any((found := _TITLE.fullmatch(line.strip())) and found[1] for line in text.splitlines())


def parse_rocm_topo(text: str, source: str, name: str) -> Machine:
    """Return the machine that `rocm-smi --showtopo` describes.

    ``XGMI`` of the weight of one hop is a link between two GPUs, of how many links and how wide is
    not said. Where its weight is larger other GPUs pass on what these two exchange, and which do is
    not said, so no route between them is known; nor is one where no type is printed. ``PCIE`` leads
    over the CPUs of their NUMA nodes: the tables tell of no PCIe switches.

    Parameters
    ----------
    text
        What rocm-smi printed; other text may stand before and after.
    source
        What messages call the file.
    name
        What the machine is called.

    Raises
    ------
    InputError
        If the table of link types lacks, or tables are cut short or contradict themselves.
    """
    lines = [line.strip() for line in text.splitlines()]
    tables = _tables(lines, source)
    if _TYPES not in tables:
        raise InputError(f"{source} has no table of link types between GPUs", _GIVE)
    types, weights = tables[_TYPES], tables.get("Weight", {})
    gpus = sorted({one for one, _ in types}, key=number_of)
    nodes = {f"GPU{found[1]}": int(found[2]) for line in lines if (found := _NUMA.fullmatch(line))}
    numa = {gpu: node for gpu, node in nodes.items() if node >= 0 and gpu in gpus}
    warnings = (
        [] if len(numa) == len(gpus) else ["it tells no NUMA node of every GPU: CPU0 is taken"]
    )
    pairs = [(one, other) for one, other in types if number_of(one) < number_of(other)]
    direct = [pair for pair in pairs if types[pair] == "XGMI" and _is_direct(weights.get(pair))]
    untold = [pair for pair in pairs if types[pair] not in ("XGMI", "PCIE")]
    passed_on = [pair for pair in pairs if types[pair] == "XGMI" and pair not in direct]
    if passed_on:
        told = ", ".join("-".join(pair) for pair in passed_on[:4])
        more = ", ..." if len(passed_on) > 4 else ""  # noqa: PLR2004
        warnings.append(
            f"XGMI of several hops joins {told}{more}: which links that crosses is not known"
        )
    cpus = sorted({numa.get(gpu, 0) for gpu in gpus})
    links = [
        *(Link(pair, "xgmi") for pair in direct),
        *(Link((gpu, f"CPU{numa.get(gpu, 0)}"), "pcie") for gpu in gpus),
        *socket_links(f"CPU{cpu}" for cpu in cpus),
    ]
    made = {gpu: known(type="gpu", numa=numa.get(gpu)) for gpu in gpus}
    made |= {f"CPU{cpu}": known(type="host", numa=cpu if numa else None) for cpu in cpus}
    machine = Machine.of(name, made, links, "file", warnings)
    without = frozenset(frozenset(map(number_of, pair)) for pair in (*passed_on, *untold))
    given = {pair: cell for pair, cell in types.items() if pair[0] != pair[1]}
    return replace(machine, given=given, untold=without)


def _is_direct(weight: str | None) -> bool:
    return weight is None or not weight.isdigit() or int(weight) <= _ONE_HOP


def _tables(lines: Iterable[str], source: str) -> dict[str, _Table]:
    """Return the cells of each table by row and column."""
    found: dict[str, tuple[list[str], dict[str, list[str]]]] = {}
    title = None
    for line in lines:
        words = line.split()
        if heading := _TITLE.fullmatch(line):
            title = heading[1]
        elif title is not None and words and all(map(_GPU.fullmatch, words)):
            found[title] = (words, {})
        elif title in found and words and _GPU.fullmatch(words[0]):
            found[title][1][words[0]] = words[1:]
    return {title: _cells(title, *table, source) for title, table in found.items()}


def _cells(title: str, gpus: list[str], rows: Mapping[str, list[str]], source: str) -> _Table:
    """Return the cells of a table, after checking that it is whole and symmetric."""
    where = f"the table {title} between two GPUs in {source}"
    if sorted(rows) != sorted(gpus) or any(len(row) != len(gpus) for row in rows.values()):
        raise InputError(f"{where} is not square; it may be cut short", _GIVE)
    cells = {(one, other): rows[one][n] for one in rows for n, other in enumerate(gpus)}
    for (one, other), cell in cells.items():
        if (cell in _SELF) != (one == other) or cells[other, one] != cell:
            raise InputError(
                f"{where} has {cell} for {one} and {other}, which contradicts it", _GIVE
            )
    return cells
