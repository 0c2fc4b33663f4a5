"""Records of tables whose pages are decoded: numbers at the edges, and one longer than it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_helpers import execute

from tracekit.errors import DamagedTraceError
from tracekit.sources.sqlite import SqliteFile
from tracekit.sources.sqlite import _leaf_spans as _spans


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode tables of any size in short spans."""
    monkeypatch.setattr(_spans, "FEW_ROWS", 0)
    monkeypatch.setattr(_spans, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(_spans, "SPAN_BYTES", 16384)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not compare what is decoded with what SQLite says."""
    monkeypatch.setattr(_spans.SpanReader, "ask", lambda _: None)
    monkeypatch.setattr(_spans.SpanReader, "_is_right", lambda *_: True)


def _table(path: Path, rows: list[tuple[object, ...]], declared: str = "a INTEGER, b TEXT") -> None:
    marks = ", ".join("?" * len(rows[0]))
    execute(path, f"CREATE TABLE t ({declared})", f"INSERT INTO t VALUES ({marks})", many=rows)


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
