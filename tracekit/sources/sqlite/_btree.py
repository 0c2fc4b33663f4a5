"""List the leaf pages of an SQLite table in rowid order, from the interior pages of its B-tree.

Pages are read, not memory-mapped: a file that is cut short meanwhile gives a short read and not a
signal, and memory does not grow with the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.sources.sqlite._sqlite_header import Geometry

_Ints = NDArray[np.int64]

LEAST, GREATEST = -(2**63), 2**63 - 1
"""Smallest and largest possible rowid."""
_INTERIOR, _LEAF = 5, 13
_HEADER_BYTES = 12
_CHILD_BYTES = 4
_LONGEST_VARINT = 9
_DEEPEST = 20
_PAGES_AT_ONCE = 64
_PLACES = np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
_Bytes = NDArray[np.uint8]

_CELLS_AT = 3
"""Offset of the number of cells in a page's header."""
_WIDEST_GAP_BYTES = 1 << 14
"""Largest gap of unneeded pages that is read along to save a system call, bytes."""


class MisplacedError(Exception):
    """Error: rows lie outside of their page, or rowids contradict the B-tree of their table."""


@dataclass(frozen=True)
class Leaves:
    """Leaf pages of an SQLite table: their numbers, and an upper bound of the rowids in each."""

    pages: _Ints
    upto: _Ints


def leaves(file: int, geometry: Geometry, root: int) -> Leaves | None:
    """List the leaf pages of the SQLite table whose B-tree has its root at page `root`.

    None if anything differs from the format that SQLite writes: a page of another kind, outside of
    the file or used twice, or rowids out of order. The content of leaf pages is not checked.
    """
    pages, upto = np.array([root], np.int64), np.array([GREATEST], np.int64)
    seen, is_seen = 1, np.zeros(geometry.pages + 1, np.bool_)
    for _ in range(_DEEPEST):
        if not geometry.holds(pages):
            return None
        is_seen[pages] = True
        if np.count_nonzero(is_seen) < seen:  # one is used twice
            return None
        if _kind(file, geometry, int(pages[0])) == _LEAF:
            return Leaves(pages, upto)
        below = _level_below(file, geometry, pages, upto)
        if below is None:
            return None
        pages, upto = below
        seen += pages.size
        if (upto[1:] <= upto[:-1]).any():
            return None
    return None


def _kind(file: int, geometry: Geometry, page: int) -> int:
    return next(iter(os.pread(file, 1, (page - 1) * geometry.page_size)), 0)


def _level_below(
    file: int, geometry: Geometry, pages: _Ints, upto: _Ints
) -> tuple[_Ints, _Ints] | None:
    """Return the child pages of interior pages in order, and the greatest rowid of each.

    `upto` has the greatest rowid that may be below each of `pages`. None if a page does not have
    the format that SQLite writes.
    """
    children, bounds = [], []
    for first in range(0, pages.size, _PAGES_AT_ONCE):
        some = slice(first, first + _PAGES_AT_ONCE)
        below = _below(_contents(file, geometry, pages[some]), geometry, upto[some])
        if below is None:
            return None
        children.append(below[0])
        bounds.append(below[1])
    return np.concatenate(children), np.concatenate(bounds)


def _contents(file: int, geometry: Geometry, pages: _Ints) -> NDArray[np.uint8] | None:
    """Return a row of bytes per page: its used bytes, and zeros behind them.

    None if the file is too short. The zeros let a varint be read past the end of its page; a later
    check rejects it.
    """
    size = geometry.page_size
    read = [os.pread(file, size, (page - 1) * size) for page in pages.tolist()]
    if any(len(page) < size for page in read):
        return None
    contents = np.zeros((pages.size, geometry.usable + _LONGEST_VARINT), np.uint8)
    for content, page in zip(contents, read, strict=True):
        content[: geometry.usable] = np.frombuffer(page, np.uint8, geometry.usable)
    return contents


