"""MPI calls of a run, from tables or ranges of its reports."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls._excerpt import IS_MPI, excerpt
from tracekit.model import Trace

_BLOCKING = {
    "collective": r"^P?MPI_(Allgatherv?|Allreduce|Alltoall[vw]?|Barrier|Bcast|Exscan|Gatherv?"
    r"|Neighbor_allgatherv?|Neighbor_alltoall[vw]?|Reduce|Reduce_scatter(_block)?|Scan"
    r"|Scatterv?)(_c)?$",
    "p2p": r"^P?MPI_(Send|[BRS]send|Recv|Mrecv|Sendrecv(_replace)?)(_c)?$",
}
"""Functions that return when what they do is done, by what that is."""
_STARTS_COLLECTIVE = (
    r"^P?MPI_I(all|barrier|bcast|exscan|gather|neighbor_all|reduce|scan|scatter)[a-z_]*$"
)
"""Functions that return before the collective that they begin is done."""
_SAYS_SIZE = r"^(?<function>P?MPI_\w+) (?<bytes>[0-9]{1,18}) bytes$"
_OF_HOST = ("bytes", "recv_bytes", "rank", "root_rank", "communicator", "ranks")
_COLUMNS = ("report", "process", "thread", "start", "end", "name")


def mpi_calls(trace: Trace) -> pl.DataFrame:
    """Return MPI calls; a call inside another call (as wrappers make) is not listed by itself.

    Calls come from the table ``host``. For a process without any there, they come from push/pop
    ranges of the domain ``MPI`` or with names that begin with ``MPI_`` (nsys before 2023.4, nvprof,
    wrappers of MPI); their size is unknown unless the name states it.

    Returns
    -------
    ``report, process, thread, start, end, name, does, bytes, recv_bytes, rank, root_rank,
    communicator, ranks``, by thread and start. ``does`` is ``collective`` or ``p2p`` for blocking
    functions, ``starts_collective`` for functions that start a collective and return, null for all
    others.
    """
    kept = excerpt(trace).host.filter(pl.col("library") == "mpi").select(*_COLUMNS, *_OF_HOST)
    annotated = (
        annotated_calls(trace)
        .join(kept.select("process").unique(), on="process", how="anti")
        .select(*_COLUMNS, "bytes")
    )
    calls = pl.concat([kept, annotated], how="diagonal").collect()
    does = pl.coalesce(
        pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(what))
        for what, pattern in {**_BLOCKING, "starts_collective": _STARTS_COLLECTIVE}.items()
    )
    return outermost(calls).with_columns(does=does)


def annotated_calls(trace: Trace) -> pl.LazyFrame:
    """Return the NVTX ranges that are MPI calls by their domain or name.

    The column ``bytes`` is the size from a name such as ``MPI_Allreduce 4096 bytes``, else null.
    """
    said = pl.col("name").str.extract_groups(_SAYS_SIZE).struct
    return excerpt(trace).ranges.filter(IS_MPI, pl.col("style") == "push_pop").with_columns(
        name=pl.coalesce(said.field("function"), "name"),
        bytes=said.field("bytes").cast(pl.Int64, strict=False),
    )  # fmt: skip


def outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that lie within no other call of their thread, by thread and start."""
    ordered = calls.sort("thread", "start", pl.col("end"), descending=[False, False, True])
    furthest = pl.col("end").cum_max().shift().over("thread")
    # What begins where the one before ends comes after it, if only it takes any time.
    later = (pl.col("start") > furthest) | (
        (pl.col("start") == furthest) & (pl.col("end") > furthest)
    )
    return ordered.filter(later.fill_null(value=True))


def within(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Join each row with the call on the same thread that contains it completely.

    Parameters
    ----------
    rows
        Intervals ``thread, start, end``; a row with a null thread lies in no call.
    calls
        ``call, thread, start, end``; calls of one thread do not overlap (as from `mpi_calls`).

    Returns
    -------
    The rows that lie in a call, with ``call``.
    """
    spans = calls.select("thread", "call", call_start="start", call_end="end")
    return (
        rows.drop_nulls("thread")
        .sort("start")
        .join_asof(
            spans.sort("call_start", "call_end", "call"), left_on="start", right_on="call_start",
            by="thread", check_sortedness=False, coalesce=False,
        )
        .filter(pl.col("end") <= pl.col("call_end"))
        .drop("call_start", "call_end")
    )  # fmt: skip
