"""Adding runs: what is made, what is recognised, what is replaced, and what a failure leaves."""

from __future__ import annotations

import math
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from store_helpers import add, left_over, never, tiny

from tracekit.errors import DamagedTraceError, NameTakenError, StoreError, UsageError
from tracekit.model import TABLES, Trace
from tracekit.model._trace import _StoredTables
from tracekit.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_an_added_run_is_listed_and_opens_with_its_columns(store):
    before = datetime.now(UTC)
    record, made = add(
        store,
        "d1",
        options='{"rules": []}',
        files=["rank0.sqlite"],
        name="first run",
        labels={"model": "vgg", "gpus": "3"},
        trace=lambda: tiny(3, ("one thing", "another")),
    )

    assert made
    assert len(record.id) == 12
    assert set(record.id) <= set("0123456789abcdef")
    assert record.name == "first run"
    assert before <= record.created <= datetime.now(UTC)
    assert record.created.utcoffset() == timedelta(0)
    assert record.digest == "d1"
    assert record.options == '{"rules": []}'
    assert record.files == ("rank0.sqlite",)
    assert record.labels == {"model": "vgg", "gpus": "3"}
    assert record.warnings == ("one thing", "another")
    assert record.summary == {"devices": 3}
    assert store.runs() == [record]
    trace = store.open(record)
    assert trace.read("devices")["device"].to_list() == [0, 1, 2]
    assert trace.warnings == ("one thing", "another")
    assert {name: trace[name].collect_schema() for name in TABLES} == {
        name: table.schema for name, table in TABLES.items()
    }
    assert left_over(store) == []


def test_a_new_store_object_sees_what_another_wrote(store, catalog):
    record, _ = add(store)
    assert Store(store.root, catalog).runs() == [record]


def test_summary_values_come_back_and_numbers_that_json_lacks_are_unknown(store):
    summary = {"z": 1, "share": 0.1, "gpu": "H100", "none": None, "nan": math.nan, "inf": math.inf}
    record, _ = add(store, summarise=lambda _: summary)
    known = {"z": 1, "share": 0.1, "gpu": "H100", "none": None, "nan": None, "inf": None}
    assert record.summary == store.runs()[0].summary == known
    assert list(store.runs()[0].summary) == list(summary)


def test_file_names_that_are_not_unicode_are_kept(store):
    name = os.fsdecode(b"rank-\xff.sqlite")
    record, _ = add(store, files=[name], default_name=name)
    assert store.runs()[0].files == (name,)
    assert record.name == "rank-_"


def test_the_summary_is_made_of_the_stored_columns(store):
    sources = []
    add(
        store,
        trace=lambda: tiny(2),
        summarise=lambda t: sources.append(t.tables) or {},
    )
    assert isinstance(sources[0], _StoredTables)


def test_the_same_content_is_recognised_and_not_made_again(store):
    first, _ = add(store, labels={"model": "vgg", "tier": "old"})
    again, made = add(store, default_name="other", labels={"tier": "new", "n": "1"}, make=never)
    assert not made
    assert again.id == first.id
    assert again.name == first.name
    assert again.labels == {"model": "vgg", "tier": "new", "n": "1"}
    assert store.runs() == [again]
    assert left_over(store) == []


def test_the_same_content_with_a_new_name_is_renamed(store):
    first, _ = add(store, name="before")
    again, made = add(store, name="after", make=never)
    assert (again.id, again.name, made) == (first.id, "after", False)
    assert [record.name for record in store.runs()] == ["after"]


def test_the_same_content_under_the_name_that_it_has_is_no_conflict(store):
    first, _ = add(store, name="same")
    assert add(store, name="same", make=never) == (first, False)


def test_the_same_content_cannot_take_the_name_of_another_run(store):
    add(store, "aa", name="one")
    add(store, "bb", name="two")
    with pytest.raises(NameTakenError, match="'one'"):
        add(store, "bb", name="one", labels={"x": "y"}, make=never)
    assert [(run.name, run.labels) for run in store.runs()] == [("one", {}), ("two", {})]


def test_other_options_replace_the_columns_and_keep_the_run(store):
    first, _ = add(store, name="mine", labels={"a": "1"}, trace=lambda: tiny(1, ("old",)))
    add(store, "bb")
    folders = set((store.root / "runs").iterdir())
    again, made = add(
        store, options='{"x":1}', files=["moved"], labels={"b": "2"}, trace=lambda: tiny(2)
    )

    assert made
    assert (again.id, again.name, again.created) == (first.id, "mine", first.created)
    assert again.options == '{"x":1}'
    assert again.labels == {"a": "1", "b": "2"}
    assert (again.files, again.warnings, again.summary) == (("moved",), (), {"devices": 2})
    assert [record.id for record in store.runs()] == [first.id, store.find("bb").id]
    assert store.runs()[0] == again
    assert store.open(first).read("devices").height == 2
    assert len(folders - set((store.root / "runs").iterdir())) == 1
    assert left_over(store) == []


def test_other_options_with_a_name_rename_too(store):
    first, _ = add(store, name="before")
    again, _ = add(store, options="[]", name="after")
    assert (again.id, again.name) == (first.id, "after")


