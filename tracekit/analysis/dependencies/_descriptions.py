"""Describe edges of the dependency graph: op or call, stage, and link that limits a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import polars as pl

from tracekit.analysis.traffic import crossings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analysis.dependencies._edges import Moments
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace

NARROWEST_FIRST = ("network", "socket", "pcie", "c2c", "xgmi", "nvlink")
"""Types of links, slowest first: the first one on a route limits the transfer."""
_MEMORY = "host memory"
"""The link of a copy that goes through the driver's buffers in host memory."""
_THROUGH_HOST = 0.6
"""Such a copy takes less than this share of the peak of the fullest link on its way."""
UNTOLD = "untold"
"""The link of what moves between GPUs over a way that is not known."""
_FOUND = pl.Schema({"op": pl.Int64(), "link": pl.String(), "others_use": pl.Float64()})


def _link_of_ops(traffic: Traffic, moments: Moments) -> pl.DataFrame:
    """Return ``op, link, others_use`` of ops that move bytes.

    `link` is the type of the link that limits the op (`UNTOLD` if unknown); `others_use` is the
    highest utilisation of the other links on its route during the op, which bounds the gain from a
    faster link. For collectives the link is NVLink if NVLinks join all GPUs of the run, else
    PCIe.
    """
    moving = moments.ops.filter(pl.col("work").is_in(["comm", "host_copy"]))
    copies = _copies(traffic, moments)
    of_groups = moving.filter(pl.col("kind") == "collective").select(
        "op", link=pl.lit(_joined_by(traffic, moving)), others_use=pl.lit(None, pl.Float64)
    )
    rest = moving.select("op").join(copies, on="op", how="left")
    untold = rest.join(of_groups, on="op", how="anti").with_columns(
        pl.col("link").fill_null(UNTOLD)
    )
    return pl.concat([untold.select(*_FOUND).cast(_FOUND), of_groups.cast(_FOUND)])


def _copies(traffic: Traffic, moments: Moments) -> pl.DataFrame:
    """Return ``op, link, others_use`` (see `_link_of_ops`) of the copies with a known route."""
    transfers = traffic.transfers.filter(~pl.col("method").is_in(["nccl", "collective"]))
    if transfers.is_empty():
        return pl.DataFrame(schema=_FOUND)
    crossed = crossings(transfers, traffic.placed.machine, traffic.placed.place)
    rank = {name: place for place, name in enumerate(NARROWEST_FIRST)}
    ranked = (
        _by_op(crossed)
        .filter(pl.col("end") > pl.col("start"))
        .with_columns(
            rank=pl.col("type").replace_strict(rank, default=len(rank), return_dtype=pl.Int64)
        )
    )
    is_own = pl.col("rank") == pl.col("rank").min().over("op")
    used = _used(ranked.with_columns(is_own=is_own))
    found = used.group_by("op").agg(
        link=pl.col("type").sort_by("rank").first(),
        others_use=pl.col("use").filter(~pl.col("is_own")).max(),
        of_peak=pl.col("of_peak").max(),
    )
    # What holds its call, and is slow for its link, goes through memory that is not pinned.
    synchronous = moments.ops.filter(pl.col("launch_end") >= pl.col("end")).select("op", held=True)
    through_host = pl.col("held").is_not_null() & (pl.col("of_peak") < _THROUGH_HOST)
    link = pl.when(through_host.fill_null(value=False)).then(pl.lit(_MEMORY)).otherwise("link")
    return found.join(synchronous, on="op", how="left").with_columns(link=link).select(*_FOUND)


def _by_op(crossed: pl.DataFrame) -> pl.DataFrame:
    """Add ``op``, the copy that crosses the link, to rows of (transfer, link on its route).

    A transfer through host memory consists of two copies. Links between CPUs get a row for each of
    the first and the second copy: it is unknown to which CPU the memory belongs.
    """
    first = crossed.filter(
        pl.col("first_end").is_null() | (pl.col("start") < pl.col("first_end"))
    ).with_columns(end=pl.min_horizontal("end", "first_end"))
    second = crossed.drop_nulls("second_op").filter(pl.col("end") > pl.col("second_start"))
    later = second.with_columns(op="second_op", start=pl.max_horizontal("start", "second_start"))
    return pl.concat([first, later]).drop_nulls("op")


