"""Movements of data by copies: between GPUs, and between a GPU and host memory.

Each recorded copy is one row. Two copies that form one movement, through host memory or through
another GPU, share a row; no copy is part of two rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.calls import excerpt, mpi_calls, within
from tracekit.model import TRANSFERS, Trace, is_migration
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.machine import Machine

MIN_STAGED_BYTES = 4096
"""Least bytes of a staged copy; smaller copies to the host are results, such as a loss."""

AMONG_GPUS = ("p2p", "staged", "two_hop", "mpi")
"""Methods of copies between GPUs."""

STAGING_GAP_NS = 1_000_000
STAGING_GAP_DURATIONS = 10
HOP_GAP_NS = 100_000

_AS_RECORDED = (
    "op", "report", "process", "start", "end", "bytes", "stage", "iteration", "correlation",
    "graph_node", "launch_thread", "launch_start", "launch_end",
)  # fmt: skip
_CALL = ("process", "correlation", "graph_node")
_RELAYED = ("src_device", "via_device", "dst_device")
_PAIR = ("op", "second_op", "via_device")
_SINGLE_ROOT = 0.9
_FEWEST_WITH_A_ROOT = 3
_COUNTS = {"gpus": pl.Int32, "bytes": pl.Int64}


def copy_transfers(
    trace: Trace,
    machine: Machine | None = None,
    place: Mapping[int, int] | None = None,
) -> pl.DataFrame:
    """Return every movement of data by copies.

    The first of these rules that applies gives the row; a copy is part of one row only:

    ``staged``, source ``same_call``
        Copies to and from host memory that one call launched (one node of it, if it launched a CUDA
        graph), all of them from one GPU and to one other GPU, with as many bytes to the host as
        from it: the driver staged a copy between GPUs, perhaps in several chunks. Measured.
    ``mpi``, source ``mpi_call``
        A copy, or copies as for ``same_call``, launched within an MPI call of the same thread (a
        row of the table `host`, or an NVTX range of the domain ``MPI`` or named ``MPI_...``). An
        end that is no GPU is host memory.
    ``staged``, source ``same_thread``
        A copy to the host, and the next copy that the same thread launched: of the same size, from
        the host to another GPU, launched before the end of the first copy and started after it. The
        thread cannot have looked at the data, and the second copy waited for them. Modelled.
    ``staged``, source ``same_bytes``
        A copy to the host, and a copy of the same size by the same process from the host to another
        GPU. The second copy starts after the end of the first: at most 1 ms later, or ten times the
        duration of the first copy if that is longer. In that time the program can wake up and copy
        or sum the bytes in host memory (several times faster than PCIe), but not begin another
        step. Copies of one size and process are taken first in, first out: each copy from the host
        is paired with the oldest unpaired copy to the host. If both are of one GPU, the data
        returned, which is no movement between GPUs. Migrations of unified memory are left out.
        Which copies belong together is inferred: modelled.
    ``two_hop``, source ``same_thread``
        A copy a->b, and the next copy that the same thread launched: b->c with c unequal a,
        launched before the end of the first copy and started after it. Only where the machine has
        NVLinks a-b and b-c and none a-c, so that there is a reason to go through b. Modelled.
    ``two_hop``, source ``same_bytes``
        A copy b->c, and the last copy a->b of the same size and process before it, with c unequal
        a. The copy a->b ends at most `HOP_GAP_NS` before b->c starts (0.1 ms: time for the program
        to learn of the end and to launch the next copy). No kernel, copy or other op starts on b in
        between, since data that b uses is not only passed on. Only with NVLinks as for
        ``same_thread``. Modelled.
    ``p2p``, ``d2h``, ``h2d``, source ``recorded``
        All other copies: between GPUs (null for an unknown GPU), to the host, and from the host.
        Measured.

    Copies within a GPU or within host memory move nothing over a link and are left out.

    Parameters
    ----------
    machine
        The machine with its links; None: no search for two-hop transfers.
    place
        Device of the run -> GPU of the machine; None: equal indices.

    Returns
    -------
    The table `TRANSFERS`, sorted by trace file and start. `stage` and `iteration` of a row with
    two copies are those of the first copy.
    """
    copies = _with_mpi(trace, _driver_staged(_copies(trace)))
    copies = _program_staged(copies)
    if machine is not None:
        copies = _two_hop(trace, copies, machine, place)
    return TRANSFERS.conform(copies).sort("report", "start", "op")


def traffic_root(transfers: pl.DataFrame) -> pl.DataFrame:
    """Find the GPU through which all copies between GPUs go (the root), if there is one.

    Training with a parameter server on a GPU gathers gradients there and sends weights back: of S
    bytes on n GPUs that is 2(n-1)S in all, of which the root receives one half and sends the other.
    So the share of a GPU is computed as follows; it is 1 for the root:

        share(r) = bytes of transfers from or to r / bytes of all transfers

    If the work is spread evenly over n GPUs, each share is 2/n. Of two GPUs, both have a share of
    1, so the root is undecided. Of three GPUs, the middle of a chain looks like a root.

    Parameters
    ----------
    transfers
        Rows of `TRANSFERS`. Counted are those by copies (``p2p``, ``staged``, ``two_hop`` and
        ``mpi``) between two known GPUs whose bytes are known.

    Returns
    -------
    One row: the GPU with the largest share, the share, the pattern (`single`, i.e. a root, if the
    share is at least 0.9, else `spread`; null if undecidable), number of GPUs, and bytes.
    """
    among = transfers.filter(
        pl.col("method").is_in(AMONG_GPUS), pl.col("src_device") != pl.col("dst_device")
    ).drop_nulls("bytes")
    total = among["bytes"].sum()
    received = among.group_by(root="dst_device").agg(in_bytes=pl.col("bytes").sum())
    sent = among.group_by(root="src_device").agg(out_bytes=pl.col("bytes").sum())
    ends = received.join(sent, on="root", how="full", coalesce=True).with_columns(
        pl.col("in_bytes", "out_bytes").fill_null(0)
    )
    share = (pl.col("in_bytes") + pl.col("out_bytes")) / total
    pattern = pl.when(share >= _SINGLE_ROOT).then(pl.lit("single")).otherwise(pl.lit("spread"))
    decidable = ends.height >= _FEWEST_WITH_A_ROOT and total > 0
    first = (
        ends.with_columns(share=share, pattern=pattern)
        .sort("share", "root", descending=[True, False])
        .head(1 if decidable else 0)
    )
    known = pl.DataFrame({"gpus": [ends.height], "bytes": [total]}, schema_overrides=_COUNTS)
    columns = ("root", "share", "pattern", "gpus", "bytes", "in_bytes", "out_bytes")
    return known.join(first, how="left", on=pl.lit(1)).select(columns)


def _copies(trace: Trace) -> pl.DataFrame:
    """Return the copies that can cross a link, each as a separate transfer."""
    kind = pl.col("kind").cast(pl.String)
    to_host = (kind == "d2h") | ((kind == "staged") & pl.col("copy_kind").str.ends_with("toH"))
    method = (
        pl.when(kind == "p2p").then(kind)
        .when(to_host).then(pl.lit("d2h"))
        .otherwise(pl.lit("h2d"))
    )  # fmt: skip
    is_within = (kind == "p2p") & (pl.col("src_device") == pl.col("dst_device"))
    return (
        excerpt(trace)
        .copies.filter(~is_within.fill_null(value=False))
        .select(
            *_AS_RECORDED,
            pl.lit(None, pl.Int64).alias("second_op"),
            pl.lit(None, pl.Int64).alias("first_end"),
            pl.lit(None, pl.Int64).alias("second_start"),
            pl.lit(None, pl.Int32).alias("via_device"),
            _end("src_device", to_host, kind),
            _end("dst_device", ~to_host, kind),
            method.alias("method"),
            pl.lit("measured").alias("evidence"),
            pl.lit("recorded").alias("source"),
            # Whether the program itself may have made it to stage what it copied.
            explicit=(kind != "staged") & ~is_migration(),
        )
        .sort("op")
        .collect()
    )


def _end(name: str, here: pl.Expr, kind: pl.Expr) -> pl.Expr:
    """Return the GPU at end `name` of a copy; null for host memory or if unknown.

    Where `here` is true and no GPU was recorded, it is the GPU that ran the copy.
    """
    recorded = pl.col(name)
    return (
        pl.when(kind == "p2p").then(recorded)
        .when(here).then(pl.coalesce(recorded, "device"))
        .alias(name)
    )  # fmt: skip


def _driver_staged(copies: pl.DataFrame) -> pl.DataFrame:
    """Merge the copies to and from host memory by which the driver made one copy between GPUs."""
    to_host, from_host = (
        _halves(copies, "d2h", "src_device"),
        _halves(copies, "h2d", "dst_device"),
    )
    second = from_host.select(
        *_CALL,
        "dst_device",
        second_op="op",
        second_start="start",
        second_end="end",
        second_bytes="bytes",
    )
    pairs = (
        to_host.drop("second_op", "second_start", "dst_device")
        .join(second, on=_CALL, nulls_equal=True)
        .filter(
            pl.col("src_device") != pl.col("dst_device"), pl.col("bytes") == pl.col("second_bytes")
        )
        .with_columns(
            start=pl.min_horizontal("start", "second_start"),
            first_end="end",
            end=pl.max_horizontal("end", "second_end"),
            method=pl.lit("staged"),
            source=pl.lit("same_call"),
        )
    )
    used = pairs.select(*_CALL, peer=pl.lit(value=False))
    rest = copies.with_columns(peer=pl.col("method") == "p2p").join(
        used, on=[*_CALL, "peer"], how="anti", nulls_equal=True
    )
    return pl.concat([part.select(copies.columns) for part in (rest, pairs)])


def _halves(copies: pl.DataFrame, method: str, device: str) -> pl.DataFrame:
    """Sum the copies to (or from) the host of each launching call, if all are of one GPU.

    `method` is ``d2h`` (or ``h2d``), `device` the column of the copies' GPU.
    """
    paired = copies.filter(method=method).drop_nulls("correlation")
    others = copies.filter(pl.col("method") != method, pl.col("method") != "p2p").select(_CALL)
    several = paired.join(others.unique(), on=_CALL, how="semi", nulls_equal=True).sort("op")
    summed = ("start", "end", "bytes")
    first = pl.exclude(*_CALL, *summed).first()
    is_complete = (pl.col("bytes").null_count() == 0) & (pl.col(device).n_unique() == 1)
    return (
        several.group_by(_CALL)
        .agg(
            first,
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("bytes").sum(),
            whole=is_complete,
        )
        .filter("whole")
        .drop("whole")
    )


def _with_mpi(trace: Trace, copies: pl.DataFrame) -> pl.DataFrame:
    """Mark copies that were launched within an MPI call of the same thread."""
    launched = copies.drop_nulls("launch_start").select(
        "op", thread="launch_thread", start="launch_start",
        end=pl.coalesce("launch_end", "launch_start"),
    )  # fmt: skip
    inside = within(launched, mpi_calls(trace).with_row_index("call"))
    is_inside = pl.col("op").is_in(inside["op"].implode())
    return copies.with_columns(
        method=pl.when(is_inside).then(pl.lit("mpi")).otherwise("method"),
        source=pl.when(is_inside).then(pl.lit("mpi_call")).otherwise("source"),
    )


def _program_staged(copies: pl.DataFrame) -> pl.DataFrame:
    """Merge pairs of copies, to and from the host, by which the program sent data between GPUs."""
    ends = pl.col("src_device") != pl.col("dst_device")
    halves = copies.filter("explicit", pl.col("bytes") >= MIN_STAGED_BYTES)
    handed_on = _handed_on(copies, "d2h", "h2d").filter(
        ends, *(pl.col(op).is_in(halves["op"].implode()) for op in ("op", "second_op"))
    )
    copies = _joined(copies, handed_on.select("op", "second_op"), "staged", "same_thread")
    halves = copies.filter("explicit", pl.col("bytes") >= MIN_STAGED_BYTES)
    arrived = halves.filter(method="d2h").sort("process", "bytes", "end", "op")
    leaving = halves.filter(method="h2d").sort("process", "bytes", "start", "op")
    if arrived.is_empty() or leaving.is_empty():
        return copies
    sizes = pl.concat([arrived, leaving]).select("process", "bytes").unique()
    sizes = sizes.sort("process", "bytes").with_row_index("size")
    found = _in_order(_sized(arrived, sizes), _sized(leaving, sizes))
    pairs = pl.DataFrame(
        {
            "op": arrived["op"].gather(found["arrived"]),
            "second_op": leaving["op"].gather(found["leaving"]),
        }
    )
    return _joined(copies, pairs, "staged", "same_bytes")


def _handed_on(copies: pl.DataFrame, first: str, second: str) -> pl.DataFrame:
    """Pair each copy with the next copy that its thread launched, if that one waited for it.

    The second copy has as many bytes as the first one, was launched before the first one's end, and
    started after it.

    Parameters
    ----------
    copies
        Copies, sorted by op number.
    first, second
        Methods of the first and the second copy.

    Returns
    -------
    ``op, second_op, start`` (ns); ``src_device, via_device``: source and target of the first copy;
    ``second_src, dst_device``: those of the second copy.
    """
    known = ("op", "method", "bytes", "end", "src_device", "dst_device")
    before = pl.col(known).shift(1).over("launch_thread").name.prefix("first_of_")
    return (
        copies.drop_nulls("launch_start")
        .sort("launch_thread", "launch_start", "op")
        .with_columns(before)
        .filter(
            pl.col("first_of_method") == first,
            pl.col("method") == second,
            pl.col("first_of_bytes") == pl.col("bytes"),
            pl.col("launch_start") < pl.col("first_of_end"),
            pl.col("start") >= pl.col("first_of_end"),
        )
        .select(
            "start",
            "dst_device",
            op="first_of_op",
            second_op="op",
            src_device="first_of_src_device",
            via_device="first_of_dst_device",
            second_src="src_device",
        )
    )


def _sized(halves: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Add to copies ``size``, equal for copies of one process and size, and ``limit``.

    ``limit`` is the longest time to a copy that forwards the data, ns.
    """
    return halves.join(sizes, on=["process", "bytes"], how="left", maintain_order="left").select(
        "size",
        "start",
        "end",
        device=pl.coalesce("src_device", "dst_device"),
        limit=pl.max_horizontal(
            STAGING_GAP_DURATIONS * (pl.col("end") - pl.col("start")), STAGING_GAP_NS
        ),
    )


