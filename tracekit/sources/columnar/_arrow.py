"""Read a table from an Arrow IPC stream.

nsys writes a table as one record batch, however long it is, so only the needed byte ranges of its
buffers are read from the file. A stream with types that nsys does not use (such as dictionaries)
is read as a whole by polars instead.

References
----------
Arrow columnar format, "Serialization and Interprocess Communication"; FlatBuffers internals.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import nanoarrow
import numpy as np
import polars as pl

_CONTINUED = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_BITS_PER_BYTE = 8

_INT, _FLOAT = 2, 3
_INTS = {8: "c", 16: "s", 32: "i", 64: "l"}
"""Arrow's letters of signed integers, by number of bits; unsigned ones are capitals."""
_FLOATS = {1: "f", 2: "g"}
_LETTERS = {1: "n", 4: "z", 5: "u", 6: "b", 19: "Z", 20: "U"}
"""Arrow's letters of the other types, by number in a schema."""

_BYTES = {"c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8, "f": 4, "g": 8}
"""Arrow's letter of a type -> bytes of a value."""
_OFFSETS = {"u": np.int32, "z": np.int32, "U": np.int64, "Z": np.int64}
"""Types of the offsets of texts and of bytes."""
_AS_BYTES = {"u": nanoarrow.binary, "U": nanoarrow.large_binary}
"""Arrow's letter of a text type -> type as which texts are read: bytes, since they may be invalid
UTF-8."""
_TYPES = {
    "c": nanoarrow.int8, "C": nanoarrow.uint8, "s": nanoarrow.int16, "S": nanoarrow.uint16,
    "i": nanoarrow.int32, "I": nanoarrow.uint32, "l": nanoarrow.int64, "L": nanoarrow.uint64,
    "f": nanoarrow.float32, "g": nanoarrow.float64, "b": nanoarrow.bool_, "n": nanoarrow.null,
    "z": nanoarrow.binary, "Z": nanoarrow.large_binary, **_AS_BYTES,
}  # fmt: skip


@dataclass(frozen=True)
class _Batch:
    """A record batch of an Arrow stream: number of rows, and place of each buffer in the file.

    A place is an offset and a length, bytes.
    """

    rows: int
    buffers: tuple[tuple[int, int], ...]
    nulls: tuple[int, ...]
    """Number of nulls of each column."""


@dataclass(frozen=True)
class _Layout:
    """Column names and types of an Arrow stream, and the place of each record batch in the file."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    batches: tuple[_Batch, ...]
    is_plain: bool
    """Whether all columns can be read in parts."""


class ArrowTable:
    """Columns of an Arrow stream, read in batches of rows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _layout(self) -> _Layout:
        with self._path.open("rb") as file:
            return _read_layout(file)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stream's columns."""
        return self._layout.names

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.rows for batch in self._layout.batches)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the columns `columns`, which must exist, at most `rows` rows at a time."""
        layout = self._layout
        if not layout.is_plain:
            yield pl.read_ipc_stream(self._path, columns=list(columns))
            return
        step = max(rows // _BITS_PER_BYTE, 1) * _BITS_PER_BYTE
        with self._path.open("rb") as file:
            for batch in layout.batches:
                part = _Part(file, layout, batch)
                for begin in range(0, batch.rows, step):
                    yield part.read(columns, begin, min(begin + step, batch.rows))


class _Part:
    """Reader of ranges of rows of one record batch of an Arrow stream."""

    def __init__(self, file: BinaryIO, layout: _Layout, batch: _Batch) -> None:
        self._file = file
        self._columns: dict[str, tuple[str, list[tuple[int, int]]]] = {}
        # What says which values are null has no meaning where it is said that none is.
        self._whole = {n for n, nulls in zip(layout.names, batch.nulls, strict=False) if not nulls}
        buffers = iter(batch.buffers)
        for name, kind in zip(layout.names, layout.types, strict=True):
            self._columns[name] = kind, [next(buffers) for _ in range(_buffers_of(kind))]

    def read(self, names: Sequence[str], begin: int, end: int) -> pl.DataFrame:
        """Return the columns `names` of the rows from `begin`, a multiple of 8, up to `end`."""
        return pl.DataFrame([self._column(name, begin, end) for name in names])

    def _column(self, name: str, begin: int, end: int) -> pl.Series:
        kind, buffers = self._columns[name]
        parts: list[Any] = []
        if buffers:
            is_given = buffers[0][1] > 0 and name not in self._whole
            parts = [self._bits(buffers[0], begin, end) if is_given else None]
        if kind in _OFFSETS:
            parts += self._bytes(buffers[1], buffers[2], np.dtype(_OFFSETS[kind]), begin, end)
        elif kind == "b":
            parts.append(self._bits(buffers[1], begin, end))
        elif kind in _BYTES:
            parts.append(self._read(buffers[1], begin * _BYTES[kind], end * _BYTES[kind]))
        array = nanoarrow.c_array_from_buffers(_TYPES[kind](), end - begin, parts)
        return pl.Series(array).alias(name)

    def _bits(self, buffer: tuple[int, int], begin: int, end: int) -> bytes:
        return self._read(buffer, begin // _BITS_PER_BYTE, -(-end // _BITS_PER_BYTE))

    def _bytes(
        self,
        offsets: tuple[int, int],
        data: tuple[int, int],
        dtype: np.dtype[Any],
        begin: int,
        end: int,
    ) -> list[Any]:
        """Return offsets and bytes of a text column, after checking that the offsets are valid."""
        size = dtype.itemsize
        places = np.frombuffer(self._read(offsets, begin * size, (end + 1) * size), dtype)
        if places[0] < 0 or (np.diff(places) < 0).any():
            raise ValueError("the offsets of its texts are out of order")
        return [places - places[0], self._read(data, int(places[0]), int(places[-1]))]

    def _read(self, buffer: tuple[int, int], begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end` of a buffer of the record batch."""
        at, length = buffer
        if end > length:
            raise ValueError("a column is shorter than its table")
        return _pread(self._file, at + begin, end - begin)


