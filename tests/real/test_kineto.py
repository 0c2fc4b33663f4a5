"""Real PyTorch traces: what was counted in their JSON, and shares as others define them."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracekit.analysis import breakdown, step_detail
from tracekit.analysis.communication import collective_calls
from tracekit.engine import union_length
from tracekit.model import Trace
from tracekit.sources import read

DDP = "kineto_ddp_2xa100_rank0.json.gz"
DLRM = "kineto_dlrm_8xv100"
Spans = list[tuple[int, int]]


@pytest.fixture(scope="session")
def real_path(real_trace: Callable[[str], Path]) -> Callable[[str], Path]:
    """Give the path of a PyTorch trace, or a folder of them; skips where it is absent."""

    def find(name: str) -> Path:
        path = real_trace("ddp_unet_4xa100_rank0").with_name(name)
        if not path.exists():
            pytest.skip(f"no {name} in {path.parent}")
        return path

    return find


@pytest.fixture(scope="session")
def ranks(real_path) -> list[Path]:
    return sorted(real_path(DLRM).glob("*.json"))


@pytest.fixture(scope="session")
def ddp(real_run) -> Trace:
    return real_run(DDP).trace


@pytest.fixture(scope="session")
def dlrm(dlrm_run) -> Trace:
    return dlrm_run.trace


def _events(path: Path) -> list[dict[str, Any]]:
    """All events of a file, times as decimals."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return events


def _ns(microseconds: Decimal | int) -> int:
    return int(microseconds * 1000)


def _spans(events: list[dict[str, Any]], *, nccl: bool) -> Spans:
    return [
        (_ns(each["ts"]), _ns(each["ts"]) + _ns(each["dur"]))
        for each in events
        if each.get("cat") == "kernel" and each["name"].startswith("nccl") == nccl
    ]


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _shared(some: Spans, others: Spans) -> int:
    return sum(
        max(0, min(end, last) - max(start, first)) for start, end in some for first, last in others
    )


def _files(ranks: list[Path], real_path: Callable[[str], Path]) -> list[Path]:
    return [real_path(DDP), *ranks]


def test_every_event_of_the_files_is_there_with_its_time(real_path, ranks):
    for path in _files(ranks, real_path):
        events, trace = _events(path), read(path)
        first = min(
            _ns(each["ts"])
            for each in events
            if each["ph"] == "X" and each["cat"] not in ("gpu_user_annotation", "python_function")
        )
        for table, categories in (
            ("ops", ("kernel", "gpu_memcpy", "gpu_memset")),
            ("calls", ("cuda_runtime", "cuda_driver")),
            ("ranges", ("cpu_op", "user_annotation")),
        ):
            expected = Counter(
                (_ns(each["ts"]) - first, _ns(each["ts"]) - first + _ns(each["dur"]))
                for each in events
                if each["ph"] == "X" and each["cat"] in categories
            )
            assert Counter(trace.read(table).select("start", "end").rows()) == expected


def test_sums_by_kernel_and_kind(real_path):
    path = real_path(DDP)
    expected: Counter[str] = Counter()
    for each in _events(path):
        if each.get("cat") == "kernel":
            expected[each["name"]] += _ns(each["dur"])
        elif each.get("cat") in ("gpu_memcpy", "gpu_memset"):
            expected[each["name"].split(" (")[0]] += _ns(each["dur"])
    ops = read(path).read("ops")
    copies = {"h2d": "Memcpy HtoD", "d2h": "Memcpy DtoH", "d2d": "Memcpy DtoD", "memset": "Memset"}
    kind = pl.col("kind").cast(pl.String)
    key = pl.when(kind == "compute").then(pl.col("name").cast(pl.String)).otherwise(
        kind.replace(copies)
    )  # fmt: skip
    sums = ops.group_by(key.alias("key")).agg((pl.col("end") - pl.col("start")).sum())
    assert dict(sums.rows()) == dict(expected)


def test_kernels_are_launched_with_as_many_threads_as_grids_of_blocks_have(real_path, ranks):
    for path in _files(ranks, real_path):
        expected = sum(
            math.prod(event["args"]["grid"]) * math.prod(event["args"]["block"])
            for event in _events(path)
            if event.get("cat") == "kernel"
        )
        ops = read(path).read("ops")
        is_kernel = ops["kind"].cast(pl.String) == "compute"
        assert ops["launch_size"].is_not_null().to_list() == is_kernel.to_list()
        assert ops["launch_size"].sum() == expected > 0


