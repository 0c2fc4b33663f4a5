"""Read an SQLite table in spans (ranges of leaf pages): decoded here if safe, else by SQLite.

A span is a range of rowids, so SQLite can read it, too. Successive decoded spans become one frame.
SQLite also reads random pages for comparison; after a difference no more pages are decoded here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from tracekit.sources._reading import SqlType
from tracekit.sources.sqlite._btree import (
    GREATEST,
    LEAST,
    Leaves,
    MisplacedError,
    PageReader,
    PagesRead,
    leaves,
)
from tracekit.sources.sqlite._library import Library, Rows, decoded
from tracekit.sources.sqlite._sqlite_header import (
    HEADER_BYTES,
    Column,
    Record,
    geometry,
    record,
    rowid_name,
    same_case,
)
from tracekit.support.ahead import ahead, cores

if TYPE_CHECKING:
    from tracekit.sources.sqlite._row_columns import Columns, Decoder

FEW_ROWS = 20_000
"""Number of rows below which SQLite is faster than loading the compiled loops."""
SMALL_FILE_BYTES = 1 << 21
"""Size of a file below which hardly a table has more rows than that: a row takes 100 bytes."""
SPAN_BYTES = 1 << 22
"""Bytes of pages that a thread reads at once."""
CHECKED_LEAVES = 8
"""Number of random pages, besides the first and the last, that SQLite reads for comparison."""
_LEAST_BYTES = 1 << 20
"""Least bytes of pages that are worth a span of their own."""
_FILLED = 0.85
"""Share of a batch to fill by the average rows of sampled pages: the first pages of a table hold
more rows, and rows that do not fit must be copied."""
_COUNTED_LEAVES = 32


Query: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Type of a function of an SQL query and its parameters that returns its rows, which are few."""


@dataclass(frozen=True)
class Table:
    """Name of an SQLite table, and the columns to read from it."""

    name: str
    columns: Mapping[str, SqlType]


def spans(
    library: Library, query: Query, table: Table, rows: int, warnings: list[str]
) -> Generator[Rows, None, None]:
    """Yield all rows of a table in rowid order, decoded from its pages or through SQLite.

    Sentences for the user are added to `warnings`.

    Raises
    ------
    DamagedTraceError
        If the table cannot be read.
    """
    with _reading(library):
        opened = (library.content or library.path).open("rb", buffering=0)
    with opened as file:
        reader = _reader(file.fileno(), library, query, table, warnings)
        if reader is None:
            yield library.read(table.name, table.columns)
        else:
            reader.ask()
            for read in ahead(reader.read, reader.stretches(rows), waiting=1):
                yield from reader.settled(read)


@contextmanager
def _reading(library: Library) -> Iterator[None]:
    """Turn a failure to read the file into a `DamagedTraceError`."""
    try:
        yield
    except OSError as error:
        raise library.damaged(error.strerror) from error


def _reader(
    file: int, library: Library, query: Query, table: Table, warnings: list[str]
) -> SpanReader | None:
    """Return a reader of a table's leaf pages; None if it is small or its layout uncertain."""
    with _reading(library):
        header, size = os.pread(file, HEADER_BYTES, 0), os.fstat(file).st_size
        division = geometry(header, size)
        if size < SMALL_FILE_BYTES or division is None:
            return None
        root = _root(query, table.name)
        tree = None if root is None else leaves(file, division, root)
        pages = PageReader(file, division)
        if tree is None:
            return None
        rows_of_leaf = _rows_of_leaf(pages, tree)
        if rows_of_leaf * tree.pages.size < FEW_ROWS:
            return None
    stored = _stored_columns(query, table.name)
    rowid = rowid_name(stored)
    if rowid is None:
        return None
    layout = record(stored, table.columns, key_has_index=_key_has_index(query, table.name))
    decoder = _decoder(layout, table, division.usable) if layout and library.utf8 else None
    return SpanReader(library, table, rowid, pages, tree, decoder, rows_of_leaf, warnings)


