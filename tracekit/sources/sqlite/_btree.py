"""The leaf pages of a table, in rowid order, from the interior pages of its tree."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.sources.sqlite._layout import Geometry

Ints = NDArray[np.int64]

LEAST, GREATEST = -(2**63), 2**63 - 1
"""Bounds of a rowid."""
_INTERIOR, _LEAF = 5, 13
_HEADER_BYTES = 12
_CHILD_BYTES = 4
_LONGEST_VARINT = 9
_DEEPEST = 20
_PLACES = np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)


class MisplacedError(Exception):
    """Rows do not lie where the tree of their table, or their page, says."""


@dataclass(frozen=True)
class Leaves:
    """Leaf pages of a table: their numbers, and the greatest rowid that each may hold."""

    pages: Ints
    upto: Ints


def leaves(file: int, geometry: Geometry, root: int) -> Leaves | None:
    """List the leaf pages of the table whose tree starts at page `root`.

    None where anything is unlike what SQLite writes: a page of another kind, outside the file or
    used twice, or rowids out of order. What the leaves hold is not looked at.
    """
    pages, upto = np.array([root], np.int64), np.array([GREATEST], np.int64)
    seen = pages
    for _ in range(_DEEPEST):
        if not geometry.holds(pages):
            return None
        if _kind(file, geometry, int(pages[0])) == _LEAF:
            return Leaves(pages, upto)
        below = _level_below(file, geometry, pages, upto)
        if below is None:
            return None
        pages, upto = below
        seen = np.concatenate([seen, pages])
        if np.unique(seen).size < seen.size or (upto[1:] <= upto[:-1]).any():
            return None
    return None


def _kind(file: int, geometry: Geometry, page: int) -> int:
    return next(iter(os.pread(file, 1, (page - 1) * geometry.page_size)), 0)


def _level_below(
    file: int, geometry: Geometry, pages: Ints, upto: Ints
) -> tuple[Ints, Ints] | None:
    """Return the children of interior pages, in order, and the greatest rowid of each."""
    children, bounds = [], []
    for page, bound in zip(pages.tolist(), upto.tolist(), strict=True):
        content = os.pread(file, geometry.page_size, (page - 1) * geometry.page_size)
        below = _children(content, geometry)
        if below is None:
            return None
        children.append(below[0])
        bounds += [below[1], np.array([bound], np.int64)]
    return np.concatenate(children), np.concatenate(bounds)


def _children(content: bytes, geometry: Geometry) -> tuple[Ints, Ints] | None:
    """Return the children of an interior page, and the rowids that divide them."""
    if len(content) < geometry.page_size or content[0] != _INTERIOR:
        return None
    cells = int.from_bytes(content[3:5], "big")
    body = _HEADER_BYTES + 2 * cells
    if cells == 0 or body > geometry.usable:
        return None
    at = np.frombuffer(content, ">u2", cells, _HEADER_BYTES).astype(np.int64)
    if at.min() < body or at.max() + _CHILD_BYTES >= geometry.usable:
        return None
    # A number may end beyond the page here; where it does is compared with the page's end below.
    data = np.frombuffer(content[: geometry.usable] + bytes(_LONGEST_VARINT), np.uint8)
    child = data[at[:, None] + np.arange(_CHILD_BYTES)].astype(np.int64) @ _PLACES
    rowids, lengths = _varints(data[at[:, None] + _CHILD_BYTES + np.arange(_LONGEST_VARINT)])
    if (at + _CHILD_BYTES + lengths > geometry.usable).any():
        return None
    return np.append(child, int.from_bytes(content[8:12], "big")), rowids


def _varints(rows: NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Decode the number at the start of each row; return the numbers and how long they are."""
    value = np.zeros(len(rows), np.uint64)
    length = np.zeros(len(rows), np.int64)
    open_ = np.ones(len(rows), np.bool_)
    for place in range(_LONGEST_VARINT):
        byte = rows[:, place].astype(np.uint64)
        bits = np.uint64(8 if place == _LONGEST_VARINT - 1 else 7)
        mask = (np.uint64(1) << bits) - np.uint64(1)
        value = np.where(open_, (value << bits) | (byte & mask), value)
        length += open_
        open_ &= byte > np.uint64(127)
    return value.view(np.int64), length
