"""Unpack texts that rocprofv3 packs with LZ4: a mark, their length, and an LZ4 frame.

Frame and blocks are read as https://github.com/lz4/lz4/tree/dev/doc describes them; checksums are
ignored, since the length must match.
"""

from __future__ import annotations

import polars as pl

_MARK, _FRAME = b"LZ4F", b"\x04\x22\x4d\x18"
_HAS_BLOCK_SUMS, _HAS_SIZE, _HAS_DICTIONARY = 0x10, 0x08, 0x01
_STORED = 1 << 31
_LONGEST = 1 << 20
"""Largest length of a text, bytes; larger claims are invalid."""
_SHORTEST_MATCH, _MORE = 4, 15


def unpacked(packed: pl.Series) -> pl.Series:
    """Return the unpacked texts; null if a text is empty, damaged or not packed."""
    distinct = packed.drop_nulls().unique()
    texts = [_text(each) for each in distinct]
    return packed.replace_strict(distinct, texts, default=None, return_dtype=pl.String)


def _text(packed: bytes) -> str | None:
    length, frame = int.from_bytes(packed[4:8], "little"), packed[8:]
    if not packed.startswith(_MARK) or not frame.startswith(_FRAME) or length > _LONGEST:
        return None
    try:
        text = _of_frame(frame, length)
    except IndexError:
        return None
    return text.decode(errors="replace") if len(text) == length else None


def _of_frame(frame: bytes, length: int) -> bytes:
    flags, text = frame[4], bytearray()
    block_sum = 4 if flags & _HAS_BLOCK_SUMS else 0
    at = 7 + (8 if flags & _HAS_SIZE else 0) + (4 if flags & _HAS_DICTIONARY else 0)
    while (size := int.from_bytes(frame[at : at + 4], "little")) and len(text) <= length:
        at, held = at + 4, size % _STORED
        block = frame[at : at + held]
        if size >= _STORED:
            text += block
        else:
            _add_block(text, block, length)
        at += held + block_sum
    return bytes(text)


def _add_block(text: bytearray, block: bytes, length: int) -> None:
    """Append the content of a block: literals, each followed by a copy of earlier text."""
    at = 0
    while at < len(block) and len(text) <= length:
        token = block[at]
        literals, at = _count(block, at + 1, token >> 4)
        text += block[at : at + literals]
        at += literals
        if at >= len(block):
            return
        back = block[at] | block[at + 1] << 8
        matched, at = _count(block, at + 2, token & _MORE)
        begin, matched = len(text) - back, matched + _SHORTEST_MATCH
        if not 0 < back <= len(text) or matched > _LONGEST:
            raise IndexError
        repeated = bytes(text[begin : begin + matched])
        text += (repeated * (matched // len(repeated) + 1))[:matched]


def _count(block: bytes, at: int, count: int) -> tuple[int, int]:
    """Return a length that begins in a token, and the place after its last byte."""
    if count == _MORE:
        while (more := block[at]) == 0xFF:  # noqa: PLR2004 - the largest byte: another follows
            count, at = count + more, at + 1
        count, at = count + more, at + 1
    return count, at
