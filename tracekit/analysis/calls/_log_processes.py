"""Match the processes of an NCCL log with those of a run."""

from __future__ import annotations

import polars as pl

from tracekit.errors import UsageError

_SHOWN = 4


def log_processes(owners: pl.DataFrame, processes: pl.DataFrame, log: str) -> pl.DataFrame:
    """Return the processes of a log that are the run's.

    Every line of NCCL's begins with the host and the process that wrote it, whatever it says.
    Process ids repeat on other hosts, so the hosts have to be the same where any is: their names
    inside containers differ from those outside, and some recorders tell none. What is still not
    unique is left out.

    Parameters
    ----------
    owners
        ``host, pid`` of the log's lines.
    processes
        The canonical table, with ``host``.
    log
        What the log is called.

    Returns
    -------
    ``host, pid, process`` and ``host_run``, what the run calls the host.

    Raises
    ------
    UsageError
        If the log names processes, and none of them is in the run.
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
