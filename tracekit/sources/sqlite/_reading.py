"""Pages of a file, read many at a time.

They are read, not mapped: a file that is cut meanwhile gives a short read and not a signal, and
memory does not grow with the file.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.sources.sqlite._layout import Geometry

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_CELLS_AT = 3
"""Where a page has the number of its cells."""
_WIDEST_GAP_BYTES = 1 << 14
"""Pages of others that are read along to save a call."""


@dataclass(frozen=True)
class PagesRead:
    """Bytes of pages, the start of each page, and its number of cells."""

    data: Bytes
    starts: Ints
    cells: Ints


class PageReader:
    """Reads pages of the open file `file` into memory that is used again by the same thread."""

    def __init__(self, file: int, geometry: Geometry) -> None:
        self.file = file
        self.geometry = geometry
        self._kept = threading.local()

    def read(self, pages: Ints) -> PagesRead | None:
        """Read `pages`; None where the file ends before them.

        What is returned holds until this thread reads again.
        """
        size = self.geometry.page_size
        order = np.argsort(pages)
        ordered = pages[order]
        begins = np.append(True, np.diff(ordered) > _WIDEST_GAP_BYTES // size)
        first = ordered[begins]
        lengths = (ordered[np.append(begins[1:], True)] - first + 1) * size
        ends = np.cumsum(lengths)
        data = self._buffer(int(ends[-1]))
        for end, length, page in zip(ends.tolist(), lengths.tolist(), first.tolist(), strict=True):
            if not _fill(self.file, data[end - length : end], (page - 1) * size):
                return None
        run = np.cumsum(begins) - 1
        starts = np.empty_like(pages)
        starts[order] = (ends - lengths)[run] + (ordered - first[run]) * size
        return PagesRead(
            data,
            starts,
            (data[starts + _CELLS_AT].astype(np.int64) << 8) | data[starts + _CELLS_AT + 1],
        )

    def cells(self, page: int) -> int:
        """Return a page's number of cells; 0 where the file ends before it."""
        at = (page - 1) * self.geometry.page_size
        return int.from_bytes(os.pread(self.file, 2, at + _CELLS_AT), "big")

    def _buffer(self, size: int) -> Bytes:
        kept: Bytes | None = getattr(self._kept, "buffer", None)
        if kept is None or kept.size < size:
            kept = self._kept.buffer = np.empty(size, np.uint8)
        return kept[:size]


def _fill(file: int, part: Bytes, at: int) -> bool:
    """Fill `part` with what the file has at `at`; tell whether it has as much."""
    while part.size:
        got = os.preadv(file, [part.data], at)
        if not got:
            return False
        part, at = part[got:], at + got
    return True
