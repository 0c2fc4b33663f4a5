"""A training job of tensor, pipeline and data parallelism, written as nsys exports with plain SQL.

It shares no code with tracekit or its other writers, so that what it says of a job is a second
opinion: who took part in which call, which bytes went from which GPU to which, and what time it
truly was when a clock said so.

Ranks run programs on one true time. A collective begins on each rank when that one arrives, and
ends on all, but for some noise, a while after the last one did. Each node has a clock that may be
off, drift and step; a report counts from when its session began, which may be known wrongly.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

BUS = 8
"""So many GPUs a machine lists."""
SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND
STREAMS = {"tensor": 20, "data": 24, "pipeline": 28, "world": 32}
COMPUTE = 7
FOREVER = 1 << 62
_GEMM = "ampere_sgemm_128x64_nn"
_VM = 1 << 48
_NAMES = {
    "all_reduce": ("ncclAllReduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    "broadcast": ("ncclBroadcast", "ncclDevKernel_Broadcast_RING_LL"),
    "send": ("ncclSend", "ncclDevKernel_SendRecv"),
    "recv": ("ncclRecv", "ncclDevKernel_SendRecv"),
}
_TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER NOT NULL, duration INTEGER NOT NULL,
    startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL,
    name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT,
    busLocation TEXT, uuid TEXT, cuDevice INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
    text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT);
"""


@dataclass(frozen=True)
class NodeClock:
    """How a node tells a true time: off by so much, fast by so many parts, later set anew."""

    off: int = 0
    drift: float = 0.0
    step: int = 0
    at: int = 1 << 62

    def reads(self, true: int) -> int:
        """Return what the clock says at a true time."""
        return true + self.off + round(true * self.drift) + (self.step if true >= self.at else 0)


