"""Sort the rows of a trace by time and collect their distinct process, thread and GPU ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from tracekit.sources._ordering import Ordered
from tracekit.support.spool import Workspace

OPEN = (1 << 63) - 1
"""End of a range that was still open when recording ended."""


def no_work(untimed: int) -> str:
    """Return the start of an error message: no GPU work, or only GPU work without times.

    `untimed` is the number of ops without times: recorders write zeros if they could not measure.
    """
    return f"no times of {untimed:,} GPU ops" if untimed else "no GPU work"


NO_CALLS = "no API calls were recorded, so no op's launch, range or iteration is known"
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
        names, present = self.distinct.columns, batch.columns
        none = pl.Series([None], dtype=pl.Int64).new_from_index(0, batch.height)
        each = (batch[name] if name in present else none.alias(name) for name in names)
        ids = pl.DataFrame([column.cast(pl.Int64) for column in each])
        numbers = self._numbers(ids) if self.distinct.height else None
        if numbers is None or numbers.null_count():
            new = ids if numbers is None else ids.filter(numbers.is_null())
            self.distinct = pl.concat([self.distinct, new.unique(maintain_order=True)])
            numbers = self._numbers(ids)
        narrow = (dtype for dtype, limit in _NARROW.items() if self.distinct.height <= limit)
        return numbers.cast(next(narrow, pl.Int64))

    def _numbers(self, ids: pl.DataFrame) -> pl.Series:
        """Return the index in `distinct` of each combination of ids; null if it is not there."""
        known = self.distinct.with_row_index(WHO)
        found = ids.join(known, on=ids.columns, how="left", nulls_equal=True, maintain_order="left")
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
