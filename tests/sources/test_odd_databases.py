"""Databases that say what others do in another way, and such as no recorder would write."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hostile_files import (
    ERROR,
    KINDS,
    NSYS_TABLES,
    NVPROF_TABLES,
    RIGHT,
    make_nsys,
    make_nvprof,
    outcome,
)
from plain_readers import numbers_of
from quick_sqlite import writing

from tracekit.errors import NotATraceError
from tracekit.sources import read

MAKERS = (make_nsys, make_nvprof)
LARGEST = 2**63 - 1
Change = Callable[[sqlite3.Connection, str], object]


def _tables(db: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in db.execute(query).fetchall()]


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def _rewritten(db: sqlite3.Connection, table: str, columns: list[str], declared: str) -> None:
    """Make a table anew with these columns of the old one, in this order."""
    names = ", ".join(f'"{name}"' for name in columns)
    db.execute(f'ALTER TABLE "{table}" RENAME TO before')
    db.execute(f'CREATE TABLE "{table}" {declared.format(names)}')
    db.execute(f'INSERT INTO "{table}" ({names}) SELECT {names} FROM before ORDER BY rowid')
    db.execute("DROP TABLE before")


def _without_rowid(db: sqlite3.Connection, table: str) -> None:
    names = _columns(db, table)
    # The old row's number is the key of the new one.
    db.execute(f'ALTER TABLE "{table}" ADD COLUMN "row number" INTEGER')
    db.execute(f'UPDATE "{table}" SET "row number" = rowid')
    declared = '({}, PRIMARY KEY ("row number")) WITHOUT ROWID'
    _rewritten(db, table, [*names, "row number"], declared)


def _more_columns(db: sqlite3.Connection, table: str) -> None:
    for name in ("one more", "select", "x"):
        db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}" DEFAULT 5')


def _other_case(db: sqlite3.Connection, table: str) -> None:
    for name in _columns(db, table):
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{name}" TO "{name.swapcase()}"')
    db.execute(f'ALTER TABLE "{table}" RENAME TO "in between"')
    db.execute(f'ALTER TABLE "in between" RENAME TO "{table.swapcase()}"')


SHAPES: dict[str, Change] = {
    "names in another case": _other_case,
    "without rowids": _without_rowid,
    "columns the other way round": lambda db, t: _rewritten(db, t, _columns(db, t)[::-1], "({})"),
    "more columns": _more_columns,
}


def _changed(path: Path, change: Change) -> Path:
    with writing(path, isolation_level=None) as db:
        for table in _tables(db):
            change(db, table)
    return path


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", MAKERS)
def test_how_tables_are_stored_changes_no_number(
    make: Callable[[Path], Path], shape: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    before = numbers_of(read(path))
    assert numbers_of(read(_changed(path, SHAPES[shape]))) == before


def _view(path: Path, table: str) -> Path:
    with writing(path, isolation_level=None) as db:
        db.execute(f'ALTER TABLE "{table}" RENAME TO kept')
        db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM kept')
    return path


@pytest.mark.parametrize(
    ("make", "table"),
    [(make_nsys, "CUPTI_ACTIVITY_KIND_RUNTIME"), (make_nvprof, "CUPTI_ACTIVITY_KIND_MEMCPY")],
)
def test_a_view_in_the_place_of_a_table_is_said_not_to_be_read(
    make: Callable[[Path], Path], table: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    assert not any("view" in each for each in read(path).warnings)
    found = [each for each in read(_view(path, table)).warnings if "view" in each]
    assert found == [f"{table} is a view, which is not read: queries in a trace are not run"]


def test_a_view_of_names_makes_no_trace(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError):
        read(_view(make_nsys(tmp_path), "StringIds"))


ID = re.compile(r"(^id|Id|Pid|Tid|_id_)$")


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    ["the first", *(pytest.param(v, marks=pytest.mark.nightly) for v in (LARGEST, -7, None))],
)
@pytest.mark.parametrize("name", ["nsys SQLite", "nvprof database"])
def test_ids_that_are_all_the_same_are_read_as_a_plain_reader_does(
    name: str, value: int | str | None, tmp_path: Path
) -> None:
    kind = KINDS[name]
    path = kind.make(tmp_path)

    def change(db: sqlite3.Connection, table: str) -> None:
        names = _columns(db, table)
        _rewritten(db, table, names, "({})")  # without keys, which would keep ids apart
        for column in filter(ID.search, names):
            first = f'(SELECT "{column}" FROM "{table}" LIMIT 1)'
            chosen = first if value == "the first" else "?"
            given = [] if value == "the first" else [value]
            db.execute(f'UPDATE "{table}" SET "{column}" = {chosen}', given)

    with closing(sqlite3.connect(path)) as db:
        held = set(_tables(db))
    for table in held & {*NSYS_TABLES, *NVPROF_TABLES}:
        copy = tmp_path / "copy" / path.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
        with writing(copy, isolation_level=None) as db:
            change(db, table)
        is_answered = value != "the first"
        assert outcome(kind, copy, answer=is_answered) in (RIGHT, ERROR), table
        copy.unlink()


@pytest.mark.parametrize("shift", [-(2**60), 2**60])
def test_times_may_be_those_of_any_clock(shift: int, tmp_path: Path) -> None:
    path = make_nsys(tmp_path)
    before = numbers_of(read(path)).from_first()

    def moved(db: sqlite3.Connection, table: str) -> None:
        if {"start", "end"} <= set(_columns(db, table)):
            db.execute(f'UPDATE "{table}" SET start = start + ?, end = end + ?', [shift] * 2)

    trace = read(_changed(path, moved))
    assert numbers_of(trace).from_first() == before
    assert trace.read("ops")["start"].min() == 30 + shift


@pytest.mark.nightly
def test_a_name_of_64_megabytes_is_a_name(tmp_path: Path) -> None:
    path = make_nsys(tmp_path)
    name = "x" * (64 << 20)
    with writing(path) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = ? WHERE start = 0", [name])
        db.commit()
    names = read(path).read("ranges")["name"].cast(str)
    assert names.str.len_bytes().max() == len(name)
