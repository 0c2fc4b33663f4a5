"""The host's side: CUDA calls, and the processes and threads that made them."""

from __future__ import annotations

import pytest
from nsys_builder import global_pid, global_tid
from source_helpers import column, execute, rows, trace_of, versions_with

from tracekit.sources import read

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def _signed(value: int) -> int:
    """Return an id of 64 bits without sign as SQLite stores it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def test_every_column_of_a_call_comes_from_its_row(nsys):
    nsys.kernel(100, 110)
    nsys.call(20, 25, correlation=7, tid=101, name="cudaLaunchKernel_v7000", result=2)
    nsys.call(10, 15, correlation=6, name="cudaMalloc_v3020")
    trace = trace_of(nsys)
    assert rows(
        trace, "calls", "call", "report", "process", "thread", "start", "end", "name",
        "correlation", "result",
    ) == [
        (0, 0, 0, 0, 10, 15, "cudaMalloc", 6, 0),
        (1, 0, 0, 1, 20, 25, "cudaLaunchKernel", 7, 2),
    ]  # fmt: skip
    assert rows(trace, "threads", "thread", "process", "tid") == [(0, 0, 100), (1, 0, 101)]


def test_calls_of_the_driver_launch_work_too(nsys):
    """nsys keeps both kinds of calls in one table; a kernel may hang on either."""
    nsys.call(1, 2, correlation=1, name="cuLaunchKernelEx", event_class=1)
    nsys.call(3, 4, correlation=2, name="cudaLaunchKernel_v7000", event_class=0)
    nsys.kernel(10, 11, correlation=1)
    nsys.kernel(12, 13, correlation=2)
    trace = trace_of(nsys)
    assert rows(trace, "calls", "name", "correlation") == [
        ("cuLaunchKernelEx", 1),
        ("cudaLaunchKernel", 2),
    ]


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync"),
        ("cuStreamSynchronize_ptsz", "cuStreamSynchronize_ptsz"),
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("my_v2_function", "my_v2_function"),
    ],
)
def test_names_lose_the_version_they_end_with(one, recorded, name):
    one.kernel(1, 2)
    one.call(1, 2, name=recorded)
    assert column(trace_of(one), "calls", "name") == [name]


def test_a_call_may_have_no_correlation_id_and_no_name(one):
    one.kernel(1, 2)
    one.call(1, 2, correlation=None)
    one.close()
    execute(one.path, f"UPDATE {RUNTIME} SET nameId = 99")
    assert rows(read(one.path), "calls", "name", "correlation") == [(None, None)]


def test_calls_may_start_before_the_recording(one):
    one.kernel(1, 2)
    one.call(-10, -5)
    assert rows(trace_of(one), "calls", "start", "end") == [(-10, -5)]


class TestGlobalIds:
    # hardware id, VM id, process id, thread id
    @pytest.mark.parametrize(
        ("hw", "vm", "pid", "tid"),
        [
            (0, 1, 79184, 79321),
            (0, 0, 1, 1),
            (0xFE, 0, 5, 6),
            (0xFF, 0xFF, 0xFFFFFF, 0xFFFFFF),
            (0x80, 0, 0, 0),
            (0x7F, 1, 4194304, 4194304),
        ],
    )
    def test_are_taken_apart_also_when_they_are_negative(self, one, hw, vm, pid, tid):
        gid = _signed(hw << 56 | vm << 48 | pid << 24)
        thread = _signed(hw << 56 | vm << 48 | pid << 24 | tid)
        names = {"demangledName": one.string("k"), "shortName": one.string("k")}
        one.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=5, end=6, globalPid=gid, correlationId=1, **names
        )
        one.insert(
            RUNTIME, start=1, end=2, globalTid=thread, correlationId=1, nameId=one.string("f")
        )
        one.insert("NVTX_EVENTS", start=0, end=9, eventType=59, text="r", globalTid=thread)
        trace = trace_of(one)
        assert rows(trace, "processes", "process", "pid", "global_id") == [(0, pid, gid)]
        assert rows(trace, "threads", "thread", "process", "tid", "global_id") == [
            (0, 0, tid, thread)
        ]
        for table in ("ops", "calls", "ranges"):
            assert column(trace, table, "process") == [0]

    def test_the_same_process_id_on_two_machines_is_two_processes(self, one):
        for vm in (1, 2):
            one.insert(
                "NVTX_EVENTS", start=vm, end=9, eventType=59, text=f"vm {vm}",
                globalTid=vm << 48 | 7 << 24 | 7,
            )  # fmt: skip
        trace = trace_of(one)
        assert rows(trace, "processes", "process", "pid") == [(0, 7), (1, 7)]
        assert rows(trace, "ranges", "name", "process", "thread") == [
            ("vm 1", 0, 0),
            ("vm 2", 1, 1),
        ]


class TestProcesses:
    def test_are_those_that_launched_work_called_cuda_or_hold_ranges(self, nsys):
        for pid in (50, 100, 200, 300, 400):
            nsys.process(pid, f"program {pid}")
        nsys.kernel(1, 2, pid=300)
        nsys.call(1, 2, pid=100)
        nsys.push_pop(1, 2, "r", pid=200)
        nsys.thread_name(400, 400, "idle")
        trace = trace_of(nsys)
        known = "PROCESSES" in nsys.schema.tables
        assert rows(trace, "processes", "process", "report", "pid", "name", "global_id") == [
            (number, 0, pid, f"program {pid}" if known else None, global_pid(pid))
            for number, pid in enumerate((100, 200, 300))
        ]

    @pytest.mark.parametrize("nsys", versions_with("PROCESSES")[:1], indirect=True)
    def test_one_that_is_listed_twice_is_one(self, nsys):
        nsys.kernel(1, 2)
        nsys.process(100, "first")
        nsys.process(100, "second")
        trace = trace_of(nsys)
        assert rows(trace, "processes", "pid", "name") == [(100, "first")]
        assert trace.read("ops").height == 1


class TestThreadNames:
    def test_one_name_per_thread_the_one_of_the_lowest_priority_number(self, nsys):
        nsys.call(1, 2, tid=101)
        nsys.call(3, 4, tid=102)
        nsys.call(5, 6, tid=103)
        nsys.kernel(9, 10)
        nsys.thread_name(100, 101, "python3", priority=20)
        nsys.thread_name(100, 101, "pt_autograd_0", priority=10)
        nsys.thread_name(100, 101, "python3", priority=20)
        nsys.thread_name(100, 102, "first", priority=10)
        nsys.thread_name(100, 102, "second", priority=10)
        nsys.thread_name(200, 103, "of another process")
        trace = trace_of(nsys)
        assert rows(trace, "threads", "tid", "name") == [
            (101, "pt_autograd_0"),
            (102, "first"),
            (103, None),
        ]
        assert trace.read("calls").height == 3

    def test_the_name_that_the_program_gives_through_nvtx_wins(self, nsys):
        nsys.call(1, 2, tid=101)
        nsys.kernel(9, 10)
        nsys.thread_name(100, 101, "python3", priority=0)
        nsys.nvtx(39, -50, None, "data loader", tid=101)
        assert rows(trace_of(nsys), "threads", "name") == [("data loader",)]

    def test_the_rank_of_a_process_is_no_name_of_a_thread(self, one):
        one.call(1, 2)
        one.call(1, 2, tid=101)
        one.kernel(9, 10)
        one.nvtx(39, 0, None, "MPI Rank 3", registered=True)
        one.thread_name(100, 100, "MPI Rank 3", priority=0)
        one.thread_name(100, 100, "python3", priority=20)
        one.thread_name(100, 101, "MPI Rank 3 helper")
        assert column(trace_of(one), "threads", "name") == ["python3", "MPI Rank 3 helper"]

    def test_names_without_text_or_thread_are_passed_over(self, one):
        one.call(1, 2)
        one.kernel(9, 10)
        one.insert("ThreadNames", nameId=999, priority=0, globalTid=global_tid(100))
        one.insert("ThreadNames", nameId=one.string("ghost"), priority=0, globalTid=None)
        one.insert("ThreadNames", nameId=one.string("python3"), globalTid=global_tid(100))
        assert rows(trace_of(one), "threads", "name") == [("python3",)]

    def test_threads_that_did_nothing_are_not_listed(self, one):
        one.kernel(9, 10)
        one.thread_name(100, 100, "python3")
        assert rows(trace_of(one), "threads", "tid") == []
