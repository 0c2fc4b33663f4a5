"""Sort rows by time, whatever their order in the file, without holding all of them in memory.

Recorders write rows nearly in order, but guarantee nothing: each kind of GPU work has a separate
table, and threads may come one after the other. Each batch is sorted as it arrives. Batches that
overlap in time are cut at common times, and the parts between two cuts merged to a chunk.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import PolarsType
from tracekit.support.ahead import ahead
from tracekit.support.spool import Spool, Workspace

_SAMPLED = 1024
"""Number of rows between two times that are kept of a piece."""


@dataclass(frozen=True)
class _Slice:
    """A slice of one sorted batch (`piece`, its index): rows from `begin` up to `end`."""

    piece: int
    begin: int
    end: int


class Ordered:
    """Rows that are added in any order, and then read in the order of ``start``, chunk by chunk.

    Of rows with the same start, the longest comes first. Rows with the same start and end keep the
    order in which they were added.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._spool = Spool(workspace)
        self._samples: list[NDArray[np.int64]] = []
        self._edges: list[tuple[int, int]] = []
        self._plan: list[tuple[_Slice, ...]] | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows, with ``start`` and ``end`` in ns and never null."""
        if frame.is_empty():
            return
        frame = in_order(pl.DataFrame(_used(frame.get_columns())))
        start = frame["start"].to_numpy()
        self._samples.append(start[::_SAMPLED].copy())
        self._edges.append((int(start[0]), int(start[-1])))
        self._spool.append(frame)

    def settle(
        self, needed: Collection[str], make: Callable[[pl.DataFrame], Iterable[pl.Series]]
    ) -> None:
        """Merge all rows into their final order, replacing some columns by computed ones.

        This makes later reads cheap. No more rows can be added.

        Parameters
        ----------
        needed
            Columns that `make` reads; they are dropped.
        make
            Function of a frame of the columns `needed` (as far as they exist); it returns the new
            columns.
        """
        plan = self._planned()
        left = Counter(part.piece for chunk in plan for part in chunk)
        settled: list[tuple[_Slice, ...]] = []

        def work(chunk: tuple[_Slice, ...]) -> pl.DataFrame:
            return self._settled(chunk, needed, make)

        for chunk, rows in zip(plan, ahead(work, plan, waiting=1), strict=True):
            if self._is_whole(chunk):
                self._spool.change(chunk[0].piece, needed, rows)
                settled.append(chunk)
                continue
            settled.append((_Slice(len(self._spool), 0, rows.height),))
            self._spool.append(rows)
            left.subtract(part.piece for part in chunk)
            for piece in {part.piece for part in chunk if not left[part.piece]}:
                self._spool.drop(piece)
        self._plan = settled

    def _is_whole(self, chunk: tuple[_Slice, ...]) -> bool:
        """Test whether a chunk (rows of one interval of time) is exactly one batch as added."""
        return (
            len(chunk) == 1 and chunk[0].end - chunk[0].begin == self._spool.heights[chunk[0].piece]
        )

    def _settled(
        self,
        chunk: tuple[_Slice, ...],
        needed: Collection[str],
        make: Callable[[pl.DataFrame], Iterable[pl.Series]],
    ) -> pl.DataFrame:
        """Return the merged rows of a chunk, with columns `needed` replaced by those from `make`.

        If the chunk is one whole batch, only the computed columns are returned.
        """
        if self._is_whole(chunk):
            piece = chunk[0].piece
            there = _present(self._spool.columns[piece], needed)
            return pl.DataFrame(_used(make(self._spool.read(piece, *there))) if there else [])
        rows = self._merged(chunk, ())
        used = rows.select(_present(rows.columns, needed))
        kept = [column for column in rows if column.name not in used.columns]
        return pl.DataFrame(_used([*kept, *make(used)]))

    @property
    def height(self) -> int:
        """Number of rows added so far."""
        return sum(self._spool.heights)

    @property
    def heights(self) -> list[int]:
        """Number of rows of each chunk (rows of one interval of time, read together)."""
        return [sum(part.end - part.begin for part in chunk) for chunk in self._planned()]

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        """Return the rows of chunk `number` (an interval of time), all columns or `columns`."""
        return self._merged(self._planned()[number], columns).rechunk()

    def _merged(self, parts: tuple[_Slice, ...], columns: tuple[str, ...]) -> pl.DataFrame:
        if len(parts) == 1:
            return self._part(parts[0], columns)
        order = tuple(dict.fromkeys((*columns, "start", "end"))) if columns else ()
        pieces = [self._part(part, order) for part in parts]
        rows = merged(pieces)
        present = _present(rows.columns, columns)
        return rows.select(present) if present else rows

    def chunks(self, columns: Mapping[str, PolarsType]) -> Iterator[pl.DataFrame]:
        """Yield all rows in the order of time, chunk by chunk, with exactly `columns`.

        Columns that no row has are null.
        """
        empty = pl.DataFrame(schema=dict(columns))
        for number in range(len(self._planned())):
            rows = self.read(number, *columns)
            present = rows.select(name for name in columns if name in rows.columns)
            yield pl.concat([empty, present], how="diagonal_relaxed")

    def _part(self, part: _Slice, columns: tuple[str, ...]) -> pl.DataFrame:
        stored = self._spool.columns[part.piece]
        # Where none of them is held, the start says at least how many rows there are.
        wanted = (_present(stored, columns) or ["start"]) if columns else []
        return self._spool.read(part.piece, *wanted, rows=slice(part.begin, part.end))

    def _planned(self) -> list[tuple[_Slice, ...]]:
        if self._plan is None:
            self._plan = list(self._planning())
        return self._plan

    def _planning(self) -> Iterator[tuple[_Slice, ...]]:
        order = sorted(range(len(self._edges)), key=self._edges.__getitem__)
        edges = [self._edges[piece] for piece in order]
        if all(one[1] < other[0] for one, other in itertools.pairwise(edges)):
            yield from ((_Slice(piece, 0, self._spool.heights[piece]),) for piece in order)
            return
        cuts = self._cuts()
        chunks: list[list[_Slice]] = [[] for _ in range(cuts.size + 1)]
        for piece in range(len(self._edges)):
            for number, part in self._cut(piece, cuts):
                chunks[number].append(part)
        yield from (tuple(chunk) for chunk in chunks if chunk)

    def _cut(self, piece: int, cuts: NDArray[np.int64]) -> Iterator[tuple[int, _Slice]]:
        """Split a sorted batch (`piece`, its index) at the times `cuts`.

        Yields the number of each interval between cuts that has rows, with the slice of these rows.
        """
        (first, last), height = self._edges[piece], self._spool.heights[piece]
        before = np.where(cuts > last, height, 0)
        among = np.flatnonzero((cuts > first) & (cuts <= last))
        if among.size * _SAMPLED < height:
            before[among] = [self._before(piece, cut) for cut in cuts[among].tolist()]
        else:
            start = self._spool.read(piece, "start")["start"].to_numpy()
            before[among] = np.searchsorted(start, cuts[among])
        bounds = np.concatenate([[0], before, [height]])
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            yield number, _Slice(piece, int(bounds[number]), int(bounds[number + 1]))

    def _before(self, piece: int, time: int) -> int:
        """Return how many rows of a sorted batch (`piece`, its index) start before `time`.

        `time` is later than the start of the batch's first row.
        """
        # The row that is no earlier comes after the last sample that is.
        begin = (int(np.searchsorted(self._samples[piece], time)) - 1) * _SAMPLED
        rows = self._spool.read(piece, "start", rows=slice(begin, begin + _SAMPLED + 1))
        return begin + int(np.searchsorted(rows["start"].to_numpy(), time))

    def _cuts(self) -> NDArray[np.int64]:
        """Return the times at which batches are cut: the start times of all chunks but the first.

        A chunk has about as many rows as fit in memory; it ends a little earlier if a batch
        starts there, so that the next chunk contains the rows of this batch and few others.
        """
        times = np.sort(np.concatenate(self._samples))
        every = max(self._workspace.rows // _SAMPLED, 1)
        begins = np.searchsorted(times, sorted(first for first, _ in self._edges))
        at, cuts = 0, []
        while at + every < times.size:
            nearest = int(begins[np.searchsorted(begins, at + every, "right") - 1])
            at = nearest if nearest > at + every // 2 else at + every
            cuts.append(times[at])
        return np.unique(cuts)


def _used(columns: Iterable[pl.Series]) -> list[pl.Series]:
    """Return the columns that are not all null, to save reading and sorting the others."""
    return [column for column in columns if column.null_count() < len(column)]


def _present(stored: Sequence[str], columns: Collection[str]) -> list[str]:
    return [name for name in stored if name in columns]


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows sorted by start, longer ones first; rows with the same times keep their order."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    return frame if _are_in_order(start, end) else _arranged([frame], _sorted(start, end))


def merged(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Merge frames, each sorted by start, into one sorted frame."""
    if len(parts) == 1:
        return parts[0]
    start, end = (np.concatenate([part[name] for part in parts]) for name in ("start", "end"))
    return _arranged(parts, _sorted(start, end))


def _arranged(parts: Sequence[pl.DataFrame], order: NDArray[Any]) -> pl.DataFrame:
    """Concatenate the frames and return their rows in the order of the row numbers `order`."""
    rows = pl.concat(parts, how="diagonal_relaxed", rechunk=True)
    return rows[pl.Series(order.astype(np.uint32, copy=False))]  # as polars takes rows by


def _are_in_order(start: NDArray[Any], end: NDArray[Any]) -> bool:
    tied = (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return bool(((start[1:] > start[:-1]) | tied).all())


def _sorted(start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Return row numbers in the order of start; at the same start the longest row is first."""
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    tied = ordered[1:] == ordered[:-1]
    among = np.append(tied, False) | np.append(False, tied)
    rows = order[among]
    # Inverting all bits turns the order of whole numbers round, and the least has no negative.
    order[among] = rows[np.lexsort((~end[rows], start[rows]))]
    return order
