"""Rows whose times cannot be those of the recording: left out and counted, and no sum overflows."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pytest
from amd_builder import EPOCH as AMD_EPOCH
from amd_builder import RocpdBuilder, RocprofBuilder, RpdBuilder
from columnar_builder import write_columnar
from kineto_helpers import Event, event, kernel, launch, text_of, write
from nsys_builder import NsysBuilder, global_pid, global_tid
from nvprof_builder import EPOCH, NvprofBuilder
from polars.testing import assert_frame_equal
from quick_sqlite import writing
from typer.testing import CliRunner
from xplane_builder import plane

from tracekit.cli import app
from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.model import Trace
from tracekit.sources import read
from tracekit.sources._times import MOST_TOGETHER, REACH, Times

GPU_TYPE = 1 << 48 | 5 << 32 | 0x700
LEAST, MOST = -(1 << 63), (1 << 63) - 1
FAR = [(LEAST, 250), (-(1 << 62), 1 << 62), (240, MOST - 1), (1 << 60, (1 << 60) + 5)]
Pair: TypeAlias = tuple[int, int]


def nsys(path: Path, *, schema: str = "3.11.1") -> Path:
    """An export with a row in each table that has times."""
    with NsysBuilder(path, schema=schema) as made:
        thread = global_tid(100)
        for step in range(3):
            at = 1000 * step
            made.push_pop(at + 50, at + 400, f"step {step}")
            made.launch(at + 100, at + 110, at + 200, name="gemm")
            made.call(at + 200, at + 205, correlation=90 + step)
            made.memcpy(at + 230, at + 300, correlation=90 + step)
            made.memset(at + 310, at + 320)
            where = {"globalTid": thread, "nameId": made.string("poll")}
            made.insert("OSRT_API", start=at + 10, end=at + 200_010, eventClass=1, **where)
            made.insert(
                "MPI_COLLECTIVES_EVENTS", start=at + 350, end=at + 360, globalTid=thread,
                textId=made.string("MPI_Barrier"),
            )  # fmt: skip
            made.insert("PROFILER_OVERHEAD", start=at + 500, end=at + 510, **where)
            made.insert(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=at + 320, end=at + 330,
                deviceId=0, contextId=1, syncType=4, correlationId=5, globalPid=global_pid(100),
            )  # fmt: skip
            made.insert(
                "CUDA_GPU_MEMORY_USAGE_EVENTS", start=at + 20, globalPid=global_pid(100),
                deviceId=0, contextId=1, address=4096 + step, bytes=64, memKind=2,
                memoryOperationType=0,
            )  # fmt: skip
    return path


OF_NSYS = [
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "MPI_COLLECTIVES_EVENTS",
    "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUDA_GPU_MEMORY_USAGE_EVENTS",
]  # fmt: skip


def nvprof(path: Path) -> Path:
    with NvprofBuilder(path) as made:
        made.device()
        for step in range(3):
            at = 1000 * step
            made.range(at + 50, at + 400, f"step {step}")
            made.call(at + 100, at + 105, correlation=step + 1)
            made.kernel(at + 110, at + 200, correlation=step + 1)
            made.sync(at + 320, at + 330, 9)
    return path


OF_NVPROF = [
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("CONCURRENT_KERNEL", "RUNTIME", "SYNCHRONIZATION")
]


def repeat(path: Path, tables: Sequence[str], times: Pair, count: int = 1) -> Path:
    """Give a copy of a file the second row of some tables once more, with other times."""
    copy = shutil.copy(path, path.with_name(f"other{path.suffix}"))
    add(copy, tables, times, count)
    return copy


def add(path: Path, tables: Sequence[str], times: Pair, count: int = 1) -> None:
    with writing(path) as file:
        for table in tables:
            names = [
                name for _, name, *_, key in file.execute(f"PRAGMA table_info({table})") if not key
            ]
            new = dict(zip(("start", "end"), times, strict=True))
            values = [str(new.get(name, f'"{name}"')) for name in names]
            quoted = ", ".join(f'"{name}"' for name in names)
            query = f"SELECT {', '.join(values)} FROM (SELECT * FROM {table} LIMIT 1 OFFSET 1)"
            for _ in range(count):
                file.execute(f"INSERT INTO {table} ({quoted}) {query}")
        file.commit()


def assert_same(found: Trace, expected: Trace) -> None:
    for name in ("ops", "calls", "ranges", "host", "syncs", "memory", "metrics", "threads"):
        assert_frame_equal(found.read(name), expected.read(name), check_exact=True)


@pytest.mark.parametrize("times", FAR)
def test_a_row_in_each_table_of_an_export(tmp_path: Path, times: Pair) -> None:
    path = nsys(tmp_path / "good.sqlite")
    tables = OF_NSYS if abs(times[0]) > REACH else OF_NSYS[:-1]  # the last has no end
    expected, found = read(path), read(repeat(path, tables, times))
    told = {f"1 rows of {table} have no valid times and were left out" for table in tables}
    assert_same(found, expected)
    assert set(found.warnings) == {*expected.warnings, *told}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_row_in_each_table_of_a_columnar_export(tmp_path: Path, suffix: str) -> None:
    path = nsys(tmp_path / "good.sqlite")
    expected = read(write_columnar(path, tmp_path / "good", suffix))
    found = read(write_columnar(repeat(path, OF_NSYS, FAR[1]), tmp_path / "other", suffix))
    told = {f"1 rows of {table} have no valid times and were left out" for table in OF_NSYS}
    assert_same(found, expected)
    assert set(found.warnings) == {*expected.warnings, *told}


@pytest.mark.parametrize("time", [LEAST, 1 << 60, MOST])
def test_a_sample_and_a_record_of_an_event(tmp_path: Path, time: int) -> None:
    """Of a record only the time is left out."""
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as made:
        made.launch(0, 10, 20)
        made.gpu(0)
        made.gpu_metrics(GPU_TYPE, "SM Active")
        for at in (5, time):
            made.gpu_sample(at, GPU_TYPE, 50)
            made.insert(
                "CUPTI_ACTIVITY_KIND_CUDA_EVENT", deviceId=0, contextId=1, streamId=7, eventId=3,
                correlationId=at % 1000, globalPid=global_pid(100), timestamp=at,
            )  # fmt: skip
    path = made.path
    found = read(path)
    assert found.read("metrics")["time"].to_list() == [5]
    assert sorted(found.read("event_records")["time"].to_list(), key=str) == [5, None]
    assert "1 samples of GPU_METRICS have no valid times and were left out" in found.warnings


@pytest.mark.parametrize("times", FAR)
def test_a_row_in_each_table_of_a_database(tmp_path: Path, times: Pair) -> None:
    path = nvprof(tmp_path / "good.nvvp")
    expected = read(path)
    start, end = (time if abs(time) > 1000 else EPOCH + time for time in times)
    found = read(repeat(path, OF_NVPROF, (start, end)))
    assert_same(found, expected)
    more = set(found.warnings) - set(expected.warnings)
    assert len(more) == len(OF_NVPROF)
    assert all(text.startswith("1 ") for text in more)
    assert all("have no valid times" in text for text in more)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("time", [LEAST, 1, MOST])
def test_a_marker_of_a_database(tmp_path: Path, time: int, at: int) -> None:
    path = nvprof(tmp_path / "good.nvvp")
    expected = read(path)
    with writing(path) as file:
        columns = "flags, id, objectKind, objectId, name, domain"
        for flag, each in ((2, EPOCH + 90), (4, EPOCH + 95)):
            file.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_MARKER (timestamp, {columns}) SELECT ?, ?, 999,"
                " objectKind, objectId, name, domain FROM CUPTI_ACTIVITY_KIND_MARKER LIMIT 1",
                (time if (flag == 4) == bool(at) else each, flag),
            )
        file.commit()
    found = read(path)
    assert set(found.warnings) >= {
        "1 markers have no valid time, thread or process and were left out"
    }
    assert found.read("ops").equals(expected.read("ops"))
    known = found.read("ranges").filter(~pl.col("open"))
    assert known["end"].to_list() == expected.read("ranges")["end"].to_list()


def kineto(path: Path, *more: Event) -> Path:
    events: list[Event] = []
    for step in range(3):
        at = 1000.0 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at + 50, 350.0),
            launch(at + 100, 5.0, step + 1),
            kernel("gemm", at + 110, 90.0, step + 1),
        ]
    return write(path, text_of(*events, *more))


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (-(1 << 63) // 1000, 5), (-4_611_686_018_427_387.904, 5), (4_611_686_018_427_387.904, 5),
        (2**60 // 1000, 5), (100, 2**60 // 1000), (9_223_372_036_854_775.806, 1),
    ],
)  # fmt: skip
def test_events_of_a_pytorch_trace(tmp_path: Path, start: float, length: float) -> None:
    expected = read(kineto(tmp_path / "good.json"))
    kinds = ("kernel", "cuda_runtime", "cpu_op", "cuda_sync")
    more = {"device": 0, "stream": 7, "context": 1, "correlation": 77}
    far = [event(kind, "far", start, length, **more) for kind in kinds]
    found = read(kineto(tmp_path / "t.json", *far))
    assert_same(found, expected)
    assert "4 events have no valid times and were left out" in found.warnings


def test_times_may_count_from_anywhere(tmp_path: Path) -> None:
    """As those of exports that were shifted, in which nothing says so."""
    near = nsys(tmp_path / "near.sqlite")
    for by in (1_700_000_000_000_000_000, -(1 << 59), 1 << 60):
        path = shutil.copy(near, tmp_path / "far.sqlite")
        with writing(path) as file:
            for table in OF_NSYS[:5]:
                file.execute(f'UPDATE {table} SET start = start + {by}, "end" = "end" + {by}')
            file.commit()
        found, expected = read(path), read(near)
        lengths = pl.col("end") - pl.col("start")
        for name in ("ops", "calls", "ranges"):
            assert found.read(name).select(lengths).equals(expected.read(name).select(lengths))


@pytest.mark.parametrize("kind", ["nsys", "nvprof", "rpd", "rocpd", "rocprof", "kineto"])
def test_who_keeps_no_row_says_why(tmp_path: Path, kind: str) -> None:
    """All times are later than any recording's: the message said only that there is no GPU work."""
    path, late = tmp_path / "t", 1 << 62
    if kind == "nsys":
        with NsysBuilder(path) as made:
            made.launch(late, late + 10, late + 100)
    elif kind == "nvprof":
        with NvprofBuilder(path) as one:
            one.device()
            one.kernel(late, late + 100, correlation=1)
    elif kind == "rpd":
        with RpdBuilder(path) as of_rpd:
            of_rpd.kernel(late, late + 100, "gemm")
    elif kind == "rocpd":
        with RocpdBuilder(path) as of_rocpd:
            of_rocpd.kernel(late, late + 100, "gemm", correlation=1)
    elif kind == "rocprof":
        of_rocprof = RocprofBuilder()
        of_rocprof.kernel(late, late + 100, "gemm", correlation=1)
        of_rocprof.write(path)
    else:
        write(path, text_of(kernel("gemm", late // 1000, 90.0, 1)))
    with pytest.raises(MissingDataError, match=r"; 1 [\w ]+ have no valid times and were left out"):
        read(path)


LONG = REACH // 2


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "OSRT_API"])
def test_rows_that_no_recording_can_last_together_are_an_error(tmp_path: Path, table: str) -> None:
    path = nsys(tmp_path / "good.sqlite")
    read(repeat(path, [table], (0, LONG), MOST_TOGETHER // LONG - 1))
    with pytest.raises(DamagedTraceError, match=f"rows of {table} last .* hours together in "):
        read(repeat(path, [table], (0, LONG), MOST_TOGETHER // LONG + 1))


def test_ranges_without_an_end_last_no_longer(tmp_path: Path) -> None:
    path = nsys(tmp_path / "good.sqlite")
    with writing(path) as file:
        file.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = {LONG} WHERE rowid = 1')
        file.execute('UPDATE NVTX_EVENTS SET "end" = NULL')
        file.commit()
    read(path)
    with pytest.raises(DamagedTraceError, match="NVTX ranges without an end last"):
        read(repeat(path, ["NVTX_EVENTS"], (0, "NULL"), MOST_TOGETHER // LONG))  # type: ignore[arg-type]


def test_times_that_are_not_known_are_told_of_apart(tmp_path: Path) -> None:
    """Recorders write zeros for them, which may be far from all others."""
    path = nvprof(tmp_path / "t.nvvp")
    found = read(repeat(path, ["CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"], (0, 0)))
    assert "1 GPU ops have no valid times and were left out" in found.warnings


def test_only_rows_with_both_times_last() -> None:
    held = Times(Path("t"), [1]).within("rows")
    for start, end in ((None, 5), (5, None), (None, None), (7, 5)):
        frame = pl.DataFrame(
            {"start": [start, 1], "end": [end, 2]}, schema={"start": pl.Int64, "end": pl.Int64}
        )
        assert held(frame).equals(frame)
    assert held(frame.clear()).equals(frame.clear())


@pytest.mark.parametrize(
    ("starts", "middle"),
    [([0, 0], 0), ([7], 7), ([LEAST, MOST, 5], 5), ([1, 1 << 60], 1), ([3, 1, 2], 2)],
)
def test_the_middle_is_a_time_that_is_there(starts: list[int], middle: int) -> None:
    times = Times(Path("t"), starts)
    edges = [middle - REACH - 1, middle - REACH, middle + REACH, middle + REACH + 1, None]
    frame = pl.DataFrame({"start": edges}, schema={"start": pl.Int64})
    assert frame.select(times.hold(pl.col("start"))).to_series().to_list() == [
        False, True, True, False, None
    ]  # fmt: skip
    assert times.within("rows")(frame).height == 3
    assert times.losses == ("2 rows have no valid times and were left out",)


@pytest.mark.parametrize("starts", [None, []])
def test_where_no_time_is_told_all_may_be(starts: list[int] | None) -> None:
    """Those since 1970 as well, which are farther from 0 than times of one recording."""
    times = Times(Path("t"), starts)
    frame = pl.DataFrame({"start": [0, 1_700_000_000 * 10**9]})
    assert times.within("rows")(frame).equals(frame)
    assert times.losses == ()


def printed(path: Path, *rows: tuple[str, str]) -> Path:
    lines = [
        '"Start","Duration","Size","Device","Context","Stream","Name","Correlation_ID"',
        "ns,ns,B,,,,,",
        *(f'{at},90,,"V100 (0)","1","7","gemm",{at}' for at in (110, 1110, 2110)),
        *(f'{start},{length},,"V100 (0)","1","7","far",77' for start, length in rows),
    ]
    path.write_text("==7== NVPROF is profiling process 7, command: x\n" + "\n".join(lines) + "\n")
    return path


OF_RPD = ("rocpd_op", "rocpd_api")
OF_ROCPD = ("rocpd_kernel_dispatch_00aa", "rocpd_memory_copy_00aa", "rocpd_region_00aa")


def rpd(path: Path) -> Path:
    with RpdBuilder(path) as made:
        for at in (0, 1000, 2000):
            made.marker(at + 50, at + 400, f"step {at}")
            made.kernel(at + 110, at + 200, "gemm")
            made.copy(at + 230, at + 300, "CopyHostToDevice", 64)
    return path


def rocpd(path: Path) -> Path:
    with RocpdBuilder(path) as made:
        for at in (0, 1000, 2000):
            made.marker(at + 50, at + 400, f"step {at}")
            made.region(at + 100, at + 105, "hipLaunchKernel", correlation=at)
            made.kernel(at + 110, at + 200, "gemm", correlation=at)
            made.copy(at + 230, at + 300, "HOST_TO_DEVICE", 64, 0, 4)
    return path


def rocprof(path: Path, *far: Pair) -> Path:
    made = RocprofBuilder()
    for at in (0, 1000, 2000):
        made.marker(at + 50, at + 400, f"step {at}", at + 1)
        made.call(at + 100, at + 105, "hipLaunchKernel", at + 2)
        made.kernel(at + 110, at + 200, "gemm", correlation=at + 2)
    for start, end in far:
        times = start - AMD_EPOCH, end - AMD_EPOCH
        made.marker(*times, "far", 7)
        made.call(*times, "hipLaunchKernel", 8)
        made.kernel(*times, "far", correlation=8)
    return made.write(path)


def xplane(path: Path, *far: Pair) -> Path:
    """Times of its lines are in ns, those of events ps after that of the line."""
    kernels = [("gemm", at * 1000, 90_000, {"correlation_id": at}) for at in (110, 1110, 2110)]
    calls = [
        ("hipLaunchKernel", at * 1000, 5000, {"correlation_id": at + 10})
        for at in (100, 1100, 2100)
    ]
    more = [
        ("far", start * 1000, (end - start) * 1000, {"correlation_id": 7}) for start, end in far
    ]
    gpu = plane("/device:GPU:3", ("Stream #9(Kernel)", 1000, kernels + more))
    path.write_bytes(gpu + plane("/host:CPU", ("Host Threads/77", 1000, calls + more)))
    return path


def damaged(folder: Path, kind: str) -> tuple[Path, Path]:
    """Return a trace, and the same with every kind of impossible times."""
    if kind == "nsys":
        good = nsys(folder / "good.sqlite")
        bad = shutil.copy(good, folder / "bad.sqlite")
        for times in FAR:
            add(bad, OF_NSYS, times) if abs(times[0]) > REACH else add(bad, OF_NSYS[:-1], times)
    elif kind == "nvprof":
        good = nvprof(folder / "good.nvvp")
        bad = shutil.copy(good, folder / "bad.nvvp")
        for start, end in FAR:
            add(bad, OF_NVPROF, (start if abs(start) > 1000 else EPOCH + start, end))
    elif kind == "csv":
        good = printed(folder / "good.csv")
        bad = printed(folder / "bad.csv", ("230", "1e18"), ("2e18", "5"), ("9e18", "5"))
    elif kind in ("rpd", "rocpd"):
        made, tables = (rpd, OF_RPD) if kind == "rpd" else (rocpd, OF_ROCPD)
        good = made(folder / "good.db")
        bad = shutil.copy(good, folder / "bad.db")
        for start, end in FAR:
            add(bad, tables, (start if abs(start) > 1000 else AMD_EPOCH + start, end))
    elif kind == "rocprof":
        good = rocprof(folder / "good.json")
        near = [(start if abs(start) > 1000 else AMD_EPOCH + start, end) for start, end in FAR]
        bad = rocprof(folder / "bad.json", *near)
    elif kind == "xplane":
        (folder / "good").mkdir()
        (folder / "bad").mkdir()
        good = xplane(folder / "good" / "t.xplane.pb")
        last = (1 << 63) // 1000
        bad = xplane(folder / "bad" / "t.xplane.pb", (240, last - 1), (last - 7, last - 2))
    else:
        good = kineto(folder / "good.json")
        times = ((-(1 << 63) // 1000, 5), (100, 2**60 // 1000), (2**60 // 1000, 5))
        kinds = ("kernel", "cuda_runtime", "user_annotation")
        where = {"device": 0, "stream": 7, "context": 1, "correlation": 77}
        far = [event(each, "far", *pair, **where) for each in kinds for pair in times]
        bad = kineto(folder / "bad.json", *far)
    return good, bad


COMMANDS = (
    "breakdown", "breakdown --by kernel", "breakdown --by range --inclusive", "diagnose",
    "idle", "stragglers", "critical-path", "whatif --no-sync", "flops", "links", "collectives",
    "memory", "info", "waits", "runs show", "sql 'select sum(\"end\" - start) s from ops'",
)  # fmt: skip


OTHER_KINDS = ("nvprof", "csv", "kineto", "rpd", "rocpd", "rocprof", "xplane")


@pytest.mark.parametrize("kind", ["nsys", *OTHER_KINDS])
def test_tables_are_those_without_such_rows(tmp_path: Path, kind: str) -> None:
    good, bad = map(read, damaged(tmp_path, kind))
    assert_same(bad, good)
    assert len(bad.warnings) > len(good.warnings)


@pytest.mark.slow
@pytest.mark.usefixtures("facts_found_once")
@pytest.mark.parametrize(
    "kind", ["nsys", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in OTHER_KINDS)]
)
def test_every_command_says_what_it_says_without_such_rows(tmp_path: Path, kind: str) -> None:
    """Here a warning of NumPy is an error."""
    store = str(tmp_path / "store")

    def said(run: str, words: str) -> tuple[int, object]:
        name, *options = shlex.split(words)
        before = [name, options.pop(0)] if name == "runs" else [name]
        command = [*before, run, *options, "--store", store, "--format", "json"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code in (0, 2, 3), (words, done.output)
        text = done.stdout.replace(f"whatif {run} ", "whatif RUN ")  # advice names the run
        return done.exit_code, bare(json.loads(text)) if done.exit_code == 0 else None

    for name, path in zip(("good", "bad"), damaged(tmp_path, kind), strict=True):
        done = CliRunner().invoke(app, ["ingest", str(path), "--store", store, "--run", name])
        assert done.exit_code == 0, done.output
        assert ("have no valid times and were left out" in done.output) == (name == "bad")
    for words in COMMANDS:
        assert said("bad", words) == said("good", words), words


def bare(told: object) -> object:
    """Leave out what is of the file: its names, its rows, and the warnings."""
    if isinstance(told, dict):
        return {key: bare(value) for key, value in told.items() if key not in OF_THE_FILE}
    return [bare(one) for one in told] if isinstance(told, list) else told


OF_THE_FILE = {
    "run", "runs", "verdicts", "warnings", "file", "files", "found", "id", "created", "digest",
    "size", "bytes", "name", "reports",
}  # fmt: skip
