"""Why nothing runs: each cause by hand, and random traces nanosecond by nanosecond."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.facts import how_to_see_waits
from tracekit.analysis.idle_account import _idle_pieces as _pieces
from tracekit.analysis.idle_account import idle_pieces, pairs_of
from tracekit.analysis.idle_account._idle_gaps import behind_blocks, gaps_of
from tracekit.analysis.idle_time import idle
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import TABLES, Stretch, Trace

US = 1000
KEYS = ("cause", "stage,rank", "range,cause")


def _call(b: TraceBuilder, start: int, end: int, name: str, *, thread: int = 0, **row: Any) -> None:
    b.call(start, end, thread=thread, correlation=row.pop("correlation", None))
    b.rows["calls"][-1] |= {"name": name} | row


def _launched(b: TraceBuilder, at: int, done: int, start: int, end: int, **row: Any) -> None:
    """Add an op, and the call from `at` to `done` that launches it."""
    thread = row.get("thread", 0)
    b.op("gemm", at, start=start, end=end, launch_end=done, **row)
    b.rows["calls"][-1] |= {"end": done, "thread": thread}


def _with(trace: Trace, **tables: list[dict[str, Any]]) -> Trace:
    """Return a trace with rows of tables that the builder does not know."""
    made = {
        name: TABLES[name].conform(pl.DataFrame(rows, infer_schema_length=None))
        for name, rows in tables.items()
    }
    return trace.with_tables(made)


def _causes(trace: Trace, **options: Any) -> dict[str, int]:
    return dict(idle(trace, **options).rows.select("cause", "idle_ns").rows())


def _simple(late: int = 100 * US) -> TraceBuilder:
    """Return two kernels of which the second is launched `late` after the first has ended."""
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 1_000)
    at = 1_000 + late
    _launched(b, at, at + 4, at + 10, at + 500)
    return b


def test_the_range_of_an_unknown_launch_is_unknown() -> None:
    b = _simple()
    for op in b.rows["ops"]:
        op.update(launch_start=None, launch_end=None, launch_thread=None)
    b.rows["calls"].clear()
    assert idle(b.trace(), "range").rows["range"].to_list() == ["(no launching call)"]
    assert idle(_simple().trace(), "range").rows["range"].to_list() == ["(outside push/pop ranges)"]


@pytest.mark.parametrize("seen", [None, "call", "open call", "range", "counter", "samples"])
def test_where_nothing_was_recorded_the_recording_may_have_paused(seen: str | None) -> None:
    """A pause of 5 ms was idle time for the sake of a host that launched late."""
    b = _simple(5_000 * US)
    if seen in {"call", "samples"}:
        for at in range(1_000, 5_000 * US, (2_000 if seen == "samples" else 900) * US):
            _call(b, at, at + 10, "cudaEventQuery", thread=1)
    elif seen == "open call":
        _call(b, 500, 5_001 * US, "cudaStreamSynchronize", thread=1)
    elif seen == "range":
        for at in range(1_000, 5_000 * US, 900 * US):
            b.range(at, at + 10, "tokenize", thread=1)
    trace = b.trace()
    if seen == "counter":
        row = {"report": 0, "device": 0, "metric": "sm_active", "recorded_name": "SM", "value": 1.0}
        times = range(0, 5_000 * US, 500 * US)
        trace = _with(trace, metrics=[row | {"time": at, "unit": "percent"} for at in times])
    told = [text for text in idle(trace).meta.get("warnings", ()) if "recording paused" in text]
    assert bool(told) is (seen is None)
    assert not told or "5.000 ms in all (>99.9 % of idle time)" in told[0]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_silent_stretch_is_idle_time_of_each_gpu_that_waits_in_it(processes: int) -> None:
    """Of GPUs that idle in the same pause, it was told as that of one: half of their idle time.

    Then the share was of all GPUs, beside the length of the pause on one of them.
    """
    b = _simple(5_000 * US)
    for at in (10, 5_001 * US + 20):
        _launched(b, at, at + 4, at + 10, at + 900, thread=10 * (processes - 1), device=1)
    [told] = idle(b.trace()).meta["warnings"]
    assert "in 1 stretch of the longest waits for the host, 10.000 ms in all (>99.9 %" in told


def test_of_equally_long_silences_the_same_are_told_each_time() -> None:
    """Another choice of the longest ones was told at each call, as those of the whole run."""
    b = TraceBuilder()
    for n in range(12):
        for device in (0, 1):
            at = (5_000 * n + 2_000 * device) * US
            _launched(b, at, at + 4, at + 10, at + 900, thread=10 * device, device=device)
    told = {idle(b.trace()).meta["warnings"][0] for _ in range(5)}
    assert len(told) == 1
    assert "in 4 stretches of the longest waits for the host, 23.993 ms in all" in told.pop()


def test_a_pause_of_the_recording_is_told_of_the_idle_time_asked_for() -> None:
    """A pause outside of the selection was told, too."""
    b = _simple(5_000 * US)
    _launched(b, 6_000 * US, 6_000 * US + 4, 6_000 * US + 10, 6_001 * US)
    parts = {
        (5_100, 6_000): None,
        (3_000, 6_000): "in 1 stretch of the longest waits for the host, 2.001 ms in all",
    }
    for between, text in parts.items():
        stretch = Stretch(between=(between[0] * US, between[1] * US))
        warned = idle(b.trace().limited_to(stretch)).meta.get("warnings", [])
        assert [text in each for each in warned] == [True] * (text is not None), warned


def test_a_late_launch_is_split_from_the_launch_itself() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    assert _causes(b.trace()) == {"host_delay": 100 * US, "launch_latency": 10}


def test_an_op_that_was_launched_before_the_gap_waits_for_its_start() -> None:
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 1_000)
    _launched(b, 6, 9, 1_300, 1_400)
    assert _causes(b.trace()) == {"launch_latency": 300}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("nsys SQLite", "record other programs on the GPU (`--gpuctxsw=true`)"),
        ("PyTorch Kineto JSON", "torch.profiler does not record that; on NVIDIA's GPUs nsys does"),
    ],
)
def test_how_to_record_what_ops_wait_for_is_of_the_recorder(kind: str, how: str) -> None:
    report = {"report": 0, "file": "a", "size": 1, "format": kind}
    reports = TABLES["reports"].conform(pl.DataFrame([report]))
    assert how in how_to_see_waits(TraceBuilder().trace().with_tables({"reports": reports}))


def test_an_op_that_stays_queued_for_long_is_not_explained() -> None:
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 1_000)
    _launched(b, 6, 9, 1_001 + 100 * US, 1_000_000)
    found = idle(b.trace())
    assert dict(found.rows.select("cause", "idle_ns").rows()) == {"unexplained": 100 * US + 1}
    assert "waits for events" in found.meta["missing"][0]


@pytest.mark.parametrize(
    ("launched", "gap", "cause"),
    [(0, 10 * US, "launch_latency"), (0, 10 * US + 1, "unexplained"),
     (240 * US, 60 * US, "launch_latency")],
    ids=["ready", "held", "just launched"],
)  # fmt: skip
def test_an_op_that_was_launched_long_before_starts_at_once(
    launched: int, gap: int, cause: str
) -> None:
    """Gaps of 20 us between copies of two GPUs, launched 1 ms before, were launch latency."""
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 250 * US)
    _launched(b, launched + 6, launched + 9, 250 * US + gap, 900 * US)
    assert dict(idle(b.trace()).rows.select("cause", "idle_ns").rows()) == {cause: gap}


def test_what_little_waiting_ops_wait_for_need_not_be_recorded() -> None:
    """Of 60 ms, 0.02 ms of a distributed U-Net asked for another recording."""
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 250 * US)
    _launched(b, 6, 9, 262 * US, 900 * US)
    _launched(b, 2_000 * US, 2_001 * US, 2_002 * US, 2_010 * US)
    assert "missing" not in idle(b.trace()).meta


def test_an_op_of_unknown_launch_is_not_explained() -> None:
    b = TraceBuilder()
    b.op("a", start=0, end=10)
    b.op("b", start=40, end=50)
    found = idle(b.trace())
    assert dict(found.rows.select("cause", "idle_ns").rows()) == {"unexplained": 30}
    # A command is marked as one only without words that are none of it.
    assert found.meta["missing"][0].startswith("calls that launch ops: ")
    assert "`" not in found.meta["missing"][0]


def test_the_host_between_steps_and_in_a_loader() -> None:
    b = _simple()
    b.iteration(0, 0, 11_000)
    b.iteration(1, 91_000, 200 * US)
    b.range(31_000, 61_000, "next batch", stage="IO")
    assert _causes(b.trace()) == {
        "host_delay": 10_000 + 10_000, "between_steps": 20_000 + 30_000, "input": 30_000,
        "launch_latency": 10,
    }  # fmt: skip


def test_before_the_first_step_the_host_is_in_none() -> None:
    b = _simple()
    b.iteration(0, 200 * US, 300 * US)
    assert _causes(b.trace()) == {"between_steps": 100 * US, "launch_latency": 10}


def test_of_threads_with_as_many_steps_the_first_one_drives() -> None:
    b = TraceBuilder()
    for thread, steps in ((0, 1), (2, 2), (1, 2)):
        for number in range(steps):
            b.iteration(number, 100 * number, 100 * number + 90, thread=thread)
    gaps = pl.DataFrame({"process": [0], "launch_thread": [7]}).cast(pl.Int32)
    assert pairs_of(b.trace(), gaps)["driver"].to_list() == [1]


def test_steps_that_are_longer_than_the_windows_of_gpus_say_so() -> None:
    """One step that ends at 150 for both GPUs, of which one works from 40 to 50 alone."""
    b = TraceBuilder()
    b.iteration(0, 0, 150)
    b.op("gemm", 0, start=0, end=10, device=0)
    b.op("gemm", 20, start=140, end=150, device=0)
    b.op("gemm", 30, start=40, end=50, device=1)
    found = idle(b.trace())
    assert found.rows["idle_ns"].sum() == 130
    assert found.meta["step_outside_window_ns"] == (150 - 50) / 2
    assert "step_outside_window_ns" not in idle(_simple().trace()).meta


def test_processes_on_one_gpu_leave_their_own_gaps_and_common_ones() -> None:
    b = TraceBuilder()
    for process, start, end in ((0, 0, 10), (1, 10, 50), (0, 50, 60), (1, 70, 80)):
        b.op("gemm", start - 5, start=start, end=end, thread=10 * process)
    trace = b.trace()
    window = {"device": 0, "start": 0, "end": 80}
    each = pl.DataFrame([{"process": process} | window for process in (0, 1)])
    columns = ("process", "start", "end")
    assert sorted(gaps_of(trace, each).select(columns).rows()) == [
        (0, 10, 50), (0, 60, 80), (1, 50, 70)
    ]  # fmt: skip
    both = each.head(1).with_columns(process=pl.lit(None, pl.Int64))
    assert gaps_of(trace, both).select(columns).rows() == [(1, 60, 70)]


def test_a_pass_outside_of_steps_is_not_between_them() -> None:
    b = _simple()
    b.iteration(0, 0, 1_000)
    b.range(1_000, 51_000, "forward", stage="FP")
    assert _causes(b.trace()) == {
        "host_delay": 50_000,
        "between_steps": 50_000,
        "launch_latency": 10,
    }


@pytest.mark.parametrize(
    ("allocates", "loads", "launches"),
    [
        ("cudaMalloc", "cuLibraryLoadData", "cudaLaunchKernel"),
        ("hipMalloc", "hipModuleLoadData", "hipExtModuleLaunchKernel"),
    ],
)
def test_allocations_loading_and_the_profiler(allocates: str, loads: str, launches: str) -> None:
    b = _simple(500 * US)
    b.iteration(0, 0, 1_000_000)
    _call(b, 2_000, 12_000, allocates)
    _call(b, 20_000, 50_000, loads)
    _call(b, 60_000, 160_001, launches)
    _call(b, 170_000, 180_000, "cudaHostAlloc", thread=1)  # of a thread that launches nothing here
    trace = _with(
        b.trace(),
        host=[
            {"report": 0, "process": 0, "thread": 0, "start": 5_000, "end": 25_000,
             "library": "profiler", "name": "flush", "group": "overhead"},
        ],
    )  # fmt: skip
    assert _causes(trace) == {
        "profiler": 20_000, "allocation": 3_000, "loading": 25_000 + 100_001,
        "host_delay": 500_000 - 20_000 - 3_000 - 125_001, "launch_latency": 10,
    }  # fmt: skip


def test_a_launch_whose_kernel_starts_at_once_loads_no_code() -> None:
    """It waits for the kernel (CUDA_LAUNCH_BLOCKING=1), and returns after it."""
    b = TraceBuilder()
    b.op("long", 0, start=5_000, end=150_000)
    b.rows["calls"][-1]["end"] = 160_000
    b.op("next", 170_000, start=175_000, end=180_000)
    assert "loading" not in _causes(b.trace())


def test_calls_of_mpi_are_collectives_and_others() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    row = {"report": 0, "process": 0, "thread": 0, "library": "mpi"}
    trace = _with(
        b.trace(),
        host=[
            {**row, "start": 2_000, "end": 12_000, "name": "MPI_Allreduce", "group": "collective"},
            {**row, "start": 20_000, "end": 25_000, "name": "MPI_Recv", "group": "p2p"},
        ],
    )
    found = _causes(trace)
    assert (found["behind_collective"], found["behind_stage"]) == (10_000, 5_000)


_OFF = {"report": 0, "process": 0, "thread": 0, "library": "os", "group": "off_cpu",
        "name": "off the CPU"}  # fmt: skip
_POLL = _OFF | {"name": "poll", "group": "wait"}
_BESIDE = _OFF | {"name": "off the CPU while its process ran"}


def _rests(trace: Trace) -> dict[str, str]:
    return dict(idle(trace).rows.select("cause", "rests_on").rows())


@pytest.mark.parametrize("source", ["ranges", "structure"])
def test_time_between_steps_rests_on_what_the_steps_were_found_in(source: str) -> None:
    """Ranges were the evidence of steps without any range."""
    b = _simple()
    b.iteration(0, 0, 1_000, source=source)
    b.iteration(1, 100 * US + 900, 200 * US, source=source)
    assert _rests(b.trace())["between_steps"] == source


def test_a_thread_that_does_not_run_is_off_the_cpu() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    trace = _with(b.trace(), host=[
        {**_OFF, "start": 21_000, "end": 51_000}, {**_POLL, "start": 60_000, "end": 70_000},
        {**_POLL, "thread": 1, "start": 75_000, "end": 80_000},  # which launches nothing here
    ])  # fmt: skip
    assert _causes(trace) == {"off_cpu": 40_000, "host_delay": 60_000, "launch_latency": 10}
    assert _rests(trace)["off_cpu"] == "context switches, OS calls"
    (evidence,) = idle(trace, longest=1).rows["evidence"]
    assert "0.03 ms: the thread that launches was off the CPU;" in evidence
    assert "0.01 ms: the thread that launches was off the CPU (asleep in poll)" in evidence


def test_a_gap_of_1_ns_is_told_in_ns() -> None:
    """It was said to last 1e-6 ms."""
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 1_000)
    _launched(b, 6, 9, 1_001, 2_000)
    assert idle(b.trace(), longest=1).rows["evidence"].to_list() == [
        "1 ns: launch call, queue and start"
    ]


def test_a_thread_that_sleeps_while_the_one_that_drives_it_works_waits_for_that() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US, thread=1)
    asleep = {**_OFF, "start": 21_000, "end": 51_000}
    assert _causes(_with(b.trace(), host=[asleep]))["host_delay"] == 100 * US
    both = [asleep, {**_POLL, "thread": 1, "start": 31_000, "end": 61_000}]
    assert _causes(_with(b.trace(), host=both))["off_cpu"] == 20_000


def _input_after(late: int, *, steps: bool = True, **copy: Any) -> TraceBuilder:
    """Return a kernel, and a copy of input that is launched `late` after it."""
    b = TraceBuilder()
    _launched(b, 0, 4, 10, 1_000)
    row = {"kind": "h2d", "bytes": 1 << 20, "stage": "IO", "copy_kind": "HtoD", **copy}
    _launched(b, 1_000 + late, 1_004 + late, 1_010 + late, 1_100 + late, **row)
    if steps:
        b.iteration(0, 0, 1_000)
        b.iteration(1, 1_000 + late, 2_000 + late)
    return b


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize(("row", "source"), [(_OFF, "context switches"), (_POLL, "OS calls")])
def test_sleep_until_input_is_copied_is_waiting_for_it(
    row: dict[str, Any], source: str, *, steps: bool
) -> None:
    trace = _input_after(100 * US, steps=steps).trace()
    rest = "between_steps" if steps else "host_delay"
    assert _causes(trace) == {rest: 100 * US, "launch_latency": 10}
    asleep = _with(trace, host=[{**row, "start": 500, "end": 91_000}])
    assert _causes(asleep) == {"input": 90_000, rest: 10_000, "launch_latency": 10}
    assert _rests(asleep)["input"] == source


def test_sleep_in_a_pass_or_until_a_few_bytes_are_copied_is_no_wait_for_input() -> None:
    asleep = {**_OFF, "start": 500, "end": 91_000}
    few = _with(_input_after(100 * US, bytes=8, stage="FP").trace(), host=[asleep])
    assert _causes(few)["off_cpu"] == 90_000
    b = _input_after(100 * US)
    b.range(0, 200 * US, "forward", stage="FP")
    assert _causes(_with(b.trace(), host=[asleep]))["off_cpu"] == 90_000


def test_sleep_of_five_ms_at_a_time_is_that_of_a_lock() -> None:
    late = 20_000 * US
    b = _input_after(late)
    turns = [{**_BESIDE, "start": at, "end": at + 5_050 * US} for at in (2_000, 5_060 * US)]
    other = {**_BESIDE, "start": 11_000 * US, "end": 15_000 * US}
    trace = _with(b.trace(), host=[*turns, other])
    assert _causes(trace)["off_cpu"] == 14_100 * US
    (evidence,) = idle(trace, longest=1).rows["evidence"]
    assert "Python's lock" in evidence
    # What is mostly another sleep is none.
    longer = _with(b.trace(), host=[*turns[:1], other | {"end": 18_000 * US}])
    assert _causes(longer)["input"] == 12_050 * US


def test_samples_say_what_the_host_executed() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    row = {"report": 0, "process": 0, "library": "sample", "group": "on_cpu"}
    times = [(0, 500, "a"), (0, 2_000, "b"), (0, 3_000, "c"), (0, 4_000, "c"), (1, 5_000, "b"),
             (1, 6_000, "b")]  # fmt: skip
    sampled = [{**row, "thread": who, "start": at, "end": at, "name": n} for who, at, n in times]
    trace = _with(b.trace(), host=sampled)
    (evidence,) = idle(trace, longest=1).rows["evidence"]
    assert "0.1 ms: the host launched late (2 of 3 samples in c)" in evidence
    assert _causes(trace) == _causes(b.trace())


def test_before_linked_code_was_ready_it_was_compiled() -> None:
    b = _simple(500 * US)
    b.thread(1)
    _call(b, 200_000, 201_000, "cuLinkCreate", thread=1)
    _call(b, 300_000, 301_000, "cuLinkComplete", thread=1)
    _call(b, 310_000, 311_000, "cuModuleLoadData")
    assert _causes(b.trace()) == {
        "compiling": 300_000, "host_delay": 199_000, "loading": 1_000, "launch_latency": 10
    }  # fmt: skip
    asleep = _with(b.trace(), host=[{**_OFF, "start": 2_000, "end": 302_000}])
    assert _causes(asleep)["compiling"] == 300_000


def test_code_is_compiled_by_a_child_process() -> None:
    b = _simple(500 * US)
    _call(b, 310_000, 311_000, "cuModuleLoadData")
    child = {**_POLL, "name": "posix_spawn", "group": "child", "start": 5_000, "end": 105_000}
    assert _causes(_with(b.trace(), host=[child])) == {
        "compiling": 310_000 - 1_000, "loading": 1_000, "host_delay": 190_000, "launch_latency": 10
    }  # fmt: skip
    late = child | {"start": 320_000, "end": 420_000}  # loaded before it was started
    assert "compiling" not in _causes(_with(b.trace(), host=[late]))
    worker = child | {"name": "fork"}  # as loaders start theirs
    assert "compiling" not in _causes(_with(b.trace(), host=[worker]))


def test_a_wait_before_code_is_linked_is_no_compiling() -> None:
    b = _simple(500 * US)
    b.thread(1)
    _call(b, 400_000, 401_000, "cuLinkComplete", thread=1)
    # All threads sleep, so that none compiles.
    rows = [{**_POLL, "thread": thread, "start": 2_000, "end": 302_000} for thread in (0, 1)]
    trace = _with(b.trace(), host=rows)
    assert _causes(trace) == {
        "off_cpu": 300_000, "compiling": 100_000, "host_delay": 100_000, "launch_latency": 10
    }  # fmt: skip
    child = {**_POLL, "name": "posix_spawn", "group": "child", "start": 102_000, "end": 103_000}
    assert _causes(_with(b.trace(), host=[*rows, child])) == {
        "off_cpu": 100_000, "compiling": 300_000, "host_delay": 100_000, "launch_latency": 10
    }  # fmt: skip


def test_input_that_is_read_before_code_is_linked_is_no_compiling() -> None:
    b = _simple(500 * US)
    b.range(0, 300 * US, "next", stage="IO")
    _call(b, 400_000, 401_000, "cuLinkComplete")
    assert _causes(b.trace()) == {
        "input": 299_000, "compiling": 101_000, "host_delay": 100_000, "launch_latency": 10
    }  # fmt: skip


def test_what_was_not_recorded_of_threads_is_said() -> None:
    def missing(feature: dict[str, Any] | None) -> bool:
        row = {"report": 0, "source_table": "T", "rows": None, "tells": "", "record_with": "X"}
        said = [] if feature is None else [row | feature]
        found = idle(_with(_simple().trace(), contents=said) if said else _simple().trace())
        return any("off the CPU" in text for text in found.meta.get("missing", ()))

    assert missing({"feature": "context switches", "present": False})
    assert not missing({"feature": "context switches", "present": True})
    assert not missing(None)  # of a recorder that has none


def test_a_wait_that_drained_the_queue_explains_as_much_as_it_took() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    _call(b, 400, 2_000, "cudaStreamSynchronize")  # 600 ns before the gap, 1,000 in it
    assert _causes(b.trace()) == {
        "waiting_call": 1_000 + 600, "host_delay": 100_000 - 1_600, "launch_latency": 10,
    }  # fmt: skip


def test_a_wait_goes_on_to_explain_until_it_is_used_up() -> None:
    b = TraceBuilder()
    b.iteration(0, 0, 200 * US)
    _launched(b, 0, 4, 10, 5_000)
    _call(b, 20, 5_100, "cudaDeviceSynchronize")  # 4,980 ns before the gap
    _launched(b, 8_000, 8_004, 8_010, 8_500)
    _launched(b, 12_000, 12_004, 12_010, 13_000)
    assert _causes(b.trace()) == {
        "waiting_call": 100 + 4_980, "host_delay": 2_900 + 3_500 - 4_980,
        "launch_latency": 20,
    }  # fmt: skip
    assert _rests(b.trace())["waiting_call"] == "waits, API calls"


def test_a_wait_explains_nothing_once_the_host_was_ahead() -> None:
    b = TraceBuilder()
    b.iteration(0, 0, 200 * US)
    _call(b, 0, 500, "cudaDeviceSynchronize")
    _launched(b, 600, 604, 610, 60_000)
    _launched(b, 700, 704, 60_000, 60_500)
    _launched(b, 70_000, 70_004, 70_010, 80_000)
    assert _causes(b.trace()) == {"host_delay": 9_500, "launch_latency": 10}


def test_short_time_between_steps_is_hidden_in_a_long_wait() -> None:
    def causes(waited: int) -> dict[str, int]:
        b = TraceBuilder()
        _launched(b, 0, 4, 10, 100_000)
        b.iteration(0, 0, 100_500)
        b.iteration(1, 101_500, 300_000)
        _call(b, 100_000 - waited, 100_100, "cudaStreamSynchronize")
        _launched(b, 102_000, 102_004, 102_010, 110_000)
        return _causes(b.trace())

    assert causes(5_000) == {"waiting_call": 2_000, "launch_latency": 10}
    assert causes(4_999) == {"waiting_call": 1_000, "between_steps": 1_000, "launch_latency": 10}


def test_a_copy_whose_call_outlasts_it_is_a_wait() -> None:
    b = TraceBuilder()
    b.iteration(0, 0, 100_000)
    _launched(b, 0, 4, 10, 1_000)
    _launched(b, 1_500, 9_000, 6_000, 8_000, copy_kind="HtoD", kind="h2d")
    assert _causes(b.trace()) == {"host_delay": 500, "waiting_call": 4_500}


def test_a_copy_whose_call_takes_long_is_staged_by_the_host() -> None:
    b = TraceBuilder()
    b.iteration(0, 0, 300 * US)
    _launched(b, 0, 4, 10, 1_000)
    _launched(b, 2_000, 102_001, 90_000, 200_000, copy_kind="HtoD", kind="h2d")
    assert _causes(b.trace()) == {"host_delay": 1_000, "waiting_call": 88_000}


def test_a_query_is_no_wait() -> None:
    b = _simple()
    _call(b, 2_000, 3_000, "cudaEventQuery", correlation=99)
    trace = _with(
        b.trace(),
        syncs=[{"report": 0, "process": 0, "start": 2_000, "end": 3_000, "type": "event",
                "event": 1, "correlation": 99}],
    )  # fmt: skip
    assert "waiting_call" not in _causes(trace)


def _two_gpus(stage: str = "WU", kind: str = "compute") -> TraceBuilder:
    """GPU 1 runs until 1,000 and from 9,010; GPU 0 works until 9,000."""
    b = TraceBuilder()
    b.rows["devices"] = [
        {"report": 0, "device": device, "active": True, "identity": "ordinal"} for device in (0, 1)
    ]
    _launched(b, 0, 4, 10, 1_000, device=1, context=2)
    _launched(b, 5, 8, 10, 9_000, device=0, context=1, stage=stage, kind=kind)
    return b


@pytest.mark.parametrize(
    ("stage", "kind", "cause"),
    [
        ("WU", "compute", "behind_weight_update"),
        ("WU", "collective", "behind_collective"),
        ("BP", "compute", "behind_stage"),
    ],
)
def test_an_op_whose_stream_waits_for_an_event_of_another_gpu(
    stage: str, kind: str, cause: str
) -> None:
    b = _two_gpus(stage, kind)
    _launched(b, 30, 34, 9_010, 9_500, device=1, context=2)
    place = {"report": 0, "process": 0}
    record = {**place, "device": 0, "context": 1, "stream": 7, "event": 5, "correlation": 2}
    wait = {
        **place, "device": 1, "context": 2, "stream": 7, "start": 20, "end": 22, "event": 5,
        "type": "stream_wait_event", "correlation": 3,
    }  # fmt: skip
    trace = _with(b.trace(), syncs=[wait], event_records=[record])
    assert _causes(trace) == {cause: 8_000, "launch_latency": 10}
    longest = idle(trace, longest=1).rows.row(0, named=True)
    assert (longest["cause"], longest["device"]) == (cause, 1)
    assert "(GPU 0)" in longest["evidence"]


def test_an_op_that_a_copy_from_another_gpu_precedes() -> None:
    b = _two_gpus()
    _launched(
        b, 40, 44, 9_000, 9_400, device=0, context=1, stage="WU", kind="p2p", copy_kind="PtoP",
        src_device=0, dst_device=1,
    )  # fmt: skip
    _launched(b, 30, 34, 9_410, 9_500, device=1, context=2)
    assert _causes(b.trace()) == {"behind_weight_update": 8_400, "launch_latency": 10}


@pytest.mark.parametrize(
    ("end", "update", "stage", "behind"),
    [
        (100, 50, 0, "behind_weight_update"), (100, 49, 0, None), (100, 0, 0, None),
        (100, 20, 30, "behind_stage"), (100, 20, 29, None), (2, 1, 0, "behind_weight_update"),
    ],
)  # fmt: skip
def test_what_holds_a_gpu_takes_half_of_a_piece(
    end: int, update: int, stage: int, behind: str | None
) -> None:
    pieces = pl.DataFrame({"held_by": [1], "start": [0], "end": [end]})
    busy = pl.DataFrame(
        {
            "held_by": [1, 1],
            "what": ["behind_weight_update", "behind_stage"],
            "start": [0, end - stage],
            "end": [update, end],
        }
    ).filter(pl.col("end") > pl.col("start"))
    assert behind_blocks(pieces, busy)["behind"].to_list() == [behind]


def test_a_gpu_that_is_held_itself_passes_on_what_holds_it() -> None:
    b = _two_gpus("FP")
    b.rows["devices"].append({"report": 0, "device": 2, "active": True, "identity": "ordinal"})
    _launched(b, 9, 12, 20, 1_000, device=2, context=3)
    copy = {"kind": "p2p", "copy_kind": "PtoP", "stage": "FP"}
    _launched(b, 40, 44, 9_000, 9_400, device=0, context=1, src_device=0, dst_device=1, **copy)
    _launched(b, 30, 34, 9_410, 9_500, device=1, context=2)
    _launched(b, 50, 54, 9_500, 9_600, device=1, context=2, src_device=1, dst_device=2, **copy)
    _launched(b, 35, 39, 9_610, 9_700, device=2, context=3)
    # GPU 1 does little of what GPU 2 waits for: it waits for GPU 0 itself.
    causes = idle(b.trace(), "device,cause").rows.select("device", "cause", "idle_ns").rows()
    assert sorted(causes) == [
        (1, "behind_stage", 8_400), (1, "launch_latency", 10), (2, "behind_stage", 8_600),
        (2, "launch_latency", 10),
    ]  # fmt: skip
    assert "(GPU 1)" in idle(b.trace(), longest=1).rows["evidence"][0]


def test_gaps_of_hosts_apart_are_cut_as_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes with a GPU each; the first one's copy holds up the second one's GPU."""
    b = TraceBuilder()
    b.rows["devices"] = [
        {"report": 0, "device": gpu, "active": True, "identity": "ordinal"} for gpu in range(3)
    ]
    for gpu, number in itertools.product(range(3), range(6)):
        at, place = 1_000 * number + 100 * gpu, {"thread": 10 * gpu, "device": gpu}
        _launched(b, at, at + 4, at + 50, at + 400, context=gpu, **place)
    _launched(
        b, 2_410, 2_414, 2_420, 2_900, context=0, stage="FP", kind="p2p", copy_kind="PtoP",
        src_device=0, dst_device=1,
    )  # fmt: skip
    windows = pl.DataFrame(
        {"process": range(3), "device": range(3), "start": [0] * 3, "end": [6_000] * 3},
        schema={"process": pl.Int32, "device": pl.Int32, "start": pl.Int64, "end": pl.Int64},
    )
    together = idle_pieces(b.trace(), windows).pieces
    monkeypatch.setattr(_pieces, "FEW_GAPS", 0)
    found = idle_pieces(b.trace(), windows)
    gaps, pieces = found.gaps, found.pieces
    assert len(_pieces._apart(gaps)) == 3
    assert set(pieces["device"]) == {0, 1, 2}
    assert "behind_stage" in pieces["cause"].cast(pl.String)
    lengths = pieces.group_by("gap").agg((pl.col("end") - pl.col("start")).sum())
    assert lengths.sort("gap")["end"].equals((gaps["end"] - gaps["start"]).alias("end"))
    assert pieces.equals(pieces.sort("gap", "start"))
    assert pieces.equals(together)


