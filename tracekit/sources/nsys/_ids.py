"""Ids in nsys exports (of processes, threads, devices, strings), and the export they are from.

A global id packs, from low to high bits: thread id 24, process id 24, virtual machine 8, hardware
8. GPU rows carry the global id of a process, host rows that of a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources._export_tables import ExportFile
from tracekit.sources.nsys._metadata import Metadata, read_metadata
from tracekit.support.compiled import given as as_array

_THREAD_BITS = 24
_FIELD_MASK = (1 << _THREAD_BITS) - 1
_PROCESS_MASK = pl.lit(~_FIELD_MASK, pl.Int64)
_NO_ID = 4294967295
_NONE_YET = (1 << 32) - 1


def given(number: pl.Expr) -> pl.Expr:
    """Return 32-bit ids; null for 4294967295, which means that an id is not set."""
    return pl.when(number != _NO_ID).then(number)


def with_all(rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the rows that have a value in all of `columns`."""
    lacking = [name for name in columns if rows[name].null_count()]
    return rows.drop_nulls(lacking) if lacking else rows


def process_of(thread: pl.Expr) -> pl.Expr:
    """Return the global process id of a global thread id (which may be negative)."""
    return thread.and_(_PROCESS_MASK)


def pid_of(global_id: pl.Expr) -> pl.Expr:
    """Return the process id in a global id."""
    # Floor division, unlike a division that truncates, is a shift for negative ids as well.
    return (process_of(global_id) // (1 << _THREAD_BITS)).and_(pl.lit(_FIELD_MASK, pl.Int64))


def tid_of(global_id: pl.Expr) -> pl.Expr:
    """Return the thread id in a global id."""
    return global_id.and_(pl.lit(_FIELD_MASK, pl.Int64))


def positions(ids: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each id in `known` (sorted); -1 if it is not there."""
    if not known.size:
        return np.full(ids.size, -1)
    found = np.searchsorted(known, ids).clip(max=known.size - 1)
    return np.where(known[found] == ids, found, -1)


class Strings:
    """Table of an export's texts by string id; see `Texts` for lookups.

    The table may contain whole environments of processes, with secrets, so only ids that a column
    refers to are looked up.
    """

    def __init__(self, file: ExportFile) -> None:
        frame = with_all(file.read("StringIds", {"id": "int", "value": "text"}), "id")
        if (np.diff(frame["id"].to_numpy()) <= 0).any():
            frame = frame.unique("id", keep="first", maintain_order=True).sort("id")
        self._table = frame

    @property
    def values(self) -> pl.Series:
        """All texts of the export, in order of their string ids."""
        return self._table["value"]

    @cached_property
    def first(self) -> int | None:
        """Id of the first text, if text ids are consecutive, as in most exports; else None."""
        known = self._table["id"]
        if known.is_empty() or known[0] < 0 or known[-1] - known[0] != len(known) - 1:
            return None
        return int(known[0])

    def places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position, among all texts (`values`), of each id's text; -1 if it has none."""
        return np.where(ids >= 0, positions(ids, self._table["id"].to_numpy()), -1)


class Texts:
    """Lookup of the texts of a column of string ids, batch by batch.

    Parameters
    ----------
    strings
        Strings of the export.
    dtype
        Type of the texts: String, or Categorical for few texts that repeat often.
    drop
        Pattern whose first match is removed from each text; None to keep texts whole.
    """

    def __init__(
        self, strings: Strings, dtype: pl.DataType | None = None, drop: str | None = None
    ) -> None:
        self._strings = strings
        self._drop = drop
        self._texts = pl.Series([], dtype=dtype or pl.String())

    @property
    def met(self) -> pl.Series:
        """Distinct texts looked up so far."""
        return self._texts.unique()

    @cached_property
    def _numbers(self) -> NDArray[np.uint32]:
        """For each text of the export: its index in `_texts`, or `_NONE_YET` if not looked up yet.

        The last element is for ids without a text and keeps `_NONE_YET`.
        """
        return np.full(len(self._strings.values) + 1, _NONE_YET, np.uint32)

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id; null if there is none."""
        if ids.null_count() == len(ids):
            none = pl.Series(ids.name, [None], dtype=self._texts.dtype)
            return none.new_from_index(0, len(ids))
        wanted, first = as_array(ids, np.int64, null=-1), self._strings.first
        if first is None:
            wanted, first = self._strings.places(wanted), 0
        # As numbers without a sign, places before the first text lie beyond the last one.
        beyond = self._numbers.size - 1
        places = np.minimum((wanted - first).view(np.uint64), np.uint64(beyond)).view(np.int64)
        numbers = self._numbers[places]
        if (places[numbers == _NONE_YET] < beyond).any():
            self._learn(places)
            numbers = self._numbers[places]
        found = pl.Series(numbers)
        if found.max() == _NONE_YET:
            found = found.set(found == _NONE_YET, None)
        return pl.DataFrame([self._texts])[found].to_series().alias(ids.name)

    def _learn(self, places: NDArray[np.int64]) -> None:
        """Add to `_texts` the texts at positions `places` of the export that are not in it yet."""
        met = np.zeros(self._numbers.size, np.bool_)
        met[places] = True
        met[-1] = False
        new = np.flatnonzero(met & (self._numbers == _NONE_YET))
        texts = self._strings.values[new]
        if self._drop is not None:
            texts = texts.str.replace(self._drop, "")
        self._numbers[new] = np.arange(new.size) + len(self._texts)
        self._texts = pl.concat([self._texts, texts.cast(self._texts.dtype)])


@dataclass(frozen=True)
class Export:
    """An nsys export, with its metadata and its string table, which the other tables refer to."""

    file: ExportFile
    metadata: Metadata
    strings: Strings

    @classmethod
    def of(cls, file: ExportFile) -> Self:
        """Read the metadata and strings that all other tables of `file` need."""
        return cls(file, read_metadata(file), Strings(file))
