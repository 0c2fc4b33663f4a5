"""Compiled loops that decode the leaf pages of an SQLite table.

They decode only pages that they understand in full and leave all others to SQLite. Bytes come from
a file that may be hostile: every position is compared with the end of its page before it is used.
This module loads the compiler; only large tables import it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.support.inner import inner

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

OK, BEYOND, DAMAGED = 0, 1, 2
"""Result of `decode`: all was located; something was not understood; rows do not lie where tree and
page say."""
UNFIT = -1
"""Result in place of the number of nulls: a value has another type than its column."""
FEWEST_CELL_BYTES = 4
_MORE = 128
"""Bit of a varint's byte that is set if another byte follows."""
_BYTES_OF_KIND = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1, *np.arange(116) // 2])
"""By serial type below 128: bytes of a value; -1 for unused types."""


class Pages(NamedTuple):
    """Leaf pages of an SQLite table, as read from the file."""

    data: Bytes
    starts: Ints
    """Bytes read from the file, and the offset in them at which each page begins."""
    upto: Ints
    """By page: greatest rowid that may be in it."""


class Layout(NamedTuple):
    """Positions of the requested columns in the stored rows (records) of a table."""

    slots: Ints
    """By stored column, up to the last requested one: its index among the requested columns, or
    -1."""
    whole: Bytes
    """By requested column: whether its values are integers."""
    optional: Bytes
    """By requested column: whether records may end before it."""


class Rows(NamedTuple):
    """Decoded rows of pages: integers, and for other values their positions in the bytes read."""

    rowids: Ints
    """By row: its rowid."""
    stored: Ints
    """By column and row: an integer column's value; for other columns the position of the value,
    shifted left by `_KIND_BITS`, with its serial type in the low bits. 0 for null."""
    valid: Bytes
    nulls: Ints
    """By column: a bit mask of rows, all set at first and cleared for nulls; and the number of
    nulls, 0 at first."""
    reach: Ints
    """By integer column: a mask of the bits that its values use, 0 at first. Negative values are
    inverted, so one more bit is needed for the sign."""


_LEAF = 13
_HEADER_BYTES = 8
_NOT_PAYLOAD = 35  # bytes of a page that one payload cannot have; what has more goes on elsewhere
_LEAST = -(2**63)
_NULL, _LONGEST_INT, _DOUBLE, _ZERO, _ONE, _FIRST_TEXT = 0, 6, 7, 8, 9, 12
_KIND_BITS = 18
_KIND = 2**_KIND_BITS - 1
_LAST_KIND = _FIRST_TEXT + 2 * 65535 + 1


@inner
def _u8(data: Bytes, at: int) -> int:
    """Return the byte at `at`."""
    return np.int64(data[np.uint64(at)])  # type: ignore[return-value]


@inner
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at offset `at`, and the offset after it (beyond `end` if cut short)."""
    value = 0
    for _ in range(8):
        if at >= end:
            return 0, end + 1
        byte = _u8(data, at)
        at += 1
        value = (value << 7) | (byte & (_MORE - 1))
        if byte < _MORE:
            return value, at
    if at >= end:
        return 0, end + 1
    return (value << 8) | _u8(data, at), at + 1


@inner
def _ending(data: Bytes, last: int) -> int:
    """Return the eight bytes that end at offset `last` as a big-endian number (one load)."""
    value = 0
    for back in range(7, -1, -1):
        value = (value << 8) | _u8(data, last - back)
    return value


@inner
def _u16(data: Bytes, at: int) -> int:
    return (_u8(data, at) << 8) | _u8(data, at + 1)


@inner
def _integer(data: Bytes, at: int, kind: int) -> int:
    """Return the big-endian integer of SQLite's serial type `kind` at offset `at`."""
    # The eight bytes up to its end are all there, for a page has a header. Those in front of the
    # number are shifted out.
    length: int = _BYTES_OF_KIND[kind]
    others = 64 - 8 * length
    return (_ending(data, at + length - 1) << others) >> others


@inner
def _cell(data: Bytes, at: int, end: int, usable: int) -> tuple[int, int, int]:
    """Return rowid, and start and end of the record, of the cell (stored row) at `at`.

    All are 0 if the record does not fit into its page and continues on another one.
    """
    size, at = _varint(data, at, end)
    rowid, at = _varint(data, at, end)
    if size <= 0 or size > usable - _NOT_PAYLOAD:
        return 0, 0, 0
    return rowid, at, at + size


