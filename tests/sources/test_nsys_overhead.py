"""Time that the profiler itself took: rows of the table `host` that are no calls."""

from __future__ import annotations

import polars as pl
import pytest
from nsys_builder import global_tid
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read

PROFILER, CUPTI = "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"
STRETCH = ("process", "thread", "start", "end", "library", "group", "name")


@pytest.mark.parametrize("nsys", versions_with(PROFILER), indirect=True)
def test_stretches_of_threads_that_take_part_are_rows(nsys):
    nsys.push_pop(5, 6, "r")
    nsys.push_pop(7, 8, "r", tid=101)
    nsys.overhead(-20, -10, "NVTX profiling initialization")
    nsys.overhead(10, 40, "CUDA profiling data flush", tid=101)
    trace = trace_of(nsys)
    assert rows(trace, "host", *STRETCH) == [
        (0, 0, -20, -10, "profiler", "overhead", "NVTX profiling initialization"),
        (0, 1, 10, 40, "profiler", "overhead", "CUDA profiling data flush"),
    ]
    unset = trace.read("host").select("bytes", "recv_bytes", "tag", "rank", "communicator")
    assert unset.null_count().row(0) == (2,) * 5
    assert remarks(trace) == ()


@pytest.mark.parametrize("nsys", versions_with(PROFILER), indirect=True)
def test_threads_and_processes_of_the_profiler_take_no_part(nsys):
    nsys.push_pop(5, 6, "r")
    nsys.overhead(10, 40, "TLS allocation", tid=199)
    nsys.overhead(10, 40, "TLS allocation", pid=300)
    nsys.overhead(50, 60, "CUPTI: Buffer flush")
    trace = trace_of(nsys)
    assert column(trace, "host", "start") == [50]
    assert column(trace, "threads", "tid") == [100]
    assert column(trace, "processes", "pid") == [100]
    assert remarks(trace) == ()


@pytest.mark.parametrize("nsys", versions_with(CUPTI), indirect=True)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (2, "driver compilation (CUDA)"),
        (3, "CUPTI buffer flush"),
        (4, "CUPTI instrumentation"),
        (5, "CUPTI resource management"),
        (6, "runtime module loading (CUDA)"),
        (7, "lazy function loading (CUDA)"),
        (8, "command buffer full (CUDA)"),
        (0, "overhead of unknown kind"),
        (1, "overhead of unknown kind"),
        (99, "overhead of unknown kind"),
    ],
)
def test_what_has_no_name_is_told_by_its_type(nsys, kind, name):
    nsys.push_pop(5, 6, "r")
    nsys.overhead(10, 20, None, type=kind, table=CUPTI)
    nsys.overhead(30, 40, "given", type=kind, table=CUPTI)
    assert column(trace_of(nsys), "host", "name") == [name, "given"]


def test_what_has_no_name_and_no_type_is_a_stretch_all_the_same(one):
    one.push_pop(5, 6, "r")
    one.overhead(10, 20, "x")
    one.close()
    execute(
        one.path, "CREATE TABLE kept AS SELECT start, end, globalTid FROM PROFILER_OVERHEAD",
        "DROP TABLE PROFILER_OVERHEAD", "ALTER TABLE kept RENAME TO PROFILER_OVERHEAD",
    )  # fmt: skip
    assert column(read(one.path), "host", "name") == ["overhead of unknown kind"]


def test_stretches_without_thread_or_times_are_left_out_and_counted(one):
    one.push_pop(5, 6, "r")
    one.overhead(10, 20, "x", globalTid=None)
    one.overhead(40, 30, "x")
    one.insert(CUPTI, start=10, end=20, globalTid=None, eventClass=103, overheadType=8)
    one.overhead(50, 60, "x")
    trace = trace_of(one)
    assert column(trace, "host", "start") == [50]
    what = "3 stretches of profiler overhead have no thread or no times and were left out"
    assert remarks(trace) == (what,)


def test_they_come_after_the_calls_of_mpi(one):
    one.overhead(1, 2, "x")
    one.mpi("P2P", 10, 20, "MPI_Send", size=8)
    assert rows(trace_of(one), "host", "library", "start", "bytes") == [
        ("mpi", 10, 8), ("profiler", 1, None),
    ]  # fmt: skip


def test_times_are_counted_from_the_start_of_the_session(one):
    one.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
    one.push_pop(1005, 1006, "r")
    one.overhead(990, 1010, "x")
    trace = trace_of(one)
    assert rows(trace, "host", "start", "end") == [(-10, 10)]
    assert global_tid(100) == trace.read("threads")["global_id"].item()


def test_the_contents_count_all_of_them(one):
    one.push_pop(5, 6, "r")
    one.kernel(7, 8)
    one.overhead(10, 20, "x")
    one.overhead(10, 20, "x", tid=999)
    contents = trace_of(one).read("contents").filter(pl.col("feature") == "profiler overhead")
    assert contents.select("source_table", "present", "rows").rows() == [(PROFILER, True, 2)]
