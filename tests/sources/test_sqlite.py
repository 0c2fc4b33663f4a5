"""Columns out of SQLite files: exact values, any content, and files left as they were found."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_helpers import execute

from tracekit.errors import DamagedTraceError
from tracekit.sources._reading import Where
from tracekit.sources.sqlite import SqliteFile

BATCH = 1024
"""As many rows as the driver looks at to find the type of a column."""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., SqliteFile]:
    """Write a table ``t`` with the given declaration and rows, and open it."""

    def make(declaration: str, values: list[tuple[Any, ...]], name: str = "t.db") -> SqliteFile:
        path = tmp_path / name
        marks = ", ".join("?" * (declaration.count(",") + 1))
        execute(
            path, f"CREATE TABLE t ({declaration})", f"INSERT INTO t VALUES ({marks})", many=values
        )
        return SqliteFile(path)

    return make


class TestValues:
    def test_columns_come_back_in_the_order_asked_for_with_their_types(self, make):
        file = make("a INTEGER, b TEXT, c REAL", [(1, "x", 0.5), (None, None, None), (3, "", -1.0)])
        expected = pl.DataFrame(
            {"c": [0.5, None, -1.0], "a": [1, None, 3], "b": ["x", None, ""]},
            schema={"c": pl.Float64, "a": pl.Int64, "b": pl.String},
        )
        assert file.read("t", {"c": "real", "a": "int", "b": "text"}).equals(expected)
        assert file.coerced == {}

    def test_integers_are_exact_to_64_bits(self, make):
        edges = [0, 2**53 + 1, 2**63 - 1, -(2**63), -1, 4294967295]
        file = make("a INTEGER", [(edge,) for edge in edges])
        assert file.read("t", {"a": "int"})["a"].to_list() == edges

    def test_an_empty_table_has_columns_with_their_types(self, make):
        file = make("a INTEGER, b TEXT", [])
        frame = file.read("t", {"a": "int", "b": "text", "c": "real"})
        assert frame.schema == {"a": pl.Int64, "b": pl.String, "c": pl.Float64}
        assert frame.height == 0

    def test_columns_of_nulls_have_their_types(self, make):
        file = make("a INTEGER, b TEXT, c REAL", [(None, None, None)] * (BATCH + 1))
        frame = file.read("t", {"a": "int", "b": "text", "c": "real"})
        assert frame.dtypes == [pl.Int64, pl.String, pl.Float64]
        assert frame.null_count().row(0) == (BATCH + 1,) * 3

    def test_absent_columns_are_null_and_absent_tables_empty(self, make):
        file = make("a INTEGER", [(7,)])
        assert file.read("t", {"z": "text", "a": "int"}).rows() == [(None, 7)]
        assert file.read("u", {"a": "int"}).rows() == []
        assert file.read("t", {"z": "int"}).rows() == []

    def test_a_condition_selects_rows(self, make):
        file = make("a INTEGER, b TEXT", [(1, "x"), (2, "y"), (3, "x")])
        assert file.read("t", {"a": "int"}, [Where("b", "is", ("x",))]).rows() == [(1,), (3,)]

    def test_rows_keep_their_order_even_where_an_index_covers_them(self, make):
        file = make("a INTEGER, b TEXT", [(3, "x" * 9000), (1, "y" * 9000), (2, "z" * 9000)])
        execute(file.path, "CREATE INDEX i ON t (a)")
        assert file.read("t", {"a": "int"})["a"].to_list() == [3, 1, 2]
        some = [Where("a", "is", ("2", "3"))]
        assert file.read("t", {"a": "int"}, some)["a"].to_list() == [3, 2]

    def test_names_that_need_quotes_are_read(self, make):
        file = make('"a ""b"" \'c\'" INTEGER, "select" INTEGER', [(1, 2)])
        assert file.read("t", {"a \"b\" 'c'": "int", "select": "int"}).rows() == [(1, 2)]


class TestMixedTypes:
    """SQLite types each value by itself; a column's declaration is a wish."""

    # (what is stored in an integer column without affinity, what comes back)
    STORED = (
        (5, 5),
        (5.0, 5),
        (-3.0, -3),
        ("5", 5),
        ("-5", -5),
        (float(2**53), 2**53),
        (5.5, None),
        (1e300, None),
        (9.3e18, None),
        (float(2**63), None),
        (-float(2**63), -(2**63)),
        ("", None),
        ("5 apples", None),
        ("0x5", None),
        (" 5", None),
        ("99999999999999999999", None),
        (b"5", None),
        (b"\xff\x00", None),
    )

    @pytest.mark.parametrize(("stored", "expected"), STORED)
    @pytest.mark.parametrize("before", [0, BATCH + 1], ids=["first", "late"])
    def test_whole_numbers_are_kept_and_nothing_else(self, make, stored, expected, before):
        file = make("a, b TEXT", [(2**60 + 1, "x")] * before + [(stored, "y"), (None, "z")])
        frame = file.read("t", {"a": "int", "b": "text"})
        assert frame["a"].to_list() == [2**60 + 1] * before + [expected, None]
        assert frame["b"].to_list() == ["x"] * before + ["y", "z"]
        assert file.coerced == ({} if expected is not None else {"t.a": 1})

    def test_values_that_were_dropped_are_counted_by_column(self, make):
        file = make("a, b, c TEXT", [(1, "x", 1), ("no", 2.5, b"z"), (None, "y", None)])
        assert file.read("t", {"a": "int", "b": "real", "c": "text"}).rows() == [
            (1, None, "1"),
            (None, 2.5, "z"),
            (None, None, None),
        ]
        assert file.coerced == {"t.a": 1, "t.b": 2}

    @pytest.mark.parametrize("before", [0, BATCH + 1], ids=["first", "late"])
    def test_whole_numbers_in_a_column_of_reals_are_reals(self, make, before):
        file = make("a", [(0.5,)] * before + [(3,), (0.25,)])
        assert file.read("t", {"a": "real"})["a"].to_list() == [0.5] * before + [3.0, 0.25]
        assert file.coerced == {}

    @pytest.mark.parametrize("before", [0, BATCH + 1], ids=["first", "late"])
    def test_numbers_and_blobs_in_a_column_of_text_are_their_text(self, make, before):
        file = make("a", [("x",)] * before + [(7,), (0.5,), (b"raw",), ("y",)])
        texts = file.read("t", {"a": "text"})["a"].to_list()
        assert texts == ["x"] * before + ["7", "0.5", "raw", "y"]


