"""The benchmark measures whole processes and writes down what they cost. No time is judged."""

from __future__ import annotations

import importlib
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
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


def export(
    kernels: int, ratio: float, steps: dict[str, float], parts: dict[str, float] | None = None
) -> dict[str, Any]:
    cost = {"wall_s": 2 * ratio, "cpu_s": 1.0, "peak_bytes": 1_500_000_000, "ratio": ratio}
    cost["ended"] = True
    return {
        "kernels": kernels,
        "measures": {
            "sql_max": cost | {"ratio": 1},
            "ingest": cost,
            "by range": cost | {"wall_s": 2.0},
            "nsys nvtx_kern_sum": cost | {"wall_s": 80.0},
            "by stage beyond start": cost | {"wall_s": 0.25, "ratio": 0.1, "peak_bytes": None},
            "nsys slow": cost | {"wall_s": 600.0, "ratio": 20.0, "ended": kernels == 1000},
        },
        "comparisons": {"a / b": {"times": 12.34, "ended": False}} if kernels == 1000 else {},
        "steps_s": steps,
        "parts_cpu_s": parts or {},
    }


REPORTS = {
    "reports": 8,
    "kernels": 300,
    "measures": {
        "1 process": {"wall_s": 3.2, "cpu_s": 4.0, "peak_bytes": 200_000_000},
        "2 processes": {"wall_s": 2.0, "cpu_s": 3.5, "peak_bytes": 100_000_000},
    },
    "comparisons": {"1 process / 2 processes": {"times": 1.6, "ended": True}},
}
EXPORTS = [
    export(1000, 3.0, {"read": 0.5, "rest": 1.5}, {"imports": 0.25, "digest": 0.002}),
    export(5000, 4.5, {"read": 1.25}),
]
FIGURES = {
    "machine": {"cores": "2", "memory": "8 GiB", "processor": "X", "load": "0.1", "python": "3.11"},
    "exports": EXPORTS,
    "goals": [
        {
            "name": "ingest / sql_max",
            "is_least": False,
            "unit": "",
            "measured": [
                {"value": 3.0, "is_all": True, "limit": 4.0, "met": True},
                {"value": 4.5, "is_all": True, "limit": 4.0, "met": False},
            ],
        },
        {
            "name": "peak",
            "is_least": False,
            "unit": " GB",
            "measured": [None, {"value": 1.5, "is_all": True, "limit": None, "met": None}],
        },
    ],
    "reports": REPORTS,
    "ranks": [
        {
            "reports": count,
            "kernels": 300,
            "measures": {"ingest": {"wall_s": wall_s, "peak_bytes": 2e8}},
        }
        for count, wall_s in ((100, 2.5), (1000, 21.0))
    ],
    "goals_of_reports": [
        {
            "name": "a / b",
            "is_least": True,
            "unit": "x",
            "measured": [{"value": 12.34, "is_all": False, "limit": 20.0, "met": None}],
        }
    ],
}


def test_tables_hold_goals_ratios_growth_steps_and_reports(module: Any) -> None:
    lines = module("performance_page").tables(FIGURES).splitlines()

    assert lines[0].startswith("Machine: 2 cores of X, 8 GiB of memory, other load 0.1 ")
    assert "| ingest / sql_max | 3.00 (≤ 4, met) | 4.50 (≤ 4) |" in lines
    assert "| peak | - | 1.50 GB |" in lines
    assert "| a / b | - | > 12.34x (≥ 20x, not known) |" in lines
    gain = "| 5,000 | 80.0 s (`nvtx_kern_sum`) | 11.0 s (`ingest` + `by range`) | 7 |"
    assert f"| kernels by range, from the export {gain}" in lines
    assert "| digest | 0.13 | 2.00 | - |" in lines
    assert "| imports | - | 0.25 in all | - |" in lines
    assert "| `ingest` | 3.00 (6.00 s, 1.50 GB) | 4.50 (9.00 s, 1.50 GB) |" in lines
    assert "| `by stage beyond start` | 0.10 (0.25 s) | 0.10 (0.25 s) |" in lines
    assert "| `nsys slow` | 20.00 (600.00 s, 1.50 GB) | > 20.00 (> 600 s) |" in lines
    assert "| a / b | > 12.3 | - |" in lines
    assert "| kernels |  | 5.0 |" in lines
    assert "| wall time of ingest |  | 1.5 |" in lines
    assert "| read | 0.50 (25%) | 1.25 (100%) |" in lines
    assert "| 2 processes | 2.00 s, 0.10 GB | 3.50 s |" in lines
    assert "| 1 process / 2 processes, times | 1.6 |  |" in lines
    head = "reports of 300 kernels as one run, wall time and peak memory"
    assert f"| {head} | 100 reports | 1,000 reports |" in lines
    assert "| ingest | 2.50 s, 0.20 GB | 21.00 s, 0.20 GB |" in lines


