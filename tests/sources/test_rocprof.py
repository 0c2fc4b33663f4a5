"""JSON of rocprofv3: ops of agents, calls, markers and RCCL's calls."""

from __future__ import annotations

import gzip
import json
import re
from unittest.mock import patch

import pytest
from amd_builder import GPU_AGENT, HOST_AGENT, RocprofBuilder
from source_helpers import column, rows

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.sources import read
from tracekit.sources.rocprof import is_rocprof


@pytest.fixture
def rocprof() -> RocprofBuilder:
    return RocprofBuilder()


def test_ops_have_names_places_and_the_call_that_launched_them(rocprof, tmp_path):
    rocprof.call(0, 5, "hipLaunchKernel", correlation=4)
    rocprof.kernel(10, 30, "void gemm<float>(int)", correlation=4, gpu=1)
    rocprof.copy(40, 60, "HOST_TO_DEVICE", 4096, HOST_AGENT, GPU_AGENT, correlation=5)
    trace = read(rocprof.write(tmp_path / "t.json"))
    told = ("start", "end", "short_name", "kind", "device", "stream", "correlation", "launch_size")
    assert rows(trace, "ops", *told) == [
        (10, 30, "gemm", "compute", 1, 3, 4, 1024),
        (40, 60, "[CUDA memcpy HtoD]", "h2d", 0, 3, 5, None),
    ]
    assert rows(trace, "calls", "name", "correlation", "start") == [("hipLaunchKernel", 4, 0)]
    assert rows(trace, "processes", "pid", "name") == [(7, "python3.10")]
    assert rows(trace, "reports", "host", "format") == [("juniper", "rocprofv3 JSON")]
    assert rows(trace, "devices", "device", "name", "pci_bus", "sm_count", "identity") == [
        (number, "AMD Instinct MI350X", "0000:75:00.0", 256, "device_table") for number in (0, 1)
    ]


def test_copies_name_the_gpus_at_their_ends(rocprof, tmp_path):
    rocprof.copy(0, 10, "DEVICE_TO_DEVICE", 8, GPU_AGENT, GPU_AGENT + 1)
    rocprof.copy(20, 30, "DEVICE_TO_DEVICE", 8, GPU_AGENT, GPU_AGENT)
    rocprof.copy(40, 50, "DEVICE_TO_HOST", 8, GPU_AGENT + 1, HOST_AGENT)
    trace = read(rocprof.write(tmp_path / "t.json"))
    assert rows(trace, "ops", "kind", "src_device", "dst_device", "device", "bytes") == [
        ("p2p", 0, 1, 1, 8), ("d2d", 0, 0, 0, 8), ("d2h", 1, None, 1, 8),
    ]  # fmt: skip


def test_markers_are_ranges_with_their_texts_and_marks_are_not(rocprof, tmp_path):
    rocprof.marker(0, 90, "step 1", 7)
    rocprof.marker(10, 80, "forward", 8, function="roctxProcessRangeA")
    rocprof.marker(20, 20, "here", 9, function="roctxMarkA")
    rocprof.record("rccl_api", "ncclAllReduce", 30, 40)
    trace = read(rocprof.write(tmp_path / "t.json"))
    assert rows(trace, "ranges", "name", "style", "domain") == [
        ("step 1", "push_pop", None), ("forward", "start_end", None),
        ("ncclAllReduce", "push_pop", "NCCL"),
    ]  # fmt: skip


def test_each_process_has_its_own_kernels_and_texts(rocprof, tmp_path):
    other = RocprofBuilder(pid=9)
    rocprof.kernel(10, 20, "one")
    other.kernel(30, 40, "other")
    rocprof.marker(0, 5, "a", 1)
    other.marker(0, 5, "b", 1)
    trace = read(rocprof.write(tmp_path / "t.json", other))
    assert rows(trace, "ops", "name", "process") == [("one", 0), ("other", 1)]
    assert rows(trace, "ranges", "name", "process") == [("a", 0), ("b", 1)]
    assert column(trace, "processes", "pid") == [7, 9]


