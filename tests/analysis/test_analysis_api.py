"""Calls of the CUDA API, and the profiler's own time."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.studies import api_by_run, api_calls, profiler_overhead
from tracekit.errors import MissingDataError
from tracekit.model import Trace

MS = 1_000_000


def _trace(*calls: tuple[str, int, int, int]) -> Trace:
    """Return a trace of calls: name, start, end, thread."""
    builder = TraceBuilder()
    for number, (name, start, end, thread) in enumerate(calls):
        builder.call(start, end, thread=thread, correlation=number)
        builder.rows["calls"][-1]["name"] = name
    return builder.trace()


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col("share", "wall_share").round(12))


def _shares() -> Trace:
    """Return 1000 ms of calls, one after the other."""
    return _trace(
        ("cudaStreamSynchronize", 0, 400 * MS, 0),
        ("cudaLaunchKernel", 400 * MS, 570 * MS, 0),
        ("cudaLaunchKernel", 570 * MS, 600 * MS, 0),
        ("cudaLaunchKernel", 600 * MS, 650 * MS, 0),
        ("cudaMemcpyPeerAsync", 650 * MS, 750 * MS, 0),
        ("cudaEventRecord", 750 * MS, 800 * MS, 0),
        ("cudaStreamSynchronize", 800 * MS, 900 * MS, 0),
        ("cudaStreamSynchronize", 900 * MS, 1000 * MS, 0),
    )


def test_shares_of_calls() -> None:
    found = _rounded(api_calls(_shares()))
    assert found.columns == [
        "name", "calls", "total_ns", "mean_ns", "min_ns", "p50_ns", "max_ns", "share", "busy_ns",
        "wall_share",
    ]  # fmt: skip
    assert found.rows() == [
        ("cudaStreamSynchronize", 3, 600 * MS, 200 * MS, 100 * MS, 100 * MS, 400 * MS, 0.6,
         600 * MS, 0.6),
        ("cudaLaunchKernel", 3, 250 * MS, 250 * MS / 3, 30 * MS, 50 * MS, 170 * MS, 0.25,
         250 * MS, 0.25),
        ("cudaMemcpyPeerAsync", 1, 100 * MS, 100 * MS, 100 * MS, 100 * MS, 100 * MS, 0.1,
         100 * MS, 0.1),
        ("cudaEventRecord", 1, 50 * MS, 50 * MS, 50 * MS, 50 * MS, 50 * MS, 0.05, 50 * MS, 0.05),
    ]  # fmt: skip


def test_wall_time_is_each_threads_own() -> None:
    # Thread 0 calls from 0 to 100, thread 1 from 50 to 150.
    trace = _trace(
        ("cudaMalloc", 0, 10, 0), ("cudaFree", 90, 100, 0), ("cudaMalloc", 50, 60, 1),
        ("cudaFree", 120, 150, 1),
    )  # fmt: skip
    assert api_calls(trace).select("name", "total_ns", "wall_share").rows() == [
        ("cudaFree", 40, 0.2), ("cudaMalloc", 20, 0.1),
    ]  # fmt: skip


def test_waiting_on_several_threads_is_no_more_than_all_of_their_time() -> None:
    trace = _trace(*(("cudaStreamSynchronize", 0, 100, thread) for thread in range(4)))
    found = api_calls(trace)
    assert found.select("total_ns", "busy_ns", "wall_share").rows() == [(400, 400, 1.0)]


def test_a_call_within_a_call_takes_no_time_of_its_own() -> None:
    trace = _trace(
        ("cudaLaunchKernel", 0, 100, 0), ("cuLaunchKernel", 10, 90, 0),
        ("cudaLaunchKernel", 100, 200, 0),
    )  # fmt: skip
    assert api_calls(trace).select("name", "total_ns", "busy_ns", "wall_share").rows() == [
        ("cudaLaunchKernel", 200, 200, 1.0), ("cuLaunchKernel", 80, 80, 0.4),
    ]  # fmt: skip


def test_a_call_of_the_same_function_within_itself_is_busy_once() -> None:
    trace = _trace(("cudaFree", 0, 100, 0), ("cudaFree", 20, 50, 0))
    assert api_calls(trace).select("total_ns", "busy_ns").rows() == [(130, 100)]


def test_calls_without_length() -> None:
    found = api_calls(_trace(("cudaFree", 5, 5, 0)))
    assert found.select("total_ns", "share", "wall_share").rows() == [(0, None, None)]


def test_a_run_without_calls() -> None:
    builder = TraceBuilder()
    builder.op("kernel", start=0, end=1)
    with pytest.raises(MissingDataError, match="no API calls: record with"):
        api_calls(builder.trace())


_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["cudaFree", "cudaMalloc", "cuInit"]), st.integers(0, 60),
        st.integers(0, 30), st.sampled_from([0, 1, 10]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(_CALLS)
def test_against_counting_each_nanosecond(spans: list[tuple[str, int, int, int]]) -> None:
    calls = [(name, start, start + length, thread) for name, start, length, thread in spans]
    found = api_calls(_trace(*calls))
    walls: dict[int, list[int]] = {}
    for _, start, end, thread in calls:
        walls.setdefault(thread, []).extend((start, end))
    wall = sum(max(times) - min(times) for times in walls.values())
    for row in found.iter_rows(named=True):
        own = [call for call in calls if call[0] == row["name"]]
        ticks = {(thread, t) for _, start, end, thread in own for t in range(start, end)}
        assert row["calls"] == len(own)
        assert row["total_ns"] == sum(end - start for _, start, end, _ in own)
        assert row["busy_ns"] == len(ticks)
        assert row["wall_share"] == (pytest.approx(len(ticks) / wall) if wall else None)
    if found["total_ns"].sum():
        assert found["share"].sum() == pytest.approx(1)


# Several runs.


def test_runs_beside_each_other() -> None:
    one = api_calls(_trace(("cudaFree", 0, 30, 0), ("cudaMalloc", 30, 100, 0)))
    two = api_calls(_trace(("cudaFree", 0, 90, 0), ("cuInit", 90, 100, 0)))
    tables = {"p": two, "n": one, "x": None}
    found = _rounded(api_by_run(tables, {"n": "nccl", "p": "p2p"}))
    assert found.select("name", "run", "method", "calls", "total_ns", "share", "max_ns").rows() == [
        ("cudaFree", "p", "p2p", 1, 90, 0.9, 90),
        ("cudaFree", "n", "nccl", 1, 30, 0.3, 30),
        ("cudaFree", "x", None, None, None, None, None),
        ("cudaMalloc", "p", "p2p", 0, 0, 0.0, None),
        ("cudaMalloc", "n", "nccl", 1, 70, 0.7, 70),
        ("cudaMalloc", "x", None, None, None, None, None),
        ("cuInit", "p", "p2p", 1, 10, 0.1, 10),
        ("cuInit", "n", "nccl", 0, 0, 0.0, None),
        ("cuInit", "x", None, None, None, None, None),
    ]
    sums = found.group_by("run").agg(pl.col("share").sum()).sort("run")
    assert sums["share"].to_list() == pytest.approx([1.0, 1.0, 0.0])


def test_runs_none_of_which_holds_calls() -> None:
    for tables in ({}, {"a": None}):
        with pytest.raises(MissingDataError, match="none of the runs has calls of CUDA or HIP"):
            api_by_run(tables)


# The profiler.


def _with_overhead(trace: Trace, *rows: tuple[str, int, int, int]) -> Trace:
    host = [
        {
            "report": report, "process": 0, "thread": 0, "start": start, "end": end, "name": name,
            "library": "profiler", "group": "overhead",
        }
        for name, start, end, report in rows
    ]  # fmt: skip
    mpi = {**host[0], "library": "mpi", "name": "MPI_Barrier", "group": "collective", "end": 10**9}
    return trace.with_tables({"host": pl.DataFrame([*host, mpi])})


def test_what_the_profiler_took() -> None:
    trace = _with_overhead(
        _trace(("cudaFree", 0, 100, 0)),
        ("flush", 10, 30, 0), ("flush", 20, 40, 0), ("start", 120, 200, 0), ("start", 35, 45, 0),
    )  # fmt: skip
    found = profiler_overhead(trace)
    assert found.columns == ["name", "times", "total_ns", "busy_ns", "share"]
    assert found.rows() == [
        ("start", 2, 90, 90, 0.45), ("flush", 2, 40, 30, 0.15), ("all", 4, 130, 115, 0.575),
    ]  # fmt: skip


def test_reports_have_windows_of_their_own() -> None:
    trace = _with_overhead(
        _trace(("cudaFree", 0, 100, 0)), ("flush", 50, 60, 0), ("flush", 10**9, 10**9 + 50, 1)
    )
    assert profiler_overhead(trace).rows() == [
        ("flush", 2, 60, 60, 0.4), ("all", 2, 60, 60, 0.4),
    ]  # fmt: skip


def test_without_recorded_overhead() -> None:
    found = profiler_overhead(_shares())
    assert found.is_empty()
    assert found.columns == ["name", "times", "total_ns", "busy_ns", "share"]


def test_the_window_is_from_the_first_to_the_last_of_all_that_was_recorded() -> None:
    calls = _trace(("a", 100, 110, 0), ("b", 300, 310, 0))
    (row, _) = profiler_overhead(_with_overhead(calls, ("flush", 200, 210, 0))).rows()
    assert row == ("flush", 1, 10, 10, 10 / 210)
