"""Sort the rows of a trace by time and collect their distinct process, thread and GPU ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources._ordering import Ordered
from tracekit.support.compiled import compiled
from tracekit.support.spool import Workspace

OPEN = (1 << 63) - 1
"""End of a range that was still open when recording ended."""


def no_work(untimed: int) -> str:
    """Return the start of an error message: no GPU work, or only GPU work without times.

    Parameters
    ----------
    untimed
        Number of ops without times: recorders write zeros if they could not measure.
    """
    return f"no times of {untimed:,} GPU ops" if untimed else "no GPU work"


NO_CALLS = "no CUDA calls were recorded, so no op's launch, range or iteration is known"
NO_RANGES = "no NVTX ranges were recorded, so only structure and names can show stages"


def absences(
    has_work: object, untimed: int, record: str, *parts: tuple[object, str, str]
) -> tuple[str, ...]:
    """Return warnings on kinds of data that a trace lacks.

    If it lacks GPU work, that is the only warning.

    Parameters
    ----------
    has_work, untimed, record
        Whether there are ops, the number of ops without times, and how to record ops.
    parts
        For each further kind of data: whether it is there, the warning without it, and how to
        record it.
    """
    if not has_work:
        return (f"{no_work(untimed)} was recorded: {record}",)
    return tuple(f"{absence}: {how}" for there, absence, how in parts if not there)


def counted(lost: Mapping[str, int], words: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings on dropped rows: one sentence for each kind of loss that occurred.

    Parameters
    ----------
    lost
        Kind of loss -> number of rows.
    words
        Kind of loss -> description of the lost rows, put after their number.
    """
    return tuple(f"{lost[kind]:,} {noun}" for kind, noun in words.items() if lost.get(kind))


def backward(count: int, noun: str) -> tuple[str, ...]:
    """Return a warning that `count` rows (called `noun`) end before they start; none for 0 rows."""
    return (f"{count:,} {noun} end before they begin, and were taken to last 0 ns",) * bool(count)


WHO = "who"
"""Column with the number of a row's combination of identities."""
_NARROW = {pl.Int8: 1 << 7, pl.Int16: 1 << 15, pl.Int32: 1 << 31}


class Seen:
    """Rows sorted by time, the distinct combinations of ids in them, and their latest time.

    Parameters
    ----------
    batches
        The rows as they come in.
    workspace
        Folder and memory budget for the rows.
    identities
        Columns of ids, whose distinct combinations are kept.
    numbered
        Whether these columns are replaced by `WHO`, the index of the row's combination of ids.
    """

    def __init__(
        self,
        batches: Iterable[pl.DataFrame],
        workspace: Workspace,
        *identities: str,
        numbered: bool = False,
    ) -> None:
        self.distinct = pl.DataFrame(schema=dict.fromkeys(identities, pl.Int64))
        """Distinct combinations of identities, in order of first occurrence."""
        self.last: int | None = None
        """Latest time of any row, ns."""
        self.rows = Ordered(workspace)
        """The rows, sorted by time."""
        self._identities, self._numbered = identities, numbered
        for batch in batches:
            self.add(batch)

    def add(self, batch: pl.DataFrame) -> None:
        """Add a batch of rows."""
        if not batch.height:
            return
        ids = self._identity_of(batch)
        if self._numbered:
            batch = pl.DataFrame([c for c in batch if c.name not in self._identities] + [ids])
        self.rows.add(batch)
        latest = _latest(batch)
        self.last = latest if self.last is None else max(self.last, latest)

    def _identity_of(self, batch: pl.DataFrame) -> pl.Series:
        """Return the index of each row's combination of ids; new combinations are added."""
        absent = pl.Series([None], dtype=pl.Int64).new_from_index(0, batch.height)
        ids = [
            batch[name] if name in batch.columns else absent.alias(name)
            for name in self.distinct.columns
        ]
        some, which = _some_of_each(pl.DataFrame(ids))
        numbers = self._numbers(some) if self.distinct.height else None
        if numbers is None or numbers.null_count():
            self.distinct = pl.concat([self.distinct, some]).unique(maintain_order=True)
            numbers = self._numbers(some)
        narrow = (dtype for dtype, limit in _NARROW.items() if self.distinct.height <= limit)
        return pl.Series(WHO, numbers.cast(next(narrow, pl.Int64)).to_numpy().take(which))

    def _numbers(self, some: pl.DataFrame) -> pl.Series:
        """Return the index in `distinct` of each combination of ids; null if it is not there."""
        known = self.distinct.with_row_index(WHO)
        found = some.join(
            known, on=some.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return found[WHO]

    def __len__(self) -> int:
        return self.rows.height


def _latest(batch: pl.DataFrame) -> int:
    """Return the latest start or end in a batch; ends of open ranges do not count."""
    start, end = batch["start"].to_numpy(), batch["end"].to_numpy()
    latest = int(end.max())
    if latest == OPEN:
        latest = int(end.max(initial=start.min(), where=end != OPEN))
    return max(latest, int(start.max()))


_SLOTS = 64


def _some_of_each(rows: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.uint32]]:
    """Drop most duplicate rows from a frame of integers, cheaply; a few may remain.

    Returns
    -------
    The rows that are kept, and for each given row the position of the kept row that equals it.
    """
    filled = [column for column in rows if column.null_count() < rows.height] or [rows.to_series()]
    numbers = [column.fill_null(0) if column.null_count() else column for column in filled]
    numbers += [column.is_null() for column in filled if column.null_count()]
    values = np.vstack(list(map(pl.Series.to_numpy, numbers)), dtype=np.int64, casting="unsafe")
    slots, kept = tuple(np.zeros((2, _SLOTS), np.int64)), np.empty(rows.height, np.int64)
    which = np.empty(rows.height, np.uint32)
    count = compiled(assign_numbers, rows.height)(values, slots, kept, which)
    some = pl.Series(kept[:count].astype(np.uint32))
    return pl.DataFrame([column.cast(pl.Int64) for column in rows[some]]), which


def assign_numbers(
    values: NDArray[Any], slots: tuple[NDArray[Any], ...], kept: NDArray[Any], which: NDArray[Any]
) -> int:  # fmt: skip
    """Drop rows of integers that equal a recent row, which a small hash table remembers.

    Parameters
    ----------
    values
        The rows, at least one, column by column.
    slots
        Hash table, two arrays: the last kept row that fell into each slot, and its position among
        the kept rows; initially the first row.
    kept
        Output: numbers of the rows that are kept.
    which
        Output: for each row the position, among the kept rows, of the row that equals it.

    Returns
    -------
    Number of rows that are kept.
    """
    recent, places = slots
    kept[0], count = 0, 1
    for row in range(values.shape[1]):
        slot, is_new = 0, False
        for column in range(values.shape[0]):
            value = values[column, row]
            slot = 5 * slot + ((value ^ (value >> 24) ^ (value >> 32)) & (len(recent) - 1))
        slot &= len(recent) - 1
        like = recent[slot]
        for column in range(values.shape[0]):
            is_new |= values[column, row] != values[column, like]
        if is_new:
            recent[slot] = kept[count] = row
            places[slot] = count
            count += 1
        which[row] = places[slot]
    return count
