"""What differs between the tables of two versions is found and said."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("stores")


OPS = pl.DataFrame({"op": [0, 1], "name": ["a", None]}, {"op": pl.Int32, "name": pl.Categorical})


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (OPS.cast({"op": pl.Int64, "name": pl.String}).with_columns(more=1), []),
        (OPS.with_columns(name=pl.lit("a")), ["name: 1 of 2 rows"]),
        (
            OPS.reverse(),
            ["op: 2 of 2 rows", "name: 2 of 2 rows", "the same rows in another order"],
        ),
        (OPS.head(1), ["2 rows, 1 rows"]),
    ],
)
def test_differences(stores: Any, after: pl.DataFrame, found: list[str]) -> None:
    assert list(stores.differences(OPS, after)) == found


def test_stores_are_compared_table_by_table(
    stores: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, ops in (("before", OPS), ("after", OPS.reverse())):
        folder = tmp_path / version / "trace" / "runs" / "1-a" / "0"
        tables = {"ops": ops, "devices": OPS, version: OPS}
        for name, table in tables.items():
            (folder / name).mkdir(parents=True)
            table.write_parquet(folder / name / "00000.parquet")
    assert stores.compare(tmp_path / "before", tmp_path / "after") == 1
    out = capsys.readouterr()
    assert out.out.splitlines() == [
        "trace 0/after: only after",
        "trace 0/before: only before",
        "trace 0/ops op: 2 of 2 rows",
        "trace 0/ops name: 2 of 2 rows",
        "trace 0/ops the same rows in another order",
    ]
    assert out.err == "1 of 2 tables differ\n"
