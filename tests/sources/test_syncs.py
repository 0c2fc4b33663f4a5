"""Waits for GPU work and records of events, of every recorder that keeps them."""

from __future__ import annotations

import pytest
from kineto_helpers import event, kernel, launch
from kineto_helpers import trace_of as kineto_trace
from nsys_builder import NsysBuilder
from nvprof_builder import VERSIONS, NvprofBuilder
from source_helpers import execute, remarks, rows, trace_of, versions_with

from tracekit.model import combine
from tracekit.sources import read

TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
WAIT = (
    "process", "device", "context", "stream", "start", "end", "type", "event", "correlation",
    "recorded_by",
)  # fmt: skip
RECORD = ("process", "device", "context", "stream", "event", "correlation", "time")
NONE = 4294967295


@pytest.mark.parametrize("nsys", versions_with(TABLE), indirect=True)
def test_what_a_wait_names_says_what_it_is_whatever_its_number(nsys):
    """The numbers of `syncType` changed twice, and the table of their names did not."""
    nsys.kernel(1, 2)
    nsys.call(5, 35, correlation=3)
    for at, number in ((10, 1), (20, 2), (30, 3), (40, 0)):
        nsys.sync(at, at + 4, correlation=at, syncType=number, stream=NONE)
        nsys.sync(at + 1, at + 4, correlation=at + 1, syncType=number, stream=NONE, event=9)
        nsys.sync(at + 2, at + 4, correlation=at + 2, syncType=number, stream=7)
        nsys.sync(at + 3, at + 4, correlation=at + 3, syncType=number, stream=7, event=9)
    trace = trace_of(nsys)
    assert rows(trace, "syncs", *WAIT)[:4] == [
        (0, 0, 1, None, 10, 14, "context", None, 10, None),
        (0, 0, 1, None, 11, 14, "event", 9, 11, None),
        (0, 0, 1, 7, 12, 14, "stream", None, 12, None),
        (0, 0, 1, 7, 13, 14, "stream_wait_event", 9, 13, None),
    ]
    types = [row[0] for row in rows(trace, "syncs", "type")]
    assert types == ["context", "event", "stream", "stream_wait_event"] * 4
    assert remarks(trace) == ()


def test_a_wait_that_names_nothing_is_of_no_type(one):
    one.kernel(1, 2)
    one.sync(10, 14, syncType=2, device=NONE, context=NONE)
    [row] = rows(trace_of(one), "syncs", "device", "context", "stream", "type", "event")
    assert row == (None, None, None, None, None)


def test_waits_are_in_the_order_of_time_and_of_the_session(one):
    one.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
    one.push_pop(1001, 1002, "r")
    one.sync(1030, 1031, correlation=2, stream=7)
    one.sync(1010, 1020, correlation=1, stream=7)
    assert rows(trace_of(one), "syncs", "start", "end") == [(10, 20), (30, 31)]


def test_waits_that_make_no_sense_are_left_out_and_counted(one):
    one.kernel(1, 2)
    one.sync(10, 12, stream=7)
    one.sync(20, 19, stream=7)
    one.sync(30, 32, stream=7, pid=300)
    trace = trace_of(one)
    assert rows(trace, "syncs", "start") == [(10,)]
    assert remarks(trace) == (
        "2 waits for GPU work have no valid times or process and were left out",
    )


@pytest.mark.parametrize("nsys", versions_with("CUPTI_ACTIVITY_KIND_CUDA_EVENT"), indirect=True)
def test_records_of_events(nsys):
    nsys.kernel(1, 2)
    nsys.event_record(9, correlation=8, stream=20)
    nsys.event_record(9, correlation=5)
    assert rows(trace_of(nsys), "event_records", *RECORD) == [
        (0, 0, 1, 7, 9, 5, None),
        (0, 0, 1, 20, 9, 8, None),
    ]


@pytest.mark.parametrize("nsys", ["3.25.0", "3.28.0"], indirect=True)
def test_newer_exports_say_which_record_a_wait_is_for(nsys):
    nsys.kernel(1, 2)
    nsys.kernel(1, 2, pid=200)
    nsys.event_record(9, correlation=5, eventSyncId=70, timestamp=0)
    nsys.event_record(9, correlation=8, eventSyncId=71, timestamp=123)
    nsys.event_record(9, correlation=3, eventSyncId=71, pid=200)
    nsys.sync(10, 12, correlation=11, stream=20, event=9, eventSyncId=71)
    nsys.sync(20, 22, correlation=12, event=9, eventSyncId=70)
    nsys.sync(30, 32, correlation=13, stream=20, eventSyncId=0)
    nsys.sync(40, 42, correlation=14, event=9, eventSyncId=99)
    trace = trace_of(nsys)
    assert rows(trace, "syncs", "correlation", "recorded_by") == [
        (11, 8), (12, 5), (13, None), (14, None),
    ]  # fmt: skip
    assert rows(trace, "event_records", "process", "correlation", "time") == [
        (1, 3, None), (0, 5, None), (0, 8, 123),
    ]  # fmt: skip


