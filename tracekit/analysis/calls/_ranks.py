"""Rank and node (host) of each process, and missing ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, islice, pairwise

import polars as pl

from tracekit.analysis.calls._excerpt import IS_RANK_MARK, excerpt
from tracekit.analysis.calls._nccl_calls import communicators
from tracekit.errors import UsageError
from tracekit.model import Trace
from tracekit.support.labels import RANK_MARK

_IN_NAME = r"(?i)(?:^|[^a-z])(?:rank|worker)[._-]?(\d{1,9})(?:\D|$)"
_SAYS = rf"^{re.escape(RANK_MARK)}(\d{{1,9}})(?: of (\d{{1,9}}))?$"
_SOURCES = {
    "rank": "mpi", "in_nccl": "nccl", "said": "program", "stated": "report", "in_name": "file",
}  # fmt: skip
"""Sources of a rank, by column, the surest first."""
_DIVIDING = ("device", "rank", "node")
"""Keys whose groups cover only part of the devices."""
_FIRST = 9
"""Largest number of unrecorded ranks that are listed."""
_LISTED = 8
"""Largest number of these in a sentence, which then ends in dots."""


def with_devices(
    trace: Trace, values: pl.DataFrame, by: Sequence[str], owners: pl.DataFrame
) -> pl.DataFrame:
    """Add ``devices``: the number of GPUs over which the values of each group were summed.

    With ``stream`` in `by` the number is 1. With ``device``, ``rank`` or ``node`` it is the number
    of `owners` with the group's values of these keys, else the number of all `owners`.

    Parameters
    ----------
    values
        One row per group, with columns `by`.
    by
        Columns that name a group.
    owners
        ``process, device``: which process ran steps on which GPU; one row per pair.
    """
    if "stream" in by:  # of one process on one device
        return values.with_columns(devices=pl.lit(1, pl.Int64))
    divides = [key for key in by if key in _DIVIDING]
    if not divides:
        return values.with_columns(devices=pl.lit(owners.height, pl.Int64))
    if divides != ["device"]:
        owners = owners.join(process_ranks(trace), on="process", how="left")
    counted = owners.group_by(divides).agg(pl.len().cast(pl.Int64).alias("devices"))
    return values.join(counted, on=divides, how="left", nulls_equal=True)


def process_ranks(trace: Trace) -> pl.DataFrame:
    """Return the rank of each process, and its node (the host name of its machine).

    The rank is taken from the first of these sources that has one:

    - ``mpi``: the rank in MPI.
    - ``nccl``: the rank in the largest NCCL communicator that the process created or used. It does
      not count if the communicator has fewer ranks than the job states, or than there are processes
      with such a communicator.
    - ``program``: the process's NVTX mark ``tracekit.rank 1 of 4``.
    - ``report``: the rank in the program's environment or in the trace.
    - ``file``: the number after ``rank`` or ``worker`` in the file name.

    The last two sources count only for the one process of a trace file that ran GPU ops (or, in a
    file without GPU ops, for its one process), and not in files with several such processes.

    Returns
    -------
    ``process, rank, rank_source, node`` in order of process numbers. Unknown values are null.
    """
    return trace.once(_process_ranks)


def _process_ranks(trace: Trace) -> pl.DataFrame:
    reports = trace.read("reports").select(
        "report",
        "ranks",
        node="host",
        stated="rank",
        in_name=pl.col("file").str.extract(_IN_NAME).cast(pl.Int32),
    )
    tables = excerpt(trace)
    by_mpi = (
        tables.host.filter(pl.col("rank").is_not_null())
        .group_by("process").agg(pl.col("rank").min(), ranks=pl.col("rank").n_unique()).collect()
        .filter(pl.col("ranks") == 1)
    )  # fmt: skip
    by_nccl = (
        communicators(trace).drop_nulls(["rank", "ranks"])
        .join(reports.select("report", least="ranks"), on="report", how="left")
        .filter(pl.col("ranks") == pl.col("ranks").max().over("process"))
        .filter(pl.col("ranks") >= pl.max_horizontal("least", pl.col("process").n_unique()))
        .group_by("process").agg(in_nccl=pl.col("rank").min(), known=pl.col("rank").n_unique())
        .filter(pl.col("known") == 1).drop("known")
    )  # fmt: skip
    by_program = (
        tables.ranges.filter(IS_RANK_MARK)
        .group_by("process").agg(pl.col("name").str.extract(_SAYS).cast(pl.Int32).unique())
        .filter(pl.col("name").list.len() == 1).select("process", said=pl.col("name").list.first())
        .collect()
    )  # fmt: skip
    active, owners = tables.active.collect(), trace.read("processes").select("report", "process")
    idle = owners.join(active, on="report", how="anti")
    alone = pl.concat([active, idle]).filter(pl.len().over("report") == 1)
    by_report = alone.join(reports, on="report").select("process", "stated", "in_name")
    return (
        trace.read("processes")
        .select("process", "report")
        .join(reports.select("report", "node"), on="report", how="left")
        .join(by_mpi, on="process", how="left")
        .join(by_nccl, on="process", how="left")
        .join(by_program, on="process", how="left")
        .join(by_report, on="process", how="left")
        .sort("process")
        .select(
            "process",
            rank=pl.coalesce(*_SOURCES),
            rank_source=pl.coalesce(
                pl.when(pl.col(column).is_not_null()).then(pl.lit(source))
                for column, source in _SOURCES.items()
            ),
            node="node",
        )
    )  # fmt: skip


def unrecorded_ranks(trace: Trace) -> list[int]:
    """Return the first nine ranks of the job that are not recorded.

    Ranks between recorded ranks are always found. If the rank of each process with GPU work is
    known, later ranks are found, too, up to the size of the job or of its largest communicator. So
    are ranks before the first one, unless all ranks come from file names (which may count from 1).
    """
    active, named = excerpt(trace).active.select("process").collect(), process_ranks(trace)
    ranks = named["rank"].drop_nulls().unique().sort().to_list()
    active = active.join(named, on="process", how="left")
    if ranks and not active["rank"].has_nulls():
        size = trace.once(job_size)
        first = [-1] * (active["rank_source"] != "file").any()
        ranks = [*first, *ranks, *([size] if size > ranks[-1] else [])]
    between = (range(one + 1, other) for one, other in pairwise(ranks))
    return [*islice(chain.from_iterable(between), _FIRST)]


def job_size(trace: Trace) -> int:
    """Return the number of ranks of the job, else of its largest communicator; 0 if unknown."""
    marks = excerpt(trace).ranges.filter(IS_RANK_MARK).select(pl.col("name").str.extract(_SAYS, 2))
    sizes = [trace.read("reports")["ranks"], communicators(trace)["ranks"],
             marks.collect()["name"].cast(pl.Int32)]  # fmt: skip
    return max((size for each in sizes for size in each.drop_nulls()), default=0)


def unseen_participants(trace: Trace, calls: pl.DataFrame) -> str | None:
    """Return in words which ranks of matched collectives (`calls`) were not recorded, if any."""
    member = pl.struct("process", "device")
    matched = calls.drop_nulls("match").filter(pl.col("collective") != "send_recv")
    seen = matched.group_by("match").agg(pl.max("ranks"), member.n_unique().alias("seen"))
    if partly := seen.filter(pl.col("seen") < pl.col("ranks")).height:
        return f"ranks of {partly:,} of {seen.height:,} collectives"
    absent = trace.once(unrecorded_ranks) if seen.height else []
    which = ", ".join(map(str, absent[:_LISTED])) + ", ..." * bool(absent[_LISTED:])
    return f"rank {which}" if absent else None


def uncounted_waits(trace: Trace, calls: pl.DataFrame) -> list[str]:
    """Return notes on waits in collectives that are not counted; `calls` are without messages."""
    alone, unseen = calls["match"].null_count(), unseen_participants(trace, calls)
    of_calls = f"the participants of {alone:,} of {calls.height:,} calls of collectives"
    last = "one that was not recorded may be the last, waits for it are not counted"
    is_unsized = calls.drop_nulls("match")["ranks"].has_nulls()
    notes = {
        f"{of_calls}: waits in these are not counted": alone,
        f"{unseen}: {last}": unseen,
        f"how many ranks there are: those seen are taken as all ranks; {last}": (
            is_unsized and not unseen and not trace.once(job_size)
        ),
    }
    return [text for text, holds in notes.items() if holds]


# -- match the processes of an NCCL log with those of a run


_SHOWN = 4


def log_processes(owners: pl.DataFrame, processes: pl.DataFrame, log: str) -> pl.DataFrame:
    """Return the processes of an NCCL log that belong to the run.

    Every log line begins with the host and the id of the process that wrote it. Process ids repeat
    across hosts, so host names must agree too if log and run share any host name (they may not, as
    names inside and outside containers differ, and some profilers store none). Processes that
    remain ambiguous are left out.

    Parameters
    ----------
    owners
        ``host, pid``: the writers of the log's lines.
    processes
        Canonical table ``processes`` with a column ``host``.
    log
        Name of the log, for messages.

    Returns
    -------
    ``host, pid, process`` and ``host_run``, the name of that host in the run.

    Raises
    ------
    UsageError
        If the log names processes and none of these is in the run.
    """
    named = owners.select("host", pl.col("pid").cast(pl.Int64)).unique()
    both = named.join(processes.cast({"pid": pl.Int64}), on="pid", suffix="_run")
    same = _short(pl.col("host")) == _short(pl.col("host_run"))
    if both.filter(same).height:
        both = both.filter(same | pl.col("host_run").is_null())
    unique = pl.struct("host", "pid").is_unique() & pl.col("process").is_unique()
    found = both.filter(unique).select("host", "pid", "process", "host_run")
    if found.is_empty() and named["pid"].count():
        raise UsageError(
            f"{log} is of another run: it has {_some(named['pid'])}, "
            f"the run has {_some(processes['pid'])}",
            "give the log that was written while the run was recorded",
        )
    return found


def _short(host: pl.Expr) -> pl.Expr:
    return host.str.to_lowercase().str.split(".").list.first()


def _some(pids: pl.Series) -> str:
    distinct = pids.drop_nulls().unique().sort()
    shown = ", ".join(str(pid) for pid in distinct.head(_SHOWN).to_list())
    return f"process {shown}{' and others' if len(distinct) > _SHOWN else ''}"
