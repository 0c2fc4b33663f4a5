"""A clock of the GPUs that is ahead is told from launches that are held back, by who waits."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from trace_builder import TraceBuilder, default_rules

from tracekit.attribution import attribute
from tracekit.attribution._clock import Jumps, find_returns, late
from tracekit.attribution._launches import link_launches
from tracekit.model import SYNCS, Recording, Trace
from tracekit.support.spool import Workspace

US = 1000
QUICKEST = 7 * US
TAKES = 10 * US
OPS = 100
HELD = "something delays every launch, for the clock of the GPU is ahead by no more than"
Late = Callable[[int, int], int]


def _waits(*rows: tuple[int, int, int | None]) -> pl.DataFrame:
    """Return waits, each given by its start, its end, and the stream (None: all of context 1)."""
    made = [
        {
            "report": 0, "process": 0, "context": 1, "stream": stream, "start": start, "end": end,
            "type": "context" if stream is None else "stream",
        }
        for start, end, stream in rows
    ]  # fmt: skip
    if not made:
        return SYNCS.empty()
    return SYNCS.conform(pl.DataFrame(made, schema_overrides={"stream": pl.Int64}))


def _trace(late: Late, held: int = 0, waits: range = range(OPS)) -> Trace:
    """Calls of 100 ops every 100 ms, each held back by `held`, on a clock that is ahead.

    After some the host waits, which returns 5 us after the op has ended in truth.
    """
    builder = TraceBuilder()
    rows = []
    for number in range(OPS):
        called = 100_000 * US * number
        begins = called + QUICKEST + held
        shown = begins + late(number, 0)
        builder.op("gemm", called, start=shown, end=shown + TAKES, context=1)
        if number in waits:
            rows.append((called + 2, begins + TAKES + 5 * US, 7 if number % 2 else None))
    return builder.trace().with_tables({"syncs": _waits(*rows)})


def _moved(trace: Trace) -> list[int]:
    before, after = trace.read("ops"), attribute(trace, default_rules()).read("ops")
    return (after["start"] - before["start"]).unique().sort().to_list()


@pytest.mark.parametrize("lag", [50 * US, 3_000 * US])
def test_a_steady_lag_is_set_right_and_said(lag: int) -> None:
    trace = _trace(lambda *_: lag)
    assert _moved(trace) == [-lag]
    said = attribute(trace, default_rules()).warnings
    (text,) = (text for text in said if "taken off" in text)
    assert text == (
        "waits return before the GPU work that they wait for has ended, by as much throughout the "
        f"recording: {lag / US:,.1f} us were taken off all times of GPU work, which are then right "
        "to about 10 us"
    )


@pytest.mark.parametrize("held", [0, 50 * US, 3_000 * US])
def test_launches_that_are_held_back_are_no_lag(held: int) -> None:
    assert _moved(_trace(lambda *_: 0, held=held)) == [0]


@pytest.mark.parametrize(
    "trace",
    [
        _trace(lambda number, _: (60 + number) * US),
        _trace(lambda number, _: 60 * US if number < 60 else 0),
        _trace(lambda *_: 60 * US, waits=range(0)),
        _trace(lambda *_: 60 * US, waits=range(9)),
        _trace(lambda *_: 60 * US, waits=range(50)),
        _trace(lambda *_: 60 * US, held=60 * US),
        _trace(lambda *_: 8 * US),
    ],
    ids=["drift", "part", "no waits", "few waits", "no waits at the end", "held too", "little"],
)
def test_what_is_not_one_steady_lag_stays(trace: Trace) -> None:
    assert _moved(trace) == [0]


def test_all_gpus_must_be_late() -> None:
    trace = _trace(lambda *_: 60 * US)
    second = pl.col("op") % 2
    other = trace.with_tables({"ops": trace.read("ops").with_columns(device=second.cast(pl.Int32))})
    assert _moved(other) == [-60 * US]
    alone = trace.read("syncs").filter(pl.col("stream").is_null())  # those of even ops, on one GPU
    assert _moved(other.with_tables({"syncs": alone})) == [0]


def test_waits_are_for_what_was_launched_before_on_their_stream() -> None:
    """Worked by hand: ops end at 50 (stream 7), 90 (stream 8) and 300 (stream 7)."""
    builder = TraceBuilder()
    for at, stream, end in ((10, 7, 50), (20, 8, 90), (200, 7, 300)):
        builder.op("gemm", at, start=at + 5, end=end, stream=stream, context=1)
    waits = _waits(
        (5, 6, 7),  # before all
        (30, 60, 7),  # 60 - 50
        (30, 95, None),  # 95 - 90
        (30, 70, 8),  # 70 - 90
        (200, 250, 7),  # the call of the third op returns at 201, so that only the first is sure
        (201, 320, 7),  # 320 - 300
    )
    recording = Recording.of(builder.trace().with_tables({"syncs": waits}))
    ops, calls = recording.streams["ops"], recording.streams["calls"]
    launches = link_launches(ops, calls, 1, 1, Workspace())
    found = find_returns(ops, calls, launches, recording.parts("syncs"))
    assert sorted(found.select("start", "slack").rows()) == [
        (30, -20), (30, 5), (30, 10), (200, 200), (201, 20),
    ]  # fmt: skip
    assert found["device"].unique().to_list() == [0]


@pytest.mark.parametrize(
    ("slack", "said"),
    [
        (None, "ahead by about so much, or something delays every launch"),
        (-250 * US, "ahead by 250.000 us at least, for a wait for its work returns so long before"),
        (5 * US, f"{HELD} 5.000 us: a wait for its work returns so soon after that ends"),
        (-5 * US, f"{HELD} 0.000 us"),
    ],
)
def test_a_warning_says_which_of_both_it_is(slack: int | None, said: str) -> None:
    idle = pl.DataFrame(
        {"device": [0], "launches": [100], "least": [300 * US]},
        schema={"device": pl.Int32, "launches": pl.Int64, "least": pl.Int64},
    )
    (text,) = late([idle], {} if slack is None else {0: slack})
    assert said in text


def _jumps(trace: Trace) -> list[str]:
    said = attribute(trace, default_rules()).warnings
    return [text for text in said if "seems to jump ahead" in text]


def test_a_clock_that_jumps_ahead_is_told() -> None:
    """From op 50 on 20 ms are added: waits return 5 us after the end, ops start after 7 us."""
    (text,) = _jumps(_trace(lambda number, _: 20_000 * US * (number >= 50)))
    assert text == (
        "the clock of device 0 seems to jump ahead 5,000.015 ms after its first op at the latest: "
        "50 waits from then on return up to 19.995 ms before the end of their work, and all ops "
        "start 20.007 ms or more after their calls; the jump counts as idle time"
    )


def test_a_jump_is_told_though_another_device_works_on() -> None:
    trace = _trace(lambda number, _: 20_000 * US * (number >= 50))
    ops = trace.read("ops")
    jumps = Jumps([trace.read("syncs")])
    jumps.add(ops)
    jumps.add(ops.head(50).with_columns(device=pl.lit(1, ops.schema["device"])))
    (text,) = jumps.warnings(ops)
    assert text.startswith("the clock of device 0 seems to jump ahead")


@pytest.mark.parametrize("chunk", [20, 5, 2])
def test_a_jump_is_told_after_chunks_of_deep_queues(chunk: int) -> None:
    """Ops 20 to 79 start 3 ms after their calls, and no wait says why; then the clock jumps."""
    trace = _trace(
        lambda number, _: US * (20_000 if number >= 80 else 3_000 if number >= 20 else 0),
        waits=range(80, OPS),
    )
    jumps = Jumps([trace.read("syncs")])
    for ops in trace.read("ops").iter_slices(chunk):
        jumps.add(ops)
    (text,) = jumps.warnings(ops)
    assert text.startswith("the clock of device 0 seems to jump ahead 8,000.015 ms after its first")


def test_copies_to_pageable_memory_show_that_a_clock_jumps() -> None:
    """No wait was recorded; every tenth op is a copy that returns when it has ended."""
    builder = TraceBuilder()
    for number in range(OPS):
        called, late = 1_000 * US * number, 20_000 * US * (number >= 50)
        row = {"kind": "d2h", "host_memory": "pageable"} if number % 10 == 9 else {}
        shown = called + QUICKEST + late
        builder.op("x", called, start=shown, end=shown + TAKES, context=1, **row)
        if row:
            builder.rows["ops"][-1]["launch_end"] = shown - late + TAKES + US
            builder.rows["calls"][-1]["end"] = shown - late + TAKES + US
    (text,) = _jumps(builder.trace())
    assert "5 waits from then on return up to 19.999 ms before the end of their work" in text


def test_deep_queues_and_slow_launches_are_no_jump() -> None:
    """Launches that are held back from some op on, or run ahead: waits return after their work."""
    assert not _jumps(_trace(lambda *_: 0))
    assert not _jumps(_trace(lambda number, _: 300 * US * (number == 60)))
    builder, rows = TraceBuilder(), []
    for number in range(OPS):
        called = 100 * US * number
        begins = called + QUICKEST + 50_000 * US * (number >= 50)
        builder.op("gemm", called, start=begins, end=begins + TAKES, context=1)
        if number == 99:
            rows.append((called + 2, begins + TAKES + 5 * US, 7))
    assert not _jumps(builder.trace().with_tables({"syncs": _waits(*rows)}))


@pytest.mark.parametrize(("returns", "told"), [(30, True), (5, False)])
def test_launches_that_wait_for_their_kernels_are_told(returns: int, *, told: bool) -> None:
    """As with CUDA_LAUNCH_BLOCKING=1: what the host waits would count as work of the host."""
    b = TraceBuilder()
    for n in range(20):
        at = 40 * US * n
        b.op("gemm", at, start=at + 4 * US, end=at + 24 * US)
        b.rows["calls"][-1]["end"] = at + returns * US
    words = "kernels of 0.400 of 0.400 ms end before the calls that launch them return"
    assert any(text.startswith(words) for text in b.attributed().warnings) == told
