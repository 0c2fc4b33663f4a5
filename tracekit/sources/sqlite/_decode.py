"""Leaf pages decoded into columns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from nanoarrow import c_array_from_buffers, float64, int8, int16, int32, int64, large_binary
from numpy.typing import NDArray

from tracekit.sources.sqlite import _pages
from tracekit.sources.sqlite._btree import MisplacedError
from tracekit.sources.sqlite._layout import Record, Role
from tracekit.sources.sqlite._reading import PagesRead
from tracekit.sources.sqlite._shapes import Shapes, no_shapes
from tracekit.support.compiled import ALWAYS, compiled

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_decode, _reals, _texts, _gather = (
    compiled(loop, ALWAYS) for loop in (_pages.decode, _pages.reals, _pages.texts, _pages.gather)
)
_WHOLE = ("int", "narrow", "rowid")
_DTYPES = {
    "int": pl.Int64, "narrow": pl.Int8, "rowid": pl.Int64, "real": pl.Float64, "text": pl.Binary,
}  # fmt: skip
"""Types of columns of which nothing is held."""
_NARROW = (np.int8, np.int16, np.int32)
_SCHEMAS = {
    np.dtype(dtype).str: schema
    for dtype, schema in (
        (np.int8, int8), (np.int16, int16), (np.int32, int32), (np.int64, int64),
        (np.float64, float64),
    )
}  # fmt: skip
"""What nanoarrow calls the types of numbers."""


class Decoder:
    """Decodes columns of a table.

    Parameters
    ----------
    record
        Where the columns lie in the table's records.
    names
        Their names.
    usable
        Bytes of a page that SQLite uses.
    """

    def __init__(self, record: Record, names: Sequence[str], usable: int) -> None:
        self._names = names
        self._roles = record.roles
        self._usable = usable
        self._kept = threading.local()
        self._layout = _pages.Layout(
            np.array(record.slots, np.int64),
            np.array([role in _WHOLE for role in record.roles], np.uint8),
            np.array(record.optional, np.uint8),
        )

    def decode(self, pages: PagesRead, upto: Ints, after: int) -> pl.DataFrame | None:
        """Return the rows of leaf pages, texts as bytes; None where it takes SQLite to read them.

        Parameters
        ----------
        pages
            The pages, in rowid order.
        upto, after
            The greatest rowid that each may hold, and the one that all must exceed.

        Raises
        ------
        MisplacedError
            If the rowids are others, or not in order, or rows lie outside their page.
        """
        if (pages.cells > self._usable // _pages.FEWEST_CELL_BYTES).any():
            return None
        found = self._room(int(pages.cells.sum()))
        read = _pages.Pages(pages.data, pages.starts, upto)
        status = _decode(read, self._usable, after, self._layout, self._shapes(), found)
        if status == _pages.DAMAGED:
            raise MisplacedError
        return self._frame(pages.data, found) if status == _pages.OK else None

    def _shapes(self) -> Shapes:
        """Return the shapes of records that this thread has met, none of which is counted."""
        kept: Shapes | None = getattr(self._kept, "shapes", None)
        if kept is None:
            kept = self._kept.shapes = no_shapes(len(self._names))
        kept.rows[:] = 0
        return kept

    def _room(self, rows: int) -> _pages.Rows:
        """Return room for rows, which this thread uses again for the next ones."""
        columns = len(self._names)
        kept: Ints | None = getattr(self._kept, "buffer", None)
        if kept is None or kept.size < (columns + 2) * rows:
            kept = self._kept.buffer = np.empty((columns + 2) * rows, np.int64)
        return _pages.Rows(
            kept[:rows],
            kept[rows : 2 * rows],
            kept[2 * rows : (columns + 2) * rows].reshape(columns, rows),
            np.full((columns, -(-rows // 8)), 255, np.uint8),
            np.zeros(columns, np.int64),
            np.zeros(columns, np.int64),
        )

    def _frame(self, data: Bytes, rows: _pages.Rows) -> pl.DataFrame | None:
        columns: dict[str, pl.Series] = {}
        for slot, (name, role) in enumerate(zip(self._names, self._roles, strict=True)):
            column = _column(role, data, rows, slot)
            if column is None:
                return None
            columns[name] = column
        return pl.DataFrame(columns)


def _column(role: Role, data: Bytes, found: _pages.Rows, slot: int) -> pl.Series | None:
    """Return a column, in memory of its own; None if its values are not all what they should be."""
    stored, valid = found.stored[slot], found.valid[slot]
    rows, nulls = stored.size, int(found.nulls[slot])
    values: tuple[NDArray[Any], ...]
    if nulls == rows and role != "rowid":
        return _nothing(role, rows)
    if role == "text":
        ends = np.empty(rows + 1, np.int64)
        nulls = _texts(stored, ends, valid) or 0
        text = np.empty(ends[-1] if nulls != _pages.UNFIT else 0, np.uint8)
        if text.size:
            _gather(data, stored, ends, text)
        values = ends, text
    elif role == "real":
        values = (stored.view(np.float64).copy(),)
        nulls = _reals(data, values[0].view(np.int64), values[0], valid) or 0
    elif role == "rowid":  # which records leave out
        values = (found.rowids.copy(),)
        nulls = 0 if nulls == rows else _pages.UNFIT
    else:
        dtype = _narrowest(int(found.reach[slot])) if role == "narrow" else np.int64
        values = (stored.astype(dtype),)
    if nulls == _pages.UNFIT:
        return None
    if nulls == rows:
        return _nothing(role, rows)
    if not nulls and role != "text":
        return pl.Series(*values)
    schema = large_binary() if role == "text" else _SCHEMAS[values[0].dtype.str]()
    array = c_array_from_buffers(schema, rows, [valid if nulls else None, *values], nulls)
    return pl.Series(array)


def _nothing(role: Role, rows: int) -> pl.Series:
    return pl.Series([None], dtype=_DTYPES[role]).new_from_index(0, rows)


def _narrowest(reach: int) -> type[np.signedinteger[Any]]:
    """Return the type that holds numbers which need such bits; none has the sign's among them."""
    bits = reach.bit_length() + 1
    return next((dtype for dtype in _NARROW if bits <= np.iinfo(dtype).bits), np.int64)
