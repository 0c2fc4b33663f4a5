"""Read NCCL_DEBUG=INFO logs: rings, trees, transports, tuning decisions and collective calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.errors import InputError
from tracekit.machine._nccl_groups import Communicators
from tracekit.machine._nccl_lines import Lines, read_lines
from tracekit.machine._volumes import SYMMETRIC

CUT_AT = 20
"""Largest number of ranks that NCCL prints for a ring (before 2.23, which prints ``...`` where it
cuts)."""

_COLLECTIVES = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast", "Bcast": "broadcast", "Reduce": "reduce", "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all", "Gather": "gather", "Scatter": "scatter", "Send": "send_recv",
    "Recv": "send_recv", "SendRecv": "send_recv",
}  # fmt: skip
_ROOTED = ("broadcast", "reduce", "gather", "scatter", "send_recv")
_DIRECTIONS = {"Send": "send", "Recv": "receive"}
_DATATYPES = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8),
    ("float16", 2), ("float32", 4), ("float64", 8), ("bfloat16", 2), ("float8_e4m3", 1),
    ("float8_e5m2", 1),
)  # fmt: skip
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
_KINDS = {"P2P": "p2p", "SHM": "shm", "direct shared": "shm", "NET": "net", "COLLNET": "collnet",
          "NVLS": "nvls"}  # fmt: skip
_MOST_COUNT = 1 << 59

_CHANNEL = {"communicator": pl.String, "channel": pl.Int64}
_RINGS = pl.Schema({**_CHANNEL, "position": pl.Int64, "rank": pl.Int64})
_EDGE = ("communicator", "channel", "from_rank", "to_rank")
_NIC = r"^NET/\w+/(\d{1,4})\b"
"""Pattern for the number of a NIC in the name of a connection."""
_NAMED = r"\[(?P<nic>\d{1,4})\](?P<name>[^\s\[\]:]{1,64}):"
"""Pattern for a NIC in the line that lists those of a host."""


@dataclass(frozen=True)
class NcclLog:
    """Contents of an NCCL_DEBUG=INFO log as tables.

    Communicators are named ``0x...``, by their commId, or as `read_nccl_log` describes.
    """

    path: str
    """Names of the files, separated by commas."""
    version: str | None
    """NCCL's version, such as ``2.18.3+cuda12.1``; the first one printed, None without any."""
    ranks: pl.DataFrame
    """``communicator, host, pid, rank, ranks, cuda_device, nvml_device, pci_bus``, one row for each
    rank whose Init is in the log. ``pci_bus`` is ``0000:06:00.0``, null for NCCL 2.4."""
    rings: pl.DataFrame
    """``communicator, channel, position, rank``: the ring of each channel, from rank 0 on."""
    trees: pl.DataFrame
    """``communicator, channel, rank, parent``; the parent of a root is null. If reduction and
    broadcast have separate trees (2.5 to 2.7), the one for reduction."""
    connections: pl.DataFrame
    """``communicator, channel, from_rank, to_rank, transport, kind, src_nic, dst_nic, src_direct,
    dst_direct``, one row for each connected pair. ``transport`` is the sender's text, else the
    receiver's: ``P2P/IPC``, ``SHM/direct/direct``, ``NET/IB/0/GDRDMA``, ...; ``kind`` is p2p, shm,
    net, collnet or nvls. For a connection to a CollNet switch one rank is null. NICs have NCCL's
    numbers on the host of sender and receiver, null if that side did not print its line;
    ``src_direct`` and ``dst_direct`` are whether the NIC accesses GPU memory (GPUDirect RDMA)
    instead of host memory."""
    tuning: pl.DataFrame
    """``communicator, order, collective, bytes, algorithm, protocol, channels``: rank 0's choice
    for each call; ``order`` counts from 0 in each communicator. Null if a version does not print
    it: the collective before 2.23, channels before 2.24, and the protocol of symmetric kernels,
    whose algorithm is one of those in `shares`, else ``symmetric``. The communicator is null if a
    process is rank 0 of several and no call shows which. ``bytes`` is NCCL's own size: of all ranks
    together for all_gather and reduce_scatter before 2.24, and per rank since."""
    calls: pl.DataFrame
    """``communicator, host, pid, rank, order, op_count, collective, direction, count, datatype,
    bytes, root, ranks``, one row for each call of each rank; ``order`` counts from 0 in each
    process, communicator and rank. ``bytes`` is count times the datatype's size, so per rank for
    all_gather (sent), reduce_scatter (received), all_to_all, gather and scatter. ``root`` is the
    peer of a send or receive; ``direction`` is which of the two. If the Init of a rank is not in
    the log, the rank is null and the communicator ``host:pid:pointer``."""
    nvls: pl.DataFrame
    """``communicator, channels``: number of channels for NVLS; 0 if it cannot use NVLS."""
    nics: pl.DataFrame
    """``host, network, nic, name``: system name, such as ``mlx5_0``, of each NIC by NCCL's number.
    NICs for which two lines give different names are left out."""
    writers: pl.DataFrame
    """``host, pid`` of all processes that wrote a line of NCCL, of any content."""
    warnings: tuple[str, ...]
    """Contradictions and gaps in the log, one sentence each."""