@pytest.mark.parametrize("nsys", ["3.0.0", "3.28.0"], indirect=True)
def test_the_contents_count_them(nsys):
    nsys.kernel(1, 2)
    nsys.sync(10, 12, stream=7)
    nsys.event_record(9, correlation=8)
    contents = rows(trace_of(nsys), "contents", "feature", "present", "rows")
    told = {row[0]: row[1:] for row in contents}
    assert told["waits for GPU work"] == (True, 1)
    assert told["records of CUDA events"] == (True, 1)


def test_columns_that_are_missing_cost_no_more_than_the_table(one):
    one.kernel(1, 2)
    one.close()
    execute(one.path, f"CREATE TABLE {TABLE} (start INTEGER)", f"INSERT INTO {TABLE} VALUES (1)")
    assert read(one.path).read("syncs").is_empty()


def test_waits_of_several_reports_are_of_their_processes(tmp_path):
    traces = []
    for number in range(2):
        with NsysBuilder(tmp_path / f"{number}.sqlite", schema="3.28.0") as nsys:
            nsys.kernel(1, 2, device=number)
            nsys.sync(10, 12, correlation=4, device=number, stream=7)
            nsys.event_record(3, correlation=4, device=number)
        traces.append(read(nsys.path))
    run = combine(traces)
    assert rows(run, "syncs", "report", "process", "device") == [(0, 0, 0), (1, 1, 1)]
    assert rows(run, "event_records", "report", "process", "device") == [(0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("schema", VERSIONS)
def test_nvprof(tmp_path, schema):
    with NvprofBuilder(tmp_path / "t.nvvp", schema=schema) as nvprof:
        nvprof.call(0, 3, correlation=1)
        nvprof.kernel(4, 5, correlation=1)
        nvprof.context(1, 2)
        nvprof.sync(20, 24, 3, stream=7, type=3)
        nvprof.sync(10, 14, 2, stream=-1, event=6, type=1)
        if schema != "8":  # whose tables are not all known
            nvprof.event_record(6, correlation=1)
    trace = read(tmp_path / "t.nvvp")
    assert rows(trace, "syncs", *WAIT) == [
        (0, 2, 1, None, 10, 14, "event", 6, 2, None),
        (0, 2, 1, 7, 20, 24, "stream", None, 3, None),
    ]
    of_event = [(0, 2, 1, 7, 6, 1, None)] if schema != "8" else []
    assert rows(trace, "event_records", *RECORD) == of_event


def test_nvprof_of_several_processes_tells_whose_waits_are_known(tmp_path):
    with NvprofBuilder(tmp_path / "t.nvvp") as nvprof:
        for pid, correlation in ((100, 1), (100, 2), (200, 2), (200, 3)):
            nvprof.call(0, 3, correlation=correlation, pid=pid)
        nvprof.kernel(4, 5, correlation=1)
        for correlation in (1, 2, 3):
            nvprof.sync(10, 14, correlation, stream=7)
    trace = read(tmp_path / "t.nvvp")
    assert rows(trace, "syncs", "process", "correlation") == [(0, 1), (1, 3)]
    assert "1 waits for GPU work have no valid times or process and were left out" in trace.warnings


def kineto_sync(kind, ts, dur, correlation, stream, **more):
    """A wait as Kineto writes it."""
    built = event("cuda_sync", kind, ts, dur, pid=0, tid=stream)
    built["args"] = {
        "cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "device": 0,
        "context": 1, **more,
    }  # fmt: skip
    return built


def test_kineto(tmp_path):
    of_event = {
        "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 4, "wait_on_cuda_event_id": 9,
    }  # fmt: skip
    unknown = {**of_event, "wait_on_cuda_event_record_corr_id": -1}
    record = event("cuda_event", "cudaEvent", 3, 0, pid=0, tid=7)
    record["args"] = {"event_id": 9, "stream": 7, "correlation": 4, "device": 0, "context": 1}
    trace = kineto_trace(
        tmp_path, launch(0, 1, 1), kernel("k", 1, 5, 1), record,
        kineto_sync("Stream Wait Event", 20, 1, 5, 20, **of_event),
        kineto_sync("Event Sync", 30, 2, 6, -1, **unknown),
        kineto_sync("Context Sync", 10, 1, 7, -1),
        kineto_sync("Stream Sync", 40, 1, 8, 7),
    )  # fmt: skip
    assert rows(trace, "syncs", *WAIT) == [
        (0, 0, 1, None, 10_000, 11_000, "context", None, 7, None),
        (0, 0, 1, 20, 20_000, 21_000, "stream_wait_event", 9, 5, 4),
        (0, 0, 1, None, 30_000, 32_000, "event", 9, 6, None),
        (0, 0, 1, 7, 40_000, 41_000, "stream", None, 8, None),
    ]
    assert rows(trace, "event_records", *RECORD) == [(0, 0, 1, 7, 9, 4, None)]
    assert trace.read("ops").height == 1
