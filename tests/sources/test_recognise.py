"""What a file is told to be by its content, and that nothing else than an error comes of it."""

from __future__ import annotations

import gzip
import os
import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from effort import examples
from nsys_builder import NsysBuilder
from source_helpers import execute

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    MissingDataError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.sources import check_readable, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _refused(path: Path, error: type[InputError], says: str, hint: str | None = None) -> None:
    """Check that reading `path` gives exactly that error, naming the file and what to do."""
    with pytest.raises(InputError) as caught:
        read(path)
    assert type(caught.value) is error
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.what
    assert says in caught.value.what
    if hint is not None:
        assert hint in (caught.value.hint or "")


class TestNoTrace:
    def test_no_file(self, folder):
        _refused(folder / "absent.sqlite", InputError, "no file", "check the path")

    def test_no_folder(self, folder):
        _refused(folder / "absent" / "t.sqlite", InputError, "no file", "check the path")

    def test_a_file_in_place_of_a_folder(self, folder):
        (folder / "f").write_text("x")
        _refused(folder / "f" / "t.sqlite", InputError, "cannot be read (Not a directory)")

    def test_a_name_that_is_too_long(self, folder):
        _refused(folder / ("x" * 300), InputError, "cannot be read (File name too long)")

    def test_a_link_to_nowhere(self, folder):
        (folder / "link").symlink_to("nowhere")
        _refused(folder / "link", InputError, "no file", "check the path")

    def test_a_link_to_itself(self, folder):
        (folder / "link").symlink_to("link")
        _refused(folder / "link", InputError, "cannot be read (Too many levels of symbolic links)")

    def test_a_folder(self, folder):
        _refused(folder, NotATraceError, "is a directory", "give the file of a trace")

    def test_a_folder_of_logs_is_named_by_its_first_file(self, folder):
        (folder / "a.jsonl").write_text('{"coll_perf": {"coll": "AllReduce"}}')
        what, hint = "its file a.jsonl is a log of NCCL's inspector", f"nccl-inspector {folder}"
        _refused(folder, UnsupportedTraceError, what, hint)

    def test_a_folder_of_traces(self, folder):
        _trace(folder / "rank0.sqlite")
        _refused(folder, NotATraceError, "a trace in it, rank0.sqlite", f"ingest {folder}/*")

    def test_a_pipe_is_not_waited_for(self, folder):
        os.mkfifo(folder / "pipe")
        _refused(folder / "pipe", NotATraceError, "is not a regular file")

    def test_a_device(self):
        _refused(Path("/dev/zero"), NotATraceError, "is not a regular file")

    def test_an_empty_file(self, folder):
        (folder / "t.sqlite").touch()
        _refused(folder / "t.sqlite", NotATraceError, "is empty", "export the report again")

    @pytest.mark.parametrize(
        "content",
        [
            b"hello\n",
            b"\x00 not only zeros",
            b"S",
            b"SQLite format 4\x00" + bytes(200),
            b"\xfe" * 99,
        ],
        ids=["text", "binary", "short", "other format", "ones"],
    )
    def test_something_else(self, folder, content):
        (folder / "t.sqlite").write_bytes(content)
        _refused(folder / "t.sqlite", NotATraceError, "is not a trace", "nsys export --type sqlite")

    def test_a_database_of_something_else(self, folder):
        execute(folder / "t.sqlite", "CREATE TABLE users (id INTEGER, password TEXT)")
        _refused(folder / "t.sqlite", NotATraceError, "no table StringIds", "nsys export")

    def test_a_database_without_tables(self, folder):
        execute(folder / "t.sqlite", "PRAGMA user_version = 1")
        _refused(folder / "t.sqlite", NotATraceError, "no table StringIds")

    @pytest.mark.parametrize("columns", ["id INTEGER", "value TEXT", "ids INTEGER, value TEXT"])
    def test_a_table_of_that_name_with_other_columns(self, folder, columns):
        execute(folder / "t.sqlite", f"CREATE TABLE StringIds ({columns})")
        _refused(folder / "t.sqlite", NotATraceError, "no table StringIds")