def _buffers_of(kind: str) -> int:
    return 0 if kind == "n" else 3 if kind in _OFFSETS else 2


def _pread(file: BinaryIO, at: int, size: int) -> bytes:
    """Return `size` bytes of a file from offset `at`; one system call reads at most 2 GiB."""
    parts = []
    while size > 0:
        part = os.pread(file.fileno(), size, at)
        if not part:
            raise ValueError("it is cut short")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_layout(file: BinaryIO) -> _Layout:
    names: tuple[str, ...] = ()
    types: tuple[str | None, ...] = ()
    batches, is_plain, is_first = [], True, True
    for head, kind, body in _messages(file):
        if is_first != (kind == _SCHEMA):
            raise ValueError("it does not begin with a schema")
        if is_first:
            names, types = _schema(head)
        elif kind == _RECORD_BATCH:
            batches.append(_record_batch(head, body))
        else:
            is_plain = False
        is_first = False
    plain = tuple(each for each in types if each is not None)
    is_plain &= len(plain) == len(types)
    wanted = sum(map(_buffers_of, plain))
    limit = os.fstat(file.fileno()).st_size * _BITS_PER_BYTE
    for batch in batches:
        if not 0 <= batch.rows <= limit or (is_plain and len(batch.buffers) != wanted):
            raise ValueError("a record batch does not fit the schema")
    return _Layout(names, plain, tuple(batches), is_plain)


