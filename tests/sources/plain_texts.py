"""Readers in plain Python of texts about machines: `nvidia-smi topo -m`, and logs of NCCL.

They share no line with tracekit, take only what is written exactly as it is printed, and leave open
what contradicts itself. What they do take must be what tracekit says.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plain_readers import UnreadableError

Pair = tuple[str, str]


class ContradictionError(Exception):
    """The text contradicts itself, so that nothing may be read of it."""


def text_of_file(path: Path) -> str:
    """Return a text as UTF-8."""
    return path.read_bytes().decode("utf-8-sig", "replace")


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


# --- nvidia-smi topo -m

BESIDE = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
RELATIONS = ("PIX", "PSB", "PXB", "PHB", "NODE", "SYS", "SOC")


@dataclass
class Joined:
    """What a matrix says: NVLinks and relations by pair, and what stands beside the rows."""

    nvlinks: dict[Pair, int] = field(default_factory=dict)
    relations: dict[Pair, str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)


def plain_matrix(path: Path) -> Joined:
    """Read one matrix, whose rows end with CPU Affinity, NUMA Affinity and GPU NUMA ID."""
    text = _plain(text_of_file(path))
    lines = text.splitlines()
    devices, rows = _rows_of_matrix(lines)
    nodes = _nodes(devices)
    is_named = BESIDE in text and text.count("CPU") == 1
    joined = Joined()
    for device, words in rows.items():
        cells = dict(zip(devices, words, strict=False))
        for other, cell in cells.items():
            if (cell == "X") != (device == other):
                raise ContradictionError(f"{device}-{other} is {cell}")
            if device != other:
                _join(joined, (nodes[device], nodes[other]), cell)
        rest = words[len(devices) :]
        if is_named and len(rest) == 3 and re.fullmatch("[0-9]{1,4}", rest[1], re.ASCII):
            joined.numa[nodes[device]] = int(rest[1])
            if re.fullmatch("[0-9]{1,6}([,-][0-9,-]*)?", rest[0]):
                joined.cpus[nodes[device]] = rest[0]
    return joined


def _rows_of_matrix(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the devices of the only header, and the words of each row behind its name."""
    devices: list[str] = []
    rows: dict[str, list[str]] = {}
    for words in filter(None, (line.split() for line in lines)):
        is_gpu = re.fullmatch(r"GPU[0-9]{1,4}", words[0], re.ASCII)
        if is_gpu and not any(map(_is_cell, words[1:])):
            if devices:
                raise UnreadableError("two headers")
            devices = re.split(" (?:CPU|NUMA)", " ".join(words))[0].split()
        elif (
            len(words) > 1
            and words[0] in devices
            and all(map(_is_cell, words[1 : len(devices) + 1]))
        ):
            if rows.setdefault(words[0], words[1:]) != words[1:]:
                raise ContradictionError(f"two rows {words[0]}")
            if len(words) <= len(devices):
                raise ContradictionError(f"row {words[0]} is cut short")
    if not devices:
        raise UnreadableError("no header")
    lacking = [each for each in devices if each.startswith("GPU") and each not in rows]
    if lacking:
        raise ContradictionError(f"no rows {lacking}")
    return devices, rows


def _is_cell(word: str) -> bool:
    return word == "X" or word in RELATIONS or bool(re.fullmatch("NV[1-9][0-9]{0,2}", word))


def _nodes(devices: list[str]) -> dict[str, str]:
    """Return NIC0, NIC1, ... for devices that are no GPUs."""
    nics = [each for each in devices if not re.fullmatch(r"GPU[0-9]{1,4}", each, re.ASCII)]
    if all(re.fullmatch("NIC[0-9]{1,4}", nic, re.ASCII) for nic in nics):
        return {device: device for device in devices}
    return {each: f"NIC{nics.index(each)}" if each in nics else each for each in devices}


def _join(joined: Joined, pair: Pair, cell: str) -> None:
    if cell.startswith("NV") and any(each.startswith("NIC") for each in pair):
        raise ContradictionError(f"{pair} is {cell}, but NICs have no NVLinks")
    table: dict[Pair, Any] = joined.nvlinks if cell.startswith("NV") else joined.relations
    value = int(cell[2:]) if cell.startswith("NV") else cell
    for each in (pair, pair[::-1]):
        other = joined.relations if table is joined.nvlinks else joined.nvlinks
        if each in other or table.setdefault(each, value) != value:
            raise ContradictionError(f"{pair} is {cell}, and the other way it is not")


