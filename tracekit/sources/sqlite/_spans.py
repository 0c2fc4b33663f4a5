"""A table in spans of its leaf pages: decoded where that is certain, else read by SQLite.

A span is a range of rowids, so either can read it. SQLite is also asked for some pages chosen at
random, and a difference ends the decoding of the table.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracekit.sources._tables import SqlType
from tracekit.sources.sqlite._btree import GREATEST, LEAST, Leaves, MisplacedError, leaves
from tracekit.sources.sqlite._layout import (
    HEADER_BYTES,
    Column,
    Record,
    geometry,
    record,
    rowid_name,
)
from tracekit.sources.sqlite._library import Library, Rows, decoded
from tracekit.sources.sqlite._reading import PageReader, PagesRead
from tracekit.support.ahead import ahead, cores

if TYPE_CHECKING:
    import polars as pl

    from tracekit.sources.sqlite._decode import Decoder

FEW_ROWS = 20_000
"""Tables of fewer rows take SQLite less time than loading the loops does."""
SMALL_FILE_BYTES = 1 << 18
"""A smaller file has no more rows than that."""
SPAN_BYTES = 1 << 22
"""Bytes of pages that a thread reads at once."""
CHECKED_LEAVES = 8
"""How many pages, besides the first and the last, SQLite is asked for."""
_LEAST_BYTES = 1 << 20
"""Bytes of pages that are worth a span of their own."""
_SPANS_PER_CORE = 4


class Query(Protocol):
    """Runs a query of few rows."""

    def __call__(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of `sql`."""


@dataclass(frozen=True)
class Table:
    """A table and those of its columns that are to be read."""

    name: str
    columns: Mapping[str, SqlType]


def spans(
    library: Library, query: Query, table: Table, warnings: list[str]
) -> Generator[Rows, None, None]:
    """Yield all rows of `table` in rowid order; what a user should know goes to `warnings`.

    Raises
    ------
    DamagedTraceError
        If the table cannot be read.
    """
    with _reading(library):
        opened = library.path.open("rb", buffering=0)
    with opened as file:
        reader = _reader(file.fileno(), library, query, table, warnings)
        if reader is None:
            yield library.read(table.name, table.columns)
        else:
            reader.ask()
            yield from map(reader.settled, ahead(reader.read, reader.spans(), waiting=1))


@contextmanager
def _reading(library: Library) -> Iterator[None]:
    """Turn a failure to read the file, which nobody else could tell from others, into damage."""
    try:
        yield
    except OSError as error:
        raise library.damaged(error.strerror) from error


def _reader(
    file: int, library: Library, query: Query, table: Table, warnings: list[str]
) -> SpanReader | None:
    """Return what reads `table` in spans; None where that is not worth it, or not certain."""
    with _reading(library):
        header, size = os.pread(file, HEADER_BYTES, 0), os.fstat(file).st_size
        division = geometry(header, size)
        if size < SMALL_FILE_BYTES or division is None:
            return None
        root = _root(query, table.name)
        tree = None if root is None else leaves(file, division, root)
        pages = PageReader(file, division)
        if tree is None or _estimated_rows(pages, tree) < FEW_ROWS:
            return None
    stored = _stored_columns(query, table.name)
    rowid = rowid_name(stored)
    if rowid is None:
        return None
    layout = record(stored, table.columns, key_has_index=_key_has_index(query, table.name))
    decoder = _decoder(layout, table, division.usable) if layout and library.utf8 else None
    return SpanReader(library, table, rowid, pages, tree, decoder, warnings)


def _root(query: Query, table: str) -> int | None:
    sql = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    roots = query(sql, table)
    return roots[0][0] if len(roots) == 1 and isinstance(roots[0][0], int) else None


def _stored_columns(query: Query, table: str) -> list[Column]:
    sql = "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid"
    return [Column(*row) for row in query(sql, table)]


def _key_has_index(query: Query, table: str) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk')"
    return bool(query(sql, table)[0][0])


def _estimated_rows(pages: PageReader, tree: Leaves) -> int:
    some = np.unique(np.linspace(0, tree.pages.size - 1, CHECKED_LEAVES).astype(np.int64))
    read = pages.read(tree.pages[some])
    return int(np.mean(read.cells) * tree.pages.size) if read else 0