def test_a_run_that_lost_its_columns_is_made_again(store):
    first, _ = add(store)
    next(store.root.glob("runs/*/0/devices/00000.parquet")).unlink()
    with pytest.raises(StoreError, match=r"lacks 0/devices/0+\.parquet.*ingest aa\.sqlite again"):
        store.open(first)
    again, made = add(store, trace=lambda: tiny(4))
    assert made
    assert again.id == first.id
    assert store.open(again).read("devices").height == 4


def test_a_taken_name_is_refused_before_anything_is_made(store):
    add(store, "aa", name="my run")
    with pytest.raises(NameTakenError, match=r"'my run'.*tracekit runs remove 'my run'"):
        add(store, "bb", name="my run", make=never)
    assert [run.digest for run in store.runs()] == ["aa"]
    assert left_over(store) == []


def test_a_name_taken_while_the_run_is_made_is_refused_too(store, catalog):
    def make() -> Trace:
        add(Store(store.root, catalog), "bb", name="wanted")
        return tiny()

    with pytest.raises(NameTakenError, match="'wanted'"):
        add(store, "aa", name="wanted", trace=make)
    assert [run.digest for run in store.runs()] == ["bb"]
    assert left_over(store) == []


def test_content_added_while_it_is_made_is_added_once(store, catalog):
    def make() -> Trace:
        add(Store(store.root, catalog), "aa", trace=lambda: tiny(2), labels={"by": "other"})
        return tiny(1)

    record, made = add(store, "aa", trace=make, labels={"by": "me"})
    assert not made
    assert store.runs() == [record]
    assert record.labels == {"by": "me"}
    assert store.open(record).read("devices").height == 2
    assert left_over(store) == []


def test_default_names_that_are_taken_are_numbered(store):
    names = [add(store, content, default_name="run")[0].name for content in ("a", "b", "c")]
    assert names == ["run", "run-2", "run-3"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, DamagedTraceError("cut short"), ValueError])
def test_a_failure_leaves_the_store_as_it_was(store, error):
    def fail(*_: object) -> Trace:
        raise error

    kept, _ = add(store, "aa")
    kind = error if isinstance(error, type) else type(error)
    with pytest.raises(kind):
        add(store, "bb", trace=fail)
    with pytest.raises(kind):
        add(store, "aa", options="[]", labels={"no": "no"}, summarise=fail)
    assert store.runs() == [kept]
    assert store.open(kept).read("devices").height == 1
    assert left_over(store) == []


def test_an_interrupt_after_the_commit_keeps_the_run(store, monkeypatch):
    commit = Store._commit

    def interrupted(self: Store, *arguments: object) -> None:
        commit(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "_commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(store)
    assert store.open(store.find("aa")).read("devices").height == 1
    assert left_over(store) == []


@pytest.mark.parametrize(
    "name", ["", "  ", "a/b", "@latest", "-x", "a\nb", "x" * 201, " a", "\ud800"]
)
def test_impossible_names_are_refused_before_anything_is_written(store, name):
    with pytest.raises(UsageError, match="choose another name"):
        add(store, name=name, make=never)
    assert not store.root.exists()


@contextmanager
def other_user() -> Iterator[None]:
    """Permissions do not hold root back."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="tracekit-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_store_can_be_listed_and_opened(reachable):
    store = Store(reachable / "store")
    record, _ = add(store)
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with other_user():
            reader = Store(store.root)
            assert reader.runs() == [record]
            assert reader.open(reader.find("@latest")).read("devices").height == 1
            with pytest.raises(StoreError, match=r"catalogue\.sqlite"):
                reader.rename("aa", "bb")
            with pytest.raises(StoreError, match=str(store.root)):
                add(reader, "bb")
    finally:
        for path in (store.root, *store.root.rglob("*")):
            path.chmod(0o755)
    assert store.runs() == [record]


def test_a_folder_that_cannot_be_written_is_reported(reachable):
    reachable.chmod(0o555)
    with other_user(), pytest.raises(StoreError, match=r"Permission denied.*--store"):
        add(Store(reachable / "store"), make=never)


def test_a_store_that_is_a_file_is_reported(tmp_path):
    store = Store(tmp_path / "file")
    store.root.write_text("text")
    with pytest.raises(StoreError, match="file is not a folder"):
        store.runs()
    with pytest.raises(StoreError, match="file"):
        add(store, make=never)
    assert store.root.read_text() == "text"


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path):
    store = Store(tmp_path / "store")
    kept, _ = add(store)
    noise = pl.DataFrame({"payload": [os.urandom(2000).hex() for _ in range(1000)]})
    zeros = ("report", "process", "thread", "range", "start", "end")
    frame = noise.with_columns(
        *(pl.lit(0).alias(name) for name in zeros), pl.lit("push_pop").alias("style")
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            add(store, "bb", trace=lambda: Trace.of({"ranges": frame}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.runs() == [kept]
    assert left_over(store) == []


def test_an_error_in_the_frames_themselves_is_not_taken_for_the_stores(store):
    broken = tiny()["devices"].with_columns(pl.lit("x").cast(pl.Int32).alias("report"))
    trace = Trace({**tiny().tables, "devices": broken})
    with pytest.raises(pl.exceptions.PolarsError):
        add(store, trace=lambda: trace)
    assert left_over(store) == []
