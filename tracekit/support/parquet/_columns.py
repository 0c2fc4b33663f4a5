"""Columns as pages of a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import ALWAYS, compiled
from tracekit.support.parquet import _loops
from tracekit.support.parquet._thrift import Value, binary, int32, int64, struct, varint, zigzag

Content: TypeAlias = bytes | memoryview
PLAIN, RLE, DELTA, DICTIONARY = 0, 3, 5, 8
"""Parquet's encodings."""
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_BITS_OF_BYTE = 8


@dataclass(frozen=True)
class Column:
    """A column as its pages, one after the other.

    Parameters
    ----------
    dictionary, data
        Contents of the page of distinct values, None if there is none, and of the page of rows.
    encoding
        Encoding of the rows.
    statistics
        Statistics for readers, such as minimum and maximum.
    """

    dictionary: Sequence[Content]
    data: Sequence[Content]
    encoding: int
    statistics: Value


def encoded(column: pl.Series) -> Column:
    """Encode a column of integers, booleans or texts."""
    there = column.is_not_null() if 0 < column.null_count() < len(column) else None
    valid = _valid(column, there)
    dictionary: Sequence[Content] = ()
    bounds = None
    values: Content
    if valid.is_empty():
        encoding, values = PLAIN, b""
    elif valid.dtype == pl.Boolean:
        encoding, values = PLAIN, np.packbits(valid.to_numpy(), bitorder="little").data
    elif valid.dtype.is_integer():
        encoding = DELTA
        values, bounds = _numbers(valid)
    else:
        encoding = DICTIONARY
        distinct, places = _distinct(valid)
        values = _places(places, len(distinct))
        dictionary = _page(_DICTIONARY_PAGE, len(distinct), PLAIN, _texts(distinct))
    page = _page(_DATA_PAGE, len(column), encoding, _levels(column, there), values)
    return Column(dictionary, page, encoding, _statistics(column, bounds))


def _page(kind: int, rows: int, encoding: int, *parts: Content) -> Sequence[Content]:
    size = int32(sum(map(len, parts)))
    fields: dict[int, Value | None] = {1: int32(kind), 2: size, 3: size}
    if kind == _DATA_PAGE:
        levels = int32(RLE)
        fields[5] = struct({1: int32(rows), 2: int32(encoding), 3: levels, 4: levels})
    else:
        fields[7] = struct({1: int32(rows), 2: int32(encoding)})
    return struct(fields).content, *parts


def _valid(column: pl.Series, there: pl.Series | None) -> pl.Series:
    """Return the non-null values of a column; `there` is a mask of them, None if all are."""
    if there is not None:
        return column.filter(there)
    return column.clear() if column.null_count() else column


def _levels(column: pl.Series, there: pl.Series | None) -> bytes:
    """Return the definition levels, which tell the rows with a value."""
    if there is None:
        runs = varint(len(column) << 1) + bytes([not column.null_count()])
    else:
        bits = np.packbits(there.to_numpy(), bitorder="little")
        runs = varint(bits.size << 1 | 1) + bits.tobytes()
    return len(runs).to_bytes(4, "little") + runs


def _numbers(valid: pl.Series) -> tuple[Content, tuple[int, int]]:
    """Encode integers; return the minimum and the maximum as well."""
    values = np.ascontiguousarray(valid.to_numpy())
    first = int(values[0])
    if values[-1] == first and (values == first).all():
        return _same_numbers(first, values.size), (first, first)
    blocks = -(-values.size // _loops.BLOCK)
    # At most all bits of each value, the least of each block and widths, and the head.
    out = np.empty((blocks * _loops.BLOCK + 2 * blocks + 8) * 8, np.uint8)
    room, bounds = np.empty(_loops.BLOCK, np.uint64), np.empty(2, np.int64)
    loop = compiled(_loops.deltas, ALWAYS)
    size = loop(values, valid.dtype == pl.Int32, room, bounds, out)
    return out[:size].data, (int(bounds[0]), int(bounds[1]))


def _same_numbers(number: int, count: int) -> bytes:
    """Encode `count` equal numbers: the minimum difference of all blocks is 0, with 0 bits."""
    head = b"".join(map(varint, (_loops.BLOCK, _loops.PARTS, count)))
    blocks = -(-(count - 1) // _loops.BLOCK)
    return head + zigzag(number) + bytes(1 + _loops.PARTS) * blocks


def _distinct(valid: pl.Series) -> tuple[pl.Series, NDArray[np.int32]]:
    """Return the distinct texts, and the index of each row's text."""
    if valid.dtype == pl.String:
        valid = valid.cast(pl.Categorical(pl.Categories.random()))
    codes = np.ascontiguousarray(valid.to_physical().to_numpy(), np.uint32)
    place = np.full(int(codes.max()) + 1, -1, np.int32)
    example, places = np.empty(place.size, np.int64), np.empty(codes.size, np.int32)
    count = compiled(_loops.number, ALWAYS)(codes, place, example, places)
    return valid.gather(example[:count]).cast(pl.String), places


def _texts(texts: pl.Series) -> Content:
    """Encode texts, each preceded by its number of bytes."""
    sizes = texts.str.len_bytes().to_numpy()
    together = np.frombuffer(texts.str.join().item().encode(), np.uint8)
    out = np.empty(together.size + _loops.SIZE_BYTES * sizes.size, np.uint8)
    compiled(_loops.put_sizes, ALWAYS)(together, sizes, out)
    return out.data


def _places(places: NDArray[np.int32], count: int) -> bytes:
    width = (count - 1).bit_length()
    if width == 0:
        return b"\0" + varint(places.size << 1)
    groups = -(-places.size // _BITS_OF_BYTE)
    parts = -(-places.size // _loops.PART)
    out = np.empty(parts * _loops.PART * width // _BITS_OF_BYTE, np.uint8)
    compiled(_loops.pack, ALWAYS)(places, width, np.empty(_loops.PART, np.uint64), out)
    return bytes([width]) + varint(groups << 1 | 1) + out[: groups * width].tobytes()


def _statistics(column: pl.Series, bounds: tuple[int, int] | None) -> Value:
    nulls = int64(column.null_count())
    if bounds is None:
        return struct({3: nulls})
    size = 4 if column.dtype == pl.Int32 else 8
    least, most = (binary(one.to_bytes(size, "little", signed=True)) for one in bounds)
    return struct({3: nulls, 5: most, 6: least})
