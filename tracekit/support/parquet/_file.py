"""Parquet files of row groups."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import polars as pl

from tracekit.support.parquet._columns import DICTIONARY, PLAIN, RLE, Column, Content, encoded
from tracekit.support.parquet._thrift import Value, binary, int32, int64, listed, struct

_MAGIC = b"PAR1"
_BOOLEAN, _INT32, _INT64, _BYTES = 0, 1, 2, 6
_PHYSICAL = {pl.Boolean: _BOOLEAN, pl.Int32: _INT32, pl.Int64: _INT64}
_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_OPTIONAL = 1
_UTF_8 = 0
_UNCOMPRESSED = 0
GROUP_ROWS = 1 << 18
"""Rows per row group, which a reader skips if its statistics exclude all rows."""
_MOST_BYTES_OF_TEXT = 1 << 30
"""Largest total of a column's text bytes: the size of a page has 32 bits, and lengths take some."""


def can_write(frame: pl.DataFrame) -> bool:
    """Tell whether `write` supports all types of a frame, and its rows fit into a page."""
    known = (*_PHYSICAL, *_TEXTS)
    if frame.height == 0 or not all(dtype in known for dtype in frame.dtypes):
        return False
    texts = (column for column in frame if column.dtype == pl.String)
    return all(column.str.len_bytes().sum() <= _MOST_BYTES_OF_TEXT for column in texts)


def write(frame: pl.DataFrame, path: Path, coded: Iterable[pl.Series] = ()) -> int:
    """Write a frame that `can_write` accepts.

    Parameters
    ----------
    frame
        The frame.
    path
        Path of the file.
    coded
        Columns of the frame as categories, whatever their type in the frame, so that the distinct
        texts are known.

    Returns
    -------
    The CRC-32 of the file.
    """
    by_name = {column.name: column for column in coded}
    given = [by_name.get(column.name, column) for column in frame]
    with path.open("wb") as file:
        out = _Summed(file)
        out.write(_MAGIC)
        groups = []
        for first in range(0, frame.height, GROUP_ROWS):
            chunks = []
            for column in (each.slice(first, GROUP_ROWS) for each in given):
                pages = encoded(column)
                at = out.size
                out.write(*pages.dictionary, *pages.data)
                chunks.append(_chunk(column, pages, at))
            groups.append(_group(chunks, min(frame.height - first, GROUP_ROWS)))
        footer = _footer(frame, groups).content
        out.write(footer, len(footer).to_bytes(4, "little"), _MAGIC)
    return out.checksum


class _Summed:
    """Writes to a file, and computes a checksum of what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.checksum = 0

    def write(self, *parts: Content) -> None:
        for part in parts:
            self.size += self._file.write(part)
            self.checksum = zlib.crc32(part, self.checksum)


def _chunk(column: pl.Series, pages: Column, at: int) -> tuple[Value, int]:
    """Return the metadata of a column, and the size of its pages in bytes."""
    of_dictionary, of_data = (sum(map(len, page)) for page in (pages.dictionary, pages.data))
    size = int64(of_dictionary + of_data)
    encodings = {RLE: None, pages.encoding: None, **({PLAIN: None} if pages.dictionary else {})}
    has_dictionary = pages.encoding == DICTIONARY
    meta = struct(
        {
            1: int32(_physical(column.dtype)),
            2: listed([int32(each) for each in encodings]),
            3: listed([binary(column.name.encode())]),
            4: int32(_UNCOMPRESSED),
            5: int64(len(column)),
            6: size,
            7: size,
            9: int64(at + of_dictionary),
            11: int64(at) if has_dictionary else None,
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
    """Return the types of columns, in polars' own form."""
    empty = io.BytesIO()
    pl.DataFrame(schema=dict(columns)).write_parquet(empty)
    empty.seek(0)
    return pl.read_parquet_metadata(empty)["ARROW:schema"].encode()
