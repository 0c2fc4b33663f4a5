"""MPI calls, which exports since 2023.4 keep in tables of their own.

Earlier ones keep them as NVTX ranges of the domain MPI, without sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources.nsys._ids import Texts, process_of, small
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.nsys._places import Places

RANKS = "MPI_RANKS"
_START_WAIT = "MPI_START_WAIT_EVENTS"
_GROUPS = {
    "MPI_P2P_EVENTS": "p2p",
    "MPI_COLLECTIVES_EVENTS": "collective",
    _START_WAIT: "start_wait",
    "MPI_OTHER_EVENTS": "other",
}
MPI_TABLES = tuple(_GROUPS)

_CALL = ("start", "end", "globalTid", "textId")
_COLUMNS = (*_CALL, "commHandle", "tag", "remoteRank", "rootRank", "size", "recvSize")
_NAMELESS = "MPI call of unknown name"


class MpiCalls:
    """The MPI calls of an export.

    Parameters
    ----------
    export
        The export.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self.distinct = pl.DataFrame(schema={"thread_gid": pl.Int64})
        """The threads that made them."""
        self.last: int | None = None
        """When the last one ended, ns."""
        columns = ("start", "end", "globalTid")
        for table in MPI_TABLES:
            for batch in export.file.batches(table, dict.fromkeys(columns, "int")):
                self._notice(_timed(batch, export.metadata))

    def _notice(self, calls: pl.DataFrame) -> None:
        threads = calls.select(thread_gid="globalTid").unique()
        self.distinct = pl.concat([self.distinct, threads]).unique()
        times = (self.last, calls["start"].max(), calls["end"].max())
        self.last = max((time for time in times if isinstance(time, int)), default=None)

    def __bool__(self) -> bool:
        return not self.distinct.is_empty()

    def batches(self, places: Places, last: int, rows: int) -> Iterator[pl.DataFrame]:
        """Return the canonical table ``host``, one table of the export after the other.

        Parameters
        ----------
        places
            Who is who.
        last
            When a call ended that was still running, ns.
        rows
            How many rows to work on at once.
        """
        ranks = self._ranks()
        names = Texts(self._export.strings)
        closed = pl.max_horizontal(pl.col("end").fill_null(last), "start")
        for table, group in _GROUPS.items():
            for calls in self._calls(table, rows):
                threads = calls["globalTid"]
                of_thread = calls.select(thread_gid="globalTid").join(
                    ranks, on="thread_gid", how="left", maintain_order="left"
                )
                yield calls.select(
                    pl.lit(0, pl.Int32).alias("report"),
                    places.process_by_thread(threads).alias("process"),
                    places.thread(threads).alias("thread"),
                    "start",
                    closed.alias("end"),
                    pl.lit("mpi").alias("library"),
                    names.of(calls["textId"]).fill_null(_NAMELESS).alias("name"),
                    pl.lit(group).alias("group"),
                    of_thread["rank"],
                    bytes=_size("size"),
                    recv_bytes=_size("recvSize"),
                    tag=small(pl.col("tag")),
                    remote_rank=small(pl.col("remoteRank")),
                    root_rank=small(pl.col("rootRank")),
                    communicator="commHandle",
                )

    def _calls(self, table: str, rows: int) -> Iterator[pl.DataFrame]:
        """Return the rows of a table that are calls; waits have one for each request they await."""
        before = pl.DataFrame(schema=dict.fromkeys(_CALL, pl.Int64))
        for batch in self._export.file.batches(table, dict.fromkeys(_COLUMNS, "int"), rows):
            calls = _timed(batch, self._export.metadata)
            if table == _START_WAIT:
                distinct = calls.unique(_CALL, keep="first", maintain_order=True)
                calls = distinct.join(before, on=_CALL, how="anti", nulls_equal=True)
                before = distinct.select(_CALL)
            yield calls

    def _ranks(self) -> pl.DataFrame:
        """Return ``thread_gid, rank``: that of the thread, else that of its process."""
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


def _only(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return the keys that have one value only."""
    return rows.unique().filter(pl.len().over(key) == 1)


def _timed(rows: pl.DataFrame, metadata: Metadata) -> pl.DataFrame:
    return shifted(rows.drop_nulls(["start", "globalTid"]), metadata, "start", "end")


def _size(column: str) -> pl.Expr:
    return pl.when(pl.col(column) >= 0).then(column)
