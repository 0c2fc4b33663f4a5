"""Thrift's compact protocol, as far as Parquet metadata needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BITS = 64
_MORE = 128
_LONG_LIST = 15


@dataclass(frozen=True)
class Value:
    """An encoded value, and the protocol's code for its type."""

    kind: int
    content: bytes


def varint(number: int) -> bytes:
    """Encode a non-negative number with seven bits per byte."""
    content = bytearray()
    while number >= _MORE:
        content.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    return bytes([*content, number])


def zigzag(number: int) -> bytes:
    """Encode a signed 64-bit integer so that values near 0 are short (zigzag)."""
    return varint((number << 1) ^ (number >> (_BITS - 1)))


def int32(number: int) -> Value:
    """Encode an integer as the Thrift type ``i32``."""
    return Value(5, zigzag(number))


def int64(number: int) -> Value:
    """Encode an integer as the Thrift type ``i64``."""
    return Value(6, zigzag(number))


def binary(content: bytes) -> Value:
    """Encode bytes as a value of the Thrift type ``binary``."""
    return Value(8, varint(len(content)) + content)


def listed(items: Sequence[Value]) -> Value:
    """Encode a list of one or more items, all of one type."""
    kind, size = items[0].kind, len(items)
    head = bytes([size << 4 | kind]) if size < _LONG_LIST else bytes([0xF0 | kind]) + varint(size)
    return Value(9, head + b"".join(item.content for item in items))


def struct(fields: Mapping[int, Value | None]) -> Value:
    """Encode a struct: field number -> value, in ascending order; None leaves a field out."""
    content, last = bytearray(), 0
    for number, field in fields.items():
        if field is not None:
            content += bytes([(number - last) << 4 | field.kind]) + field.content
            last = number
    return Value(12, bytes(content) + b"\0")
