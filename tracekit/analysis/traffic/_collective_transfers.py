"""Bytes that collectives move between GPUs: modelled, except messages with recorded ends."""

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
from tracekit.machine import IN_SWITCH, Machine, NcclLog, Ring, Tree, find_rings, shares
from tracekit.model import TRANSFERS, PolarsType

_PLAN = ["library", "collective", "root", "algorithm", "communicator", "ranks", "devices"]
"""What decides over which edges a collective goes, and with which shares."""
_OF_SOURCE = ("report", "op", "start", "end", "stage", "iteration")
"""What an edge has of the call of the GPU that sends, as it has the process."""
_NOT_MODELLED = ("collnet_direct", "collnet_chain", "symmetric")
_ANY_ALGORITHM = ("all_to_all", "gather", "scatter", "send_recv")
_REDUCED = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives for which NCCL has kernels that reduce or multicast in a switch."""
_LEAST_IN_SWITCH = 3
"""With fewer GPUs at a switch NCCL does not let it reduce (``ncclNvlsInit``)."""
_EDGES: dict[str, PolarsType] = {
    "src_device": pl.Int32, "dst_device": pl.Int32, "part": pl.Int64, "whole": pl.Int64,
    "src_nic": pl.Int32, "dst_nic": pl.Int32, "source": pl.String, "algorithm": pl.String,
    "at_switch": pl.Boolean, "is_open": pl.Boolean, "sends": pl.Boolean, "members": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Devices of the ranks of communicators.

    Parameters
    ----------
    machine
        The machine.
    place
        Which GPU of the machine each device of the run is.
    devices
        ``communicator, rank, device``, as far as they are known.
    log
        An NCCL log of the run, whose rings and trees are taken.
    size
        Number of ranks of communicators of unknown size, as the user says.
    reducing
        GPUs of the machine whose NVSwitch can reduce and multicast.
    """

    machine: Machine
    place: Mapping[int, int]
    devices: pl.DataFrame
    log: NcclLog | None = None
    size: int | None = None
    reducing: frozenset[int] = frozenset()

    def of(self, communicator: str | None) -> dict[int, int]:
        """Return the device of each rank of a communicator, as far as they are known."""
        rows = self.devices.filter(pl.col("communicator").eq_missing(pl.lit(communicator)))
        return dict(rows.select("rank", "device").drop_nulls().rows())

    @cached_property
    def device_of(self) -> dict[int, int]:
        """The device of the run that each GPU of the machine is."""
        return {gpu: device for device, gpu in self.place.items()}

    def logged(self, communicator: str | None) -> str | None:
        """Return the name of a communicator in the log, None if it has none.

        A log with the rings of one communicator speaks of that one, whatever the trace calls it.
        """
        if self.log is None:
            return None
        names = self.log.rings["communicator"].unique().to_list()
        return communicator if communicator in names else names[0] if len(names) == 1 else None

    def nics(
        self, communicator: str | None, src: int | None, dst: int | None
    ) -> list[tuple[tuple[int | None, int | None], Fraction]]:
        """Return by which NICs ranks are connected, as a log has it, and the share of channels."""
        found = self._connections.get((communicator, src, dst), {(None, None): 1})
        channels = sum(found.values())
        return [(nics, Fraction(count, channels)) for nics, count in sorted(found.items(), key=str)]

    @cached_property
    def _connections(
        self,
    ) -> Mapping[tuple[str | None, int | None, int | None], Counter[tuple[int | None, int | None]]]:
        """Channels by communicator, ranks at both ends and NICs there, of those over a network."""
        counted: dict[Any, Counter[tuple[int | None, int | None]]] = defaultdict(Counter)
        if self.log is not None:
            columns = ("communicator", "from_rank", "to_rank", "src_nic", "dst_nic")
            over = self.log.connections.filter(kind="net").group_by(columns).len()
            for *ends, src_nic, dst_nic, channels in over.iter_rows():
                counted[tuple(ends)][src_nic, dst_nic] = channels
        return counted

    def islands(self, gpus: Mapping[int, int | None]) -> list[list[int]]:
        """Return participants by the NVSwitch of their GPUs; none where one has none.

        Those of an unknown GPU are at the switch of all others, if it has as many GPUs.
        """
        switches = {
            each: None if gpu is None else self.machine.switch(gpu) for each, gpu in gpus.items()
        }
        names = list(dict.fromkeys(switches[each] for each in gpus if gpus[each] is not None))
        if len(names) == 1 and names[0] and len(gpus) <= self.machine.graph.degree(names[0]):
            return [list(gpus)]
        if None in switches.values():
            return []
        return [[each for each, own in switches.items() if own == name] for name in names]