def _used(crossed: pl.DataFrame) -> pl.DataFrame:
    """Add ``use``: a link's mean load (byte rate) during a transfer, over the link's capacity.

    The capacity is the peak rate, or the highest mean rate seen during transfers that this type of
    link limited, if lower. ``of_peak`` is the mean load over the peak rate.
    """
    way = ["link", "src", "dst"]
    rate = pl.col("bytes") / (pl.col("end") - pl.col("start"))
    rated = crossed.with_columns(rate=rate)
    turns = pl.concat(
        [
            rated.select(*way, time="start", change="rate"),
            rated.select(*way, time="end", change=-pl.col("rate")),
        ]
    ).group_by(*way, "time").agg(pl.col("change").sum()).sort(*way, "time")  # fmt: skip
    flow = pl.col("change").cum_sum().over(way)
    lasted = (pl.col("time") - pl.col("time").shift().over(way)).fill_null(0)
    curve = turns.with_columns(flow=flow).with_columns(
        carried=(pl.col("flow").shift().over(way).fill_null(0) * lasted).cum_sum().over(way)
    )
    at = {
        edge: curve.select(*way, pl.col("time").alias(edge), pl.col("carried").alias(f"by_{edge}"))
        for edge in ("start", "end")
    }
    known = rated.join(at["start"], on=[*way, "start"], how="left").join(
        at["end"], on=[*way, "end"], how="left"
    )
    reached = known.with_columns(
        mean=(pl.col("by_end") - pl.col("by_start")) / (pl.col("end") - pl.col("start"))
    )
    peak = pl.col("bandwidth") / 1e9
    best = pl.col("mean").filter(pl.col("is_own")).max().over("type")
    return reached.with_columns(
        use=pl.col("mean") / pl.min_horizontal(peak, best), of_peak=pl.col("mean") / peak
    )


def _joined_by(traffic: Traffic, moving: pl.DataFrame) -> str:
    """Return the type of link that joins the GPUs of the collectives in `moving`; else PCIe.

    It is `UNTOLD` if the machine does not tell which GPUs are joined, or these GPUs are unknown.
    """
    place = traffic.placed.place
    devices = moving.filter(pl.col("kind") == "collective")["device"].unique()
    gpus = [f"GPU{place[device]}" for device in devices if device in place]
    graph = traffic.placed.machine.graph
    peers = nx.Graph()
    peers.add_edges_from(ends for *ends, link in graph.edges(data="link") if link.is_peer)
    if not traffic.placed.machine.tells_peers or not gpus:
        return UNTOLD
    kinds = {link.type for *_, link in graph.edges(data="link") if link.is_peer}
    is_connected = all(peers.has_node(gpu) and nx.has_path(peers, gpus[0], gpu) for gpu in gpus)
    return min(kinds) if is_connected and kinds else "pcie"


def described(
    trace: Trace, moments: Moments, traffic: Traffic, columns: Sequence[str]
) -> pl.DataFrame:
    """Describe each call and op, one row each; row ``node // 2`` belongs to the graph's `node`.

    Returns
    -------
    ``process, stage, work, loads`` and `columns`, which may be ``op, device, op_kind, name``,
    ``link`` (type of the link that limits the op) and ``others_use`` (utilisation of the other
    links on its route). Calls have only ``process, name``, the ``stage`` of the next op that their
    thread launches, and ``loads``: whether the thread only loads input.
    """
    ops = moments.ops.rename({"kind": "op_kind"})
    if "name" in columns:
        ops = ops.join(op_names(trace), on="op", how="left", maintain_order="left")
    if "link" in columns:
        links = _link_of_ops(traffic, moments).with_columns(pl.col("link").cast(pl.Categorical))
        ops = ops.join(links, on="op", how="left", maintain_order="left")
    wanted = ["process", "stage", "work", *columns]
    calls = _calls(moments).select("loads", *({"process", "stage", "name"} & {*wanted}))
    return pl.concat([calls, ops.select(wanted)], how="diagonal", rechunk=True)


def described_edges(
    trace: Trace, moments: Moments, traffic: Traffic, rows: pl.DataFrame
) -> pl.DataFrame:
    """Add to each edge the description (see `described`) of the call or op of its target node.

    Also add ``of_source``: the ``work`` of the op that ends at the source; null if none ends there.
    """
    columns = ["op", "device", "op_kind", "name", "link", "others_use"]
    about = described(trace, moments, traffic, columns)
    source, first = pl.col("source"), moments.first_of_ops
    ended = pl.when((source >= first) & (source % 2 == 1)).then((source - first) // 2)
    return rows.with_columns(
        about.select(pl.all().gather(rows["target"] // 2)),
        of_source=moments.ops["work"].gather(rows.select(ended).to_series()),
    )


def op_names(trace: Trace) -> pl.DataFrame:
    """Return ``op, name``: the short name of each op."""
    return trace["ops"].select("op", name=pl.coalesce("short_name", "name")).collect()


def _calls(moments: Moments) -> pl.DataFrame:
    """Return ``process, name, loads, stage`` of calls; see `described`."""
    stage = moments.ops["stage"]
    launched = moments.ops.select(call=pl.col("launch") // 2, code=stage.to_physical() + 1)
    first = launched.drop_nulls("call").reverse()  # of several ops of a call the first one counts
    codes = np.zeros(moments.calls.height, np.uint8)
    codes[first["call"]] = first["code"].fill_null(0)
    code = pl.when(pl.col("code") > 0).then(pl.col("code") - 1)
    calls = moments.calls.select("process", "thread", "name", code=pl.Series(codes))
    launches = pl.when(pl.col("code") > 0).then("thread").backward_fill()
    following = pl.when(launches == pl.col("thread")).then(code.backward_fill())
    loads = pl.col("thread").is_in(moments.loaders.implode())
    return calls.select("process", "name", loads=loads, stage=following.cat.to(stage.dtype))
