"""Where the catalogue is, and what goes wrong with it."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import sys

import psycopg
import pytest
from store_helpers import add, left_over, never, tiny, written

from tracekit.errors import DamagedTraceError, StoreError
from tracekit.store import Store
from tracekit.store._store import read_id


@pytest.fixture
def sqlite(tmp_path):
    return Store(tmp_path / "store")


def change(store, catalog, statement):
    """Change the catalogue behind the store's back."""
    if catalog is None:
        connection = sqlite3.connect(store.root / "catalogue.sqlite")
    else:
        connection = psycopg.connect(catalog)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_the_environment_names_the_catalogue(tmp_path, postgres_catalog, monkeypatch):
    monkeypatch.setenv("TRACEKIT_CATALOG", postgres_catalog)
    store = Store.discover(tmp_path / "store")
    record, _ = add(store)
    assert not (store.root / "catalogue.sqlite").exists()
    assert Store(store.root, postgres_catalog).runs() == [record]
    monkeypatch.setenv("TRACEKIT_CATALOG", "")
    assert Store.discover(tmp_path / "store").runs() == []


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_is_understood(tmp_path, postgres_catalog, scheme):
    catalog = postgres_catalog.replace("postgresql", scheme, 1)
    assert add(Store(tmp_path / "store", catalog))[1]


def test_stores_that_share_a_catalogue_do_not_see_each_other(tmp_path, postgres_catalog):
    one, two = (Store(tmp_path / name, postgres_catalog) for name in ("one", "two"))
    first, _ = add(one, "aa", name="same", trace=lambda: tiny(1))
    second, made = add(two, "aa", name="same", trace=lambda: tiny(2))
    assert made
    assert one.runs() == [first]
    assert two.runs() == [second]
    assert one.open(first).read("devices").height == 1
    assert two.open(second).read("devices").height == 2
    one.remove("same")
    assert two.runs() == [second]
    assert left_over(one) == left_over(two) == []


def test_runs_of_another_catalogue_are_left_alone(tmp_path, postgres_catalog):
    mine, other = Store(tmp_path / "store"), Store(tmp_path / "store", postgres_catalog)
    record, _ = add(mine)
    _, made = add(other)
    assert made
    other.remove("aa")
    assert other.runs() == []
    assert mine.open(record).read("devices").height == 1


def test_a_lost_catalogue_does_not_cost_the_columns(sqlite):
    add(sqlite)
    (sqlite.root / "catalogue.sqlite").unlink()
    assert sqlite.runs() == []
    add(sqlite, "bb")
    assert len(list((sqlite.root / "runs").iterdir())) == 2


def test_a_catalogue_may_be_another_sqlite_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store", "sqlite:///other.db")
    record, _ = add(store)
    assert (tmp_path / "other.db").exists()
    assert store.runs() == [record]


def test_paths_with_odd_characters_work(tmp_path):
    store = Store(tmp_path / "a?b#c%20d é")
    record, _ = add(store)
    assert store.runs() == [record]
    assert store.open(record).read("devices").height == 1


@pytest.mark.parametrize("content", [b"no database at all, but text " * 100, None])
def test_a_corrupt_catalogue_is_reported(sqlite, content):
    add(sqlite)
    file = sqlite.root / "catalogue.sqlite"
    data = file.read_bytes()
    file.write_bytes(content or data[:4096] + b"\x55" * (len(data) - 4096))
    for use in (sqlite.runs, lambda: add(sqlite, "bb", make=never)):
        with pytest.raises(StoreError, match=r"catalogue\.sqlite.*ingest the reports again"):
            use()
    assert len(list((sqlite.root / "runs").iterdir())) == 1


def test_columns_are_not_left_staged_where_the_catalogue_fails(sqlite):
    def make():
        (sqlite.root / "catalogue.sqlite").write_bytes(b"no database at all, but text " * 100)
        return tiny()

    with pytest.raises(StoreError, match="not a database"):
        add(sqlite, trace=make)
    assert list((sqlite.root / "staging").iterdir()) == []


def test_a_catalogue_that_fails_does_not_hide_what_failed_before(sqlite):
    def make():
        (sqlite.root / "catalogue.sqlite").write_bytes(b"no database at all, but text " * 100)
        raise DamagedTraceError("cut short")

    with pytest.raises(DamagedTraceError, match="cut short"):
        add(sqlite, trace=make)
    assert list((sqlite.root / "staging").iterdir()) == []


def test_an_empty_catalogue_file_is_a_new_catalogue(sqlite):
    add(sqlite)
    (sqlite.root / "catalogue.sqlite").write_bytes(b"")
    assert sqlite.runs() == []
    assert add(sqlite)[1]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tracekit_runs SET labels = '{'",
        "UPDATE tracekit_runs SET created = 'yesterday'",
        "UPDATE tracekit_meta SET value = 'one' WHERE key = 'schema'",
        "DELETE FROM tracekit_meta",
    ],
)
def test_rows_that_make_no_sense_are_reported(store, catalog, statement):
    add(store)
    change(store, catalog, statement)
    with pytest.raises(StoreError, match="damaged"):
        store.runs()


