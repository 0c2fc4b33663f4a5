"""Calls of the CUDA runtime and driver."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources.nvprof._input import TABLE, pid_of, thread_gid, timed
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.resources import schemas

RUNTIME, DRIVER = f"{TABLE}RUNTIME", f"{TABLE}DRIVER"
CALL_COLUMNS = ("start", "end", "processId", "threadId", "correlationId", "cbid")


class Calls:
    """The calls of a database.

    A call of the runtime and the call of the driver that it makes may share a correlation id, and
    each has a row. What launches an op is the runtime's, so the driver's has none here.

    Parameters
    ----------
    file
        The database.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._lost = 0
        self.rows: dict[str, int] = {RUNTIME: 0, DRIVER: 0}
        """How many rows were read of each table."""

    @property
    def losses(self) -> tuple[str, ...]:
        """Rows that were left out, in words."""
        what = "CUDA calls have no valid times or process and were left out"
        return (f"{self._lost:,} {what}",) if self._lost else ()

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return ``start, end, thread_gid, name, correlation, result`` of all calls."""
        both = self._file.holds_rows(DRIVER)
        keys = [np.array([], np.int64)]
        for calls in self._read(RUNTIME, "runtime", rows):
            if both:
                keys.append(_keys(calls))
            yield calls
        of_runtime = np.unique(np.concatenate(keys))
        for calls in self._read(DRIVER, "driver", rows):
            inner = pl.lit(pl.Series(_among(_keys(calls), of_runtime)))
            yield calls.with_columns(correlation=pl.when(~inner).then("correlation"))

    def _read(self, table: str, api: str, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*CALL_COLUMNS, "returnValue"), "int")
        for batch in self._file.batches(table, columns, rows):
            self.rows[table] += batch.height
            calls = timed(batch).select(
                "start",
                "end",
                thread_gid=thread_gid(pl.col("processId"), pl.col("threadId")),
                name=_function(api),
                correlation="correlationId",
                result="returnValue",
            )
            calls = calls.drop_nulls("thread_gid")
            self._lost += batch.height - calls.height
            yield calls


def _keys(calls: pl.DataFrame) -> NDArray[np.int64]:
    """Return process and correlation id, which has 32 bits, as one number."""
    key = thread_gid(pid_of(pl.col("thread_gid")), pl.col("correlation").fill_null(0))
    return calls.select(key.alias("key"))["key"].to_numpy()


def _among(keys: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which keys are in `known`, which is sorted."""
    if not known.size:
        return np.zeros(keys.size, np.bool_)
    found = known[np.searchsorted(known, keys).clip(max=known.size - 1)]
    return np.asarray(found == keys, np.bool_)


def _function(api: str) -> pl.Expr:
    """Return the name of the function that a callback id stands for; null where unknown."""
    names = _functions(api)
    return pl.col("cbid").replace_strict(
        list(names), list(names.values()), default=None, return_dtype=pl.Categorical()
    )


@cache
def _functions(api: str) -> dict[int, str]:
    with (schemas() / "nvprof" / "callbacks.toml").open("rb") as file:
        names: list[str] = tomllib.load(file)[api]
    return {number: name for number, name in enumerate(names) if name}
