"""Kernels, copies and memsets of nvprof databases."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from effort import examples
from nvprof_builder import EPOCH, NvprofBuilder
from source_helpers import column, remarks, rows, trace_of

from tracekit.errors import InputError, MissingDataError
from tracekit.sources import read

HOST, PINNED, DEVICE, MANAGED = 1, 2, 3, 5
H2D, D2H, D2D, P2P = 1, 2, 8, 10
COPY = ("kind", "copy_kind", "src_device", "dst_device", "bytes")


@pytest.fixture
def one(tmp_path: Path) -> NvprofBuilder:
    return NvprofBuilder(tmp_path / "t.nvvp")


def test_all_kinds_of_work_in_all_versions(nvprof):
    nvprof.call(0, 5)
    nvprof.kernel(10, 20, correlation=1, name="_ZN2at4gemmIfEEvi", deviceId=1, streamId=9)
    nvprof.memcpy(30, 31, copyKind=H2D, srcKind=HOST, dstKind=DEVICE, bytes=64)
    nvprof.peer_copy(40, 42, copyKind=P2P, srcKind=DEVICE, dstKind=DEVICE, bytes=8,
                     srcDeviceId=0, dstDeviceId=1)  # fmt: skip
    nvprof.memset(50, 53, bytes=32)
    trace = trace_of(nvprof)
    assert rows(trace, "ops", "start", "end", "device", "stream", "kind", "name", "bytes") == [
        (10, 20, 1, 9, "compute", "void at::gemm<float>(int)", None),
        (30, 31, 0, 7, "h2d", "[CUDA memcpy HtoD]", 64),
        (40, 42, 0, 7, "p2p", "[CUDA memcpy PtoP]", 8),
        (50, 53, 0, 7, "memset", "[CUDA memset]", 32),
    ]
    assert rows(trace, "ops", "short_name", "correlation", "context", "graph_node")[0] == (
        "gemm", 1, 1, None
    )  # fmt: skip
    assert rows(trace, "ops", "src_device", "dst_device")[2:] == [(0, 1), (None, 0)]
    assert remarks(trace) == ()


def test_times_above_two_to_the_53_are_exact(nvprof):
    nvprof.call(1, 4, correlation=1)
    nvprof.kernel(2, 3, correlation=1)
    trace = trace_of(nvprof)
    assert rows(trace, "reports", "session_start", "schema_version", "format") == [
        (EPOCH + 1, "16", "nvprof SQLite")
    ]
    assert rows(trace, "ops", "start", "end") == [(1, 2)]
    assert rows(trace, "calls", "start", "end") == [(0, 3)]


def test_a_clock_that_does_not_tell_the_time_of_day(one):
    one.insert("CONCURRENT_KERNEL", start=5_000, end=5_010, name=one.string("k"))
    trace = trace_of(one)
    assert rows(trace, "ops", "start", "end") == [(0, 10)]
    assert column(trace, "reports", "session_start") == [None]


def test_work_without_times_is_left_out_and_counted(one):
    one.kernel(1, 2)
    one.insert("CONCURRENT_KERNEL", start=0, end=0)
    one.insert("CONCURRENT_KERNEL", start=0, end=EPOCH)
    one.kernel(9, 8)
    one.insert("MEMCPY", start=0, end=0, copyKind=H2D)
    trace = trace_of(one)
    assert rows(trace, "ops", "start", "end") == [(0, 1)]
    assert "3 GPU ops have no valid times and were left out" in trace.warnings
    table = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
    assert f"1 rows of {table} have no valid times and were left out" in trace.warnings


def test_a_database_of_work_without_times_says_so(one):
    for _ in range(66):
        one.insert("CONCURRENT_KERNEL", start=0, end=0)
    with pytest.raises(MissingDataError, match=r"no times of 66 GPU ops and no NVTX ranges"):
        trace_of(one)


def test_serial_kernels_are_read_and_none_is_counted_twice(one):
    for table in ("CONCURRENT_KERNEL", "KERNEL"):
        one.kernel(1, 2, correlation=1, name="both", table=table)
    one.kernel(3, 4, correlation=2, name="serial", table="KERNEL")
    trace = trace_of(one)
    assert column(trace, "ops", "name") == ["both", "serial"]
    assert "1 kernels are in two tables and were counted once" in trace.warnings


def test_kernels_that_are_serial_throughout(one):
    one.kernel(1, 2, name="a", table="KERNEL")
    one.kernel(1, 2, name="b", table="KERNEL")
    assert sorted(column(trace_of(one), "ops", "name")) == ["a", "b"]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((H2D, HOST, DEVICE), ("h2d", "HtoD", None, 2, 4)),
        ((D2H, DEVICE, PINNED), ("d2h", "DtoH", 2, None, 4)),
        ((D2D, DEVICE, DEVICE), ("d2d", "DtoD", 2, 2, 4)),
        ((H2D, DEVICE, DEVICE), ("staged", "HtoD", None, 2, 4)),
        ((D2H, DEVICE, DEVICE), ("staged", "DtoH", 2, None, 4)),
        ((D2H, DEVICE, MANAGED), ("d2h", "DtoH", 2, None, 4)),
        ((0, PINNED, DEVICE), ("h2d", "Unknown", None, 2, 4)),
        ((0, 0, DEVICE), ("unknown", "Unknown", None, None, 4)),
        ((99, 0, 0), ("unknown", "Unknown", None, None, 4)),
    ],
)
def test_copies_by_their_codes(one, codes, expected):
    names = ("copyKind", "srcKind", "dstKind")
    one.memcpy(1, 2, deviceId=2, bytes=4, **dict(zip(names, codes, strict=True)))
    assert rows(trace_of(one), "ops", *COPY) == [expected]


@pytest.mark.parametrize(
    ("kind", "ends", "expected"),
    [
        (P2P, (0, 3), ("p2p", "PtoP", 0, 3)),
        (D2D, (0, 3), ("p2p", "DtoD", 0, 3)),
        (D2D, (3, 3), ("d2d", "DtoD", 3, 3)),
        (D2H, (0, 3), ("staged", "DtoH", 0, None)),
        (H2D, (0, 3), ("staged", "HtoD", None, 3)),
    ],
)
def test_copies_between_gpus(one, kind, ends, expected):
    one.peer_copy(1, 2, copyKind=kind, srcKind=DEVICE, dstKind=DEVICE, srcDeviceId=ends[0],
                  dstDeviceId=ends[1])  # fmt: skip
    assert rows(trace_of(one), "ops", *COPY[:4]) == [expected]


def test_whole_graphs_and_nodes_of_graphs(tmp_path):
    nvprof = NvprofBuilder(tmp_path / "t.nvvp", schema="12.4")
    nvprof._gpu("GRAPH_TRACE", 1, 2, 5, graphId=3)
    nvprof.kernel(4, 5, graphNodeId=9)
    assert rows(trace_of(nvprof), "ops", "kind", "name", "graph_node") == [
        ("graph", "[CUDA graph 3]", None),
        ("compute", "kernel", 9),
    ]


class TestProcesses:
    def test_the_process_that_called_cuda(self, one):
        one.call(0, 1, pid=100)
        one.range(0, 9, "launcher", pid=50)
        one.kernel(2, 3, correlation=77)
        trace = trace_of(one)
        assert rows(trace, "processes", "process", "pid") == [(0, 50), (1, 100)]
        assert column(trace, "ops", "process") == [1]

    def test_of_several_the_one_with_that_correlation_id(self, one):
        for pid, ids in ((100, (1, 2)), (200, (2, 3))):
            for number in ids:
                one.call(number, number + 1, correlation=number, pid=pid)
        for number in (1, 2, 3, 4):
            one.kernel(10 * number, 10 * number + 1, correlation=number)
        trace = trace_of(one)
        assert rows(trace, "ops", "correlation", "process") == [(1, 0), (3, 1)]
        [warning] = remarks(trace)
        assert warning.startswith("2 GPU ops could be of several of the processes in the file")

    def test_named_by_its_executable_and_not_by_its_secrets(self, one):
        command = "/usr/bin/python3 train.py --token SECRET"
        blob = (100).to_bytes(4, "little") + b"\0\0\0\0garb"
        one.insert("NAME", objectKind=1, objectId=blob, name=one.string(command))
        one.kernel(1, 2)
        trace = trace_of(one)
        assert rows(trace, "processes", "pid", "name") == [(100, "python3")]
        assert remarks(trace) == ()

    def test_none_is_known(self, one):
        one.kernel(1, 2)
        trace = trace_of(one)
        assert rows(trace, "processes", "pid", "name") == [(0, None)]
        assert remarks(trace) == ("the process was not recorded; its id is set to 0",)


class TestDevices:
    def test_what_is_known_of_a_gpu(self, nvprof):
        nvprof.device(0)
        nvprof.device(1, uuid=bytes(16), globalMemorySize=0)
        nvprof.kernel(1, 2, deviceId=0)
        trace = trace_of(nvprof)
        assert rows(
            trace, "devices", "device", "name", "uuid", "memory_bytes", "peak_memory_bandwidth",
            "sm_count", "compute_capability", "active", "identity",
        ) == [
            (0, "Tesla V100-SXM2-16GB", "00010203-0405-0607-0809-0a0b0c0d0e0f", 16_914_055_168,
             898_048_000_000, 80, "7.0", True, "ordinal"),
            (1, "Tesla V100-SXM2-16GB", None, None, 898_048_000_000, 80, "7.0", False, "ordinal"),
        ]  # fmt: skip

    def test_gpus_that_are_not_described(self, one):
        one.device(0)
        one.peer_copy(1, 2, copyKind=P2P, deviceId=4, srcDeviceId=4, dstDeviceId=5)
        assert rows(trace_of(one), "devices", "device", "active", "identity") == [
            (0, False, "ordinal"), (4, True, "unknown"), (5, False, "unknown")
        ]  # fmt: skip


class TestNothingToAnalyse:
    def test_an_empty_database(self, nvprof):
        nvprof.close()
        with pytest.raises(MissingDataError, match="no GPU work and no NVTX ranges") as caught:
            read(nvprof.path)
        assert "nvprof -o run.nvvp" in (caught.value.hint or "")

    def test_only_calls_and_marks(self, one):
        one.call(1, 2)
        one.marker(1, 5, 1, "here")
        one.close()
        with pytest.raises(MissingDataError, match="no GPU work and no NVTX ranges"):
            read(one.path)


def test_values_that_are_no_numbers_are_left_out(one):
    one.kernel(1, 2)
    one._file.execute("UPDATE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL SET streamId = 'seven'")
    trace = trace_of(one)
    assert column(trace, "ops", "stream") == [None]
    assert any("streamId are not of its type" in text for text in trace.warnings)


def test_what_the_database_holds(one):
    one.kernel(1, 2)
    one.call(1, 2)
    one.call(1, 2, table="DRIVER")
    contents = {row[0]: row[1:] for row in rows(trace_of(one), "contents", "feature", "present",
                                                "rows", "source_table")}  # fmt: skip
    prefix = "CUPTI_ACTIVITY_KIND_"
    assert contents["kernels"] == (True, 1, f"{prefix}CONCURRENT_KERNEL")
    assert contents["CUDA calls"] == (True, 2, f"{prefix}RUNTIME, {prefix}DRIVER")
    assert contents["NVTX events"] == (False, 0, f"{prefix}MARKER")
    assert contents["whole CUDA graphs"] == (False, 0, f"{prefix}GRAPH_TRACE")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "t.nvvp"
    with NvprofBuilder(path) as nvprof:
        nvprof.device(0)
        for number in range(200):
            at = 100 * number
            nvprof.range(at, at + 90, f"step {number}")
            nvprof.call(at + 1, at + 5, correlation=number)
            nvprof.kernel(
                at + 9, at + 20, correlation=number, name=f"_Z{number % 9 + 1}kernelkernelv"
            )
            nvprof.memcpy(at + 30, at + 40, correlation=number, copyKind=H2D)
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_damaged_database_gives_an_error_that_says_so_or_valid_tables(tmp_path, whole, seed):
    chance = random.Random(seed)
    content = bytearray(whole)
    if seed % 2:
        for _ in range(200):
            content[chance.randrange(4096, len(content))] = chance.randrange(256)
    else:
        page = 4096 * chance.randrange(1, len(content) // 4096)
        content[page : page + 4096] = chance.randbytes(4096)
    path = tmp_path / "t.nvvp"
    path.write_bytes(content)
    with suppress(InputError):
        ops = read(path).read("ops")
        assert ops.select("process", "device", "start", "end").null_count().row(0) == (0,) * 4
        assert (ops["end"] >= ops["start"]).all()


def test_progress_counts_up_to_the_end(one):
    seen: list[tuple[str, int, int]] = []
    one.kernel(1, 2)
    one.close()
    read(one.path, lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert {total for *_, total in seen} == {len(seen) - 1}


def test_memory_on_the_host_that_copies_are_from_and_to(one) -> None:
    one.memcpy(10, 11, copyKind=1, srcKind=1, dstKind=3, bytes=8)
    one.memcpy(20, 21, copyKind=2, srcKind=3, dstKind=2, bytes=8)
    assert column(trace_of(one), "ops", "host_memory") == ["pageable", "pinned"]
