"""Make a large run of a small one in the same store: its tables over and over, one after the other.

    python benchmarks/generate_export.py base.sqlite --kernels 1000000 --processes 8 --noise 0
    tracekit ingest base.sqlite
    python benchmarks/repeat_run.py base big --times 20

Ops, calls, ranges and steps are numbered on, and times go on where the last ones end; so that a run
of 20 million ops takes minutes to make, and not hours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

import tracekit
from tracekit.model import TABLES, Trace, TraceWriter
from tracekit.store import Made, Store

NUMBERS = ("op", "call", "range", "iteration")
"""Columns that number rows of the run, wherever they stand."""
REPEATED = ("ops", "calls", "ranges", "iterations", "syncs", "event_records")


def raised(table: str, by: dict[str, int], length: int) -> list[pl.Expr]:
    """Return the columns that are other ones the next time, and how they are."""
    names = {column.name: column.name for column in TABLES[table].columns}
    times = [
        name for name in names if name in ("start", "end", "launch_start", "launch_end", "time")
    ]
    own = {"parent": "range", **{name: name for name in NUMBERS}}
    numbers = [pl.col(name) + by[own[name]] for name in names if own.get(name) in by]
    return [*(pl.col(name) + length for name in times), *numbers]


def repeat(trace: Trace, folder: Path, times: int) -> None:
    """Write the tables of a run so many times."""
    edges = trace["ops"].select(pl.col("start").min(), last=pl.col("end").max()).collect().row(0)
    steps = trace["iterations"].select(pl.col("iteration").max()).collect().item()
    by = {name: trace.height(f"{name}s") for name in ("op", "call", "range")}
    by["iteration"] = (steps or 0) + 1
    with TraceWriter(folder) as writer:
        for name in TABLES:
            if name == "device_sums":
                continue
            rows = trace.read(name)
            for number in range(times if name in REPEATED and rows.height else 1):
                own = {key: number * value for key, value in by.items()}
                moved = raised(name, own, number * (edges[1] - edges[0] + 1_000_000))
                writer.append(name, rows.with_columns(moved) if number else rows)


def summary(trace: Trace) -> dict[str, int]:
    """Return the numbers by which memory is judged."""
    steps = trace["iterations"].select(pl.col("iteration").n_unique()).collect().item()
    return {"ops": trace.height("ops"), "iterations": steps}


def main() -> None:
    """Make the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="the small run")
    parser.add_argument("name", help="name of the large one")
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    base = tracekit.open(given.base)

    def make(folder: Path) -> Made:
        repeat(base.trace, folder / "0", given.times)
        return Made(f"{base.id} {given.times}", (f"{given.name}.sqlite",), ((),))

    Store.discover().add(
        digest=f"{base.id} {given.times}",
        options=base.record.options,
        name=given.name,
        default_name=given.name,
        labels={},
        make=make,
        summarise=summary,
    )
    print(repr(tracekit.open(given.name)))


if __name__ == "__main__":
    main()