def assert_same_matrix(read: Any, plain: Joined) -> None:
    """Hold the matrix and the machine that were read against the plain reader's."""
    matrix, machine = read
    assert dict(matrix.nvlinks) == plain.nvlinks
    assert dict(matrix.relations) == plain.relations
    assert plain.numa.items() <= dict(matrix.numa).items()
    assert plain.cpus.items() <= dict(matrix.cpus).items()
    if not any("NVSwitch" in node for link in machine.links for node in link.ends):
        bricks = {
            pair: machine.bricks(int(pair[0][3:]), int(pair[1][3:])) for pair in plain.nvlinks
        }
        assert bricks == plain.nvlinks


# --- logs of NCCL

NAMES = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast", "Reduce": "reduce", "Send": "send_recv", "Recv": "send_recv",
}  # fmt: skip
WIDTHS = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of NCCL's types of data, by number."""
INIT = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) nranks (\d+) cudaDev (\d+) nvmlDev (\d+) busId ([0-9a-f]{4,8})"
    r" commId (0x[0-9a-f]+) - Init (START|COMPLETE)",
    re.ASCII,
)
RING = re.compile(r"Channel (\d{2})/(\d{2}) : +(\d+(?: +\d+)*)", re.ASCII)
LINK = re.compile(
    r"Channel (\d{2})/\d{1,4} : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? +via (\S.*)",
    re.ASCII,
)
NODE = re.compile(r"\[(\d{1,4})\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)", re.ASCII)
CALL = re.compile(
    r"(\w+): opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count (\d+) datatype (\d+) op \d+"
    r" root (\d+) comm (0x[0-9a-f]+) \[nranks=(\d+)\].*",
    re.ASCII,
)


@dataclass(frozen=True)
class Written:
    """Who wrote a line, and what."""

    host: str
    pid: int
    device: int
    message: str

    @property
    def owner(self) -> tuple[str, int]:
        return self.host, self.pid


@dataclass
class Told:
    """What a log of one communicator says."""

    ranks: Counter[Any] = field(default_factory=Counter)
    rings: dict[int, Any] = field(default_factory=dict)
    """Ranks in order; None where what is printed is no ring."""
    parents: set[Any] = field(default_factory=set)
    links: dict[Any, str] = field(default_factory=dict)
    calls: Counter[Any] = field(default_factory=Counter)


@dataclass(frozen=True)
class Member:
    """A rank, as its process says."""

    pointer: str
    rank: int
    ranks: int
    device: int
    nvml: int
    bus: str
    id: str


def plain_nccl_log(path: Path) -> Told:
    """Read a log of one communicator, of which each process is one rank."""
    lines = [found for text in path.read_bytes().decode("utf-8", "replace").split("\n")
             if (found := _written(text))]  # fmt: skip
    members = _members(lines)
    told = Told()
    for (host, pid), each in members.items():
        bus = each.bus.zfill(9)
        place = f"{bus[:-5].zfill(4)}:{bus[-5:-3]}:{bus[-3:-1]}.{bus[-1]}"
        told.ranks[host, pid, each.rank, each.ranks, each.device, each.nvml, place] += 1
    _add_rings(told, lines, members)
    _add_parents(told, lines, members)
    _add_links(told, lines, members)
    for line in lines:
        if found := CALL.fullmatch(line.message):
            _add_call(told, line, found, members.get(line.owner))
    return told


def _written(text: str) -> Written | None:
    if "NCCL INFO" in text and len(text) > 900:
        raise UnreadableError("NCCL cuts lines that are longer")
    found = re.search(
        r"([^\s:\]]+):(\d{1,9}):(\d{1,9}) \[(-?\d{1,9})\] NCCL INFO (.*)", _plain(text).rstrip(),
        re.ASCII | re.DOTALL,
    )  # fmt: skip
    return Written(found[1], int(found[2]), int(found[4]), found[5]) if found else None


def _members(lines: list[Written]) -> dict[tuple[str, int], Member]:
    stages: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for line in lines:
        found = INIT.fullmatch(line.message)
        if not found and "- Init " in line.message:
            raise UnreadableError("an Init that is not as NCCL prints it")
        if found:
            *values, stage = found.groups()
            pointer, rank, ranks, device, nvml, bus, name = values
            member = Member(pointer, int(rank), int(ranks), int(device), int(nvml), bus, name)
            stages[line.owner].append((stage, member))
    members = {owner: told[0][1] for owner, told in stages.items()}
    for owner, told in stages.items():
        order = [stage for stage, _ in told]
        if order not in (["START", "COMPLETE"], ["START"], ["COMPLETE"]):
            raise UnreadableError("an Init more than once")
        if any(member != members[owner] for _, member in told):
            raise UnreadableError("an Init that is told in two ways")
    sizes = {(member.id, member.ranks) for member in members.values()}
    ranks = [member.rank for member in members.values()]
    if len(sizes) != 1 or len(set(ranks)) < len(ranks) or not int(sizes.pop()[0], 16):
        raise UnreadableError("not one communicator, each rank of it in one process")
    return members


