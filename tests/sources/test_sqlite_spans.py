"""How a table is divided for reading, and what SQLite is asked meanwhile."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from source_helpers import execute

from tracekit.sources.sqlite import SqliteFile
from tracekit.sources.sqlite import _leaf_spans as _spans
from tracekit.sources.sqlite._library import Library

ROWS = 30_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spans") / "t.db"
    values = [(n, f"text {n}") for n in range(ROWS)]
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (?, ?)", many=values)
    return path


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read small files page by page as well."""
    monkeypatch.setattr(_spans, "SMALL_FILE_BYTES", 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Note the conditions under which SQLite is asked for rows."""
    conditions: list[tuple[str, ...]] = []
    read = Library.read

    def noted(self, table, columns, *where):
        conditions.append(where)
        return read(self, table, columns, *where)

    monkeypatch.setattr(Library, "read", noted)
    return conditions


def _read(path: Path) -> None:
    frame = SqliteFile(path).read("t", {"a": "int", "b": "text"})
    assert frame["a"].to_list() == list(range(ROWS))
    assert frame["b"].to_list() == [f"text {n}" for n in range(ROWS)]


@pytest.mark.parametrize("span_bytes", [1 << 14, 1 << 22])
def test_all_pages_that_are_compared_are_asked_for_together(path, asked, monkeypatch, span_bytes):
    monkeypatch.setattr(_spans, "SPAN_BYTES", span_bytes)
    _read(path)
    (where,) = asked
    assert 3 <= len(where) <= _spans.CHECKED_LEAVES + 2


def test_pages_are_asked_for_one_by_one_where_it_is_unclear_whose_rows_came(
    path, asked, monkeypatch
):
    noted = Library.read

    def fewer(self, table, columns, *where):
        rows = noted(self, table, columns, *where)
        return rows if len(where) == 1 else type(rows)(rows.frame[1:], rows.lost)

    monkeypatch.setattr(Library, "read", fewer)
    _read(path)
    assert [len(where) for where in asked] == [len(asked[0])] + [1] * len(asked[0])


def test_a_small_table_is_one_span(path, monkeypatch):
    spans: list[range] = []
    read = _spans.SpanReader.read
    noted = lambda self, span: (spans.append(span), read(self, span))[1]  # noqa: E731
    monkeypatch.setattr(_spans.SpanReader, "read", noted)
    _read(path)
    assert len(spans) == 1


def test_rows_of_several_conditions_come_one_after_the_other(path):
    library = Library(path, SqliteFile(path).uri, utf8=True)
    rows = library.read("t", {"a": "int"}, "a = 7", "a BETWEEN 2 AND 4", "a > 6 AND a < 9").frame
    assert rows.equals(pl.DataFrame({"a": [7, 2, 3, 4, 7, 8]}))
    assert library.read("t", {"a": "int"}).frame.height == ROWS