def test_a_table_that_is_gone_is_reported(store, catalog):
    add(store)
    change(store, catalog, "DROP TABLE tracekit_runs")
    with pytest.raises(StoreError, match="tracekit_runs"):
        store.runs()


def test_a_newer_catalogue_asks_for_a_newer_tracekit(store, catalog):
    add(store)
    change(store, catalog, "UPDATE tracekit_meta SET value = '2' WHERE key = 'schema'")
    for use in (store.runs, lambda: add(store, "bb", make=never)):
        with pytest.raises(StoreError, match="newer tracekit: upgrade tracekit"):
            use()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"id": "x"}', "damaged"),
        (json.dumps({"id": "x", "format": 2}), "upgrade tracekit"),
    ],
)
def test_a_store_file_that_makes_no_sense_is_reported(sqlite, text, message):
    add(sqlite)
    (sqlite.root / "store.json").write_text(text)
    for use in (sqlite.runs, lambda: add(sqlite, make=never)):
        with pytest.raises(StoreError, match=message):
            use()


def test_a_store_that_lost_its_id_does_not_lose_columns(sqlite):
    add(sqlite)
    (sqlite.root / "store.json").unlink()
    with pytest.raises(StoreError, match=r"store\.json is gone.*check --repair"):
        add(sqlite, "bb", make=never)
    sqlite.check(repair=True)
    add(sqlite, "bb")
    assert [run.name for run in sqlite.runs()] == ["aa", "bb"]


def test_a_busy_catalogue_is_reported(sqlite, monkeypatch):
    add(sqlite)
    monkeypatch.setattr("tracekit.store._catalogue.WAIT_SECONDS", 0.1)
    connection = sqlite3.connect(sqlite.root / "catalogue.sqlite", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        busy = Store(sqlite.root)
        with pytest.raises(StoreError, match=r"locked.*try again"):
            add(busy, "bb", make=never)
        assert len(busy.runs()) == 1, "readers go on"
    finally:
        connection.close()


def test_a_busy_server_is_reported(tmp_path, postgres_catalog, monkeypatch):
    monkeypatch.setattr("tracekit.store._catalogue.WAIT_SECONDS", 0.1)
    store = Store(tmp_path / "store", postgres_catalog)
    add(store)
    from tracekit.store import _catalogue

    with psycopg.connect(postgres_catalog) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({_catalogue._POSTGRES_LOCK})")
        with pytest.raises(StoreError, match="lock timeout"):
            add(store, "bb", make=never)
        assert len(store.runs()) == 1, "readers go on"


def test_a_server_that_does_not_answer_is_reported_without_the_password(sqlite):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for place in (f"u:s3cret@127.0.0.1:{port}/db", f"u@127.0.0.1:{port}/db?password=s3cret"):
            store = Store(sqlite.root, f"postgresql://{place}")
            with pytest.raises(StoreError, match=r"127\.0\.0\.1.*check TRACEKIT_CATALOG") as caught:
                add(store, make=never)
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "catalog",
    ["nonsense s3cret", "postgresql://u:s3cret@h:port/db", "mysql://u:s3cret@h/db", "sqlite://"],
)
def test_a_url_of_nothing_usable_is_reported(sqlite, catalog):
    with pytest.raises(StoreError, match=r"TRACEKIT_CATALOG.*postgresql://") as caught:
        add(Store(sqlite.root, catalog), make=never)
    assert "s3cret" not in str(caught.value)


def test_a_missing_driver_says_how_to_install_it(sqlite, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'tracekit\[postgres\]'"):
        add(Store(sqlite.root, "postgresql://u@h/db"), make=never)


def test_a_copied_store_goes_on_by_itself(tmp_path, sqlite):
    add(sqlite)
    copy = Store(shutil.copytree(sqlite.root, tmp_path / "copy"))
    copy.remove("aa")
    assert sqlite.open(sqlite.find("aa")).read("devices").height == 1


def test_a_catalogue_is_read_as_it_is_written(sqlite):
    odd = {"a": "ü '\"; DROP TABLE tracekit_runs", "b": "\U0001f642"}
    add(sqlite, "aa", labels=odd, trace=lambda: tiny(2, warnings=("what\nholds",)))
    add(sqlite, "bb", make=written(tiny(), "bb", ["x.sqlite"]))
    store = read_id(sqlite._folders)
    with sqlite._catalogue.reading(store) as rows:
        assert sqlite._entries() == rows.entries()
    assert [each.record.labels for each in sqlite._entries()] == [odd, {}]