def read_nccl_log(*paths: Path) -> NcclLog:
    """Read logs of NCCL_DEBUG=INFO (best with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,COLL).

    Each rank may write a separate file, or several ranks one file. Other output may come between
    lines, and at the start of a line before NCCL's text. A communicator is named by its commId. Old
    versions of NCCL print no commId, and splits have none. Without it, ranks form a communicator if
    they state the same number of ranks, parent and colour, and have matching connections; ranks
    without connections are matched in the order of their Init lines. The name is then
    ``host:pid:pointer`` of the lowest rank. A name that occurs again gets the suffix ``#2``.

    Parameters
    ----------
    *paths
        Files, or folders whose files are all read.

    Raises
    ------
    InputError
        If a file cannot be read, or no file has a line of NCCL's.
    """
    files = _files(paths)
    lines = read_lines(files)
    known = Communicators(lines)
    connections, lost = _connections(lines, known)
    rings, odd_rings = _rings(lines, known, connections)
    trees, odd_trees = _trees(lines, known)
    named = [path for path in paths if path in lines.without]
    return NcclLog(
        path=", ".join(map(str, paths)),
        version=next(iter(lines.versions), None),
        ranks=_ranks(known.members),
        rings=rings,
        trees=trees,
        connections=_edges(lines, known, connections),
        tuning=_tuning(lines, known),
        calls=_calls(known),
        nvls=_nvls(lines, known),
        nics=_nics(lines),
        writers=lines.writers,
        warnings=(
            *(
                [f"several versions of NCCL: {', '.join(lines.versions)}"]
                * (len(lines.versions) > 1)
            ),
            *(f"no NCCL INFO lines in {path}" for path in named),
            *known.warnings,
            *_missing_ranks(known.members),
            *lost,
            *odd_rings,
            *odd_trees,
        ),
    )


