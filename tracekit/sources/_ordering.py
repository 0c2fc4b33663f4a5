"""Tables in the order of time, whatever the order that files keep them in.

Recorders write rows nearly in order, but promise nothing: each kind of GPU work has a table of its
own, and threads may come one after the other. What arrives is sorted piece by piece, and pieces
that overlap in time are cut at the same instants and merged between them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import PolarsType
from tracekit.sources._merging import in_order, merged
from tracekit.support.ahead import ahead
from tracekit.support.spool import Spool, Workspace

_SAMPLED = 1024
"""Every how many rows a piece remembers the time."""
_NARROW = {pl.Int8: (1 << 7) - 1, pl.Int16: (1 << 15) - 1, pl.Int32: (1 << 31) - 1}
"""What whole numbers may wait in, and the largest that fits."""


@dataclass(frozen=True)
class _Slice:
    """Rows `begin` to `end` of a piece."""

    piece: int
    begin: int
    end: int


class Ordered:
    """Rows that arrive in any order, to be read in the order of ``start`` as often as needed.

    Of rows that start together, the one that ends last is first, else the one that arrived first.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._spool = Spool(workspace)
        self._samples: list[NDArray[np.int64]] = []
        self._edges: list[tuple[int, int]] = []
        self._columns: list[tuple[str, ...]] = []
        self._wide: set[str] = set()
        """Columns of 64 bits, whatever they wait in."""
        self._plan: list[tuple[_Slice, ...]] | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows with ``start`` and ``end`` (ns, never null)."""
        if frame.is_empty():
            return
        held = _held(frame.get_columns())
        self._wide |= {column.name for column in held if column.dtype == pl.Int64}
        frame = in_order(pl.DataFrame([shrunk(column) for column in held]))
        start = frame["start"].to_numpy()
        self._samples.append(start[::_SAMPLED].copy())
        self._edges.append((int(start[0]), int(start[-1])))
        self._columns.append(tuple(frame.columns))
        self._spool.append(frame)

    def settle(
        self, given: Collection[str], make: Callable[[pl.DataFrame], Iterable[pl.Series]]
    ) -> None:
        """Bring the rows into order for good, and columns of them into their last form.

        What is read again and again is then neither merged nor made again. No more can be added,
        and whole numbers are read in as few bits as they wait in.

        Parameters
        ----------
        given, make
            Columns that go, and what makes others of those of them that there are.
        """
        plan = self._planned()
        left = Counter(part.piece for chunk in plan for part in chunk)
        settled = Spool(self._workspace)
        held: list[tuple[str, ...]] = []
        work = partial(self._settled, given=given, make=make)
        for chunk, rows in zip(plan, ahead(work, plan, waiting=0), strict=True):
            settled.append(rows)
            held.append(tuple(rows.columns))
            left.subtract(part.piece for part in chunk)
            for piece in {part.piece for part in chunk if not left[part.piece]}:
                self._spool.drop(piece)
        self._spool, self._columns, self._wide = settled, held, set()
        self._plan = [(_Slice(n, 0, rows),) for n, rows in enumerate(settled.heights)]

    def _settled(
        self,
        chunk: tuple[_Slice, ...],
        given: Collection[str],
        make: Callable[[pl.DataFrame], Iterable[pl.Series]],
    ) -> pl.DataFrame:
        rows = self._merged(chunk, ())
        used = rows.select(_present(rows.columns, given))
        kept = [column for column in rows if column.name not in used.columns]
        return pl.DataFrame(_held([*kept, *make(self._widened(used))]))

    def _widened(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return whole numbers in the bits in which they came."""
        wide = _present(rows.columns, self._wide)
        return rows.with_columns(pl.col(wide).cast(pl.Int64)) if wide else rows

    @property
    def height(self) -> int:
        """How many rows there are."""
        return sum(self._spool.heights)

    @property
    def heights(self) -> list[int]:
        """How many rows each chunk has."""
        return [sum(part.end - part.begin for part in chunk) for chunk in self._planned()]

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        """Return chunk `number`, or those of some columns that it has."""
        return self._widened(self._merged(self._planned()[number], columns)).rechunk()

    def _merged(self, parts: tuple[_Slice, ...], columns: tuple[str, ...]) -> pl.DataFrame:
        if len(parts) == 1:
            return self._part(parts[0], columns)
        order = tuple(dict.fromkeys((*columns, "start", "end"))) if columns else ()
        pieces = [self._part(part, order) for part in parts]
        rows = merged(pieces)
        present = _present(rows.columns, columns)
        return rows.select(present) if present else rows

    def chunks(self, columns: Mapping[str, PolarsType]) -> Iterator[pl.DataFrame]:
        """Return some columns of all chunks in order; absent ones are null."""
        empty = pl.DataFrame(schema=dict(columns))
        for number in range(len(self._planned())):
            rows = self.read(number, *columns)
            present = rows.select(name for name in columns if name in rows.columns)
            yield pl.concat([empty, present], how="diagonal_relaxed")

    def _part(self, part: _Slice, columns: tuple[str, ...]) -> pl.DataFrame:
        held = self._columns[part.piece]
        # Where none of them is held, the start says at least how many rows there are.
        wanted = (_present(held, columns) or ["start"]) if columns else []
        return self._spool.read(part.piece, *wanted)[part.begin : part.end]

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
        """Return what each chunk has of a piece, if anything, with the number of the chunk."""
        start = self._spool.read(piece, "start")["start"].to_numpy()
        bounds = np.concatenate([[0], np.searchsorted(start, cuts), [start.size]])
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            yield number, _Slice(piece, int(bounds[number]), int(bounds[number + 1]))

    def _cuts(self) -> NDArray[np.int64]:
        """Return the times at which chunks begin, but for the first one.

        Where a piece begins not long before a chunk has all the rows it is to have, the next one
        begins with it: then it has the rows of that piece, and few others.
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


def _held(columns: Iterable[pl.Series]) -> list[pl.Series]:
    """Return the columns that hold anything: reading and sorting one of nulls costs as much."""
    return [column for column in columns if column.null_count() < len(column)]


def _present(held: Sequence[str], columns: Collection[str]) -> list[str]:
    return [name for name in held if name in columns]


def shrunk(column: pl.Series) -> pl.Series:
    """Return whole numbers in as few bits as hold them all."""
    if column.dtype not in (pl.Int32, pl.Int64) or column.name in {"start", "end"}:
        return column
    least, most = column.min(), column.max()
    if not (isinstance(least, int) and isinstance(most, int)):
        return column
    fitting = (dtype for dtype, limit in _NARROW.items() if -limit <= least <= most <= limit)
    return column.cast(next(fitting, column.dtype))
