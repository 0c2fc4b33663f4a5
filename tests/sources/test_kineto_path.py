"""The critical path of a small PyTorch trace, beside what HolisticTraceAnalysis says of it.

Both can say it where the profiler recorded what waits for what (`enable_cuda_sync_events`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kineto_helpers import Event, event, kernel, launch, text_of, write

import tracekit as tk

US = 1000
# The parts of the path that HolisticTraceAnalysis 0.5.0 finds in this trace, in us.
HTA = {"cpu_bound": 120, "gpu_communication_bound": 300, "gpu_compute_bound": 434,
       "gpu_kernel_launch_overhead": 26}  # fmt: skip


def _operator(name: str, ts: int, dur: int, number: int) -> Event:
    return event("cpu_op", name, ts, dur, External_id=number)


def _launched(
    at: int, name: str, start: int, dur: int, number: int, stream: int = 7
) -> list[Event]:
    """An operator of 20 us, the call of 8 us in it, and what that launches."""
    op = kernel(name, start, dur, number, stream=stream, External_id=number)
    return [
        _operator(f"aten::{name}", at - 5, 20, number),
        launch(at, 8, number, External_id=number),
        {**op, "tid": stream},
    ]


def _sync(name: str, ts: int, dur: int, number: int, stream: int, **more: int) -> Event:
    found = event("cuda_sync", name, ts, dur, pid=0, tid=stream, device=0, context=1,
                  stream=stream, correlation=number)  # fmt: skip
    found["args"].update(more)
    return found


def _called(name: str, ts: int, dur: int, number: int) -> Event:
    return event("cuda_runtime", name, ts, dur, correlation=number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A step of which an all-reduce waits for a kernel, the host for it, and a kernel for that.

    ::

        host  |mm|  |all_reduce| |relu| |---- cudaDeviceSynchronize ----| optimizer |add|
        7          |-- gemm 20 to 420 --||- relu 423 to 473 -|                         |- adam -|
        20                               |-- all-reduce 424 to 724 --|           866 to 900
    """
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 1000, External_id=903),
        *_launched(10, "gemm", 20, 400, 1),
        _called("cudaEventRecord", 30, 3, 2),
        _called("cudaStreamWaitEvent", 36, 3, 3),
        _sync("Stream Wait Event", 36, 3, 3, 20, wait_on_stream=7,
              wait_on_cuda_event_record_corr_id=2, wait_on_cuda_event_id=1),
        *_launched(50, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 424, 300, 4, stream=20),
        *_launched(80, "relu", 423, 50, 5),
        _operator("aten::item", 105, 630, 77),
        _called("cudaDeviceSynchronize", 110, 620, 6),
        _sync("Context Sync", 110, 620, 6, -1),
        _operator("optimizer", 740, 130, 78),
        *_launched(850, "adam", 866, 34, 7),
    ]  # fmt: skip
    around = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}
    return write(tmp_path / "t.json", text_of(*events, **around))


def test_the_path_is_the_one_that_holistic_trace_analysis_finds(path: Path) -> None:
    run = tk.ingest(path, store=path.parent / "store")[0]
    found = run.critical_path.answer()
    told = dict(found.rows.select("cause", "path_ns").rows())
    assert told["host"] == HTA["cpu_bound"] * US
    assert told["comm"] == HTA["gpu_communication_bound"] * US
    assert told["gpu"] == HTA["gpu_compute_bound"] * US
    # The step begins with its first op, 10 us after that was launched; the launch of the last one
    # takes 16 us. To wait takes time here: 4 us from kernel to kernel, 6 us until the call returns.
    waits = told["latency"] + told["unexplained"]
    assert waits == (HTA["gpu_kernel_launch_overhead"] - 10 + 4 + 6) * US
    assert sum(told.values()) == found.meta["steps_ns"] == (900 - 20) * US
    names = run.critical_path("kernel")["name"].drop_nulls()
    assert sorted(names) == ["adam", "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]


_SCRIPT = """
import json, sys
from hta.trace_analysis import TraceAnalysis

traces = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
graph, _ = traces.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
parts = graph.get_critical_path_breakdown().groupby("bound_by").duration.sum()
print(json.dumps({name: int(length) for name, length in parts.items() if name}))
"""


def test_holistic_trace_analysis_says_that_here(path: Path) -> None:
    if importlib.util.find_spec("hta") is None:
        pytest.skip("no HolisticTraceAnalysis: pip install 'tracekit[hta]'")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == HTA
