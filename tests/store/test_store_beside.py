"""The digest of a large report is made while it is read, unless the store may know its content."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from store_helpers import add, left_over

import tracekit as tk
from tracekit.errors import DamagedTraceError, InputError
from tracekit.runs import _new_runs as _ingest
from tracekit.store import Store, file_digest, file_size

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE, OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"
PATIENCE = 20
"""Seconds until a test gives up waiting for what must happen at once."""


class Held:
    """A digest that is not made before something else has happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.was_begun = threading.Event()
        monkeypatch.setattr(_ingest, "file_digest", self._digest)
        monkeypatch.setattr(_ingest, "_SMALL", -1)  # as if every report were large

    def _digest(self, path: Path, note: Callable[[int], None]) -> str:
        self.was_begun.set()
        deadline = time.monotonic() + PATIENCE
        while not self.may_go_on.wait(0.01):
            note(0)  # which raises once nobody waits for it
            assert time.monotonic() < deadline, "what the digest waits for does not happen"
        return file_digest(path, note)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Path(shutil.copy(TRACE, tmp_path / "t.sqlite"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def steps_of(trace: Path, store: Store) -> tuple[tk.Run, bool, list[str]]:
    """Ingest a trace; return the run, whether it is new, and the steps told of, each once."""
    steps: dict[str, None] = {}
    run, is_new = tk.ingest(
        trace, store=store.root, progress=lambda step, *_: steps.setdefault(step)
    )
    return run, is_new, list(steps)


def test_a_report_is_read_before_its_digest_is_there(trace: Path, store: Store, held: Held) -> None:
    told: list[tuple[str, int, int]] = []

    def progress(step: str, done: int, total: int) -> None:
        told.append((step, done, total))
        if step == "attribute stages":
            held.may_go_on.set()

    run, is_new = tk.ingest(trace, store=store.root, progress=progress)
    assert is_new
    assert run.record.digest == file_digest(TRACE)
    assert run.table("reports").collect()["digest"].to_list() == [file_digest(TRACE)]
    assert told[-1] == ("check content", file_size(TRACE), file_size(TRACE))
    assert store.check() == []


def test_the_tables_are_those_of_a_report_whose_digest_came_first(
    trace: Path, store: Store, tmp_path: Path
) -> None:
    beside = tk.ingest(trace, store=store.root)[0]
    first = tk.ingest([trace], store=tmp_path / "other")[0]
    assert beside.record.digest == first.record.digest
    for name in ("reports", "ops", "ranges"):
        assert beside.table(name).collect().equals(first.table(name).collect())


@pytest.mark.parametrize("name", ["t.sqlite", "other.sqlite"])
def test_what_is_there_under_any_name_is_not_read(name: str, trace: Path, store: Store) -> None:
    run = tk.ingest(trace, store=store.root)[0]
    trace = trace.rename(trace.with_name(name))
    again, is_new, steps = steps_of(trace, store)
    assert (again.id, is_new, steps) == (run.id, False, ["check content"])


def test_another_file_of_that_size_waits_for_its_digest(
    trace: Path, store: Store, held: Held
) -> None:
    held.may_go_on.set()
    tk.ingest(trace, store=store.root)
    content = bytearray(trace.read_bytes())
    content[27] ^= 1  # SQLite's counter of changes, which is of no matter
    trace.write_bytes(content)
    _, is_new, steps = steps_of(trace, store)
    assert is_new
    assert steps[0] == "check content"


def test_runs_of_unknown_size_may_be_of_any_report(trace: Path, store: Store) -> None:
    add(store)
    assert store.may_hold(file_size(trace))
    assert steps_of(trace, store)[2][0] == "check content"


def test_a_store_knows_the_sizes_of_its_runs(trace: Path, store: Store) -> None:
    size = file_size(trace)
    assert not store.may_hold(size)
    run = tk.ingest(trace, store=store.root)[0]
    assert store.may_hold(size)
    assert not store.may_hold(size + 1)
    assert run.record.size == size
    assert "size" not in run.record.summary
    assert store.find(run.id) == run.record


@pytest.mark.slow
@pytest.mark.usefixtures("samples_read_once")
@pytest.mark.parametrize("name", [None, "mine"])
@pytest.mark.parametrize("is_new_store", [True, False])
def test_the_same_content_ingested_elsewhere_meanwhile_is_one_run(
    name: str | None, *, is_new_store: bool, trace: Path, store: Store
) -> None:
    if not is_new_store:
        tk.ingest(OTHER, store=store.root)
    before = len(store.runs())
    others: list[tk.Run] = []

    def progress(step: str, *_: int) -> None:
        if step.startswith("attribute") and not others:
            others.append(tk.ingest(TRACE, store=store.root, name=name)[0])

    run, is_new = tk.ingest(trace, store=store.root, name=name, progress=progress)
    assert (run.id, is_new) == (others[0].id, False)
    assert len(store.runs()) == before + 1
    assert left_over(store) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
        lambda path: Path(shutil.copy(path, f"{path}.new")).replace(path),
        Path.unlink,
    ],
    ids=["grown", "replaced", "removed"],
)
def test_a_file_that_changes_before_its_digest_is_made_is_no_run(
    change: Callable[[Path], object], trace: Path, store: Store, held: Held
) -> None:
    def progress(step: str, *_: int) -> None:
        if step == "attribute stages" and not held.may_go_on.is_set():
            change(trace)
            held.may_go_on.set()

    with pytest.raises(InputError):
        tk.ingest(trace, store=store.root, progress=progress)
    assert not store.root.exists()