def _files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of the given paths, each once; files in a folder are sorted by name."""
    files: dict[Path, Path] = {}
    for path in paths:
        inside = _inside(path) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"no files in {path}", "give NCCL's logs, or their folder")
        for each in inside:
            files.setdefault(each.resolve(), each)
    if not files:
        raise InputError("no NCCL log is given", "give NCCL's logs, or their folder")
    return list(files.values())


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_file())
    except OSError as error:
        raise InputError(f"{folder} cannot be read", error.strerror) from error


def _ranks(members: pl.DataFrame) -> pl.DataFrame:
    digits = pl.col("bus").str.zfill(9)
    pci = pl.format(
        "{}:{}:{}.{}",
        digits.str.slice(0, digits.str.len_chars() - 5).str.zfill(4),
        digits.str.slice(-5, 2),
        digits.str.slice(-3, 2),
        digits.str.slice(-1),
    )
    return members.select(
        "communicator", "host", "pid", "rank", "ranks", "cuda_device", "nvml_device", pci_bus=pci
    ).sort("communicator", "rank", "host", "pid")


def _missing_ranks(members: pl.DataFrame) -> list[str]:
    counted = members.group_by("communicator", "ranks", maintain_order=True).agg(
        held=pl.col("rank").n_unique(), rows=pl.len()
    )
    return [
        f"communicator {name} has {ranks} ranks, the log has {count}: give all ranks' logs"
        for name, ranks, count, _ in counted.iter_rows()
        if count < ranks
    ] + [
        f"communicator {name} has ranks that two processes claim; are these logs of one run?"
        for name, _, count, rows in counted.iter_rows()
        if rows > count
    ]


def _connections(lines: Lines, known: Communicators) -> tuple[pl.DataFrame, list[str]]:
    """Return the connections between ranks with their communicator, and warnings.

    ``ring`` is whether a connection is part of a ring, else of a tree. Since NCCL 2.8, a thread
    prints a "Connected" line for the connections that it made since the line before, which tells
    this; null without such a line.
    """
    keys = ["host", "pid", "tid"]
    ranks = pl.col("from_rank", "to_rank")
    table = lines["connections"].with_columns(
        own_rank=pl.when(pl.col("side").eq_missing("receive"))
        .then("to_rank")
        .otherwise("from_rank"),
        top_rank=pl.max_horizontal(ranks),
    )
    connected = lines["connected"].select(
        "line", *keys, ring=pl.col("what").str.starts_with("all rings")
    )
    found = known.placed(table).join_asof(
        connected.sort("line"), on="line", by=keys, strategy="forward", check_sortedness=False
    )
    lost = found["communicator"].null_count()
    warnings = [
        f"{lost} connections cannot be assigned to one of their process's communicators"
    ] * (lost > 0)
    return found.drop_nulls("communicator"), warnings


def _edges(lines: Lines, known: Communicators, connections: pl.DataFrame) -> pl.DataFrame:
    table = lines["collnet"].with_columns(own_rank="rank", top_rank="rank")
    sends = pl.col("side") == "send"
    collnet = known.placed(table).with_columns(
        from_rank=pl.when(sends).then("rank"), to_rank=pl.when(~sends).then("rank")
    )
    columns = ["line", *_EDGE, "side", "transport"]
    transport = pl.col("transport").str.replace(r" comm 0x.*$", "").str.strip_chars()
    start = transport.str.extract(r"^(direct shared|P2P|SHM|NET|COLLNET|NVLS)")
    nic = transport.str.extract(_NIC).cast(pl.Int32)
    receives = pl.col("side").eq_missing("receive")
    printed = pl.concat([connections.select(columns), collnet.select(columns)])
    direct = pl.when(nic.is_not_null()).then(transport.str.contains("/GDRDMA", literal=True))
    ends = {"src": ~receives, "dst": receives}
    by_end = {
        f"{name}_{column}": value.filter(end).drop_nulls().first().over(_EDGE)
        for column, value in (("nic", nic), ("direct", direct))
        for name, end in ends.items()
    }
    return (
        printed.drop_nulls("communicator")
        .with_columns(**by_end)
        .sort(pl.col("side").eq_missing("receive"), "line")
        .unique(list(_EDGE), keep="first", maintain_order=True)
        .select(
            *_EDGE,
            transport,
            start.replace_strict(_KINDS, default=None).alias("kind"),
            *by_end,
        )
        .sort(_EDGE)
    )


def _rings(
    lines: Lines, known: Communicators, connections: pl.DataFrame
) -> tuple[pl.DataFrame, list[str]]:
    """Return the ring of each channel, and warnings about channels for which none was found."""
    printed = _printed(lines, known)
    successors = [_neighbours(lines, known), _ring_connections(connections)]
    sizes = dict(known.members.select("communicator", "ranks").rows())
    rows: list[tuple[str, int, int, int]] = []
    odd: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, channel in _channels(lines, known, printed, successors):
        place = (name, channel)
        ring, why = _ring(
            sizes.get(name), printed.get(place, []), [each.get(place, {}) for each in successors]
        )
        rows += [(name, channel, position, rank) for position, rank in enumerate(ring)]
        if why:
            odd[name, why].append(channel)
    warnings = [
        f"communicator {name}: the ring of channel {', '.join(map(str, channels))} {why}; left out"
        for (name, why), channels in odd.items()
    ]
    return pl.DataFrame(rows, _RINGS, orient="row"), warnings


Order = tuple[tuple[int, ...], bool]
"""Ranks in a printed ring, and whether it was printed as cut."""
Successors = dict[tuple[str, int], dict[int, int | None]]
"""(communicator, channel) -> rank -> the next rank; None if there are two."""


def _printed(lines: Lines, known: Communicators) -> dict[tuple[str, int], list[Order]]:
    """Return (communicator, channel) -> different orders of ranks that rank 0 prints for the ring.

    There is one if the log does not contradict itself.
    """
    dots = pl.col("dots").is_not_null()
    # The last number before the dots may have lost digits, if none but them comes after it.
    text = pl.when(dots).then(pl.col("order").str.replace(r"\d+$", "")).otherwise("order")
    order = text.str.extract_all(r"\d+").cast(pl.List(pl.Int64), strict=False)
    table = lines["orders"].with_columns(
        order=order, dots=dots, own_rank=pl.lit(0, pl.Int64), top_rank=order.list.max()
    )
    found = known.placed(table).drop_nulls("communicator")
    rings: dict[tuple[str, int], list[Order]] = defaultdict(list)
    for name, channel, ranks, cut in found.select(
        "communicator", "channel", "order", "dots"
    ).rows():
        ring = (tuple(ranks), cut)
        if ring not in rings[name, channel]:
            rings[name, channel].append(ring)
    return rings


def _neighbours(lines: Lines, known: Communicators) -> Successors:
    """Return (communicator, channel) -> rank -> next rank, from lines ``Ring 00 : 3 -> 0 -> 1``.

    NCCL_DEBUG_SUBSYS=GRAPH prints them.
    """
    table = lines["neighbours"].with_columns(
        own_rank="rank", top_rank=pl.max_horizontal("before", "rank", "after")
    )
    found = known.placed(table)
    channel = ["communicator", "channel"]
    return _successors(
        pl.concat([
            found.select(*channel, of="before", after="rank"),
            found.select(*channel, of="rank", after="after"),
        ])
    )  # fmt: skip


def _ring_connections(connections: pl.DataFrame) -> Successors:
    """Return, for each rank of a ring, the rank that it sends to, from connections.

    Without a "Connected all rings" line, the first connection on which a rank sends in a channel is
    part of the ring, since NCCL connects the ring before the trees. The first connection on which
    it receives proves nothing, as receiving connections are printed only for networks. Connections
    of send and receive calls have index 1.
    """
    of_collectives = connections.filter(pl.col("index").fill_null(0) == 0)
    knows_rings = pl.col("ring").is_not_null().any().over("communicator")
    first = (
        of_collectives.filter(~knows_rings, pl.col("side").fill_null("send") == "send")
        .sort("line")
        .unique(["communicator", "channel", "from_rank"], keep="first", maintain_order=True)
    )
    edges = pl.concat([of_collectives.filter(knows_rings, pl.col("ring")), first])
    return _successors(edges.select("communicator", "channel", of="from_rank", after="to_rank"))


def _successors(edges: pl.DataFrame) -> Successors:
    after: Successors = defaultdict(dict)
    for name, channel, rank, follows in edges.drop_nulls().unique(maintain_order=True).iter_rows():
        ring = after[name, channel]
        ring[rank] = None if rank in ring else follows
    return after


def _channels(
    lines: Lines,
    known: Communicators,
    printed: Mapping[tuple[str, int], list[Order]],
    successors: list[Successors],
) -> list[tuple[str, int]]:
    """Return the (communicator, channel) pairs that have a ring.

    These are as many channels as the log prints, else all that occur: send and receive calls may
    use further channels, without a ring.
    """
    tables = [
        known.placed(lines[kind].with_columns(own_rank=first, top_rank=None)).select(
            "communicator", "total"
        )
        for kind, first in (("orders", pl.lit(0, pl.Int64)), ("totals", pl.lit(None, pl.Int64)))
    ]
    most = dict(
        pl.concat(tables).drop_nulls().group_by("communicator").agg(pl.col("total").max()).rows()
    )
    seen = {place for each in (printed, *successors) for place in each}
    below = {(name, channel) for name, total in most.items() for channel in range(total)}
    names = {name for name, _ in seen}
    return sorted(
        {(name, channel) for name, channel in seen if channel < most.get(name, channel + 1)}
        | {place for place in below if place[0] in names}
    )


def _ring(
    size: int | None, printed: list[Order], successors: list[dict[int, int | None]]
) -> tuple[tuple[int, ...], str]:
    """Return a ring's ranks in order from rank 0, and an empty text; or no ranks and the reason.

    `size` is the number of ranks, if known.

    The ring is the order that rank 0 prints, if complete. Otherwise it is derived from printed
    neighbours, or else from connections (`successors`, in this order); it must begin with the part
    that was printed.
    """
    ranks, cut = printed[0] if printed else ((), True)
    size = size or (0 if cut else len(ranks))
    if len(printed) > 1:
        return (), "is printed in several ways"
    if fault := _fault(ranks, size, cut=cut):
        return (), fault
    if ranks and len(ranks) == size:
        return _from_zero(ranks), ""
    for after in successors:
        found = _walk(after, ranks[0] if ranks else 0, size or max(after, default=-1) + 1)
        if found:
            fits = found[: len(ranks)] == ranks
            return (_from_zero(found), "") if fits else ((), "does not go on as it is printed")
    return (), "is printed incompletely, and not known from the connections of all ranks"


def _fault(ranks: tuple[int, ...], size: int, *, cut: bool) -> str:
    """Return what is wrong with a printed ring of `size` ranks; empty if nothing.

    A `size` of 0 means unknown. `cut` is whether the log line was cut at NCCL's limit.
    """
    if len(set(ranks)) < len(ranks):
        return "visits a rank twice"
    if size and max(ranks, default=0) >= size:
        return "has ranks that the communicator has not"
    if len(ranks) < size and not cut and len(ranks) != CUT_AT:
        return f"lacks ranks ({len(ranks)} of {size})"
    return ""


def _walk(after: Mapping[int, int | None], start: int, length: int) -> tuple[int, ...]:
    """Follow the next ranks (`after`) from `start` round the ring.

    Returns no ranks if it does not come back after `length` ranks.
    """
    if length < 1 or len(after) < length:
        return ()
    found = [start]
    seen = {start}
    while (rank := after.get(found[-1])) is not None and rank not in seen:
        found.append(rank)
        seen.add(rank)
    return tuple(found) if rank == start and len(found) == length else ()


def _from_zero(ring: tuple[int, ...]) -> tuple[int, ...]:
    zero = ring.index(min(ring))
    return ring[zero:] + ring[:zero]


def _trees(lines: Lines, known: Communicators) -> tuple[pl.DataFrame, list[str]]:
    """Return the trees (``communicator, channel, rank, parent``) that ranks print, and warnings."""
    elements = pl.col("elements").str.extract_all(r"\[\d{1,4}\] [^\s\[]+")
    is_complete = pl.col("whole")
    lists = lines["trees"].with_columns(
        elements=pl.when(is_complete)
        .then(elements)
        .otherwise(elements.list.slice(0, elements.list.len() - 1))
    )
    nodes = _nodes(lists.select("line", "elements").explode("elements").drop_nulls())
    top = pl.max_horizontal("rank", "parent")
    tops = nodes.group_by("line").agg(own_rank=pl.col("rank").first(), top_rank=top.max())
    columns = ["communicator", "channel", "rank", "parent"]
    from_lists = known.placed(lists.join(tops, on="line")).select("line", "communicator")
    branches = lines["branches"].with_columns(own_rank="rank", top_rank=top)
    found = pl.concat(
        [
            from_lists.join(nodes, on="line", maintain_order="left").select(columns),
            known.placed(branches).select(columns),
        ]
    )
    return _unanimous(found.drop_nulls("communicator"))


def _nodes(elements: pl.DataFrame) -> pl.DataFrame:
    """Split tree nodes such as ``[0] 1/2/-1->0->3`` into ``line, channel, rank, parent``.

    NCCL 2.4 prints the parent first (``[0] 3->0->1/2/-1``); 2.5 to 2.7 print a tree for reduction
    and one for broadcast, in this order, separated by ``|``.
    """
    pattern = (
        r"^\[(?P<channel>\d+)\] (?:(?:-?\d+/)+-?\d+->(?P<rank>\d{1,9})->(?P<parent>-?\d{1,9})|"
        r"(?P<up>-?\d{1,9})->(?P<old>\d{1,9})->(?:-?\d+/)+-?\d+)(?:\||$)"
    )
    groups = pl.col("elements").str.extract_groups(pattern)
    numbers = (
        elements.select("line", groups.alias("groups"))
        .unnest("groups")
        .cast(dict.fromkeys(("channel", "rank", "parent", "up", "old"), pl.Int64))
    )
    return numbers.select(
        "line", "channel", rank=pl.coalesce("rank", "old"), parent=pl.coalesce("parent", "up")
    ).drop_nulls()


def _unanimous(trees: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Drop the trees of channels in which a rank has two parents; also return warnings."""
    key = ["communicator", "channel"]
    once = trees.unique(maintain_order=True)
    twice = once.filter(pl.struct(*key, "rank").is_duplicated()).select(key).unique().sort(key)
    warnings = [
        f"communicator {name}: the tree of channel {channel} has a rank with two parents; left out"
        for name, channel in twice.rows()
    ]
    parent = pl.when(pl.col("parent") >= 0).then("parent")
    kept = once.join(twice, on=key, how="anti").with_columns(parent=parent)
    return kept.sort(*key, "rank"), warnings