class TestDataParallel:
    def test_three_iterations_of_forward_backward_and_update(self, ddp):
        assert ddp.read("iterations")["name"].to_list() == [
            "ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6",
        ]  # fmt: skip
        table = breakdown(ddp, by=("stage", "iteration")).rows
        stages = {(row["iteration"], row["stage"]) for row in table.to_dicts() if row["ops"]}
        assert {(n, stage) for n in (4, 5, 6) for stage in ("FP", "BP", "WU")} <= stages

    def test_backward_runs_on_the_autograd_thread(self, ddp):
        names = dict(ddp.read("threads").select("thread", "name").rows())
        launched = ddp.read("ops").filter(pl.col("stage") == "BP")["launch_thread"].unique()
        assert {names[thread] for thread in launched.to_list()} >= {"pt_autograd_0"}

    def test_collectives_have_the_sizes_that_their_kernels_were_recorded_with(self, ddp, real_path):
        sizes = {"Float": 4, "Int": 4, "Long": 8, "Byte": 1}
        expected = Counter(
            (args["Collective name"], args["In msg nelems"] * sizes[args["dtype"]])
            for each in _events(real_path(DDP))
            if each.get("cat") == "kernel" and "Collective name" in (args := each["args"])
        )
        rows = collective_calls(ddp)
        names = {"all_reduce": "allreduce", "broadcast": "broadcast"}
        found = Counter((names[row["collective"]], row["message_bytes"]) for row in rows.to_dicts())
        assert sum(count for (name, _), count in found.items() if name == "allreduce") == 15
        assert sum(count for (name, _), count in found.items() if name == "broadcast") == 6
        assert found == expected
        assert rows["communicator"].unique().to_list() == ["pg 0 [0, 1]"]
        assert rows["rank"].unique().to_list() == [0]
        ops = ddp.read("ops").filter(pl.col("kind") == "collective")
        shown = step_detail.details(ddp, ops)["bytes"]
        assert sorted(shown) == sorted(rows["message_bytes"])

    def test_every_op_has_its_launch(self, ddp):
        ops = ddp.read("ops")
        assert ops["call"].null_count() == 0
        assert (ops["launch_start"] <= ops["start"]).all()


class TestEightRanks:
    def test_send_recv_and_all_reduce_of_every_rank(self, dlrm):
        kernels = collective_calls(dlrm).with_columns(
            kernel=pl.col("name").str.extract("(SendRecv|AllReduce)")
        )
        counts = kernels.group_by("report", "kernel").len().sort("report", "kernel").rows()
        assert counts == [
            (rank, name, count)
            for rank in range(8)
            for name, count in (("AllReduce", 3), ("SendRecv", 5))
        ]

    def test_every_rank_has_a_gpu_of_its_own(self, dlrm):
        devices = dlrm.read("devices")
        assert devices.select("device", "active", "identity").rows() == [
            (device, True, "ordinal") for device in range(8)
        ]
        used = dlrm.read("ops").select("report", "device").unique().sort("report").rows()
        assert used == [(rank, rank) for rank in range(8)]

    def test_times_of_all_ranks_are_of_one_session(self, dlrm):
        starts = dlrm.read("reports")["session_start"]
        spread = pl.select(starts.max() - starts.min()).item()
        assert 0 <= spread < 100_000_000


def test_shares_are_those_that_holistic_trace_analysis_defines(real_path, ranks):
    """Computation and communication against the time of kernels, overlap against communication.

    HolisticTraceAnalysis (Breakdown.get_comm_comp_overlap) takes kernels only, merges those whose
    name begins with `nccl` and the others, and divides what both cover by the former.
    """
    for path in _files(ranks, real_path):
        events, ops = _events(path), read(path).read("ops")
        computing, communicating = (_merged(_spans(events, nccl=nccl)) for nccl in (False, True))
        communication = sum(end - start for start, end in communicating)
        overlap = _shared(computing, communicating)
        assert communication > 0
        kernels = ops.filter(pl.col("kind") == "compute")
        is_nccl = pl.col("name").cast(pl.String).str.starts_with("nccl")
        lengths = [
            union_length(kernels.filter(which), by=[]).item()
            for which in (~is_nccl, is_nccl, pl.lit(value=True))
        ]
        compute_ours, communication_ours, both = lengths
        assert communication_ours == communication
        assert compute_ours == sum(end - start for start, end in computing)
        assert compute_ours + communication_ours - both == overlap


# What HolisticTraceAnalysis 0.5.0 prints for these files: by rank overlap, then idle, compute and
# other busy time (us) and all of it.
HTA_DLRM = [
    (4.50, 6419, 1034, 5556, 13009), (2.47, 6428, 1246, 11075, 18749),
    (7.88, 7046, 1068, 3236, 11350), (3.31, 8145, 1240, 9468, 18853),
    (0.56, 8887, 1126, 6576, 16589), (0.64, 9121, 1041, 6230, 16392),
    (7.56, 7051, 1051, 3308, 11410), (9.51, 8308, 1059, 1600, 10967),
]  # fmt: skip
HTA_DDP = (14.31, 338781, 75169, 21636, 435586)


