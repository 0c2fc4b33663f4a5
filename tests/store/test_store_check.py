"""A damaged store says what is wrong, and is mended: every file of it, damaged in five ways."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import tracekit as tk
from tracekit.cli import app
from tracekit.errors import StoreError
from tracekit.store import Store
from tracekit.store._check import again
from tracekit.store._staging import MARK

pytestmark = pytest.mark.usefixtures("samples_read_once")
SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE = SAMPLES / "p2p_2gpu_start_end.sqlite"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": cut,
    "emptied": lambda path: path.write_bytes(b""),
    "replaced": lambda path: path.write_bytes(b"x" * path.stat().st_size),
    "removed": Path.unlink,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run, `p2p`."""
    root = tmp_path_factory.mktemp("sound") / "store"
    tk.ingest(TRACE, name="p2p", labels={"gpus": "2"}, store=root)
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    """A copy of that store for a test to damage."""
    return Path(shutil.copytree(sound, tmp_path / "store"))


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def only_run(root: Path) -> Path:
    (folder,) = (root / "runs").iterdir()
    return folder


def test_nothing_is_wrong_with_a_store_as_it_was_written(root: Path) -> None:
    assert Store(root).check() == []
    assert Store(root).collect() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(each, marks=[pytest.mark.nightly] if each in ("emptied", "replaced") else [])
        for each in DAMAGES
    ],
)
def test_whatever_file_is_damaged_is_found_and_mended(root: Path, damage: str) -> None:
    # A mark only has to be there, and the copy of a run's row stands for it.
    names = [path.relative_to(root) for path in files(root) if path.name != MARK]
    assert {name.parts[0] for name in names} == {"catalogue.sqlite", "runs", "store.json"}
    # Of the many parts two stand for all: they are written by one function.
    parts = [name for name in names if name.suffix == ".parquet"]
    for name in [*(name for name in names if name not in parts), parts[0], parts[-1]]:
        copy = Path(shutil.copytree(root, root.with_name("copy")))
        DAMAGES[damage](copy / name)
        store = Store(copy)
        found = store.check()
        # A catalogue is a database, in which a bit may lie where nothing is.
        if not (name.name == "catalogue.sqlite" and damage == "flipped" and not found):
            assert found, (name, damage)
        store.check(repair=True)
        run = tk.ingest(TRACE, store=copy)[0]
        assert store.check() == [], (name, damage)
        assert (run.name, run.record.labels["gpus"]) == ("p2p", "2"), (name, damage)
        assert len(store.runs()) == 1
        shutil.rmtree(copy)