def _in_order(arrived: pl.DataFrame, leaving: pl.DataFrame) -> pl.DataFrame:
    """Pair copies to the host with copies from it, first in first out; return their row indices."""
    import numpy as np  # noqa: PLC0415 - not needed by every command

    partner = np.full(leaving.height, -1, np.int64)
    loop = compiled(first_in_first_out, arrived.height + leaving.height)
    loop(
        given(arrived["size"], np.int64),
        given(arrived["end"], np.int64),
        given(arrived["limit"], np.int64),
        given(arrived["device"], np.int64),
        given(leaving["size"], np.int64),
        given(leaving["start"], np.int64),
        given(leaving["device"], np.int64),
        partner,
    )
    rows = pl.DataFrame({"arrived": partner}).with_row_index("leaving")
    return rows.filter(pl.col("arrived") >= 0)


def first_in_first_out(
    arrived_size: NDArray[Any],
    arrived_end: NDArray[Any],
    limit: NDArray[Any],
    arrived_device: NDArray[Any],
    leaving_size: NDArray[Any],
    leaving_start: NDArray[Any],
    leaving_device: NDArray[Any],
    partner: NDArray[Any],
) -> None:
    """Pair each host-to-device copy with the device-to-host copy whose data it forwards (FIFO).

    Parameters
    ----------
    arrived_size, arrived_end, limit, arrived_device
        Copies to the host, sorted by size and end; `limit`: longest time from the end of the copy
        to the start of a copy that forwards its data, ns.
    leaving_size, leaving_start, leaving_device
        Copies from the host, sorted by size and start.
    partner
        Updated: for each copy from the host to another GPU, the row of the copy to the host whose
        data it forwards. Other elements stay as they are.
    """
    oldest = 0
    for row in range(len(leaving_size)):
        size, start = leaving_size[row], leaving_start[row]
        while oldest < len(arrived_size) and (
            arrived_size[oldest] < size
            or (arrived_size[oldest] == size and start - arrived_end[oldest] > limit[oldest])
        ):
            oldest += 1
        if (
            oldest < len(arrived_size)
            and arrived_size[oldest] == size
            and arrived_end[oldest] <= start
        ):
            if arrived_device[oldest] != leaving_device[row]:
                partner[row] = oldest
            oldest += 1


