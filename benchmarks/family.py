"""Measure the ingest of exports of many shapes: time in all and by part, against SQLite's scan.

    python benchmarks/family.py --kernels 1000000 --seeds 0 1 2 3

Exports are those that `generate_export.py` draws by these seeds. In each round SQLite scans an
export (`sql_max.py`) and it is ingested, whole processes; a process of its own then tells the parts
apart (`pipeline_steps.py`). Prints a table: rows, time and peak of the ingest, then CPU seconds a
million rows, as medians of the rounds. The page cache is warm, and loops are compiled.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from measuring import run

HERE = Path(__file__).resolve().parent
MILLION = 1_000_000
_BYTES = 2**20
_SHAPE = ("processes", "threads", "around", "nesting", "names", "order", "graphs", "correlation")


def shape(seed: int) -> str:
    """Describe what a seed draws."""
    sys.path.append(str(HERE))
    from generate_export import drawn  # noqa: PLC0415 - which loads what would count as ours

    job = vars(drawn(seed))
    return ", ".join(f"{name} {job[name]}" for name in _SHAPE)


def rows_of(export: Path) -> int:
    """Count the rows that an ingest reads."""
    with closing(sqlite3.connect(export)) as file:
        tables = {str(name) for (name,) in file.execute("SELECT name FROM sqlite_master")}
        read = sorted(t for t in tables if t.startswith("CUPTI_") or t == "NVTX_EVENTS")
        return sum(file.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in read)


def measure(seed: int, kernels: int, rounds: int, place: Path) -> dict[str, Any]:
    """Return what the ingest of an export takes."""
    export = place / "export.sqlite"
    size = ("--drawn", "--seed", str(seed), "--kernels", str(kernels))
    run([sys.executable, HERE / "generate_export.py", export, *size])
    scans, ingests = [], []
    for number in range(rounds + 1):  # the first is not counted
        scans.append(run([sys.executable, HERE / "sql_max.py", export]))
        store = place / str(number)
        ingests.append(
            run([sys.executable, "-m", "tracekit", "ingest", export, "--store", str(store)])
        )
    steps = [sys.executable, HERE / "pipeline_steps.py", export, place / "parts"]
    parts = json.loads(run(steps, output=True).output or "{}")["parts_cpu_s"]
    rows = rows_of(export) / MILLION
    both = list(zip(ingests, scans, strict=True))[1:]
    return {
        "seed": seed,
        "M rows": rows,
        "CPU s": median(each.cpu_s for each, _ in both),
        "CPU / sql_max": median(each.cpu_s / scan.cpu_s for each, scan in both),
        "wall s": median(each.wall_s for each, _ in both),
        "wall / sql_max": median(each.wall_s / scan.wall_s for each, scan in both),
        "peak, MiB": max(each.peak_bytes for each, _ in both) / _BYTES,
        "a million rows": median(each.cpu_s for each, _ in both) / rows,
        **{part: taken / rows for part, taken in parts.items()},
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=MILLION)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where exports are made")
    given = parser.parse_args()
    for number, seed in enumerate(given.seeds):
        with tempfile.TemporaryDirectory(dir=given.folder) as place:
            found = measure(seed, given.kernels, given.rounds, Path(place))
        if not number:
            print("|", " | ".join(found), "| shape |")
            print("|", " | ".join("---:" for _ in found), "| --- |")
        cells = (f"{each:.2f}" if isinstance(each, float) else str(each) for each in found.values())
        print("|", " | ".join(cells), f"| {shape(seed)} |", flush=True)


if __name__ == "__main__":
    main()
