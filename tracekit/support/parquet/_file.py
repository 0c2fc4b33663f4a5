"""Parquet files of row groups, and their metadata in Thrift's compact protocol."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.support.compiled import ALWAYS, compiled
from tracekit.support.parquet import _encoding_loops

Content: TypeAlias = bytes | memoryview
PLAIN, RLE, DELTA, DICTIONARY = 0, 3, 5, 8
"""Parquet's encodings."""
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_BITS_OF_BYTE = 8


@dataclass(frozen=True)
class Column:
    """The encoded pages of one column of a Parquet file."""

    dictionary: Sequence[Content]
    data: Sequence[Content]
    """Contents of the page of distinct values (empty without one), and of the pages of rows."""
    encodings: Sequence[int]
    """Encodings of the pages."""
    statistics: Value
    """Statistics for readers, such as minimum and maximum."""


def encoded(column: pl.Series) -> Column:
    """Encode a column of integers, booleans or texts as the pages of a Parquet column."""
    nulls, rows = column.null_count(), len(column)
    valid = column.drop_nulls() if nulls else column
    # No query per page: that takes longer than to encode it.
    there = column.is_not_null().to_numpy() if 0 < nulls < rows else np.full(rows, not nulls)
    dictionary, data, distinct = list[Content](), list[Content](), 0
    if column.dtype in _TEXTS and len(valid):
        texts, values = _distinct(valid)
        distinct = len(texts)
        dictionary += _page(_DICTIONARY_PAGE, distinct, PLAIN, _texts(texts))
    else:
        values = np.ascontiguousarray(valid.to_numpy())
    encodings, bounds, done = {RLE: None, **({PLAIN: None} if distinct else {})}, list[int](), 0
    for first in range(0, rows, PAGE_ROWS):
        of_page = there[first : first + PAGE_ROWS]
        own = values[done : done + np.count_nonzero(of_page)]
        done += own.size
        content: Content = b""
        encoding = PLAIN
        if own.dtype == np.bool_:
            content = np.packbits(own, bitorder="little").data
        elif own.size and distinct:
            encoding, content = DICTIONARY, _places(own, distinct)
        elif own.size:
            encoding = DELTA
            content, edges = _numbers(own)
            bounds += edges
        encodings[encoding] = None
        data += _page(_DATA_PAGE, of_page.size, encoding, _levels(of_page, own.size), content)
    return Column(dictionary, data, [*encodings], _statistics(column, bounds))


def _page(kind: int, rows: int, encoding: int, *parts: Content) -> Sequence[Content]:
    size = int32(sum(map(len, parts)))
    fields: dict[int, Value | None] = {1: int32(kind), 2: size, 3: size}
    if kind == _DATA_PAGE:
        levels = int32(RLE)
        fields[5] = struct({1: int32(rows), 2: int32(encoding), 3: levels, 4: levels})
    else:
        fields[7] = struct({1: int32(rows), 2: int32(encoding)})
    return struct(fields).content, *parts


def _levels(there: NDArray[np.bool_], count: int) -> bytes:
    """Return Parquet's definition levels, which mark the rows that are not null, `count` in all."""
    if count in (0, there.size):
        runs = varint(there.size << 1) + bytes([count > 0])
    else:
        bits = np.packbits(there, bitorder="little")
        runs = varint(bits.size << 1 | 1) + bits.tobytes()
    return len(runs).to_bytes(4, "little") + runs