class TestOtherTraces:
    @pytest.mark.parametrize(
        ("content", "what", "hint"),
        [
            (b"PAR1\x15\x04\x15", "a Parquet file", "nsys export --type sqlite"),
            (b"ARROW1\x00\x00", "an Arrow file", "nsys export --type sqlite"),
            (b"\xff\xff\xff\xff\x98\x01\x00\x00", "an Arrow stream", "nsys export --type sqlite"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "nsys export --type sqlite"),
            (gzip.compress(b"something else"), "a gzip archive", "gunzip"),
            (b"\x28\xb5\x2f\xfd\x04", "a zstd archive", "unzstd"),
            (b"PK\x03\x04\x14", "a zip archive", "unzip"),
            (b'<?xml version="1.0"?><session/>', "an XML file", "nvprof -o run.nvvp"),
            (b'{"events": []}', "JSON, but not a PyTorch trace (it has events)", "nsys export"),
            (b"\n  [ {}, {}", "JSON, but not a PyTorch trace", "nsys export --type sqlite"),
            (
                gzip.compress(b'[{"a": {"b": 1}, "c": 2}]'),
                "packed with gzip, and in it JSON, but not a PyTorch trace (it has a, c)",
                "nsys",
            ),
            (
                b'[\n{"ph": "X", "cat": "kernel", "name": "k", "args": {"stream": 7}}]',
                "a list of Chrome events without the object",
                "| jq -c '{traceEvents: .}' >",
            ),
            (b"NVR\x00\x02\x00", "a report of Nsight Compute", "nsys profile"),
            (
                b'==PROF== Connected\n"ID","Process ID","Process Name","Kernel Name"\n',
                "a table of Nsight Compute",
                "nsys profile",
            ),
            (b"\x07\n\x050.0.4\x10\x0a", "an execution trace of Chakra", "torch.profiler"),
            (
                b'{"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [',
                "an execution trace of PyTorch (Chakra)",
                "torch.profiler",
            ),
            (b'"Index","KernelName","gpu-id","queue-id"\n', "a table of rocprof", "rocprofv3"),
            (b'"Kind","Agent_Id","Queue_Id"\n', "a table of rocprofv3", "-f json"),
            (
                b'{ "traceEvents":[{}\n,{"args":{"name":"0 CPU HIP API"},"ph":"M"',
                "JSON of rocprof, the recorder before rocprofv3",
                "rocprofv3",
            ),
            (
                b'[ {}\n,{"name": "process_name", "ph": "M", "pid":"2","args":{"name":"GPU2"}}',
                "the JSON that rpd2tracing.py writes",
                "give the RPD itself",
            ),
            (
                b"\n\x06\x40\x05\x50\x01\x58\x02\n\x04\x40\x07\x50\x01",
                "a trace of Perfetto",
                "rocprofv3",
            ),
            (
                b'{"entries":[{"collective_seq_id":1',
                "a dump of PyTorch's flight recorder",
                "tracekit hang",
            ),
            (
                b'{"header": {"id": "0x1"}, "coll_perf": {"coll": "AllReduce"}}\n',
                "a log of NCCL's inspector",
                "tracekit nccl-inspector",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_are_named_by_their_first_bytes_whatever_the_file_is_called(
        self, folder, content, what, hint
    ):
        (folder / "t.sqlite").write_bytes(content)
        _refused(folder / "t.sqlite", UnsupportedTraceError, f"t.sqlite is {what}", hint)

    def test_the_hint_names_the_file_even_with_braces_in_it(self, folder):
        path = folder / "{0}{x}.gz"
        path.write_bytes(b"\x1f\x8b")
        _refused(path, UnsupportedTraceError, "a gzip archive", f"gunzip {path}")

    def test_an_nvprof_database_that_lacks_a_column(self, folder):
        execute(
            folder / "t.nvvp",
            "CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (start INT, end INT, name INT)",
        )
        lacking = "CONCURRENT_KERNEL has no column deviceId, correlationId"
        _refused(folder / "t.nvvp", MissingDataError, lacking, "nvprof -o run.nvvp")

    def test_an_nvprof_database_of_nothing(self, folder):
        execute(folder / "t.nvvp", "CREATE TABLE StringTable (_id_ INT, value TEXT)")
        _refused(folder / "t.nvvp", MissingDataError, "no GPU work", "nvprof -o run.nvvp")


class TestExportsWithNothingToAnalyse:
    def test_only_strings(self, nsys):
        nsys.close()
        schema = nsys.schema.version
        version = "no schema version" if schema == "none-2020.4" else f"schema {schema}"
        _refused(
            nsys.path,
            MissingDataError,
            f"no GPU work and no NVTX ranges in {nsys.path} ({version})",
            "nsys profile -t cuda,nvtx",
        )

    def test_only_what_the_operating_system_did(self, nsys):
        nsys.thread_name(100, 100, "python")
        nsys.process(100, "python")
        nsys.insert("OSRT_API", start=1, end=2, globalTid=1 << 48, nameId=nsys.string("poll"))
        nsys.insert("SCHED_EVENTS", start=1, cpu=0, isSchedIn=1, globalTid=1 << 48)
        nsys.close()
        _refused(nsys.path, MissingDataError, "no GPU work and no NVTX ranges")

    def test_only_cuda_calls(self, nsys):
        nsys.call(1, 2, correlation=1, name="cudaMalloc_v3020")
        nsys.close()
        _refused(nsys.path, MissingDataError, "no GPU work and no NVTX ranges")

    def test_only_names_of_nvtx(self, nsys):
        nsys.domain(100, 1, "NCCL")
        nsys.mark(5, "here")
        nsys.close()
        _refused(nsys.path, MissingDataError, "no GPU work and no NVTX ranges")

    def test_only_work_without_times(self, nsys):
        nsys.kernel(0, 0, correlation=1)
        nsys.close()
        _refused(nsys.path, MissingDataError, "no times of 1 GPU ops")

    def test_an_export_of_2020_recorded_here(self, real_sample):
        _refused(real_sample("empty_2020_4"), MissingDataError, "no GPU work", "nsys profile")


class TestPermissions:
    def test_a_file_that_may_not_be_read(self, other_user_folder, as_other):
        path = other_user_folder / "t.sqlite"
        with NsysBuilder(path) as nsys:
            nsys.kernel(1, 2)
        path.chmod(0o000)
        with as_other():
            _refused(path, InputError, "may not be read", "ls -l")
        path.chmod(0o644)
        with as_other():
            assert read(path).read("ops").height == 1

    @pytest.mark.parametrize("name", ["t.sqlite", "absent.sqlite", "."])
    def test_a_folder_that_may_not_be_entered(self, other_user_folder, as_other, name):
        inner = other_user_folder / "inner"
        inner.mkdir()
        (inner / "t.sqlite").write_text("x")
        inner.chmod(0o000)
        path = inner / name
        with as_other(), pytest.raises(InputError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        inner.chmod(0o755)


def _trace(path: Path) -> Path:
    with NsysBuilder(path, schema="3.11.1") as nsys:
        nsys.gpu(0)
        nsys.session(1_700_000_000_000_000_000, 30_000)
        nsys.thread_name(100, 100, "python")
        nsys.domain(100, 1, "NCCL")
        for step in range(200):
            at = 100 * step
            nsys.launch(at + 10, at + 20, at + 30, name=f"kernel_{step % 7}<int>(float *)")
            nsys.memcpy(at + 31, at + 40, correlation=step)
            nsys.push_pop(at, at + 90, f"step {step}")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _trace(tmp_path_factory.mktemp("whole") / "t.sqlite").read_bytes()


class TestDamage:
    @pytest.mark.parametrize("size", [16, 64, 512, 4096, 1 << 20])
    def test_a_file_of_zeros(self, folder, size):
        (folder / "t.sqlite").write_bytes(bytes(size))
        _refused(folder / "t.sqlite", DamagedTraceError, "begins with zeros", "export the report")

    def test_a_file_whose_header_was_never_written(self, folder, whole):
        (folder / "t.sqlite").write_bytes(bytes(100) + whole[100:])
        _refused(folder / "t.sqlite", DamagedTraceError, "interrupted", "export the report again")

    def test_a_file_that_is_cut_anywhere(self, folder, whole):
        path = folder / "t.sqlite"
        sizes = [*range(1, 120), *range(120, 8192, 127), *range(8192, len(whole), 1509)]
        for size in (*sizes, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(InputError) as caught:
                read(path)
            assert type(caught.value) is (NotATraceError if size < 16 else DamagedTraceError), size
        path.write_bytes(whole)
        assert read(path).read("ops").height == 400

    def test_a_table_that_is_lost_is_an_error_and_not_an_empty_table(self, folder, whole):
        path = folder / "t.sqlite"
        path.write_bytes(whole)
        with sqlite3.connect(path) as file:
            [(root,)] = file.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'"
            ).fetchall()
        file.close()
        path.write_bytes(whole[: (root - 1) * 4096] + bytes(4096) + whole[root * 4096 :])
        _refused(path, DamagedTraceError, "cannot be read", "export the report again")

    @pytest.mark.parametrize("seed", range(examples(60)))
    def test_pages_that_are_overwritten_or_swapped(self, folder, whole, seed):
        """Nothing but an error that says so, or a trace that keeps the rules of its tables."""
        chance = random.Random(seed)
        pages = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
        first, second = chance.sample(range(1, len(pages)), 2)
        if seed % 3 == 0:
            pages[first], pages[second] = pages[second], pages[first]
        elif seed % 3 == 1:
            pages[first] = chance.randbytes(4096)
        else:
            pages[first] = pages[second]
        path = folder / "t.sqlite"
        path.write_bytes(b"".join(pages))
        with suppress(InputError):
            ops = read(path).read("ops")
            assert ops.select("process", "device", "start", "end").null_count().row(0) == (0,) * 4
            assert (ops["end"] >= ops["start"]).all()


def test_a_path_that_could_hold_a_trace_is_readable(folder):
    check_readable(_trace(folder / "t.sqlite"))


def test_a_trace_needs_no_telling_name(folder):
    assert read(_trace(folder / "holiday.jpg")).read("ops").height == 400


def test_a_file_is_read_twice_alike(folder):
    path = _trace(folder / "t.sqlite")
    first, second = read(path), read(path)
    assert all(first.read(name).equals(second.read(name)) for name in first.tables)


def test_progress_counts_up_to_the_end(folder):
    seen: list[tuple[str, int, int]] = []
    read(_trace(folder / "t.sqlite"), lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert {total for *_, total in seen} == {len(seen) - 1}
    assert all(text.startswith("read ") for text, *_ in seen)
