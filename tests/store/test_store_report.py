"""Making one report: with little memory, and with what fails in the middle."""

from __future__ import annotations

import errno
import itertools
import pickle
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from effort import by_day
from nsys_builder import NsysBuilder
from polars.testing import assert_frame_equal

from tracekit.attribution import Rules
from tracekit.errors import DamagedTraceError, StoreError, TracekitError
from tracekit.model import TABLES, Stream, Trace, TraceWriter, missing_files
from tracekit.sources import _ordering
from tracekit.store import ReportOptions, _report
from tracekit.store._report import Behind, ReportMade, make_report
from tracekit.support import compiled as _compiled
from tracekit.support import spool as _spool
from tracekit.support.arrays import ArrayFile

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
NAMES = ("ddp_4gpu", "ddp_4gpu_no_backward_range", "p2p_2gpu_start_end")
OURS = ("add", "ahead", "write", "read", "beside")
RULES = Rules.load()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread outlives a report."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)]
    assert left == []


@pytest.fixture
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little memory mean few rows at once."""
    monkeypatch.setattr(_spool, "_FEWEST_ROWS", 128)
    monkeypatch.setattr(_ordering, "_SAMPLED", 4)


def _make(name: str, folder: Path, memory: int = _spool.DEFAULT_MEMORY) -> ReportMade:
    return make_report(FOLDER / f"{name}.sqlite", folder, ReportOptions(RULES, "d1", memory))


def _assert_same(one: Path, other: Path) -> None:
    for name in TABLES:
        tables = (Trace.scan(folder).read(name) for folder in (one, other))
        assert_frame_equal(*tables, categorical_as_str=True)


LITTLE = _spool._LIBRARIES + _spool._SHARE * 8_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory", "few_rows"),
    [
        ("ddp_4gpu", 1, _compiled.FEW_ROWS),
        ("p2p_2gpu_start_end", LITTLE, 0),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in itertools.product(NAMES, (1, LITTLE), (0, _compiled.FEW_ROWS))
        ),
    ],
)
@pytest.mark.usefixtures("little_at_once")
def test_little_memory_gives_the_same(
    name: str, memory: int, few_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Path] = []
    original = ArrayFile.of

    def write(path: Path, arrays: Mapping[str, np.ndarray]) -> ArrayFile:
        waited.append(path)
        return original(path, arrays)

    ample = _make(name, tmp_path / "ample")
    monkeypatch.setattr(ArrayFile, "of", write)
    monkeypatch.setattr(_compiled, "FEW_ROWS", few_rows)
    little = _make(name, tmp_path / "little", memory)
    assert waited
    assert len(list((tmp_path / "little" / "ops").iterdir())) > 3
    assert little == ample
    for folder in (tmp_path / "ample", tmp_path / "little"):
        assert not (folder / "waiting").exists()
        assert missing_files(folder) == []
    _assert_same(tmp_path / "ample", tmp_path / "little")


def test_the_heap_is_kept_small_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(_report, "keep_small", lambda: asked.append(1))
    _make(NAMES[0], tmp_path / "usual")
    assert not asked
    _make(NAMES[0], tmp_path / "little", 512 << 20)
    assert asked == [1]


def test_a_report_brings_its_labels_memory_and_overhead_along(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with NsysBuilder(path) as nsys:
        nsys.launch(100, 120, 300)
        nsys.mark(50, "tracekit.label batch=16")
        nsys.memory(60, 0x1000, 4096)
        nsys.overhead(-70, 80, "NVTX profiling initialization")
    made = make_report(path, tmp_path / "report", ReportOptions(RULES, "d1"))
    assert made.labels == {"batch": "16"}
    assert pickle.loads(pickle.dumps(made)) == made
    trace = Trace.scan(tmp_path / "report")
    assert trace.read("memory").select("time", "change", "in_use").rows() == [(60, 4096, 4096)]
    assert trace.read("host").select("library", "start", "end").rows() == [("profiler", -70, 80)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [
        "processes",
        "ops",
        *(pytest.param(e, marks=pytest.mark.nightly) for e in ("iterations", "ranges", "calls")),
    ],
)
@pytest.mark.usefixtures("little_at_once")
def test_a_write_that_fails(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = TraceWriter.append

    def append(writer: TraceWriter, name: str, frame: pl.DataFrame) -> None:
        if name == table:
            raise OSError(errno.ENOSPC, "No space left on device", "part")
        original(writer, name, frame)

    monkeypatch.setattr(TraceWriter, "append", append)
    with pytest.raises(StoreError, match=r"No space left on device of part.*free some space"):
        _make("ddp_4gpu", tmp_path / "report", 1)
    assert missing_files(tmp_path / "report") != []
    assert not (tmp_path / "report" / "waiting").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "reads"),
    by_day(
        itertools.product(["ranges", "calls", "ops"], [0, 1, 15, 30]),
        ("ranges", 15), ("calls", 0), ("ops", 15),
    ),
)  # fmt: skip
@pytest.mark.usefixtures("little_at_once")
def test_a_source_that_fails(
    table: str, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = Stream.coded, [reads]

    def read(stream: Stream, number: int, *columns: str) -> pl.DataFrame:
        if stream._table.name == table:
            if not left[0]:
                raise DamagedTraceError("a table is cut short")
            left[0] -= 1
        return original(stream, number, *columns)

    monkeypatch.setattr(Stream, "coded", read)
    with pytest.raises(DamagedTraceError, match=r"^a table is cut short$"):
        _make("ddp_4gpu", tmp_path / "report", 1)
    assert missing_files(tmp_path / "report") != []
    assert not (tmp_path / "report" / "waiting").exists()


@pytest.mark.parametrize("files", [0, 5, 30])
@pytest.mark.usefixtures("little_at_once")
def test_no_space_for_what_waits(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = ArrayFile.of, [files]

    def write(path: Path, arrays: Mapping[str, np.ndarray]) -> ArrayFile:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path, arrays)

    monkeypatch.setattr(ArrayFile, "of", write)
    with pytest.raises(StoreError, match="No space left on device") as error:
        _make("ddp_4gpu", tmp_path / "report", 1)
    assert isinstance(error.value, TracekitError)
    assert not (tmp_path / "report" / "waiting").exists()


def test_a_folder_that_has_a_report_is_refused(tmp_path: Path) -> None:
    _make("p2p_2gpu_start_end", tmp_path / "report")
    before = sorted((tmp_path / "report").rglob("*"))
    (tmp_path / "report" / "waiting").mkdir()
    with pytest.raises(StoreError):
        _make("p2p_2gpu_start_end", tmp_path / "report")
    (tmp_path / "report" / "waiting").rmdir()
    assert sorted((tmp_path / "report").rglob("*")) == before


FRAME = pl.DataFrame({"row": [1]})


def test_a_worker_brings_no_folder_back_that_its_ingest_has_dropped(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        make_report(
            FOLDER / "p2p_2gpu_start_end.sqlite",
            tmp_path / "dropped" / "0",
            ReportOptions(RULES, "d1"),
        )
    assert not (tmp_path / "dropped").exists()


def test_writes_are_done_in_order_by_the_end() -> None:
    done: list[tuple[str, int]] = []

    def write(table: str, frame: pl.DataFrame) -> None:
        time.sleep(0.001)
        done.append((table, frame.height))

    expected = [(f"table {number % 3}", number) for number in range(20)]
    with Behind(write) as behind:
        for table, rows in expected:
            behind(table, pl.DataFrame({"row": range(rows)}).clone)
    assert done == expected


def test_few_frames_wait() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    handed: list[int] = []

    def write(*_: object) -> None:
        begun.release()
        assert go_on.acquire(timeout=5)

    def hand(behind: Behind) -> None:
        for number in range(10):
            behind("ops", FRAME.clone)
            handed.append(number)

    with Behind(write) as behind:
        thread = threading.Thread(target=hand, args=(behind,))
        thread.start()
        assert begun.acquire(timeout=5)
        thread.join(0.05)
        assert len(handed) <= 2
        for _ in range(10):
            go_on.release()
        thread.join()


@pytest.mark.parametrize("calls", [1, 2, 3, 10])
def test_the_error_of_a_write_is_raised(calls: int) -> None:
    written: list[str] = []

    def write(table: str, _frame: pl.DataFrame) -> None:
        written.append(table)
        raise OSError(f"write {len(written)}")

    def body() -> None:
        with Behind(write) as behind:
            for number in range(calls):
                behind(f"table {number}", FRAME.clone)

    with pytest.raises(OSError, match=r"^write 1$"):
        body()


def test_the_error_of_the_body_is_raised_first() -> None:
    def write(*_: object) -> None:
        raise OSError("write")

    def body() -> None:
        with Behind(write) as behind:
            behind("ops", FRAME.clone)
            raise ValueError("body")

    with pytest.raises(ValueError, match="body"):
        body()


def test_what_waits_is_not_written_after_an_error() -> None:
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def write(table: str, _frame: pl.DataFrame) -> None:
        begun.set()
        go_on.wait(5)
        written.append(table)

    def body() -> None:
        with Behind(write) as behind:
            behind("first", FRAME.clone)
            begun.wait(5)
            behind("second", FRAME.clone)
            threading.Timer(0.05, go_on.set).start()
            raise ValueError("body")

    with pytest.raises(ValueError, match="body"):
        body()
    assert written == ["first"]