def test_an_event_of_the_same_gpu_holds_nothing() -> None:
    b = _two_gpus()
    _launched(b, 30, 34, 2_000, 9_500, device=1, context=2)
    place = {"report": 0, "process": 0, "context": 2, "stream": 7, "event": 5, "device": 1}
    wait = {"start": 20, "end": 22, "type": "stream_wait_event", "correlation": 3}
    trace = _with(b.trace(), syncs=[{**place, **wait}], event_records=[{**place, "correlation": 1}])
    assert _causes(trace) == {"launch_latency": 1_000}


def test_a_piece_of_input_by_a_loader_does_not_say_why_the_others_are_late() -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    _launched(b, 30_000, 30_004, 30_010, 31_000, thread=1, stage="IO")
    assert _causes(b.trace()) == {"host_delay": 100_000 - 990, "launch_latency": 10}


def test_between_steps_a_loader_that_ends_the_gap_was_late() -> None:
    b = _simple()
    b.iteration(0, 0, 1_000)
    b.iteration(1, 90_000, 200 * US)
    _launched(b, 61_000, 61_004, 61_010, 71_000, thread=1, stage="IO")
    found = _causes(b.trace())
    assert found == {
        "input": 60_010, "between_steps": 19_000, "host_delay": 11_000, "launch_latency": 10
    }  # fmt: skip
    longest = idle(b.trace(), longest=1).rows.row(0, named=True)
    assert "until a loader's thread launched" in longest["evidence"]


