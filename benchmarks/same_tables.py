"""Write the tables of traces, to compare what two versions read of them.

    python benchmarks/same_tables.py write before TRACE...
    python benchmarks/same_tables.py write after TRACE...      # with the other version
    python benchmarks/same_tables.py compare before after

Of a folder each file in it is a trace; what is none is left out. A comparison lists the tables that
differ and ends with 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

import tracekit


def write(run: tracekit.Run, folder: Path) -> None:
    """Write each table of a run; texts of a few kinds as texts, however they are numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in run.trace.tables.items():
        rows = table.with_columns(pl.col(pl.Categorical).cast(pl.String))
        rows.collect().write_parquet(folder / f"{name}.parquet")


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield the tables below two folders that are not the same."""
    names = {path.relative_to(each) for each in (one, other) for path in each.rglob("*.parquet")}
    for name in sorted(names):
        both = [each / name for each in (one, other)]
        if not all(path.exists() for path in both) or not _equal(*map(pl.read_parquet, both)):
            yield str(name.with_suffix(""))


def _equal(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    return one.schema == other.schema and one.equals(other)


def main() -> int:
    """Write tables, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="+", type=Path)
    given = parser.parse_args()
    if given.what == "compare":
        found = list(differences(given.folder, given.paths[0]))
        print(*found, f"{len(found)} tables differ", sep="\n")
        return int(bool(found))
    files = (sorted(path.rglob("*")) if path.is_dir() else [path] for path in given.paths)
    for path in (path for each in files for path in each if path.is_file()):
        with tempfile.TemporaryDirectory() as store:
            try:
                run, _ = tracekit.ingest(path, store=store)
            except tracekit.TracekitError as error:
                print(f"{path.name}: not read: {str(error).splitlines()[0][:80]}", flush=True)
                continue
            write(run, given.folder / "-".join(path.parts[-2:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