class TestText:
    @pytest.mark.parametrize(
        "text",
        [
            "void k<(int)4, std::array<char *, (unsigned long)3>>(int, T2)",
            'it\'s "quoted", `ticked` and [bracketed]; DROP TABLE t; --',
            "line\nbreak\ttab\r",
            "naïve Ωμέγα 漢字 🚀 \u200b\ufeff",
            "%s {0} ${HOME} \\x00",
            "a" * 3_000_000,
        ],
        ids=["kernel", "quotes", "lines", "unicode", "formats", "huge"],
    )
    def test_text_is_kept_as_it_is(self, make, text):
        assert make("a TEXT", [(text,), ("x",)]).read("t", {"a": "text"})["a"].to_list() == [
            text,
            "x",
        ]

    def test_text_goes_on_after_a_nul(self, make):
        file = make("a TEXT", [("before\x00after",), ("\x00",)])
        assert file.read("t", {"a": "text"})["a"].to_list() == ["before\x00after", "\x00"]

    def test_bytes_that_are_no_utf8_are_replaced_and_the_rest_is_kept(self, make):
        file = make("a TEXT", [("fine",), (None,), ("fine",)])
        execute(file.path, "INSERT INTO t VALUES (CAST(x'636166E9' AS TEXT))")
        texts = SqliteFile(file.path).read("t", {"a": "text"})["a"].to_list()
        assert texts == ["fine", None, "fine", "caf\ufffd"]


