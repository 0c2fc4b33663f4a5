"""The benchmark measures whole processes and writes down what they cost. No time is judged."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def export(kernels: int, ratio: float, steps: dict[str, float]) -> dict[str, Any]:
    cost = {"wall_s": 2 * ratio, "cpu_s": 1.0, "peak_bytes": 1_500_000_000, "ratio": ratio}
    return {
        "kernels": kernels,
        "measures": {"sql_max": cost | {"ratio": 1}, "ingest": cost},
        "comparisons": {"a / b": 12.34} if kernels == 1000 else {},
        "steps_s": steps,
    }


FIGURES = {
    "machine": {"cores": "2", "memory": "8 GiB", "processor": "X", "load": "0.1", "python": "3.11"},
    "exports": [export(1000, 3.0, {"read": 0.5}), export(5000, 4.5, {"read": 1.25})],
}


def test_tables_hold_ratios_growth_and_steps(module: Any) -> None:
    lines = module("performance_page").tables(FIGURES).splitlines()

    assert lines[0].startswith("Machine: 2 cores of X, 8 GiB of memory, other load 0.1 ")
    assert "| `ingest` | 3.00 (6.00 s, 1.50 GB) | 4.50 (9.00 s, 1.50 GB) |" in lines
    assert "| a / b | 12.3 | - |" in lines
    assert "| kernels |  | 5.0 |" in lines
    assert "| wall time of ingest |  | 1.5 |" in lines
    assert "| read | 0.50 | 1.25 |" in lines


def test_a_page_keeps_its_text_and_loses_its_old_tables(module: Any, tmp_path: Path) -> None:
    page_module = module("performance_page")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{page_module.BEGIN}\nold\n{page_module.END}\nafter\n", "utf-8")

    page_module.write_page(page, FIGURES)
    once = page.read_text("utf-8")
    page_module.write_page(page, FIGURES)

    assert page.read_text("utf-8") == once
    assert once.startswith(f"before\n{page_module.BEGIN}\n\nMachine")
    assert once.endswith(f"|\n\n{page_module.END}\nafter\n")
    assert "old" not in once


def test_a_page_without_markers_is_left_alone(module: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n", "utf-8")

    with pytest.raises(ValueError, match="has no lines"):
        module("performance_page").write_page(page, FIGURES)
    assert page.read_text("utf-8") == "text\n"


def test_a_process_costs_what_it_and_its_children_take(module: Any) -> None:
    child = "print(len(bytearray(b'x' * 100_000_000)))"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    cost = module("measuring").run([sys.executable, "-c", parent], output=True)

    assert cost.output == "100000000\n"
    assert cost.peak_bytes > 100_000_000
    assert cost.wall_s > 0
    assert cost.cpu_s > 0


def test_a_process_that_fails_says_why(module: Any) -> None:
    with pytest.raises(RuntimeError, match=r"failed \(3\).*no luck"):
        module("measuring").run(
            [sys.executable, "-c", "import sys; print('no luck', file=sys.stderr); sys.exit(3)"]
        )


def test_the_yardstick_reads_columns_that_exports_have(module: Any) -> None:
    pytest.importorskip("numpy", reason="the generator makes rows as numpy columns")
    columns = module("sql_max").COLUMNS
    tables = module("bulk_file").load_schema("3.11.1").tables

    for table, names in columns.items():
        assert set(names.split()) <= {column.split()[0] for column in tables[table]}


def test_the_yardstick_reads_the_columns_that_tracekit_reads(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.sources import read
    from tracekit.sources._sqlite import SqliteFile

    asked: dict[str, set[str]] = {}
    plain = SqliteFile.read

    def watched(self: SqliteFile, table: str, columns: Any, *rest: Any) -> Any:
        asked.setdefault(table, set()).update(columns)
        return plain(self, table, columns, *rest)

    monkeypatch.setattr(SqliteFile, "read", watched)
    read(BENCHMARKS.parent / "sample_traces" / "ddp_4gpu.sqlite")

    for table, names in module("sql_max").COLUMNS.items():
        assert set(names.split()) == asked[table]


def test_a_whole_run_measures_everything(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="the generator makes rows as numpy columns")
    out = tmp_path / "figures.json"
    options = ("--kernels", "2000", "--rounds", "1", "--json", out, "--folder", tmp_path)
    subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", *options], check=True, capture_output=True
    )
    figures = json.loads(out.read_text("utf-8"))

    (export,) = figures["exports"]
    assert set(export["measures"]) >= {"sql_max", "ingest", "by stage", "by kernel", "--help"}
    assert export["measures"]["sql_max"]["ratio"] == 1
    assert {"check content", "read GPU work", "attribute stages", "write columns"} <= set(
        export["steps_s"]
    )
    assert "cores" in figures["machine"]
    assert list(tmp_path.iterdir()) == [out]  # exports and stores are gone
