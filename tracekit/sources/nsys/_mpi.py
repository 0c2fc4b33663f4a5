"""MPI calls, and the UCX calls that they make, from the tables of nsys exports since 2023.4.

Earlier exports keep MPI calls as NVTX ranges of the domain MPI, without sizes.

For collectives nsys counts what a rank sends to, and receives from, each rank of the communicator,
including itself: for an all-reduce of S bytes by n ranks n x S on either side, and (n - 1) x S with
MPI_IN_PLACE. Measured with Open MPI under nsys 2023.4 (schema 3.7.2) for each function; 2024.2
writes the same. Tables here have the bytes of the buffers passed to a call, as users mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._identities import small
from tracekit.sources.nsys._ids import Export, Texts, process_of
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.nsys._places import Places

RANKS = "MPI_RANKS"
_COMMUNICATORS = "MPI_COMMUNICATORS"
_COLLECTIVE = "collective"
_START_WAIT = "MPI_START_WAIT_EVENTS"
_MPI = {
    "MPI_P2P_EVENTS": "p2p",
    "MPI_COLLECTIVES_EVENTS": _COLLECTIVE,
    _START_WAIT: "start_wait",
    "MPI_OTHER_EVENTS": "other",
}
_UCX = {"UCP_SUBMIT_EVENTS": "submit", "UCP_PROGRESS_EVENTS": "progress", "UCP_EVENTS": "other"}
_WORKERS = "UCP_WORKERS"
_GROUPS = {**_MPI, **_UCX}
MPI_TABLES, UCX_TABLES = tuple(_MPI), tuple(_UCX)

_CALL = ("start", "end", "globalTid", "textId")
_SIZES = ("size", "recvSize")
_PACKED, _PEER = "packedSize", "peerWorkerUid"
_COLUMNS = (*_CALL, "commHandle", "tag", "remoteRank", "rootRank", *_SIZES, _PACKED, _PEER)
_NAMELESS = "call of unknown name"


class MpiCalls:
    """MPI and UCX calls of an nsys export."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self.distinct = pl.DataFrame(schema={"thread_gid": pl.Int64})
        """Threads that made calls."""
        self.last: int | None = None
        """End of the last call, ns."""
        self.endless = 0
        """Number of calls without an end."""
        columns = ("start", "end", "globalTid")
        for table in _GROUPS:
            for batch in export.file.batches(table, dict.fromkeys(columns, "int")):
                calls = _timed(batch, export.metadata)
                self.endless += calls["end"].null_count()
                self._notice(calls)

    def _notice(self, calls: pl.DataFrame) -> None:
        threads = calls.select(thread_gid="globalTid").unique()
        self.distinct = pl.concat([self.distinct, threads]).unique()
        times = (self.last, calls["start"].max(), calls["end"].max())
        self.last = max((time for time in times if isinstance(time, int)), default=None)

    def __bool__(self) -> bool:
        return not self.distinct.is_empty()

    def batches(self, places: Places, last: int, rows: int) -> Iterator[pl.DataFrame]:
        """Yield MPI and UCX calls as rows of the table ``host``, one kind of call after the other.

        Parameters
        ----------
        places
            Lookup of the indices of processes and threads.
        last
            End given to calls that were still running, ns.
        rows
            Number of rows to process at once.
        """
        if not self:
            return
        ranks, made, peers = self._ranks(), self._communicators(), self._peers()
        names = Texts(self._export.strings)
        closed = pl.max_horizontal(pl.col("end").fill_null(last), "start")
        for table, group in _GROUPS.items():
            sent, received = buffers() if group == _COLLECTIVE else map(pl.col, _SIZES)
            for each in self._calls(table, rows):
                of_thread = each.select(thread_gid="globalTid").join(
                    ranks, on="thread_gid", how="left", maintain_order="left"
                )
                library = "ucx" if table in _UCX else "mpi"
                nameless = f"{library.upper()} {_NAMELESS}"
                named = each.with_columns(of_thread["rank"], size=pl.coalesce("size", _PACKED))
                named = named.join(peers, on=_PEER, how="left", maintain_order="left")
                calls = _with_size(named, made).with_columns(
                    pl.when(pl.col(_SIZES) >= 0).then(pl.col(_SIZES)),
                    name=names.of(each["textId"]).fill_null(nameless),
                )
                threads = calls["globalTid"]
                yield calls.select(
                    places.process_by_thread(threads).alias("process"),
                    places.thread(threads).alias("thread"),
                    "start",
                    closed.alias("end"),
                    pl.lit(library).alias("library"),
                    "name",
                    "rank",
                    "ranks",
                    pl.lit(group).alias("group"),
                    bytes=sent,
                    recv_bytes=received,
                    # Tags of UCX have 64 bits, of which MPI's is a part.
                    tag="tag" if library == "ucx" else small(pl.col("tag")),
                    remote_rank=pl.coalesce(small(pl.col("remoteRank")), "peer_rank"),
                    root_rank=small(pl.col("rootRank")),
                    communicator="commHandle",
                )

    def _calls(self, table: str, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the calls in a table of the export.

        A wait is a row per awaited request in the export, but a single row in the result.
        """
        before = pl.DataFrame(schema=dict.fromkeys(_CALL, pl.Int64))
        for batch in self._export.file.batches(table, dict.fromkeys(_COLUMNS, "int"), rows):
            calls = _timed(batch, self._export.metadata)
            if table == _START_WAIT:
                distinct = calls.unique(_CALL, keep="first", maintain_order=True)
                calls = distinct.join(before, on=_CALL, how="anti", nulls_equal=True)
                before = distinct.select(_CALL)
            yield calls

    def _ranks(self) -> pl.DataFrame:
        """Return ``thread_gid`` (global id), ``rank``: a thread's MPI rank, else its process's."""
        table = self._export.file.read(RANKS, {"globalTid": "int", "rank": "int"})
        known = table.select(thread_gid="globalTid", rank=small(pl.col("rank"))).drop_nulls()
        owner = process_of(pl.col("thread_gid")).alias("process_gid")
        return (
            self.distinct.with_columns(owner)
            .join(_only(known, "thread_gid"), on="thread_gid", how="left")
            .join(
                _only(known.select(owner, process_rank="rank"), "process_gid"),
                on="process_gid",
                how="left",
            )
            .select("thread_gid", pl.coalesce("rank", "process_rank").cast(pl.Int32).alias("rank"))
        )

    def _peers(self) -> pl.DataFrame:
        """Return ``peerWorkerUid, peer_rank``: the rank of each UCX worker's process."""
        table = self._export.file.read(_WORKERS, {"globalTid": "int", "workerUid": "int"})
        owner = process_of(pl.col("globalTid")).alias("process_gid")
        workers = _only(table.drop_nulls().select(owner, pl.col("workerUid").alias(_PEER)), _PEER)
        ranks = self._ranks().drop_nulls()
        ranks = ranks.select(
            process_of(pl.col("thread_gid")).alias("process_gid"), peer_rank="rank"
        )
        joined = workers.join(_only(ranks, "process_gid"), on="process_gid")
        return joined.select(_PEER, "peer_rank")

    def _communicators(self) -> pl.DataFrame:
        """Return creations of communicators: ``rank, commHandle, time`` (ns), ``ranks`` (size)."""
        read = self._export.file.read(
            _COMMUNICATORS,
            {"rank": "int", "commHandle": "int", "timestamp": "int", "size": "int"},
        )
        possible = read.filter(self._export.file.times.hold(pl.col("timestamp")))
        table = shifted(possible, self._export.metadata, "timestamp")
        # Communicators are told by rank: of two jobs in one report it is not known whose they are.
        alone = self._ranks().drop_nulls().with_columns(owner=process_of(pl.col("thread_gid")))
        sole = alone.group_by("rank").agg(pl.col("owner").n_unique()).filter(pl.col("owner") == 1)
        made = table.select(
            small(pl.col("rank")).cast(pl.Int32), "commHandle", time="timestamp",
            ranks=small(pl.col("size")),
        )  # fmt: skip
        made = made.filter(pl.col("ranks") > 0).drop_nulls().sort("time", "ranks")
        return made.join(sole, on="rank", how="semi", maintain_order="left")


def _with_size(calls: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Add ``ranks``: the size of the communicator of each call.

    It is looked up in `made` (creations of communicators): the latest one before the call that has
    the call's rank and handle.
    """
    return (
        calls.with_row_index("row")
        .sort("start")
        .join_asof(
            made, left_on="start", right_on="time", by=["rank", "commHandle"],
            check_sortedness=False,
        )
        .sort("row")
        .drop("row", "time", strict=False)
    )  # fmt: skip


def _only(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Drop repeated rows, and all rows with a value of `key` that occurs in different rows."""
    return rows.unique().filter(pl.len().over(key) == 1)


def _timed(rows: pl.DataFrame, metadata: Metadata) -> pl.DataFrame:
    return shifted(rows.drop_nulls(["start", "globalTid"]), metadata, "start", "end")


_FUNCTION = r"(?i)^P?MPI_I?(.+?)(?:_c)?$"
_SENT, _RECEIVED, _RANKS = pl.col("size"), pl.col("recvSize"), pl.col("ranks")
_SPLIT = ("reduce_scatter", "reduce_scatter_block")
_WHOLE_BUFFERS = ("alltoall", "alltoallv", "alltoallw", "scatter", "scatterv")
"""Functions with a different part for each rank, so the total sent is the size of the buffer."""


def buffers() -> tuple[pl.Expr, pl.Expr]:
    """Return expressions for the bytes of a collective's send buffer and receive buffer.

    They use the columns ``name, size, recvSize, ranks``. The bytes are null if the call has no such
    buffer (in a broadcast only the root sends). They are also null if unknown: for scans and
    neighbourhood collectives, and for communicators of unknown size.

    With MPI_IN_PLACE and n ranks, the recorded size lacks the rank's own part, so it is a multiple
    of n - 1. A size that is a multiple of both n and n - 1 is taken as complete: if the call was in
    place, the result is then too small by the factor (n - 1) / n.
    """
    function = pl.col("name").str.extract(_FUNCTION).str.to_lowercase()
    own_sent, own_received = _of_each_peer(_SENT), _of_each_peer(_RECEIVED)
    in_place = pl.col("size").is_null() & _RECEIVED.is_not_null()
    part_in_place = pl.when(_RECEIVED % (_RANKS - 1) == 0).then(_RECEIVED // (_RANKS - 1))
    sent = (
        pl.when(function.is_in(["allreduce", "allgather", "allgatherv"])).then(own_sent)
        .when(function.is_in([*_SPLIT, *_WHOLE_BUFFERS])).then(_SENT)
        .when((function == "bcast") & _SENT.is_not_null()).then(_RECEIVED)
        .when(function.is_in(["reduce", "gather", "gatherv"]))
        .then(pl.when(in_place & (function != "gatherv")).then(part_in_place).otherwise(_SENT))
    )  # fmt: skip
    received = (
        pl.when(function == "allreduce").then(own_received)
        .when(function.is_in(["allgather", "allgatherv"])).then(_RECEIVED + _left_out(own_sent))
        .when(function.is_in(_SPLIT)).then(own_received)
        .when(function.is_in([*_WHOLE_BUFFERS, "bcast"])).then(_RECEIVED)
        .when(function == "reduce")
        .then(pl.when(in_place).then(part_in_place).otherwise(own_received))
        .when(function == "gather")
        .then(pl.when(in_place).then(_RECEIVED + part_in_place).otherwise(_RECEIVED))
        .when((function == "gatherv") & ~in_place).then(_RECEIVED)
    )  # fmt: skip
    return sent, received


def _of_each_peer(total: pl.Expr) -> pl.Expr:
    """Return the bytes per peer: `total` / n for n ranks, or / (n - 1) if only that is an integer.

    The latter is an in-place call, which does not count the rank itself.
    """
    others = _RANKS - 1
    return (
        pl.when(total % _RANKS == 0)
        .then(total // _RANKS)
        .when((_RANKS > 1) & (total % others == 0))
        .then(total // others)
    )


def _left_out(part: pl.Expr) -> pl.Expr:
    """Return `part`, the bytes that a rank adds to its own all-gather, if in place; else 0."""
    return pl.when(_SENT % _RANKS == 0).then(0).otherwise(part)
