"""Whole numbers in as few bits as hold them: the same numbers that 64 bits would hold."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from source_helpers import execute
from sqlite_corpus import Database, Maker, expected

from tracekit.sources.sqlite import SqliteFile
from tracekit.sources.sqlite import _leaf_spans as _spans

SEEDS = 60


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode tables of any size in short spans."""
    monkeypatch.setattr(_spans, "FEW_ROWS", 0)
    monkeypatch.setattr(_spans, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(_spans, "SPAN_BYTES", 16384)


def _narrow(database: Database, rows: int) -> pl.DataFrame:
    kinds = {name: "narrow" if k == "int" else k for name, k in database.columns.items()}
    file = SqliteFile(database.path)
    read = list(file.batches("t", kinds, rows))
    assert not file.warnings
    assert all(0 < part.height <= rows for part in read)
    empty = expected(database.path, database.columns).clear()
    return pl.concat([empty, *read], how="vertical_relaxed")


@pytest.mark.slow
def test_random_tables_hold_what_sqlite_reads(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        database = Maker(seed, tmp_path / f"{seed}.db").make()
        wanted = expected(database.path, database.columns)
        assert_frame_equal(_narrow(database, 50), wanted, check_exact=True)


@pytest.mark.parametrize(
    ("limit", "dtype"),
    [(1 << 7, pl.Int8), (1 << 15, pl.Int16), (1 << 31, pl.Int32), (1 << 63, pl.Int64)],
)
@pytest.mark.parametrize("edge", ["least", "greatest"])
@pytest.mark.parametrize("null", [False, True])
def test_numbers_come_in_as_few_bits_as_hold_them(tmp_path, limit, dtype, edge, null) -> None:
    numbers = [0, -limit if edge == "least" else limit - 1, *[None] * null, 1]
    path = tmp_path / "t.db"
    table = "CREATE TABLE t (a INTEGER, b INTEGER)"
    execute(path, table, "INSERT INTO t VALUES (?, ?)", many=[(n, n) for n in numbers])
    whole = SqliteFile(path).read("t", {"a": "narrow", "b": "int"})
    assert whole["a"].to_list() == whole["b"].to_list() == numbers
    (batch,) = SqliteFile(path).batches("t", {"a": "narrow", "b": "int"})
    assert batch.schema == {"a": dtype, "b": pl.Int64}
    assert batch["a"].to_list() == numbers