def _of_rank(line: Written, members: Mapping[Any, Member], own: int, top: int) -> bool:
    """Tell whether a line is of the rank of its process; what is of another one is left open."""
    member = members.get(line.owner)
    if member is None:
        return False
    if (member.rank, member.device) != (own, line.device) or top >= member.ranks:
        raise UnreadableError("a process that tells of another rank")
    return True


def _add_rings(told: Told, lines: list[Written], members: Mapping[Any, Member]) -> None:
    size = next(iter(members.values())).ranks
    printed: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    most = 0
    for line in lines:
        if found := RING.fullmatch(line.message):
            ring = tuple(map(int, found[3].split()))
            if _of_rank(line, members, 0, max(ring)):
                printed[int(found[1])].add(ring)
                most = max(most, int(found[2]))
    for channel, rings in printed.items():
        ring = min(rings)
        if channel >= most or len(rings) > 1 or sorted(ring) != list(range(size)):
            told.rings[channel] = None
        else:
            at = ring.index(0)
            told.rings[channel] = ring[at:] + ring[:at]


def _add_parents(told: Told, lines: list[Written], members: Mapping[Any, Member]) -> None:
    for line in lines:
        if not line.message.startswith("Trees "):
            continue
        rest = line.message.removeprefix("Trees ")
        nodes = [found.groups() for found in NODE.finditer(rest)]
        if " ".join("[{}] {}/{}/{}->{}->{}".format(*node) for node in nodes) != rest:
            raise UnreadableError("a tree that is not as NCCL prints it")
        tops = [max(int(rank), int(parent)) for *_, rank, parent in nodes]
        if _of_rank(line, members, int(nodes[0][4]), max(tops)):
            told.parents |= {(int(c), int(r), int(p)) for c, *_, r, p in nodes}
    counts = Counter((channel, rank) for channel, rank, _ in told.parents)
    odd = {channel for (channel, _), count in counts.items() if count > 1}
    told.parents = {
        (channel, rank, parent if parent >= 0 else None)
        for channel, rank, parent in told.parents
        if channel not in odd
    }


def _add_links(told: Told, lines: list[Written], members: Mapping[Any, Member]) -> None:
    received: dict[Any, str] = {}
    for line in lines:
        if found := LINK.fullmatch(line.message):
            channel, one, other = (int(found[n]) for n in (1, 2, 3))
            receives = found[4] == "receive"
            if _of_rank(line, members, other if receives else one, max(one, other)):
                kept = received if receives else told.links
                kept.setdefault((channel, one, other), found[5])
    told.links = {**received, **told.links}


def _add_call(told: Told, line: Written, found: re.Match[str], member: Member | None) -> None:
    name, count, kind = found[1], int(found[3]), int(found[4])
    if len(found[2]) > 15 or count > 1 << 59 or kind > 9999 or len(found[5]) > 9:
        raise UnreadableError("numbers that no call has")
    width = WIDTHS[kind] if kind < len(WIDTHS) else None
    collective = NAMES.get(name, "unknown")
    root = int(found[5]) if collective in ("broadcast", "reduce", "send_recv") else None
    told.calls[
        line.host, line.pid, int(found[2], 16), collective, count,
        None if width is None else count * width, root, int(found[7]),
    ] += 1  # fmt: skip


def assert_same_log(log: Any, plain: Told) -> None:
    """Hold what tracekit read of a log against the plain reader's."""
    assert Counter(log.ranks.drop("communicator").rows()) == plain.ranks
    rings: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for channel, rank in log.rings.sort("position").select("channel", "rank").rows():
        rings[channel] += (rank,)
    for channel, ring in plain.rings.items():
        assert rings.get(channel) == ring, (channel, rings.get(channel), ring)
    assert set(log.trees.drop("communicator").rows()) == plain.parents
    links = log.connections.select("channel", "from_rank", "to_rank", "transport").rows()
    assert {(channel, one, other): text for channel, one, other, text in links} == plain.links
    columns = ("host", "pid", "op_count", "collective", "count", "bytes", "root", "ranks")
    assert Counter(log.calls.select(columns).rows()) == plain.calls