@pytest.mark.parametrize(
    ("name", "shown"), [("step 0", "step N"), ("train#step_num=0#", "train#step_num=N#")]
)
def test_the_longest_gaps_with_their_neighbours(name: str, shown: str) -> None:
    b = _simple()
    b.iteration(0, 0, 200 * US)
    b.range(0, 200 * US, name)
    found = idle(b.trace(), longest=3)
    assert found.rows.height == 1
    row = found.rows.row(0, named=True)
    assert row["place"] == 1
    assert (row["start_ns"], row["idle_ns"], row["share"]) == (1_000, 100_010, 1.0)
    assert row["evidence"] == (
        "0.1 ms: the host launched late; 10 ns: launch call, queue and start"
    )
    assert (row["before"], row["after"], row["range"]) == ("gemm", "gemm", shown)


def test_a_step_has_its_mean() -> None:
    b = TraceBuilder()
    for step in (0, 1, 2):
        begin = step * 1_000
        b.iteration(step, begin, begin + 1_000, ops=2, whole=True)
        _launched(b, begin, begin + 4, begin + 10, begin + 100)
        _launched(b, begin + 200, begin + 204, begin + 210, begin + 300)
    rows = idle(b.trace()).rows
    # Steps last until the next one begins on the device: 1,000, 1,000 and 290 ns.
    assert dict(rows.select("cause", "step_ns").rows()) == pytest.approx(
        {"host_delay": (3 * 100 + 2 * 700) / 3, "launch_latency": (3 * 10 + 2 * 10) / 3}
    )


