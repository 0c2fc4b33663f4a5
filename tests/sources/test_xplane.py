"""Profiles of XLA: streams, launches, operators and steps, of messages made byte by byte."""

from __future__ import annotations

import importlib.util
import os
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from source_helpers import column, rows
from xplane_builder import block, number, plane

from tracekit.attribution import Rules, attribute
from tracekit.errors import DamagedTraceError
from tracekit.sources import read
from tracekit.sources.xplane._profile import planes

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces" / "jax"

KERNEL = {"correlation_id": 5, "kernel_details": " grid:4,2,1 block:64,1,1 occ_pct:0"}
COPY = {"correlation_id": 6, "memcpy_details": "kind:Unknown size:4096 dest:2 async:1"}


@pytest.fixture
def profile(tmp_path):
    gpu = plane("/device:GPU:3", ("Stream #9(Kernel)", 1000, [
        ("fusion.kd", 500_400, 20_000, KERNEL), ("CopyDeviceToDevice", 600_000, 10_000, COPY)]),
        ("XLA Modules", 1000, [("derived", 0, 900_000, {})]))  # fmt: skip
    calls = [("hipLaunchKernel", 100_000, 9_000,
              {"correlation_id": 5, "name": "jit(f)/transpose(jvp(g))/dot_general"}),
             ("hipMemcpyDtoDAsync", 200_000, 9_000, {"correlation_id": 6})]  # fmt: skip
    python = [("PjitFunction(f)", 50_000, 300_000, {}), ("PjitFunction(f)", 60_000, 200_000, {}),
              ("$train.py:3 step", 0, 9, {})]  # fmt: skip
    host = plane("/host:CPU", ("Host Threads/77", 1000, calls), ("python3", 1000, python))
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(gpu + host + block(4, "juniper"))
    return path


def test_streams_are_of_gpus_and_derived_lines_are_not(profile):
    told = ("start", "end", "name", "kind", "device", "stream", "bytes", "launch_size")
    assert rows(read(profile), "ops", *told) == [
        (450, 470, "fusion", "compute", 3, 9, None, 512),
        (550, 560, "[CUDA memcpy DtoD]", "d2d", 3, 9, 4096, None),
    ]


def test_copies_that_may_go_to_another_gpu_are_told(profile):
    told = "1 copies count as copies within a GPU: AMD's profiles do not name another one"
    assert told not in read(profile).warnings  # a single GPU
    profile.write_bytes(profile.read_bytes() + plane("/device:GPU:4"))
    assert told in read(profile).warnings


def test_nvidias_copies_between_gpus_have_both_ends_and_allocations_are_no_work(tmp_path):
    """CUPTI's numbers of GPUs; an allocation lasts until its release."""
    details = "kind_src:device kind_dst:device size:4096 dest:{} async:1"
    events = [
        ("MemcpyP2P", 0, 9_000, {"memcpy_details": details.format(0)}),
        ("MemcpyD2D", 20_000, 9_000, {"memcpy_details": details.format(1)}),
        ("Memory Device", 0, 900_000, {"memory_residency_details": "kind:device num_bytes:64"}),
    ]
    path = tmp_path / "host.xplane.pb"
    gpu = plane("/device:GPU:1", ("Stream #9(MemcpyP2P,MemcpyD2D,MemoryResidency)", 1000, events))
    path.write_bytes(plane("/device:GPU:0") + gpu)
    trace = read(path)
    assert rows(trace, "ops", "kind", "device", "src_device", "dst_device", "bytes") == [
        ("p2p", 1, 1, 0, 4096), ("d2d", 1, 1, 1, 4096),
    ]  # fmt: skip
    assert "1 allocations of memory are not read" in trace.warnings


def test_launches_operators_and_steps_are_on_the_thread_that_launches(profile):
    trace = read(profile)
    assert rows(trace, "calls", "name", "correlation", "start") == [
        ("hipLaunchKernel", 5, 50), ("hipMemcpyDtoDAsync", 6, 150),
    ]  # fmt: skip
    on_line = trace.read("ranges").filter(thread=column(trace, "calls", "thread")[0])
    assert on_line.select("name", "start", "end").rows() == [
        ("step 0", 0, 300),
        ("jit(f)/transpose(jvp(g))/dot_general", 50, 59),
    ]
    assert column(trace, "reports", "host") == ["juniper"]