def _root(query: Query, table: str) -> int | None:
    sql = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
    roots = query(sql, table)
    return roots[0][0] if len(roots) == 1 and isinstance(roots[0][0], int) else None


def _stored_columns(query: Query, table: str) -> list[Column]:
    sql = "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid"
    return [Column(same_case(name), *row) for name, *row in query(sql, table)]


def _key_has_index(query: Query, table: str) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk')"
    return bool(query(sql, table)[0][0])


def _rows_of_leaf(pages: PageReader, tree: Leaves) -> float:
    some = np.unique(np.linspace(0, tree.pages.size - 1, _COUNTED_LEAVES).astype(np.int64))
    return float(np.mean([pages.cells(page) for page in tree.pages[some].tolist()]))


def _decoder(layout: Record, table: Table, usable: int) -> Decoder:
    from tracekit.sources.sqlite._row_columns import Decoder  # noqa: PLC0415 - loads the compiler

    return Decoder(layout, list(table.columns), usable)


def _divided(places: range, width: int) -> list[range]:
    return [places[first : first + width] for first in range(0, len(places), width)]


def _rows_of(columns: Columns | None) -> list[Rows]:
    """Return the decoded rows as a list of one item; empty without columns."""
    if columns is None or not columns.height:
        return []
    return [Rows(decoded(columns.rows(0, columns.height)), {})]


@dataclass(frozen=True)
class Read:
    """The rows read from a range of leaf pages (`stretch`).

    `is_decoded` is whether tracekit decoded any of the rows itself; SQLite read the other rows.
    """

    stretch: range
    rows: list[Rows]
    is_decoded: bool