def modelled_transfers(calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the modelled transfers of collectives of known size, by their algorithm.

    Where it is not known which ran, and the machine's NVSwitch can reduce, a ring's rows and those
    of NVLS are both there, with ``choice`` and ``bytes_if`` in place of bytes.

    Parameters
    ----------
    calls
        As in the table `COLLECTIVE_CALLS`.
    ranks
        Who takes part, and on which machine.

    Returns
    -------
    Rows of the table `TRANSFERS`, a row per collective and edge, all of them modelled. Each is of
    the process at its source, null where that is not known to be in the run. Collectives whose
    participants are not known have none.
    """
    wanted, groups, edges = _planned(calls, ranks)
    own = {f"{name}_own": name for name in (*_OF_SOURCE, "process")}
    moved = (
        groups.drop("algorithm")
        .join(edges, on="plan")
        # What a switch hands to a GPU is of the call of that one.
        .with_columns(owner=pl.coalesce("src_device", pl.when("at_switch").then("dst_device")))
        .join(
            wanted.select("group", owner="device", took_part=True, **own),
            on=["group", "owner"], how="left",
        )
        .join(_sole_processes(calls), on="owner", how="left")
        .with_columns(
            # An edge is busy while the GPU that sends is; if that one was not seen, all the time.
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
    return TRANSFERS.conform(moved).sort("report", "start")


def sent_by_each(calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the bytes that each GPU of a collective sends, modelled.

    Returns
    -------
    ``op, algorithms, least_gpu_bytes, most_gpu_bytes``, a row per kernel of known size and
    participants: the algorithms that may have run, with ``or`` between them, and the mean over its
    GPUs by the one that sends least and most.
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
    """Return how long the links that collectives cross need for their bytes at their peaks.

    Of each collective that is the link and direction that needs longest, by the bytes that its
    algorithm puts on it; where one of several ran, by the one that needs least. Start-up of an
    algorithm's steps, protocol overhead and other traffic come on top.

    Returns
    -------
    ``op, bound_ns``, a row per kernel of known size and participants, all of whose edges are on
    links of known peak.
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
    """Return kernels of known size with their ``group``, groups with their ``plan``, and edges."""
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


def _sole_processes(calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``owner, sole_process`` of the GPUs on which one process ran collectives."""
    pairs = calls.select(owner="device", sole_process="process").drop_nulls().unique()
    return pairs.unique("owner", keep="none")


def unmodelled(calls: pl.DataFrame, machine: Machine) -> list[str]:
    """Name collectives whose algorithm is not modelled, so that they are on no link.

    Parameters
    ----------
    calls
        As in the table `COLLECTIVE_CALLS`.
    machine
        The machine: without an NVSwitch no algorithm of one is modelled.
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

    Of a message both of whose ends are in the run, the one that sends counts. What a rank sends to
    itself crosses nothing and is left out.

    Parameters
    ----------
    messages
        NCCL calls, as `nccl_messages` returns them.
    calls
        As in the table `COLLECTIVE_CALLS`, for when their kernels ran.
    ranks
        Who takes part.

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
    """Return the calls but those that `message_transfers` knows, with both ends of each message.

    An all-to-all that was carried out by sends and receives moves nothing beyond these.

    Parameters
    ----------
    calls
        As in the table `COLLECTIVE_CALLS`.
    messages
        What `message_transfers` returns.
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
    """Return which device each rank of each communicator is, as far as that is known.

    A rank is on the device on which it was seen, else on the one at the PCI bus location that the
    log gives, else on the only one on which its process ran collectives.

    Parameters
    ----------
    calls
        As in the table `COLLECTIVE_CALLS`.
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
        If the log is of another run: none of its processes is in this one.
    """
    columns = ("communicator", "rank", "device")
    seen = calls.select(columns).drop_nulls().unique(["communicator", "rank"], keep="first")
    if log is None:
        return seen
    ranks = log.ranks.cast({"pid": pl.Int64, "rank": pl.Int32})
    here = log_processes(log.writers, processes, str(log.path))
    own = calls.filter(pl.col("device").n_unique().over("process") == 1)
    by_process = here.join(own.select("process", "device").unique(), on="process")
    told = (
        _at_buses(ranks, here, devices),
        ranks.join(by_process, on=["host", "pid"], nulls_equal=True),
    )
    found = pl.concat([seen, *(some.select(seen.columns) for some in told)])
    return found.unique(["communicator", "rank"], keep="first", maintain_order=True)


def _at_buses(ranks: pl.DataFrame, here: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks of a log that have one device at their place on the PCI bus of their host.

    All ranks of a host count of which any process is in the run.
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
    """Return a PCI bus location in one form: the domain may have four digits, eight, or none."""
    return location.str.to_lowercase().str.strip_chars_start("0:")


def _groups(calls: pl.DataFrame, size: int | None) -> pl.DataFrame:
    """Return a row per collective, with the devices that were seen to take part, in rank order."""
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
    """Yield the edges of a collective, as `_EDGES` says.

    Rings and trees of a log are of ranks, and directed; those of the topology are of GPUs of the
    machine, and go both ways.
    """
    logged = ranks.logged(plan["communicator"])
    if ranks.log is not None and logged is not None:
        rings, trees = log_rings(ranks.log, logged)
        order, devices, source = sorted(rings[0].gpus), ranks.of(logged), "log"
        gpus = {rank: ranks.place.get(devices.get(rank, -1)) for rank in order}
    else:
        order = _participants(plan, ranks)
        rings, trees = find_rings(ranks.machine, order), []
        devices, source = ranks.device_of, "topology"
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
    """Return the algorithms that a collective may have run: a ring, or NVLS where NCCL can take it.

    Of other libraries' kernels only those are known that are made for one.
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
    """Tell whether a log says that a communicator has no channels for NVLS."""
    if log is None or log.nvls.is_empty():
        return False
    return log.nvls.filter(communicator=communicator, channels=0).height > 0


def _participants(plan: Mapping[str, Any], ranks: Ranks) -> list[int]:
    """Return the GPUs of a communicator in rank order; none where they are not known."""
    seen = [ranks.place[device] for device in plan["devices"] if device in ranks.place]
    known = ranks.of(plan["communicator"])
    if len(known) == plan["ranks"] and set(known.values()) <= ranks.place.keys():
        return [ranks.place[known[rank]] for rank in sorted(known)]
    if len(seen) > 1 and plan["ranks"] in (None, len(seen)):
        return seen
    return list(ranks.machine.gpus) if plan["ranks"] == len(ranks.machine.gpus) else []


def log_rings(log: NcclLog, communicator: str) -> tuple[list[Ring], list[Tree]]:
    """Return the rings and trees of a communicator of a log, by rank; one of each per channel."""
    own = pl.col("communicator") == communicator
    rings, trees = (
        some.filter(own).sort("channel", *order).partition_by("channel", maintain_order=True)
        for some, order in ((log.rings, ["position"]), (log.trees, ["rank"]))
    )
    return (
        [Ring(tuple(rows["rank"])) for rows in rings],
        [Tree(tuple(rows.drop_nulls("parent").select("rank", "parent").rows())) for rows in trees],
    )