def test_tpus_are_told(tmp_path):
    path = tmp_path / "t.xplane.pb"
    tpu = plane("/device:TPU:0", ("XLA Ops", 1000, [("fusion", 0, 9_000, {})]))
    path.write_bytes(tpu + plane("/host:CPU", ("python3", 1000, [("f", 0, 9_000, {})])))
    assert "1 devices are TPUs, which are not read" in read(path).warnings


def test_one_that_is_cut_is_refused(profile):
    content = profile.read_bytes()
    for kept in (80, 200, len(content) - 3):
        profile.write_bytes(content[:kept])
        with pytest.raises(DamagedTraceError, match=r"host\.xplane\.pb is cut short"):
            read(profile)


def test_a_stat_of_another_kind_is_not_known(profile):
    """A fraction for a whole number, as damaged files have it, is no place in the file."""
    fraction = block(4, number(1, 1) + bytes([2 << 3 | 1]) + bytes(8))
    event = number(1, 1) + number(2, 0) + number(3, 9_000) + fraction
    names = block(4, number(1, 1) + block(2, number(1, 1) + block(2, "k")))
    stats = block(5, number(1, 1) + block(2, number(1, 1) + block(2, "correlation_id")))
    line = block(3, block(2, "Stream #9(Kernel)") + block(4, event))
    profile.write_bytes(block(1, block(2, "/device:GPU:0") + line + names + stats))
    assert rows(read(profile), "ops", "end", "correlation") == [(9, None)]


RECORDED = [SAMPLES / f"steps_{version}.xplane.pb" for version in ("0_4_38", "0_10_2")]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_annotated_steps_of_real_programs_are_iterations(path):
    """A program of JAX on a CPU, whose steps 5 to 8 are annotated as `loss`."""
    trace = attribute(read(path), Rules.load(None, None))
    steps = trace.read("iterations")
    assert steps["iteration"].to_list() == [5, 6, 7, 8]
    ranges = trace.read("ranges")
    inside = ranges.filter(pl.col("name") == "PjitFunction(train_step)", pl.col("depth") == 1)
    begins = steps.join_where(
        inside.select("start", "end"),
        pl.col("start") <= pl.col("start_right"), pl.col("end_right") <= pl.col("end"),
    )  # fmt: skip
    assert sorted(begins["iteration"]) == [5, 6, 7, 8]


def _published() -> list[Path]:
    folder = os.environ.get("TRACEKIT_REAL_TRACES")
    return sorted(Path(folder, "new_formats", "xplane").glob("*.pb")) if folder else []


@pytest.mark.nightly
@pytest.mark.parametrize("path", [*RECORDED, *_published()], ids=lambda path: path.name)
def test_events_are_those_of_jaxlibs_own_reader(path):
    """Of each line, its events by name, start and duration, to the ns."""
    if importlib.util.find_spec("jaxlib") is None:
        pytest.skip("no jaxlib: pip install 'tracekit[jax]'")
    from jaxlib._profile_data import ProfileData

    theirs = {
        (each.name, line.name): Counter(
            (event.name, round(event.start_ns), round(event.duration_ns)) for event in line.events
        )
        for each in ProfileData.from_file(str(path)).planes
        for line in each.lines
    }
    ours: dict[tuple[str, str], Counter[tuple[str, int, int]]] = {}
    for _, each in planes(path):
        for line in each.lines() if not isinstance(each, str) else ():
            events = each.events(line).select(
                "name", line.timestamp + rounded("offset"), rounded("duration")
            )
            ours[each.name, line.name] = Counter(events.rows())
    assert theirs
    assert ours == theirs


def rounded(picoseconds: str) -> pl.Expr:
    return (pl.col(picoseconds) / 1000).round(mode="half_to_even").cast(pl.Int64)


@pytest.mark.nightly
def test_a_million_ops_take_six_seconds_of_a_processor(tmp_path):
    count, repeat = 10_000, 100
    kernels = [(f"fusion_{n % 200}", 20_000 * n, 10_000, {**KERNEL, "correlation_id": n})
               for n in range(count)]  # fmt: skip
    calls = [("hipLaunchKernel", 20_000 * n, 5_000, {"correlation_id": n}) for n in range(count)]
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(
        plane("/device:GPU:0", ("Stream #9(Kernel)", 1000, kernels), repeat=repeat)
        + plane("/host:CPU", ("Host Threads/77", 500, calls), repeat=repeat)
    )
    before = time.process_time()
    trace = read(path)
    assert time.process_time() - before < 6
    assert (trace.read("ops").height, trace.read("calls").height) == (repeat * count,) * 2
