"""Find the communicator that each line of an NCCL log is about.

A member is one rank of one communicator in one process. The log names it by a pointer, valid from
its Init START line (before NCCL 2.17: COMPLETE) to the next Init with the same pointer. Members are
put into communicators as follows.

1. Members that print the same commId belong together. Splits of NCCL 2.18 repeat the commId when
   one communicator is split twice: if a process has a second member of that commId and rank, it
   starts a second communicator.
2. Members without a commId belong together only if they have the same number of ranks, and were
   split off the same communicator with the same colour (or not split at all). Among those,
   connections decide: a rank that connects to rank 3 on the GPU with bus id 0xb000 shares a
   communicator with the member of rank 3 on that GPU (on its own host for connections within a
   host), unless their lines about ranks contradict each other. If several candidates are alike, the
   first goes with the first. What connections leave open is filled in the order of the log: a
   member joins the earliest communicator that lacks its rank and GPU. If it had a choice, there is
   a warning.

A communicator is named by its commId, else ``host:pid:pointer`` of its lowest rank in the log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import networkx as nx
import polars as pl

from tracekit.machine._nccl_lines import Lines

_PROCESS = ("host", "pid")
_THREAD = (*_PROCESS, "tid")
_POINTER = (*_PROCESS, "pointer")
UNNAMED = "unnamed"
"""Name of the communicator of a log that names none."""

Peers = dict[int, dict[int, tuple[str, bool]]]
"""Member -> rank that it connects to -> the GPU of that rank, and whether it is on the same
host."""


class Member(NamedTuple):
    """One rank of one communicator in one process, as its Init line in the NCCL log states it."""

    member: int
    line: int
    host: str
    pid: int
    pointer: str
    rank: int
    ranks: int
    cuda_device: int
    nvml_device: int | None
    bus: str | None
    parent: str | None
    split: tuple[str | None, str | None]
    id: str | None

    @property
    def seat(self) -> Hashable:
        """The member's GPU, in comparable form: host, process id and CUDA device."""
        return self.host, self.pid, self.cuda_device

    @property
    def name(self) -> str:
        """Name ``host:pid:pointer`` for a communicator whose log lines have no commId."""
        return f"{self.host}:{self.pid}:{self.pointer}"

    def is_on(self, device: str) -> bool:
        """Test whether `device`, in brackets in a connection line, is the member's (rank's) GPU.

        `device` is a bus id or a device number, depending on NCCL's version.
        """
        return device in (self.bus, str(self.cuda_device), str(self.nvml_device))


@dataclass
class _Group:
    """Members (ranks) put into one communicator so far; no rank or GPU may occur twice."""

    members: list[Member] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    seats: set[Hashable] = field(default_factory=set)

    def add(self, members: Iterable[Member]) -> None:
        for each in members:
            self.members.append(each)
            self.ranks.add(each.rank)
            self.seats.add(each.seat)

    def has_room(self, members: list[Member]) -> bool:
        ranks, seats = {each.rank for each in members}, {each.seat for each in members}
        return not (ranks & self.ranks or seats & self.seats)

    def hosts(self) -> set[str]:
        return {each.host for each in self.members}