def _tuning(lines: Lines, known: Communicators) -> pl.DataFrame:
    """Return the algorithm and protocol that rank 0 chose for each collective of a communicator."""
    # Of a process's members, only one of rank 0 can have written it.
    table = lines["tunings"].with_columns(
        own_rank=pl.lit(0, pl.Int64), top_rank=pl.lit(None, pl.Int64)
    )
    pointed = known.by_pointer(table).select("line", named="communicator")
    found = (
        known.placed(table, by_calls=True)
        .join(pointed, on="line", maintain_order="left")
        .with_columns(communicator=pl.coalesce("named", "communicator"))
    )
    return found.select(
        "communicator",
        order=pl.int_range(pl.len()).over("communicator"),
        collective=_collective(pl.col("name")),
        bytes="bytes",
        algorithm=pl.coalesce(
            _choice("algorithm", _ALGORITHMS),
            pl.when(pl.col("kernel").is_not_null()).then(
                pl.col("kernel").replace_strict(
                    SYMMETRIC, default="symmetric", return_dtype=pl.String
                )
            ),
        ),
        protocol=_choice("protocol", _PROTOCOLS),
        channels=pl.coalesce("wide", pl.col("high") - pl.col("low") + 1),
    )


def _nvls(lines: Lines, known: Communicators) -> pl.DataFrame:
    own_rank, top = (pl.lit(None, pl.Int64).alias(name) for name in ("own_rank", "top_rank"))
    totals = known.placed(lines["totals"].with_columns(own_rank, top)).drop_nulls(
        ["communicator", "nvls"]
    )
    return totals.group_by("communicator", maintain_order=True).agg(channels=pl.col("nvls").max())


