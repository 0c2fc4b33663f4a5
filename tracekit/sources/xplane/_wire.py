"""Parse Protocol Buffers messages of XLA profiles: fields, and events with their attributes."""

# ruff: noqa: C901, PLR2004 - loops that are compiled, over the bits of a format

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.support.compiled import compiled
from tracekit.support.inner import inner

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

UNSIGNED, SIGNED, STRING, REFERENCE = 3, 4, 5, 7
"""Field numbers of a stat's value: integers, a text, and the number of a text in the plane."""


class WireError(Exception):
    """Error: bytes are no valid Protocol Buffers message."""


def fields(data: Bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a Protocol Buffers message.

    An integer field gives the tuple (field number, value, 0). A field of bytes gives (field number,
    start of the bytes, end of the bytes).

    Raises
    ------
    WireError
        If the message is invalid.
    """
    yield from zip(*(each.tolist() for each in split(data, begin, end)), strict=True)


def split(data: Bytes, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
    """Return the fields of a message as arrays, see `split_fields`."""
    numbers, values, ends = (np.empty(max((end - begin) // 2, 1), np.int64) for _ in range(3))
    count = compiled(split_fields, end - begin)(data, begin, end, numbers, values, ends)
    if count < 0:
        raise WireError
    return numbers[:count], values[:count], ends[:count]


def split_fields(data: Bytes, begin: int, end: int, numbers: Ints, values: Ints, ends: Ints) -> int:
    """Find the fields of a Protocol Buffers message; return how many, or -1 if it is invalid.

    Parameters
    ----------
    data, begin, end
        Bytes, and the start and end of the message in them.
    numbers
        Output: field numbers.
    values, ends
        Output: value and 0 for fields that are integers; start and end of the bytes for others.
    """
    at, count = begin, 0
    while at < end:
        number, kind, value, size, at = _field(data, at, end)
        if number == 0 or count == len(numbers):
            return -1
        numbers[count] = number
        values[count] = value if kind == 0 else at
        at += size
        ends[count] = at if kind != 0 else 0
        count += 1
    return count


@inner
def _field(data: Bytes, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Read the head of the field at `at` of a message that ends at `end`.

    Returns
    -------
    Number (0 if the field is invalid), kind, value if it is an integer, size of its bytes, and
    where these begin.
    """
    key, at = varint(data, at, end, 28)
    kind, value = key & 7, 0
    if kind in (0, 2):
        value, at = varint(data, at, end, 63)
    size = value if kind == 2 else 8 if kind == 1 else 4 if kind == 5 else 0
    if at < 0 or kind in (3, 4) or kind > 5 or size < 0 or size > end - at:
        return 0, 0, 0, 0, 0
    return key >> 3, kind, value, size, at


@inner
def varint(data: Bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """Read the varint at `at`, whose last bits are shifted by `most`; return it and where it ends.

    The end is -1 if it is cut short or too long, or if `at` is.
    """
    value, shift = 0, 0
    while 0 <= at < end and shift <= most:
        byte = int(data[at])
        at += 1
        if shift < 63:
            value |= (byte & 127) << shift
        elif byte & 1:  # the sign of a number of 64 bits
            value = value - (1 << 62) - (1 << 62)
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


def read_events(
    data: Bytes,
    begins: Ints,
    stops: Ints,
    columns: Ints,
    numbers: Ints,
    stats: NDArray[Any],
    kinds: NDArray[Any],
) -> int:
    """Read events and some of their attributes (stats) up to an invalid one; return their number.

    Parameters
    ----------
    data, begins, stops
        Bytes, and the start and end of each event's message in them.
    columns
        By id of an attribute: the column it goes to, -1 for none.
    numbers
        Output, 3 rows: metadata id, offset and duration of each event.
    stats
        Output, 2 rows per column: value of an attribute that is a number, in the first row; or
        begin and end of a text.
    kinds
        Output, 1 row per column: number of the field with the attribute's value; 0 if absent, 1 if
        of another type, such as a fraction.
    """
    for row in range(len(begins)):
        at, end = begins[row], stops[row]
        stat_end = end
        inside = False
        column, value, value_end, field_of = -1, 0, 0, 0
        while at < end or inside:
            if inside and at >= stat_end:
                if 0 <= column < kinds.shape[0]:
                    stats[2 * column, row] = value
                    stats[2 * column + 1, row] = value_end
                    kinds[column, row] = field_of
                inside = False
                continue
            limit = stat_end if inside else end
            field, kind, number, size, at = _field(data, at, limit)
            if field == 0:
                return row
            if inside:
                if field == 1 and kind == 0:
                    column = columns[number] if 0 <= number < len(columns) else -1
                elif field > 1:
                    is_number = kind == 0 and field in (UNSIGNED, SIGNED, REFERENCE)
                    field_of = field if is_number or (kind == 2 and field == STRING) else 1
                    value = number if kind == 0 else at
                    value_end = 0 if kind == 0 else at + size
                at += size
            elif field == 4 and kind == 2:
                inside, stat_end = True, at + size
                column, value, value_end, field_of = -1, 0, 0, 0
            else:
                if kind == 0 and 1 <= field <= 3:
                    numbers[field - 1, row] = number
                at += size
    return len(begins)