@dataclass(frozen=True)
class Job:
    """A job, how its ranks are spread, and how it is recorded.

    `order` lists the kinds of parallelism whose groups have neighbouring ranks first. `late` is by
    how much a rank's computing varies, `spread` by how much ends of a call do, ns. Calls of `slow`
    ranks take 100 us longer. Hosts launch when the GPU gets there; `ahead`, they launch a step at
    once, and wait for its end.
    """

    tensor: int = 4
    pipeline: int = 2
    data: int = 2
    order: tuple[str, ...] = ("tensor", "pipeline", "data")
    steps: int = 6
    microbatches: int = 4
    layers: int = 2
    seed: int = 1
    late: int = 30_000
    spread: int = 400
    pause: int = 0
    clocks: tuple[NodeClock, ...] = ()
    starts_off: int = 0
    node_reports: bool = False
    payloads: bool = True
    inits: bool = True
    broadcasts: int = 3
    per_node: int = 8
    slow: tuple[int, ...] = ()
    ahead: bool = False

    def node(self, rank: int) -> int:
        """Return the number of a rank's node."""
        return rank // self.per_node

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tensor * self.pipeline * self.data

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.size // self.per_node)

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the groups of ranks of each kind, and that of all."""
        sizes = {"tensor": self.tensor, "pipeline": self.pipeline, "data": self.data}
        strides, stride = {}, 1
        for kind in self.order:
            strides[kind] = stride
            stride *= sizes[kind]
        found: dict[str, list[tuple[int, ...]]] = {"world": [tuple(range(self.size))]}
        for kind, width in sizes.items():
            firsts = [r for r in range(self.size) if r // strides[kind] % width == 0]
            found[kind] = [tuple(r + n * strides[kind] for n in range(width)) for r in firsts]
        return found


@dataclass(frozen=True)
class Call:
    """A collective or message: what, of which kind of group, who (sender first), bytes.

    `root` is a place in the group, `dtype` PyTorch's name of the elements' type.
    """

    what: str
    kind: str
    members: tuple[int, ...]
    size: int
    root: int = field(default=0, kw_only=True)
    dtype: str = field(default="Float", kw_only=True)


@dataclass
class Ran:
    """What a job did: calls in order; and kernels of ranks: true launch, start, end, what, call.

    `waits`: launches, what and calls of ranks that wait for ever in the first. `until`: true times
    at which reports of ranks end; what runs then is in none. Until then a thread polls every 100 ms
    if it `polls`.
    """

    job: Job
    calls: list[Call] = field(default_factory=list)
    kernels: dict[int, list[tuple[int, int, int, int, str, Call | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ranges: dict[int, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[int, list[tuple[int, str, Call]]] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    polls: bool = True
    syncs: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    events: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def end(self) -> int:
        """When the last kernel ends."""
        return max(rows[-1][2] for rows in self.kernels.values())


Change = Callable[[int, Iterator[object]], Iterator[object]]


def run(job: Job, change: Change | None = None) -> Ran:
    """Run the programs of all ranks; each waits in a call until all of its members are there.

    `change` returns another program for a rank, given its own; then ranks may wait for ever.
    """
    chance, ran = random.Random(job.seed), Ran(job)
    now = [SECOND + chance.randrange(200_000) for _ in range(job.size)]
    programs = [_program(job, rank, job.groups()) for rank in range(job.size)]
    if change:
        programs = [change(rank, program) for rank, program in enumerate(programs)]
    # Some ranks end a call a little later than others, always.
    lags = [chance.randrange(job.spread + 1) for _ in range(job.size)]
    waiting: dict[Call, list[int]] = defaultdict(list)
    opened: dict[int, list[tuple[int, str]]] = defaultdict(list)
    ready = list(range(job.size))
    while ready:
        rank = ready.pop()
        for act in programs[rank]:
            if isinstance(act, Call):
                waiting[act].append(rank)
                if len(waiting[act]) == len(act.members):
                    del waiting[act]
                    _meet(ran, act, now, lags, chance)
                    ready.extend(act.members)
                break
            if isinstance(act, str):
                if act:
                    opened[rank].append((now[rank], act))
                else:
                    began, name = opened[rank].pop()
                    ran.ranges[rank].append((began - 9_000, now[rank] - 9_000, name))
                continue
            now[rank] = _compute(ran, rank, act, now[rank], chance)
    assert change or not waiting
    _leave(ran, waiting, opened, now, programs)
    for rank in ran.kernels if job.ahead else ():
        _launch_ahead(ran, rank)
    return ran


def _launch_ahead(ran: Ran, rank: int) -> None:
    """Launch each step's kernels every 8 us, then wait for the last; ranges are the host's.

    Streams wait for each other by events, as a kernel begins after the one before on any stream.
    """
    times: dict[int, int] = {}
    for start, end, name in ran.ranges[rank]:
        if name.startswith("step"):
            own = [row for row in ran.kernels[rank] if start <= row[1] - 9_000 < end]
            times |= {row[1]: own[0][0] + 8_000 * n for n, row in enumerate(own)}
            ran.syncs[rank].append((times[own[-1][1]] + 4_000, own[-1][2] + 4_000))
            ran.events[rank] += [
                times[row[1]] - 4_500 for before, row in pairwise(own) if before[3] != row[3]
            ]
    spans = []
    for start, end, name in ran.ranges[rank]:
        own_times = [at for begun, at in times.items() if start <= begun - 9_000 < end]
        until = max(own_times) + 3_500
        if name.startswith("step"):
            until = next(to for at, to in ran.syncs[rank] if at > until) + 500
        spans.append((min(own_times) - (1_500 if name.startswith("step") else 1_200), until, name))
    ran.ranges[rank] = spans
    ran.kernels[rank] = [(times.get(row[1], row[0]), *row[1:]) for row in ran.kernels[rank]]


def _compute(ran: Ran, rank: int, act: object, now: int, chance: random.Random) -> int:
    """Compute for so long and a while more, or let the host wait; return when that ends."""
    if isinstance(act, float):
        return now + round(act)
    assert isinstance(act, int)
    length = act + chance.randrange(ran.job.late)
    if chance.random() < 0.1:
        length += chance.randrange(10 * ran.job.late)
    ran.kernels[rank].append((now - 8_000, now, now + length, COMPUTE, "gemm", None))
    return now + length + 1_000


def _leave(
    ran: Ran,
    waiting: dict[Call, list[int]],
    opened: dict[int, list[tuple[int, str]]],
    now: list[int],
    programs: list[Iterator[object]],
) -> None:
    """Note who waits for ever, what it launches behind, and which ranges nobody ends."""
    for call, ranks in waiting.items():
        for rank in ranks:
            is_late = call.what == "send" and rank != call.members[0]
            ran.waits[rank] = [(now[rank] - 8_000, "recv" if is_late else call.what, call)]
            behind = next(programs[rank], None)
            if isinstance(behind, Call) and behind.what in ("all_reduce", "broadcast"):
                ran.waits[rank].append((now[rank] + 2_000, behind.what, behind))
    for rank, some in opened.items():
        ran.ranges[rank] += [(began - 9_000, FOREVER + 1, name) for began, name in some]


def _meet(ran: Ran, call: Call, now: list[int], lags: list[int], chance: random.Random) -> None:
    """Let the members of a call, all of which are there, take part in it."""
    ran.calls.append(call)
    spread = ran.job.spread
    done = max(now[rank] for rank in call.members) + 12_000 + call.size // 100
    done += 100_000 if call.members == ran.job.slow else 0
    for rank in call.members:
        first = min(call.members) if call.what != "send" else call.members[0]
        is_root = call.what == "broadcast" and rank == first
        # The root of a broadcast is through once it has sent its own.
        end = now[rank] + 9_000 if is_root else done + lags[rank] + chance.randrange(spread + 1)
        stream = STREAMS[call.kind]
        what = "recv" if call.what == "send" and rank != first else call.what
        ran.kernels[rank].append((now[rank] - 8_000, now[rank], end, stream, what, call))
        now[rank] = end + 1_500


def _program(job: Job, rank: int, groups: dict[str, list[tuple[int, ...]]]) -> Iterator[object]:
    """Yield what a rank does: computing (ns), calls, and names of ranges; an empty one ends."""
    own = {kind: next(g for g in some if rank in g) for kind, some in groups.items()}
    numbers = itertools.count()
    for number in range(job.broadcasts):
        yield 20_000
        yield _Numbered("broadcast", "world", own["world"], 1 << 12, 10**6 + number)
    for step in range(job.steps):
        yield f"step {step}"
        yield "forward"
        yield from _batches(job, rank, own, numbers, range(step * 1000, step * 1000 + 400), 1)
        yield ""
        yield "backward"
        yield from _batches(
            job, rank, own, numbers, range(step * 1000 + 500, step * 1000 + 900), -1
        )
        yield ""
        yield "optimizer"
        for _ in range(2 if job.data > 1 else 0):
            yield _Numbered("all_reduce", "data", own["data"], 1 << 20, next(numbers))
        yield 15_000
        yield _Numbered("all_reduce", "world", own["world"], 1 << 10, next(numbers))
        yield 30_000 + job.pause
        yield ""
        if job.ahead:
            yield 20_000.0
        yield ""


def _batches(
    job: Job,
    rank: int,
    own: dict[str, tuple[int, ...]],
    numbers: Iterator[int],
    messages: range,
    onward: int,
) -> Iterator[object]:
    """Yield the passes of a step's microbatches, which come from one stage and go on to another."""
    stages = own["pipeline"]
    here = stages.index(rank)
    before, after = here - onward, here + onward
    for _, message in zip(range(job.microbatches), messages, strict=False):
        if 0 <= before < job.pipeline:
            yield _Numbered("send", "pipeline", (stages[before], rank), 1 << 15, message)
        for _ in range(job.layers):
            yield 40_000
            if job.tensor > 1:
                yield _Numbered("all_reduce", "tensor", own["tensor"], 1 << 16, next(numbers))
        if 0 <= after < job.pipeline:
            yield _Numbered("send", "pipeline", (rank, stages[after]), 1 << 15, message)


