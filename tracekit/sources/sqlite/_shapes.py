"""Shapes of SQLite records: positions of values in rows with the same header as an earlier row.

A record (stored row) begins with a header: one number per column, for the type and length of its
value. Most rows of a table share a few headers, byte for byte. So what was derived once for a
header is true of all rows with this header and the same length: their values are read without
decoding the header again. The content of a shape was checked when its first row was decoded, and
depends on these bytes alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.support.inner import inner

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MOST = 1 << 10
"""Largest number of shapes that are kept."""
MOST_COLUMNS = 255
NONE = -1
_SLOTS = 1 << 12
_TRIES = 8
"""Number of slots that are searched for a shape."""
_WORDS = 8
"""Largest header of a shape, in words of 8 bytes."""
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
"""Factor for hashing: the upper bits of a product depend on all bits of the number."""
_SLOT_SHIFT = 52
_COLUMN_BITS, _KIND_BITS = 8, 18
_COLUMN = 2**_COLUMN_BITS - 1
_NULL, _LONGEST_INT, _ZERO, _FIRST_TEXT = 0, 6, 8, 12
MORE = 128
"""Bit of a varint's byte that is set if another byte follows."""
BYTES_OF_KIND = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1, *np.arange(116) // 2])
"""By serial type below 128: bytes of a value; -1 for unused types."""


class Shapes(NamedTuple):
    """Known shapes of records: distinct headers, with the positions of the values behind them.

    Parameters
    ----------
    known
        One number: count of known shapes.
    slots
        Hash table by header: number of the shape in each slot, `NONE` in free slots.
    words
        By shape: its header in words of eight bytes, from the end, and then the length of the
        record, bytes.
    numbers, constants, places
        By shape: what to store for a row, after the number of entries. For integers the column, the
        bits to drop in front, and the end in the record; for integers that the header itself gives
        (0 and 1) the column and the value; for other values the column, type and position in the
        record.
    absent
        By shape and column: whether the value is null.
    reach
        By shape and column: mask of the bits that its integers may use, without the sign.
    rows
        By shape: number of rows at hand that have it.
    """

    known: Ints
    slots: Ints
    words: Ints
    numbers: Ints
    constants: Ints
    places: Ints
    absent: NDArray[np.bool_]
    reach: Ints
    rows: Ints


def no_shapes(columns: int) -> Shapes:
    """Return empty arrays for the shapes of records with this many columns.

    With more than `MOST_COLUMNS` columns the arrays are empty for good: no shape is stored.
    """
    most = MOST if columns <= MOST_COLUMNS else 0
    numbers, constants, places = (np.zeros((most, columns + 1), np.int64) for _ in range(3))
    return Shapes(
        np.zeros(1, np.int64),
        np.full(_SLOTS, NONE, np.int64),
        np.zeros((most, _WORDS + 1), np.int64),
        numbers,
        constants,
        places,
        np.zeros((most, columns), np.bool_),
        np.zeros((most, columns), np.int64),
        np.zeros(most, np.int64),
    )


@inner
def u8(data: Bytes, at: int) -> int:
    """Return the byte at `at`."""
    return np.int64(data[np.uint64(at)])  # type: ignore[return-value]


@inner
def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at offset `at`, and the offset after it (beyond `end` if cut short)."""
    value = 0
    for _ in range(8):
        if at >= end:
            return 0, end + 1
        byte = u8(data, at)
        at += 1
        value = (value << 7) | (byte & (MORE - 1))
        if byte < MORE:
            return value, at
    if at >= end:
        return 0, end + 1
    return (value << 8) | u8(data, at), at + 1


@inner
def ending(data: Bytes, last: int) -> int:
    """Return the eight bytes that end at offset `last` as a big-endian number (one load)."""
    value = 0
    for back in range(7, -1, -1):
        value = (value << 8) | u8(data, last - back)
    return value


@inner
def _word(data: Bytes, at: int, header: int, number: int) -> int:
    """Return eight-byte word `number` of a record's header, counted from the header's end."""
    word = ending(data, at + header - 1 - 8 * number)
    left = header - 8 * number
    # What lies in front of a header is there, for a page has one itself, but is not part of it.
    return word if left >= 8 else word & ((1 << (8 * left)) - 1)  # noqa: PLR2004


@inner
def _slot(data: Bytes, at: int, header: int, size: int) -> int:
    """Return the slot of the hash table at which to start looking for a record's shape."""
    mixed = size
    for number in range((header + 7) >> 3):
        mixed = 31 * mixed + _word(data, at, header, number)
    return ((mixed * _SPREAD) >> _SLOT_SHIFT) & (_SLOTS - 1)


