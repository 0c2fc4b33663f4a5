"""Tables in batches: pages are decoded right, left to SQLite, or refused, whatever is in them."""

from __future__ import annotations

import errno
import itertools
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from source_helpers import execute
from sqlite_corpus import DTYPE, Database, Maker, expected

from tracekit.errors import DamagedTraceError
from tracekit.sources.sqlite import SqliteFile
from tracekit.sources.sqlite import _leaf_spans as _spans
from tracekit.sources.sqlite._library import Library
from tracekit.sources.sqlite._row_columns import Columns, Decoder

QUICK, MANY = 120, 4000
BITS = 8


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[bool]]:
    """Decode tables of any size in short spans; count which spans are decoded and which not."""
    monkeypatch.setattr(_spans, "FEW_ROWS", 0)
    monkeypatch.setattr(_spans, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(_spans, "SPAN_BYTES", 16384)
    counts: Counter[bool] = Counter()
    decode = Decoder.decode

    def counted(self, *given):
        frame = decode(self, *given)
        counts[frame is not None] += 1
        return frame

    monkeypatch.setattr(Decoder, "decode", counted)
    return counts


def _made(seed: int, folder: Path) -> Database:
    path = folder / f"{seed}.db"
    path.unlink(missing_ok=True)
    return Maker(seed, path).make()


def _read(database: Database, rows: int = 50) -> tuple[pl.DataFrame, SqliteFile]:
    file = SqliteFile(database.path)
    parts = list(file.batches("t", database.columns, rows))
    assert all(0 < part.height <= rows for part in parts)
    empty = pl.DataFrame(schema={name: DTYPE[kind] for name, kind in database.columns.items()})
    return pl.concat([empty, *parts]), file


def _check(database: Database) -> None:
    frame, file = _read(database)
    wanted = expected(database.path, database.columns)
    assert_frame_equal(frame, wanted, check_exact=True)
    assert file.warnings == []
    plain = SqliteFile(database.path)
    assert_frame_equal(plain.read("t", database.columns), wanted, check_exact=True)
    assert plain.coerced == file.coerced


def _check_seeds(seeds: range, folder: Path, counts: Counter[bool]) -> None:
    for seed in seeds:
        database = _made(seed, folder)
        try:
            _check(database)
        except Exception as error:
            error.add_note(f"seed {seed}: {sorted(database.oddities)}, {dict(database.columns)}")
            raise
        database.path.unlink()
    assert counts[True] > counts[False] > len(seeds) / 100


def _check_damaged(seeds: range, folder: Path) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        database = _made(seed, folder)
        pick = random.Random(seed)
        content = database.path.read_bytes()
        for _ in range(4):
            database.path.write_bytes(_damaged(content, pick))
            try:
                outcomes[_outcome(database)] += 1
            except Exception as error:
                error.add_note(f"seed {seed}")
                database.path.rename(folder / "failed.db")
                raise
    return outcomes


def _damaged(content: bytes, pick: random.Random) -> bytes:
    """Flip bits, overwrite bytes, swap pages or cut the end off."""
    changed = bytearray(content)
    size = int.from_bytes(content[16:18], "big")
    size = 65536 if size == 1 else size
    match pick.randrange(5):
        case 0:
            for _ in range(pick.choice((1, 1, 4, 64))):
                changed[pick.randrange(100, len(changed))] ^= 1 << pick.randrange(BITS)
        case 1:  # where the page says what is on it
            page = pick.randrange(len(changed) // size) * size
            changed[max(100, page + pick.randrange(min(size, 60)))] = pick.choice((0, 1, 127, 255))
        case 2:
            at = pick.randrange(100, len(changed))
            noise = pick.randbytes(pick.choice((1, 2, 9, 100)))
            changed[at : at + len(noise)] = noise[: len(changed) - at]
        case 3:
            one, other = (pick.randrange(len(changed) // size) * size for _ in range(2))
            if one and other:
                kept = changed[one : one + size]
                changed[one : one + size] = changed[other : other + size]
                changed[other : other + size] = kept
        case 4:
            changed[24:28] = b"\0\0\0\7"  # so that the header does not count the pages
            del changed[pick.randrange(100, len(changed)) :]
    return bytes(changed)


def _outcome(database: Database) -> str:
    """Tell how a damaged file is read; it must not be read otherwise than SQLite reads it."""
    try:
        frame, file = _read(database)
    except DamagedTraceError:
        return "error"
    assert file.warnings == []
    if not file.has("t", *database.columns):
        return "other table"
    try:
        wanted = expected(database.path, database.columns)
    except sqlite3.DatabaseError:
        return "read where SQLite fails"
    if not frame.equals(wanted):
        # Of a cell that is not all on its page SQLite reads what happens to lie in its memory.
        plain = Library(database.path, file.uri, utf8=True).read("t", database.columns).frame
        assert not plain.equals(wanted)
        return "SQLite differs from itself"
    return "same"


class TestCorpus:
    @pytest.mark.slow
    def test_random_tables_are_read_as_sqlite_reads_them(self, tmp_path, decoded):
        _check_seeds(range(QUICK), tmp_path, decoded)

    @pytest.mark.slow
    @pytest.mark.nightly
    def test_thousands_of_random_tables_are_read_as_sqlite_reads_them(self, tmp_path, decoded):
        _check_seeds(range(QUICK, QUICK + MANY), tmp_path, decoded)

    @pytest.mark.slow
    def test_damaged_tables_are_read_as_sqlite_reads_them_or_not_at_all(self, tmp_path, decoded):
        outcomes = _check_damaged(range(QUICK // 4), tmp_path)
        assert outcomes["same"] > QUICK / 10
        assert outcomes["error"] > QUICK / 10

    @pytest.mark.slow
    @pytest.mark.nightly
    def test_thousands_of_damaged_tables_are_read_so_too(self, tmp_path, decoded):
        _check_damaged(range(QUICK, QUICK + MANY), tmp_path)


COLUMNS = {"id": "int", "a": "int", "b": "text", "absent": "real", "c": "real"}
ROWS = 3000


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a table ``t`` of pages of 512 bytes, and change it."""

    def make(*changes: str, rows: int = ROWS, declared: str = "a INTEGER, b TEXT, c REAL") -> Path:
        path = tmp_path / "t.db"
        values = [(n, n * 2**40, f"text {n}" if n % 7 else None, n / 2) for n in range(rows)]
        table = f"CREATE TABLE t (id INTEGER PRIMARY KEY, {declared})"
        insert = "INSERT INTO t VALUES (?, ?, ?, ?)"
        execute(path, "PRAGMA page_size = 512", table, insert, many=values)
        execute(path, *changes)
        return path

    return make


def _same(path: Path, columns: dict[str, str] = COLUMNS) -> SqliteFile:
    """Hold what is read of a file against SQLite's own answer."""
    file = SqliteFile(path)
    wanted = expected(path, {n: kind for n, kind in columns.items() if n != "absent"})
    absent = pl.lit(None, pl.Float64).alias("absent")
    wanted = (wanted.with_columns(absent) if "absent" in columns else wanted).select(list(columns))
    assert_frame_equal(pl.concat(file.batches("t", columns)), wanted, check_exact=True)
    return file


class TestBatches:
    @pytest.mark.parametrize("rows", [1, 999, 1000, ROWS - 1, ROWS, 1 << 20])
    @pytest.mark.parametrize("few", [0, 10**9], ids=["decoded", "by SQLite"])
    def test_all_but_the_last_are_at_least_half_of_the_size_asked_for(
        self, make, decoded, monkeypatch, rows, few
    ):
        monkeypatch.setattr(_spans, "FEW_ROWS", few)
        parts = [part.height for part in SqliteFile(make()).batches("t", COLUMNS, rows)]
        assert sum(parts) == ROWS
        assert all(rows / 2 <= part <= rows for part in parts[:-1])
        assert 0 < parts[-1] <= rows
        assert bool(decoded[True]) == (few == 0)

    def test_an_absent_table_and_an_empty_one_give_none(self, make, decoded):
        file = SqliteFile(make(rows=0))
        assert list(file.batches("t", COLUMNS)) == list(file.batches("u", COLUMNS)) == []
        assert file.read("t", COLUMNS).columns == list(COLUMNS)

    def test_a_large_table_is_decoded_without_being_told(self, tmp_path):
        path = tmp_path / "t.db"
        values = [(n, None, str(n)) for n in range(_spans.FEW_ROWS + 1000)]
        execute(path, "CREATE TABLE t (a, n, b)", "INSERT INTO t VALUES (?, ?, ?)", many=values)
        file = _same(path, {"a": "int", "n": "real", "b": "text"})
        assert file.read("t", {"b": "text"})["b"].to_list() == [b for _, _, b in values]

    def test_a_small_table_does_not_load_the_compiler(self, make):
        program = (
            "import sys; from pathlib import Path; from tracekit.sources.sqlite import SqliteFile;"
            "assert SqliteFile(Path(sys.argv[1])).read('t', {'a': 'int'}).height == 3000;"
            "assert not {'numba', 'nanoarrow'} & sys.modules.keys()"
        )
        subprocess.run([sys.executable, "-c", program, make()], check=True)

    def test_no_thread_goes_on_when_no_more_batches_are_taken(self, make, decoded):
        before = threading.active_count()
        batches = SqliteFile(make()).batches("t", COLUMNS, 10)
        assert next(batches).height == 10
        assert threading.active_count() > before
        batches.close()
        assert threading.active_count() == before


class TestWhatTheDecoderLeavesToSqlite:
    """A span that is not understood is read by SQLite, between others that are decoded."""

    @pytest.mark.parametrize(
        ("change", "lost"),
        [
            ("UPDATE t SET a = 'no' WHERE id = 2000", {"t.a": 1}),
            ("UPDATE t SET a = 2.5 WHERE id IN (5, 2000)", {"t.a": 2}),
            ("UPDATE t SET c = 'no' WHERE id = 2000", {"t.c": 1}),
            ("UPDATE t SET b = x'ff00' WHERE id = 2000", {}),
            ("UPDATE t SET b = CAST(x'ff00' AS TEXT) WHERE id = 2000", {}),
            (f"UPDATE t SET b = '{'o' * 600}' WHERE id = 2000", {}),
            ("UPDATE t SET a = 7.0, c = 7, b = 7 WHERE id = 2000", {}),
        ],
    )
    def test_odd_values(self, make, decoded, change, lost):
        assert _same(make(change)).coerced == lost
        assert decoded[True] > 1

    @pytest.mark.parametrize(
        ("declared", "columns"),
        [
            ("a INTEGER, b TEXT, c REAL, g AS (a) STORED", COLUMNS),
            ("a REAL, b TEXT, c REAL", COLUMNS),
            ("a INTEGER, b TEXT, c REAL", {"id": "text"}),
            ("a INTEGER, b TEXT, c REAL", {"id": "real"}),
        ],
        ids=["generated", "real", "rowid as text", "rowid as real"],
    )
    def test_odd_columns(self, tmp_path, decoded, declared, columns):
        path = tmp_path / "t.db"
        insert = "INSERT INTO t (id, a, b, c) VALUES (?, ?, ?, ?)"
        values = [(n, n, "x", n / 2) for n in range(ROWS)]
        table = f"CREATE TABLE t (id INTEGER PRIMARY KEY, {declared})"
        execute(path, table, insert, many=values)
        _same(path, columns)
        assert not decoded[True]

    def test_a_table_without_rowids(self, tmp_path, decoded):
        path = tmp_path / "t.db"
        table = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT) WITHOUT ROWID"
        values = [(n, str(n)) for n in range(ROWS)]
        execute(path, table, "INSERT INTO t VALUES (?, ?)", many=values)
        _same(path, {"a": "int", "b": "text"})
        assert not decoded

    def test_columns_added_later_are_null_or_as_sqlite_says(self, make, decoded):
        columns: dict[str, Any] = {"a": "int", "late": "int"}
        path = make("ALTER TABLE t ADD COLUMN late INTEGER")
        _same(path, columns)
        assert decoded[True]
        execute(path, "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 5")
        decoded.clear()
        _same(path, columns | {"later": "int"})
        assert not decoded[True]


class TestDistrust:
    @pytest.mark.parametrize("from_span", [0, 3])
    def test_a_difference_to_sqlite_ends_the_decoding(self, make, decoded, monkeypatch, from_span):
        add, spans = Columns.add, itertools.count()

        def wrong(self, data, found):
            found.stored[1] += next(spans) >= from_span
            return add(self, data, found)

        monkeypatch.setattr(Columns, "add", wrong)
        monkeypatch.setattr(_spans, "CHECKED_LEAVES", 10 if from_span == 0 else 400)
        file = _same(make())
        assert len(file.warnings) == 1
        assert "decoding its pages gave other values than SQLite did" in file.warnings[0]
        assert "table t of" in file.warnings[0]

    def test_rows_out_of_order_are_damage(self, make, decoded):
        path = make()
        content = bytearray(path.read_bytes())
        leaves = [at for at in range(512, len(content), 512) if content[at] == 13]
        page = leaves[len(leaves) // 2]
        first, second = content[page + 8 : page + 10], content[page + 10 : page + 12]
        content[page + 8 : page + 12] = second + first
        path.write_bytes(content)
        with pytest.raises(DamagedTraceError, match="rows of table t are not where they should"):
            SqliteFile(path).read("t", COLUMNS)

    def test_a_file_that_is_cut_while_it_is_read_is_damage(self, make, decoded):
        path = make(rows=20_000)
        batches = SqliteFile(path).batches("t", COLUMNS, 10)
        next(batches)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(DamagedTraceError, match="cannot be read"):
            list(batches)

    @pytest.mark.parametrize("name", ["pread", "preadv"])
    @pytest.mark.parametrize("reads", [0, 1, 5, 20])
    def test_a_file_that_fails_while_it_is_read_is_damage(
        self, make, decoded, monkeypatch, name, reads
    ):
        path, read, left = make(rows=20_000), getattr(os, name), [reads]

        def failing(*given):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(*given)

        monkeypatch.setattr(os, name, failing)
        with pytest.raises(DamagedTraceError, match=r"t\.db cannot be read \(Input/output error\)"):
            list(SqliteFile(path).batches("t", COLUMNS, 10))
        assert left[0] < 0

    def test_a_file_that_is_gone_before_it_is_read_is_damage(self, make, decoded):
        path = make()
        file = SqliteFile(path)
        assert file.has("t")
        path.unlink()
        with pytest.raises(DamagedTraceError, match=r"t\.db cannot be read \(No such file"):
            list(file.batches("t", COLUMNS))

    @pytest.mark.parametrize("child", [0, 2, 10**6, 2**31, 2**32 - 1])
    def test_a_tree_that_leads_elsewhere_is_damage(self, make, decoded, child):
        path = make()
        content = bytearray(path.read_bytes())
        roots = [at for at in range(512, len(content), 512) if content[at] == 5]
        content[roots[-1] + 8 : roots[-1] + 12] = child.to_bytes(4, "big")
        path.write_bytes(content)
        with pytest.raises(DamagedTraceError, match="cannot be read"):
            SqliteFile(path).read("t", COLUMNS)
        assert not decoded