def test_what_cannot_be_asked() -> None:
    trace = _simple().trace()
    with pytest.raises(UsageError, match="no idle time by 'kernel'"):
        idle(trace, "kernel")
    with pytest.raises(UsageError, match="no iterations"):
        idle(trace, "iteration")
    with pytest.raises(UsageError, match="longest 0 is too small"):
        idle(trace, longest=0)
    with pytest.raises(MissingDataError, match="no GPU work"):
        idle(TraceBuilder().trace())


# -- random traces -----------------------------------------------------------------------------

_TIME = st.integers(0, 120)
_CALLS = ("cudaMalloc", "cudaStreamSynchronize", "cuModuleLoadData", "cudaEventQuery")


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    b = TraceBuilder()
    b.rows["devices"] = [
        {"report": 0, "device": device, "active": True, "identity": "ordinal"} for device in (0, 1)
    ]
    ops = st.tuples(
        st.integers(0, 1), st.sampled_from([0, 1, 10]), _TIME, st.integers(0, 12),
        st.integers(0, 20), st.integers(0, 6), st.sampled_from(["FP", "WU", "IO", "OTHER"]),
        st.booleans(),
    )  # fmt: skip
    for device, thread, start, length, before, call, stage, known in draw(
        st.lists(ops, min_size=1, max_size=12)
    ):
        row: dict[str, Any] = {
            "start": start, "end": start + length, "device": device, "stage": stage,
        }  # fmt: skip
        if known:
            at = start - before
            _launched(b, at, at + call, thread=thread, **row)
        else:
            b.op("gemm", thread=thread, **row)
    calls = st.tuples(st.sampled_from([0, 1]), _TIME, st.integers(0, 15), st.sampled_from(_CALLS))
    for thread, start, length, name in draw(st.lists(calls, max_size=6)):
        _call(b, start, start + length, name, thread=thread)
    begin = 0
    for number, (gap, length) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=4))
    ):
        b.iteration(number, begin + gap, begin + gap + length, ops=1, whole=True)
        begin += gap + length
    for start, length in draw(st.lists(st.tuples(_TIME, st.integers(1, 9)), max_size=2)):
        b.range(start, start + length, "load", stage="IO")
    return b.trace()