@dataclass(frozen=True)
class _Numbered(Call):
    """A call that is not the same as others alike."""

    number: int = 0


# -- what it moved ---------------------------------------------------------------------------------


def moved(ran: Ran, rings: list[list[int]] | None = None) -> Counter[tuple[int, int, str]]:
    """Return the bytes that went from one rank to another in calls of a kind of group.

    Collectives go around a ring in order of ranks, half of them each way, from node to node by as
    many rings as it has ranks on one, each of which begins at another rank of every node; or along
    `rings`, the orders of a communicator of four that a log gives, an equal part on each.
    """
    total: Counter[tuple[int, int, str]] = Counter()
    for call in ran.calls:
        if call.what == "send":
            total[call.members[0], call.members[1], call.kind] += call.size
            continue
        count = len(call.members)
        orders = _logged(count, rings) if rings else _turned(ran.job, call.members)
        for order in orders:
            for one, other in zip(order, order[1:] + order[:1], strict=True):
                if call.what == "broadcast":
                    part = Fraction(0 if other == 0 else 1)
                else:
                    part = Fraction(2 * (count - 1), count)
                share = part * call.size / len(orders)
                assert share.denominator == 1
                total[call.members[one], call.members[other], call.kind] += int(share)
    return total


def moved_by_nics(
    ran: Ran, rings: list[list[int]] | None = None
) -> Counter[tuple[str, str | None, str]]:
    """Return the bytes by node, NIC and direction.

    NICs are those of the connections that `write_log` tells; None where there is no log.
    """
    total: Counter[tuple[str, str | None, str]] = Counter()
    for _, node, nic, direction, size in _over_nics(ran, rings):
        total[node, nic, direction] += size
    return total


def _over_nics(
    ran: Ran, rings: list[list[int]] | None
) -> Iterator[tuple[Call, str, str | None, str, int]]:
    """Yield call, node, NIC, direction and bytes of all that leaves a node or comes to one."""
    for call in ran.calls:
        count = len(call.members)
        orders = _logged(count, rings) if rings else _turned(ran.job, call.members)
        for channel, order in enumerate(orders):
            for one, other in zip(order, order[1:] + order[:1], strict=True):
                src, dst = call.members[one], call.members[other]
                if ran.job.node(src) == ran.job.node(dst):
                    continue
                part = Fraction(2 * (count - 1), count)
                if call.what == "broadcast":
                    part = Fraction(0 if other == 0 else 1)
                size = part * call.size / len(orders)
                assert size.denominator == 1
                for rank, direction in ((src, "out"), (dst, "in")):
                    nic = nic_name(nic_of(rank, channel, direction)) if rings else None
                    yield call, f"node{ran.job.node(rank)}", nic, direction, int(size)


