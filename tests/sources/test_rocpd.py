"""rocpd, the databases of rocprofv3: both layouts, several processes, memory, secrets."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from amd_builder import RocpdBuilder
from effort import examples
from source_helpers import column, execute, rows

import tracekit
from tracekit.analysis.memory import memory_use
from tracekit.errors import MissingDataError
from tracekit.sources import read
from tracekit.sources.rocprof._rocpd import unpacked

LAYOUTS = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


def _written(rocpd: RocpdBuilder) -> None:
    rocpd.region(0, 5, "hipLaunchKernel", correlation=4)
    rocpd.kernel(10, 30, "void gemm<float>(int)", correlation=4, gpu=1)
    rocpd.kernel(31, 35, "__amd_rocclr_copyBuffer", correlation=9, node=77)
    rocpd.copy(40, 60, "HOST_TO_DEVICE", 4096, 0, 4, correlation=5)
    rocpd.copy(61, 65, "DEVICE_TO_DEVICE", 8, 4, 5)
    rocpd.marker(0, 90, "step 1")
    rocpd.marker(10, 80, "forward", "roctxProcessRangeA")
    rocpd.marker(20, 20, "here", "roctxMarkA")
    rocpd.region(30, 40, "ncclAllReduce", "RCCL_API")
    rocpd.region(1, 4, "hsa_queue_create", "HSA_CORE_API")


@LAYOUTS
def test_ops_calls_and_ranges(tmp_path, newer):
    with RocpdBuilder(tmp_path / "t.db", newer=newer) as rocpd:
        _written(rocpd)
    trace = read(rocpd.path)
    told = ("start", "end", "short_name", "kind", "device", "stream", "correlation", "launch_size",
            "graph_node", "bytes", "src_device", "dst_device")  # fmt: skip
    assert rows(trace, "ops", *told) == [
        (10, 30, "gemm", "compute", 1, 3, 4, 1024, None, None, None, None),
        (31, 35, "__amd_rocclr_copyBuffer", "unknown", 0, 3, 9, 1024, 77, None, None, None),
        (40, 60, "[CUDA memcpy HtoD]", "h2d", 0, 3, 5, None, None, 4096, None, 0),
        (61, 65, "[CUDA memcpy DtoD]", "p2p", 1, 3, 1, None, None, 8, 0, 1),
    ]
    assert rows(trace, "calls", "name", "correlation", "start") == [("hipLaunchKernel", 4, 0)]
    assert rows(trace, "ranges", "name", "style", "domain") == [
        ("step 1", "push_pop", None), ("forward", "start_end", None),
        ("ncclAllReduce", "push_pop", "NCCL"),
    ]  # fmt: skip
    assert rows(trace, "processes", "pid", "name") == [(7, "python3")]
    assert rows(trace, "threads", "tid", "name") == [(8, "main")]
    assert rows(trace, "reports", "host", "format") == [("juniper", "rocprofv3 SQLite")]
    assert rows(trace, "devices", "device", "name", "pci_bus", "sm_count", "identity") == [
        (number, "AMD Instinct MI350X", "0000:75:00.0", 256, "device_table") for number in (0, 1)
    ]
    assert trace.warnings == ()


@LAYOUTS
def test_rows_without_a_thread_or_an_event_are_read(tmp_path, newer):
    with RocpdBuilder(tmp_path / "t.db", newer=newer) as rocpd:
        rocpd.kernel(10, 30, "k")
    execute(rocpd.path, "DELETE FROM rocpd_info_thread_00aa", "DELETE FROM rocpd_event_00aa")
    assert rows(read(rocpd.path), "ops", "start", "end", "correlation") == [(0, 20, None)]


def test_a_merged_file_keeps_processes_and_their_numbers_apart(tmp_path):
    for pid, guid, newer in ((7, "_00aa", False), (9, "_00bb", True)):
        with RocpdBuilder(tmp_path / "t.db", pid, guid, newer=newer) as rocpd:
            rocpd.region(0, 5, "hipLaunchKernel", correlation=4)
            rocpd.kernel(pid, 30, f"k{pid}", correlation=4, gpu=pid % 2)
    trace = read(rocpd.path)
    assert rows(trace, "ops", "name", "process", "start") == [("k7", 0, 7), ("k9", 1, 9)]
    assert rows(trace, "calls", "process", "correlation") == [(0, 4), (1, 4)]
    assert column(trace, "processes", "pid") == [7, 9]


def test_files_of_one_job_say_their_ranks(tmp_path):
    for rank in range(2):
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "AWS_SECRET": "hunter2"}
        path = tmp_path / f"{rank}.db"
        with RocpdBuilder(path, 7 + rank, environment=told) as rocpd:
            rocpd.kernel(10, 30, "k", gpu=rank)
        trace = read(path)
        assert rows(trace, "reports", "rank", "ranks") == [(rank, 2)]


@LAYOUTS
def test_no_variable_and_no_argument_is_kept(tmp_path, newer):
    told = {"RANK": "0", "AWS_SECRET": "hunter2", "MASTER_PORT": "29511"}
    with RocpdBuilder(tmp_path / "t.db", environment=told, newer=newer) as rocpd:
        _written(rocpd)
    trace = read(rocpd.path)
    tables = ("processes", "reports", "contents", "threads", "devices", "ranges", "calls", "ops")
    everything = "".join(trace.read(name).cast(pl.String, strict=False).write_json()
                         for name in tables)  # fmt: skip
    assert [each for each in ("hunter2", "AWS", "29511", "--key") if each in everything] == []


@LAYOUTS
def test_a_release_gives_back_what_lay_at_its_address(tmp_path, newer):
    with RocpdBuilder(tmp_path / "t.db", newer=newer) as rocpd:
        rocpd.kernel(0, 30, "k")
        rocpd.allocation(5, "ALLOC", 0x100, 64, 4)
        rocpd.allocation(6, "ALLOC", 0x200, 16, 5)
        rocpd.allocation(7, "ALLOC", 0x300, 99, 0)  # host memory
        rocpd.allocation(8, "ALLOC", 0x400, 99, 4, "VIRTUAL")
        rocpd.allocation(9, "FREE", 0x100)
        rocpd.allocation(10, "FREE", 0x100)
        rocpd.allocation(11, "ALLOC", 0x100, 32, 5)
    told = ("time", "device", "change", "in_use")
    assert rows(read(rocpd.path), "memory", *told) == [
        (5, 0, 64, 64), (6, 1, 16, 16), (9, 0, -64, 0), (11, 1, 32, 48),
    ]  # fmt: skip


def test_one_that_is_packed_is_the_same(tmp_path):
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        _written(rocpd)
    packed = tmp_path / "t.db.gz"
    packed.write_bytes(gzip.compress(rocpd.path.read_bytes()))
    assert read(packed).read("ops").equals(read(rocpd.path).read("ops"))


def test_views_are_not_run(tmp_path: Path):
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        rocpd.kernel(10, 30, "k")
    execute(rocpd.path, "CREATE VIEW kernels AS SELECT * FROM nowhere",
            "CREATE VIEW rocpd_string AS SELECT * FROM rocpd_string_00aa")  # fmt: skip
    assert read(rocpd.path).read("ops").height == 1


def test_one_without_gpu_work_says_what_it_holds(tmp_path):
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        rocpd.region(0, 5, "hipGetDeviceCount")
    with pytest.raises(MissingDataError, match=r"no GPU work and no markers .* 1 HIP calls"):
        read(rocpd.path)


def test_rows_that_cannot_be_are_counted(tmp_path):
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        rocpd.kernel(10, 20, "k")
        rocpd.kernel(30, 25, "k")
        rocpd.kernel(40, 50, "k", gpu=7)
        rocpd.allocation(5, "ALLOC", 1, 64)
    execute(rocpd.path, "DELETE FROM rocpd_info_kernel_symbol_00aa")
    trace = read(rocpd.path)
    assert column(trace, "ops", "name") == [None]
    assert set(trace.warnings[2:]) == {
        "1 GPU ops have no valid times and were left out",
        "1 GPU ops have no device or process and were left out",
        "1 kernels have no name",
        "1 allocations and releases have no GPU or size and were left out",
    }


def _packed(text: bytes) -> bytes:
    """Pack a text as rocpd's own `_lz4.py` describes it, with another library's LZ4."""
    if not text:
        return b""
    return b"LZ4F" + len(text).to_bytes(4, "little") + pa.compress(text, "lz4", asbytes=True)


def test_texts_that_are_packed_are_the_same(tmp_path):
    """As in `rocpd_tables_lz4.sql`: JSON beside events and agents, whatever the version says."""
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        _written(rocpd)
        rocpd.marker(5, 6, "layer " * 50)
    plain = read(rocpd.path)
    with closing(sqlite3.connect(rocpd.path)) as db:
        db.create_function("pack", 1, lambda text: _packed((text or "").encode()))
        for table in ("event", "info_agent"):
            db.execute(f"UPDATE rocpd_{table}_00aa SET extdata = pack(extdata)")
        db.execute("INSERT INTO rocpd_metadata_00aa (tag, value) VALUES (?, ?)",
                   ("compression", "lz4-frame-v1"))  # fmt: skip
        db.commit()
    packed = read(rocpd.path)
    for name in ("ops", "calls", "ranges", "devices", "reports"):
        assert packed.read(name).equals(plain.read(name)), name
    assert "layer " * 50 in column(packed, "ranges", "name")


def _by_arrow(packed: bytes) -> str | None:
    with suppress(OSError, pa.ArrowInvalid, UnicodeDecodeError):
        with pa.CompressedInputStream(pa.BufferReader(packed[8:]), "lz4") as stream:
            text = bytes(stream.read())
        if packed[:4] == b"LZ4F" and len(text) == int.from_bytes(packed[4:8], "little"):
            return text.decode(errors="replace")
    return None


@pytest.mark.parametrize("seed", range(examples(4)))
def test_packed_texts_are_those_of_another_library(seed):
    """Of damaged ones either may find nothing: only the other looks at checksums."""
    rng = random.Random(seed)
    words = ["forward", "backward", "\u00e9t\u00e9", "{", "}", " " * 40, "0123456789" * 30]
    texts = [
        json.dumps({"message": "".join(rng.choices(words, k=rng.randrange(0, 60)))}).encode()
        for _ in range(75)
    ] + [rng.randbytes(200), b"a" * 70_000]
    good = [_packed(text) for text in texts]
    assert unpacked(pl.Series(good)).to_list() == [_by_arrow(each) for each in good]
    for each in good:
        damaged = bytearray(each)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        ours, theirs = unpacked(pl.Series([bytes(damaged)])).item(), _by_arrow(bytes(damaged))
        assert ours == theirs or None in (ours, theirs)


def test_nobody_is_sent_to_a_recorder_that_sees_no_such_gpu(tmp_path):
    with RocpdBuilder(tmp_path / "t.db") as rocpd:
        rocpd.kernel(10, 30, "void gemm<float>(int)", correlation=4, gpu=1)
    run = tracekit.ingest(rocpd.path, store=tmp_path / "store")[0]
    answers = [memory_use(run.trace), run.links.answer(counters=True), run.latency.answer()]
    said = [answer.empty + "".join(answer.meta.get("missing", ())) for answer in answers]
    assert "a database with --memory-allocation-trace" in said[0]
    assert all("rocprofv3 records none" in text for text in said[1:])
    assert not any("nsys" in text for text in said)
