"""Threads off the CPU: rows of the table `host`, worked out of context switches."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder, global_tid
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read

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