def _messages(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield the messages of an Arrow stream: metadata, kind, and offset of the body in the file."""
    at, size = 0, os.fstat(file.fileno()).st_size
    while True:
        mark, length = struct.unpack("<Ii", _pread(file, at, 8))
        if mark != _CONTINUED or not 0 <= length <= size:
            raise ValueError("it is not an Arrow stream")
        if length == 0:
            return
        head = _pread(file, at + 8, length)
        message = _Table.root(head)
        body = message.number(3, "<q")
        at += 8 + length
        if not 0 <= body <= size - at:
            raise ValueError("it is cut short")
        yield head, message.number(1, "<B"), at
        at += body


def _schema(head: bytes) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return names and types of the columns; a type that only polars can read is None."""
    schema = _Table.root(head).table(2)
    if schema.number(0, "<h"):
        raise ValueError("its numbers are big-endian")
    fields = schema.tables(1)
    names = tuple(field.text(0) for field in fields)
    if len(set(names)) != len(names):
        raise ValueError("two of its columns have the same name")
    return names, tuple(None if field.has(4) else _letter(field) for field in fields)


def _letter(field: _Table) -> str | None:
    """Return Arrow's format letter of a column's type; None if only polars can read it."""
    kind = field.number(2, "<B")
    if kind == _INT:
        number = field.table(3)
        letter = _INTS.get(number.number(0, "<i"))
        return letter if letter is None or number.number(1, "<B") else letter.upper()
    if kind == _FLOAT:
        return _FLOATS.get(field.table(3).number(0, "<h"))
    return _LETTERS.get(kind)


def _record_batch(head: bytes, body: int) -> _Batch:
    """Return the record batch that a message's metadata `head` describes; `body`: its offset."""
    batch = _Table.root(head).table(2)
    if batch.has(3):  # polars would trust whatever sizes it claims to have unpacked
        raise ValueError("it is compressed, as nsys writes none")
    buffers = batch.structs(2, "<qq")
    if any(at < 0 or length < 0 for at, length in buffers):
        raise ValueError("a buffer is outside of it")
    found = tuple((body + at, length) for at, length in buffers)
    nulls = tuple(nulls for _, nulls in batch.structs(1, "<qq"))
    return _Batch(batch.number(0, "<q"), found, nulls)


class _Table:
    """A table (record with fields) of a FlatBuffer; offsets outside of it raise `struct.error`."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._unpack("<i", at)
        self._size = self._unpack("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """Return the outermost table of a FlatBuffer."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def _unpack(self, form: str, at: int) -> int:
        if at < 0:  # counts from the end, to Python
            raise ValueError("it is not an Arrow stream")
        return int(struct.unpack_from(form, self._data, at)[0])

    def _place(self, field: int) -> int:
        """Return the offset of a field of this FlatBuffer table; 0 if it is absent."""
        at = 4 + 2 * field
        offset = self._unpack("<H", self._fields + at) if at < self._size else 0
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        """Test whether a field of this FlatBuffer table is present."""
        return self._place(field) > 0

    def number(self, field: int, form: str) -> int:
        """Return an integer field with the `struct` format `form`; 0 if it is absent."""
        place = self._place(field)
        return self._unpack(form, place) if place else 0

    def _target(self, field: int) -> int:
        place = self._place(field)
        if not place:
            raise ValueError("it is not an Arrow stream")
        return place + self._unpack("<I", place)

    def table(self, field: int) -> _Table:
        """Return a field that is a table."""
        return _Table(self._data, self._target(field))

    def tables(self, field: int) -> list[_Table]:
        """Return a field that is a list of tables."""
        at, count = self._list(field, 4)
        places = range(at, at + 4 * count, 4)
        return [_Table(self._data, place + self._unpack("<I", place)) for place in places]

    def text(self, field: int) -> str:
        """Return a text field."""
        at, count = self._list(field, 1)
        return self._data[at : at + count].decode("utf-8", "replace")

    def _list(self, field: int, size: int) -> tuple[int, int]:
        """Return offset and number of the items of a list, each of `size` bytes."""
        at = self._target(field)
        count = self._unpack("<I", at)
        if at + 4 + count * size > len(self._data):
            raise ValueError("it is not an Arrow stream")
        return at + 4, count

    def structs(self, field: int, form: str) -> list[tuple[int, ...]]:
        """Return a field that is a list of structures, each with the `struct` format `form`."""
        size = struct.calcsize(form)
        at, count = self._list(field, size)
        return list(struct.iter_unpack(form, self._data[at : at + count * size]))