@pytest.mark.parametrize(
    ("value", "is_least", "met"),
    [
        (None, False, None),
        ((2.0, True), False, True),
        ((2.1, True), False, False),
        ((1.0, False), False, None),
        ((2.1, False), False, False),
        ((2.0, True), True, True),
        ((1.9, True), True, False),
        ((1.9, False), True, None),
        ((2.0, False), True, True),
    ],
)
def test_a_goal_is_met_at_its_limit_and_unknown_where_only_a_part_is_known(
    module: Any, value: tuple[float, bool] | None, is_least: bool, met: bool | None
) -> None:
    goal = module("goals").Goal("a", 2.0, lambda *_: value, is_least)
    of_a_size = module("goals").Goal("a", {5: 2.0}, lambda *_: value, is_least)

    found = goal.held_against(value)

    assert (found and found["met"]) is met
    assert of_a_size.held_against(value, 5) == found
    assert (of_a_size.held_against(value, 6) or {}).get("limit") is None


def test_growth_is_held_against_the_growth_of_the_export(module: Any) -> None:
    goals = module("goals")
    sizes = [export(kernels, ratio, {}) for kernels, ratio in ((5, 2.0), (20, 8.0), (40, 17.0))]
    sizes = [each | {"kernels": each["kernels"] * 1_000_000} for each in sizes]

    held = {each["name"]: each["measured"] for each in goals.held_against(sizes, goals.GOALS)}

    growth = held["growth of ingest / growth of kernels"]
    assert growth[0] is None
    assert [each["value"] for each in growth[1:]] == [1.0, 17 / 16]
    assert held["growth of that peak"][0] is None
    assert held["growth of that peak"][1]["met"] is None  # what is small takes less
    assert held["growth of that peak"][2]["met"]
    assert held["--help"] == [None] * 3  # not measured