def _two_hop(
    trace: Trace,
    copies: pl.DataFrame,
    machine: Machine,
    place: Mapping[int, int] | None,
) -> pl.DataFrame:
    """Merge pairs of copies that pass data on through a GPU, if no NVLink joins both end GPUs."""
    peer = copies.filter(method="p2p").drop_nulls(["src_device", "dst_device", "bytes"])
    relayed = _relayed(peer.select("src_device", "dst_device").unique(), machine, place)
    if relayed.is_empty():
        return copies
    linked = _handed_on(copies, "p2p", "p2p").filter(pl.col("via_device") == pl.col("second_src"))
    in_turn = _each_once(linked.join(relayed, on=_RELAYED, how="semi").sort("start", "second_op"))
    copies = _joined(copies, in_turn.select(_PAIR), "two_hop", "same_thread")
    peer = peer.join(copies.filter(method="p2p"), on="op", how="semi")
    arrived = peer.sort("end", "op").select(
        "process", "bytes", "src_device", "op", "end", via_device="dst_device"
    )
    found = (
        peer.sort("start", "op")
        .select(
            *("process", "bytes", "dst_device", "start"), second_op="op", via_device="src_device"
        )
        .join_asof(
            arrived, left_on="start", right_on="end", by=["process", "bytes", "via_device"],
            tolerance=HOP_GAP_NS, coalesce=False, check_sortedness=False,
        )
        .drop_nulls("op")
        .join(relayed, on=_RELAYED, how="semi")
    )  # fmt: skip
    if found.is_empty():
        return copies
    pairs = _each_once(_undisturbed(trace, found).sort("start", "second_op"))
    return _joined(copies, pairs.select(_PAIR), "two_hop", "same_bytes")