@inner
def _decode_record(  # noqa: C901, PLR0912 - all kinds of values
    data: Bytes, at: int, stop: int, layout: Layout, rows: Rows, row: int
) -> bool:
    """Decode the record (stored row) from `at` to `stop` as row `row`; False if not understood."""
    slots, stored = layout.slots, rows.stored
    header_bytes, head = _varint(data, at, stop)
    field = header_end = at + header_bytes
    if header_bytes <= 0 or header_bytes > stop - at or head > header_end:
        return False
    for column in range(slots.size):
        slot = slots[column]
        if head < header_end:
            kind = _u8(data, head)
            head += 1
            if kind >= _MORE:
                kind, head = _varint(data, head - 1, header_end)
        elif field == stop and (slot < 0 or layout.optional[slot]):
            kind = _NULL  # the record is older than the column
        else:
            return False
        if kind < 0 or kind > _LAST_KIND:
            return False
        length = _BYTES_OF_KIND[kind] if kind < _MORE else (kind - _FIRST_TEXT) >> 1
        if length < 0 or field + length > stop:
            return False
        if slot >= 0:
            if kind == _NULL:
                stored[slot, row] = _NULL
                rows.valid[slot, row >> 3] &= np.uint8(255 - (1 << (row & 7)))
                rows.nulls[slot] += 1
            elif not layout.whole[slot]:
                stored[slot, row] = (field << _KIND_BITS) | kind
            elif kind <= _LONGEST_INT:
                value = _integer(data, field, kind)
                stored[slot, row] = value
                rows.reach[slot] |= value ^ (value >> 63)
            elif kind in (_ZERO, _ONE):
                stored[slot, row] = kind - _ZERO
            else:
                return False
        field += length
    return head <= header_end and (head < header_end or field == stop)


def decode(  # noqa: PLR0911 - one loop, see above
    pages: Pages, usable: int, after: int, layout: Layout, rows: Rows
) -> int:
    """Decode the rows in leaf pages: integers, and positions of all other values.

    Parameters
    ----------
    pages
        The pages, in rowid order.
    usable
        Number of bytes of a page that SQLite uses.
    after
        Rowid that all rows must exceed.
    layout
        Positions of columns in records.
    rows
        Output: content of the cells.

    Returns
    -------
    int
        `OK`, or the code of the reason why the decoded rows must not be used.
    """
    data, rowids = pages.data, rows.rowids
    row, last = 0, after
    for page in range(pages.starts.size):
        base = pages.starts[page]
        end = base + usable
        if base < 0 or end > data.size or data[base] != _LEAF:
            return BEYOND
        cells = _u16(data, base + 3)
        body = base + _HEADER_BYTES + 2 * cells
        if cells == 0 or body > end or row + cells > rowids.size:
            return BEYOND
        for cell in range(cells):
            at = base + _u16(data, base + _HEADER_BYTES + 2 * cell)
            if at < body or at + FEWEST_CELL_BYTES > end:
                return DAMAGED
            rowid, at, stop = _cell(data, at, end, usable)
            if stop == 0:
                return BEYOND
            if at > end or stop > end:
                return DAMAGED
            # Nothing comes before the first page; the least rowid of all may be on it.
            is_least = row == 0 and rowid == after and after == _LEAST
            if rowid > pages.upto[page] or (rowid <= last and not is_least):
                return DAMAGED
            rowids[row] = last = rowid
            if not _decode_record(data, at, stop, layout, rows, row):
                return BEYOND
            row += 1
    return OK if row == rowids.size else BEYOND


def reals(data: Bytes, places: Ints, floats: Floats, valid: Bytes) -> int:
    """Overwrite the positions `places` with the real numbers there; return the number of nulls.

    `floats` is the same memory as `places`. Bits of nulls in `valid` are cleared. Returns `UNFIT`
    if a value is no number.
    """
    nulls = 0
    for row in range(places.size):
        kind = places[row] & _KIND
        if kind == _DOUBLE:
            places[row] = _integer(data, places[row] >> _KIND_BITS, _LONGEST_INT)
        elif _NULL < kind <= _LONGEST_INT:
            floats[row] = np.float64(_integer(data, places[row] >> _KIND_BITS, kind))
        elif kind in (_ZERO, _ONE):
            floats[row] = np.float64(kind - _ZERO)
        elif kind != _NULL:
            return UNFIT
        if kind == _NULL or np.isnan(floats[row]):  # which SQLite takes for NULL, too
            places[row] = 0
            valid[row >> 3] &= np.uint8(255 - (1 << (row & 7)))
            nulls += 1
    return nulls


def texts(places: Ints, ends: Ints, valid: Bytes) -> int:
    """Compute where each text ends when all texts are joined; clear the bits of nulls in `valid`.

    Returns the number of nulls.
    """
    nulls = 0
    ends[0] = 0
    for row in range(places.size):
        kind = places[row] & _KIND
        ends[row + 1] = ends[row]
        if kind == _NULL:
            valid[row >> 3] &= np.uint8(255 - (1 << (row & 7)))
            nulls += 1
        elif kind >= _FIRST_TEXT:
            ends[row + 1] += (kind - _FIRST_TEXT) >> 1
        else:
            return UNFIT
    return nulls


def gather(data: Bytes, places: Ints, ends: Ints, out: Bytes) -> None:
    """Copy the texts at positions `places` of `data` into `out`, without gaps.

    `ends` has the end of each text in `out`.
    """
    for row in range(places.size):
        start = (places[row] >> _KIND_BITS) - ends[row]
        for at in range(ends[row], ends[row + 1]):
            out[np.uint64(at)] = data[np.uint64(start + at)]