def _below(
    pages: NDArray[np.uint8] | None, geometry: Geometry, upto: _Ints
) -> tuple[_Ints, _Ints] | None:
    """Return the child pages of interior pages, and the greatest rowid of each.

    None if a page is no interior page, or does not have the format that SQLite writes. The rowids
    in a page separate its children; the last child has the greatest rowid of the page itself.
    """
    if pages is None or (pages[:, 0] != _INTERIOR).any():
        return None
    cells = _u16(pages, 3)
    body = _HEADER_BYTES + 2 * cells
    if (cells == 0).any() or (body > geometry.usable).any():
        return None
    page = np.repeat(np.arange(cells.size), cells)
    ends = np.cumsum(cells)
    nth = np.arange(page.size) - np.repeat(ends - cells, cells)
    places = pages[page[:, None], (_HEADER_BYTES + 2 * nth)[:, None] + np.arange(2)]
    at = _u16(places, 0)
    if (at < body[page]).any() or at.max() + _CHILD_BYTES >= geometry.usable:
        return None
    cell = pages[page[:, None], at[:, None] + np.arange(_CHILD_BYTES + _LONGEST_VARINT)]
    rowids, lengths = _varints(cell[:, _CHILD_BYTES:])
    if (at + _CHILD_BYTES + lengths > geometry.usable).any():
        return None
    child = cell[:, :_CHILD_BYTES].astype(np.int64) @ _PLACES
    last = pages[:, 8:12].astype(np.int64) @ _PLACES
    return np.insert(child, ends, last), np.insert(rowids, ends, upto)


def _u16(rows: NDArray[np.uint8], at: int) -> _Ints:
    """Return the two-byte integer at offset `at` of each row."""
    return rows[:, at].astype(np.int64) << 8 | rows[:, at + 1]


def _varints(rows: NDArray[np.uint8]) -> tuple[_Ints, _Ints]:
    """Decode the varint at the start of each row of bytes; return integers and sizes in bytes."""
    value = np.zeros(len(rows), np.uint64)
    length = np.zeros(len(rows), np.int64)
    open_ = np.ones(len(rows), np.bool_)
    for place in range(_LONGEST_VARINT):
        byte = rows[:, place].astype(np.uint64)
        bits = np.uint64(8 if place == _LONGEST_VARINT - 1 else 7)
        mask = (np.uint64(1) << bits) - np.uint64(1)
        value = np.where(open_, (value << bits) | (byte & mask), value)
        length += open_
        open_ &= byte > np.uint64(127)
        if not open_.any():
            break
    return value.view(np.int64), length


@dataclass(frozen=True)
class PagesRead:
    """Bytes of pages read from a file; each page's offset in them and number of rows (cells)."""

    data: _Bytes
    starts: _Ints
    cells: _Ints


class PageReader:
    """Reads pages of an open file."""

    def __init__(self, file: int, geometry: Geometry) -> None:
        self.file = file
        self.geometry = geometry

    def read(self, pages: _Ints) -> PagesRead | None:
        """Return the pages with the numbers `pages`; None if the file ends before one of them."""
        size = self.geometry.page_size
        order = np.argsort(pages)
        ordered = pages[order]
        begins = np.append(True, np.diff(ordered) > _WIDEST_GAP_BYTES // size)
        first = ordered[begins]
        lengths = (ordered[np.append(begins[1:], True)] - first + 1) * size
        ends = np.cumsum(lengths)
        data = np.empty(int(ends[-1]), np.uint8)
        for end, length, page in zip(ends.tolist(), lengths.tolist(), first.tolist(), strict=True):
            if not _fill(self.file, data[end - length : end], (page - 1) * size):
                return None
        run = np.cumsum(begins) - 1
        starts = np.empty_like(pages)
        starts[order] = (ends - lengths)[run] + (ordered - first[run]) * size
        return PagesRead(
            data,
            starts,
            (data[starts + _CELLS_AT].astype(np.int64) << 8) | data[starts + _CELLS_AT + 1],
        )

    def cells(self, page: int) -> int:
        """Return the number of rows (cells) of a page; 0 if the file ends before it."""
        at = (page - 1) * self.geometry.page_size
        return int.from_bytes(os.pread(self.file, 2, at + _CELLS_AT), "big")


def _fill(file: int, part: _Bytes, at: int) -> bool:
    """Fill the buffer `part` with bytes of the file from offset `at`; False if there are fewer."""
    while part.size:
        got = os.preadv(file, [part.data], at)
        if not got:
            return False
        part, at = part[got:], at + got
    return True
