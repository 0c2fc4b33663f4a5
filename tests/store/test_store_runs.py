"""Finding stores, and finding, renaming and removing runs."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile

import polars as pl
import pytest
from store_helpers import add, left_over, tiny

from tracekit.errors import NameTakenError, StoreError, UnknownRunError, UsageError
from tracekit.store import Store, _store


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("TRACEKIT_STORE", raising=False)
    monkeypatch.delenv("TRACEKIT_CATALOG", raising=False)


def test_discovery_takes_the_nearest_store_upward(tmp_path, monkeypatch):
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    (tmp_path / ".tracekit").mkdir()
    assert Store.discover().root == tmp_path / ".tracekit"
    (tmp_path / "a" / ".tracekit").mkdir()
    assert Store.discover().root == tmp_path / "a" / ".tracekit"
    (deep / ".tracekit").write_text("a file is no store")
    assert Store.discover().root == tmp_path / "a" / ".tracekit"


def test_discovery_prefers_the_option_then_the_environment(tmp_path, monkeypatch):
    (tmp_path / ".tracekit").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEKIT_STORE", "env")
    assert Store.discover().root == tmp_path / "env"
    assert Store.discover(tmp_path / "option").root == tmp_path / "option"
    monkeypatch.setenv("TRACEKIT_STORE", "")
    assert Store.discover().root == tmp_path / ".tracekit"


def test_where_there_is_no_store_nothing_is_created_by_looking(tmp_path, monkeypatch):
    # The folders above are not this test's, and a store may lie in one of them.
    monkeypatch.setattr(_store, "_FOLDER", ".tracekit-of-this-test")
    monkeypatch.chdir(tmp_path)
    store = Store.discover()
    assert store.root == tmp_path / ".tracekit-of-this-test"
    assert store.runs() == []
    for look in (store.find, store.remove, lambda name: store.rename(name, "x")):
        with pytest.raises(UnknownRunError, match=r"is empty.*tracekit ingest"):
            look("@latest")
    assert not store.root.exists()


def test_runs_are_listed_in_the_order_in_which_they_came(store):
    for content in ("cc", "aa", "bb"):
        add(store, content)
    add(store, "cc", options="[]")
    assert [run.name for run in store.runs()] == ["cc", "aa", "bb"]
    assert store.find("@latest").name == "bb"
    store.remove("bb")
    add(store, "dd")
    assert store.find("@latest").name == "dd"


def test_runs_are_chosen_by_all_of_the_labels(store):
    add(store, "aa", labels={"model": "vgg", "gpus": "4"})
    add(store, "bb", labels={"model": "vgg", "gpus": "8"})
    add(store, "cc")
    assert [run.name for run in store.runs({"model": "vgg"})] == ["aa", "bb"]
    assert [run.name for run in store.runs({"model": "vgg", "gpus": "8"})] == ["bb"]
    assert store.runs({"gpus": "16"}) == []
    assert len(store.runs({})) == 3


@pytest.fixture
def ids(monkeypatch):
    """Ids in the order in which they are to be given."""
    waiting = []
    token = __import__("secrets").token_hex
    monkeypatch.setattr(
        "tracekit.store._store.secrets.token_hex", lambda n: waiting.pop(0) if n == 6 else token(n)
    )
    return waiting


def test_a_run_is_found_by_name_and_by_the_beginning_of_its_id(store, ids):
    ids += ["abc100000000", "abc200000000", "123000000000"]
    for content in ("one", "two", "abc1"):
        add(store, content)
    assert store.find("abc100000000").name == "one"
    assert store.find("abc2").name == "two"
    assert store.find("ABC20").name == "two"
    assert store.find("abc1").name == "abc1", "a name goes before an id"
    with pytest.raises(UnknownRunError, match="no run '123'"):
        store.find("123")


def test_an_ambiguous_id_lists_what_it_may_mean(store, ids):
    ids += [f"abcd0000000{digit}" for digit in range(7)]
    for content in ("one", "two"):
        add(store, content)
    both = r"2 runs.*more digits of one: abcd00000000 \(one\), abcd00000001 \(two\)$"
    with pytest.raises(UnknownRunError, match=both):
        store.find("abcd")
    for content in ("three", "four", "five", "six", "seven"):
        add(store, content)
    with pytest.raises(UnknownRunError, match=r"7 runs.*\(five\), \.\.\.$"):
        store.find("abcd")


@pytest.mark.parametrize("reference", ["", "nothing", "@first", "abcdef0123456"])
def test_what_is_no_run_is_said_to_be_none(store, reference):
    add(store)
    with pytest.raises(UnknownRunError, match="tracekit runs list"):
        store.find(reference)


def test_near_names_are_suggested(store):
    for name in ("vgg16-batch32", "resnet50"):
        add(store, name, name=name)
    with pytest.raises(UnknownRunError, match=r"did you mean 'vgg16-batch32'\?"):
        store.find("vgg16-batch23")


def test_rename(store):
    record, _ = add(store)
    renamed = store.rename("aa", "new name")
    assert (renamed.id, renamed.name) == (record.id, "new name")
    assert store.runs() == [renamed]
    assert store.rename("new name", "new name") == renamed
    assert store.open(record).read("devices").height == 1


def test_rename_to_a_taken_or_impossible_name_changes_nothing(store):
    add(store, "aa")
    add(store, "bb")
    with pytest.raises(NameTakenError, match="'bb'"):
        store.rename("aa", "bb")
    with pytest.raises(UsageError, match="slash"):
        store.rename("aa", "a/b")
    with pytest.raises(UnknownRunError):
        store.rename("nobody", "dd")
    assert [run.name for run in store.runs()] == ["aa", "bb"]


def test_remove_takes_the_columns_along_and_frees_the_name(store):
    kept, _ = add(store, "aa")
    gone, _ = add(store, "bb", name="name")
    assert store.remove("name") == gone
    assert store.runs() == [kept]
    assert left_over(store) == []
    with pytest.raises(UnknownRunError, match="no longer"):
        store.open(gone)
    again, made = add(store, "bb", name="name")
    assert made
    assert again.id != gone.id


def test_columns_that_cannot_be_removed_are_named(store, monkeypatch):
    add(store)
    with monkeypatch.context() as patch:
        patch.setattr("tracekit.store._staging.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(StoreError, match=r"'aa' is removed, but its columns in .*runs"):
            store.remove("aa")
    assert store.runs() == []


def test_open_follows_a_run_whose_columns_were_replaced(store):
    old, _ = add(store)
    add(store, options="[]", trace=lambda: tiny(3, ("new",)))
    trace = store.open(old)
    assert trace.read("devices").height == 3
    assert trace.warnings == ("new",)


def test_a_store_can_be_moved(tmp_path):
    store = Store(tmp_path / "here")
    record, _ = add(store)
    moved = Store(store.root.rename(tmp_path / "there"))
    assert moved.runs() == [record]
    assert moved.open(record).read("devices").height == 1


def test_a_relative_store_survives_a_change_of_folder(tmp_path, monkeypatch):
    (tmp_path / ".tracekit").mkdir()
    monkeypatch.chdir(tmp_path)
    store = Store.discover()
    add(store)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert len(store.runs()) == 1


def test_sqlalchemy_is_imported_only_when_the_catalogue_is_used():
    program = "import sys, tracekit.store; print('sqlalchemy' in sys.modules)"
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}\n{program}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"


class TestKept:
    """What is kept of a run beside its tables."""

    def test_it_goes_with_the_run(self, store):
        run, _ = add(store)
        kept = store.kept(run)
        assert kept.read("sums") is None
        kept.write("sums", b"sums")
        assert store.kept(run).read("sums") == b"sums"
        assert store.check() == []
        assert store.collect() == []
        folder = store.folder(run)
        store.remove(run.name)
        assert not folder.exists()

    def test_it_is_of_the_tables_that_the_run_has(self, store):
        run, _ = add(store, trace=tiny)
        store.kept(run).write("sums", b"sums")
        again, _ = add(store, trace=lambda: tiny(2), options="[]")
        assert store.kept(again).read("sums") is None

    def test_what_others_made_up_is_not_there(self, store):
        run, _ = add(store)
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("sums", bytes(1 << 20))
        frames = {"sums": pl.DataFrame({"a": [1]})}
        kept = store.kept(run)
        kept.keep("a", frames)
        whole = kept.read("a")
        for content in (
            b"",
            b"sums",
            bomb.getvalue(),
            whole[:-9],
            whole.replace(b"ARROW1", b"ARROW2"),
        ):
            kept.write("a", content)
            assert kept.find("a") is None
        kept.keep("a", frames)
        assert kept.find("a")["sums"].equals(frames["sums"])

    def test_what_is_of_other_tables_or_half_written_is_collected(self, store):
        run, _ = add(store)
        store.kept(run).write("sums", b"sums")
        place = store.folder(run) / "kept"
        old = [place / ".x.part", place / "older"]
        for path in old:
            path.write_bytes(b"x")
        assert store.collect(dry_run=True) == old
        assert store.collect() == old
        assert store.collect() == []
        assert store.kept(run).read("sums") == b"sums"

    @pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
    def test_links_are_not_followed(self, store, tmp_path):
        run, _ = add(store)
        other = tmp_path / "other"
        other.mkdir()
        kept = store.kept(run)
        kept.write("sums", b"sums")
        (file,) = (store.folder(run) / "kept").iterdir()
        mine = other / file.name
        mine.write_bytes(b"mine")
        file.unlink()
        file.symlink_to(mine)
        assert kept.read("sums") is None
        kept.write("sums", b"new")
        assert (kept.read("sums"), mine.read_bytes()) == (b"new", b"mine")
        file.unlink()
        file.parent.rmdir()
        file.parent.symlink_to(other)
        assert kept.read("sums") is None
        kept.write("sums", b"new")
        assert [path.read_bytes() for path in other.iterdir()] == [b"mine"]
