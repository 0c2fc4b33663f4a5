"""Profiles of XLA, made byte by byte: messages of Protocol Buffers."""

from __future__ import annotations


def number(field: int, value: int) -> bytes:
    """Make a field of a whole number."""
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def block(field: int, value: bytes | str) -> bytes:
    """Make a field of a text, or of a message."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


STATS = ("correlation_id", "kernel_details", "memcpy_details", "name", "step_num",
         "memory_residency_details")  # fmt: skip


def plane(
    name: str,
    *lines: tuple[str, int, list[tuple[str, int, int, dict[str, object]]]],
    repeat: int = 1,
) -> bytes:
    """Make a plane of lines of events: name, offset and duration in ps, stats; again and again."""
    names: dict[str, int] = {}
    body = bytearray()
    for line_name, timestamp, events in lines:
        line = bytearray()
        for event, offset, duration, stats in events:
            key = names.setdefault(event, len(names) + 1)
            told = number(1, key) + number(2, offset) + number(3, duration)
            for stat, value in stats.items():
                kind = number(4, value) if isinstance(value, int) else block(5, str(value))
                told += block(4, number(1, STATS.index(stat) + 1) + kind)
            line += block(4, told)
        head = number(1, 7) + block(2, line_name) + number(3, timestamp)
        body += block(3, head + bytes(line) * repeat)
    for field, known in ((4, names), (5, {n: i for i, n in enumerate(STATS, 1)})):
        for text, key in known.items():
            body += block(field, number(1, key) + block(2, number(1, key) + block(2, text)))
    return block(1, number(1, 1) + block(2, name) + bytes(body))
