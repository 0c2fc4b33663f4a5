"""GPU memory: what was allocated and released, and what was in use after that."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_builder import NsysBuilder
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read
from tracekit.sources.nsys import read as read_nsys
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.spool import GIB, Workspace

MIB = 1 << 20
TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
MEMORY = versions_with(TABLE)
CHANGES = ("process", "device", "time", "change", "in_use")
everywhere = pytest.mark.parametrize("nsys", MEMORY, indirect=True)


@everywhere
def test_what_is_in_use_is_what_was_allocated_and_not_released(nsys):
    nsys.kernel(1, 2)
    nsys.memory(10, 0x1000, 2 * MIB)
    nsys.memory(20, 0x2000, 8 * MIB)
    nsys.memory(30, 0x1000, frees=True)
    nsys.memory(40, 0x1000, 3 * MIB)
    nsys.memory(50, 0x2000, 8 * MIB, frees=True)
    trace = trace_of(nsys)
    assert rows(trace, "memory", "report", *CHANGES) == [
        (0, 0, 0, 10, 2 * MIB, 2 * MIB),
        (0, 0, 0, 20, 8 * MIB, 10 * MIB),
        (0, 0, 0, 30, -2 * MIB, 8 * MIB),
        (0, 0, 0, 40, 3 * MIB, 11 * MIB),
        (0, 0, 0, 50, -8 * MIB, 3 * MIB),
    ]
    assert remarks(trace) == ()


@everywhere
def test_processes_and_gpus_are_counted_each_for_itself(nsys):
    nsys.gpu(0)
    nsys.gpu(1)
    for pid, device in ((100, 0), (100, 1), (200, 1)):
        nsys.kernel(1, 2, pid=pid, device=device)
    nsys.memory(10, 0x1000, 1, device=0)
    nsys.memory(20, 0x2000, 2, device=1)
    nsys.memory(30, 0x1000, 4, device=1, pid=200)
    nsys.memory(40, 0x1000, frees=True)
    nsys.memory(50, 0x3000, 8, device=1)
    assert rows(trace_of(nsys), "memory", *CHANGES) == [
        (0, 0, 10, 1, 1),
        (0, 1, 20, 2, 2),
        (1, 1, 30, 4, 4),
        (0, 0, 40, -1, 0),
        (0, 1, 50, 8, 10),
    ]


def test_events_are_in_the_order_of_time_whatever_the_order_of_rows(one):
    one.kernel(1, 2)
    one.memory(30, 0x1000, frees=True)
    one.memory(20, 0x1000, 5)
    one.memory(30, 0x1000, 7)
    assert rows(trace_of(one), "memory", "time", "change", "in_use") == [
        (20, 5, 5), (30, -5, 0), (30, 7, 7),
    ]  # fmt: skip


def test_a_release_on_behalf_of_another_gpu_is_one_on_the_gpu_of_the_allocation(one):
    one.kernel(1, 2)
    one.kernel(1, 2, device=1)
    one.memory(10, 0x1000, 5, device=1)
    one.memory(20, 0x1000, 5, frees=True, device=0)
    assert rows(trace_of(one), "memory", *CHANGES) == [(0, 1, 10, 5, 5), (0, 1, 20, -5, 0)]


@pytest.mark.parametrize(
    ("kind", "counts"),
    [(0, False), (1, False), (2, True), (3, True), (4, False), (5, True), (6, False), (7, False)],
)
def test_only_memory_on_the_gpu_counts(one, kind, counts):
    one.kernel(1, 2)
    one.memory(10, 0x1000, 5, kind=kind)
    trace = trace_of(one)
    assert column(trace, "memory", "in_use") == [5] * counts
    assert remarks(trace) == ()


def test_a_release_of_what_was_allocated_before_changes_nothing_and_is_counted(one):
    one.kernel(1, 2)
    one.memory(5, 0x9000, 7, frees=True)
    one.memory(10, 0x1000, 5)
    one.memory(20, 0x1000, frees=True)
    one.memory(30, 0x1000, frees=True)
    trace = trace_of(one)
    assert column(trace, "memory", "in_use") == [5, 0]
    what = "2 GPU memory events are releases of what was allocated before recording began"
    assert remarks(trace) == (what,)


def test_a_second_allocation_at_an_address_implies_that_the_first_was_released(one):
    one.kernel(1, 2)
    one.kernel(1, 2, device=1)
    one.memory(10, 0x1000, 5, device=1)
    one.memory(20, 0x1000, 8)
    trace = trace_of(one)
    assert rows(trace, "memory", *CHANGES) == [
        (0, 1, 10, 5, 5),
        (0, 1, 20, -5, 0),
        (0, 0, 20, 8, 8),
    ]
    [remark] = remarks(trace)
    assert remark.startswith("1 GPU memory events are releases that were not recorded")


@pytest.mark.parametrize(
    "values",
    [
        {"start": None}, {"address": None}, {"bytes": None}, {"bytes": -1}, {"bytes": 1 << 62},
        {"deviceId": 4294967295}, {"globalPid": None}, {"memoryOperationType": 2},
        {"memoryOperationType": None}, {"start": "soon"},
    ],
)  # fmt: skip
def test_events_that_make_no_sense_are_left_out_and_counted(one, values):
    one.kernel(1, 2)
    one.memory(10, 0x1000, 5)
    one.memory(20, 0x2000, 6)
    one.close()
    columns = "start, globalPid, deviceId, address, bytes, memKind, memoryOperationType"
    execute(
        one.path,
        f"CREATE TABLE kept AS SELECT {columns} FROM {TABLE}",
        f"DROP TABLE {TABLE}",
        f"ALTER TABLE kept RENAME TO {TABLE}",
    )
    [(name, value)] = values.items()
    execute(one.path, f"UPDATE {TABLE} SET {name} = ? WHERE start = 20", many=[(value,)])
    trace = read(one.path)
    assert column(trace, "memory", "in_use") == [5]
    assert "1 GPU memory events are incomplete and were left out" in remarks(trace)


def test_columns_that_are_missing_cost_no_more_than_the_table(one):
    one.kernel(1, 2)
    one.close()
    execute(one.path, f"CREATE TABLE {TABLE} (start INTEGER)", f"INSERT INTO {TABLE} VALUES (1)")
    assert read(one.path).read("memory").is_empty()


def test_times_are_counted_from_the_start_of_the_session(one):
    one.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
    one.push_pop(1001, 1002, "r")
    one.memory(1010, 0x1000, 5)
    assert column(trace_of(one), "memory", "time") == [10]


def test_who_only_allocates_takes_part_too(one):
    one.kernel(1, 2)
    one.gpu(0)
    one.gpu(1)
    one.gpu(2)
    one.memory(10, 0x1000, 5, pid=300, device=1)
    trace = trace_of(one)
    assert rows(trace, "processes", "process", "pid") == [(0, 100), (1, 300)]
    assert rows(trace, "memory", *CHANGES) == [(1, 1, 10, 5, 5)]
    assert rows(trace, "devices", "device", "active", "identity") == [
        (0, True, "ordinal"), (1, False, "ordinal"), (2, False, "ordinal"),
    ]  # fmt: skip


def test_memory_on_a_gpu_that_is_not_known_makes_no_other_unknown(one):
    one.kernel(1, 2)
    one.gpu(0)
    one.memory(10, 0x1000, 5, device=6)
    one.memory(20, 0x2000, 7)
    trace = trace_of(one)
    assert rows(trace, "devices", "device", "identity") == [(0, "ordinal")]
    assert rows(trace, "memory", *CHANGES) == [(0, 0, 20, 7, 7)]
    what = "1 GPU memory events are on a GPU that is not known, and were left out"
    assert remarks(trace) == (what,)


def test_memory_alone_names_the_gpus_of_an_export_that_describes_none(one):
    one.push_pop(1, 2, "r")
    one.memory(10, 0x1000, 5, device=3)
    trace = trace_of(one)
    assert rows(trace, "memory", *CHANGES) == [(0, 3, 10, 5, 5)]
    assert rows(trace, "devices", "device", "active", "identity") == [(3, False, "unknown")]


def test_releases_alone_make_no_one_a_participant(one):
    one.kernel(1, 2)
    one.memory(10, 0x1000, frees=True, pid=300)
    trace = trace_of(one)
    assert column(trace, "processes", "pid") == [100]
    assert trace.read("memory").is_empty()


@everywhere
def test_the_contents_count_them(nsys):
    nsys.kernel(1, 2)
    nsys.memory(10, 0x1000, 5)
    nsys.memory(20, 0x1000, frees=True)
    contents = trace_of(nsys).read("contents").filter(pl.col("feature") == "GPU memory events")
    assert contents.select("source_table", "present", "rows").rows() == [(TABLE, True, 2)]


def _naive(events: list[tuple[int, int, int, bool, int, int]]) -> list[tuple[int, ...]]:
    """What a program would do that goes through the events one by one."""
    held: dict[tuple[int, int], tuple[int, int]] = {}
    in_use: dict[tuple[int, int], int] = {}
    changes = []
    for time, pid, address, frees, device, size in sorted(events, key=lambda event: event[0]):
        last = held.pop((pid, address), None)
        if last is not None:
            key = pid, last[0]
            in_use[key] -= last[1]
            changes.append((*key, time, -last[1], in_use[key]))
        if not frees:
            key = pid, device
            held[pid, address] = device, size
            in_use[key] = in_use.get(key, 0) + size
            changes.append((*key, time, size, in_use[key]))
    return changes


@settings(max_examples=examples(18, thorough=300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.integers(0, 1), st.integers(0, 3), st.booleans(),
            st.integers(0, 1), st.integers(0, 9),
        ),
        max_size=40,
    ),
    st.integers(1, 50),
)  # fmt: skip
def test_many_events_few_at_once(tmp_path_factory: Any, events: Any, few: int) -> None:
    path = tmp_path_factory.mktemp("memory") / "t.sqlite"
    with NsysBuilder(path) as nsys:
        nsys.gpu(0)
        nsys.gpu(1)
        for pid in (0, 1):
            for device in (0, 1):
                nsys.kernel(1, 2, pid=pid, device=device)
        for time, pid, address, frees, device, size in events:
            nsys.memory(time, address, size, frees=frees, pid=pid, device=device)
    workspace = Workspace(memory=GIB)
    workspace.rows = few
    trace = read_nsys(SqliteFile(path), workspace).trace()
    assert rows(trace, "memory", *CHANGES) == _naive(events)
