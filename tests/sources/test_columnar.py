"""Folders of Parquet files and of Arrow streams, read as SQLite exports are."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pytest
from columnar_builder import write_columnar, write_table
from effort import examples
from hostile_files import KINDS as KINDS_OF_FILES
from hostile_files import damaged
from hypothesis import HealthCheck, given, settings
from nsys_builder import NsysBuilder
from polars.testing import assert_frame_equal

import tracekit as tk
from tracekit.errors import DamagedTraceError, InputError, MissingDataError, NotATraceError
from tracekit.sources import content_files, read
from tracekit.sources._reading import Where
from tracekit.sources.columnar import ColumnarExport
from tracekit.sources.columnar._arrow import ArrowTable
from tracekit.sources.columnar._folder import typed
from tracekit.sources.sqlite import SqliteFile
from tracekit.store import file_digest, file_size

ROOT = Path(__file__).parents[2]
SUFFIXES = (".parquet", ".arrow")
KINDS = {".parquet": "parquetdir", ".arrow": "arrowdir"}
STRINGS = pl.DataFrame({"id": [0, 1], "value": ["a", "b"]})


def _fill(nsys: NsysBuilder) -> Path:
    nsys.gpu(0)
    nsys.session(1_700_000_000_000_000_000, 30_000)
    nsys.thread_name(100, 100, "python")
    nsys.process(100, "python")
    nsys.domain(100, 1, "NCCL")
    for step in range(50):
        at = 100 * step
        nsys.launch(at + 10, at + 20, at + 30, name=f"kernel_{step % 7}<int>(float *)")
        nsys.memcpy(at + 31, at + 40, correlation=step)
        nsys.push_pop(at, at + 90, f"step {step}")
    nsys.mark(5, "höre")
    nsys.close()
    return nsys.path


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def export(one: NsysBuilder, tmp_path: Path, suffix: str) -> Path:
    return write_columnar(_fill(one), tmp_path / "t_dir", suffix)


def _small(folder: Path, suffix: str, frame: pl.DataFrame, table: str = "T") -> ColumnarExport:
    write_table(STRINGS, folder, "StringIds", suffix)
    write_table(frame, folder, table, suffix)
    return ColumnarExport(folder)


class TestSameAsSqlite:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_all_canonical_tables(self, nsys, tmp_path, suffix):
        wanted = read(_fill(nsys))
        found = read(write_columnar(nsys.path, tmp_path / "x", suffix))
        assert found.warnings == wanted.warnings
        assert set(found.tables) == set(wanted.tables)
        assert wanted.read("ops").height == 100
        for name in set(wanted.tables) - {"reports"}:
            assert_frame_equal(found.read(name), wanted.read(name))
        differing = ["file", "format", "size"]
        ours, theirs = found.read("reports"), wanted.read("reports")
        assert_frame_equal(ours.drop(differing), theirs.drop(differing))
        size = sum(file.stat().st_size for file in (tmp_path / "x").iterdir())
        assert ours.select(differing).row(0) == ("x", f"nsys {KINDS[suffix]}", size)

    @pytest.mark.parametrize(
        ("where", "ids"),
        [
            ([Where("name", "is", ("a:x", "b:y"))], [1, 2, 3]),
            ([Where("name", "is", ("it's",))], [4]),
            ([Where("name", "starts", ("a",))], [1, 3]),
            ([Where("name", "starts", ("b:", "it's"))], [2, 4]),
            ([Where("name", "ends", (":x",)), Where("value", "starts", ("K=",))], [1]),
            ([Where("kind", "first")], [1, 3, 6]),
            ([], [1, 2, 3, 4, 5, 6]),
        ],
    )
    def test_conditions(self, tmp_path, suffix, where, ids):
        frame = pl.DataFrame(
            {
                "id": [1, 2, 3, 4, 5, 6],
                "kind": [7, 7, 8, 8, 7, None],
                "name": ["a:x", "b:y", "a:x", "it's", None, "A:x"],
                "value": ["K=1", "K=2", "k=1", None, "K=", "J"],
            }
        )
        export = _small(tmp_path / "c", suffix, frame)
        with closing(sqlite3.connect(tmp_path / "t.sqlite")) as file, file:
            file.execute("CREATE TABLE T (id INTEGER, kind INTEGER, name TEXT, value TEXT)")
            file.executemany("INSERT INTO T VALUES (?, ?, ?, ?)", frame.rows())
        for file in (export, SqliteFile(tmp_path / "t.sqlite")):
            assert file.read("T", {"id": "int"}, where)["id"].to_list() == ids

    def test_a_filter_over_several_batches(self, tmp_path, suffix, monkeypatch):
        monkeypatch.setattr(ColumnarExport.batches, "__defaults__", (8,))
        frame = pl.DataFrame({"id": range(100), "kind": [i // 30 for i in range(100)]})
        found = _small(tmp_path / "c", suffix, frame).read(
            "T", {"id": "int"}, [Where("kind", "first")]
        )
        assert found["id"].to_list() == [0, 30, 60, 90]


class TestTables:
    def test_what_there_is(self, tmp_path, suffix):
        frame = pl.DataFrame({"a": [1, 2], "b": [None, None]}, schema_overrides={"b": pl.Int64})
        export = _small(tmp_path / "c", suffix, frame)
        write_table(frame.clear(), tmp_path / "c", "Empty", suffix)
        export = ColumnarExport(tmp_path / "c")
        assert all(map(export.has, ("StringIds", "T", "Empty")))
        assert export.kind == KINDS[suffix]
        assert export.has("T", "a", "b")
        assert not export.has("T", "A")
        assert not export.has("U")
        assert (export.holds_rows("T"), export.holds_rows("Empty")) == (True, False)
        assert not export.holds_rows("U")
        assert export.holds_values("T", "a")
        assert not export.holds_values("T", "b")
        assert not export.holds_values("T", "c")
        assert (export.count("T"), export.count("Empty")) == (2, 0)

    def test_absent_tables_and_columns_are_null_or_empty(self, tmp_path, suffix):
        export = _small(tmp_path / "c", suffix, pl.DataFrame({"a": [1]}))
        found = export.read("T", {"b": "text", "a": "int"})
        assert found.rows() == [(None, 1)]
        assert found.schema == {"b": pl.String, "a": pl.Int64}
        assert export.read("U", {"a": "int"}).shape == (0, 1)
        assert list(export.batches("U", {"a": "int"})) == []
        assert list(export.batches("T", {"z": "int"})) == []

    @pytest.mark.parametrize("rows", [1, 7, 8, 16, 1000])
    def test_batches_keep_the_order_and_the_size(self, tmp_path, suffix, rows):
        frame = pl.DataFrame(
            {"a": range(103), "b": [None if i % 3 else f"ä{i}" for i in range(103)]}
        )
        export = _small(tmp_path / "c", suffix, frame)
        parts = list(export.batches("T", {"a": "int", "b": "text"}, rows))
        assert all(rows / 2 <= part.height <= rows for part in parts[:-1])
        assert_frame_equal(pl.concat(parts), frame)

    def test_parquet_is_preferred_where_both_are(self, tmp_path):
        _small(tmp_path / "c", ".arrow", pl.DataFrame({"a": [1]}))
        export = _small(tmp_path / "c", ".parquet", pl.DataFrame({"a": [2]}))
        assert (export.kind, export.read("T", {"a": "int"}).item()) == ("parquetdir", 2)
        assert {file.suffix for file in content_files(tmp_path / "c")} == {".parquet"}

    def test_names_are_no_patterns(self, tmp_path, suffix):
        export = _small(tmp_path / "[c]*=1", suffix, pl.DataFrame({"a": [1]}))
        assert export.read("T", {"a": "int"}).item() == 1


class TestTypes:
    @pytest.mark.parametrize(
        ("values", "kind", "expected", "lost"),
        [
            (pl.Series([2**63, 2**64 - 1, None], dtype=pl.UInt64), "int", [-(2**63), -1, None], 0),
            (pl.Series([1, None], dtype=pl.UInt32), "int", [1, None], 0),
            (pl.Series([True, False, None]), "int", [1, 0, None], 0),
            (pl.Series([1.0, 1.5, -(2.0**63), 2.0**63]), "int", [1, None, -(2**63), None], 2),
            (pl.Series(["12", "012", "x", "-3", None]), "int", [12, None, None, -3, None], 2),
            (pl.Series([b"12", b"\xff"]), "int", [12, None], 1),
            (pl.Series([2**53 + 1]), "int", [2**53 + 1], 0),
            (pl.Series([1, None]), "real", [1.0, None], 0),
            (pl.Series([1.5, float("nan"), None]), "real", [1.5, None, None], 0),
            (pl.Series(["1.5"]), "real", [None], 1),
            (pl.Series(["a", "b", "a"], dtype=pl.Categorical), "text", ["a", "b", "a"], 0),
            (pl.Series([b"a", b"\xff", None]), "text", ["a", "\ufffd", None], 0),
            (pl.Series([1, None]), "text", ["1", None], 0),
            (pl.Series([b"\x00\xff", None]), "blob", [b"\x00\xff", None], 0),
            (pl.Series(["a"]), "blob", [b"a"], 0),
            (pl.Series([0, None]).cast(pl.Date), "int", [None, None], 1),
            (pl.Series([[1], None]), "text", [None, None], 1),
            (pl.Series([{"a": 1}]), "real", [None], 1),
        ],
    )  # fmt: skip
    def test_of_all_kinds(self, values, kind, expected, lost):
        frame, fell = typed(values.alias("a").to_frame(), {"a": kind})
        assert frame["a"].to_list() == expected
        assert fell == ({"a": lost} if lost else {})

    def test_what_is_lost_is_counted(self, tmp_path, suffix):
        export = _small(tmp_path / "c", suffix, pl.DataFrame({"a": ["1", "x", "y"] * 20}))
        list(export.batches("T", {"a": "int"}, 8))
        assert export.coerced == {"T.a": 40}


COLUMNS = {
    "i8": (pl.Int8, st.integers(-128, 127)),
    "u16": (pl.UInt16, st.integers(0, 65535)),
    "i32": (pl.Int32, st.integers(-(2**31), 2**31 - 1)),
    "u64": (pl.UInt64, st.integers(0, 2**64 - 1)),
    "f32": (pl.Float32, st.floats(width=32, allow_nan=False)),
    "f64": (pl.Float64, st.floats(allow_nan=False)),
    "bool": (pl.Boolean, st.booleans()),
    "text": (pl.String, st.text(max_size=5)),
    "bytes": (pl.Binary, st.binary(max_size=5)),
    "null": (pl.Null, st.none()),
    "date": (pl.Date, st.dates()),
}


@st.composite
def _frames(draw: st.DrawFn) -> pl.DataFrame:
    height = draw(st.integers(0, 40))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    columns = []
    for name in names:
        dtype, values = COLUMNS[name]
        some = st.lists(st.none() | values, min_size=height, max_size=height)
        columns.append(pl.Series(name, draw(some), dtype=dtype))
    return pl.DataFrame(columns)


class TestArrowStreams:
    @settings(
        max_examples=examples(60),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(frame=_frames(), rows=st.integers(1, 50), pieces=st.integers(1, 3))
    def test_parts_are_what_polars_reads_of_the_whole(self, tmp_path, frame, rows, pieces):
        path = tmp_path / "t.arrow"
        frame = pl.concat([frame] * pieces, rechunk=False)
        frame.write_ipc_stream(path, compat_level=pl.CompatLevel.oldest())
        table = ArrowTable(path)
        assert table.columns == tuple(frame.columns)
        assert table.count() == frame.height
        parts = list(table.batches(frame.columns, rows))
        texts = [n for n in frame.columns if frame[n].dtype == pl.String]
        found = pl.concat(parts) if parts else frame.clear()
        assert_frame_equal(found.with_columns(pl.col(texts).cast(pl.String)), frame)

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compressed_ones_are_refused(self, tmp_path, compression):
        frame = pl.DataFrame({"a": range(5000), "b": ["x"] * 5000})
        frame.write_ipc_stream(
            tmp_path / "t.arrow", compression=compression, compat_level=pl.CompatLevel.oldest()
        )
        with pytest.raises(ValueError, match="it is compressed"):
            ArrowTable(tmp_path / "t.arrow").count()

    def test_dictionaries_are_read_too(self, tmp_path):
        frame = pl.DataFrame({"a": ["x", "y", "x"]}, schema={"a": pl.Categorical})
        write_table(STRINGS, tmp_path / "c", "StringIds", ".arrow")
        write_table(frame, tmp_path / "c", "T", ".arrow")
        export = ColumnarExport(tmp_path / "c")
        assert export.count("T") == 3
        assert export.read("T", {"a": "text"})["a"].to_list() == ["x", "y", "x"]

    def test_texts_that_are_no_utf8_are_replaced(self, tmp_path):
        export = _small(tmp_path / "c", ".arrow", pl.DataFrame({"a": ["wörld", "b"]}))
        path = tmp_path / "c" / "T.arrow"
        path.write_bytes(path.read_bytes().replace("ö".encode(), b"\xff\xff"))
        assert export.read("T", {"a": "text"})["a"].to_list() == ["w\ufffd\ufffdrld", "b"]

    def test_what_says_which_values_are_null_has_no_meaning_where_none_is(self, tmp_path):
        export = _small(tmp_path / "c", ".arrow", pl.DataFrame({"a": [7, None, 9]}))
        path = tmp_path / "c" / "T.arrow"
        none, one = (struct.pack("<qq", 3, nulls) for nulls in (0, 1))
        path.write_bytes(path.read_bytes().replace(one, none))
        wanted = pl.read_ipc_stream(path.read_bytes())["a"].to_list()
        assert export.read("T", {"a": "int"})["a"].to_list() == wanted == [7, 0, 9]


class TestRefused:
    def test_another_folder_of_parquet(self, tmp_path):
        STRINGS.write_parquet(tmp_path / "users.parquet")
        with pytest.raises(NotATraceError, match="is a directory without an export of nsys"):
            read(tmp_path)

    def test_strings_of_something_else(self, tmp_path, suffix):
        write_table(pl.DataFrame({"a": [1]}), tmp_path / "c", "StringIds", suffix)
        with pytest.raises(NotATraceError, match="were not written by nsys"):
            read(tmp_path / "c")

    def test_nothing_to_analyse(self, tmp_path, suffix):
        write_table(STRINGS, tmp_path / "c", "StringIds", suffix)
        with pytest.raises(MissingDataError, match="no GPU work and no NVTX ranges"):
            read(tmp_path / "c")

    def test_a_file_out_of_the_folder_says_to_give_the_folder(self, export, suffix):
        with pytest.raises(InputError, match="give the folder"):
            read(export / f"StringIds{suffix}")

    @pytest.mark.slow
    def test_a_table_that_is_cut_anywhere(self, export, suffix):
        path = export / f"NVTX_EVENTS{suffix}"
        whole = path.read_bytes()
        for size in (*range(0, 200, 7), *range(200, len(whole), 611), len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(DamagedTraceError, match="NVTX_EVENTS"):
                read(export)
        path.write_bytes(whole)
        assert read(export).read("ops").height == 100

    @pytest.mark.parametrize("suffix", [".arrow"])  # polars may abort on damaged Parquet pages
    @pytest.mark.parametrize("seed", range(examples(40)))
    def test_bytes_that_are_overwritten(self, export, suffix, seed):
        """Nothing but an error of ours, or a trace that keeps the rules of its tables."""
        chance = random.Random(seed)
        path = chance.choice(sorted(export.iterdir()))
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 3, 20])):
            data[chance.randrange(len(data))] = chance.choice(
                [0, 1, 127, 255, chance.randrange(256)]
            )
        path.write_bytes(data)
        with suppress(InputError):
            ops = read(export).read("ops")
            assert ops.select("process", "device", "start", "end").null_count().row(0) == (0,) * 4

    @pytest.mark.parametrize("seed", range(examples(200)))
    def test_arrow_metadata_that_is_overwritten(self, tmp_path, seed):
        chance = random.Random(seed)
        frame = pl.DataFrame({"a": range(20), "b": ["text"] * 20, "c": [True] * 20})
        export = _small(tmp_path / "c", ".arrow", frame)
        path = tmp_path / "c" / "T.arrow"
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 2, 5])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 127, 128, 255])
        path.write_bytes(data)
        with suppress(InputError):
            export.read("T", {"a": "int", "b": "text", "c": "int"})


class TestContent:
    def test_the_digest_is_that_of_names_and_content(self, export, tmp_path):
        digest = file_digest(export)
        copy = shutil.copytree(export, tmp_path / "other name")
        (copy / "notes.txt").write_text("x")
        assert file_digest(copy) == digest
        some = min(copy.glob("NVTX*"))
        some.rename(some.with_stem("OTHER"))
        assert file_digest(copy) != digest

    def test_what_lies_in_one_file_or_the_next_is_told_apart(self, tmp_path):
        for name, parts in (("x", (b"ab", b"c")), ("y", (b"a", b"bc"))):
            (tmp_path / name).mkdir()
            for table, part in zip(("A", "StringIds"), parts, strict=True):
                (tmp_path / name / f"{table}.parquet").write_bytes(part)
        assert file_digest(tmp_path / "x") != file_digest(tmp_path / "y")

    def test_the_size_is_that_of_all_tables(self, export):
        seen: list[int] = []
        file_digest(export, seen.append)
        assert seen[-1] == file_size(export) == ColumnarExport(export).size
        assert file_size(export / "absent") == file_size(export.parent) == 0


class TestIngest:
    @pytest.mark.slow
    def test_a_run_of_a_folder(self, one, tmp_path, suffix):
        ending = {".parquet": "pqt", ".arrow": "arw"}[suffix]
        folder = write_columnar(_fill(one), tmp_path / f"my.job_{ending}dir", suffix)
        run, is_new = tk.ingest(folder, store=tmp_path / "store")
        assert (run.name, is_new) == ("my.job", True)
        assert run.record.files == (folder.name,)
        assert run.table("reports").collect()["digest"].item() == file_digest(folder)
        assert tk.open(folder, store=tmp_path / "store").id == run.id

    @pytest.mark.slow
    @pytest.mark.nightly  # by day a run of one such folder, and reports of nsys in processes
    def test_a_run_of_several_in_processes(self, one, tmp_path):
        source = _fill(one)
        folders = [write_columnar(source, tmp_path / s[1:], s) for s in SUFFIXES]
        files = [*folders, source]  # the same work three times, which is no one execution
        run, _ = tk.ingest(files, store=tmp_path / "store", processes=2, force=True)
        reports = run.table("reports").collect()
        assert reports["file"].to_list() == ["arrow", "parquet", "t.sqlite"]
        assert run.table("ops").collect().height == 300

    @pytest.mark.slow
    def test_a_folder_that_is_no_export_is_skipped(self, export, tmp_path):
        (tmp_path / "empty").mkdir()
        skipped = []
        run, _ = tk.ingest(
            [tmp_path / "empty", export],
            store=tmp_path / "store",
            on_error=lambda path, error: skipped.append(path.name),
        )
        assert skipped == ["empty"]
        assert run.record.files == (export.name,)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """An export of whose copies a page is damaged: a thread of polars breaks down over it."""
    kind = KINDS_OF_FILES["nsys Parquet"]
    path, _ = damaged(kind, kind.make(tmp_path), tmp_path / "copy", 31)
    return path


def test_rows_that_cannot_be_read_are_an_error(broken: Path) -> None:
    with pytest.raises(DamagedTraceError, match=r"MEMCPY.parquet cannot be read"):
        read(broken)


def test_batches_that_end_early_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(STRINGS, tmp_path, "StringIds", ".parquet")
    file = ColumnarExport(tmp_path)
    assert file.read("StringIds", {"id": "int"}).height == 2
    monkeypatch.setattr(pl.LazyFrame, "collect_batches", lambda *_, **__: iter([STRINGS[:1]]))
    with pytest.raises(DamagedTraceError, match="1 of its 2 rows cannot be read"):
        file.read("StringIds", {"id": "int"})


@pytest.mark.slow
def test_what_polars_writes_of_a_damaged_file_reaches_no_terminal(
    broken: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tracekit", "ingest", broken, "--store", tmp_path / "store"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "MEMCPY.parquet cannot be read" in done.stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_a_file_that_ends_who_reads_it_is_an_error(tmp_path: Path) -> None:
    """Of one changed bit in a table of ranges polars asks for 2 EB of memory."""
    kind = KINDS_OF_FILES["nsys Parquet"]
    path, _ = damaged(kind, kind.make(tmp_path), tmp_path / "copy", 1_109_914_301)
    with pytest.raises(InputError, match=r"was given up|cannot be read"):
        tk.ingest(path, store=tmp_path / "store")
    assert tk.Store(tmp_path / "store").runs() == []