def _decoder(layout: Record, table: Table, usable: int) -> Decoder:
    from tracekit.sources.sqlite._decode import Decoder  # noqa: PLC0415 - loads the compiler

    return Decoder(layout, list(table.columns), usable)


@dataclass(frozen=True)
class Read:
    """The rows of a span, and whether they were decoded."""

    span: range
    rows: Rows
    is_decoded: bool


class SpanReader:
    """Reads spans of a table.

    Parameters
    ----------
    library, table, rowid
        What reads by SQL, the table, and a name that its rowid has.
    pages, tree
        What reads pages, and the leaf pages of the table.
    decoder
        What decodes pages; None if it would not understand this table.
    warnings
        What a user should know is added here.
    """

    def __init__(
        self,
        library: Library,
        table: Table,
        rowid: str,
        pages: PageReader,
        tree: Leaves,
        decoder: Decoder | None,
        warnings: list[str],
    ) -> None:
        self._library = library
        self._table = table
        self._rowid = rowid
        self._pages = pages
        self._tree = tree
        self._decoder = decoder
        self._warnings = warnings
        some = np.random.default_rng().integers(0, tree.pages.size, CHECKED_LEAVES)
        self._checked = sorted({0, tree.pages.size - 1, *some.tolist()})
        self._asked: dict[int, pl.DataFrame] = {}
        """What SQLite found on pages that were asked for together, by place in the list of leaves.

        One question for all takes it no longer than one for each page.
        """

    def ask(self) -> None:
        """Ask SQLite for the pages that are to be compared with what is decoded."""
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

    def spans(self) -> list[range]:
        """Return the spans of the table, as places in the list of its leaves."""
        leaves_of_all = self._tree.pages.size
        least, most = (
            max(1, size // self._pages.geometry.page_size) for size in (_LEAST_BYTES, SPAN_BYTES)
        )
        width = min(most, max(least, -(-leaves_of_all // (_SPANS_PER_CORE * cores()))))
        return [
            range(first, min(first + width, leaves_of_all))
            for first in range(0, leaves_of_all, width)
        ]

    def read(self, span: range) -> Read:
        """Read the rows of `span`."""
        pages = self._read_pages(span)
        rows = self._decoded(span, pages) if pages else None
        return Read(span, rows or self._by_library(span, pages), rows is not None)

    def settled(self, read: Read) -> Rows:
        """Return rows, read again if other ones have meanwhile shown that decoding goes wrong."""
        if read.is_decoded and self._decoder is None:
            return self._by_library(read.span, self._read_pages(read.span))
        return read.rows

    def _read_pages(self, span: range) -> PagesRead | None:
        with _reading(self._library):
            return self._pages.read(self._tree.pages[span.start : span.stop])

    def _decoded(self, span: range, pages: PagesRead) -> Rows | None:
        decoder = self._decoder  # another thread may drop it meanwhile
        if decoder is None:
            return None
        upto = self._tree.upto[span.start : span.stop]
        try:
            frame = decoder.decode(pages, upto, self._after(span))
        except MisplacedError:
            raise self._damaged() from None
        if frame is None:
            return None
        rows = Rows(decoded(frame), {})
        if self._is_right(span, pages, rows):
            return rows
        self._distrust()
        return None

    def _distrust(self) -> None:
        self._decoder = None
        warning = (
            f"table {self._table.name} of {self._library.path} was read by SQLite alone, which"
            " takes longer: decoding its pages gave other values than SQLite did; please report it"
        )
        if warning not in self._warnings:
            self._warnings.append(warning)

    def _is_right(self, span: range, pages: PagesRead, rows: Rows) -> bool:
        """Compare the rows of some pages with what SQLite finds there."""
        ends = np.cumsum(pages.cells)
        for leaf in set(self._checked).intersection(span):
            end, count = int(ends[leaf - span.start]), int(pages.cells[leaf - span.start])
            wanted = self._asked.get(leaf)
            if wanted is None:
                wanted = self._select(range(leaf, leaf + 1)).frame
            # Here numbers may be in fewer bits.
            if not rows.frame[end - count : end].cast(wanted.schema).equals(wanted):
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
        """Return in SQL that a row is in `span`."""
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
