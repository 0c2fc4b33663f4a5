"""Threads off the CPU: rows of the table `host`, worked out of context switches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_builder import NsysBuilder, global_tid
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read
from tracekit.sources.nsys._thread_activity import _SWITCH, Stretches

LONG = 100_000
ROW = ("thread", "start", "end", "library", "group", "name")
ALONE, BESIDE = "off the CPU", "off the CPU while its process ran"


def _switch(nsys: NsysBuilder, at: int, tid: int = 100, *, on: bool, pid: int = 100) -> None:
    nsys.insert("SCHED_EVENTS", start=at, cpu=3, isSchedIn=int(on), globalTid=global_tid(pid, tid))


def _ran(nsys: NsysBuilder, start: int, end: int, tid: int = 100, pid: int = 100) -> None:
    _switch(nsys, start, tid, on=True, pid=pid)
    _switch(nsys, end, tid, on=False, pid=pid)


@pytest.mark.parametrize("nsys", versions_with("SCHED_EVENTS")[-2:], indirect=True)
def test_long_stretches_off_the_cpu(nsys: NsysBuilder) -> None:
    nsys.push_pop(5, 6, "step")
    for start, end in ((0, 10), (10 + LONG, 20 + LONG), (19 + 2 * LONG, 40 + 2 * LONG)):
        _ran(nsys, start, end)  # off it for LONG, and for a trifle
    _ran(nsys, 30 + LONG, 40 + LONG, tid=199)  # which does nothing else
    trace = trace_of(nsys)
    assert rows(trace, "host", *ROW) == [(0, 10, 10 + LONG, "os", "off_cpu", ALONE)]
    assert column(trace, "threads", "tid") == [100]
    assert remarks(trace) == ()


def test_another_thread_of_the_process_runs_meanwhile(one: NsysBuilder) -> None:
    one.push_pop(5, 6, "step")
    one.push_pop(5, 6, "step", tid=101)
    _ran(one, 0, 1_000)
    _ran(one, 1_000 + LONG, 2_000 + LONG)
    _ran(one, 3_000 + 2 * LONG, 4_000 + 2 * LONG)
    _ran(one, 1_000, 1_000 + LONG, tid=199)  # all of the first stretch, and nothing of the second
    _ran(one, 2_000 + LONG, 3_000 + 2 * LONG, tid=300, pid=300)  # another process
    _switch(one, 50, 101, on=False)  # when it came there is not known
    _ran(one, 60 + LONG, 70 + LONG, tid=101)
    assert rows(trace_of(one), "host", *ROW) == [
        (0, 1_000, 1_000 + LONG, "os", "off_cpu", BESIDE),
        (0, 2_000 + LONG, 3_000 + 2 * LONG, "os", "off_cpu", ALONE),
        (1, 50, 60 + LONG, "os", "off_cpu", BESIDE),
    ]


def test_switches_come_in_any_order_and_without_a_thread(one: NsysBuilder) -> None:
    one.push_pop(5, 6, "step")
    _ran(one, 10 + LONG, 20 + LONG)
    _ran(one, 0, 10)
    one.insert("SCHED_EVENTS", start=60, cpu=3, isSchedIn=0, globalTid=None)
    assert rows(trace_of(one), "host", "start", "end") == [(10, 10 + LONG)]


def test_a_table_of_switches_that_lacks_a_column_tells_nothing(one: NsysBuilder) -> None:
    one.push_pop(5, 6, "step")
    _ran(one, 0, 10)
    _ran(one, 10 + LONG, 20 + LONG)
    one.close()
    execute(one.path, "ALTER TABLE SCHED_EVENTS DROP COLUMN isSchedIn")
    assert rows(read(one.path), "host", "start") == []


_SWITCHES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 40)), max_size=60, unique=True
)
"""Processes, threads of theirs, and when these switch."""


@given(_SWITCHES, st.sets(st.integers(1, 40)))
@settings(max_examples=examples(100))
def test_switches_in_chunks_are_paired_as_by_hand(
    times: list[tuple[int, int, int]], cuts: set[int]
) -> None:
    switches = []
    for owner in sorted({each[:2] for each in times}):
        own = sorted(time for *by, time in times if tuple(by) == owner)
        switches += [(*owner, time, (i + sum(owner)) % 2 == 0) for i, time in enumerate(own)]
    wanted = [row for by in {each[:2] for each in switches} for row in _pairs(switches, by)]
    edges = [0, *sorted(cuts), 41]
    stretches, found = Stretches(), []
    for since, until in itertools.pairwise(edges):
        chunk = sorted((each for each in switches if since <= each[2] < until), key=lambda x: x[2])
        rows = [(p, 10 * p + t, time, on) for p, t, time, on in chunk]
        frame = pl.DataFrame(rows, schema=_SWITCH, orient="row")
        found += stretches.until(frame).select("thread", "start", "end", "ran").rows()
    assert sorted(found) == sorted(wanted)


def _pairs(
    switches: list[tuple[int, int, int, bool]], by: tuple[int, int]
) -> Iterator[tuple[int, ...]]:
    """Return the stretches of a thread, with how many ticks a thread of its process ran in each."""
    own = sorted(time_on for *owner, time, on in switches if tuple(owner) == by
                 for time_on in [(time, on)])  # fmt: skip
    for (start, was_on), (end, on) in itertools.pairwise(own):
        if not was_on and on:
            ran = sum(
                any(_is_on(switches, other, tick) for other in {x[:2] for x in switches}
                    if other[0] == by[0])
                for tick in range(start, end)
            )  # fmt: skip
            yield 10 * by[0] + by[1], start, end, ran


def _is_on(switches: list[tuple[int, int, int, bool]], by: tuple[int, int], tick: int) -> bool:
    own = [(time, on) for *owner, time, on in switches if tuple(owner) == by and time <= tick]
    return max(own, default=(0, False))[1]