class Communicators:
    """The communicators in an NCCL log, and lookup of the one that a log line is about.

    Parameters
    ----------
    lines
        Lines of the log, by kind.
    """

    def __init__(self, lines: Lines) -> None:
        found = _members(_lower(lines["inits"]))
        self.calls = _pointed(_lower(lines["calls"]), found)
        """Collective calls with the ``member`` that made each; null if its Init is not in the
        log."""
        self._marks = _marks(_pointed(_lower(lines["inits"]), found), self.calls)
        names, warnings = _communicators(found, lines["connections"], self._marks)
        self.members = found.with_columns(communicator=pl.Series(names, dtype=pl.String))
        """``member, line, host, pid, tid, pointer, rank, ranks, cuda_device, nvml_device, bus,
        communicator``, in the order of the log."""
        self.warnings = tuple(dict.fromkeys(warnings))

    def by_pointer(self, table: pl.DataFrame) -> pl.DataFrame:
        """Add ``communicator`` to log lines with its pointer; null if its Init line is missing."""
        found = _pointed(_lower(table), self.members)
        known = self.members.select("member", "communicator")
        return found.join(known, on="member", how="left").drop("member")

    def placed(self, table: pl.DataFrame, *, by_calls: bool = False) -> pl.DataFrame:
        """Add ``communicator`` to log lines that contain no pointer; null if unknown.

        A line belongs to the communicator of the Init or call during which its thread wrote it, if
        that communicator has the ranks that the line mentions. Otherwise it belongs to the only
        communicator of the process that has these ranks, and a member (rank) on the line's GPU;
        null if there are several. A log without any Init has one communicator.

        Parameters
        ----------
        table
            Lines with ``own_rank`` (rank that the line is about, null for no particular rank) and
            ``top_rank`` (highest rank that the line mentions).
        by_calls
            Whether these lines are written only during collective calls, never during an Init.
        """
        members = self.members
        marks = self._marks.filter(pl.lit(not by_calls) | (pl.col("stage") == "CALL"))
        if members.is_empty():
            return table.with_columns(communicator=pl.lit(UNNAMED))
        known = members.select("member", "communicator", "rank", "ranks", "cuda_device", *_PROCESS)
        may_be = pl.col("top_rank").fill_null(0) < pl.col("ranks")
        is_own = (pl.col("own_rank") == pl.col("rank")).fill_null(value=True)
        found = (
            _by_thread(table, marks)
            .join(known.select("member", "communicator", "rank", "ranks"), on="member")
            .filter(may_be, is_own | ~pl.col("called"))
        )
        rest = table.join(found.select("line"), on="line", how="anti")
        only = (
            rest.join(known, on=_PROCESS)
            .filter(is_own, may_be, pl.col("device") == pl.col("cuda_device"))
            .group_by("line")
            .agg(pl.col("communicator").unique())
            .filter(pl.col("communicator").list.len() == 1)
            .with_columns(pl.col("communicator").list.first())
        )
        rest = rest.join(only, on="line", how="left")
        return pl.concat([found.select(rest.columns), rest]).sort("line")


def _members(inits: pl.DataFrame) -> pl.DataFrame:
    """Return a row per member (rank of a communicator): its first Init line, and its thread."""
    before = pl.col("stage").shift(1).over(_POINTER)
    begins = (pl.col("stage") == "START") | (before.fill_null("COMPLETE") == "COMPLETE")
    numbered = inits.with_columns(member=begins.cum_sum().over(_POINTER))
    return (
        numbered.group_by(*_POINTER, "member", maintain_order=True)
        .agg(
            pl.col("line", "tid", "rank", "ranks", "cuda_device").first(),
            pl.col("nvml_device", "bus", "parent", "splits", "color", "id").drop_nulls().first(),
        )
        .drop("member")
        .with_row_index("member")
        .cast({"member": pl.Int64})
    )


def _lower(table: pl.DataFrame) -> pl.DataFrame:
    texts = [name for name in ("pointer", "parent", "bus", "id") if name in table.columns]
    return table.with_columns(pl.col(texts).str.to_lowercase())


def _communicators(
    members: pl.DataFrame, connections: pl.DataFrame, marks: pl.DataFrame
) -> tuple[list[str], list[str]]:
    """Return the name of each member's communicator, and warnings on ambiguous members.

    A member is a rank of a communicator.
    """
    known = [name for name in Member._fields if name in members.columns]
    rows = [
        Member(**{name: row[name] for name in known}, split=(row["splits"], row["color"]))
        for row in members.iter_rows(named=True)
    ]
    names = _named(rows)
    waiting = [each for each in rows if each.member not in names]
    parents = _parents(waiting, rows)
    peers = _peers(members, connections, marks) if waiting else {}
    warnings: list[str] = []
    while waiting:
        later = _ids(waiting)
        ready = [each for each in waiting if parents.get(each.member, -1) not in later]
        kinds: dict[Hashable, list[Member]] = defaultdict(list)
        for each in ready:
            parent = names.get(parents.get(each.member, -1))
            kinds[each.ranks, parent, each.split].append(each)
        for kind in kinds.values():
            groups, had_choice = _grouped(kind, peers)
            names.update(_names(groups, taken=set(names.values())))
            if had_choice:
                warnings.append(
                    f"communicators of {kind[0].ranks} ranks are distinguished by the order of the "
                    "log only, for this version of NCCL prints no commId"
                )
        waiting = [each for each in waiting if each.member not in names]
    return [names[each.member] for each in rows], warnings


