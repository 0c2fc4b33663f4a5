"""MPI calls of a run, from recorded host calls or NVTX ranges."""

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
    """Return the MPI calls of a run, without calls inside another MPI call (as in wrappers).

    Calls come from the table ``host``. If a process has no MPI calls there (nsys before 2023.4,
    nvprof, wrappers of MPI), its push/pop ranges are used whose domain is ``MPI`` or whose name
    begins with ``MPI_``. The size of such a call is known only if the name states it.

    Returns
    -------
    ``report, process, thread, start, end, name, does, bytes, recv_bytes, rank, root_rank,
    communicator, ranks`` (times in ns), by thread and start. ``does`` is ``collective`` or ``p2p``
    for blocking functions, ``starts_collective`` for non-blocking collectives such as
    ``MPI_Iallreduce``, else null.
    """
    return trace.once(_mpi_calls, reads=("host", "ranges"))


def _mpi_calls(trace: Trace) -> pl.DataFrame:
    kept = excerpt(trace).host.filter(pl.col("library") == "mpi").select(*_COLUMNS, *_OF_HOST)
    annotated = (
        annotated_calls(trace)
        .join(kept.select("process").unique(), on="process", how="anti")
        .select(*_COLUMNS, "bytes")
    )
    calls = pl.concat([kept, annotated], how="diagonal").collect()
    does = pl.coalesce(
        pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(column))
        for column, pattern in {**_BLOCKING, "starts_collective": _STARTS_COLLECTIVE}.items()
    )
    return outermost(calls).with_columns(does=does)


def annotated_calls(trace: Trace) -> pl.LazyFrame:
    """Return the NVTX ranges that are MPI calls by their domain or name.

    The column ``bytes`` is the size from a name such as ``MPI_Allreduce 4096 bytes``, else null.
    """
    fields = pl.col("name").str.extract_groups(_SAYS_SIZE).struct
    return excerpt(trace).ranges.filter(IS_MPI, pl.col("style") == "push_pop").with_columns(
        name=pl.coalesce(fields.field("function"), "name"),
        bytes=fields.field("bytes").cast(pl.Int64, strict=False),
    )  # fmt: skip


def outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Drop calls that lie inside another call of their thread; sort by thread and start."""
    ordered = calls.sort("thread", "start", pl.col("end"), descending=[False, False, True])
    furthest = pl.col("end").cum_max().shift().over("thread")
    # What begins where the one before ends comes after it, if only it takes any time.
    later = (pl.col("start") > furthest) | (
        (pl.col("start") == furthest) & (pl.col("end") > furthest)
    )
    return ordered.filter(later.fill_null(value=True))


def within(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add to each row the call on the same thread that contains it; drop rows in no call.

    Parameters
    ----------
    rows
        Intervals ``thread, start, end`` (ns); a row with a null thread lies in no call.
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


# -- order: the n-th collective on a communicator is the same call on all its ranks
#
# A rank need not wait for the others in a collective: the root of a small broadcast has left before
# another rank enters it. So overlap in time does not tell which calls belong together; order does,
# if calls were recorded from MPI_Init on.


_COLLECTIVE = ("collective", "starts_collective")
_INIT = r"^P?MPI_Init(_thread)?$"
_OWNER = ["process", "communicator"]


def with_order(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add to each MPI call its number in the communicator of all ranks.

    Only collective calls are numbered, from MPI_Init on, blocking or not. The communicator of all
    ranks is recognised by its size: in each process it is the only one with as many ranks as the
    run has processes. No call is numbered if a rank was not recorded exactly once, if a process's
    MPI_Init was not recorded, or if calls with the same number call different functions (then calls
    are missing). `calls` is the result of `mpi_calls` with ``function``: the name in lower case,
    without ``MPI_`` or ``PMPI_`` at the start and ``_c`` at the end.

    Returns
    -------
    `calls` with ``call_sequence`` (null if unknown) and ``shared``, a name of that communicator.
    """
    known = calls.with_row_index("row").filter(pl.col("does").is_in(_COLLECTIVE))
    handles = _of_all_ranks(known, from_the_start(trace))
    numbered = (
        known.join(handles, on=_OWNER, how="semi")
        .sort("process", "start", "row")
        .with_columns(call_sequence=pl.int_range(pl.len()).over(_OWNER))
    )
    called = pl.col("function").str.strip_prefix("i")
    agree = numbered.filter(called.n_unique().over("call_sequence") > 1).is_empty()
    found = numbered if agree else numbered.clear()
    return (
        calls.with_row_index("row")
        .join(found.select("row", "call_sequence"), on="row", how="left", maintain_order="left")
        .drop("row")
        .with_columns(
            shared=pl.when(pl.col("call_sequence").is_not_null()).then(
                pl.format("all {} ranks", "ranks")
            )
        )
    )


def _of_all_ranks(calls: pl.DataFrame, begun: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, communicator``: each process's handle of the communicator of all ranks."""
    ranks = begun["rank"].sort().to_list()
    handles = calls.filter(pl.col("ranks") == len(ranks)).select(_OWNER).drop_nulls().unique()
    single = handles.filter(pl.len().over("process") == 1).join(begun, on="process", how="semi")
    # A rank that is not there, or is there twice, is of more than this one job.
    return single if ranks == list(range(len(ranks))) and len(ranks) > 1 else single.clear()


def from_the_start(trace: Trace) -> pl.DataFrame:
    """Return ``process, rank`` of processes whose MPI_Init was recorded."""
    host = excerpt(trace).host
    inits = host.filter(pl.col("library") == "mpi", pl.col("name").str.contains(_INIT))
    return inits.select("process", "rank").unique().collect()