def test_a_file_that_changes_while_its_digest_is_made_is_no_run(
    trace: Path, store: Store, held: Held
) -> None:
    def progress(step: str, *_: int) -> None:
        if step == "check content" and not held.may_go_on.is_set():
            trace.touch()
            held.may_go_on.set()

    with pytest.raises(DamagedTraceError, match="was changed while it was read"):
        tk.ingest(trace, store=store.root, progress=progress)
    assert not store.root.exists()


def test_that_a_file_cannot_be_read_is_told_rather_than_what_came_of_it(
    trace: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace.write_bytes(trace.read_bytes()[:5000])

    def unreadable(*_: object) -> str:
        raise InputError(f"{trace} cannot be read", "Input/output error")

    with pytest.raises(InputError) as damaged:
        tk.ingest(trace, store=store.root)
    assert "Input/output error" not in str(damaged.value)
    monkeypatch.setattr(_ingest, "file_digest", unreadable)
    with pytest.raises(InputError, match="Input/output error"):
        tk.ingest(trace, store=store.root)
    assert not store.root.exists()


@pytest.mark.parametrize("step", ["attribute stages", "check content"])
def test_an_interrupt_ends_the_digest(step: str, trace: Path, store: Store, held: Held) -> None:
    def progress(now: str, *_: int) -> None:
        if now == step:
            assert held.was_begun.wait(PATIENCE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tk.ingest(trace, store=store.root, progress=progress)
    assert not any(thread.name.startswith("digest") for thread in threading.enumerate())
    assert not store.root.exists()


def test_opening_a_new_file_makes_its_digest_once(
    trace: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def counted(path: Path, note: Callable[[int], None]) -> str:
        made.append(path)
        return file_digest(path, note)

    monkeypatch.setattr(_ingest, "file_digest", counted)
    run = tk.open(trace, store=store.root)
    assert made == [trace]
    assert tk.open(trace, store=store.root).id == run.id


def test_the_size_is_kept_by_a_new_name_and_other_columns(trace: Path, store: Store) -> None:
    run = tk.ingest(trace, store=store.root)[0]
    store.rename(run.id, "other")
    again, is_new = tk.ingest(trace, store=store.root, verdict="inference")
    assert is_new
    assert again.record.size == run.record.size == file_size(trace)
