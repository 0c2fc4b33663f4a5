"""Match the processes of an NCCL log with those of a run."""

from __future__ import annotations

import polars as pl

from tracekit.errors import UsageError

_SHOWN = 4


def log_processes(owners: pl.DataFrame, processes: pl.DataFrame, log: str) -> pl.DataFrame:
    """Return the processes of an NCCL log that belong to the run.

    Every log line begins with the host and the id of the process that wrote it. Process ids repeat
    across hosts, so host names must agree too if log and run share any host name: names inside
    containers differ from those outside, and some recorders store none. Processes that remain
    ambiguous are left out.

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
            f"{log} is no log of this run: it is of {_some(named['pid'])}, "
            f"the run of {_some(processes['pid'])}",
            "give the log that was written while the run was recorded",
        )
    return found


def _short(host: pl.Expr) -> pl.Expr:
    return host.str.to_lowercase().str.split(".").list.first()


def _some(pids: pl.Series) -> str:
    distinct = pids.drop_nulls().unique().sort()
    shown = ", ".join(str(pid) for pid in distinct.head(_SHOWN).to_list())
    return f"process {shown}{' and others' if len(distinct) > _SHOWN else ''}"
