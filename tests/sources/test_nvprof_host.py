"""CUDA calls and NVTX ranges of nvprof databases."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nvprof_builder import END, EPOCH, MARK, PROCESS, START, NvprofBuilder, object_id
from source_helpers import column, remarks, rows, trace_of

from tracekit.sources import open_report
from tracekit.sources.nvprof import read as read_nvprof
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.spool import Workspace

RANGE = ("start", "end", "name")


@pytest.fixture
def one(tmp_path: Path) -> NvprofBuilder:
    return NvprofBuilder(tmp_path / "t.nvvp")


class TestCalls:
    def test_names_come_from_callback_ids_without_versions(self, nvprof):
        nvprof.kernel(0, 1)
        for number, cbid in enumerate((211, 13, 41, 161, 131, 165)):
            nvprof.call(number, number + 1, cbid=cbid)
        for number, cbid in enumerate((307, 318, 319), 6):
            nvprof.call(number, number + 1, cbid=cbid, table="DRIVER")
        assert column(trace_of(nvprof), "calls", "name") == [
            "cudaLaunchKernel", "cudaLaunch", "cudaMemcpyAsync", "cudaMemcpyPeerAsync",
            "cudaStreamSynchronize", "cudaDeviceSynchronize", "cuLaunchKernel", "cuMemcpyPeer",
            "cuMemcpyPeerAsync",
        ]  # fmt: skip

    @pytest.mark.parametrize("cbid", [0, 99_999, -1])
    def test_callback_ids_that_are_not_known(self, one, cbid):
        one.call(0, 1, cbid=cbid)
        one.kernel(1, 2)
        assert column(trace_of(one), "calls", "name") == [None]

    def test_the_call_of_the_runtime_launches_and_not_the_one_of_the_driver_in_it(self, one):
        one.call(0, 9, correlation=5)
        one.call(2, 8, correlation=5, cbid=307, table="DRIVER")
        one.call(10, 12, correlation=6, cbid=307, table="DRIVER")
        one.call(14, 15, correlation=6, pid=200, result=2)
        one.kernel(20, 21, correlation=5)
        assert rows(trace_of(one), "calls", "name", "correlation", "result") == [
            ("cudaLaunchKernel", 5, 0),
            ("cuLaunchKernel", None, 0),
            ("cuLaunchKernel", 6, 0),
            ("cudaLaunchKernel", 6, 2),
        ]

    def test_threads_are_known_by_32_bits(self, one):
        handle = 0x7F12_D600_0740
        one.call(1, 2, tid=0xD600_4B40 - (1 << 32))  # negative, as a 32-bit integer holds it
        one.call(3, 4, tid=handle & 0xFFFF_FFFF)
        one.range(0, 9, "r", tid=handle)
        one.kernel(5, 6)
        trace = trace_of(one)
        assert column(trace, "threads", "tid") == [0xD600_0740, 0xD600_4B40]
        assert column(trace, "calls", "thread") == [1, 0]
        assert column(trace, "ranges", "thread") == [0]

    def test_calls_without_times_or_process(self, one):
        one.insert("RUNTIME", start=0, end=0, processId=100)
        one.call(1, 2, pid=-5)
        one.call(3, 4)
        one.kernel(5, 6)
        trace = trace_of(one)
        assert column(trace, "calls", "start") == [0]
        assert "2 CUDA calls have no valid times or process and were left out" in trace.warnings


class TestRanges:
    def test_two_markers_make_a_range(self, nvprof):
        nvprof.range(10, 30, "outer", domain="mine")
        nvprof.range(12, 20, "inner")
        trace = trace_of(nvprof)
        assert rows(trace, "ranges", *RANGE, "domain", "style", "open", "thread") == [
            (0, 20, "outer", "mine", "push_pop", False, 0),
            (2, 10, "inner", None, "push_pop", False, 0),
        ]
        assert remarks(trace) == ()

    def test_those_of_a_process_are_start_end_ranges(self, one):
        garbage = struct.pack("<ii", 100, 0) + b"\x5c.so"
        one.range(1, 5, "whole", kind=PROCESS, blob=garbage)
        one.range(2, 3, "push")
        trace = trace_of(one)
        assert rows(trace, "ranges", "name", "style") == [
            ("whole", "start_end"),
            ("push", "push_pop"),
        ]
        assert rows(trace, "threads", "process", "tid") == [(0, 0), (0, 7)]

    def test_one_that_has_no_end_is_open_until_the_end(self, one):
        one.range(10, None, "open")
        one.kernel(20, 90)
        trace = trace_of(one)
        assert rows(trace, "ranges", *RANGE, "open") == [(0, 80, "open", True)]

    def test_an_end_may_come_before_its_start_in_the_table(self, one):
        one.marker(END, 9, 1)
        one.marker(START, 4, 1, "r")
        assert rows(trace_of(one), "ranges", *RANGE) == [(0, 5, "r")]

    def test_ids_count_per_process(self, one):
        for pid, name in ((100, "a"), (200, "b")):
            one.marker(START, pid, 1, name, pid=pid)
        for pid in (100, 200):
            one.marker(END, 2 * pid, 1, pid=pid)
        assert rows(trace_of(one), "ranges", *RANGE, "process") == [
            (0, 100, "a", 0), (100, 300, "b", 1)
        ]  # fmt: skip

    def test_what_does_not_make_a_range_is_counted(self, one):
        one.range(1, 2, "r")
        one.marker(END, 3, 50)
        one.marker(START, 4, 60, "short", blob=b"123")
        one.marker(START, 4, 61, "device", kind=3)
        one.marker(START, 4, 62, "none", blob=b"")
        one.marker(START, -EPOCH, 63, "no time")
        one.marker(START, 5, 70, "again")
        one.marker(START, 5, 70, "again")
        one.marker(END, 6, 70)
        trace = trace_of(one)
        assert rows(trace, "ranges", *RANGE) == [(0, 1, "r"), (4, 5, "again")]
        assert remarks(trace) == (
            "4 markers have no valid time, thread or process and were left out",
            "1 ranges whose start was not recorded were left out",
            "1 markers repeat the id of another one and were left out",
        )

    def test_an_end_before_its_start_makes_an_empty_range(self, one):
        one.range(9, 4, "r")
        assert rows(trace_of(one), "ranges", *RANGE) == [(0, 0, "r")]

    def test_flags_of_synchronisation_change_nothing(self, one):
        one.marker(START | 8, 1, 1, "r")
        one.marker(END | 64, 2, 1)
        assert rows(trace_of(one), "ranges", *RANGE) == [(0, 1, "r")]

    def test_values_attached_to_ranges(self, one):
        payloads = [
            (1, struct.pack("<Q", 2**64 - 1)), (4, struct.pack("<q", -7)),
            (0, struct.pack("<d", 0.5)), (0, bytes(8)), (5, b"\1" + bytes(7)), (1, b"\1"),
        ]  # fmt: skip
        for number, (kind, payload) in enumerate(payloads):
            marker = one.range(number, number + 1, "r")
            one.insert("MARKER_DATA", id=marker, payloadKind=kind, payload=payload)
        assert column(trace_of(one), "ranges", "payload") == [
            "18446744073709551615", "-7", "0.5", None, None, None
        ]  # fmt: skip

    def test_values_are_nobodys_where_several_processes_count_ids(self, one):
        one.range(1, 2, "a", pid=100)
        one.range(1, 2, "b", pid=200)
        one.insert("MARKER_DATA", id=1, payloadKind=4, payload=struct.pack("<q", 1))
        assert column(trace_of(one), "ranges", "payload") == [None, None]

    def test_labels_are_read_of_marks_and_ranges(self, one):
        one.marker(MARK, 1, 1, "tracekit.label network=lenet")
        one.range(2, 3, "tracekit.label gpus=4")
        one.close()
        recording = open_report(one.path, Workspace())
        assert dict(recording.labels) == {"network": "lenet", "gpus": "4"}


@settings(max_examples=examples(10, thorough=200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40), st.booleans()), max_size=40),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_ranges_are_the_same_however_the_markers_are_ordered_and_cut(
    tmp_path_factory, spans, rows_at_once, seed
):
    """Against a dictionary of ids, with batches so small that most ranges cross several."""
    path = tmp_path_factory.mktemp("nvprof") / "t.nvvp"
    expected, markers = [], []
    for number, (start, length, closed) in enumerate(spans):
        markers.append((START, start, number, f"r{number}"))
        if closed:
            markers.append((END, start + length, number, None))
        expected.append((start, start + length if closed else None, f"r{number}"))
    random.Random(seed).shuffle(markers)
    with NvprofBuilder(path) as nvprof:
        nvprof.kernel(0, 200)
        for marker in markers:
            nvprof.marker(*marker)
    workspace = Workspace()
    workspace.rows = rows_at_once
    trace = read_nvprof(SqliteFile(path), workspace).trace()
    found = rows(trace, "ranges", *RANGE)
    assert sorted(found) == sorted((a, 200 if b is None else b, c) for a, b, c in expected)


def test_times_are_found_whichever_table_has_the_first_and_last(one):
    one.range(5, 6, "r", blob=object_id(100, 7, b"\xff" * 4))
    one.call(3, 4)
    one.kernel(7, 8)
    trace = trace_of(one)
    assert column(trace, "reports", "session_start") == [EPOCH + 3]
    assert column(trace, "ranges", "start") == [2]