def _nics(lines: Lines) -> pl.DataFrame:
    listed = (
        lines["nics"]
        .filter("whole")
        .with_columns(pl.col("devices").str.split("; OOB").list.first().str.extract_all(_NAMED))
    )
    each = listed.explode("devices").with_columns(
        pl.col("devices").str.extract_groups(_NAMED).alias("groups")
    )
    key = ["host", "network", "nic"]
    return (
        each.unnest("groups")
        .select("host", "network", pl.col("nic").cast(pl.Int32), "name")
        .drop_nulls()
        .unique()
        .unique(key, keep="none")
        .sort(key)
    )


def _collective(name: pl.Expr) -> pl.Expr:
    """Translate NCCL's name of a collective to tracekit's (``AllReduce``: ``all_reduce``).

    ``unknown`` for others, null for null.
    """
    known = name.replace_strict(_COLLECTIVES, default="unknown")
    return pl.when(name.is_not_null()).then(known)


def _choice(column: str, names: tuple[str, ...]) -> pl.Expr:
    """Translate a column of algorithms or protocols from NCCL's names or numbers to `names`.

    Unknown ones give null.
    """
    plain = pl.col(column).str.to_lowercase().str.replace_all("_", "")
    known = {name.replace("_", ""): name for name in names}
    known |= {str(number): name for number, name in enumerate(names)}
    return plain.replace_strict(known, default=None)


def _calls(known: Communicators) -> pl.DataFrame:
    members = known.members.select("member", "communicator", "rank")
    found = known.calls.join(members, on="member", how="left", maintain_order="left")
    collective = _collective(pl.col("name"))
    datatype = pl.col("datatype").replace_strict(
        {number: name for number, (name, _) in enumerate(_DATATYPES)},
        default=None,
        return_dtype=pl.String,
    )
    width = datatype.replace_strict(dict(_DATATYPES), default=None, return_dtype=pl.Int64)
    pointer = pl.format("{}:{}:{}", "host", "pid", "pointer")
    return found.with_columns(communicator=pl.coalesce("communicator", pointer)).select(
        "communicator",
        "host",
        "pid",
        "rank",
        order=pl.int_range(pl.len()).over("host", "pid", "communicator", "rank"),
        op_count=pl.col("op_count").str.to_integer(base=16, strict=False),
        collective=collective,
        direction=pl.col("name").replace_strict(_DIRECTIONS, default=None),
        count="count",
        datatype=datatype,
        bytes=pl.when(pl.col("count") <= _MOST_COUNT).then(pl.col("count") * width),
        root=pl.when(collective.is_in(_ROOTED)).then("root"),
        ranks="ranks",
    )