class TestTables:
    def test_names_are_told_apart_as_sqlite_does(self, make):
        """By ASCII letters of any case."""
        file = make("Aa INTEGER, b TEXT, \u00c4 TEXT", [(1, "x", "y")])
        assert file.has("t", "b", "Aa", "\u00c4")
        assert file.has("T", "aa", "B")
        assert not file.has("t", "\u00e4")
        assert not file.has("u")
        assert file.read("T", {"aA": "int", "B": "text"}).to_dicts() == [{"aA": 1, "B": "x"}]

    def test_rows_are_counted(self, make):
        file = make("a INTEGER", [(1,), (2,)])
        execute(file.path, "CREATE TABLE empty (a)")
        file = SqliteFile(file.path)
        assert (file.holds_rows("t"), file.count("t")) == (True, 2)
        assert (file.holds_rows("empty"), file.count("empty")) == (False, 0)
        assert not file.holds_rows("absent")

    def test_views_are_no_tables(self, make):
        file = make("a INTEGER", [])
        execute(file.path, "CREATE VIEW StringIds AS SELECT a AS id, a AS value FROM t")
        assert not SqliteFile(file.path).has("StringIds")

    def test_a_virtual_table_of_an_unknown_module_does_not_stand_in_the_way(self, make):
        file = make("a INTEGER", [(1,)])
        execute(
            file.path,
            "PRAGMA writable_schema = ON",
            "INSERT INTO sqlite_master VALUES"
            " ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING no_such_module()')",
        )
        file = SqliteFile(file.path)
        assert file.has("t")
        assert not file.has("v")
        assert file.read("t", {"a": "int"}).rows() == [(1,)]


