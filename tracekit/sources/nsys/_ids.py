"""The identifiers of nsys: who is who, and what the ids of strings say.

A global id packs, from low to high bits: thread id 24, process id 24, virtual machine 8, hardware
8. GPU rows carry the global id of a process, host rows that of a thread.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources._tables import ExportFile

_THREAD_BITS = 24
_FIELD_MASK = (1 << _THREAD_BITS) - 1
_NO_ID = 4294967295
_INT32 = (1 << 31) - 1
_NONE_YET = (1 << 32) - 1
_MOST_IDS = (1 << 24) - 1
"""The largest id of a string that is looked up: exporters count them from 0."""


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

    def __init__(self, file: ExportFile) -> None:
        frame = file.read("StringIds", {"id": "int", "value": "text"}).drop_nulls("id")
        self._table = frame.unique("id", keep="first", maintain_order=True).sort("id")

    @property
    def values(self) -> pl.Series:
        """The texts in the order of their ids."""
        return self._table["value"]

    def places(self, ids: pl.Series) -> NDArray[np.int64]:
        """Return where in `values` the text of each id is; -1 where there is none."""
        known = self._table["id"].to_numpy()
        wanted = ids.fill_null(-1).to_numpy() if ids.null_count() else ids.to_numpy()
        if not known.size:
            return np.full(wanted.size, -1)
        if known[-1] - known[0] == known.size - 1:  # as exporters number them
            found: NDArray[np.int64] = wanted - known[0]
            if known[0] >= 0 and found.size and found.min() >= 0 and found.max() < known.size:
                return found
            return np.where((found >= 0) & (found < known.size) & (wanted >= 0), found, -1)
        found = np.searchsorted(known, wanted).clip(max=known.size - 1)
        return np.where((known[found] == wanted) & (wanted >= 0), found, -1)


class Texts:
    """The texts of a column of string ids, looked up as its batches come in.

    Parameters
    ----------
    strings
        The strings of the file.
    dtype
        Type of the texts: String, or Categorical where few of them are repeated often.
    drop
        A pattern: what it matches first is dropped.
    """

    def __init__(
        self, strings: Strings, dtype: pl.DataType | None = None, drop: str | None = None
    ) -> None:
        self._strings = strings
        self._drop = drop
        self._texts = pl.Series([], dtype=dtype or pl.String())
        self._numbers: NDArray[np.uint32] | None = None
        """For each text of the file which one of `_texts` it is, `_NONE_YET` for none."""

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id, null where there is none."""
        if ids.null_count() == len(ids):
            return pl.repeat(None, len(ids), dtype=self._texts.dtype, eager=True).alias(ids.name)
        places = self._strings.places(ids)
        numbers = pl.Series(self._learned(places))
        if places.min() < 0:
            numbers = numbers.set(pl.Series(places < 0), None)
        return self._texts.gather(numbers).alias(ids.name)

    def _learned(self, places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the number of each text, having looked up those that are met for the first time.

        What has no place gets `_NONE_YET`.
        """
        if self._numbers is None:
            self._numbers = np.full(len(self._strings.values) + 1, _NONE_YET, np.uint32)
        numbers = self._numbers[places]
        if numbers.max() != _NONE_YET:
            return numbers
        met = np.zeros(self._numbers.size, np.bool_)
        met[places] = True
        new = np.flatnonzero(met[:-1] & (self._numbers[:-1] == _NONE_YET))
        if not new.size:
            return numbers
        texts = self._strings.values.gather(new)
        if self._drop is not None:
            texts = texts.str.replace(self._drop, "")
        self._numbers[new] = np.arange(new.size) + len(self._texts)
        self._texts = pl.concat([self._texts, texts.cast(self._texts.dtype)])
        return self._numbers[places]
