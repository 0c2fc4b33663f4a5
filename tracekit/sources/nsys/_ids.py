"""The identifiers of nsys: who is who, and what the ids of strings say.

A global id packs, from low to high bits: thread id 24, process id 24, virtual machine 8, hardware
8. GPU rows carry the global id of a process, host rows that of a thread.
"""

from __future__ import annotations

from functools import cached_property

import polars as pl

from tracekit.sources._sqlite import SqliteFile

_THREAD_BITS = 24
_FIELD_MASK = (1 << _THREAD_BITS) - 1
_NO_ID = 4294967295
_INT32 = (1 << 31) - 1


def given(number: pl.Expr) -> pl.Expr:
    """Return a 32-bit id, or null where it is not set, which looks like 4294967295."""
    return pl.when(number != _NO_ID).then(number)


def small(number: pl.Expr) -> pl.Expr:
    """Return a small id or number, or null where it is not set or cannot be one."""
    return pl.when(number.is_between(0, _INT32)).then(number)


def process_of(thread: pl.Expr) -> pl.Expr:
    """Return the global id of the process of a global thread id (which may be negative)."""
    return thread.and_(pl.lit(~_FIELD_MASK, pl.Int64))


def pid_of(global_id: pl.Expr) -> pl.Expr:
    """Return the process id in a global id."""
    # Floor division, unlike a division that truncates, is a shift for negative ids as well.
    return (process_of(global_id) // (1 << _THREAD_BITS)).and_(pl.lit(_FIELD_MASK, pl.Int64))


def tid_of(global_id: pl.Expr) -> pl.Expr:
    """Return the thread id in a global id."""
    return global_id.and_(pl.lit(_FIELD_MASK, pl.Int64))


class Strings:
    """Texts by string id.

    The table may hold whole environments of processes, secrets among them, so only the ids that a
    column refers to are ever looked up.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @cached_property
    def _table(self) -> pl.DataFrame:
        frame = self._file.read("StringIds", {"id": "int", "value": "text"})
        return frame.unique("id", keep="first")

    def resolve(
        self, frame: pl.DataFrame, ids: str, text: str, drop: str | None = None
    ) -> pl.DataFrame:
        """Return `frame` with `ids` replaced by `text`, less what the pattern `drop` matches."""
        wanted = frame.select(ids).unique().drop_nulls()
        named = wanted.join(self._table, left_on=ids, right_on="id", how="left")
        if drop is not None:
            named = named.with_columns(pl.col("value").str.replace(drop, ""))
        return frame.join(
            named.rename({"value": text}), on=ids, how="left", maintain_order="left"
        ).drop(ids)
