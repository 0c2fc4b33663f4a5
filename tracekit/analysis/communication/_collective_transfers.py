"""What NCCL's collectives move between GPUs: a model, but for messages whose ends were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from tracekit.analysis.communication._log_processes import log_processes
from tracekit.errors import UsageError
from tracekit.machine import Machine, NcclLog, Ring, Tree, find_rings, shares
from tracekit.model import TRANSFERS, PolarsType

_PLAN = ["collective", "root", "algorithm", "communicator", "ranks", "devices"]
"""What decides over which edges a collective goes, and with which shares."""
_OF_SOURCE = ("report", "op", "start", "end", "stage", "iteration")
"""What an edge has of the call of the GPU that sends, as it has the process."""
_MODELLED = ("ring", "tree")
"""Algorithms whose volumes are known: what NVLS, CollNet and PAT move is not what a ring does."""
_ANY_ALGORITHM = ("all_to_all", "gather", "scatter", "send_recv")
_EDGES: dict[str, PolarsType] = {
    "src_device": pl.Int32, "dst_device": pl.Int32, "part": pl.Int64, "whole": pl.Int64,
    "source": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Where the ranks of communicators are.

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
    """

    machine: Machine
    place: Mapping[int, int]
    devices: pl.DataFrame
    log: NcclLog | None = None
    size: int | None = None

    def of(self, communicator: str | None) -> dict[int, int]:
        """Return the device of each rank of a communicator, as far as they are known."""
        rows = self.devices.filter(pl.col("communicator").eq_missing(pl.lit(communicator)))
        return dict(rows.select("rank", "device").drop_nulls().rows())

    @cached_property
    def device_of(self) -> dict[int, int]:
        """The device of the run that each GPU of the machine is."""
        return {gpu: device for device, gpu in self.place.items()}

    def logged(self, communicator: str | None) -> str | None:
        """Return what the log calls a communicator, None where it says nothing of it.

        A log with the rings of one communicator speaks of that one, whatever the trace calls it.
        """
        if self.log is None:
            return None
        names = self.log.rings["communicator"].unique().to_list()
        return communicator if communicator in names else names[0] if len(names) == 1 else None


def modelled_transfers(calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return what collectives of known size move along rings and trees.

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
    wanted = calls.filter(
        (pl.col("library") == "nccl")
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
    own = {f"{name}_own": name for name in (*_OF_SOURCE, "process")}
    moved = (
        groups.join(plans, on=_PLAN, nulls_equal=True)
        .join(pl.DataFrame(edges, schema=schema, orient="row"), on="plan")
        .join(
            wanted.select("group", src_device="device", took_part=True, **own),
            on=["group", "src_device"], how="left",
        )
        .join(_sole_processes(calls), on="src_device", how="left")
        .with_columns(
            # An edge is busy while the GPU that sends is; if that one was not seen, all the time.
            *(
                pl.when("took_part").then(f"{name}_own").otherwise(name).alias(name)
                for name in _OF_SOURCE
            ),
            bytes=pl.col("bytes") * pl.col("part") // pl.col("whole"),
            process=pl.coalesce("process_own", "sole_process"),
            method=pl.lit("nccl"),
            evidence=pl.lit("modelled"),
        )
    )  # fmt: skip
    return TRANSFERS.conform(moved).sort("report", "start")


def _sole_processes(calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``src_device, sole_process`` of the GPUs on which one process ran collectives."""
    pairs = calls.select(src_device="device", sole_process="process").drop_nulls().unique()
    return pairs.unique("src_device", keep="none")


def unmodelled(calls: pl.DataFrame) -> list[str]:
    """Say which collectives are on no link since what their algorithm moves is not modelled.

    Parameters
    ----------
    calls
        As in the table `COLLECTIVE_CALLS`.
    """
    others = calls.filter(
        pl.col("library") == "nccl", ~pl.col("algorithm").is_in(_MODELLED),
        ~pl.col("collective").is_in(_ANY_ALGORITHM),
    )  # fmt: skip
    counted = others.group_by("algorithm").len().sort("algorithm")
    return [
        f"{number:,} NCCL kernels ran {name}, whose traffic is not modelled: their bytes are on no"
        " link"
        for name, number in counted.iter_rows()
    ]


def message_transfers(messages: pl.DataFrame, calls: pl.DataFrame, ranks: Ranks) -> pl.DataFrame:
    """Return the messages of NCCL's send and receive whose peer and size were recorded.

    Of a message both of whose ends are in the run, the one that sends counts. What a rank sends to
    itself crosses nothing and is left out.

    Parameters
    ----------
    messages
        NCCL calls, as `nccl_calls` returns them.
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
        "report", "process", "op", "communicator", "direction", "peer", bytes="message_bytes"
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
        source=pl.lit("payload"),
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
        pl.col("collective", "communicator", "algorithm").first(),
        pl.col("root").drop_nulls().first(),
        pl.coalesce(pl.col("ranks").max(), pl.lit(size, pl.Int32)).alias("ranks"),
        pl.col("bytes").max(),
        pl.col("start").min(),
        pl.col("end").max(),
        devices=pl.col("device").unique(maintain_order=True),
    )


def _edges(plan: Mapping[str, Any], ranks: Ranks) -> Iterator[tuple[Any, ...]]:
    """Yield ``src_device, dst_device, part, whole, source`` of the edges of a collective.

    Rings and trees of a log are of ranks, and directed; those of the topology are of GPUs of the
    machine, and go both ways.
    """
    logged = ranks.logged(plan["communicator"])
    if ranks.log is not None and logged is not None:
        rings, trees = log_rings(ranks.log, logged)
        order, devices, source = sorted(rings[0].gpus), ranks.of(logged), "log"
    else:
        order = _participants(plan, ranks)
        rings, trees = find_rings(ranks.machine, order), []
        devices, source = ranks.device_of, "topology"
    try:
        found = shares(
            plan["collective"], order, algorithm=plan["algorithm"] or "ring", rings=rings,
            trees=trees, root=plan["root"], bidirectional=source == "topology",
        )  # fmt: skip
    except UsageError:  # what is known of the ranks contradicts itself, so they are not known
        return
    for edge in found:
        part = edge.share.numerator, edge.share.denominator
        yield devices.get(edge.src), devices.get(edge.dst), *part, source


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
