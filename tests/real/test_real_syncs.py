"""Waits of the real traces: what they name tells what the call that waits is called."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tracekit.sources import read

CALLS = {
    "cudaEventSynchronize": "event",
    "cudaEventQuery": "event",
    "cudaStreamWaitEvent": "stream_wait_event",
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "context",
}
NAMES = (
    "ddp_unet_4xa100_rank0", "jacobi_p2p_nvlink_8xv100", "mnist_1xa100_phases",
    "sendrecv_2xh100_two_processes", "transformer_rtx3070ti", "lm_pyprof_nvprof",
)  # fmt: skip


def _counts(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        there = {row[0] for row in file.execute("SELECT name FROM sqlite_master")}
        tables = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("SYNCHRONIZATION", "CUDA_EVENT"))
        waits, records = (
            file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if table in there else 0
            for table in tables
        )
    return waits, records


@pytest.mark.parametrize("name", NAMES)
def test_waits_are_of_the_type_that_their_calls_are_named_for(
    real_trace: Callable[[str], Path], name: str
) -> None:
    path = real_trace(name)
    trace = read(path)
    waits, calls = trace.read("syncs"), trace.read("calls")
    records = trace.read("event_records")
    assert (waits.height, records.height) == _counts(path)
    key = ["process", "correlation"]
    both = waits.join(calls, on=key, suffix="_call")
    assert both.height >= waits.height - 1  # one lies before all calls of its trace
    of_call = both["name"].cast(pl.String).replace_strict(CALLS, default=None)
    assert of_call.null_count() == 0
    assert (of_call == both["type"].cast(pl.String)).all()
    inside = (both["start"] >= both["start_call"]) & (both["end"] <= both["end_call"])
    assert inside.all()
    by = records.join(calls, on=key)
    assert by.height == records.height
    assert set(by["name"].cast(pl.String)) <= {"cudaEventRecord"}


def test_streams_wait_for_events_that_were_recorded_before(
    real_trace: Callable[[str], Path],
) -> None:
    trace = read(real_trace("ddp_unet_4xa100_rank0"))
    waits = trace.read("syncs").filter(pl.col("type") == "stream_wait_event")
    assert waits.height == 2124
    assert waits["recorded_by"].null_count() == 2124  # only newer exports say that
    events = trace.read("event_records").group_by("event").agg(first=pl.col("correlation").min())
    known = waits.join(events, on="event")
    assert known.height == 2124
    assert (known["first"] < known["correlation"]).all()
