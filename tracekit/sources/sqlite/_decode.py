"""Leaf pages decoded into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from nanoarrow import c_array_from_buffers, float64, int64, large_binary
from numpy.typing import NDArray

from tracekit.sources.sqlite import _pages
from tracekit.sources.sqlite._btree import MisplacedError
from tracekit.sources.sqlite._layout import Record, Role
from tracekit.sources.sqlite._reading import PagesRead
from tracekit.support.compiled import ALWAYS, compiled

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_decode, _reals, _texts, _gather = (
    compiled(loop, ALWAYS) for loop in (_pages.decode, _pages.reals, _pages.texts, _pages.gather)
)
_WHOLE = ("int", "rowid")
_DTYPES = {"int": pl.Int64, "rowid": pl.Int64, "real": pl.Float64, "text": pl.Binary}


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
        rows, columns = int(pages.cells.sum()), len(self._names)
        found = _pages.Rows(
            np.empty(rows, np.int64),
            np.empty((columns, rows), np.int64),
            np.full((columns, -(-rows // 8)), 255, np.uint8),
            np.zeros(columns, np.int64),
        )
        read = _pages.Pages(pages.data, pages.starts, upto)
        status = _decode(read, self._usable, after, self._layout, found)
        if status == _pages.DAMAGED:
            raise MisplacedError
        return self._frame(pages.data, found) if status == _pages.OK else None

    def _frame(self, data: Bytes, rows: _pages.Rows) -> pl.DataFrame | None:
        columns: dict[str, pl.Series] = {}
        for slot, (name, role) in enumerate(zip(self._names, self._roles, strict=True)):
            column = _column(role, data, rows, slot)
            if column is None:
                return None
            columns[name] = column
        return pl.DataFrame(columns)


def _column(role: Role, data: Bytes, found: _pages.Rows, slot: int) -> pl.Series | None:
    """Return a column; None if its values are not all what they should be."""
    stored, valid = found.stored[slot], found.valid[slot]
    nulls: int | None = int(found.nulls[slot])
    rows = stored.size
    buffers: list[Any]
    if role == "text":
        ends = np.empty(rows + 1, np.int64)
        nulls = _texts(stored, ends, valid)
        text = np.empty(ends[-1] if nulls not in {_pages.UNFIT, rows} else 0, np.uint8)
        buffers, schema = [ends, text], large_binary()
        if text.size:
            _gather(data, stored, ends, text)
    elif role == "real":
        floats = stored.view(np.float64)
        nulls = _reals(data, stored, floats, valid)
        buffers, schema = [floats], float64()
    else:
        buffers, schema = [stored], int64()
    if role == "rowid":  # which records leave out
        nulls, buffers = 0 if nulls == rows else _pages.UNFIT, [found.rowids]
    if nulls == _pages.UNFIT:
        return None
    if nulls == rows:
        return pl.Series([None], dtype=_DTYPES[role]).new_from_index(0, rows)
    array = c_array_from_buffers(schema, rows, [valid if nulls else None, *buffers], nulls)
    return pl.Series(array)
