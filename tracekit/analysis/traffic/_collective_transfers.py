"""Bytes that collectives move between GPUs (modelled), and sends to known peers (measured)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import polars as pl

from tracekit.analysis.calls import log_processes
from tracekit.analysis.traffic._routes import crossings
from tracekit.errors import UsageError
from tracekit.machine import IN_SWITCH, Machine, NcclLog, Ring, find_rings, shares
from tracekit.model import TRANSFERS, PolarsType, Stretch

_PLAN = ["library", "collective", "root", "algorithm", "communicator", "ranks", "devices"]
"""Columns that decide the edges of a collective and their shares of its bytes."""
_OF_SOURCE = ("report", "op", "start", "end", "stage", "iteration")
"""Columns that an edge takes from the call of the sending GPU, as it does the process."""
_NOT_MODELLED = ("collnet_direct", "collnet_chain", "symmetric")
_ANY_ALGORITHM = ("all_to_all", "gather", "scatter", "send_recv")
_REDUCED = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives for which NCCL has kernels that reduce or multicast in a switch."""
_LEAST_IN_SWITCH = 3
"""Least number of GPUs at a switch for NCCL to let it reduce (``ncclNvlsInit``)."""
AT_ONCE = 1 << 16
"""Number of transfers that are made, and summed, at a time."""
_EDGES: dict[str, PolarsType] = {
    "src_device": pl.Int32, "dst_device": pl.Int32, "part": pl.Int64, "whole": pl.Int64,
    "src_nic": pl.Int32, "dst_nic": pl.Int32, "source": pl.String, "algorithm": pl.String,
    "at_switch": pl.Boolean, "is_open": pl.Boolean, "sends": pl.Boolean, "members": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Where ranks of communicators are: on which device of the run and GPU of the machine."""

    machine: Machine
    """The machine, with its GPUs, links and switches."""
    place: Mapping[int, int]
    """Device of the run -> GPU of the machine."""
    devices: pl.DataFrame
    """``communicator, rank, device`` of known ranks."""
    log: NcclLog | None = None
    """An NCCL log of the run, whose rings and trees are used; or None."""
    size: int | None = None
    """Number of ranks of communicators of unknown size, given by the user; or None."""
    reducing: frozenset[int] = frozenset()
    """GPUs of the machine whose NVSwitch can reduce and multicast (NVLS)."""

    def of(self, communicator: str | None) -> dict[int, int]:
        """Return rank -> device for the known ranks of a communicator."""
        rows = self.devices.filter(pl.col("communicator").eq_missing(pl.lit(communicator)))
        return dict(rows.select("rank", "device").drop_nulls().rows())

    def logged(self, communicator: str | None) -> str | None:
        """Return the name of a communicator in the NCCL log; None if the log lacks it.

        If the log lists rings of one communicator only, every communicator is taken for that one.
        """
        if self.log is None:
            return None
        names = self.log.rings["communicator"].unique().to_list()
        return communicator if communicator in names else names[0] if len(names) == 1 else None

    def nics(
        self, communicator: str | None, src: int | None, dst: int | None
    ) -> list[tuple[tuple[int | None, int | None], Fraction]]:
        """Return NIC pairs that connect ranks `src`, `dst` in the NCCL log, and traffic shares."""
        found = self._connections.get((communicator, src, dst), {(None, None): 1})
        channels = sum(found.values())
        return [(nics, Fraction(count, channels)) for nics, count in sorted(found.items(), key=str)]

    @cached_property
    def _connections(
        self,
    ) -> Mapping[tuple[str | None, int | None, int | None], Counter[tuple[int | None, int | None]]]:
        """Number of network channels: (communicator, both ranks) -> (both NICs) -> number."""
        counted: dict[Any, Counter[tuple[int | None, int | None]]] = defaultdict(Counter)
        if self.log is not None:
            columns = ("communicator", "from_rank", "to_rank", "src_nic", "dst_nic")
            over = self.log.connections.filter(kind="net").group_by(columns).len()
            for *ends, src_nic, dst_nic, channels in over.iter_rows():
                counted[tuple(ends)][src_nic, dst_nic] = channels
        return counted

    def islands(self, gpus: Mapping[int, int | None]) -> list[list[int]]:
        """Group participants by the NVSwitch of their GPUs; empty if any GPU has no NVSwitch.

        `gpus`: participant -> GPU. Participants of unknown GPU are assigned to the switch of the
        others, if these share one and it connects enough GPUs.
        """
        switches = {
            each: None if gpu is None else self.machine.switch(gpu) for each, gpu in gpus.items()
        }
        names = list(dict.fromkeys(switches[each] for each in gpus if gpus[each] is not None))
        if len(names) == 1 and names[0] and len(gpus) <= self.machine.graph.degree(names[0]):
            return [list(gpus)]
        if None in switches.values():
            return []
        return [[each for each, switch in switches.items() if switch == name] for name in names]


class Modelled:
    """Modelled transfers of collectives of known size, by their algorithm.

    If the algorithm is unknown and the machine's NVSwitch can reduce, a collective has rows for
    both ring and NVLS. In these rows, ``bytes`` is null, ``choice`` is the id of the collective,
    and ``bytes_if`` has the bytes that the row's algorithm moves. Collectives with unknown
    participants have no rows. Rows are computed anew each time that they are asked for.

    Parameters
    ----------
    calls
        One row per participant of a collective, as in `COLLECTIVE_CALLS`.
    ranks
        Devices and GPUs of the ranks of communicators.
    """

    def __init__(self, calls: pl.DataFrame, ranks: Ranks) -> None:
        wanted, groups, self._edges = _planned(calls, ranks)
        renamed = {f"{name}_own": name for name in (*_OF_SOURCE, "process")}
        self._of_owner = wanted.select("group", owner="device", took_part=True, **renamed)
        pairs = calls.select(owner="device", sole_process="process").drop_nulls().unique()
        self._sole = pairs.unique("owner", keep="none")  # GPUs with collectives in one process only
        transfers = self._edges.group_by("plan").len("transfers")
        # The devices, a list of all ranks, would be repeated for each edge.
        known = groups.drop("algorithm", "devices")
        self._groups = known.join(transfers, on="plan", maintain_order="left")

    @property
    def starts(self) -> pl.DataFrame:
        """``start`` (ns), ``transfers``: when collectives start, and their numbers of transfers."""
        return self._groups.select("start", "transfers")

    def transfers(self, during: Stretch | None = None) -> pl.DataFrame:
        """Return the transfers of the collectives that start in a time span (None: of all).

        Returns
        -------
        Rows of the table `TRANSFERS`, one per collective and pair of GPUs (or GPU and switch)
        between which it moves bytes. ``process`` is that of the source, null if it is not in the
        run.
        """
        groups = self._groups if during is None else self._groups.filter(during.holds())
        most = int(max([1, *groups["transfers"]]))
        # Joined, they take several times what is left of them.
        some = groups.drop("transfers").iter_slices(max(AT_ONCE // most, 1))
        found = pl.concat([TRANSFERS.empty(), *map(self._moved, some)])
        return found.sort("report", "start", maintain_order=True)

    def _moved(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Return the transfers of the collectives in `groups`."""
        found = (
            groups.join(self._edges, on="plan")
            # What a switch hands to a GPU is of the call of that one.
            .with_columns(
                owner=pl.coalesce("src_device", pl.when("at_switch").then("dst_device"))
            )
            .join(self._of_owner, on=["group", "owner"], how="left")
            .join(self._sole, on="owner", how="left")
            .with_columns(
                # An edge is busy while its sending GPU is; if that was not seen, all the time.
                *(
                    pl.when("took_part").then(f"{name}_own").otherwise(name).alias(name)
                    for name in _OF_SOURCE
                ),
                bytes=pl.col("bytes") * pl.col("part") // pl.col("whole"),
                process=pl.coalesce("process_own", "sole_process"),
                method=pl.when(pl.col("library") == "nccl").then(pl.lit("nccl"))
                .otherwise(pl.lit("collective")),
                evidence=pl.when("is_open").then(pl.lit("modelled between"))
                .otherwise(pl.lit("modelled")),
            )
            .with_columns(
                choice=pl.when("is_open").then("group"), bytes_if=pl.when("is_open").then("bytes"),
                bytes=pl.when(~pl.col("is_open")).then("bytes"),
            )
        )  # fmt: skip
        return TRANSFERS.conform(found)


def sent_by_each(calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the bytes that each GPU of a collective sends, modelled.

    Returns
    -------
    ``op, algorithms, least_gpu_bytes, most_gpu_bytes``, one row per kernel of known size and
    participants: the possible algorithms, joined by ``or``, and the mean bytes per GPU under the
    algorithm that sends least and under the one that sends most.
    """
    wanted, groups, edges = _planned(calls, ranks)
    share = pl.col("part") / pl.col("whole") / pl.col("members")
    each = (
        edges.filter("sends")
        .group_by("plan", "algorithm", maintain_order=True).agg(share=share.sum())
        .group_by("plan").agg(
            algorithms=pl.col("algorithm").str.join(" or "),
            least=pl.col("share").min(), most=pl.col("share").max(),
        )
    )  # fmt: skip
    sent = (pl.col("least", "most") * pl.col("bytes")).round().cast(pl.Int64)
    known = groups.join(each, on="plan").select(
        "group", "algorithms", sent.name.suffix("_gpu_bytes")
    )
    return wanted.select("op", "group").join(known, on="group").drop("group")


def link_bounds(calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the least time that collectives need, as bounded by the peak bandwidth of links.

    For each link and direction, the bytes that the algorithm sends over it are divided by its peak
    rate; the longest of these times is the bound. If several algorithms are possible, the one with
    the least bound counts. Real times are longer by latency, protocol overhead and other traffic.

    Returns
    -------
    ``op, bound_ns``, one row per kernel of known size and participants whose links all have a known
    peak.
    """
    wanted, groups, edges = _planned(calls, ranks)
    ends = edges.with_row_index("edge").with_columns(
        pl.lit(None, pl.Int32).alias("via_device"), pl.lit("nccl").alias("method"),
        *(pl.lit(None, pl.Int64).alias(name)
          for name in ("start", "end", "first_end", "second_start")),
    )  # fmt: skip
    crossed = crossings(ends, ranks.machine, ranks.place)
    crossed = ends.select("edge", "plan", "algorithm", "part", "whole").join(
        crossed.select("edge", "link", "src", "dst", "bandwidth"), on="edge", how="left"
    )
    by_link = crossed.group_by("plan", "algorithm", "link", "src", "dst").agg(
        ns=(pl.col("part") / pl.col("whole")).sum() / pl.col("bandwidth").first() * 1e9
    )
    all_known = pl.col("ns").is_not_null().all()
    ns_per_byte = (
        by_link.group_by("plan", "algorithm").agg(pl.when(all_known).then(pl.col("ns").max()))
        .group_by("plan").agg(pl.when(all_known).then(pl.col("ns").min())).drop_nulls()
    )  # fmt: skip
    bound = (pl.col("bytes") * pl.col("ns")).round().cast(pl.Int64)
    known = groups.join(ns_per_byte, on="plan").select("group", bound_ns=bound)
    return wanted.select("op", "group").join(known, on="group").drop("group")


def _planned(calls: pl.DataFrame, ranks: Ranks) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return kernels with their ``group``, groups with their ``plan``, and edges of plans.

    Only kernels of collectives of known size; ``group`` numbers the collectives (all GPUs
    together). Collectives with the same operation, GPUs and algorithm share a ``plan``; its edges
    are pairs of GPUs between which bytes move, with their shares of the bytes.
    """
    wanted = calls.filter(
        (pl.col("library") != "mpi")
        & pl.col("bytes").is_not_null()
        & (pl.col("collective") != "send_recv")
    ).with_columns(group=pl.coalesce("match", -1 - pl.col("op")))
    groups = _groups(wanted, ranks.size)
    plans = groups.select(_PLAN).unique(maintain_order=True).with_row_index("plan")
    edges = [
        (number, *edge)
        for number, *plan in plans.rows()
        for edge in _edges(dict(zip(_PLAN, plan, strict=True)), ranks)
    ]
    schema: dict[str, PolarsType] = {"plan": plans.schema["plan"], **_EDGES}
    found = pl.DataFrame(edges, schema=schema, orient="row")
    return wanted, groups.join(plans, on=_PLAN, nulls_equal=True), found


def unmodelled(calls: pl.DataFrame, machine: Machine) -> list[str]:
    """Return warnings: collectives whose bytes are on no link, as their algorithm has no model.

    Parameters
    ----------
    calls
        One row per participant of a collective, as in `COLLECTIVE_CALLS`.
    machine
        The machine; NVSwitch algorithms are modelled only if it has an NVSwitch.
    """
    lost = _NOT_MODELLED if machine.nodes("nvswitch") else (*_NOT_MODELLED, *IN_SWITCH)
    others = calls.filter(
        pl.col("library") == "nccl", pl.col("algorithm").is_in(lost),
        ~pl.col("collective").is_in(_ANY_ALGORITHM),
    )  # fmt: skip
    counted = others.group_by("algorithm").len().sort("algorithm")
    return [
        f"{number:,} collective kernels ran {name}, whose traffic is not modelled: their bytes are "
        "on no link"
        for name, number in counted.iter_rows()
    ]


def message_transfers(messages: pl.DataFrame, calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the messages of NCCL's send and receive whose peer and size were recorded.

    A message that both sender and receiver recorded counts once, as the sender recorded it.
    Messages from a rank to itself cross no link and are left out.

    Parameters
    ----------
    messages
        NCCL calls from `nccl_messages`.
    calls
        One row per participant of a collective (`COLLECTIVE_CALLS`); gives the times of kernels.
    ranks
        Devices and GPUs of the ranks of communicators.

    Returns
    -------
    Rows of the table `TRANSFERS`, all of them measured.
    """
    kernels = calls.filter(pl.col("op").is_not_null()).select(
        "op", "device", "rank", "start", "end", "stage", "iteration"
    )
    known = messages.filter(
        pl.col("direction").is_not_null() & pl.all_horizontal(
            pl.col("op", "peer", "communicator", "message_bytes").is_not_null()
        )
    )  # fmt: skip
    placed = known.select(
        "report",
        "process",
        "op",
        "communicator",
        "direction",
        "peer",
        bytes="message_bytes",
        source="bytes_source",
    ).join(kernels, on="op")
    others = ranks.devices.select("communicator", peer="rank", other="device").unique(
        ["communicator", "peer"], keep="first", maintain_order=True
    )
    joined = placed.join(others, on=["communicator", "peer"], how="left")
    seen = kernels["device"].unique().implode()
    sends = pl.col("direction") == "send"
    once = joined.filter(sends | ~pl.col("other").is_in(seen).fill_null(value=False))
    moved = once.with_columns(
        src_device=pl.when(sends).then("device").otherwise("other"),
        dst_device=pl.when(sends).then("other").otherwise("device"),
        method=pl.lit("nccl"),
        evidence=pl.lit("measured"),
        collective=pl.lit("send_recv"),
    ).filter(pl.col("src_device").ne_missing(pl.col("dst_device")))
    return TRANSFERS.conform(moved).sort("report", "start")


def unrecorded(calls: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the calls whose bytes are not all in `messages`, so that they must be modelled.

    A call is covered if the devices at both ends of all its messages are known, or if this is true
    for another participant of its collective. An all-to-all that consists of sends and receives
    moves no bytes beyond these.

    Parameters
    ----------
    calls
        One row per participant of a collective, as in `COLLECTIVE_CALLS`.
    messages
        Transfers by messages of known peer and size, from `message_transfers`.
    """
    both = pl.all_horizontal(pl.col("src_device", "dst_device").is_not_null())
    known = messages.group_by("op").agg(both.all().alias("both")).filter("both")["op"]
    is_known = pl.col("op").is_in(known.implode())
    return calls.filter(~is_known.any().over(pl.coalesce("match", -1 - pl.col("op"))))


def rank_devices(
    calls: pl.DataFrame,
    log: NcclLog | None,
    processes: pl.DataFrame,
    devices: pl.DataFrame,
) -> pl.DataFrame:
    """Return the device of each rank of each communicator, if known.

    A rank's device is the one on which the rank ran collectives, else the one at the PCI bus
    location in the log, else the only one on which the rank's process ran collectives.

    Parameters
    ----------
    calls
        One row per participant of a collective, as in `COLLECTIVE_CALLS`.
    log
        An NCCL log of the run.
    processes
        The canonical table, with ``host``.
    devices
        The canonical table, with ``host``.

    Returns
    -------
    ``communicator, rank, device``.

    Raises
    ------
    UsageError
        If none of the log's processes is in the run.
    """
    columns = ("communicator", "rank", "device")
    seen = calls.select(columns).drop_nulls().unique(["communicator", "rank"], keep="first")
    if log is None:
        return seen
    ranks = log.ranks.cast({"pid": pl.Int64, "rank": pl.Int32})
    here = log_processes(log.writers, processes, str(log.path))
    single = calls.filter(pl.col("device").n_unique().over("process") == 1)
    by_process = here.join(single.select("process", "device").unique(), on="process")
    logged = (
        _at_buses(ranks, here, devices),
        ranks.join(by_process, on=["host", "pid"], nulls_equal=True),
    )
    found = pl.concat([seen, *(some.select(seen.columns) for some in logged)])
    return found.unique(["communicator", "rank"], keep="first", maintain_order=True)


def _at_buses(ranks: pl.DataFrame, here: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks of a log with exactly one device at their PCI bus location and host.

    Only hosts with a process in the run are searched.
    """
    places = devices.drop_nulls("pci_bus").select(
        "device", host_run="host", bus=_bus(pl.col("pci_bus"))
    )
    return (
        ranks.with_columns(bus=_bus(pl.col("pci_bus")))
        .join(here.select("host", "host_run").unique(), on="host", nulls_equal=True)
        .join(places, on=["host_run", "bus"], nulls_equal=True)
        .drop_nulls("bus")
        .select("communicator", "rank", "device")
        .unique()
        .unique(["communicator", "rank"], keep="none", maintain_order=True)
    )


def _bus(location: pl.Expr) -> pl.Expr:
    """Normalise a PCI bus location, whose domain may have four digits, eight, or none."""
    return location.str.to_lowercase().str.strip_chars_start("0:")


def _groups(calls: pl.DataFrame, size: int | None) -> pl.DataFrame:
    """Return one row per collective (matched kernels), with its recorded devices in rank order.

    `size` is the number of ranks where it was not recorded.
    """
    ordered = calls.sort("group", "rank", "device", nulls_last=True)
    return ordered.group_by("group", maintain_order=True).agg(
        pl.col("report", "op", "stage", "iteration").first(),
        pl.col("library", "collective", "communicator").first(),
        pl.col("algorithm").drop_nulls().first(),
        pl.col("root").drop_nulls().first(),
        pl.coalesce(pl.col("ranks").max(), pl.lit(size, pl.Int32)).alias("ranks"),
        pl.col("bytes").max(),
        pl.col("start").min(),
        pl.col("end").max(),
        devices=pl.col("device").unique(maintain_order=True),
    )


def _edges(plan: Mapping[str, Any], ranks: Ranks) -> Iterator[tuple[Any, ...]]:
    """Yield the pairs of GPUs between which a collective moves bytes (columns `_EDGES`).

    Rings and trees from an NCCL log connect ranks, in one direction; rings found in the machine's
    topology connect GPUs, in both directions.
    """
    logged = ranks.logged(plan["communicator"])
    if ranks.log is not None and logged is not None:
        rings, trees = log_rings(ranks.log, logged)
        order, devices, source = sorted(rings[0].gpus), ranks.of(logged), "log"
        gpus = {rank: ranks.place.get(devices.get(rank, -1)) for rank in order}
    else:
        order = _participants(plan, ranks)
        rings, trees = find_rings(ranks.machine, order), []
        devices, source = {gpu: device for device, gpu in ranks.place.items()}, "topology"
        gpus = {gpu: gpu for gpu in order}
    islands = ranks.islands(gpus)
    algorithms = _algorithms(plan, ranks, logged, {*gpus.values()}, [*map(len, islands)])
    for algorithm in algorithms:
        if algorithm in IN_SWITCH and not islands:
            continue
        try:
            found = shares(
                plan["collective"], order, algorithm=algorithm, rings=rings, trees=trees,
                root=plan["root"], bidirectional=source == "topology", islands=islands,
            )  # fmt: skip
        except UsageError:  # what is known of the ranks contradicts itself, so they are not known
            return
        for edge in found:
            ends = [None if end is None else devices.get(end) for end in (edge.src, edge.dst)]
            marks = None in (edge.src, edge.dst), len(algorithms) > 1, edge.src is not None
            for nics, part in ranks.nics(logged, edge.src, edge.dst):
                share = edge.share * part
                parts = share.numerator, share.denominator
                yield *ends, *parts, *nics, source, algorithm, *marks, len(order)


def _algorithms(
    plan: Mapping[str, Any],
    ranks: Ranks,
    logged: str | None,
    gpus: set[int | None],
    islands: Sequence[int],
) -> list[str]:
    """Return the possible algorithms of a collective: a ring, or NVLS if NCCL can use it.

    NCCL can if all its GPUs (`gpus`) are behind switches that reduce, enough at each (`islands`),
    and the log does not show that the communicator (`logged`) has no NVLS channels. A kernel of
    another library has a known algorithm only if it implements a single one.
    """
    if plan["algorithm"] is not None or plan["library"] != "nccl":
        return [plan["algorithm"] or ("ring" if plan["collective"] in _ANY_ALGORITHM else "")]
    can = (
        plan["collective"] in (_REDUCED if len(islands) == 1 else _REDUCED[:1])
        and islands
        and min(islands) >= _LEAST_IN_SWITCH
        and gpus - {None} <= ranks.reducing
        and not _without_nvls(ranks.log, logged)
    )
    return ["ring", "nvls" if len(islands) == 1 else "nvls_tree"] if can else ["ring"]


def _without_nvls(log: NcclLog | None, communicator: str | None) -> bool:
    """Test whether a log shows that a communicator has no NVLS channels."""
    if log is None or log.nvls.is_empty():
        return False
    return log.nvls.filter(communicator=communicator, channels=0).height > 0


def _participants(plan: Mapping[str, Any], ranks: Ranks) -> list[int]:
    """Return the GPUs of a communicator in order of ranks; empty if any is unknown."""
    seen = [ranks.place[device] for device in plan["devices"] if device in ranks.place]
    known = ranks.of(plan["communicator"])
    if len(known) == plan["ranks"] and set(known.values()) <= ranks.place.keys():
        return [ranks.place[known[rank]] for rank in sorted(known)]
    if len(seen) > 1 and plan["ranks"] in (None, len(seen)):
        return seen
    return list(ranks.machine.gpus) if plan["ranks"] == len(ranks.machine.gpus) else []


def log_rings(log: NcclLog, communicator: str) -> tuple[list[Ring], list[list[tuple[int, int]]]]:
    """Return the rings and trees (of ranks) of a communicator in a log, one per channel."""
    is_chosen = pl.col("communicator") == communicator
    rings, trees = (
        some.filter(is_chosen).sort("channel", *order).partition_by("channel", maintain_order=True)
        for some, order in ((log.rings, ["position"]), (log.trees, ["rank"]))
    )
    return (
        [Ring(tuple(rows["rank"])) for rows in rings],
        [rows.drop_nulls("parent").select("rank", "parent").rows() for rows in trees],
    )