class SpanReader:
    """Reads ranges of leaf pages of a table, decoded here or through SQLite.

    Parameters
    ----------
    library
        Reader through SQLite.
    table, rowid
        The table, and a name that SQL can use for its rowid.
    pages
        Reader of pages by number.
    tree
        The leaf pages of the table.
    decoder
        Decoder of leaf pages; None if it does not understand this table.
    rows_of_leaf
        Average number of rows of a leaf page.
    warnings
        List to which sentences for the user are added.
    """

    def __init__(
        self,
        library: Library,
        table: Table,
        rowid: str,
        pages: PageReader,
        tree: Leaves,
        decoder: Decoder | None,
        rows_of_leaf: float,
        warnings: list[str],
    ) -> None:
        self._library = library
        self._table = table
        self._rowid = rowid
        self._pages = pages
        self._tree = tree
        self._decoder = decoder
        self._warnings = warnings
        self._rows_of_leaf = rows_of_leaf
        # Loads less than the generators of numpy.
        some = SystemRandom().choices(range(tree.pages.size), k=CHECKED_LEAVES)
        self._checked = sorted({0, tree.pages.size - 1, *some})
        self._asked: dict[int, pl.DataFrame] = {}
        """Place in the list of leaves -> rows that SQLite read there. All pages take one query,
        which is as fast as a query for one."""

    def ask(self) -> None:
        """Have SQLite read a random sample of leaf pages, to compare decoded pages with."""
        pages = self._tree.pages[self._checked] if self._decoder else self._tree.pages[:0]
        with _reading(self._library):
            read = self._pages.read(pages) if pages.size else None
        if read is None:
            return
        bounds = [self._bounds(range(leaf, leaf + 1)) for leaf in self._checked]
        rows = self._library.read(self._table.name, self._table.columns, *bounds).frame
        if rows.height == read.cells.sum():  # else nobody knows whose they are
            ends, counts = np.cumsum(read.cells).tolist(), read.cells.tolist()
            parts = (rows[end - count : end] for end, count in zip(ends, counts, strict=True))
            self._asked = dict(zip(self._checked, parts, strict=True))

    def stretches(self, rows: int) -> list[range]:
        """Divide the leaf pages into ranges, each to be read as one frame of about `rows` rows.

        A small table is divided among the cores.
        """
        leaves_of_all, page = self._tree.pages.size, self._pages.geometry.page_size
        most = max(1, int(rows * _FILLED / max(self._rows_of_leaf, 1)))
        least = max(1, _LEAST_BYTES // page)
        width = min(most, max(least, -(-leaves_of_all // cores())))
        return _divided(range(leaves_of_all), width)

    def read(self, stretch: range) -> Read:
        """Read the rows of a range of leaf pages, part by part, decoded or through SQLite."""
        parts: list[Rows] = []
        columns: Columns | None = None
        is_decoded = False
        for span in _divided(stretch, max(1, SPAN_BYTES // self._pages.geometry.page_size)):
            pages = self._read_pages(span)
            decoder = self._decoder  # another thread may drop it meanwhile
            if columns is None and decoder is not None:
                columns = decoder.columns(int(self._rows_of_leaf * len(stretch)))
            if pages and columns and self._decoded(span, pages, columns):
                is_decoded = True
                continue
            parts += _rows_of(columns)
            columns = None
            parts.append(self._by_library(span, pages))
        return Read(stretch, parts + _rows_of(columns), is_decoded)

    def settled(self, read: Read) -> list[Rows]:
        """Return the rows of a range that was read.

        If tracekit's decoding has failed a check since, SQLite reads the range again.
        """
        if read.is_decoded and self._decoder is None:
            return [self._by_library(read.stretch, self._read_pages(read.stretch))]
        return read.rows

    def _read_pages(self, span: range) -> PagesRead | None:
        with _reading(self._library):
            return self._pages.read(self._tree.pages[span.start : span.stop])

    def _decoded(self, span: range, pages: PagesRead, columns: Columns) -> bool:
        """Decode leaf pages (a span) and append their rows to columns; return whether it worked."""
        decoder, first = self._decoder, columns.height
        if decoder is None:
            return False
        upto = self._tree.upto[span.start : span.stop]
        try:
            is_known = decoder.decode(columns, pages, upto, self._after(span)) is not None
        except MisplacedError:
            raise self._damaged() from None
        if not is_known or self._is_right(span, pages, columns, first):
            return is_known
        columns.keep(first)
        self._distrust()
        return False

    def _distrust(self) -> None:
        self._decoder = None
        warning = (
            f"table {self._table.name} of {self._library.path} was read by SQLite alone, which"
            " takes longer: decoding its pages gave other values than SQLite did; please report it"
        )
        if warning not in self._warnings:
            self._warnings.append(warning)

    def _is_right(self, span: range, pages: PagesRead, columns: Columns, first: int) -> bool:
        """Test whether sample pages in a span were decoded to the same rows that SQLite reads.

        The span's rows begin at row `first` of `columns`.
        """
        ends = first + np.cumsum(pages.cells)
        for leaf in set(self._checked).intersection(span):
            end, count = int(ends[leaf - span.start]), int(pages.cells[leaf - span.start])
            wanted = self._asked.get(leaf)
            if wanted is None:
                wanted = self._select(range(leaf, leaf + 1)).frame
            rows = decoded(columns.rows(end - count, end))
            if not rows.cast(wanted.schema).equals(wanted):  # numbers may be in fewer bits
                return False
        return True

    def _by_library(self, span: range, pages: PagesRead | None) -> Rows:
        rows = self._select(span)
        # Where rowids are out of order, SQLite misses rows when it is asked for a range of them.
        if pages and rows.frame.height != pages.cells.sum():
            raise self._damaged()
        return rows

    def _select(self, span: range) -> Rows:
        return self._library.read(self._table.name, self._table.columns, self._bounds(span))

    def _bounds(self, span: range) -> str:
        """Return the SQL condition that a row's rowid lies in the leaf pages `span`."""
        after, upto = self._after(span), int(self._tree.upto[span.stop - 1])
        bounds = [f"{self._rowid} > {after}"] if span.start else []
        bounds += [f"{self._rowid} <= {upto}"] if upto < GREATEST else []
        return " AND ".join(bounds) or "1"

    def _after(self, span: range) -> int:
        return int(self._tree.upto[span.start - 1]) if span.start else LEAST

    def _damaged(self) -> Exception:
        return self._library.damaged(
            f"rows of table {self._table.name} are not where they should be"
        )
