"""Disks that fail or are full, file systems without locks, clocks that are set back."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from store_helpers import add, left_over, tiny

import tracekit as tk
from tracekit.errors import DamagedTraceError, StoreError
from tracekit.store import Store, _reports, _rows, _staging, _store

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE = SAMPLES / "p2p_2gpu_start_end.sqlite"

CALLS = ("open", "mkdir", "fsync", "rename", "replace", "unlink", "write", "rmdir")
"""What a store asks of the operating system; polars and SQLite ask it themselves."""


class Disk:
    """A disk that fails once: at the call of a number, counted from 0."""

    def __init__(self, root: Path, failing: int, number: int) -> None:
        self.root, self.failing, self.number = str(root), failing, number
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def called(self, name: str, path: object) -> None:
        with self._lock:
            self.calls.append(f"{name} {path}")
            if len(self.calls) == self.failing + 1:
                raise OSError(self.number, os.strerror(self.number), str(path))

    def is_of(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)


@contextmanager
def disk(root: Path, failing: int, number: int) -> Iterator[Disk]:
    """Let calls for what lies in `root` be counted, and one of them fail."""
    it = Disk(root, failing, number)
    patch = pytest.MonkeyPatch()

    def failing_os(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def called(path: object, *rest: object, **options: object) -> object:
            is_inside = any(key.endswith("dir_fd") and options[key] is not None for key in options)
            if it.is_of(path) or is_inside or name in ("fsync", "write"):
                it.called(name, path)
            # What is on disk for good takes long, and matters to no test.
            return None if name == "fsync" else real(path, *rest, **options)

        return called

    real_write = pl.DataFrame.write_parquet

    def write_parquet(frame: pl.DataFrame, file: object, *rest: object, **options: object) -> None:
        it.called("write_parquet", file)
        real_write(frame, file, *rest, **options)  # type: ignore[arg-type]

    for name in CALLS:
        patch.setattr(os, name, failing_os(name))
    patch.setattr(pl.DataFrame, "write_parquet", write_parquet)
    try:
        yield it
    finally:
        patch.undo()


def assert_whole(store: Store, before: int) -> None:
    """All that the store lists is there, nothing half is, and the next ingest leaves nothing."""
    assert before <= len(store.runs()) <= before + 1
    for record in store.runs():
        assert store.open(record).read("devices").height
    add(store, "after")
    assert left_over(store) == []
    # Only the copy of a run's row may be lacking, in which its folder says whose it is.
    assert all(each.mended for each in store.check(repair=True))
    assert store.check() == []


def hint_of(errors: Any, do: Callable[[], object]) -> str | None:
    """Do something, and return what an error says that can be done; None where there is none."""
    try:
        do()
    except errors as error:
        return str(error.hint)
    return None


def faults(tmp_path: Path, step: int) -> tuple[int, int]:
    """Let each of every so many calls fail, in turn; return how many, and how many were told."""
    good = Store(tmp_path / "good")
    add(good, "old", trace=lambda: tiny(2))
    with disk(tmp_path, -1, 0) as counted:
        add(Store(Path(shutil.copytree(good.root, tmp_path / "counted"))), "new")
    # Of the calls of a kind, which are alike for all tables, at least the first.
    kinds = [each.partition(" ")[0] for each in counted.calls]
    edges = {kinds.index(kind) for kind in kinds} | {len(kinds) - 1}
    chosen = sorted(edges | set(range(0, len(kinds), step)))
    told = 0
    for failing in chosen:
        store = Store(Path(shutil.copytree(good.root, tmp_path / f"{failing}")))
        with disk(store.root, failing, (errno.ENOSPC, errno.EIO)[failing % 2]):
            told += hint_of(StoreError, lambda store=store: add(store, "new")) is not None
        assert_whole(store, 1)
        shutil.rmtree(store.root)
    return len(chosen), told


@pytest.mark.parametrize("step", [1000, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_error_at_any_call_of_an_ingest_is_told_and_leaves_nothing_half(
    step: int, tmp_path: Path
) -> None:
    tried, told = faults(tmp_path, step)
    assert tried >= 7  # one of each kind
    assert told > tried / 3


@pytest.mark.nightly
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_of_reading_a_trace_is_told_too(number: int, tmp_path: Path) -> None:
    with disk(tmp_path, -1, number) as counted:
        tk.ingest(TRACE, store=tmp_path / "counted")
    for failing in range(len(counted.calls)):
        root = tmp_path / f"{failing}"
        with disk(root, failing, number), pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRACEKIT_STORE", str(root))
            hint_of((StoreError, DamagedTraceError), lambda: tk.ingest(TRACE))
        tk.ingest(TRACE, store=root)
        assert Store(root).check() == []
        assert left_over(Store(root)) == []
        shutil.rmtree(root)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_told(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match="its file system has no locks"):
        add(Store(tmp_path / "store"))
    assert Store(tmp_path / "store").runs() == []


@pytest.mark.parametrize("cause", ["locking protocol", "disk I/O error"])
def test_a_catalogue_whose_locks_fail_is_told_at_once(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    add(store)

    def begin(*_: object) -> None:
        raise sqlite3.OperationalError(cause)

    for module in ("_catalogue", "_store"):
        monkeypatch.setattr(f"tracekit.store.{module}.begin", begin)
    for use in (store.runs, lambda: add(store, "bb")):
        with pytest.raises(StoreError, match="may have no locks"):
            use()


@pytest.mark.parametrize("is_ingest", [True, False])
def test_waiting_for_another_process_is_not_silent(
    is_ingest: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(tmp_path / "store")
    add(store)
    monkeypatch.setattr(_rows, "_QUIET_SECONDS", 0.02)
    path = store.root / "catalogue.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        done = threading.Timer(0.4, lambda: other.execute("ROLLBACK"))
        done.start()
        with caplog.at_level(logging.WARNING, "tracekit"):
            runs = [add(store, "bb")[0]] if is_ingest else store.runs()
        done.join()
    assert len(runs) == 1
    assert f"{path} is kept busy by another process: waiting up to 30 s" in caplog.text


def test_a_clock_that_is_set_back_puts_no_run_before_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Back(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(1970, 1, 2, tzinfo=UTC)

    store = Store(tmp_path / "store")
    add(store, "first")
    monkeypatch.setattr(_store, "datetime", Back)
    add(store, "second")
    assert [run.name for run in store.runs()] == ["first", "second"]
    assert store.find("@latest").name == "second"
    assert left_over(store) == []


@pytest.mark.nightly
def test_a_catalogue_whose_server_is_restarted_is_told_and_whole_afterwards(
    stoppable: Any, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store", stoppable.url)
    add(store, "first")
    stoppable.stop()
    for use in (store.runs, lambda: add(store, "second")):
        with pytest.raises(StoreError, match=r"TRACEKIT_CATALOG|catalogue"):
            use()
    stoppable.start()
    assert [run.name for run in store.runs()] == ["first"]
    assert_whole(store, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_catalogue_whose_server_goes_while_an_ingest_runs(
    comes_back: bool, stoppable: Any, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store", stoppable.url)
    add(store, "first")

    def make() -> Any:
        stoppable.stop()
        if comes_back:
            stoppable.start()
        return tiny(2)

    hint = hint_of(StoreError, lambda: add(store, "second", trace=make))
    assert comes_back or hint is not None
    if not comes_back:
        stoppable.start()
    assert_whole(store, 1)


class TestChangedWhileItIsRead:
    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        return Path(shutil.copy(TRACE, tmp_path / "t.sqlite"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "moment", [60, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(0, 100, 15))]
    )
    def test_what_another_commits_is_all_there_or_nothing_is(
        self, moment: int, trace: Path, tmp_path: Path
    ) -> None:
        """At a moment, in hundredths of an ingest's steps, another removes half the kernels."""
        kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
        steps: list[str] = []
        tk.ingest(trace, store=tmp_path / "first", progress=lambda step, *_: steps.append(step))
        left = [moment * len(steps) // 100]

        def progress(*_: object) -> None:
            left[0] -= 1
            if left[0] == -1:
                with closing(sqlite3.connect(trace)) as other:
                    other.execute(f"DELETE FROM {kernels} WHERE rowid % 2")
                    other.commit()

        before, after = 316, 158
        try:
            run = tk.ingest(trace, store=tmp_path / "store", progress=progress)[0]
        except DamagedTraceError:
            assert Store(tmp_path / "store").runs() == []
        else:
            found = run.sql("SELECT count(*) AS n FROM ops WHERE kind = 'compute'")["n"].item()
            assert found in (before, after)
        assert left[0] < 0
        again = tk.ingest(trace, name="again", store=tmp_path / "store")[0]
        told = again.sql("SELECT count(*) AS n FROM ops WHERE kind = 'compute'")["n"].item()
        assert told == after

    @pytest.mark.parametrize(
        "change",
        [
            lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
            lambda path: shutil.copy(SAMPLES / "p2p_4gpu_star.sqlite", path),
            lambda path: Path(shutil.copy(path, f"{path}.new")).replace(path),
            Path.unlink,
        ],
        ids=["grown", "overwritten", "replaced", "removed"],
    )
    def test_is_no_run(self, trace: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
        left = [change]

        def progress(step: str, done: int, total: int) -> None:
            if step != "check content" and left:
                left.pop()(trace)

        with pytest.raises((DamagedTraceError, tk.errors.InputError)):
            tk.ingest(trace, store=tmp_path / "store", progress=progress)
        assert not left
        assert Store(tmp_path / "store").runs() == []
        if trace.exists():
            tk.ingest(trace, store=tmp_path / "store")
            assert left_over(Store(tmp_path / "store")) == []


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (pl.exceptions.ComputeError("No space left on device (os error 28)"), StoreError,
         "cannot be written"),
        (pl.exceptions.ComputeError("a column is odd"), pl.exceptions.ComputeError, "is odd"),
        (OSError(errno.EIO, "Input/output error", "x"), StoreError, "error of x"),
        (OSError("odd"), StoreError, r"cannot be used \(odd\)"),
    ],
)  # fmt: skip
def test_what_polars_and_the_system_say_of_a_disk_is_told(
    tmp_path: Path, error: Exception, kind: type[Exception], said: str
) -> None:
    """And what polars says of anything else is none of the store's."""
    with pytest.raises(kind, match=said), _staging.file_errors(tmp_path):
        raise error


def test_where_no_file_that_is_open_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, which does not sync folders either."""
    real, synced = os.open, []

    def opened(path: Any, *rest: Any, **more: Any) -> int:
        synced.append(Path(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(_staging, "_ON_WINDOWS", True)
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.delattr(os, "fchmod")
    store = Store(tmp_path)
    add(store)
    assert left_over(store) == []
    assert synced
    assert [path for path in synced if path.is_dir()] == []


def test_what_a_worker_wrote_elsewhere_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reports, "_PATIENCE", 0.05)
    with pytest.raises(StoreError, match=r"a worker wrote to .* cannot be seen here"):
        _reports._check_visible(tmp_path / "0")


def test_attempts_that_failed_leave_nothing(tmp_path: Path) -> None:
    for name in ("0", "1", "0.1", "2"):
        (tmp_path / name).mkdir()
    _reports._drop_attempts(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