@settings(max_examples=examples(5, thorough=200), deadline=None)
@given(_traces())
def test_shares_add_up_to_the_idle_time_of_a_breakdown(trace: Trace) -> None:
    whole = breakdown(trace).meta["idle_ns"]
    for by in KEYS:
        found = idle(trace, by)
        assert found.rows["idle_ns"].sum() == found.meta["idle_ns"] == whole
        if whole:
            assert found.rows["share"].sum() == pytest.approx(1)
    by_device = breakdown(trace, "device").rows.filter(pl.col("idle_ns") > 0)
    assert dict(idle(trace, "device").rows.select("device", "idle_ns").rows()) == dict(
        by_device.select("device", "idle_ns").rows()
    )
    assert idle(trace, longest=1000).rows["idle_ns"].sum() == whole
    number = trace.read("iterations").height
    if number:
        steps = breakdown(trace, "iteration").rows
        lost = steps.with_columns(lost=pl.col("idle_ns") + pl.col("between_steps_ns"))
        answer = idle(trace, "iteration")
        found = answer.rows.select("iteration", "idle_ns").rows()
        told = answer.rows["iteration"].cast(pl.String).fill_null("(no step)")
        assert answer.readable_rows["iteration"].cast(pl.String).to_list() == told.to_list()
        by_step = lost.filter(pl.col("lost") > 0).select("iteration", "lost").rows()
        assert dict(found) == dict(by_step)
    if number > 1:
        skipped = idle(trace, skip=1)
        assert skipped.rows["idle_ns"].sum() == breakdown(trace, skip=1).meta["idle_ns"]


