"""Shared parts of the readers of nvprof tables: texts, ids of processes and threads, times.

A thread is identified by its process and CUPTI's thread id, usually a pthread handle, of which the
tables keep 32 bits; the global ids made here are ``pid << 32 | thread id``.
"""

from __future__ import annotations

import polars as pl

from tracekit.sources._copies import Copies
from tracekit.sources._identities import small

TABLE = "CUPTI_ACTIVITY_KIND_"
STRINGS = "StringTable"

COPIES = Copies(
    host_memory=(1, 2),  # pageable, pinned
    device_memory=(3, 4, 6),  # device, array, device static
    managed_memory=(5, 7),  # managed, managed static
)
"""How CUPTI encodes copies, by kinds of memory; nsys's codes are one lower."""

PROCESS, THREAD = 1, 2
"""Kinds of objects that a row can be about."""

_TID_BITS = 32
_TID_MASK = (1 << _TID_BITS) - 1


def thread_gid(pid: pl.Expr, tid: pl.Expr) -> pl.Expr:
    """Return the global id of each thread: ``pid << 32`` and the lower 32 bits of `tid`."""
    return small(pid) * (1 << _TID_BITS) + tid.and_(pl.lit(_TID_MASK, pl.Int64))


def pid_of(thread: pl.Expr) -> pl.Expr:
    """Return the process id in a global thread id."""
    return thread // (1 << _TID_BITS)


def tid_of(thread: pl.Expr) -> pl.Expr:
    """Return the thread id in a global thread id."""
    return thread.and_(pl.lit(_TID_MASK, pl.Int64))


def by_process(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with ``pid, tid`` in place of ``thread_gid``."""
    thread = pl.col("thread_gid")
    return rows.with_columns(pid=pid_of(thread), tid=tid_of(thread)).drop("thread_gid")


def object_gid(kind: pl.Expr, object_id: pl.Expr) -> pl.Expr:
    """Return the global id of a thread or process; null for another `kind` or damaged ids.

    `object_id` has process id and thread id in 4 bytes each, and 4 unused bytes. For a process only
    the process id is meaningful; the thread id in the result is then 0.
    """
    known = kind.is_in((PROCESS, THREAD)) & (object_id.bin.size() >= 2 * _ID_BYTES)
    pid, tid = (_part(object_id, place) for place in (0, 1))
    return pl.when(known).then(thread_gid(pid, pl.when(kind == THREAD).then(tid).otherwise(0)))


_ID_BYTES = 4


def _part(object_id: pl.Expr, place: int) -> pl.Expr:
    part = object_id.bin.slice(place * _ID_BYTES, _ID_BYTES)
    complete = pl.when(part.bin.size() == _ID_BYTES).then(part)
    return complete.bin.reinterpret(dtype=pl.UInt32, endianness="little").cast(pl.Int64)


def timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with valid times; CUPTI writes 0 for an unknown time."""
    return rows.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))


def owned(rows: pl.DataFrame, owners: int | pl.DataFrame) -> pl.DataFrame:
    """Add the column ``pid`` (process id) to rows of GPU work; drop rows of unknown process.

    Parameters
    ----------
    rows
        Rows with ``correlation``.
    owners
        Process id of all rows; or ``correlation, pid``, to look it up by correlation id.
    """
    if isinstance(owners, int):
        return rows.with_columns(pid=pl.lit(owners, pl.Int64))
    return rows.join(owners, on="correlation", how="inner", maintain_order="left")