def _ids(members: Iterable[Member]) -> set[int]:
    return {each.member for each in members}


def _named(members: list[Member]) -> dict[int, str]:
    """Return member (rank of a communicator) -> commId in its Init line, as ``0x...``.

    Members without a commId, or with 0, are left out. One that repeats commId, rank and GPU of
    another gets a numbered name.
    """
    seen: Counter[Hashable] = Counter()
    names = {}
    for each in members:
        if each.id is None or not each.id.strip("0"):
            continue
        place = (each.id, each.rank, each.seat)
        names[each.member] = _counted(f"0x{each.id}", seen[place])
        seen[place] += 1
    return names


def _counted(name: str, before: int) -> str:
    return f"{name}#{before + 1}" if before else name


def _parents(members: list[Member], every: list[Member]) -> dict[int, int]:
    """Return member -> the member that it was split off from by ncclCommSplit.

    It is the latest member before with the pointer that the Init line calls parent. A member is a
    rank of a communicator.
    """
    latest: dict[Hashable, int] = {}
    parents = {}
    wanted = _ids(members)
    for each in every:
        if each.member in wanted and (each.host, each.pid, each.parent) in latest:
            parents[each.member] = latest[each.host, each.pid, each.parent]
        latest[each.host, each.pid, each.pointer] = each.member
    return parents


def _peers(members: pl.DataFrame, connections: pl.DataFrame, marks: pl.DataFrame) -> Peers:
    """Return for each member (rank of a communicator) the ranks it connects to, and their GPUs."""
    ends = connections.with_columns(receives=pl.col("side").eq_missing("receive"))
    writers, other = (
        {
            name: pl.when("receives").then(f"{a}_{name}").otherwise(f"{b}_{name}")
            for name in ("rank", "device")
        }
        for a, b in (("to", "from"), ("from", "to"))
    )
    written = _by_thread(
        ends.select(
            "line",
            *_THREAD,
            own_rank=writers["rank"],
            peer=other["rank"],
            at=other["device"].str.to_lowercase(),
            near=~pl.col("transport").str.starts_with("NET"),
        ),
        marks,
    ).join(members.select("member", "rank"), on="member")
    known = written.filter(pl.col("own_rank") == pl.col("rank")).drop_nulls("at")
    peers: Peers = defaultdict(dict)
    for member, peer, at, near in (
        known.group_by("member", "peer", maintain_order=True)
        .agg(pl.col("at").first(), pl.col("near").any())
        .iter_rows()
    ):
        peers[member][peer] = (at, near)
    return peers


def _grouped(kind: list[Member], peers: Peers) -> tuple[list[_Group], bool]:
    """Group members (ranks) that state the same size, parent and colour into communicators.

    Returns
    -------
    The groups, and whether some member could have joined more than one group.
    """
    groups: list[_Group] = []
    had_choice = False
    for part in _connected(kind, peers):
        fitting = [each for each in groups if each.has_room(part)]
        hosts = {each.host for each in part}
        near = [each for each in fitting if hosts & each.hosts()]
        had_choice |= len(fitting) > 1
        chosen = next(iter(near or fitting), None)
        if chosen is None:
            chosen = _Group()
            groups.append(chosen)
        chosen.add(part)
    return groups, had_choice


