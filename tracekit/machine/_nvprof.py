"""Read the machine's topology from an nvprof database: tables NVLINK, PCIE and DEVICE."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.machine._graph import Link, Machine
from tracekit.machine._pcie import Wire, pcie_bandwidth, pcie_links, socket_links

SQLITE_MAGIC = b"SQLite format 3\x00"

_SWITCH = "NVSwitch0"
_TABLE = "CUPTI_ACTIVITY_KIND_"
_DEVICE = ("id", "uuid", "name")
_NVLINK = (
    "typeDev0", "typeDev1", "idDev0", "idDev1", "physicalNvLinkCount", "bandwidth",
    "nvswitchConnected",
)  # fmt: skip
_PCIE = ("type", "id", "domain", "linkRate", "linkWidth", "upstreamBus", "attr")
_GPU, _NPU = 1, 2  # NVLINK.typeDev0 and typeDev1
_PCIE_GPU, _PCIE_BRIDGE = 0, 1  # PCIE.type
_UUID_BYTES = 16
_MAX_ROWS = 4096
_ROOTS_OF_TWO_SOCKETS = 2

_Row = Mapping[str, object]


def read_nvprof(path: Path) -> Machine:
    """Return the machine on which an nvprof database was recorded.

    NVLINK has a row for each two devices that NVLinks join. Its bandwidth, in kB/s, is the sum of
    both directions: on V100, with 25 GB/s per direction, it is 50,000,000 for one NVLink.

    PCIE has a row for each GPU and each bridge, with the bus it is plugged into (``upstreamBus``);
    the first two bytes of a bridge's ``attr`` are the bus below it. A bus that is below no bridge
    belongs to a host, so there are as many hosts as buses of this kind.

    Raises
    ------
    MissingDataError
        If the file is no database of nvprof, or contains no topology.
    DamagedTraceError
        If SQLite cannot read the file, or its tables contradict each other.
    """
    try:
        with closing(_connect(path)) as connection:
            tables = {
                name: _rows(connection, _TABLE + name, columns)
                for name, columns in (("DEVICE", _DEVICE), ("NVLINK", _NVLINK), ("PCIE", _PCIE))
            }
            strings = _strings(connection, [row["name"] for row in tables["DEVICE"]])
    except sqlite3.Error as error:
        raise DamagedTraceError(f"{path} cannot be read ({error})", "copy it again") from error
    if not tables["DEVICE"] or not (tables["NVLINK"] or tables["PCIE"]):
        raise MissingDataError(
            f"{path} is a database without a topology",
            "only nvprof records one; give the output of `nvidia-smi topo -m`",
        )
    try:
        return _machine(path.name, tables, strings)
    except ValueError as error:
        raise DamagedTraceError(f"the topology in {path} is damaged", str(error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    connection.text_factory = lambda value: value.decode(errors="replace")
    return connection


def _rows(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> list[_Row]:
    """Return the rows of a table, with None for columns that this version of the table lacks."""
    # A view could be anything, such as one without end.
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
    if connection.execute(query, (table,)).fetchone() is None:
        return []
    present = {row[1].lower() for row in connection.execute(f"PRAGMA table_xinfo({table})")}
    picked = ", ".join(name if name.lower() in present else f"NULL AS {name}" for name in columns)
    found = connection.execute(f"SELECT {picked} FROM {table} LIMIT {_MAX_ROWS}")  # noqa: S608
    return [dict(zip(columns, row, strict=True)) for row in found]


def _strings(connection: sqlite3.Connection, ids: Iterable[object]) -> dict[object, str]:
    query = (
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'StringTable' COLLATE NOCASE"
    )
    if connection.execute(query).fetchone() is None:
        return {}
    query = "SELECT value FROM StringTable WHERE _id_ = ?"
    found = {id_: connection.execute(query, (id_,)).fetchone() for id_ in set(ids)}
    return {id_: str(row[0]) for id_, row in found.items() if row is not None}


@dataclass(frozen=True)
class _Bond:
    ends: tuple[str, str]
    bricks: int
    bandwidth: int | None
    switched: bool


def _machine(
    name: str, tables: Mapping[str, Sequence[_Row]], strings: Mapping[object, str]
) -> Machine:
    warnings: list[str] = []
    nodes, by_uuid = _gpus(tables["DEVICE"], strings)
    bonds = _bonds(tables["NVLINK"], by_uuid, warnings)
    nvlinks, to_hosts = _nvlinks(bonds)
    hosts = sorted({link.ends[1] for link in to_hosts})
    on_npu = {link.ends[0] for link in to_hosts}
    wires, roots = _wires(tables["PCIE"], nodes, on_npu, first=len(hosts), warnings=warnings)
    links, switches = pcie_links(wires)
    hosts += roots
    nodes |= {host: {"type": "host"} for host in hosts}
    nodes |= {switch: {"type": "pcie"} for switch in switches.values()}
    if any(_SWITCH in link.ends for link in nvlinks):
        nodes[_SWITCH] = {"type": "nvswitch"}
    every = [*nvlinks, *to_hosts, *links, *socket_links(hosts)]
    return Machine.of(name, nodes, every, "trace", warnings)


def _gpus(
    rows: Sequence[_Row], strings: Mapping[object, str]
) -> tuple[dict[str, dict[str, object]], dict[bytes, str]]:
    nodes: dict[str, dict[str, object]] = {}
    by_uuid: dict[bytes, str] = {}
    for row in sorted(rows, key=lambda row: _integer(row["id"])):
        node = f"GPU{_integer(row['id'])}"
        nodes[node] = {"type": "gpu"}
        if row["name"] in strings:
            nodes[node]["product"] = strings[row["name"]]
        uuid = row["uuid"]
        if isinstance(uuid, bytes) and len(uuid) == _UUID_BYTES:
            nodes[node]["uuid"] = str(UUID(bytes=uuid))
            by_uuid[uuid] = node
    return nodes, by_uuid


def _bonds(
    rows: Sequence[_Row], by_uuid: Mapping[bytes, str], warnings: list[str]
) -> dict[frozenset[str], _Bond]:
    bonds: dict[frozenset[str], _Bond] = {}
    npus = _npus(rows)
    lost = 0
    for row in rows:
        ends = [_end(row, side, by_uuid, npus) for side in "01"]
        bricks, width = _integer(row["physicalNvLinkCount"]), row["bandwidth"]
        if None in ends or ends[0] == ends[1]:
            lost += 1
            continue
        if bricks < 1:
            raise ValueError(f"NVLINK has a row of {bricks} NVLinks")
        pair = sorted(map(str, ends), key=lambda end: (end[:3] != "GPU", len(end), end))
        both = _integer(width) * 1000 if width else None
        bond = _Bond(
            (pair[0], pair[1]),
            bricks,
            both // 2 if both and both > 0 else None,
            bool(row["nvswitchConnected"]),
        )
        if bonds.setdefault(frozenset(pair), bond) != bond:
            raise ValueError(f"NVLINK has different rows for {'-'.join(pair)}")
    if lost:
        warnings.append(f"{lost} of the NVLink rows are of devices that the trace does not name")
    return bonds


def _npus(rows: Sequence[_Row]) -> dict[object, str]:
    """Return the id of each CPU with NVLinks (POWER9) in the database -> its node's name."""
    ids = {
        row[f"idDev{side}"]
        for row in rows
        for side in "01"
        if row[f"typeDev{side}"] == _NPU and isinstance(row[f"idDev{side}"], bytes)
    }
    return {id_: f"CPU{number}" for number, id_ in enumerate(sorted(ids, key=repr))}


