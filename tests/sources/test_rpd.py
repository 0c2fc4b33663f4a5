"""RPDs of rocmProfileData: ops, the calls that launch them, and markers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from amd_builder import RpdBuilder
from source_helpers import column, execute, rows

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.model import Trace
from tracekit.sources import read


@pytest.fixture
def rpd(tmp_path: Path) -> RpdBuilder:
    return RpdBuilder(tmp_path / "t.rpd")


def _read(rpd: RpdBuilder) -> Trace:
    with rpd:
        pass
    return read(rpd.path)


def test_ops_have_the_call_that_launched_them(rpd):
    rpd.kernel(100, 150, "void gemm<float>(int)")
    rpd.copy(200, 260, "CopyHostToDevice", 4096)
    trace = _read(rpd)
    assert rows(trace, "ops", "start", "end", "short_name", "kind", "bytes", "stream") == [
        (5, 55, "gemm", "compute", None, 0),
        (105, 165, "[CUDA memcpy HtoD]", "h2d", 4096, 31),
    ]
    assert column(trace, "ops", "correlation") == column(trace, "calls", "correlation")
    assert column(trace, "calls", "name") == ["hipLaunchKernel", "hipMemcpyAsync"]
    assert rows(trace, "processes", "pid") == [(7,)]
    assert rows(trace, "threads", "tid") == [(8,)]


@pytest.mark.parametrize(
    ("function", "size"), [("hipLaunchKernel", 512), ("hipExtModuleLaunchKernel", 8)]
)
def test_a_grid_counts_blocks_or_threads_by_the_function(rpd, function, size):
    rpd.kernel(100, 150, "k", function=function)
    assert column(_read(rpd), "ops", "launch_size") == [size]


def test_graphs_launch_several_ops_whose_copies_have_no_size(rpd):
    call = rpd.call(10, 20, "hipGraphLaunch")
    rpd.op(30, 40, "Task", "k", call)
    rpd.op(40, 45, "CopyDeviceToDevice", "", call)
    trace = _read(rpd)
    assert rows(trace, "ops", "kind", "bytes") == [("compute", None), ("d2d", None)]
    assert len(set(column(trace, "ops", "correlation"))) == 1


def test_the_bytes_of_a_call_with_several_copies_are_of_none(rpd):
    rpd.copy(100, 110, "CopyDeviceToHost", 64, ops=2)
    assert column(_read(rpd), "ops", "bytes") == [None, None]


def test_ends_of_copies_between_gpus_are_not_known(rpd):
    rpd.copy(100, 110, "CopyDeviceToDevice", 64, devices=(0, 3))
    rpd.copy(200, 210, "CopyDeviceToDevice", 64)
    trace = _read(rpd)
    told = rows(trace, "ops", "kind", "src_device", "dst_device")
    assert told == [("p2p", None, None), ("d2d", 2, 2)]
    assert "1 copies between GPUs lack their source or target" in trace.warnings


def test_kernels_of_the_driver_copy_and_fill(rpd):
    rpd.kernel(10, 20, "__amd_rocclr_copyBuffer.kd")
    rpd.kernel(30, 40, "__amd_rocclr_fillBufferAligned")
    rpd.op(50, 60, "FillBuffer")
    assert column(_read(rpd), "ops", "kind") == ["unknown", "memset", "memset"]


def test_markers_and_operators_are_ranges_and_the_tracer_is_not(rpd):
    rpd.marker(0, 100, "step 1")
    rpd.marker(10, 90, "aten::mm", sequence=12)
    rpd.marker(12, 20, "aten::view", sequence="")
    rpd.call(30, 40, "OpTable::writeRows", "count=4096")
    rpd.call(50, 60, "evaluate", "batch 3")
    trace = _read(rpd)
    assert rows(trace, "ranges", "name", "payload") == [
        ("step 1", None), ("aten::mm, seq = 12", None), ("aten::view", None),
        ("evaluate", "batch 3"),
    ]  # fmt: skip
    assert trace.read("calls").is_empty()
    assert not [each for each in trace.warnings if "seq" in each]


def test_barriers_and_ops_without_times_are_counted(rpd):
    rpd.kernel(10, 20, "k")
    rpd.op(30, 40, "Barrier")
    rpd.op(60, 50, "KernelExecution", "k")
    rpd.op(60, 70, "KernelExecution", "k", gpu=None)
    trace = _read(rpd)
    assert trace.read("ops").height == 1
    assert {each.split(" ", 1)[1].split(" and")[0] for each in trace.warnings[1:]} == {
        "barriers were left out: they do no GPU work", "GPU ops have no valid times",
        "GPU ops have no device or process",
    }  # fmt: skip


def test_each_process_has_its_ops(rpd):
    for pid, start in ((7, 10), (9, 40)):
        call = rpd.call(start, start + 5, "hipLaunchKernel", pid=pid, tid=pid)
        rpd.op(start + 6, start + 9, name="k", call=call)
    assert rows(_read(rpd), "ops", "process") == [(0,), (1,)]


def test_a_packed_one_is_the_same(rpd, tmp_path):
    rpd.kernel(100, 150, "k")
    wanted = _read(rpd)
    packed = tmp_path / "t.rpd.gz"
    packed.write_bytes(gzip.compress(rpd.path.read_bytes()))
    trace = read(packed)
    assert trace.read("ops").equals(wanted.read("ops"))
    assert rows(trace, "reports", "file", "format") == [("t.rpd.gz", "RPD SQLite")]
    packed.write_bytes(packed.read_bytes()[:-300])
    with pytest.raises(DamagedTraceError, match=r"t\.rpd\.gz"):
        read(packed)


def test_one_of_a_program_without_gpu_work_says_what_it_holds(rpd):
    rpd.call(0, 5, "hipGetDeviceCount")
    with pytest.raises(MissingDataError, match=r"no GPU work and no markers .* 1 HIP calls"):
        _read(rpd)


def test_numbers_of_calls_without_a_table_of_links(rpd):
    rpd.kernel(100, 150, "k")
    rpd.__exit__()
    execute(rpd.path, "DROP TABLE rocpd_api_ops")
    trace = read(rpd.path)
    assert column(trace, "ops", "correlation") == [None]
    assert [each for each in trace.warnings if "GPU ops have no call" in each]
