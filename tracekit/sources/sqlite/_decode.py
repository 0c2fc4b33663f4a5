"""Leaf pages decoded into columns."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.sources.sqlite import _pages
from tracekit.sources.sqlite._btree import MisplacedError
from tracekit.sources.sqlite._columns import Columns
from tracekit.sources.sqlite._layout import Record
from tracekit.sources.sqlite._reading import PagesRead
from tracekit.sources.sqlite._shapes import Shapes, no_shapes
from tracekit.support.compiled import ALWAYS, compiled

Ints = NDArray[np.int64]

_decode = compiled(_pages.decode, ALWAYS)
_WHOLE = ("int", "narrow", "rowid")


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

    def columns(self, rows: int) -> Columns:
        """Return empty columns with room for about this number of rows."""
        return Columns(self._names, self._roles, rows)

    def decode(self, columns: Columns, pages: PagesRead, upto: Ints, after: int) -> int | None:
        """Add the rows of leaf pages to columns; None, and none of them, where it takes SQLite.

        Parameters
        ----------
        columns
            Of `columns`.
        pages
            The pages, in rowid order.
        upto, after
            The greatest rowid that each may hold, and the one that all must exceed.

        Returns
        -------
        int | None
            How many rows the columns have now.

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
        is_known = status == _pages.OK and columns.add(pages.data, found)
        return columns.height if is_known else None

    def _shapes(self) -> Shapes:
        """Return the shapes of records that this thread has met, not counted yet."""
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
