"""Decode the header of an SQLite file and the declarations of its tables."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracekit.sources._reading import SqlType

Role = Literal["int", "narrow", "real", "text", "rowid"]

MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100

_UTF_8 = (0, 1)  # the first before there is a table
_SMALLEST_USABLE = 480
_PENDING_BYTE = 1 << 30
_WHOLE = ("int", "narrow")
_FRACTIONS = bytes((64, 32, 32))
_NAMES_OF_ROWID = ("_rowid_", "rowid", "oid")


@dataclass(frozen=True)
class Geometry:
    """Layout of an SQLite file in pages: page size, bytes used of each page, number of pages."""

    page_size: int
    usable: int
    pages: int

    def holds(self, pages: NDArray[np.int64]) -> bool:
        """Test for each number whether it is a page of the file that a table may use."""
        # SQLite never uses the page of its lock, and the first page is that of the schema.
        lock = _PENDING_BYTE // self.page_size + 1
        return bool(((pages > 1) & (pages <= self.pages) & (pages != lock)).all())


@dataclass(frozen=True)
class Column:
    """A column as `PRAGMA table_xinfo` lists it, in the order in which records store columns.

    Its name is in lower case, see `same_case`.
    """

    name: str
    declared: str
    default: str | None
    key: int
    hidden: int


@dataclass(frozen=True)
class Record:
    """Positions of the requested columns in the stored rows (records) of a table."""

    slots: tuple[int, ...]
    """For each stored column, up to the last requested one: its index among the requested columns,
    -1 if it is not requested."""
    roles: tuple[Role, ...]
    """For each requested column: the code of the type of its values."""
    optional: tuple[bool, ...]
    """For each requested column: whether records may lack it, since they were written before it was
    added to the table."""


def page_size(header: bytes) -> int:
    """Return the page size, bytes."""
    size = int.from_bytes(header[16:18], "big")
    return 65536 if size == 1 else size


def pages_counted(header: bytes) -> int | None:
    """Return the file's number of pages as its header states it; None if the header is outdated."""
    return int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else None


def geometry(header: bytes, size: int) -> Geometry | None:
    """Return the page layout of an SQLite file of `size` bytes; None if the header is unclear."""
    if len(header) < HEADER_BYTES or header[: len(MAGIC)] != MAGIC:
        return None
    bytes_of_page = page_size(header)
    is_power = bytes_of_page & (bytes_of_page - 1) == 0
    usable = bytes_of_page - header[20]
    if not is_power or usable < _SMALLEST_USABLE or header[21:24] != _FRACTIONS:
        return None
    pages = size // bytes_of_page
    counted = pages_counted(header)
    return Geometry(bytes_of_page, usable, pages if counted is None else min(pages, counted))


def is_utf8(header: bytes) -> bool:
    """Test whether texts are stored as UTF-8."""
    return int.from_bytes(header[56:60], "big") in _UTF_8


@lru_cache(1 << 10)
def same_case(name: str) -> str:
    """Return a name with ASCII letters in lower case, as SQLite compares names."""
    return name.translate(_SMALL)


_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def rowid_name(columns: Sequence[Column]) -> str | None:
    """Return a name for the rowid, such as ``oid``; None if columns have all possible names."""
    taken = {column.name for column in columns}
    return next((name for name in _NAMES_OF_ROWID if name not in taken), None)


def record(
    columns: Sequence[Column], wanted: Mapping[str, SqlType], *, key_has_index: bool
) -> Record | None:
    """Return where columns are in a table's stored rows; None if only SQLite can decode them.

    `key_has_index` is whether the primary key has an index of its own.
    """
    if any(column.hidden for column in columns):  # generated ones may not be stored at all
        return None
    names = [same_case(name) for name in wanted]
    stored = {column.name: column for column in columns}
    if len(stored) != len(columns) or not stored.keys() >= set(names):
        return None
    key = _rowid_alias(columns, key_has_index=key_has_index)
    kinds = zip(names, wanted.values(), strict=True)
    roles = [_role(stored[name], kind, is_rowid=name == key) for name, kind in kinds]
    slots = [names.index(column.name) if column.name in names else -1 for column in columns]
    while slots[-1] < 0:
        slots.pop()
    fitting = tuple(role for role in roles if role is not None)
    optional = tuple(stored[name].default is None and name != key for name in names)
    return Record(tuple(slots), fitting, optional) if len(fitting) == len(names) else None


def _rowid_alias(columns: Sequence[Column], *, key_has_index: bool) -> str | None:
    """Return the column that is an alias of the rowid; None without one.

    An integer primary key is one if SQLite made no index for the key (`key_has_index`).
    """
    key = [column for column in columns if column.key]
    alone = len(key) == 1 and key[0].declared.upper() == "INTEGER" and not key_has_index
    return key[0].name if alone else None


def _role(column: Column, kind: SqlType, *, is_rowid: bool) -> Role | None:
    if is_rowid:
        return "rowid" if kind in _WHOLE else None
    # SQLite takes the whole numbers of such a column through a real.
    if kind in _WHOLE and _is_real(column.declared):
        return None
    return None if kind == "blob" else kind


def _is_real(declared: str) -> bool:
    """Test whether SQLite stores the numbers of a column of type `declared` as floating point."""
    upper = declared.upper()
    if any(part in upper for part in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")):
        return False
    return any(part in upper for part in ("REAL", "FLOA", "DOUB"))
