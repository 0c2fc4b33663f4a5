"""The loops of encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.support.inner import inner

Array = NDArray[Any]

BLOCK, PARTS = 128, 4
"""How many differences have a least one in common, and in how many parts of a width these are."""
PART = BLOCK // PARTS
_WORD = 64
_BYTE = np.uint64(255)


@inner
def _varint(number: Any, out: Array, at: int) -> int:
    """Put a number at `at`, seven bits to a byte; return where it ends."""
    rest = np.uint64(number)
    while rest >= np.uint64(128):
        out[at] = np.uint8(rest & np.uint64(127) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inner
def _zigzag(number: Any, out: Array, at: int) -> int:
    """Put a number of either sign at `at`; return where it ends."""
    return _varint(np.uint64(number << 1) ^ np.uint64(number >> 63), out, at)


@inner
def _pack(values: Array, first: int, last: int, width: int, out: Array, at: int) -> int:
    """Put the low bits of some values one after the other at `at`; return where they end."""
    held, bits = np.uint64(0), 0
    # What has a sign may count from the end, which would be looked at for every byte.
    place = np.uint64(at)
    for row in range(first, last):
        value = np.uint64(values[row])
        held |= value << np.uint64(bits)
        bits += width
        if bits >= _WORD:
            for byte in range(8):
                out[place + np.uint64(byte)] = np.uint8(held >> np.uint64(8 * byte) & _BYTE)
            place += np.uint64(8)
            bits -= _WORD
            held = value >> np.uint64(width - bits) if bits > 0 else np.uint64(0)
    while bits > 0:
        out[place] = np.uint8(held & _BYTE)
        held >>= np.uint64(8)
        bits -= 8
        place += np.uint64(1)
    return np.int64(place)  # type: ignore[return-value]


def pack(values: Array, width: int, out: Array) -> int:
    """Put the low `width` bits of values one after the other; return how many bytes that takes."""
    return _pack(values, 0, values.size, width, out, 0)


def number(codes: Array, place: Array, example: Array, out: Array) -> int:
    """Give distinct codes numbers in the order in which they come; return how many there are.

    Parameters
    ----------
    codes
        From 0 on.
    place
        For each code that may come -1; becomes its number.
    example
        By number, becomes a row that has the code.
    out
        Becomes the number of each row's code.
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


def deltas(values: Array, is_narrow: bool, room: Array, bounds: Array, out: Array) -> int:  # noqa: FBT001
    """Encode numbers as DELTA_BINARY_PACKED.

    Parameters
    ----------
    values
        At least one.
    is_narrow
        Whether they have 32 bits: then so has a difference, and what does not fit wraps around.
    room
        Room for a block.
    bounds
        The first number twice; becomes the least and the greatest.
    out
        Where to put them.

    Returns
    -------
    How many bytes they take.
    """
    at = _varint(BLOCK, out, 0)
    at = _varint(PARTS, out, at)
    at = _varint(values.size, out, at)
    at = _zigzag(values[0], out, at)
    lowest, highest = values[0], values[0]
    for first in range(1, values.size, BLOCK):
        count = min(BLOCK, values.size - first)
        least = np.int64(2**63 - 1)
        for row in range(count):
            lowest = min(lowest, values[first + row])
            highest = max(highest, values[first + row])
            delta = values[first + row] - values[first + row - 1]
            if is_narrow:
                delta = np.int64(np.int32(delta))
            room[row] = np.uint64(delta)
            least = min(least, delta)
        at = _zigzag(least, out, at)
        widths = at
        at += PARTS
        for part in range(PARTS):
            begin, used = part * PART, np.uint64(0)
            end = min(begin + PART, count)
            for row in range(begin, end):
                room[row] -= np.uint64(least)
                used |= room[row]
            for row in range(max(begin, end), begin + PART):
                room[row] = 0
            width = 0
            while used > np.uint64(0):
                used >>= np.uint64(1)
                width += 1
            out[widths + part] = width
            if width > 0:  # else all differences are the least one
                at = _pack(room, begin, begin + PART, width, out, at)
    bounds[0], bounds[1] = lowest, highest
    return at
