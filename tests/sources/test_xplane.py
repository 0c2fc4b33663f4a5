"""Profiles of XLA: streams, launches, operators and steps, of messages made byte by byte."""

from __future__ import annotations

import pytest
from source_helpers import column, rows

from tracekit.errors import DamagedTraceError
from tracekit.sources import read


def number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def block(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


STATS = ("correlation_id", "kernel_details", "memcpy_details", "name", "step_num")


def plane(
    name: str, *lines: tuple[str, int, list[tuple[str, int, int, dict[str, object]]]]
) -> bytes:
    """Make a plane of lines of events: name, offset and duration in ps, stats."""
    names: dict[str, int] = {}
    body = b""
    for line_name, timestamp, events in lines:
        line = number(1, 7) + block(2, line_name) + number(3, timestamp)
        for event, offset, duration, stats in events:
            key = names.setdefault(event, len(names) + 1)
            told = number(1, key) + number(2, offset) + number(3, duration)
            for stat, value in stats.items():
                kind = number(4, value) if isinstance(value, int) else block(5, str(value))
                told += block(4, number(1, STATS.index(stat) + 1) + kind)
            line += block(4, told)
        body += block(3, line)
    for field, known in ((4, names), (5, {n: i for i, n in enumerate(STATS, 1)})):
        for text, key in known.items():
            body += block(field, number(1, key) + block(2, number(1, key) + block(2, text)))
    return block(1, number(1, 1) + block(2, name) + body)


KERNEL = {"correlation_id": 5, "kernel_details": " grid:4,2,1 block:64,1,1 occ_pct:0"}
COPY = {"correlation_id": 6, "memcpy_details": "kind:Unknown size:4096 dest:2 async:1"}


@pytest.fixture
def profile(tmp_path):
    gpu = plane("/device:GPU:3", ("Stream #9(Kernel)", 1000, [
        ("fusion.kd", 500_400, 20_000, KERNEL), ("CopyDeviceToDevice", 600_000, 10_000, COPY)]),
        ("XLA Modules", 1000, [("derived", 0, 900_000, {})]))  # fmt: skip
    calls = [("hipLaunchKernel", 100_000, 9_000,
              {"correlation_id": 5, "name": "jit(f)/transpose(jvp(g))/dot_general"}),
             ("hipMemcpyDtoDAsync", 200_000, 9_000, {"correlation_id": 6})]  # fmt: skip
    python = [("PjitFunction(f)", 50_000, 300_000, {}), ("PjitFunction(f)", 60_000, 200_000, {}),
              ("$train.py:3 step", 0, 9, {})]  # fmt: skip
    host = plane("/host:CPU", ("Host Threads/77", 1000, calls), ("python3", 1000, python))
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(gpu + host + block(4, "juniper"))
    return path


def test_streams_are_of_gpus_and_derived_lines_are_not(profile):
    told = ("start", "end", "name", "kind", "device", "stream", "bytes", "launch_size")
    assert rows(read(profile), "ops", *told) == [
        (450, 470, "fusion", "compute", 3, 9, None, 512),
        (550, 560, "[CUDA memcpy DtoD]", "d2d", 3, 9, 4096, None),
    ]


def test_launches_operators_and_steps_are_on_the_thread_that_launches(profile):
    trace = read(profile)
    assert rows(trace, "calls", "name", "correlation", "start") == [
        ("hipLaunchKernel", 5, 50), ("hipMemcpyDtoDAsync", 6, 150),
    ]  # fmt: skip
    on_line = trace.read("ranges").filter(thread=column(trace, "calls", "thread")[0])
    assert on_line.select("name", "start", "end").rows() == [
        ("step 0", 0, 300),
        ("jit(f)/transpose(jvp(g))/dot_general", 50, 59),
    ]
    assert column(trace, "reports", "host") == ["juniper"]


def test_one_that_is_cut_is_refused(profile):
    content = profile.read_bytes()
    for kept in (80, 200, len(content) - 3):
        profile.write_bytes(content[:kept])
        with pytest.raises(DamagedTraceError, match=r"host\.xplane\.pb is cut short"):
            read(profile)
