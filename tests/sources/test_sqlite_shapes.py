"""Records that begin as earlier ones did: read from what is known of these, and read the same."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from source_helpers import execute
from sqlite_corpus import Database, Maker, expected

from tracekit.errors import DamagedTraceError
from tracekit.sources.sqlite import SqliteFile, _shapes
from tracekit.sources.sqlite import _leaf_spans as _spans
from tracekit.sources.sqlite import _row_columns as _columns

SEEDS = 15


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode tables of any size in short spans."""
    monkeypatch.setattr(_spans, "FEW_ROWS", 0)
    monkeypatch.setattr(_spans, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(_spans, "SPAN_BYTES", 16384)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[_shapes.Shapes]:
    """Keep the shapes that are made."""
    made: list[_shapes.Shapes] = []
    new = _shapes.no_shapes
    keep = lambda columns: made.append(new(columns)) or made[-1]  # noqa: E731
    monkeypatch.setattr(_columns, "no_shapes", keep)
    return made


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not compare what is decoded with what SQLite says."""
    monkeypatch.setattr(_spans.SpanReader, "ask", lambda _: None)
    monkeypatch.setattr(_spans.SpanReader, "_is_right", lambda *_: True)


def _outcome(database: Database) -> pl.DataFrame | None:
    try:
        return pl.concat(SqliteFile(database.path).batches("t", database.columns, 50))
    except (DamagedTraceError, ValueError):  # the latter of an empty table
        return None


def _flipped(path: Path, pick: random.Random) -> None:
    """Change a few bits, most of them among the bytes that say how the others are to be read."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    size = 65536 if size == 1 else size
    leaves = [page for page in range(size, len(content), size) if content[page] == 13]
    for page in leaves:
        for cell in range(int.from_bytes(content[page + 3 : page + 5], "big")):
            if pick.random() < 0.02:
                place = content[page + 8 + 2 * cell : page + 10 + 2 * cell]
                at = page + int.from_bytes(place, "big") + pick.randrange(10)
                if at < len(content):
                    content[at] ^= 1 << pick.randrange(8)
    path.write_bytes(content)


@pytest.mark.usefixtures("trusted")
def test_what_is_known_of_other_rows_changes_none(tmp_path: Path, monkeypatch, met) -> None:
    read = 0
    for seed in range(SEEDS):
        database = Maker(seed, tmp_path / f"{seed}.db").make()
        pick = random.Random(seed)
        for _ in range(3):
            monkeypatch.setattr(_shapes, "MOST", 1 << 10)
            known = _outcome(database)
            monkeypatch.setattr(_shapes, "MOST", 0)
            alone = _outcome(database)
            assert (known is None) == (alone is None)
            if known is not None and alone is not None:
                assert_frame_equal(known, alone)
                read += 1
            _flipped(database.path, pick)
    assert read > SEEDS
    assert sum(int(shapes.known[0]) for shapes in met) > SEEDS


def _table(path: Path, rows: list[tuple[object, ...]], declared: str = "a INTEGER, b TEXT") -> None:
    marks = ", ".join("?" * len(rows[0]))
    execute(path, f"CREATE TABLE t ({declared})", f"INSERT INTO t VALUES ({marks})", many=rows)


def _same(path: Path, columns: dict[str, str]) -> None:
    frame = SqliteFile(path).read("t", columns)
    assert_frame_equal(frame, expected(path, columns), check_exact=True)


def test_more_shapes_than_are_remembered(tmp_path: Path, met) -> None:
    lengths = [length for length in range(_shapes.MOST + 300) for _ in range(2)]
    random.Random(5).shuffle(lengths)
    _table(tmp_path / "t.db", [(n, "x" * length) for n, length in enumerate(lengths)])
    _same(tmp_path / "t.db", {"a": "int", "b": "text"})
    assert any(0 < shapes.known[0] <= shapes.rows.size for shapes in met)


def test_numbers_at_the_edges_of_what_a_header_says(tmp_path: Path) -> None:
    edges = [sign * (1 << bits) - less for bits in (0, 7, 15, 23, 31, 47, 63)
             for sign in (-1, 1) for less in (0, 1)]  # fmt: skip
    fitting = [edge for edge in edges if -(2**63) <= edge < 2**63]
    rows = [(n, None if n % 5 == 3 else fitting[n % len(fitting)], None) for n in range(2_000)]
    _table(tmp_path / "t.db", rows, "a INTEGER, b INTEGER, c INTEGER")
    for kind in ("int", "narrow"):
        file = SqliteFile(tmp_path / "t.db")
        frame = file.read("t", dict.fromkeys("abc", kind))
        assert frame["b"].to_list() == [b for _, b, _ in rows]
        assert frame["c"].null_count() == len(rows)


@pytest.mark.usefixtures("trusted")
def test_a_record_that_begins_as_others_and_is_longer_is_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    _table(path, [(n % 3, "y" * 20) for n in range(500)])
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    page = next(at for at in range(size, len(content), size) if content[at] == 13)
    cells = [page + int.from_bytes(content[at : at + 2], "big")
             for at in range(page + 8, page + 8 + 2 * 40, 2)]  # fmt: skip
    content[cells[20]] += 1  # bytes of the record, which now takes one of the next cell's
    path.write_bytes(content)
    with pytest.raises(DamagedTraceError):
        SqliteFile(path).read("t", {"a": "int", "b": "text"})


def test_tables_of_very_many_columns_have_none() -> None:
    assert _shapes.no_shapes(_shapes.MOST_COLUMNS).rows.size == _shapes.MOST
    assert _shapes.no_shapes(_shapes.MOST_COLUMNS + 1).rows.size == 0
    assert (_shapes.no_shapes(3).slots == _shapes.NONE).all()
    assert np.iinfo(np.int64).min <= _shapes._SPREAD < 0