def test_ratios_are_taken_within_rounds(module: Any) -> None:
    figures, cost = module("figures"), module("measuring").Cost
    rounds = [
        {
            "sql_max": cost(wall, wall, 1),
            "ingest": cost(2 * wall, wall, number),
            "by stage": cost(wall + 0.5, wall, 1),
            "by stage, small run": cost(wall, wall, 1),
        }
        for number, wall in enumerate((1.0, 4.0, 2.0))
    ]
    rounds[0]["slow"] = cost(30.0, 1.0, 1, ended=False)  # and is not tried again
    first = {"sql_max": cost(5.0, 1.0, 1), "first": cost(10.0, 1.0, 1)}

    measured = figures.measured(first, rounds)
    compared = dict(
        figures.compared(
            rounds,
            {"slow / ingest": (("slow",), ("ingest",)), "none / ingest": (("none",), ("ingest",))},
        )
    )

    assert measured["ingest"]["ratio"] == 2.0
    assert measured["ingest"]["wall_s"] == 4.0
    assert measured["ingest"]["peak_bytes"] == 2
    assert measured["sql_max"]["wall_s"] == 2.0
    assert measured["first"]["ratio"] == 2.0
    assert measured["by stage beyond start"]["wall_s"] == 0.5
    assert not measured["slow"]["ended"]
    assert compared == {"slow / ingest": {"times": 15.0, "ended": False}}


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


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_with_what_it_started(
    module: Any, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(done)!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"

    cost = module("measuring").run([sys.executable, "-c", parent], limit_s=0.5)
    time.sleep(1.5)

    assert not cost.ended
    assert 0.5 <= cost.wall_s < 1.5
    assert not done.exists()


def test_a_process_may_be_given_variables(module: Any) -> None:
    program = "import os; print(os.environ['NUMBA_CACHE_DIR'])"
    cost = module("measuring").run(
        [sys.executable, "-c", program], output=True, environment={"NUMBA_CACHE_DIR": "/x"}
    )

    assert cost.output == "/x\n"
    assert cost.ended


def test_the_yardstick_reads_columns_that_exports_have(module: Any) -> None:
    columns = module("sql_max").COLUMNS
    tables = module("bulk_file").load_schema("3.11.1").tables

    for table, names in columns.items():
        assert set(names.split()) <= {column.split()[0] for column in tables[table]}


def test_the_yardstick_reads_the_columns_that_tracekit_reads(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.sources import read
    from tracekit.sources.sqlite import SqliteFile

    asked: dict[str, set[str]] = {}

    def watch(name: str) -> None:
        plain = getattr(SqliteFile, name)

        def watched(self: SqliteFile, table: str, columns: Any, *rest: Any) -> Any:
            asked.setdefault(table, set()).update(columns)  # several threads do, each its tables
            return plain(self, table, columns, *rest)

        monkeypatch.setattr(SqliteFile, name, watched)

    watch("read")
    watch("batches")
    read(BENCHMARKS.parent / "sample_traces" / "ddp_4gpu.sqlite")

    for table, names in module("sql_max").COLUMNS.items():
        assert set(names.split()) == asked[table]


READ_BY = """
import sys
import read_columns
from pathlib import Path
if sys.argv[2:]:
    read_columns.leave_pages_alone()
print(read_columns.read(Path(sys.argv[1])), "tracekit.sources.sqlite._row_columns" in sys.modules)
"""


@pytest.mark.slow
def test_both_readers_read_every_row_and_one_decodes_no_page(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    generate = [BENCHMARKS / "generate_export.py", path, "--kernels", "55000", "--noise", "0"]
    subprocess.run([sys.executable, *generate], check=True, capture_output=True)
    with closing(sqlite3.connect(path)) as db:
        names = module("sql_max").COLUMNS
        rows = sum(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names)

    read = [
        subprocess.run(
            [sys.executable, "-c", READ_BY, path, *options],
            check=True, capture_output=True, text=True, cwd=BENCHMARKS,
        ).stdout
        for options in ((), ("library",))
    ]  # fmt: skip

    assert read == [f"{rows} True\n", f"{rows} False\n"]


QUESTIONS = (
    "links", "collectives", "idle", "diagnose", "stragglers", "critical-path", "compare",
    "compare by kernel", "report",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("reports", ["0", "2"])
def test_a_whole_run_measures_everything(tmp_path: Path, reports: str) -> None:
    out = tmp_path / "figures.json"
    options = ("--kernels", "500", "--rounds", "1", "--json", out, "--folder", tmp_path)
    ranks = () if reports == "0" else ("--ranks", reports, "--dask-workers", "2")
    of_reports = ("--reports", reports, "--report-kernels", "200", *ranks)
    printed = subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", *options, *of_reports],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    figures = json.loads(out.read_text("utf-8"))

    (export,) = figures["exports"]
    assert list(export["measures"]) == [
        "sql_max",
        "reading",
        "reading, library alone",
        "ingest",
        "by kernel",
        "by range",
        "by stage",
        "by iteration",
        *QUESTIONS,
        "by stage, small run",
        "--help",
        "by stage beyond start",
        "ingest, nothing compiled",
    ]
    assert export["measures"]["sql_max"]["ratio"] == 1
    assert {"check content", "read GPU work", "attribute stages", "summary and catalogue"} <= set(
        export["steps_s"]
    )
    assert {"digest", "shaping and sorting", "attribution", "writing"} <= set(export["parts_cpu_s"])
    if reports == "0":
        assert "reports" not in figures
    else:
        (of_ranks,) = figures["ranks"]
        assert of_ranks["reports"] == 2
        assert list(of_ranks["measures"]) == ["ingest", "by stage", "by rank", "by kernel"]
        assert list(figures["reports"]["measures"]) == [
            "1 process", "2 processes", "Dask, 2 workers",
        ]  # fmt: skip
        assert figures["goals_of_reports"][0]["measured"][0]["value"] > 0
    assert "cores" in figures["machine"]
    assert printed.startswith("Machine: ")
    assert list(tmp_path.iterdir()) == [out]  # exports and stores are gone