def _listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What lies in a folder, with the size, time and rights of each."""
    entries = {".": folder.stat()} | {path.name: path.stat() for path in folder.iterdir()}
    return {
        name: (s.st_size, s.st_mtime_ns, stat.S_IMODE(s.st_mode)) for name, s in entries.items()
    }


def _read_all(path: Path) -> list[tuple[Any, ...]]:
    file = SqliteFile(path)
    assert file.count("t") == len(file.read("t", {"a": "int"}))
    return file.read("t", {"a": "int"}).rows()


class TestFilesAreLeftAlone:
    def test_nothing_is_written_to_it_or_beside_it(self, make, tmp_path):
        path = make("a INTEGER", [(1,)]).path
        content, before = path.read_bytes(), _listing(tmp_path)
        assert _read_all(path) == [(1,)]
        assert _listing(tmp_path) == before
        assert path.read_bytes() == content

    def test_a_finished_file_in_wal_mode_is_read_without_a_new_wal(self, make, tmp_path):
        path = make("a INTEGER", [(1,)]).path
        execute(path, "PRAGMA journal_mode = WAL")
        before = _listing(tmp_path)
        assert _read_all(path) == [(1,)]
        assert _listing(tmp_path) == before

    def test_neither_the_file_nor_its_folder_need_be_writable(self, other_user_folder, as_other):
        path = other_user_folder / "t.db"
        execute(path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (5)")
        path.chmod(0o444)
        other_user_folder.chmod(0o555)
        before = _listing(other_user_folder)
        with as_other():
            assert not os.access(path, os.W_OK, effective_ids=True)
            assert not os.access(other_user_folder, os.W_OK, effective_ids=True)
            assert _read_all(path) == [(5,)]
        assert _listing(other_user_folder) == before

    def test_another_program_may_hold_a_lock_on_it(self, make):
        path = make("a INTEGER", [(1,)]).path
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert _read_all(path) == [(1,)]

    @pytest.mark.parametrize(
        "name",
        [
            "with space.db",
            "a#b.db",
            "a?mode=rwc&b.db",
            "100%25.db",
            'it\'s "q".db',
            "naïve-漢字.db",
            "a;b=c&d.db",
            ".hidden",
            "-t",
        ],
    )
    def test_any_name_does(self, make, tmp_path, name):
        assert _read_all(make("a INTEGER", [(1,)], name=name).path) == [(1,)]
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_a_name_that_is_no_text_does(self, make, tmp_path):
        path = make("a INTEGER", [(1,)]).path.rename(tmp_path / os.fsdecode(b"caf\xe9.db"))
        assert _read_all(path) == [(1,)]

    def test_a_path_may_be_relative(self, make, monkeypatch):
        path = make("a INTEGER", [(1,)], name="a b.db").path
        monkeypatch.chdir(path.parent)
        assert _read_all(Path("a b.db")) == [(1,)]


class TestUnfinishedFiles:
    @pytest.mark.parametrize("suffix", ["-wal", "-journal"])
    def test_a_log_beside_the_file_says_that_it_is_being_written(self, make, suffix):
        path = make("a INTEGER", [(1,)]).path
        side = path.with_name(path.name + suffix)
        side.write_bytes(b"")
        assert _read_all(path) == [(1,)]
        side.write_bytes(b"x")
        with pytest.raises(
            DamagedTraceError, match=rf"still being written \(t\.db{suffix} is beside"
        ):
            SqliteFile(path)

    def test_a_writer_at_work_is_noticed(self, make):
        path = make("a INTEGER", [(1,)]).path
        execute(path, "PRAGMA journal_mode = WAL")
        with closing(sqlite3.connect(path)) as writer:
            writer.execute("INSERT INTO t VALUES (2)")
            writer.commit()
            with pytest.raises(DamagedTraceError, match="wait until the export has finished"):
                SqliteFile(path)

    def test_the_log_lies_beside_the_file_that_a_link_points_to(self, make, tmp_path):
        path = make("a INTEGER", [(1,)]).path
        link = tmp_path / "elsewhere" / "link.db"
        link.parent.mkdir()
        link.symlink_to(path)
        assert _read_all(link) == [(1,)]
        path.with_name("t.db-wal").write_bytes(b"x")
        with pytest.raises(DamagedTraceError, match="still being written"):
            SqliteFile(link)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "t.db"
    execute(
        path,
        "CREATE TABLE t (a INTEGER, b TEXT)",
        "INSERT INTO t VALUES (?, ?)",
        many=[(n, f"text of row {n}") for n in range(2000)],
    )
    return path


class TestDamage:
    @pytest.mark.parametrize("share", [0.0001, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999])
    def test_a_file_that_was_cut_is_told_by_its_size(self, whole, tmp_path, share):
        cut = tmp_path / "cut.db"
        content = whole.read_bytes()
        cut.write_bytes(content[: max(100, int(len(content) * share))])
        with pytest.raises(DamagedTraceError, match=r"cut\.db is cut short \([\d,]+ of 7?[\d,]+"):
            SqliteFile(cut)

    def test_a_header_alone_cannot_be_read(self, tmp_path):
        path = tmp_path / "t.db"
        path.write_bytes(b"SQLite format 3\x00" + bytes(4))
        with pytest.raises(DamagedTraceError, match="cannot be read"):
            SqliteFile(path).has("t")  # the schema is read when it is asked for

    def test_pages_of_65536_bytes_are_counted_right(self, tmp_path):
        path = tmp_path / "t.db"
        execute(
            path,
            "PRAGMA page_size = 65536",
            "CREATE TABLE t (a INTEGER)",
            "INSERT INTO t VALUES (1)",
        )
        assert _read_all(path) == [(1,)]
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DamagedTraceError, match="131,071 of 131,072 bytes"):
            SqliteFile(path)

    def test_bytes_after_the_last_page_do_no_harm(self, whole, tmp_path):
        path = tmp_path / "t.db"
        path.write_bytes(whole.read_bytes() + b"padding")
        assert len(_read_all(path)) == 2000

    @settings(
        max_examples=examples(60),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_overwritten_bytes_give_an_error_or_a_table_of_the_right_types(
        self, whole, tmp_path, data
    ):
        content = bytearray(whole.read_bytes())
        start = data.draw(st.integers(16, len(content) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=64))
        content[start : start + len(noise)] = noise[: len(content) - start]
        path = tmp_path / "t.db"
        path.write_bytes(content)
        with suppress(DamagedTraceError):
            frame = SqliteFile(path).read("t", {"a": "int", "b": "text"})
            assert frame.schema == {"a": pl.Int64, "b": pl.String}

    def test_a_page_of_zeros_is_found_in_the_middle_of_a_table(self, whole, tmp_path):
        content = bytearray(whole.read_bytes())
        content[8 * 4096 : 9 * 4096] = bytes(4096)
        path = tmp_path / "t.db"
        path.write_bytes(content)
        with pytest.raises(DamagedTraceError, match=r"t\.db cannot be read \(.*malformed"):
            SqliteFile(path).read("t", {"a": "int"})
