"""Table of the collectives of a run: one row per participant (NCCL kernel or MPI call)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls._excerpt import excerpt
from tracekit.analysis.calls._groups import group_members, same_groups
from tracekit.analysis.calls._matching import match
from tracekit.analysis.calls._mpi_calls import mpi_calls, with_order
from tracekit.analysis.calls._nccl_calls import (
    KERNEL_OF,
    collective_kernels,
    communicators,
    hex_ids,
    made_communicators,
    read_calls,
    with_kernels,
    with_libraries,
)
from tracekit.analysis.calls._ranks import log_processes
from tracekit.errors import UsageError
from tracekit.model import (
    COLLECTIVE,
    COLLECTIVE_CALLS,
    COLLECTIVES,
    Stretch,
    Trace,
    in_any,
    with_clocks,
)

if TYPE_CHECKING:
    from tracekit.machine import NcclLog

_MPI = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallw": "all_to_all",
    "gather": "gather",
    "gatherv": "gather",
    "scatter": "scatter",
    "scatterv": "scatter",
    "barrier": "barrier",
    "scan": "unknown",
    "exscan": "unknown",
}
"""MPI function -> collective operation; calls that do not block are not included."""

ASSUMED = "mpi, not in place"
"""Source of MPI sizes that are correct unless the call was in place."""
_OF_ALL = ("all_reduce", "all_gather")
"""MPI collectives for which a trace does not show whether they are in place."""
_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Collectives whose calls give the size per rank or peer."""
_ALL_TO_ALL = r"(?i)^((nccl|c10d)(:|::)_*all_?to_?all|ncclAll_?to_?all)"
"""Pattern of range paths in which PyTorch runs an all_to_all as sends and receives."""
_OWNER = ("process", "collective", "direction")
"""Columns by which calls of log and trace are counted."""
_TOLD = ("message_bytes", "communicator", "root", "peer")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_PER_RANK_SINCE = (2, 24)
_MOST = (1 << 63) - 1
_MATCHED_BY = (
    "library", "kind", "report", "process", "device", "context", "stream", "start", "end",
    "communicator", "call_sequence", "ranks", "correlation", "graph_node",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Collectives of a run, one row per participant, with notes on missing or uncertain data."""

    rows: pl.DataFrame
    notes: tuple[str, ...]


def collective_calls(
    trace: Trace, log: NcclLog | None = None, sizes: Mapping[str, int] | None = None
) -> pl.DataFrame:
    """Return the collectives of a run, one row per participant: `model.COLLECTIVE_CALLS`.

    The size of a kernel's collective comes from the NVTX payload of its NCCL calls; else from the
    log, if log and trace have equally many calls of that process and kind; else from the user.

    A size is never taken from a kernel's name. An algorithm is taken from the name only if the
    kernel implements a single algorithm; NCCL's general kernels implement all.

    Parameters
    ----------
    log
        An NCCL log of the same run.
    sizes
        Collective -> bytes per call (of all ranks together for all_gather and reduce_scatter); used
        for calls of that collective whose size is in neither the trace nor the log.

    Raises
    ------
    UsageError
        If the log belongs to other processes, or `sizes` has an unknown name or a negative size.
    """
    return find_collectives(trace, log, sizes).rows


def find_collectives(
    trace: Trace, log: NcclLog | None = None, sizes: Mapping[str, int] | None = None
) -> Found:
    """Return the result of `collective_calls` with notes on missing or uncertain data."""
    _check_sizes(sizes or {})
    return trace.once(_found) if log is None and not sizes else _found(trace, log, sizes)


def _found(
    trace: Trace, log: NcclLog | None = None, sizes: Mapping[str, int] | None = None
) -> Found:
    if log is None and not _has_collectives(trace):
        return Found(COLLECTIVE_CALLS.empty(), ())
    notes: list[str] = []
    rows = participants(trace, None if log is None else _Logged.of(log, trace), notes)
    rows = _with_same_groups(_with_user_sizes(rows, sizes or {}), trace, notes)
    order = ("start", "end", "report", "process", "op")
    rows = rows.sort(order, nulls_last=True).with_columns(
        sequence=pl.int_range(pl.len()).over("library", "process", "device", "context", "stream"),
    )
    lanes = rows.with_columns(
        # Handles of MPI mean something in their process only.
        communicator=pl.when(
            (pl.col("library") != "mpi") | pl.col("call_sequence").is_not_null()
        ).then("communicator"),
        stream=pl.coalesce("stream", "handle"),
    )
    rows = rows.with_columns(match(lanes.select(_MATCHED_BY), trace.read("reports"), notes))
    return Found(COLLECTIVE_CALLS.conform(rows), tuple(notes))


def _with_same_groups(rows: pl.DataFrame, trace: Trace, notes: list[str]) -> pl.DataFrame:
    """Replace PyTorch's names of groups of ranks by NCCL's ids, where nsys recorded the groups too.

    This needs a common clock. nsys and PyTorch number calls differently, so recorded sequence
    numbers of these groups are dropped, and calls are matched in order. Rooted collectives (such as
    broadcast) keep PyTorch's group name: a rank may leave one before the others enter it.
    """
    if not rows["communicator"].str.starts_with("pg ").any():
        return rows
    same = same_groups(trace.once(group_members))
    if same.is_empty():
        return rows
    clocks = with_clocks(rows, trace.read("reports"))
    both = clocks.join(same.rename({"communicator": "hash"}), left_on="communicator",
                       right_on="group", how="left", maintain_order="left")  # fmt: skip
    both = both.with_columns(one=pl.coalesce("hash", "communicator")).with_columns(
        is_same=pl.col("one").is_in(same["communicator"].implode())
    )
    apart = both.filter("is_same").group_by("one").agg(pl.col("clock").n_unique(), pl.len())
    apart = apart.filter(pl.col("clock") > 1)
    if apart.height:
        notes.append(
            f"nsys and PyTorch recorded {apart['len'].sum():,} calls of {apart.height:,} groups of "
            "ranks that are the same by members and sizes; their clocks are not aligned, so they "
            "are not matched: numbers and sizes are right, but waiting is unknown"
        )
    of_both = pl.col("hash").is_null().n_unique().over("one", "kind") > 1
    is_near = ~pl.col("one").is_in(apart["one"].implode()) & ~pl.col("kind").is_in(_ROOTED)
    joins = (pl.col("is_same") & is_near & of_both).fill_null(value=False)
    return rows.with_columns(
        both.select(
            communicator=pl.when(joins).then("one").otherwise("communicator"),
            call_sequence=pl.when(~joins).then("call_sequence"),
        )
    )


def _has_collectives(trace: Trace) -> bool:
    """Test whether the run has any kernel of a collective, or any call of MPI."""
    of_gpu = trace["ops"].select((pl.col("kind") == "collective").any()).collect().item()
    return bool(of_gpu) or not mpi_calls(trace).is_empty()


def nccl_messages(trace: Trace, log: NcclLog | None = None) -> pl.DataFrame:
    """Return NCCL's API calls with their kernels, sizes and source of sizes (payload or log)."""
    calls = _told_calls(trace, None if log is None else _Logged.of(log, trace), [])
    return with_kernels(calls, collective_kernels(trace))


def participants(
    trace: Trace, logged: _Logged | None = None, notes: list[str] | None = None
) -> pl.DataFrame:
    """Return collective kernels and MPI calls, one row each, not yet grouped into collectives.

    `logged` fills in ranks and sizes of kernels; notes on missing data are added to `notes`.
    """
    notes = [] if notes is None else notes
    kernels = _kernels(trace, logged, notes)
    return pl.concat([kernels, _mpi_calls(trace, notes)], how="diagonal_relaxed")


def _check_sizes(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if name not in COLLECTIVES:
            raise UsageError(f"no collective {name!r}", f"there are {', '.join(COLLECTIVES)}")
        if size < 0:
            raise UsageError(f"the size of {name} is {size}", "give 0 bytes or more")


# -- NCCL --------------------------------------------------------------------------------------


def _kernels(trace: Trace, logged: _Logged | None, notes: list[str]) -> pl.DataFrame:
    kernels = with_libraries(collective_kernels(trace))
    calls = _told_calls(trace, logged, notes)
    carried = _carried(with_kernels(calls, kernels))
    rows = kernels.join(carried, on="op", how="left", maintain_order="left")
    rows = _with_collectives(rows, trace)
    of_nccl = pl.col("library") == "nccl"
    others, rows = rows.filter(~of_nccl), rows.filter(of_nccl)
    if logged is not None:
        without = calls.drop_nulls("collective").select("process").unique()
        bare = rows.join(without, on="process", how="anti").with_columns(
            direction=pl.lit(None, pl.String), peer=pl.lit(None, pl.Int32)
        )
        sizes = logged.with_sizes(bare, "op", pl.coalesce("launch_start", "start"), notes)
        covered = rows.join(without, on="process", how="semi")
        rows = pl.concat([covered, sizes], how="diagonal_relaxed").sort("op")
    rows = _numbered(_with_ranks(rows, trace, logged), made_communicators(trace))
    rows = rows.with_columns(bytes=_counted_bytes())
    if logged is not None:
        rows = logged.with_tuning(rows)
    return (
        pl.concat([rows, others], how="diagonal_relaxed")
        .sort("op")
        .with_columns(
            bytes_source=pl.when(pl.col("bytes").is_not_null()).then("bytes_source"),
            name="short_name",
            stage=pl.col("stage").cast(pl.String),
        )
    )


def _told_calls(trace: Trace, logged: _Logged | None, notes: list[str]) -> pl.DataFrame:
    calls = read_calls(trace)
    sized = pl.col("message_bytes").is_not_null()
    calls = calls.with_columns(bytes_source=pl.when(sized).then(pl.lit("payload")))
    return calls if logged is None else logged.with_sizes(calls, "range", "start", notes)


def _carried(calls: pl.DataFrame) -> pl.DataFrame:
    """Return, per collective kernel (``op``), sums over the NCCL API calls that it executes."""
    # What of a call is in each of several kernels is not known.
    size = pl.when(pl.col("ops").list.len() == 1).then("message_bytes")
    pairs = calls.drop_nulls(["ops", "collective"]).with_columns(size=size).explode("ops")
    uniform = pl.col("collective").n_unique() == 1
    complete = pl.col("size").null_count() == 0
    total = pl.when(complete).then(pl.col("size").sum())
    return (
        pairs.group_by(op="ops")
        .agg(
            api_calls=pl.len(),
            called=pl.when(uniform).then(pl.col("collective").first()),
            total=total,
            sent=_directed("send"),
            received=_directed("receive"),
            sends=(pl.col("direction") == "send").sum(),
            call_sequence=pl.when(uniform).then(pl.col("sequence").min()),
            **{
                name: only_value(name) for name in ("communicator", "rank", "root", "bytes_source")
            },
        )
    )  # fmt: skip


def only_value(name: str) -> pl.Expr:
    """Return an aggregation: the column's value if all rows of the group share it, else null."""
    return pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first())


def _larger(one: str, other: str) -> pl.Expr:
    """Return the larger of two columns; null if either is null, since it could be larger."""
    both = pl.col(one).is_not_null() & pl.col(other).is_not_null()
    return pl.when(both).then(pl.max_horizontal(one, other))


def _directed(direction: str) -> pl.Expr:
    """Return a kernel's sent (`direction` ``send``) or received bytes; null if any is unknown."""
    is_it = (pl.col("direction") == direction).fill_null(value=False)
    size = pl.col("size")
    known = (is_it & size.is_null()).sum() == 0
    p2p = pl.col("direction").null_count() == 0
    return pl.when(known & p2p).then(pl.when(is_it).then(size).otherwise(0).sum())


def _with_collectives(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Set each kernel's collective: from NCCL calls or ranges, if more specific than its name.

    ``kind`` is the collective that the kernel's name states. Bytes are kept only if the NCCL call
    states the same collective.
    """
    named, called = pl.col("collective").cast(pl.String), pl.col("called").cast(pl.String)
    unnamed = named == "unknown"
    agrees = called.is_not_null() & ((called.replace(KERNEL_OF) == named) | unnamed)
    moved = pl.col("message_bytes")
    sends = called == "send_recv"
    paths = trace.read("paths")
    named_so = in_any(paths, paths["label"].str.contains(_ALL_TO_ALL))
    inside = (
        excerpt(trace).around
        .join(paths.lazy().filter(named_so), on="path", how="semi")
        .select("range", all_to_all=pl.lit(value=True))
        .collect()
    )  # fmt: skip
    by_path = (pl.col("all_to_all") & (named == "send_recv")).fill_null(value=False)
    return (
        rows.join(inside, on="range", how="left", maintain_order="left")
        .with_columns(
            message_bytes=pl.when(agrees).then(
                pl.when(sends).then(_larger("sent", "received")).otherwise("total")
            ),
            sent_bytes=pl.when(agrees & sends).then("sent"),
            received_bytes=pl.when(agrees & sends).then("received"),
            kind=named,
            collective=pl.when(by_path & sends.fill_null(value=True))
            .then(pl.lit("all_to_all"))
            .when(agrees)
            .then(called)
            .otherwise(named),
        )
        .with_columns(bytes_source=pl.when(moved.is_not_null()).then("bytes_source"))
    )


def _with_ranks(rows: pl.DataFrame, trace: Trace, logged: _Logged | None) -> pl.DataFrame:
    """Add ``ranks``, the size of the row's communicator, and fill in missing values of ``rank``."""
    made = communicators(trace).select("communicator", "process", "rank", "ranks")
    if logged is not None:
        ranks = logged.ranks
        unnamed = pl.col("communicator").is_null()
        is_told = pl.col("process").is_in(ranks["process"].implode())
        made = pl.concat([made.filter(~(unnamed & is_told)), ranks]).unique(maintain_order=True)
    each = made.group_by("process", "communicator", maintain_order=True).agg(
        made=pl.len(),
        known_ranks=only_value("ranks"),
        known_rank=pl.when(pl.len() == 1).then(pl.col("rank").first()),
    )
    # Calls that do not name their communicator are those of the only one that was made.
    sole = each.filter(
        (pl.len().over("process") == 1)
        & (pl.col("communicator").is_not_null() | (pl.col("made") == 1))
    ).rename({"communicator": "sole", "known_ranks": "sole_ranks", "known_rank": "sole_rank"})
    unnamed = pl.col("communicator").is_null()
    return (
        rows.join(each.drop("made"), on=["process", "communicator"], how="left",
                  maintain_order="left")
        .join(sole.drop("made"), on="process", how="left", maintain_order="left")
        .with_columns(
            communicator=pl.coalesce("communicator", "sole"),
            ranks=pl.when(unnamed).then("sole_ranks").otherwise("known_ranks"),
            rank=pl.coalesce("rank", pl.when(unnamed).then("sole_rank").otherwise("known_rank")),
        )
    )  # fmt: skip


def _numbered(rows: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Assign numbers to each communicator's calls, by kind of collective, if all were recorded.

    That is so if the communicator was created during the recording (is in `made`), or if an NCCL
    log has as many calls as the trace. Nothing is numbered in a process that replays collectives in
    CUDA graphs, or ran a collective of unknown communicator (it may belong to any). Recorded
    sequence numbers stay.
    """
    of_one = ["process", "communicator"]
    known = made.select(*of_one, made=pl.lit(value=True))
    doubtful = pl.col("communicator").is_null() | pl.col("graph_node").is_not_null()
    is_logged = (pl.col("bytes_source") == "log").all().over(of_one)
    is_counted = (
        (pl.col("made") | is_logged)
        & (pl.col("kind") != "send_recv")
        & ~doubtful.any().over("process")
        & pl.col("call_sequence").is_null().all().over(of_one)
    )
    first = pl.coalesce("launch_start", "start")
    number = pl.int_range(pl.len()).over(*of_one, "kind", order_by=pl.struct(first, "op"))
    return (
        rows.join(known, on=of_one, how="left", maintain_order="left")
        .with_columns(
            call_sequence=pl.when(is_counted.fill_null(value=False))
            .then(number.cast(pl.Int64))
            .otherwise("call_sequence")
        )
        .drop("made")
    )


def _counted_bytes() -> pl.Expr:
    """Return a collective's size S in bytes, as nccl-tests defines it (its PERFORMANCE.md)."""
    collective, size = pl.col("collective"), pl.col("message_bytes")
    by_sends = (collective == "all_to_all") & (pl.col("called") == "send_recv")
    # Of an all_to_all that skips a rank, be it its own, the whole size is not known.
    is_complete = pl.col("ranks").is_null() | (pl.col("sends") == pl.col("ranks"))
    return (
        pl.when(by_sends)
        .then(pl.when(is_complete).then("sent_bytes"))
        .when(collective.is_in(_PER_RANK))
        .then(pl.when(size <= _MOST // pl.col("ranks")).then(size * pl.col("ranks")))
        .otherwise(size)
    )


# -- NCCL's log --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Logged:
    """Calls, communicators and tuning lines of an NCCL log, for the processes of the run."""

    calls: pl.DataFrame
    ranks: pl.DataFrame
    tuning: pl.DataFrame
    version: str | None

    @classmethod
    def of(cls, log: NcclLog, trace: Trace) -> _Logged:
        """Return the log's rows, each with the run's process of the logged host and pid."""
        hosts = trace["reports"].select("report", "host")
        placed = trace["processes"].join(hosts, on="report", how="left")
        processes = placed.select("process", "pid", "host").collect()
        known = {
            name: frame.with_columns(hex_ids(frame["communicator"]))
            for name, frame in (("calls", log.calls), ("ranks", log.ranks), ("tuning", log.tuning))
        }
        joined = log_processes(log.writers, processes, log.path)
        calls, ranks = (
            known[name].cast({"pid": pl.Int64}).join(
                joined, on=["host", "pid"], nulls_equal=True, maintain_order="left"
            )
            for name in ("calls", "ranks")
        )  # fmt: skip
        integers = pl.Schema({"rank": pl.Int32, "ranks": pl.Int32})
        return cls(
            calls,
            ranks.select("communicator", "process", "rank", "ranks").cast(integers)
            .unique(maintain_order=True),
            known["tuning"],
            log.version,
        )  # fmt: skip

    def with_sizes(
        self, rows: pl.DataFrame, key: str, when: str | pl.Expr, notes: list[str]
    ) -> pl.DataFrame:
        """Fill in missing sizes: the n-th call of a process and collective has the log's n-th size.

        Only if the log has as many calls of that process and collective (such as all_reduce) as the
        trace. `key` is the column that identifies a row, `when` the order in time; reasons for
        sizes that stay unknown are added to `notes`.
        """
        kind = pl.col("collective").cast(pl.String)
        place = pl.int_range(pl.len()).over(_OWNER).alias("place")
        rows_of_kind = rows.drop_nulls("collective").sort(when, key).with_columns(kind, place)
        calls = self.calls.with_columns(kind, place)  # in the order of the log
        agree = self._agreeing(rows_of_kind, calls, notes)
        ids = self.ranks["communicator"].unique().implode()
        logged = calls.select(
            *_OWNER,
            "place",
            told_message_bytes="bytes",
            # Others are pointers, which mean nothing to another process.
            told_communicator=pl.when(pl.col("communicator").is_in(ids)).then("communicator"),
            told_root=pl.when(kind.is_in(_ROOTED)).then(pl.col("root").cast(pl.Int32)),
            told_peer=pl.when(kind == "send_recv").then(pl.col("root").cast(pl.Int32)),
        )
        found = (
            rows_of_kind.join(agree, on=_OWNER, how="semi", nulls_equal=True)
            .join(logged, on=[*_OWNER, "place"], nulls_equal=True)
            .select(key, *(f"told_{name}" for name in _TOLD))
        )
        unknown = pl.col("message_bytes").is_null() & pl.col("told_message_bytes").is_not_null()
        return (
            rows.join(found, on=key, how="left", maintain_order="left")
            .with_columns(
                *(pl.coalesce(name, f"told_{name}").alias(name) for name in _TOLD),
                bytes_source=pl.when(unknown).then(pl.lit("log")).otherwise("bytes_source"),
            )
            .drop(f"told_{name}" for name in _TOLD)
        )

    @staticmethod
    def _agreeing(traced: pl.DataFrame, calls: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
        """Return (process, collective) pairs with as many calls in the log as in the trace."""
        counts = (
            traced.group_by(_OWNER)
            .agg(mine=pl.len(), lacks=pl.col("message_bytes").null_count() > 0)
            .join(
                calls.group_by(_OWNER).agg(calls=pl.len()),
                on=_OWNER,
                how="left",
                nulls_equal=True,
            )
            .filter("lacks")
            .sort(_OWNER)
        )
        is_same = (pl.col("calls") == pl.col("mine")).fill_null(value=False)
        notes.extend(
            f"the NCCL log has {of_log or 0:,} {direction or collective} calls of process "
            f"{process} and the trace {of_trace:,}: their sizes are not taken from it"
            for process, collective, direction, of_trace, of_log in counts.filter(~is_same)
            .select(*_OWNER, "mine", "calls")
            .rows()
        )
        return counts.filter(is_same).select(_OWNER)

    def with_tuning(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the log's algorithm and protocol for each row's collective and size, if unique."""
        totals = self._sizes_are_totals()
        per_rank = pl.col("collective").is_in(["all_gather", "reduce_scatter"])
        tuned = rows.with_columns(
            tuned=pl.when(~per_rank | pl.lit(totals, pl.Boolean)).then("bytes")
            .when(pl.lit(not totals if totals is not None else None, pl.Boolean))
            .then("message_bytes")
        )  # fmt: skip
        choices = self.tuning.with_columns(pl.col("collective").cast(pl.String))
        # Before 2.23 NCCL does not print the collective; a size that only one has will do.
        sole = (
            tuned.group_by("tuned")
            .agg(sole=pl.when(pl.col("collective").n_unique() == 1).then(
                pl.col("collective").first()))
            .drop_nulls()
        )  # fmt: skip
        logged = (
            choices.join(sole, left_on="bytes", right_on="tuned", how="left")
            .with_columns(collective=pl.coalesce("collective", "sole"), tuned="bytes")
            .group_by("collective", "tuned")
            .agg(
                choices=pl.struct("algorithm", "protocol").n_unique(),
                tuned_algorithm=pl.col("algorithm").first(),
                protocol=pl.col("protocol").first(),
            )
            .filter(pl.col("choices") == 1)
            .drop("choices")
        )
        joined = tuned.join(logged, on=["collective", "tuned"], how="left", maintain_order="left")
        return joined.with_columns(algorithm=pl.coalesce("algorithm", "tuned_algorithm")).drop(
            "tuned", "tuned_algorithm"
        )

    def _sizes_are_totals(self) -> bool | None:
        """Test whether sizes in the log's tuning lines are sums over ranks, as before NCCL 2.24."""
        found = re.match(r"(\d{1,4})\.(\d{1,4})", self.version or "")
        return None if found is None else (int(found[1]), int(found[2])) < _PER_RANK_SINCE


# -- MPI ---------------------------------------------------------------------------------------


def _mpi_calls(trace: Trace, notes: list[str]) -> pl.DataFrame:
    """Return the blocking collective calls of MPI, from tables of calls or from NVTX ranges."""
    found = mpi_calls(trace)
    if found.is_empty():  # as in most runs
        return _NO_MPI_CALLS
    calls = found.with_columns(
        # Functions that end in _c take large counts.
        function=pl.col("name").str.extract(r"^P?MPI_(.+?)(?:_c)?$").str.to_lowercase(),
        handle="communicator",
    )
    rows = with_order(trace, calls).with_columns(
        collective=pl.col("function").replace_strict(_MPI, default=None, return_dtype=pl.String)
    )
    left_out = rows.filter(
        pl.col("collective").is_null()
        & pl.col("function").str.strip_prefix("i").is_in(list(_MPI))
    ).height  # fmt: skip
    if left_out:
        notes.append(
            f"{left_out:,} MPI collectives that do not block are left out: their calls end before "
            "the collective does"
        )
    of_one_rank = pl.col("collective").is_in(["reduce_scatter", "scatter"])
    rows = rows.drop_nulls("collective").with_columns(
        message_bytes=pl.when(of_one_rank)
        .then("recv_bytes")
        .otherwise(pl.coalesce("bytes", "recv_bytes"))
    )
    rows = rows.with_columns(bytes=_mpi_bytes())
    is_assumed = (
        pl.col("collective").is_in(_OF_ALL) & pl.col("bytes").is_not_null() & (pl.col("ranks") > 1)
    ).fill_null(value=False)
    rows = rows.with_columns(
        bytes_source=pl.when(is_assumed).then(pl.lit(ASSUMED))
        .when(pl.col("bytes").is_not_null()).then(pl.lit("mpi"))
    )  # fmt: skip
    assumed = rows.filter(pl.col("bytes_source") == ASSUMED).height
    if assumed:
        notes.append(
            f"sizes of {assumed:,} MPI calls are taken not to be in place (MPI_IN_PLACE):"
            " of those that are they would be n / (n - 1) as large, with n ranks"
        )
    return with_iterations(rows, trace).select(
        "report", "process", "start", "end", "name", "rank", "ranks", "handle", "message_bytes",
        "bytes", "collective", "iteration",
        root=pl.col("root_rank"),
        kind="collective",
        library=pl.lit("mpi"),
        communicator=pl.coalesce("shared", hex_ids(rows["handle"].cast(pl.String))),
        call_sequence="call_sequence",
        bytes_source="bytes_source",
    )  # fmt: skip


_NO_MPI_CALLS = pl.DataFrame(
    schema={
        **dict.fromkeys(("report", "process"), pl.Int32),
        **dict.fromkeys(("start", "end"), pl.Int64), "name": pl.String,
        **dict.fromkeys(("rank", "ranks"), pl.Int32),
        **dict.fromkeys(("handle", "message_bytes", "bytes"), pl.Int64),
        "collective": pl.String, "iteration": pl.Int64, "root": pl.Int32,
        **dict.fromkeys(("kind", "library", "communicator"), pl.String),
        "call_sequence": pl.Int64, "bytes_source": pl.String,
    }
)  # fmt: skip


def with_iterations(calls: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``iteration``: the iteration open on the call's process when the call begins."""
    steps = trace.read("iterations").select("process", "iteration", begin="start", until="end")
    return (
        calls.with_row_index("row")
        .sort("start")
        .join_asof(
            steps.sort("begin"), left_on="start", right_on="begin", by="process",
            check_sortedness=False,
        )
        .with_columns(pl.when(pl.col("start") < pl.col("until")).then("iteration"))
        .sort("row")
        .drop("row", "begin", "until", strict=False)
    )  # fmt: skip


def _mpi_bytes() -> pl.Expr:
    """Return an MPI call's size S, as in nccl-tests; null if the caller's bytes do not tell it."""
    collective, sent, received = pl.col("collective"), pl.col("bytes"), pl.col("recv_bytes")
    larger = pl.max_horizontal(sent, received)
    at_root = pl.col("rank") == pl.col("root_rank")
    return (
        pl.when(collective.is_in(["all_reduce", "reduce", "all_to_all"]))
        .then(sent)
        .when(collective == "broadcast")
        .then(larger)
        # If both sides are as large, they may be counted per rank.
        .when(collective.is_in(["all_gather", "reduce_scatter"]) & (sent != received))
        .then(larger)
        .when(collective.is_in(["gather", "scatter"]) & at_root & (sent != received))
        .then(larger)
    )


def _with_user_sizes(rows: pl.DataFrame, sizes: Mapping[str, int]) -> pl.DataFrame:
    user_sizes = (
        pl.col("collective").replace_strict(dict(sizes), default=None, return_dtype=pl.Int64)
        if sizes
        else pl.lit(None, pl.Int64)
    )
    applies = pl.col("bytes").is_null() & pl.col("given").is_not_null()
    return rows.with_columns(given=user_sizes).with_columns(
        bytes=pl.coalesce("bytes", "given"),
        bytes_source=pl.when(applies).then(pl.lit("user")).otherwise("bytes_source"),
        collective=pl.col("collective").cast(COLLECTIVE),
    )


def in_stretch(calls: pl.DataFrame, stretch: Stretch) -> pl.DataFrame:
    """Keep collectives whose first participant begins in `stretch`, a time span or range of steps.

    All rows of such a collective are kept.
    """
    if stretch.is_all:
        return calls
    alone = -1 - pl.int_range(pl.len(), dtype=pl.Int64)
    together = calls.with_columns(
        instance=pl.coalesce(pl.col("match").cast(pl.Int64), alone)
    ).with_columns(
        begin=pl.col("start").min().over("instance"),
        number=pl.col("iteration").drop_nulls().first().over("instance"),
    )
    return together.filter(stretch.holds("begin", "number")).select(calls.columns)