def _connected(kind: list[Member], peers: Peers) -> list[list[Member]]:
    """Group members (ranks) that connections link; no group has a rank or a GPU twice."""
    by_rank: dict[int, list[Member]] = defaultdict(list)
    for each in kind:
        by_rank[each.rank].append(each)
    place = {each.member: number for number, each in enumerate(kind)}
    joined = nx.Graph()
    joined.add_nodes_from(place.values())
    seen: Counter[Hashable] = Counter()
    for each in kind:
        own_peers = peers.get(each.member, {})
        alike = (each.seat, each.rank, tuple(own_peers.items()))
        for rank in own_peers:
            others = [other for other in by_rank[rank] if _agree(each, other, peers)]
            if len({other.seat for other in others}) == 1 and seen[alike] < len(others):
                joined.add_edge(place[others[seen[alike]].member], place[each.member])
        seen[alike] += 1
    parts = ([kind[n] for n in sorted(part)] for part in nx.connected_components(joined))
    return [part for part_with_doubles in parts for part in _without_doubles(part_with_doubles)]


def _without_doubles(part: list[Member]) -> list[list[Member]]:
    """Split a group of members into single ones if it has a rank or a GPU twice."""
    ranks, seats = {each.rank for each in part}, {each.seat for each in part}
    return [part] if len(ranks) == len(part) == len(seats) else [[each] for each in part]


def _agree(one: Member, other: Member, peers: Peers) -> bool:
    """Test whether connection lines allow two members (ranks) to be in one communicator.

    Their GPUs, hosts and common peers must not contradict each other.
    """
    first, second = peers.get(one.member, {}), peers.get(other.member, {})
    for a, b, own_peers in ((one, other, first), (other, one, second)):
        device, near = own_peers.get(b.rank, (None, False))
        if (device is not None and not b.is_on(device)) or (near and a.host != b.host):
            return False
    return all(first[rank][0] == second[rank][0] for rank in first.keys() & second.keys())


def _names(groups: list[_Group], taken: set[str]) -> dict[int, str]:
    names = {}
    for group in groups:
        base = min(group.members, key=lambda each: each.rank).name
        count = 0
        while _counted(base, count) in taken:
            count += 1
        name = _counted(base, count)
        taken.add(name)
        names.update({each.member: name for each in group.members})
    return names


def _pointed(table: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Add ``member``: the rank whose Init line has the pointer in a row; null if there is none."""
    return table.sort("line").join_asof(
        members.select("line", *_POINTER, "member").sort("line"),
        on="line",
        by=list(_POINTER),
        check_sortedness=False,
    )


def _marks(inits: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the log lines that show for which communicator a thread works from then on.

    Columns: ``line, host, pid, tid, stage, marked``. ``stage`` is START or COMPLETE for lines of an
    Init, CALL for lines of a collective call; ``marked`` is the member (rank of a communicator)
    that the line is about.
    """
    columns = ["line", *_THREAD, "stage", pl.col("member").alias("marked")]
    called = calls.with_columns(stage=pl.lit("CALL"))
    return (
        pl.concat([inits.select(columns), called.select(columns)]).drop_nulls("marked").sort("line")
    )


def _by_thread(table: pl.DataFrame, marked: pl.DataFrame) -> pl.DataFrame:
    """Add ``member``: the rank of a communicator for which the thread wrote each line.

    If the next Init line of the thread is a COMPLETE, the line belongs to that Init: before NCCL
    2.17 there is no START, and since then no other line comes between. Otherwise it belongs to the
    nearest line before that tells a rank: a START that was never completed, or a call (then
    ``called`` is true).
    """
    inits = marked.filter(pl.col("stage") != "CALL").rename({"stage": "next", "marked": "ending"})
    keys: dict[str, Any] = {"on": "line", "by": list(_THREAD), "check_sortedness": False}
    return (
        table.sort("line")
        .join_asof(inits, strategy="forward", **keys)
        .join_asof(marked, strategy="backward", **keys)
        .with_columns(
            member=pl.when(pl.col("next") == "COMPLETE")
            .then("ending")
            .when(pl.col("stage").is_in(["START", "CALL"]))
            .then("marked"),
            called=pl.col("next").ne_missing("COMPLETE") & pl.col("stage").eq_missing("CALL"),
        )
        .drop("next", "ending", "marked", "stage")
    )