def _numbers(values: NDArray[Any]) -> tuple[Content, tuple[int, int]]:
    """Encode integers; return the minimum and the maximum as well."""
    first = int(values[0])
    if values[-1] == first and (values == first).all():
        return _same_numbers(first, values.size), (first, first)
    blocks = -(-values.size // _encoding_loops.BLOCK)
    # At most all bits of each value, the least of each block and widths, and the head.
    out = np.empty((blocks * _encoding_loops.BLOCK + 2 * blocks + 8) * 8, np.uint8)
    room, bounds = np.empty(_encoding_loops.BLOCK, np.uint64), np.empty(2, np.int64)
    loop = compiled(_encoding_loops.deltas, ALWAYS)
    size = loop(values, values.dtype == np.int32, room, bounds, out)
    return out[:size].data, (int(bounds[0]), int(bounds[1]))


def _same_numbers(number: int, count: int) -> bytes:
    """Encode `count` equal integers as DELTA_BINARY_PACKED: all differences are 0, with 0 bits."""
    head = b"".join(map(varint, (_encoding_loops.BLOCK, _encoding_loops.PARTS, count)))
    blocks = -(-(count - 1) // _encoding_loops.BLOCK)
    return head + zigzag(number) + bytes(1 + _encoding_loops.PARTS) * blocks


def _distinct(valid: pl.Series) -> tuple[pl.Series, NDArray[np.int32]]:
    """Return the distinct texts, and the index of each row's text."""
    if valid.dtype == pl.String:
        valid = valid.cast(pl.Categorical(pl.Categories.random()))
    codes = np.ascontiguousarray(valid.to_physical().to_numpy(), np.uint32)
    place = np.full(int(codes.max()) + 1, -1, np.int32)
    example, places = np.empty(place.size, np.int64), np.empty(codes.size, np.int32)
    count = compiled(_encoding_loops.number, ALWAYS)(codes, place, example, places)
    return valid.gather(example[:count]).cast(pl.String), places


def _texts(texts: pl.Series) -> Content:
    """Encode texts, each preceded by its number of bytes."""
    sizes = texts.str.len_bytes().to_numpy()
    together = np.frombuffer(texts.str.join().item().encode(), np.uint8)
    out = np.empty(together.size + _encoding_loops.SIZE_BYTES * sizes.size, np.uint8)
    compiled(_encoding_loops.put_sizes, ALWAYS)(together, sizes, out)
    return out.data


def _places(places: NDArray[np.int32], count: int) -> bytes:
    width = (count - 1).bit_length()
    if width == 0:
        return b"\0" + varint(places.size << 1)
    groups = -(-places.size // _BITS_OF_BYTE)
    parts = -(-places.size // _encoding_loops.PART)
    out = np.empty(parts * _encoding_loops.PART * width // _BITS_OF_BYTE, np.uint8)
    compiled(_encoding_loops.pack, ALWAYS)(
        places, width, np.empty(_encoding_loops.PART, np.uint64), out
    )
    return bytes([width]) + varint(groups << 1 | 1) + out[: groups * width].tobytes()


def _statistics(column: pl.Series, bounds: Sequence[int]) -> Value:
    nulls = int64(column.null_count())
    if not bounds:
        return struct({3: nulls})
    size, edges = 4 if column.dtype == pl.Int32 else 8, (min(bounds), max(bounds))
    least, most = (binary(one.to_bytes(size, "little", signed=True)) for one in edges)
    return struct({3: nulls, 5: most, 6: least})


_MAGIC = b"PAR1"
_BOOLEAN, _INT32, _INT64, _BYTES = 0, 1, 2, 6
_PHYSICAL = {pl.Boolean: _BOOLEAN, pl.Int32: _INT32, pl.Int64: _INT64}
_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_OPTIONAL = 1
_UTF_8 = 0
_UNCOMPRESSED = 0
GROUP_ROWS = 1 << 18
"""Rows per row group, which a reader skips if its statistics exclude all rows."""
PAGE_ROWS = 1 << 15
"""Rows per page of a column; of a row group, a reader decodes only pages with requested rows."""
_MOST_BYTES_OF_TEXT = 1 << 30
"""Largest total of a column's text bytes: the size of a page has 32 bits, and lengths take some."""


def can_write(frame: pl.DataFrame) -> bool:
    """Test whether `write` supports all types of a frame, and its rows fit into a page."""
    known = (*_PHYSICAL, *_TEXTS)
    if frame.height == 0 or not all(dtype in known for dtype in frame.dtypes):
        return False
    texts = (column for column in frame if column.dtype == pl.String)
    return all(column.str.len_bytes().sum() <= _MOST_BYTES_OF_TEXT for column in texts)


def write(
    frame: pl.DataFrame, path: Path, coded: Iterable[pl.Series] = (), rows: int | None = None
) -> int:
    """Write a frame that `can_write` accepts.

    Parameters
    ----------
    path
        Path of the file.
    coded
        Columns of the frame converted to categories; each is written in place of the frame's column
        of the same name.
    rows
        Rows per row group; None for `GROUP_ROWS`. With short ones a few rows are read faster, and
        all take longer to write, as each group encodes its own texts.

    Returns
    -------
    The CRC-32 of the file.
    """
    by_name = {column.name: column for column in coded}
    columns = [by_name.get(column.name, column) for column in frame]
    rows = rows or GROUP_ROWS
    with path.open("wb") as file:
        out = _Summed(file)
        out.write(_MAGIC)
        groups = []
        for first in range(0, frame.height, rows):
            chunks = []
            for column in (each.slice(first, rows) for each in columns):
                pages = encoded(column)
                at = out.size
                out.write(*pages.dictionary, *pages.data)
                chunks.append(_chunk(column, pages, at))
            groups.append(_group(chunks, min(frame.height - first, rows)))
        footer = _footer(frame, groups).content
        out.write(footer, len(footer).to_bytes(4, "little"), _MAGIC)
    return out.checksum


class _Summed:
    """Writes to a file, and computes size and CRC-32 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.checksum = 0

    def write(self, *parts: Content) -> None:
        for part in parts:
            self.size += self._file.write(part)
            self.checksum = zlib.crc32(part, self.checksum)


def _chunk(column: pl.Series, pages: Column, at: int) -> tuple[Value, int]:
    """Return the metadata of a column chunk, and the size of its pages in bytes.

    `at` is the position of the pages in the file.
    """
    of_dictionary, of_data = (sum(map(len, page)) for page in (pages.dictionary, pages.data))
    size = int64(of_dictionary + of_data)
    meta = struct(
        {
            1: int32(_physical(column.dtype)),
            2: listed([int32(each) for each in pages.encodings]),
            3: listed([binary(column.name.encode())]),
            4: int32(_UNCOMPRESSED),
            5: int64(len(column)),
            6: size,
            7: size,
            9: int64(at + of_dictionary),
            11: int64(at) if pages.dictionary else None,
            12: pages.statistics,
        }
    )
    return struct({2: int64(at), 3: meta}), of_dictionary + of_data


def _group(chunks: list[tuple[Value, int]], rows: int) -> Value:
    size = int64(sum(size for _, size in chunks))
    return struct({1: listed([chunk for chunk, _ in chunks]), 2: size, 3: int64(rows), 6: size})


def _footer(frame: pl.DataFrame, groups: list[Value]) -> Value:
    arrow = struct(
        {1: binary(b"ARROW:schema"), 2: binary(_arrow_schema(tuple(frame.schema.items())))}
    )
    by_type = struct({1: struct({})})  # so that least and greatest mean what they do for the type
    return struct(
        {
            1: int32(1),
            2: listed(list(_schema(frame))),
            3: int64(frame.height),
            4: listed(groups),
            5: listed([arrow]),
            6: binary(b"tracekit"),
            7: listed([by_type] * frame.width),
        }
    )


def _schema(frame: pl.DataFrame) -> Iterator[Value]:
    yield struct({4: binary(b"root"), 5: int32(frame.width)})
    for name, dtype in frame.schema.items():
        physical = _physical(dtype)
        yield struct(
            {
                1: int32(physical),
                3: int32(_OPTIONAL),
                4: binary(name.encode()),
                6: int32(_UTF_8) if physical == _BYTES else None,
            }
        )


def _physical(dtype: pl.DataType) -> int:
    return _PHYSICAL.get(dtype.base_type(), _BYTES)


@lru_cache(1 << 6)
def _arrow_schema(columns: tuple[tuple[str, pl.DataType], ...]) -> bytes:
    """Return the types of columns as polars stores them in ``ARROW:schema``."""
    empty = io.BytesIO()
    pl.DataFrame(schema=dict(columns)).write_parquet(empty)
    empty.seek(0)
    return pl.read_parquet_metadata(empty)["ARROW:schema"].encode()


_BITS = 64
_MORE = 128
_LONG_LIST = 15


@dataclass(frozen=True)
class Value:
    """An encoded value, and the code of its type in Thrift's compact protocol."""

    kind: int
    content: bytes


def varint(number: int) -> bytes:
    """Encode a non-negative number with seven bits per byte."""
    content = bytearray()
    while number >= _MORE:
        content.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    return bytes([*content, number])


def zigzag(number: int) -> bytes:
    """Encode a signed 64-bit integer so that values near 0 are short (zigzag)."""
    return varint((number << 1) ^ (number >> (_BITS - 1)))


def int32(number: int) -> Value:
    """Encode an integer as the Thrift type ``i32``."""
    return Value(5, zigzag(number))


def int64(number: int) -> Value:
    """Encode an integer as the Thrift type ``i64``."""
    return Value(6, zigzag(number))


def binary(content: bytes) -> Value:
    """Encode bytes as a value of the Thrift type ``binary``."""
    return Value(8, varint(len(content)) + content)


def listed(items: Sequence[Value]) -> Value:
    """Encode a list of one or more items, all of one type."""
    kind, size = items[0].kind, len(items)
    head = bytes([size << 4 | kind]) if size < _LONG_LIST else bytes([0xF0 | kind]) + varint(size)
    return Value(9, head + b"".join(item.content for item in items))


def struct(fields: Mapping[int, Value | None]) -> Value:
    """Encode a struct: field number -> value, in ascending order; None leaves a field out."""
    content, last = bytearray(), 0
    for number, field in fields.items():
        if field is not None:
            content += bytes([(number - last) << 4 | field.kind]) + field.content
            last = number
    return Value(12, bytes(content) + b"\0")
