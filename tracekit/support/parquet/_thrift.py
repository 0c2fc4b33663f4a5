"""Thrift's compact protocol, as far as the metadata of a Parquet file needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BITS = 64
_MORE = 128
_LONG_LIST = 15


@dataclass(frozen=True)
class Value:
    """A value as its bytes, and the protocol's code for its type."""

    kind: int
    content: bytes


def varint(number: int) -> bytes:
    """Return a number from 0 on, seven bits to a byte."""
    content = bytearray()
    while number >= _MORE:
        content.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    return bytes([*content, number])


def zigzag(number: int) -> bytes:
    """Encode a 64-bit number so that numbers near 0 are short (zigzag)."""
    return varint((number << 1) ^ (number >> (_BITS - 1)))


def int32(number: int) -> Value:
    """Return a number of 32 bits."""
    return Value(5, zigzag(number))


def int64(number: int) -> Value:
    """Return a number of 64 bits."""
    return Value(6, zigzag(number))


def binary(content: bytes) -> Value:
    """Return bytes."""
    return Value(8, varint(len(content)) + content)


def listed(items: Sequence[Value]) -> Value:
    """Return a list of at least one item, all of one type."""
    kind, size = items[0].kind, len(items)
    head = bytes([size << 4 | kind]) if size < _LONG_LIST else bytes([0xF0 | kind]) + varint(size)
    return Value(9, head + b"".join(item.content for item in items))


def struct(fields: Mapping[int, Value | None]) -> Value:
    """Return a struct of fields by number, which grows; those that are None are left out."""
    content, last = bytearray(), 0
    for number, field in fields.items():
        if field is not None:
            content += bytes([(number - last) << 4 | field.kind]) + field.content
            last = number
    return Value(12, bytes(content) + b"\0")
