"""Read topology files of any kind, recognised by content; `rocm-smi --showtopo` is parsed here."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tracekit.errors import InputError
from tracekit.machine._graph import Link, Machine, number_of
from tracekit.machine._nccl_xml import parse_nccl_xml
from tracekit.machine._nvlink_status import (
    active_bricks,
    machine_of_status,
    parse_status,
    with_status,
)
from tracekit.machine._nvprof import SQLITE_MAGIC, read_nvprof
from tracekit.machine._pcie import known, socket_links
from tracekit.machine._toml import read_machine_toml
from tracekit.machine._topo_matrix import machine_of_matrix, parse_matrix
from tracekit.support.toml import NotToml, parse_toml

MAX_TEXT = 16 << 20
"""Bytes above which a text is not taken for a topology."""

MAX_TOML = 4 << 20
"""Characters above which a text is not taken for a machine as TOML."""

_GIVE = (
    "give the output of `nvidia-smi topo -m`, with that of `nvidia-smi nvlink -s` after it if you"
    " have it, or of `rocm-smi --showtopo`, the XML of NCCL_TOPO_DUMP_FILE, an nvprof database, or"
    " a machine as TOML"
)
_TOML_LINE = re.compile(r"^(\[\[?[\w.\"' -]+\]\]?|[\w-]+ ?= ?[\"'\d\[{]).*$", re.MULTILINE)


def read_topology(path: Path) -> Machine:
    """Return the machine that a file describes, whatever the file's name.

    Parameters
    ----------
    path
        File with output of `nvidia-smi topo -m`, of `nvidia-smi nvlink` with `-s`, `-R` or `-p`
        (also several outputs, one after the other), or of `rocm-smi --showtopo`; with the XML that
        NCCL writes to NCCL_TOPO_DUMP_FILE; a database of nvprof; or a machine as TOML, like the
        presets of tracekit.

    Raises
    ------
    InputError
        If the file is of none of these kinds, is damaged, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
            data = b"" if head == SQLITE_MAGIC else head + file.read(MAX_TEXT + 1 - len(head))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "check the path") from error
    if head == SQLITE_MAGIC:
        return read_nvprof(path)
    return _of_text(_text(data, path), path)


def _text(data: bytes, path: Path) -> str:
    if not data.strip():
        raise InputError(f"{path} is empty", _GIVE)
    if len(data) > MAX_TEXT:
        raise InputError(f"cannot read the topology {path}: it is larger than 16 MiB", _GIVE)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # from PowerShell
    if b"\0" in data and not wide:
        raise InputError(f"cannot read the topology {path}: it is not text", _GIVE)
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _of_text(text: str, path: Path) -> Machine:
    if text.lstrip().startswith("<"):
        return parse_nccl_xml(text.lstrip(), str(path), path.name)
    if _is_toml(text):
        return read_machine_toml(path)
    # Titles of the tables that `rocm-smi --showtopo` prints.
    if any((found := _TITLE.fullmatch(line.strip())) and found[1] for line in text.splitlines()):
        return parse_rocm_topo(text, str(path), path.name)
    matrix = parse_matrix(text, str(path))
    status = parse_status(text, str(path))
    if matrix is not None:
        machine = machine_of_matrix(matrix, path.name, active_bricks(status))
        return with_status(machine, status, str(path)) if status else machine
    if active_bricks(status):
        return machine_of_status(status, path.name)
    if _TOML_LINE.search(text):
        return read_machine_toml(path)  # which says what is wrong with it
    raise InputError(f"{path} has no topology of a known format", _GIVE)


def _is_toml(text: str) -> bool:
    if len(text) > MAX_TOML:
        return False
    try:
        return bool(parse_toml(text))
    except (NotToml, RecursionError):
        return False


# -- rocm-smi --showtopo -----------------------------------------------------------------------


_TITLE = re.compile(r"=+ *(Weight|Hops|Link Type) between two GPUs *=+|=[= ].*=")
_GPU = re.compile(r"GPU\d{1,4}")
_NUMA = re.compile(r"GPU *\[?(\d{1,4})\]?\s*: \(Topology\) Numa Node: (-?\d{1,4})\s*")
_TYPES = "Link Type"
_SELF = ("0", "X")
_ONE_HOP = 15
"""Largest weight that Linux' driver gives a direct link: 13 within a package, 15 between packages
(`kfd_crat.h`). If GPUs of one hive are further apart it is 15 for each hop, though rocm-smi still
prints one hop."""
_WHOLE_OUTPUT = "give the complete output of `rocm-smi --showtopo`"

_Table = dict[tuple[str, str], str]


def parse_rocm_topo(text: str, source: str, name: str) -> Machine:
    """Return the machine that `rocm-smi --showtopo` describes.

    ``XGMI`` with the weight of one hop is a link between two GPUs; the number of links and their
    bandwidth are not printed. A larger weight means that other GPUs, which are not named, forward
    the data, so no route is known. No route is known either if no type is printed. ``PCIE`` leads
    over the CPUs of their NUMA nodes: the tables do not list PCIe switches.

    Parameters
    ----------
    text
        Output of rocm-smi; other text may come before and after it.
    source
        Name of the file in messages.
    name
        Name of the machine.

    Raises
    ------
    InputError
        If the table of link types is missing, or tables are cut short or contradict themselves.
    """
    lines = [line.strip() for line in text.splitlines()]
    tables = _tables(lines, source)
    if _TYPES not in tables:
        raise InputError(f"{source} has no table of link types between GPUs", _WHOLE_OUTPUT)
    types, weights = tables[_TYPES], tables.get("Weight", {})
    gpus = sorted({one for one, _ in types}, key=number_of)
    nodes = {f"GPU{found[1]}": int(found[2]) for line in lines if (found := _NUMA.fullmatch(line))}
    numa = {gpu: node for gpu, node in nodes.items() if node >= 0 and gpu in gpus}
    warnings = (
        [] if len(numa) == len(gpus) else ["it lacks NUMA nodes of some GPUs: CPU0 is assumed"]
    )
    pairs = [(one, other) for one, other in types if number_of(one) < number_of(other)]
    direct = [pair for pair in pairs if types[pair] == "XGMI" and _is_direct(weights.get(pair))]
    untold = [pair for pair in pairs if types[pair] not in ("XGMI", "PCIE")]
    passed_on = [pair for pair in pairs if types[pair] == "XGMI" and pair not in direct]
    if passed_on:
        pairs_text = ", ".join("-".join(pair) for pair in passed_on[:4])
        more = ", ..." if len(passed_on) > 4 else ""  # noqa: PLR2004
        warnings.append(
            f"XGMI of several hops joins {pairs_text}{more}: which links that crosses is not known"
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
    cells = {pair: cell for pair, cell in types.items() if pair[0] != pair[1]}
    return replace(machine, given=cells, untold=without)


def _is_direct(weight: str | None) -> bool:
    return weight is None or not weight.isdigit() or int(weight) <= _ONE_HOP


def _tables(lines: Iterable[str], source: str) -> dict[str, _Table]:
    """Parse the tables that rocm-smi prints: title -> cells by row and column."""
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
        raise InputError(f"{where} is not square; it may be cut short", _WHOLE_OUTPUT)
    cells = {(one, other): rows[one][n] for one in rows for n, other in enumerate(gpus)}
    for (one, other), cell in cells.items():
        if (cell in _SELF) != (one == other) or cells[other, one] != cell:
            raise InputError(
                f"{where} has {cell} for {one} and {other}, which contradicts it", _WHOLE_OUTPUT
            )
    return cells