def nic_name(number: int) -> str:
    """Return what a node's system calls the NIC to which NCCL gives a number."""
    return f"mlx5_{9 - 2 * number}"


def nic_of(rank: int, channel: int, direction: str) -> int:
    """Return which of its node's four NICs a rank uses.

    A channel sends by another one than it receives by.
    """
    return (rank + channel + (direction == "in")) % 4


def _connection(
    job: Job, head: str, channel: int, members: tuple[int, ...], one: int, other: int, side: str
) -> Iterator[str]:
    """Yield the line that a rank logs of one end of a connection between nodes."""
    src, dst = members[one], members[other]
    if job.node(src) != job.node(dst):
        end, direction = (src, "out") if side == "send" else (dst, "in")
        nic = nic_of(end, channel, direction)
        yield (
            f"{head} Channel {channel:02d}/0 : {one}[{src % job.per_node}] -> "
            f"{other}[{dst % job.per_node}] [{side}] via NET/IB/{nic}/GDRDMA"
        )


def _logged(count: int, rings: list[list[int]]) -> list[list[int]]:
    """Return the rings of a communicator of so many ranks in the log."""
    return rings if count == 4 else [[*range(count)], [*range(count)][::-1]]


def _turned(job: Job, members: tuple[int, ...]) -> list[list[int]]:
    """Return rings over nodes, both ways, that begin at each rank of a node in turn."""
    nodes = [
        [place for place, rank in enumerate(members) if job.node(rank) == node]
        for node in range(job.nodes)
    ]
    held = [some for some in nodes if some]
    turns = len(held[0]) if len(held) > 1 else 1
    forth = [
        [place for some in held for place in some[turn:] + some[:turn]] for turn in range(turns)
    ]
    return forth + [order[::-1] for order in forth]


# -- how it is recorded ----------------------------------------------------------------------------


@dataclass
class Recorded:
    """The files of a job, in order, and how a report tells a true time."""

    files: list[Path]
    clocks: list[NodeClock]
    began: list[int]

    def reads(self, report: int, true: int) -> int:
        """Return the time of a report at a true time."""
        clock = self.clocks[report]
        return clock.reads(true) - clock.reads(self.began[report])