def _shares(ops: pl.DataFrame) -> tuple[float, int, int, int, int]:
    """Overlap in percent of communication; idle, compute, other busy time and all, in us."""
    kernels = ops.filter(pl.col("kind").cast(pl.String).is_in(["compute", "collective"]))
    is_nccl = pl.col("name").cast(pl.String).str.starts_with("nccl")

    def busy(some: pl.DataFrame) -> int:
        return union_length(some, by=[]).item()

    compute, communication = busy(kernels.filter(~is_nccl)), busy(kernels.filter(is_nccl))
    overlap = compute + communication - busy(kernels)
    window = pl.select(ops["end"].max() - ops["start"].min()).item()
    idle, other = window - busy(ops), busy(ops) - compute
    return (
        round(100 * overlap / communication, 2),
        *(each // 1000 for each in (idle, compute, other, window)),
    )  # fmt: skip


def test_shares_of_ranks_are_those_that_holistic_trace_analysis_prints(ranks):
    assert [_shares(read(path).read("ops")) for path in ranks] == HTA_DLRM


def test_its_shares_of_a_newer_trace_differ_by_rounding_and_the_last_step(ddp):
    """It rounds starts up and ends down to whole microseconds, and leaves the last step out."""
    ops = ddp.read("ops").filter(pl.col("iteration") < 6)
    origin = ddp.read("reports")["session_start"].item()
    rounded = ops.with_columns(
        start=-(-(pl.col("start") + origin) // 1000) * 1000,
        end=(pl.col("end") + origin) // 1000 * 1000,
    )
    assert _shares(rounded) == HTA_DDP
    assert _shares(ops) == (14.76, 336419, 76935, 22232, 435587)


_HTA = """
import json, sys, tempfile
from pathlib import Path
from hta.trace_analysis import TraceAnalysis

with tempfile.TemporaryDirectory() as folder:
    for path in map(Path, sys.argv[1:]):
        Path(folder, path.name).symlink_to(path)
    traces = TraceAnalysis(trace_dir=folder)
    overlap = traces.get_comm_comp_overlap(visualize=False)
    times = traces.get_temporal_breakdown(visualize=False)
table = times.merge(overlap, on="rank").sort_values("rank")
columns = ["comp_comm_overlap_pctg", "idle_time(us)", "compute_time(us)", "non_compute_time(us)",
           "kernel_time(us)"]
print(json.dumps(table[columns].values.tolist()))
"""
"""Prints what HolisticTraceAnalysis says of traces, as `HTA_DLRM` has it."""


def _by_hta(*paths: Path) -> list[tuple[float, ...]]:
    """Ask the HolisticTraceAnalysis that is installed, in a process of its own."""
    if importlib.util.find_spec("hta") is None:
        pytest.skip("no HolisticTraceAnalysis: pip install 'tracekit[hta]'")
    done = subprocess.run(
        [sys.executable, "-c", _HTA, *map(str, paths)], capture_output=True, text=True, check=True
    )
    return [tuple(row) for row in json.loads(done.stdout.splitlines()[-1])]


def test_holistic_trace_analysis_prints_that_here(ranks, real_path):
    assert _by_hta(*ranks) == HTA_DLRM
    assert _by_hta(real_path(DDP)) == [HTA_DDP]


def test_flow_events_repeat_what_arguments_say(ranks, real_path):
    """Why they are not read: they would give no op a call or a forward operator that it lacks."""
    pairs = 0
    for path in _files(ranks, real_path):
        events = _events(path)
        flows = [event for event in events if event.get("cat") in ("ac2g", "fwdbwd")]
        called = {
            event["args"].get("correlation")
            for event in events
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
        }
        assert {
            each["id"] for each in flows if each["cat"] == "ac2g" and each["ph"] == "s"
        } <= called
        numbers = {
            _place(event): event["args"].get("Sequence number")
            for event in events
            if event.get("cat") == "cpu_op" and "args" in event
        }
        ends: dict[Any, set[Any]] = {}
        for each in flows:
            if each["cat"] == "fwdbwd":
                ends.setdefault(each["id"], set()).add(numbers[_place(each)])
        assert all(len(told) == 1 and None not in told for told in ends.values())
        pairs += len(ends)
    assert pairs == 543


def _place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["pid"], event["tid"], event["ts"]
