"""The order of MPI's collectives: the n-th call on a communicator is the same on all its ranks.

A rank need not wait for the others in a collective: the root of a small broadcast has left before
another rank enters it. So overlap in time does not tell which calls belong together; order does, if
calls were recorded from MPI_Init on.
"""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls._excerpt import excerpt
from tracekit.model import Trace

_COLLECTIVE = ("collective", "starts_collective")
_INIT = r"^P?MPI_Init(_thread)?$"
_OWNER = ["process", "communicator"]


def with_order(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add to each MPI call its number in the communicator of all ranks.

    It is recognised as the only communicator of a process with as many ranks as the run has
    processes; every rank must be recorded once. Calls count from MPI_Init on, blocking or not.
    Nothing is numbered if a process's MPI_Init was not recorded, or if calls with one number call
    different functions, since then calls are missing.

    Parameters
    ----------
    trace
        The run.
    calls
        Result of `mpi_calls` with ``function``: the name without the prefix or suffix of variants.

    Returns
    -------
    `calls` with ``call_sequence`` (null if unknown) and ``shared``, a name of that communicator.
    """
    known = calls.with_row_index("row").filter(pl.col("does").is_in(_COLLECTIVE))
    ours = _of_all_ranks(known, from_the_start(trace))
    numbered = (
        known.join(ours, on=_OWNER, how="semi")
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
    ours = handles.filter(pl.len().over("process") == 1).join(begun, on="process", how="semi")
    # A rank that is not there, or is there twice, is of more than this one job.
    return ours if ranks == list(range(len(ranks))) and len(ranks) > 1 else ours.clear()


def from_the_start(trace: Trace) -> pl.DataFrame:
    """Return ``process, rank`` of processes whose MPI_Init was recorded."""
    host = excerpt(trace).host
    inits = host.filter(pl.col("library") == "mpi", pl.col("name").str.contains(_INIT))
    return inits.select("process", "rank").unique().collect()