def _naive(trace: Trace) -> Counter[str]:
    """Return the idle time of each cause of traces whose ops all have one device and thread 0."""
    ops = sorted(trace.read("ops").rows(named=True), key=lambda op: (op["start"], op["op"]))
    calls = trace.read("calls").rows(named=True)
    steps = trace.read("iterations").rows(named=True)
    loads = trace.read("ranges").rows(named=True)
    found: Counter[str] = Counter()

    def at(time: int, later: dict[str, Any]) -> str:
        if later["launch_start"] is None:
            return "unexplained"
        if time >= max(later["launch_start"], later["launch_end"]):
            return "launch_latency"
        own = {call["name"] for call in calls if call["start"] <= time < call["end"]}
        for name, cause in zip(_CALLS, ("allocation", "waiting_call", "loading"), strict=False):
            if name in own:
                return cause
        if time >= later["launch_start"]:
            return "launch_latency"
        if any(load["start"] <= time < load["end"] for load in loads):
            return "input"
        inside = any(step["start"] <= time < step["end"] for step in steps)
        return "host_delay" if inside or not steps else "between_steps"

    for time in range(ops[0]["start"], max(op["end"] for op in ops)):
        if not any(op["start"] <= time < op["end"] for op in ops):
            found[at(time, next(op for op in ops if op["start"] > time))] += 1
    return found


@settings(max_examples=examples(20, thorough=600), deadline=None)
@given(_traces())
def test_causes_are_those_of_every_nanosecond(trace: Trace) -> None:
    thread = pl.when(pl.col("launch_thread").is_not_null()).then(0)
    ops = trace.read("ops").with_columns(
        process=0, device=0, launch_thread=thread, stage=pl.lit("FP")
    )
    calls = trace.read("calls").with_columns(process=0, thread=0)
    drains = (calls["name"].cast(pl.String) == "cudaStreamSynchronize").any()
    plain = trace.with_tables({"ops": ops, "calls": calls})
    found = Counter(_causes(plain))
    expected = _naive(plain)
    # What is laid on a wait before the gap has tests of its own.
    credited = found["waiting_call"] - expected["waiting_call"]
    late = ("host_delay", "between_steps", "input")
    assert credited >= 0
    assert sum(found[name] for name in late) + credited == sum(expected[name] for name in late)
    others = set(found) | set(expected)
    for name in others - {*late, "waiting_call"}:
        assert found[name] == expected[name]
    if not drains:
        assert found == expected