def test_processes_of_several_hosts_are_told(rocprof, tmp_path):
    rocprof.kernel(10, 30, "gemm")
    other = RocprofBuilder(pid=9)
    other.kernel(10, 30, "gemm")
    told = "2 hosts are in one file: their clocks differ, and GPUs of one number are one"
    assert told not in read(rocprof.write(tmp_path / "t.json", other)).warnings
    other.host = "larch"
    assert told in read(rocprof.write(tmp_path / "t.json", other)).warnings


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_the_size_of_blocks_changes_nothing(rocprof, tmp_path, block):
    for step in range(4):
        rocprof.marker(100 * step, 100 * step + 90, 'kernel_dispatch":[{ \\"', step + 1)
        rocprof.kernel(100 * step + 10, 100 * step + 30, f"k{step}", correlation=step)
    path = rocprof.write(tmp_path / "t.json")
    wanted = read(path)
    from tracekit.sources.kineto import _document

    with patch.object(_document.Document.__init__, "__defaults__", (block,)):
        found = read(path)
    for table in ("ops", "ranges", "calls"):
        assert found.read(table).equals(wanted.read(table))
    assert column(found, "ranges", "name")[0] == 'kernel_dispatch":[{ \\"'


def test_of_a_key_that_is_there_twice_the_first_one_counts(rocprof, tmp_path):
    rocprof.kernel(10, 20, "k")
    path = rocprof.write(tmp_path / "t.json")
    text, wanted = path.read_text(), read(path)
    for key, other in (("product_name", '"other"'), ("end_timestamp", "99")):
        first = re.compile(rf'("{key}": *[^,}}]+)')
        assert first.search(text), key
        path.write_text(first.sub(rf'\1, "{key}": {other}', text))
        for table in ("devices", "ops"):
            assert read(path).read(table).equals(wanted.read(table)), key


def test_a_packed_one_is_the_same_and_a_cut_one_is_refused(rocprof, tmp_path):
    rocprof.kernel(10, 20, "k")
    path = rocprof.write(tmp_path / "t.json")
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert is_rocprof(packed)
    assert read(packed).read("ops").equals(read(path).read("ops"))
    for kept in (60, 400, -30, -3):
        cut = tmp_path / "cut.json"
        cut.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(DamagedTraceError, match=r"cut\.json"):
            read(cut)


def test_one_without_gpu_work_says_what_it_holds(rocprof, tmp_path):
    rocprof.call(0, 5, "hipGetDeviceCount")
    with pytest.raises(MissingDataError, match=r"no GPU work and no markers .* 1 HIP calls"):
        read(rocprof.write(tmp_path / "t.json"))


def test_arguments_of_the_program_are_not_kept(rocprof, tmp_path):
    rocprof.kernel(10, 20, "k")
    trace = read(rocprof.write(tmp_path / "t.json"))
    tables = (trace.read(name) for name in ("processes", "reports", "contents", "threads"))
    assert not [each for each in tables if "secret" in each.write_json()]


def test_records_that_cannot_be_are_counted(rocprof, tmp_path):
    rocprof.kernel(10, 20, "k")
    rocprof.kernel(30, 25, "k")
    rocprof.kernel(40, 50, "k", gpu=7)
    rocprof.symbols.pop(0)
    trace = read(rocprof.write(tmp_path / "t.json"))
    assert column(trace, "ops", "name") == [None]
    assert set(trace.warnings[2:]) == {
        "1 GPU ops have no valid times and were left out",
        "1 GPU ops have no device or process and were left out",
        "1 kernels have no name",
    }


def test_a_name_of_the_host_that_is_no_text_is_none(rocprof, tmp_path):
    rocprof.kernel(10, 20, "k")
    path = rocprof.write(tmp_path / "t.json")
    whole = json.loads(path.read_text())
    whole["rocprofiler-sdk-tool"][0]["metadata"]["node"]["hostname"] = {"a": [1]}
    path.write_text(json.dumps(whole))
    assert column(read(path), "reports", "host") == [None]


def test_a_call_that_ends_beyond_all_times_is_left_out_and_counted(rocprof, tmp_path):
    """It was kept with no length, as one whose end is a little before its start."""
    rocprof.kernel(1_000, 2_000, "k")
    for number, start in enumerate((1_000, 1_500)):
        rocprof.marker(start, start + 100, f"step {start}", number)
    path = rocprof.write(tmp_path / "t.json")
    whole = json.loads(path.read_text())
    [process] = whole["rocprofiler-sdk-tool"]
    process["buffer_records"]["marker_api"][0]["end_timestamp"] = -(2**63)
    path.write_text(json.dumps(whole))
    trace = read(path)
    assert column(trace, "ranges", "name") == ["step 1500"]
    assert any("1 records" in text for text in trace.warnings)