def test_opening_a_run_looks_once_at_each_file_of_a_table(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, look = Counter[str](), os.lstat

    def counted(path: str | os.PathLike[str]) -> os.stat_result:
        seen[os.fspath(path)] += 1
        return look(path)

    monkeypatch.setattr("os.lstat", counted)
    tk.open("p2p", store=root)
    tables = {path: times for path, times in seen.items() if path.endswith(".parquet")}
    assert len(tables) > 10
    assert set(tables.values()) == {1}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_one_error_that_names_the_run_and_what_to_do(
    root: Path, damage: str
) -> None:
    DAMAGES[damage](only_run(root) / "0" / "ops" / "00000.parquet")
    with pytest.raises(StoreError) as error:
        tk.open("p2p", store=root).breakdown()
    assert "'p2p'" in str(error.value)
    assert "0/ops/00000.parquet" in str(error.value)
    assert f"ingest {TRACE.name} again" in str(error.value)


def test_of_many_files_to_ingest_again_the_first_are_named() -> None:
    record = SimpleNamespace(files=tuple(f"rank{n}.sqlite" for n in range(1000)))
    said = again(SimpleNamespace(record=record))
    assert said.startswith("ingest rank0.sqlite, rank1.sqlite, ")
    assert said.endswith(" more again")
    assert len(said) < 200


def test_a_disk_that_forgets_changes_no_time_and_is_found_all_the_same(root: Path) -> None:
    import os

    part = only_run(root) / "0" / "ops" / "00000.parquet"
    before = part.stat()
    flip(part)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    (finding,) = Store(root).check()
    assert (finding.what, finding.name, finding.mended) == ("run", "p2p", False)
    assert "0/ops/00000.parquet" in finding.fault


def test_a_copied_store_is_whole_whatever_the_times_of_its_files(root: Path) -> None:
    for path in files(root):
        path.touch()
    assert tk.open("p2p", store=root).breakdown().height
    assert Store(root).check() == []


FORMS = {
    "a missing column": "ALTER TABLE tracekit_runs DROP COLUMN warnings",
    "a missing table": "DROP TABLE tracekit_meta",
    "a missing column of its own": "ALTER TABLE tracekit_meta RENAME COLUMN value TO v",
    "an id of another form": "UPDATE tracekit_meta SET value = 'x' WHERE key = 'id'",
    "no version": "UPDATE tracekit_meta SET value = x'00' WHERE key = 'schema'",
    "a view that never ends": """
        ALTER TABLE tracekit_runs RENAME TO old;
        CREATE VIEW tracekit_runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
            SELECT old.* FROM old, n
    """,
    **{
        f"{column} {value:.30}": f"UPDATE tracekit_runs SET {column} = {value}"
        for column, value in [
            ("summary", "'[]'"), ("summary", "'null'"), ("summary", "'{\"ops\": 1e400}'"),
            ("summary", "'{\"ops\": NaN}'"), ("summary", "'{\"ops\": 9223372036854775808}'"),
            ("summary", "'{\"ops\": [1]}'"), ("summary", "'{\"size\": \"large\"}'"),
            ("summary", "printf('%.*c', 100000, '[')"),
            ("labels", "'[]'"), ("labels", "'{\"a\": 1}'"),
            ("files", "'{}'"), ("files", "'[]'"), ("files", "'[1]'"), ("files", "'x'"),
            ("warnings", "'3'"),
            ("created", "'yesterday'"), ("created", "'0001-01-01T00:00+23:59'"),
            ("name", "x'ff'"), ("folder", "'..'"), ("folder", "'/tmp'"), ("digest", "x'00'"),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_catalogue_of_another_form_is_one_line_and_mended(root: Path, form: str) -> None:
    before = Store(root).runs()
    with closing(sqlite3.connect(root / "catalogue.sqlite")) as connection:
        connection.executescript(FORMS[form])
    for words in (["runs"], ["breakdown", "p2p"], ["ingest", str(SAMPLES / "p2p_4gpu_star.sqlite")],
                  ["runs", "remove", "p2p"], ["runs", "gc"]):  # fmt: skip
        done = CliRunner().invoke(app, [*words, "--store", str(root)])
        assert done.exit_code == 2, (words, done.output)
        assert len(done.stderr.splitlines()) == 1, (words, done.stderr)
        assert "check --repair" in done.stderr, (words, done.stderr)
    repaired = CliRunner().invoke(app, ["runs", "check", "--repair", "--store", str(root)])
    assert repaired.exit_code == 0, repaired.output
    assert Store(root).runs() == before
    assert Store(root).check() == []


def test_a_summary_that_is_none_of_a_run_ends_no_list(root: Path) -> None:
    with closing(sqlite3.connect(root / "catalogue.sqlite")) as connection:
        connection.execute('UPDATE tracekit_runs SET summary = \'{"ops": "many", "name": 3}\'')
        connection.commit()
    for words in (["runs"], ["runs", "show", "p2p"], ["info", "p2p"]):
        done = CliRunner().invoke(app, [*words, "--store", str(root)])
        assert done.exit_code == 0, (words, done.output)


def test_a_lost_catalogue_is_noticed_and_made_anew(root: Path) -> None:
    run = Store(root).find("p2p")
    (root / "catalogue.sqlite").unlink()
    store = Store(root)
    assert store.runs() == []
    assert store.strays() == 1
    (finding,) = store.check(repair=True)
    assert (finding.what, finding.name, finding.mended) == ("run", "p2p", True)
    assert store.runs() == [run]


def test_columns_that_the_catalogue_has_lost_survive_the_next_ingest(root: Path) -> None:
    with sqlite3.connect(root / "catalogue.sqlite") as connection:
        connection.execute("DELETE FROM tracekit_runs")
    connection.close()
    tk.ingest(SAMPLES / "p2p_4gpu_star.sqlite", name="other", store=root)
    store = Store(root)
    assert store.strays() == 1
    store.check(repair=True)
    assert sorted(run.name for run in store.runs()) == ["other", "p2p"]


def test_what_is_left_over_is_collected_and_nothing_else(root: Path) -> None:
    left = root / "runs" / "ffffffff-0123456789abcdef"
    (left / "0").mkdir(parents=True)
    (finding,) = Store(root).check()
    assert (finding.fault, finding.mended) == ("is of no run, and has no mark of tracekit", False)
    assert Store(root).collect() == []
    (left / MARK).touch()
    (finding,) = Store(root).check()
    assert (finding.what, finding.name) == ("folder", left.name)
    assert Store(root).collect() == [left]
    assert Store(root).check() == []


def test_a_run_that_is_removed_or_replaced_does_not_come_back(root: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('version = 1\n[[range]]\nname = "^FP$"\nstage = "ME"\n')
    tk.ingest(TRACE, rules=rules, store=root)
    store = Store(root)
    assert (store.strays(), len(store.runs())) == (0, 1)
    store.remove("p2p")
    assert store.check(repair=True) == []
    assert store.runs() == []


def test_a_run_can_be_removed_on_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, folder = Store._delete, only_run(root)

    def delete(store: Store, entry: object) -> None:
        if folder.exists():
            raise StoreError("the catalogue cannot be used (disk is full)", "free some space")
        real(store, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_delete", delete)
    Store(root).remove("p2p")
    assert not folder.exists()
    assert Store(root).runs() == []


def test_a_run_that_cannot_be_removed_stays_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(*_: object) -> None:
        raise StoreError("the catalogue is busy", "wait")

    monkeypatch.setattr(Store, "_delete", delete)
    with pytest.raises(StoreError, match="is busy"):
        Store(root).remove("p2p")
    assert only_run(root).exists()
    assert Store(root).check() == []


def test_a_second_copy_of_a_run_is_told_and_left_to_the_user(root: Path) -> None:
    folder = only_run(root)
    copy = folder.with_name(f"{folder.name[:-1]}{'1' if folder.name[-1] == '0' else '0'}")
    shutil.copytree(folder, copy)
    for repair in (False, True):
        (found,) = Store(root).check(repair=repair)
        assert not found.mended
    assert found.fault == "is in the catalogue with other columns"
    assert str(copy) in found.todo
    assert copy.is_dir()
    assert [run.name for run in Store(root).runs()] == ["p2p"]


def test_a_store_that_is_not_there_is_not_in_order(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "nowhere").check()