def _end(
    row: _Row, side: str, by_uuid: Mapping[bytes, str], npus: Mapping[object, str]
) -> str | None:
    kind, id_ = row[f"typeDev{side}"], row[f"idDev{side}"]
    if not isinstance(id_, bytes):
        return None
    return by_uuid.get(id_) if kind == _GPU else npus.get(id_)


def _nvlinks(bonds: Mapping[frozenset[str], _Bond]) -> tuple[list[Link], list[Link]]:
    """Return the NVLinks between GPUs or to a switch, and the NVLinks to CPUs.

    For GPUs behind an NVSwitch, the rows of all pairs list the same NVLinks, so each GPU gets one
    link to the switch.
    """
    nvlinks, to_hosts = [], []
    to_switch: dict[str, _Bond] = {}
    for bond in bonds.values():
        if bond.ends[1].startswith("CPU"):
            to_hosts.append(Link(bond.ends, "nvlink", bond.bricks, bond.bandwidth))
        elif not bond.switched:
            nvlinks.append(Link(bond.ends, "nvlink", bond.bricks, bond.bandwidth))
        else:
            for gpu in bond.ends:
                widest = to_switch.setdefault(gpu, bond)
                to_switch[gpu] = max(widest, bond, key=lambda each: each.bricks)
    nvlinks += [
        Link((gpu, _SWITCH), "nvlink", bond.bricks, bond.bandwidth)
        for gpu, bond in to_switch.items()
    ]
    return nvlinks, to_hosts


def _wires(
    rows: Sequence[_Row],
    nodes: dict[str, dict[str, object]],
    skipped: set[str],
    *,
    first: int,
    warnings: list[str],
) -> tuple[dict[str, Wire], list[str]]:
    """Return the PCIe slot of each GPU and bridge, and node names of hosts, from PCIE's rows.

    `first`: number of the first host. Devices in `skipped` are ignored.
    """
    bridges = {_bus_below(row) for row in rows if row["type"] == _PCIE_BRIDGE}
    plugged: dict[str, tuple[tuple[int, int], int | None]] = {}
    for row in rows:
        bus = _integer(row["domain"]), _integer(row["upstreamBus"])
        width = pcie_bandwidth(_integer(row["linkRate"]) / 1000, _integer(row["linkWidth"]))
        if row["type"] == _PCIE_BRIDGE:
            plugged[_bridge(_bus_below(row))] = bus, width
        elif row["type"] == _PCIE_GPU:
            node = f"GPU{_little(row['id'], 4)}"
            if node in nodes and node not in skipped:
                plugged[node] = bus, width
                if bus in bridges:  # else its place on the bus is unknown
                    nodes[node]["pci_bus"] = f"{bus[0]:04x}:{bus[1]:02x}:00.0"
    roots = sorted({bus for bus, _ in plugged.values()} - bridges)
    if len(roots) > _ROOTS_OF_TWO_SOCKETS:
        warnings.append(
            f"each of {len(roots)} PCIe root buses is taken for a separate CPU:"
            " nvprof does not record which are on one socket"
        )
    hosts = {bus: f"CPU{number}" for number, bus in enumerate(roots, first)}
    wires = {
        name: Wire(hosts.get(bus, _bridge(bus)), width) for name, (bus, width) in plugged.items()
    }
    return wires, list(hosts.values())


def _bridge(bus: tuple[int, int]) -> str:
    return f"bus {bus[0]:04x}:{bus[1]:02x}"


def _bus_below(row: _Row) -> tuple[int, int]:
    return _integer(row["domain"]), _little(row["attr"], 2)


def _integer(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.40} is not a number")
    return value


def _little(value: object, count: int) -> int:
    if not isinstance(value, bytes) or len(value) < count:
        raise ValueError(f"{value!r:.40} does not have {count} bytes")
    return int.from_bytes(value[:count], "little")
