"""Damaged files of every format: numbers as a plain reader has them, or one clear error."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hostile_files import (
    ERROR,
    KINDS,
    RIGHT,
    make_columnar,
    make_kineto,
    make_nsys,
    make_nvprof,
    outcome,
    peak_bytes,
    tried,
)
from plain_readers import PlainSqlite, assert_same, numbers_of, plain_nsys
from quick_sqlite import writing

from tracekit.attribution import Rules, attribute
from tracekit.errors import DamagedTraceError
from tracekit.sources import read

QUICK, MANY = 5, 1500
MOST_BYTES = 400 << 20
"""What a thousand small files may add to what the process holds."""


@pytest.mark.parametrize("name", KINDS)
def test_a_good_file_is_read_as_a_plain_reader_does(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    assert outcome(kind, kind.make(tmp_path), answer=True) == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_read_right_or_refused(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    outcomes = tried(kind, kind.make(tmp_path), tmp_path / "copy", range(QUICK))
    assert outcomes[RIGHT] + outcomes[ERROR] == QUICK


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_thousands_of_damaged_files_are_too(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    good = kind.make(tmp_path)
    tried(kind, good, tmp_path / "copy", range(QUICK))
    before = peak_bytes()
    first = (
        QUICK + datetime.now(UTC).toordinal() * MANY
    )  # others every night; who fails names its seed
    apart = good.is_dir()  # which takes a process each
    many = MANY // 10 if apart else MANY
    outcomes = tried(kind, good, tmp_path / "copy", range(first, first + many), apart=apart)
    assert outcomes[RIGHT] > many / 8
    assert outcomes[ERROR] > 0
    assert peak_bytes() - before < MOST_BYTES


@pytest.mark.parametrize("schema", ["3.0.0", "3.24.14"])
def test_old_and_new_exports_are_read_as_a_plain_reader_does(schema: str, tmp_path: Path) -> None:
    path = make_nsys(tmp_path, schema)
    assert_same(numbers_of(read(path)), plain_nsys(PlainSqlite(path)))


@pytest.mark.parametrize(
    "names", [1_000, pytest.param(1_000_000, marks=pytest.mark.nightly)]
)  # fmt: skip
def test_a_million_names_are_names(names: int, tmp_path: Path) -> None:
    path = make_nsys(tmp_path)
    with writing(path) as db:
        texts = ((number, f"name {number}") for number in range(1000, 1000 + names))
        db.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", texts)
        row = db.execute("SELECT * FROM NVTX_EVENTS WHERE textId IS NOT NULL").fetchone()
        columns = [c[1] for c in db.execute("PRAGMA table_info(NVTX_EVENTS)")]
        at = columns.index("textId")
        many = ([*row[:at], number, *row[at + 1 :]] for number in range(1000, 1000 + names))
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * len(row))})", many)
        db.commit()
    begin = time.process_time()
    assert_same(numbers_of(read(path)), plain_nsys(PlainSqlite(path)))
    assert time.process_time() - begin < 60


def test_kernels_without_names_are_kernels(tmp_path: Path) -> None:
    path = make_nsys(tmp_path)
    with writing(path) as db:
        db.execute("DELETE FROM StringIds WHERE value LIKE '%gemm%'")
        db.commit()
    trace = attribute(read(path), Rules.load(None, None))
    assert trace.read("ops")["kind"].null_count() == 0


def test_halves_of_characters_around_the_events_are_no_fault(tmp_path: Path) -> None:
    path = make_kineto(tmp_path)
    whole = json.loads(path.read_text())
    whole |= {"schemaVersion": "\ud800", "deviceProperties": [{"id": 0, "name": "A\udc00"}]}
    path.write_text(json.dumps(whole))
    trace = read(path)
    assert trace.read("reports")["schema_version"].to_list() == ["\ufffd"]
    assert trace.read("devices")["name"].to_list() == ["A\ufffd"]


class TestOthersAtTheSameFile:
    """Another program writes to a database while it is read, or was killed while it did."""

    @pytest.mark.parametrize("make", [make_nsys, make_nvprof])
    def test_one_that_waits_to_commit_changes_nothing(
        self, make: Callable[[Path], Path], tmp_path: Path
    ) -> None:
        path = make(tmp_path)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            before = numbers_of(read(path))
            db.execute("BEGIN IMMEDIATE")
            assert numbers_of(read(path)) == before
            db.execute("CREATE TABLE more (a)")  # a journal lies beside the file from now on
            with pytest.raises(DamagedTraceError, match="is still being written"):
                read(path)
            db.execute("ROLLBACK")
        assert numbers_of(read(path)) == before

    def test_one_that_was_killed_leaves_a_file_that_is_refused(self, tmp_path: Path) -> None:
        path = make_nsys(tmp_path)
        killed = tmp_path / "killed"
        killed.mkdir()
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA cache_size = 1")
            db.execute("PRAGMA cache_spill = 1")
            db.execute("BEGIN")
            db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
            db.execute("INSERT INTO StringIds VALUES (999999, ?)", ["x" * 100_000])
            for each in (path, Path(f"{path}-journal")):
                (killed / each.name).write_bytes(each.read_bytes())
            db.execute("ROLLBACK")
        with pytest.raises(DamagedTraceError, match="is still being written"):
            read(killed / path.name)
        assert sorted(each.name for each in killed.iterdir()) == ["t.sqlite", "t.sqlite-journal"]


class TestRelations:
    """What changes a file and not what it says changes no number."""

    @pytest.mark.parametrize("shift", [-(10**6), 10**15])
    def test_shifted_times_are_the_same_times_later(self, shift: int, tmp_path: Path) -> None:
        path = make_nsys(tmp_path)
        before = numbers_of(read(path)).from_first()
        _shift(path, shift)
        trace = read(path)
        assert numbers_of(trace).from_first() == before
        assert trace.read("ops")["start"].min() == 30 + shift

    @pytest.mark.parametrize("seed", range(2))
    def test_renumbered_processes_and_ids_are_the_same_work(
        self, seed: int, tmp_path: Path
    ) -> None:
        path = make_nsys(tmp_path)
        before = read(path)
        moved = random.Random(seed).randrange(1, 1 << 16)
        _renumber(path, moved)
        after = read(path)
        assert after.read("processes")["pid"].to_list() == [
            pid + moved for pid in before.read("processes")["pid"]
        ]
        for table in ("ops", "calls", "ranges", "iterations"):
            one, other = (
                trace.read(table).drop("correlation", strict=False) for trace in (before, after)
            )
            assert one.equals(other), table

    def test_other_export_formats_hold_the_same(self, tmp_path: Path) -> None:
        wanted = numbers_of(read(make_nsys(tmp_path)))
        for suffix in (".parquet", ".arrow"):
            folder = tmp_path / suffix[1:]
            folder.mkdir()
            assert numbers_of(read(make_columnar(folder, suffix))) == wanted

    def test_a_compressed_trace_is_the_same(self, tmp_path: Path) -> None:
        plain, packed = (make_kineto(tmp_path, name) for name in ("t.json", "t.json.gz"))
        assert numbers_of(read(plain)) == numbers_of(read(packed))


def _shift(path: Path, shift: int) -> None:
    with writing(path) as db:
        for (table,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            if {"start", "end"} <= columns:
                db.execute(f'UPDATE {table} SET start = start + ?, "end" = "end" + ?', [shift] * 2)
        db.commit()


def _renumber(path: Path, moved: int) -> None:
    """Give processes other numbers, and calls other correlation ids."""
    with writing(path) as db:
        for (table,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            for name in (row[1] for row in db.execute(f"PRAGMA table_info({table})")):
                if name in ("globalPid", "globalTid", "endGlobalTid"):
                    db.execute(f"UPDATE {table} SET {name} = {name} + ?", [moved << 24])
                if name == "correlationId":
                    db.execute(f"UPDATE {table} SET {name} = {name} * 2 + 77")
        db.commit()
