"""Compiled loops that encode columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.support.inner import inner

Array = NDArray[Any]

BLOCK, PARTS = 128, 4
"""Differences per block, which share a minimum, and parts per block, each with its bit width."""
PART = BLOCK // PARTS
_WORD = 64
_BYTE = np.uint64(255)
SIZE_BYTES = 4
"""Number of bytes for the size of a text."""


@inner
def _varint(number: Any, out: Array, at: int) -> int:
    """Write a number at `at` of `out` as varint (7 bits per byte); return the position after it."""
    rest = np.uint64(number)
    while rest >= np.uint64(128):
        out[at] = np.uint8(rest & np.uint64(127) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inner
def _zigzag(number: Any, out: Array, at: int) -> int:
    """Write a signed number at `at` as zigzag varint; return the position after it."""
    return _varint(np.uint64(number << 1) ^ np.uint64(number >> 63), out, at)


@inner
def _pack(values: Array, width: int, out: Array, at: int) -> int:
    """Bit-pack the low `width` bits of `PART` values at `at`; return the position after them.

    The values are overwritten: neighbours are merged into values of twice the bits as long as these
    fit into a word, so that fewer have to be written one by one.
    """
    size = values.size
    while 2 * width <= _WORD and size > 1:
        size >>= 1
        for row in range(size):
            values[row] = values[2 * row] | values[2 * row + 1] << np.uint64(width)
        width *= 2
    buffer, bits = np.uint64(0), 0
    # What has a sign may count from the end, which would be looked at for every byte.
    place = np.uint64(at)
    for row in range(size):
        value = values[row]
        buffer |= value << np.uint64(bits)
        bits += width
        if bits >= _WORD:
            for byte in range(8):
                out[place + np.uint64(byte)] = np.uint8(buffer >> np.uint64(8 * byte) & _BYTE)
            place += np.uint64(8)
            bits -= _WORD
            buffer = value >> np.uint64(width - bits) if bits > 0 else np.uint64(0)
    while bits > 0:
        out[place] = np.uint8(buffer & _BYTE)
        buffer >>= np.uint64(8)
        bits -= 8
        place += np.uint64(1)
    return np.int64(place)  # type: ignore[return-value]


def pack(values: Array, width: int, room: Array, out: Array) -> int:
    """Pack the low `width` bits of values one after the other; return the bytes used.

    Parameters
    ----------
    values
        Non-negative values; zeros are appended up to a multiple of `PART`.
    width
        Number of bits per value.
    room
        Scratch space for `PART` values.
    out
        Output.
    """
    at = 0
    for first in range(0, values.size, PART):
        some = values[first : first + PART]
        for row in range(some.size):
            room[row] = np.uint64(some[row])
        room[some.size :] = np.uint64(0)
        at = _pack(room, width, out, at)
    return at


def number(codes: Array, place: Array, example: Array, out: Array) -> int:
    """Factorize codes: give distinct codes ids in order of appearance; return how many there are.

    Parameters
    ----------
    codes
        Code of each row, 0 or more.
    place
        -1 for each possible code; overwritten by the code's id.
    example
        Output: the first row of each id.
    out
        Output: the id of each row's code.
    """
    count = 0
    for row in range(codes.size):
        code = codes[row]
        if place[code] < 0:
            place[code] = count
            example[count] = row
            count += 1
        out[row] = place[code]
    return count


def put_sizes(texts: Array, sizes: Array, out: Array) -> None:
    """Write the joined `texts` one by one to `out`, each preceded by its size in bytes."""
    at, begin = 0, 0
    for text in range(sizes.size):
        size = int(sizes[text])
        for byte in range(SIZE_BYTES):
            out[at + byte] = np.uint8(size >> 8 * byte & 255)
        at += SIZE_BYTES
        some, place = texts[begin : begin + size], out[at : at + size]
        for byte in range(size):
            place[byte] = some[byte]
        at += size
        begin += size


def deltas(values: Array, is_narrow: bool, room: Array, bounds: Array, out: Array) -> int:  # noqa: FBT001
    """Encode integers as DELTA_BINARY_PACKED.

    Parameters
    ----------
    values
        One or more numbers.
    is_narrow
        Whether the numbers have 32 bits: then differences have 32 bits too, with wrap-around.
    room
        Scratch space for a block.
    bounds
        Output: minimum and maximum.
    out
        Output: the encoded bytes.

    Returns
    -------
    Number of bytes written.
    """
    at = _varint(BLOCK, out, 0)
    at = _varint(PARTS, out, at)
    at = _varint(values.size, out, at)
    at = _zigzag(values[0], out, at)
    bounds[0], bounds[1] = _least_and_greatest(values)
    for first in range(1, values.size, BLOCK):
        now = values[first : first + BLOCK]
        least = _differences(now, values[first - 1 :], is_narrow, room)
        room[now.size :] = np.uint64(least)
        at = _zigzag(least, out, at)
        widths = at
        at += PARTS
        for part in range(PARTS):
            some = room[part * PART : (part + 1) * PART]
            width = _lower(some, np.uint64(least))
            out[widths + part] = width
            if width > 0:  # else all differences are the least one
                at = _pack(some, width, out, at)
    return at


# Of slices, a row cannot count from the end, which would be looked at for every row.


@inner
def _least_and_greatest(values: Array) -> tuple[Any, Any]:
    least, greatest = values[0], values[0]
    for row in range(values.size):
        least = min(least, values[row])
        greatest = max(greatest, values[row])
    return least, greatest


@inner
def _differences(now: Array, before: Array, is_narrow: bool, room: Array) -> int:  # noqa: FBT001
    """Write differences from the previous number, of 32 bits if `is_narrow`; return the minimum."""
    least = np.int64(2**63 - 1)
    for row in range(now.size):
        delta = np.int64(now[row] - before[row])
        if is_narrow:
            delta = np.int64(np.int32(delta))
        room[row] = np.uint64(delta)
        least = min(least, delta)
    return least  # type: ignore[return-value]


@inner
def _lower(some: Array, least: Any) -> int:
    """Subtract the minimum `least` from values in place; return the bits that the largest needs."""
    used = np.uint64(0)
    for row in range(some.size):
        some[row] -= least
        used |= some[row]
    width = 0
    while used > np.uint64(0):
        used >>= np.uint64(1)
        width += 1
    return width
