"""Ingest traces, and compare the tables that two versions make of them, row for row.

    python benchmarks/stores.py write before TRACE...
    python benchmarks/stores.py write after TRACE...       # with the other version
    python benchmarks/stores.py compare before after

Each trace becomes a store of its own. A comparison lists each table that differs and how, and ends
with 1 if any does. Columns and tables that only one version has are named, and are no difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl


def write(folder: Path, traces: list[Path]) -> None:
    """Ingest each trace into a store named after it."""
    for trace in traces:
        store = folder / trace.stem
        command = [sys.executable, "-m", "tracekit", "ingest", trace, "--store", store]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def tables(store: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a store's only run, in the order of their rows."""
    parts: dict[str, list[Path]] = {}
    for path in sorted(store.glob("runs/*/*/*/*.parquet")):
        _, report, table, _ = path.relative_to(store / "runs").parts
        parts.setdefault(f"{report}/{table}", []).append(path)
    return {name: pl.read_parquet(paths) for name, paths in parts.items()}


def differences(before: pl.DataFrame, after: pl.DataFrame) -> Iterator[str]:
    """Yield in what the columns that both have differ."""
    both = [name for name in before.columns if name in after.columns]
    before, after = before.select(both), after.select(both)
    if before.height != after.height:
        yield f"{before.height:,} rows, {after.height:,} rows"
        return
    found = False
    for name in both:
        one, other = (_comparable(frame[name]) for frame in (before, after))
        if rows := one.ne_missing(other).sum():
            found = True
            yield f"{name}: {rows:,} of {before.height:,} rows"
    if found and _in_any_order(before).equals(_in_any_order(after)):
        yield "the same rows in another order"


def _comparable(column: pl.Series) -> pl.Series:
    """Return a column whose values can be held against those of another encoding or precision."""
    encoded = column.dtype in (pl.Categorical, pl.Enum)
    return column.cast(pl.String) if encoded else column


def _in_any_order(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(_comparable(column) for column in frame).sort(pl.all())


def compare(before: Path, after: Path) -> int:
    """Tell what differs, and return how many tables do."""
    number = differing = 0
    for store in sorted(path.name for path in before.iterdir()):
        one, other = tables(before / store), tables(after / store)
        for name in sorted({*one, *other}):
            if name not in one or name not in other:
                print(f"{store} {name}: only {'before' if name in one else 'after'}")
                continue
            number += 1
            for column in sorted({*one[name].columns} ^ {*other[name].columns}):
                when = "before" if column in one[name].columns else "after"
                print(f"{store} {name} {column}: only {when}")
            found = list(differences(one[name], other[name]))
            differing += bool(found)
            for what in found:
                print(f"{store} {name} {what}")
    print(f"{differing} of {number} tables differ", file=sys.stderr)
    return differing


def main() -> int:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("traces", type=Path, nargs="+")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "write":
        write(given.folder.resolve(), [trace.resolve() for trace in given.traces])
        return 0
    return min(1, compare(given.before, given.after))


if __name__ == "__main__":
    sys.exit(main())