@inner
def _is_like(data: Bytes, at: int, header: int, size: int, words: Ints, shape: int) -> bool:
    """Test whether the record at `at` has the shape with index `shape`: same header and length."""
    if words[shape, _WORDS] != size:
        return False
    for number in range((header + 7) >> 3):
        if words[shape, number] != _word(data, at, header, number):
            return False
    return True


@inner
def find_shape(data: Bytes, at: int, stop: int, shapes: Shapes) -> int:
    """Return the index of a record's shape (header and length) among known ones; else `NONE`."""
    header, size = u8(data, at), stop - at
    if header < 1 or header > 8 * _WORDS or header > size:
        return NONE
    slot = _slot(data, at, header, size)
    for _ in range(_TRIES):
        shape: int = shapes.slots[slot]
        if shape == NONE or _is_like(data, at, header, size, shapes.words, shape):
            return shape
        slot = (slot + 1) & (_SLOTS - 1)
    return NONE


@inner
def store(data: Bytes, at: int, shape: int, shapes: Shapes, stored: Ints, row: int) -> None:
    """Store the non-null values of the record at `at`, which has the known shape `shape`.

    They become row `row` of `stored`.
    """
    numbers, constants, places = shapes.numbers, shapes.constants, shapes.places
    for entry in range(1, 1 + numbers[shape, 0]):
        packed = numbers[shape, entry]
        shift = (packed >> _COLUMN_BITS) & 63
        value = ending(data, at + (packed >> (_COLUMN_BITS + 6)))
        stored[packed & _COLUMN, row] = (value << shift) >> shift
    for entry in range(1, 1 + constants[shape, 0]):
        packed = constants[shape, entry]
        stored[packed & _COLUMN, row] = packed >> _COLUMN_BITS
    for entry in range(1, 1 + places[shape, 0]):
        packed = places[shape, entry]
        stored[packed & _COLUMN, row] = (at << _KIND_BITS) + (packed >> _COLUMN_BITS)


@inner
def learn(data: Bytes, at: int, stop: int, columns: Ints, whole: Bytes, shapes: Shapes) -> None:
    """Store the shape (header and length) of the just decoded record from `at` to `stop`.

    `columns` gives for each stored column its index among the requested columns, or -1.
    """
    header, size, shape = u8(data, at), stop - at, shapes.known[0]
    if header < 1 or header > 8 * _WORDS or shape >= shapes.rows.size:
        return
    slot = _slot(data, at, header, size)
    for _ in range(_TRIES):
        if shapes.slots[slot] == NONE:
            break
        slot = (slot + 1) & (_SLOTS - 1)
    if shapes.slots[slot] != NONE:
        return
    shapes.slots[slot] = shape
    shapes.known[0] += 1
    shapes.words[shape, _WORDS] = size
    for number in range((header + 7) >> 3):
        shapes.words[shape, number] = _word(data, at, header, number)
    _note_values(data, at, columns, whole, shapes, shape)


@inner
def _note_values(
    data: Bytes, at: int, columns: Ints, whole: Bytes, shapes: Shapes, shape: int
) -> None:
    """Store in shape `shape` where the values of the record at `at` are, and how to read them."""
    head, field = at + 1, at + u8(data, at)
    header_end = field
    for stored_column in range(columns.size):
        kind = _NULL  # where the record is older than the column
        if head < header_end:
            kind = u8(data, head)
            head += 1
            if kind >= MORE:
                kind, head = varint(data, head - 1, header_end)
        length = BYTES_OF_KIND[kind] if kind < MORE else (kind - _FIRST_TEXT) >> 1
        column = columns[stored_column]
        if column >= 0:
            if kind == _NULL:
                shapes.absent[shape, column] = True
            elif not whole[column]:
                packed = ((field - at) << _KIND_BITS) | kind
                _append(shapes.places, shape, (packed << _COLUMN_BITS) | column)
            elif kind <= _LONGEST_INT:
                dropped = 64 - 8 * length
                packed = ((field - at + length - 1) << 6) | dropped
                _append(shapes.numbers, shape, (packed << _COLUMN_BITS) | column)
                shapes.reach[shape, column] = (1 << (8 * length - 1)) - 1
            else:
                _append(shapes.constants, shape, ((kind - _ZERO) << _COLUMN_BITS) | column)
                shapes.reach[shape, column] = kind - _ZERO
        field += length


@inner
def _append(lists: Ints, shape: int, entry: int) -> None:
    lists[shape, 0] += 1
    lists[shape, lists[shape, 0]] = entry