def record(ran: Ran, folder: Path) -> Recorded:
    """Write a report of each rank, or of each node."""
    job, chance = ran.job, random.Random(ran.job.seed + 99)
    folder.mkdir(exist_ok=True, parents=True)
    ranks = range(job.size)
    parts = (
        [[r for r in ranks if job.node(r) == node] for node in range(job.nodes)]
        if job.node_reports
        else [[r] for r in ranks]
    )
    told = Recorded([], [], [])
    for part in parts:
        node = job.node(part[0])
        clock = job.clocks[node] if job.clocks else NodeClock()
        name = f"node{node}" if job.node_reports else f"rank{part[0]}"
        told.files.append(folder / f"{name}.sqlite")
        told.clocks.append(clock)
        told.began.append(chance.randrange(SECOND // 2))
        off = chance.randrange(-job.starts_off, job.starts_off + 1)
        _write(ran, part, told, off)
    return told


def pid_of(job: Job, rank: int) -> int:
    """Return the process id of a rank, which nodes have in common."""
    return 4000 + rank % job.per_node


def communicator(job: Job, kind: str, members: tuple[int, ...]) -> int:
    """Return the id of a communicator."""
    kinds = ["world", "tensor", "data", "pipeline"]
    return 0x9000_0000 + (kinds.index(kind) << 16) + min(members)


def _write(ran: Ran, ranks: list[int], told: Recorded, off: int) -> None:
    path, report = told.files[-1], len(told.files) - 1
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as file:
        file.executescript("PRAGMA synchronous = OFF;" + _TABLES)
        texts: dict[str, int] = {}
        began = told.clocks[-1].reads(told.began[-1]) + off
        ends = [ran.until.get(rank, ran.end + 1_000_000) for rank in ranks]
        last = told.reads(report, max(ends))
        for name, value in (
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", "2024.2.3"),
            ("EXPORT_SCHEMA_VERSION", "3.11.1"),
        ):
            _add(file, "META_DATA_EXPORT", name, value)
        _add(file, "TARGET_INFO_SESSION_START_TIME", EPOCH + began, None, None)
        _add(file, "ANALYSIS_DETAILS", _VM, last, 0, last)
        node = ran.job.node(ranks[0])
        _add(file, "TARGET_INFO_SYSTEM_ENV", _VM, "Local", "Hostname", 0, f"node{node}")
        for gpu in range(BUS):
            uuid = f"00000000-0000-0000-{node:04x}-{gpu:012x}"
            bus = f"0000:{gpu + 1:02X}:00.0"
            _add(file, "TARGET_INFO_GPU", _VM, gpu, "NVIDIA A100-SXM4-40GB", bus, uuid, gpu)
        for rank in ranks:
            _write_rank(file, ran, rank, lambda true: told.reads(report, true), texts)
        for text, number in texts.items():
            _add(file, "StringIds", number, text)
    file.close()


_NIC_TABLES = """
CREATE TABLE NET_NIC_METRIC (start INTEGER NOT NULL, end INTEGER NOT NULL,
    globalId INTEGER NOT NULL, metricsListId INTEGER NOT NULL, metricsIdx INTEGER NOT NULL,
    value INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_NETWORK_METRICS (metricsListId INTEGER NOT NULL,
    metricsIdx INTEGER NOT NULL, name TEXT NOT NULL, description TEXT NOT NULL,
    unit TEXT NOT NULL);
CREATE TABLE NIC_ID_MAP (nicId INTEGER NOT NULL, globalId INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_NIC_INFO (GUID INTEGER NOT NULL, stateName TEXT NOT NULL,
    nicId INTEGER NOT NULL, name TEXT NOT NULL, deviceId INTEGER NOT NULL,
    vendorId INTEGER NOT NULL, linkLayer INTEGER NOT NULL);
INSERT INTO TARGET_INFO_NETWORK_METRICS VALUES
    (7, 0, 'IB: Bytes received', '', 'bytes'), (7, 1, 'IB: Send waits', '', 'ticks/ms'),
    (7, 2, 'IB: Bytes sent', '', 'bytes');
"""


def count_nics(
    ran: Ran,
    told: Recorded,
    rings: list[list[int]] | None = None,
    *,
    beside: Callable[[str, str, str], Fraction] = lambda *_: Fraction(0),
    lost: Callable[[int], bool] = lambda _: False,
    every: int = 20_000,
) -> None:
    """Add samples of NICs to the reports of nodes: what passes them of calls, and `beside` as much.

    Data pass while all members of a call are in it. Samples whose number is `lost` are left out.
    """
    arrived: dict[int, int] = defaultdict(int)
    ended: dict[int, int] = {}
    for rows in ran.kernels.values():
        for _, start, end, _, _, call in rows:
            if call:
                arrived[id(call)] = max(arrived[id(call)], start)
                ended[id(call)] = min(ended.get(id(call), end), end)
    passed: dict[tuple[str, str, str], list[tuple[int, int, Fraction]]] = defaultdict(list)
    for number, (call, node, nic, direction, size) in enumerate(_over_nics(ran, rings)):
        own = nic or nic_name(number % 4), direction
        more = 1 + beside(node, *own)
        passed[node, *own].append((arrived[id(call)], ended[id(call)], size * more))
    for report, path in enumerate(told.files):
        with sqlite3.connect(path) as file:
            file.executescript("PRAGMA synchronous = OFF;" + _NIC_TABLES)
            for number in range(4):
                name = nic_name(number)
                _add(file, "NIC_ID_MAP", number, 70 + number)
                _add(file, "TARGET_INFO_NIC_INFO", 0, "Local", number, name, 0, 0, 1)
                for direction, metric in (("in", 0), ("out", 2)):
                    parts = passed[f"node{report}", name, direction]
                    for sample, (at, value) in enumerate(_sampled(parts, ran.end, every)):
                        if not lost(sample):
                            times = told.reads(report, at), told.reads(report, at + every)
                            _add(file, "NET_NIC_METRIC", *times, 70 + number, 7, metric, value)
        file.close()


def _sampled(
    parts: list[tuple[int, int, Fraction]], last: int, every: int
) -> Iterator[tuple[int, int]]:
    """Yield the start of each sample, from before the first call on, and the bytes counted in it.

    No byte is lost by rounding: a counter counts on.
    """
    edges = range(SECOND - every, last + 2 * every, every)
    rates: dict[int, Fraction] = defaultdict(Fraction)
    for begin, end, size in parts:
        whole = max(end - begin, 1)
        for sample in range((begin - edges[0]) // every, (begin + whole - edges[0]) // every + 1):
            at = edges[0] + sample * every
            inside = min(begin + whole, at + every) - max(begin, at)
            rates[sample] += size * Fraction(max(inside, 0), whole)
    counted, total = 0, Fraction(0)
    for sample, at in enumerate(edges):
        total += rates[sample]
        yield at, int(total) - counted
        counted = int(total)


def _add(file: sqlite3.Connection, table: str, *row: object) -> None:
    file.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


@dataclass
class _Process:
    """Writes the events of a rank's process, up to a true time."""

    file: sqlite3.Connection
    told: Callable[[int], int]
    texts: dict[str, int]
    process: int
    thread: int
    until: int

    def text(self, value: str) -> int:
        return self.texts.setdefault(value, len(self.texts) + 1)

    def nvtx(self, start: int, end: int, name: str, said: str | None, domain: int = 1) -> None:
        ended = self.told(end) if end <= self.until else None
        if start <= self.until:
            row = (self.told(start), ended, 59, name, self.thread, None, domain, said)
            _add(self.file, "NVTX_EVENTS", *row)

    def call(
        self, start: int, number: int | None, name: str, after: int = 0, length: int = 3_000
    ) -> None:
        said = self.text(f"{name}_v7000")
        times = (self.told(start), self.told(start + length))
        if start + length <= self.until:
            row = (*times, 0, self.thread + after, number, said, 0, None)
            _add(self.file, "CUPTI_ACTIVITY_KIND_RUNTIME", *row)

    def kernel(self, start: int, end: int, gpu: int, stream: int, number: int, name: str) -> None:
        if end <= self.until:
            row = (self.told(start), self.told(end), gpu, 1, stream, number, self.process)
            named = (self.text(name), self.text(name))
            _add(self.file, "CUPTI_ACTIVITY_KIND_KERNEL", *row, *named, 1, 1, 1, 1, 1, 1)


def _write_rank(
    file: sqlite3.Connection,
    ran: Ran,
    rank: int,
    told: Callable[[int], int],
    texts: dict[str, int],
) -> None:
    job, pid, gpu = ran.job, pid_of(ran.job, rank), rank % ran.job.per_node
    process = _VM | pid << 24
    write = _Process(file, told, texts, process, process | pid, ran.until.get(rank, FOREVER))
    _add(file, "PROCESSES", process, pid, "python")
    _add(file, "NVTX_EVENTS", 0, None, 75, "NCCL", process | pid, None, 1, None)
    for number, (kind, some) in enumerate(job.groups().items() if job.inits else ()):
        members = next(g for g in some if rank in g)
        if len(members) > 1:
            said = {
                "NCCL communicator ID": communicator(job, kind, members),
                "No. of ranks": len(members), "Rank": members.index(rank), "CUDA device": gpu,
            }  # fmt: skip
            at = SECOND - 100_000_000 + 1_000_000 * number
            write.nvtx(at, at + 500_000, "ncclCommInitRank", _payload(job, said))
    for start, end, name in ran.ranges[rank]:
        write.nvtx(start, end, name, None, 0)
    for number, (launch, start, end, stream, what, call) in enumerate(ran.kernels[rank], 1):
        write.kernel(start, end, gpu, stream, number, _NAMES[what][1] if call else _GEMM)
        write.call(launch, number, "cudaLaunchKernel")
        if call:
            said = _payload(job, _said(job, rank, what, call))
            write.nvtx(launch - 1_000, launch + 4_000, _NAMES[what][0], said)
    for start, end in ran.syncs[rank]:
        write.call(start, None, "cudaDeviceSynchronize", length=end - start)
    for at in ran.events[rank]:
        write.call(at, None, "cudaEventRecord", length=500)
        write.call(at + 1_000, None, "cudaStreamWaitEvent", length=1_000)
    _write_end(write, ran, rank)


def _write_end(write: _Process, ran: Ran, rank: int) -> None:
    """Write what a rank launched and never ended, and how a thread of it polls."""
    waits = ran.waits.get(rank, [])
    for launch, what, call in waits:
        said = _payload(ran.job, _said(ran.job, rank, what, call))
        write.nvtx(launch - 1_000, launch + 4_000, _NAMES[what][0], said)
    for number in range(4 if waits else 0):  # the collective, and what is launched behind it
        write.call(waits[0][0] + 10_000 * number, 10**6 + number, "cudaLaunchKernel")
    if ran.polls and rank in ran.until:
        for at in range(ran.kernels[rank][-1][2], ran.until[rank] - 4_000, 100_000_000):
            write.call(at, None, "cudaEventQuery", after=1)


def _payload(job: Job, said: dict[str, object]) -> str | None:
    return json.dumps(said) if job.payloads else None


def _said(job: Job, rank: int, what: str, call: Call) -> dict[str, object]:
    members = call.members
    if call.kind == "pipeline":
        members = next(g for g in job.groups()["pipeline"] if rank in g)
    said: dict[str, object] = {
        "NCCL communicator ID": communicator(job, call.kind, members),
        "Message size [bytes]": call.size // (2 if call.dtype == "Half" else 1),
    }
    if what in ("send", "recv"):
        other = next(r for r in call.members if r != rank)
        said["Peer rank"] = members.index(other)
    elif what == "broadcast":
        said["Root"] = call.root
    else:
        said["Reduction operation"] = 0
    return said


def write_log(ran: Ran, path: Path, rings: list[list[int]]) -> Path:
    """Write what NCCL logs of the job with NCCL_DEBUG_SUBSYS=INIT,COLL, rank by rank."""
    job, lines = ran.job, []
    names = {"all_reduce": "AllReduce", "broadcast": "Broadcast", "send": "Send", "recv": "Recv"}
    for rank in range(job.size):
        pid, gpu = pid_of(job, rank), rank % job.per_node
        head = f"node{job.node(rank)}:{pid}:{pid} [{gpu}] NCCL INFO"
        devices = " ".join(f"[{nic}]{nic_name(nic)}:1/IB" for nic in range(4))
        lines.append(f"{head} NET/IB : Using {devices} [RO]; OOB eth0:10.0.0.{rank}<0>")
        pointers = {}
        for number, (kind, some) in enumerate(job.groups().items()):
            members = next(g for g in some if rank in g)
            if len(members) == 1:
                continue
            pointers[kind] = f"0x{0x5500 + 16 * rank + number:x}", len(members), members
            own = members.index(rank)
            init = (
                f"{head} comm {pointers[kind][0]} rank {own} nRanks {len(members)} cudaDev "
                f"{gpu} nvmlDev {gpu} busId {(gpu + 1) << 12:x} "
                f"commId 0x{communicator(job, kind, members):x} - Init"
            )
            lines.append(f"{init} START")
            count = len(members)
            orders = _logged(count, rings)
            for channel, order in enumerate(orders):
                at = order.index(own)
                before, after = order[at - 1], order[(at + 1) % count]
                lines.append(f"{head} Ring {channel:02d} : {before} -> {own} -> {after}")
                lines += _connection(job, head, channel, members, own, after, "send")
                lines += _connection(job, head, channel, members, before, own, "receive")
                if own == 0:
                    turned = order[order.index(0) :] + order[: order.index(0)]
                    told = " ".join(f"{one:3d}" for one in turned)
                    lines.append(f"{head} Channel {channel:02d}/{len(orders):02d} : {told}")
            lines.append(f"{init} COMPLETE")
        counts: Counter[str] = Counter()
        for *_, what, call in ran.kernels[rank]:
            if call:
                pointer, ranks, members = pointers[call.kind]
                root = 0
                if call.kind == "pipeline":
                    root = members.index(next(r for r in call.members if r != rank))
                lines.append(
                    f"{head} {names[what]}: opCount {counts[call.kind]:x} sendbuff 0x7f00 recvbuff "
                    f"0x7f01 count {call.size // 4} datatype 7 op 0 root {root} comm {pointer} "
                    f"[nranks={ranks}] stream 0x55"
                )
                counts[call.kind] += 1
    path.write_text("\n".join(lines) + "\n")
    return path


def write_kineto(ran: Ran, rank: int, path: Path, first: int | None = None) -> Path:
    """Write what PyTorch's profiler traces of a rank: kernels, their launches, calls, steps.

    A group's name is its number among those of the rank; its calls are numbered from `first` on.
    Calls are all-reduces, and what the rank waits in.
    """
    job, pid, gpu = ran.job, pid_of(ran.job, rank), rank % ran.job.per_node
    names, counts = {kind: str(n) for n, kind in enumerate(job.groups())}, Counter[str]()
    events: list[dict[str, object]] = []

    def add(cat: str, name: str, start: int, end: int, **args: object) -> None:
        place = (0, args["stream"]) if cat == "kernel" else (pid, pid)
        events.append({
            "ph": "X", "cat": cat, "name": name, "pid": place[0], "tid": place[1],
            "ts": (EPOCH + start) / 1000, "dur": (end - start) / 1000,
            "args": {key.replace("_", " "): value for key, value in args.items()},
        })  # fmt: skip

    until = ran.until.get(rank, FOREVER)
    for start, end, name in ran.ranges[rank]:
        if end <= until:  # what is open is in no file
            add("user_annotation", name, start, end)
    waits = [(at, 0, until + 1, 0, what, call) for at, what, call in ran.waits.get(rank, [])]
    for number, (launch, start, end, stream, what, call) in enumerate(
        [row for row in ran.kernels[rank] if row[0] + 4_000 <= until] + waits, 1
    ):
        where = {"device": gpu, "context": 1, "stream": stream, "correlation": number}
        add("cuda_runtime", "cudaLaunchKernel", launch, launch + 3_000, correlation=number)
        name = _NAMES[what][1] if call else _GEMM
        if end <= until:
            add("kernel", name, start, end, **where)
        if call and (what == "all_reduce" or not start):
            own = call.root if what == "broadcast" else call.members.index(rank)
            if call.what == "send":
                own = 1 - own
            given = {"Collective name": what.replace("_", ""), "dtype": call.dtype, "Rank": own,
                     "In msg nelems": call.size // 4, "Out msg nelems": call.size // 4,
                     "Group size": len(call.members), "Process Group Name": names[call.kind],
                     "Process Group Description": call.kind,
                     "Process Group Ranks": str([*call.members])}  # fmt: skip
            if first is not None:
                given["Seq"] = first + counts[call.kind]
                counts[call.kind] += 1
            add("cpu_op", "record_param_comms", launch - 1_000, launch + 4_000, **given)
    if ran.polls and rank in ran.until:
        add("cuda_runtime", "cudaEventQuery", until - 9_000, until - 6_000, correlation=10**6)
    path.write_text(json.dumps({
        "schemaVersion": 1, "deviceProperties": [{"id": gpu, "name": "NVIDIA A100-SXM4-40GB"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.size},
        "traceEvents": events,
    }))  # fmt: skip
    return path


def write_inspector(ran: Ran, folder: Path, first: int = 40, least: int = 8192) -> list[Path]:
    """Write what NCCL's inspector logs of each rank: times in whole us, no calls of few bytes.

    It measures 2 us more than the profilers.
    Its numbers of a collective in a communicator begin at `first`, as others came before.
    """
    job, numbers = ran.job, dict[tuple[int, str], int]()
    folder.mkdir(exist_ok=True, parents=True)
    names = {"all_reduce": "AllReduce", "broadcast": "Broadcast"}
    told: dict[int, list[str]] = defaultdict(list)
    own = {(rank, id(row[5])): row for rank, rows in ran.kernels.items() for row in rows if row[5]}
    for call in ran.calls:
        if call.what not in names:
            continue
        name = communicator(job, call.kind, call.members)
        number = numbers[name, call.what] = numbers.get((name, call.what), first - 1) + 1
        for rank in call.members if call.size >= least else ():
            _, start, end, *_ = own[rank, id(call)]
            head = {"id": f"0x{name:x}", "comm_name": call.kind, "rank": call.members.index(rank),
                    "n_ranks": len(call.members)}  # fmt: skip
            record = {
                "coll": names[call.what], "coll_sn": number, "coll_msg_size_bytes": call.size,
                "coll_exec_time_us": round((end - start) / 1000) + 2,
                "coll_timing_source": "kernel_gpu",
            }  # fmt: skip
            process = {"hostname": f"node{job.node(rank)}", "pid": pid_of(job, rank)}
            told[rank].append(
                json.dumps({"header": head, "metadata": process, "coll_perf": record})
            )
    paths = []
    for rank, lines in sorted(told.items()):
        paths.append(folder / f"node{job.node(rank)}-pid{pid_of(job, rank)}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def write_dumps(
    ran: Ran, folder: Path, *, first: int = 40, absent: int | None = None, later: int = 0
) -> list[Path]:
    """Write what PyTorch's flight recorder dumps of each rank: no messages, no broadcasts.

    A group's name is its number among those of the rank. Its numbers begin at `first`, as others
    came before; an entry is made 25 us before its kernel is launched, or up to 3 us sooner. The
    rank `absent` did not join the last collective, in which the others wait. Clocks say `later`.
    """
    job, chance = ran.job, random.Random(3)
    folder.mkdir(exist_ok=True, parents=True)
    paths = []
    for rank, rows in sorted(ran.kernels.items()):
        own = {kind: next(g for g in some if rank in g) for kind, some in job.groups().items()}
        names = {kind: str(number) for number, kind in enumerate(own)}
        numbers, entries = dict.fromkeys(own, first - 1), []
        for launch, *_, what, call in rows:
            if call is None or what != "all_reduce":
                continue
            numbers[call.kind] += 1
            entries.append({
                "record_id": len(entries), "process_group": [names[call.kind], call.kind],
                "collective_seq_id": numbers[call.kind], "profiling_name": "nccl:all_reduce",
                "time_created_ns": EPOCH + later + launch - 25_000 - chance.randrange(3_000),
                "input_sizes": [[call.size // 4]], "output_sizes": [[call.size // 4]],
                "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed",
            })  # fmt: skip
        if absent is not None:
            entries[-1]["state"] = "started"
        del entries[len(entries) - (rank == absent) :]
        config = {names[kind]: {"ranks": str([*group])} for kind, group in own.items()}
        paths.append(folder / f"rank_{rank}.json")
        paths[-1].write_text(
            json.dumps({"version": "2.10", "pg_config": config, "entries": entries})
        )
    return paths