def _relayed(hops: pl.DataFrame, machine: Machine, place: Mapping[int, int] | None) -> pl.DataFrame:
    """Return ``src_device, via_device, dst_device``: NVLink joins src-via, via-dst, not src-dst."""

    def bricks(src: int, dst: int) -> int:
        one, other = (src, dst) if place is None else (place.get(src), place.get(dst))
        return 0 if one is None or other is None else machine.bricks(one, other)

    linked = [(src, dst) for src, dst in hops.rows() if bricks(src, dst)]
    beyond: dict[int, list[int]] = {}
    for via, dst in linked:
        beyond.setdefault(via, []).append(dst)
    ways = [
        (src, via, dst)
        for src, via in linked
        for dst in beyond.get(via, ())
        if src != dst and not bricks(src, dst)
    ]
    return pl.DataFrame(ways, dict.fromkeys(_RELAYED, pl.Int32), orient="row")


def _undisturbed(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of copies through a GPU between which no op started on that GPU."""
    relays = found["via_device"].unique()
    ops, peer = trace["ops"], trace["ops"].filter(kind="p2p")
    # A copy between two GPUs starts on both, whichever recorded it.
    starts = pl.concat(
        some.filter(pl.col(column).is_in(relays.implode())).select(
            pl.col(column).alias("via_device"), last="start"
        )
        for some, column in ((ops, "device"), (peer, "src_device"), (peer, "dst_device"))
    )
    return (
        found.sort("start")
        .join_asof(
            starts.sort("last").collect(), left_on="start", right_on="last", by="via_device",
            allow_exact_matches=False, coalesce=False, check_sortedness=False,
        )
        .filter((pl.col("last") < pl.col("end")).fill_null(True))  # noqa: FBT003
    )  # fmt: skip


def _each_once(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of copies, in order, that share no copy with an earlier pair returned."""
    import numpy as np  # noqa: PLC0415 - not needed by every command

    both = [pairs[name].to_numpy() for name in ("op", "second_op")]
    ops, numbers = np.unique(np.concatenate(both), return_inverse=True)
    first, second = numbers[: pairs.height], numbers[pairs.height :]
    kept = np.zeros(pairs.height, np.bool_)
    compiled(take_once, pairs.height)(first, second, np.zeros(ops.size, np.bool_), kept)
    return pairs.filter(pl.Series(kept))


def take_once(
    first: NDArray[Any], second: NDArray[Any], used: NDArray[Any], kept: NDArray[Any]
) -> None:
    """Mark each pair whose two copies are in no pair that was kept before.

    Parameters
    ----------
    first, second
        Numbers of the two copies of each pair.
    used
        Whether the copy of each number is in a kept pair; updated.
    kept
        Whether each pair is kept; updated.
    """
    for row in range(len(first)):
        if not used[first[row]] and not used[second[row]]:
            used[first[row]] = used[second[row]] = kept[row] = True


def _joined(copies: pl.DataFrame, pairs: pl.DataFrame, method: str, source: str) -> pl.DataFrame:
    """Merge each pair of copies in `pairs` (``op, second_op``) into a row of transfers.

    The row states the `method` of the transfer, and the `source` by which the pair was found.
    """
    second = copies.select(
        second_op="op", second_start="start", second_end="end", second_dst="dst_device"
    )
    replaced = {*pairs.columns, *second.columns} - {"op"}
    made = (
        copies.drop(replaced & set(copies.columns))
        .join(pairs, on="op")
        .join(second, on="second_op")
        .with_columns(
            dst_device="second_dst",
            first_end="end",
            end=pl.max_horizontal("end", "second_end"),
            method=pl.lit(method),
            evidence=pl.lit("modelled"),
            source=pl.lit(source),
        )
    )
    used = pl.concat([pairs["op"], pairs["second_op"]]).to_frame("op")
    rest = copies.join(used, on="op", how="anti")
    return pl.concat([rest, made.select(copies.columns)])
