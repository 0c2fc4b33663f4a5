"""Integers and texts as bytes of a cache file, whose content is validated when it is read."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.view._tiles import Ints

_TYPES = ("|b1", "|u1", "<u2", "<u4", "<u8", "<i8")
_DIGEST = 64
_UNREADABLE = (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
               zlib.error)  # fmt: skip


def pack(header: Mapping[str, Any], arrays: Sequence[Ints]) -> bytes:
    """Return values (as JSON) and arrays of integers as bytes, with a digest."""
    pieces = [zlib.compress(each.tobytes(), 1) for each in arrays]
    sizes = [
        (each.dtype.newbyteorder("<").str, len(each), len(piece))
        for each, piece in zip(arrays, pieces, strict=True)
    ]
    text = json.dumps({"told": header, "arrays": sizes}).encode()
    content = b"\n".join([text, b"".join(pieces)])
    return hashlib.sha256(content).hexdigest().encode() + content


class Unpacked:
    """Reader of the bytes that `pack` returned.

    Parameters
    ----------
    content
        Bytes of the file.

    Raises
    ------
    ValueError
        If the bytes are damaged.
    """

    def __init__(self, content: bytes) -> None:
        rest = memoryview(content)[_DIGEST:]
        if hashlib.sha256(rest).hexdigest().encode() != content[:_DIGEST]:
            raise ValueError("the digest is of other bytes")
        at = content.index(b"\n")
        try:
            header = json.loads(content[_DIGEST:at])
            self.header: dict[str, Any] = header["told"]
            self._sizes = iter([(str(t), int(n), int(size)) for t, n, size in header["arrays"]])
        except _UNREADABLE as error:
            raise ValueError("the header makes no sense") from error
        self._rest, self._at = memoryview(content), at + 1

    def take(self, count: int, most: int) -> Ints:
        """Read the next array.

        Parameters
        ----------
        count
            Expected number of values: no more memory is used, whatever the file contains.
        most
            Largest value allowed; none may be below 0.

        Raises
        ------
        ValueError
            If the array has another length or other values.
        """
        kind, length, size = next(self._sizes, ("", 0, 0))
        if kind not in _TYPES or length != count or not 0 <= size <= len(self._rest) - self._at:
            raise ValueError("an array has another form")
        dtype = np.dtype(kind)
        inflater = zlib.decompressobj()
        try:
            piece = self._rest[self._at : self._at + size]
            raw = inflater.decompress(piece, count * dtype.itemsize + 1)
            values: Ints = np.frombuffer(raw, dtype, count)
        except (zlib.error, ValueError) as error:
            raise ValueError("an array is damaged") from error
        self._at += size
        if len(raw) != count * dtype.itemsize or (
            count and not 0 <= int(values.min()) <= int(values.max()) <= most
        ):
            raise ValueError("an array has numbers that cannot be")
        return values
