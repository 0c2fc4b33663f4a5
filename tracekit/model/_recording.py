"""Tables that a trace reader returns for a file: small ones as frames, large ones in chunks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from tracekit.model._tables import TABLES, PolarsType
from tracekit.model._trace import Trace


@dataclass(frozen=True)
class Maker:
    """Recipe that computes a canonical column from columns that a trace reader stored."""

    needs: tuple[str, ...]
    """Names of the stored columns that `make` reads."""
    make: Callable[[pl.DataFrame], pl.Series | pl.Expr]
    """Function of a frame with these columns that returns the canonical column."""


class Rows(Protocol):
    """Interface to rows that a trace reader keeps in chunks, ordered by time."""

    @property
    def heights(self) -> Sequence[int]:
        """Number of rows in each chunk."""

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        """Return chunk `number`, with the named columns or all."""


class Stream:
    """A large canonical table that is read in chunks, ordered by its key; may be read repeatedly.

    Rows with an equal start are in one chunk.

    Parameters
    ----------
    table
        Name of the table.
    key
        The column that numbers the rows from 0.
    rows
        The rows as the trace reader stored them, with its own columns.
    columns
        Recipes of columns: name -> `Maker`. Any other column is taken from `rows` by its name, or
        is filled with `Column.absent`.
    """

    def __init__(
        self, table: str, key: str, rows: Rows, columns: Mapping[str, Maker] | None = None
    ) -> None:
        self._name = table
        self._table = TABLES[table]
        self._key = key
        self._rows = rows
        self._makers = columns or {}
        self._absent = {c.name: c.absent for c in self._table.columns}
        self.heights = list(rows.heights)
        self.first = [0, *itertools.accumulate(self.heights)][: len(self.heights)]
        """Number of the first row of each chunk."""

    def __len__(self) -> int:
        return len(self.heights)

    @property
    def height(self) -> int:
        """Number of rows of the table."""
        return sum(self.heights)

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        """Return chunk `number` of the table, with the named columns or all."""
        schema = self._table.schema
        found = self.coded(number, *columns)
        return pl.DataFrame([c if c.dtype == schema[c.name] else c.cast(pl.String) for c in found])

    def coded(self, number: int, *columns: str) -> pl.DataFrame:
        """Return the same as `read`, but texts that are stored as categories stay categories."""
        wanted = columns or tuple(self._table.schema)
        needed: dict[str, None] = {}
        for name in wanted:
            needed |= dict.fromkeys(self._makers[name].needs if name in self._makers else (name,))
        raw = self._rows.read(number, *needed)
        return pl.DataFrame([self._column(raw, name, number) for name in wanted])

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (self.read(number) for number in range(len(self)))

    def later(self, by: int) -> Stream:
        """Return the table with `by` ns added to all its times."""
        moved = {name: self._later(name, by) for name in ("start", "end")}
        return Stream(self._name, self._key, self._rows, {**self._makers, **moved})

    def _later(self, name: str, by: int) -> Maker:
        made = self._makers.get(name, Maker((name,), lambda rows: rows[name]))
        return Maker(made.needs, lambda rows: made.make(rows) + by)

    def _column(self, raw: pl.DataFrame, name: str, number: int) -> pl.Series:
        dtype, height = self._table.schema[name], self.heights[number]
        if name == self._key:
            first = self.first[number]
            made: pl.Series | pl.Expr = pl.int_range(first, first + height, eager=True)
        elif name in self._makers:
            made = self._makers[name].make(raw)
        elif name in raw.columns:
            made = raw[name]
        else:
            made = pl.Series([self._absent[name]], dtype=dtype).new_from_index(0, height)
        if isinstance(made, pl.Expr):
            made = raw.select(made).to_series()
        return self._typed(made.alias(name), dtype)

    def _typed(self, column: pl.Series, dtype: PolarsType) -> pl.Series:
        """Return a column in its declared type; texts kept as categories stay categories."""
        if column.dtype == dtype or (dtype == pl.String and column.dtype == pl.Categorical):
            return column
        if dtype == pl.String and isinstance(column.dtype, pl.Enum):  # sooner than by a cast
            texts = pl.DataFrame([column.dtype.categories])
            codes = column.to_physical().cast(pl.UInt32)
            return texts[codes].to_series().alias(column.name)
        return self._table.typed(column)


class _Frame:
    """A frame with the interface of `Rows`: a single chunk."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        self.heights = [frame.height] if frame.height else []

    def read(self, _number: int, *columns: str) -> pl.DataFrame:
        there = self._frame.columns
        wanted = [self._frame[name] for name in columns if name in there]
        return pl.DataFrame(wanted) if columns else self._frame


KEYS = {"ops": "op", "calls": "call", "ranges": "range"}
"""Tables that are streams: name -> column that numbers the rows."""


@dataclass(frozen=True)
class Recording:
    """Canonical tables of one trace file as read, before ops get stages, ranges and iterations."""

    tables: Mapping[str, pl.DataFrame]
    """The small canonical tables, by name: all but those in `KEYS`, ``paths`` and
    ``iterations``."""
    streams: Mapping[str, Stream]
    """The large tables: name -> stream."""
    warnings: tuple[str, ...] = ()
    """Warnings about the file for users, one sentence each."""
    passing: Mapping[str, Callable[[], Iterator[pl.DataFrame]]] = field(default_factory=dict)
    """Further tables that may be large, and are stored almost unchanged: name -> function that
    yields their rows in batches, and may be called repeatedly."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the program gave its run through NVTX: name -> value."""
    late: Callable[[], tuple[str, ...]] = tuple
    """Function that returns further warnings; call it after the tables in `passing` have been
    read."""

    def __post_init__(self) -> None:
        conformed = {name: TABLES[name].conform(frame) for name, frame in self.tables.items()}
        object.__setattr__(self, "tables", conformed)

    def parts(self, name: str) -> Iterator[pl.DataFrame]:
        """Yield the rows of a table that is small (not in `streams`), in batches; none if empty."""
        if name in self.tables:
            yield self.tables[name]
        elif name in self.passing:
            yield from map(TABLES[name].conform, self.passing[name]())

    @classmethod
    def of(cls, trace: Trace) -> Recording:
        """Return a recording with the tables of a trace, one chunk each."""
        tables = {name: trace.read(name) for name in TABLES if name not in KEYS}
        streams = {
            name: Stream(name, key, _Frame(trace.read(name).sort(key)))
            for name, key in KEYS.items()
        }
        return cls(tables, streams, trace.warnings)

    def trace(self) -> Trace:
        """Return all tables of the recording as a trace."""
        large = {
            name: pl.concat([TABLES[name].empty(), *stream])
            for name, stream in self.streams.items()
        }
        passing = {
            name: pl.concat([TABLES[name].empty(), *map(TABLES[name].conform, batches())])
            for name, batches in self.passing.items()
        }
        return Trace.of({**self.tables, **large, **passing}, (*self.warnings, *self.late()))
