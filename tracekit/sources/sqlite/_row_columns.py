"""Collect the rows decoded from leaf pages of an SQLite table in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from nanoarrow import c_array_from_buffers, float64, int8, int16, int32, int64, large_binary
from numpy.typing import NDArray

from tracekit.sources.sqlite import _page_loops
from tracekit.sources.sqlite._btree import MisplacedError, PagesRead
from tracekit.sources.sqlite._sqlite_header import Record, Role
from tracekit.support.compiled import ALWAYS, compiled

_Bytes = NDArray[np.uint8]
_Numbers = NDArray[Any]

_reals, _texts, _gather = (
    compiled(loop, ALWAYS) for loop in (_page_loops.reals, _page_loops.texts, _page_loops.gather)
)
_DTYPES = {
    "int": pl.Int64, "narrow": pl.Int8, "rowid": pl.Int64, "real": pl.Float64, "text": pl.Binary,
}  # fmt: skip
"""Types of columns without a value."""
_NARROW: dict[np.dtype[Any], int] = {
    np.dtype(np.int8): 7,
    np.dtype(np.int16): 15,
    np.dtype(np.int32): 31,
}
"""Numbers of bits, without sign, of the narrow integer types."""
_SCHEMAS = {
    np.dtype(dtype): schema
    for dtype, schema in (
        (np.int8, int8), (np.int16, int16), (np.int32, int32), (np.int64, int64),
        (np.float64, float64),
    )
}  # fmt: skip
"""Number type -> its name in nanoarrow."""
_Ints = NDArray[np.int64]

_decode = compiled(_page_loops.decode, ALWAYS)
_WHOLE = ("int", "narrow", "rowid")


class Columns:
    """Columns of an SQLite table, filled with the rows decoded so far.

    Parameters
    ----------
    names, roles
        Name of each column, and code of the type of its values.
    rows
        Expected number of rows.
    """

    def __init__(self, names: Sequence[str], roles: Sequence[Role], rows: int) -> None:
        self._names = names
        self._columns = [_column(role, rows) for role in roles]
        self.height = 0
        """Number of rows."""

    def add(self, data: _Bytes, found: _page_loops.Rows) -> bool:
        """Add the rows found in `data`; return whether their values have the expected types.

        If they do not, no row is added, and the earlier rows stay valid.
        """
        for slot, column in enumerate(self._columns):
            if not column.add(self.height, data, found, slot):
                return False
        self.height += found.rowids.size
        return True

    def keep(self, rows: int) -> None:
        """Drop all but the first `rows` rows."""
        self.height = rows

    def rows(self, first: int, end: int) -> pl.DataFrame:
        """Return the rows from `first` up to `end`, texts as bytes."""
        columns = zip(self._names, self._columns, strict=True)
        return pl.DataFrame({name: column.rows(first, end) for name, column in columns})


def _column(role: Role, rows: int) -> _NumberColumn | _TextColumn:
    return _TextColumn() if role == "text" else _NumberColumn(role, rows)


class _NumberColumn:
    """Values of a numeric column; integers in the narrowest type that fits those so far."""

    def __init__(self, role: Role, rows: int) -> None:
        self._role = role
        self._expected = rows
        self._values: _Numbers | None = None
        self._valid: NDArray[np.bool_] | None = None
        """Mask of rows that have numbers; None if all have (or, without `_values`, none has)."""

    def add(self, first: int, data: _Bytes, found: _page_loops.Rows, slot: int) -> bool:
        """Store decoded values from row `first` on; floating point values are decoded here."""
        nulls, end = int(found.nulls[slot]), first + found.rowids.size
        stored, valid = found.stored[slot], found.valid[slot]
        if self._role == "rowid":  # which records leave out
            self._room(first, end, stored.dtype)[first:end] = found.rowids
            return nulls == end - first
        if nulls == end - first:
            if self._values is not None:
                self._room(first, end, self._values.dtype)[first:end] = 0
                self._note(first, end, np.zeros(end - first, np.bool_))
            return True
        if self._role == "real":
            room = self._room(first, end, np.dtype(np.float64))[first:end]
            places = room.view(np.int64)
            places[:] = stored
            nulls = _reals(data, places, room, valid) or 0
        else:
            narrow = self._role == "narrow"
            dtype = _narrowest(int(found.reach[slot])) if narrow else stored.dtype
            self._room(first, end, dtype)[first:end] = stored
        if nulls == _page_loops.UNFIT:
            return False
        if nulls or self._valid is not None:
            self._note(first, end, _bits(valid, end - first))
        return True

    def _room(self, first: int, end: int, dtype: np.dtype[Any]) -> _Numbers:
        """Return the array of values, enlarged to `end` rows, and widened to `dtype` if needed."""
        values = self._values
        if values is None and first:
            self._note(0, first, np.zeros(first, np.bool_))
        both = dtype if values is None else np.promote_types(values.dtype, dtype)
        if values is None or values.dtype != both or values.size < end:
            room: _Numbers = np.empty(self._size(first, end), both)
            room[:first] = 0 if values is None else values[:first]
            values = self._values = room
        return values

    def _size(self, first: int, end: int) -> int:
        """Return how many rows to allocate: the expected number, or more if `end` exceeds it."""
        return max(self._expected, end + end // 8 * (first > 0))

    def _note(self, first: int, end: int, valid: NDArray[np.bool_]) -> None:
        """Record which of the rows from `first` up to `end` have a value, and which are null."""
        all_valid = self._valid
        if all_valid is None or all_valid.size < end:
            room = np.ones(self._size(first, end), np.bool_)
            if all_valid is not None:
                room[:first] = all_valid[:first]
            all_valid = self._valid = room
        all_valid[first:end] = valid

    def rows(self, first: int, end: int) -> pl.Series:
        """Return the values of the rows from `first` up to `end`, without a copy."""
        if self._values is None:
            return _nothing(self._role, end - first)
        values = self._values[first:end]
        valid = None if self._valid is None else self._valid[first:end]
        count = values.size if valid is None else int(np.count_nonzero(valid))
        if valid is None or count == values.size:
            return pl.Series(values)
        if not count:
            return _nothing(self._role, values.size)
        bits = np.packbits(valid, bitorder="little")
        schema, nulls = _SCHEMAS[values.dtype](), values.size - count
        return pl.Series(c_array_from_buffers(schema, values.size, [bits, values], nulls))


class _TextColumn:
    """Texts of one column as bytes, one array for each batch of decoded rows."""

    def __init__(self) -> None:
        self._parts: list[pl.Series] = []
        self._first: list[int] = []

    def add(self, first: int, data: _Bytes, found: _page_loops.Rows, slot: int) -> bool:
        """Store the texts of decoded rows, as bytes, from row `first` on."""
        places, valid = found.stored[slot], found.valid[slot]
        rows, nulls = places.size, int(found.nulls[slot])
        if nulls == rows:
            return self._append(first, _nothing("text", rows))
        ends = np.empty(rows + 1, np.int64)
        nulls = _texts(places, ends, valid) or 0
        if nulls == _page_loops.UNFIT:
            return False
        text = np.empty(ends[-1], np.uint8)
        if text.size:
            _gather(data, places, ends, text)
        buffers = [valid if nulls else None, ends, text]
        return self._append(
            first, pl.Series(c_array_from_buffers(large_binary(), rows, buffers, nulls))
        )

    def _append(self, first: int, part: pl.Series) -> bool:
        while self._first and self._first[-1] >= first:  # one that other columns did not fit
            self._first.pop()
            self._parts.pop()
        self._first.append(first)
        self._parts.append(part)
        return True

    def rows(self, first: int, end: int) -> pl.Series:
        """Return the texts of the rows from `first` up to `end`, as one series."""
        places = np.searchsorted(self._first, [first, end - 1], "right") - 1
        parts = self._parts[places[0] : places[1] + 1]
        joined = pl.concat(parts) if len(parts) > 1 else parts[0]
        before = first - self._first[places[0]]
        return joined[before : before + end - first].rechunk()


def _bits(packed: _Bytes, rows: int) -> NDArray[np.bool_]:
    return np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)


def _nothing(role: Role, rows: int) -> pl.Series:
    return pl.Series([None], dtype=_DTYPES[role]).new_from_index(0, rows)


def _narrowest(reach: int) -> np.dtype[Any]:
    """Return the narrowest signed type for integers that use only the bits in mask `reach`."""
    bits = reach.bit_length()
    return next((dtype for dtype, most in _NARROW.items() if bits <= most), np.dtype(np.int64))


class Decoder:
    """Decodes leaf pages of an SQLite table into columns.

    Parameters
    ----------
    record
        Positions of the columns in the table's records.
    names
        Names of the columns.
    usable
        Number of bytes of a page that SQLite uses.
    """

    def __init__(self, record: Record, names: Sequence[str], usable: int) -> None:
        self._names = names
        self._roles = record.roles
        self._usable = usable
        self._layout = _page_loops.Layout(
            np.array(record.slots, np.int64),
            np.array([role in _WHOLE for role in record.roles], np.uint8),
            np.array(record.optional, np.uint8),
        )

    def columns(self, rows: int) -> Columns:
        """Return empty columns with room for about `rows` rows."""
        return Columns(self._names, self._roles, rows)

    def decode(self, columns: Columns, pages: PagesRead, upto: _Ints, after: int) -> int | None:
        """Decode leaf pages and append their rows to columns.

        Parameters
        ----------
        columns
            Columns made by `columns`.
        pages
            The pages, in rowid order.
        upto, after
            Greatest rowid that may be in each page, and the rowid that all rows must exceed.

        Returns
        -------
        Number of rows that the columns have now; None if SQLite must read the pages (no row added).

        Raises
        ------
        MisplacedError
            If rowids are out of range or out of order, or rows lie outside their page.
        """
        if (pages.cells > self._usable // _page_loops.FEWEST_CELL_BYTES).any():
            return None
        found = self._room(int(pages.cells.sum()))
        read = _page_loops.Pages(pages.data, pages.starts, upto)
        status = _decode(read, self._usable, after, self._layout, found)
        if status == _page_loops.DAMAGED:
            raise MisplacedError
        is_known = status == _page_loops.OK and columns.add(pages.data, found)
        return columns.height if is_known else None

    def _room(self, rows: int) -> _page_loops.Rows:
        """Return arrays for decoded rows."""
        columns = len(self._names)
        return _page_loops.Rows(
            np.empty(rows, np.int64),
            np.empty((columns, rows), np.int64),
            np.full((columns, -(-rows // 8)), 255, np.uint8),
            np.zeros(columns, np.int64),
            np.zeros(columns, np.int64),
        )
