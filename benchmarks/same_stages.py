"""What a change does to the stages and steps of traces, op by op.

    python benchmarks/same_stages.py FOLDER TRACE...                   what is told, into a folder
    python benchmarks/same_stages.py FOLDER --against FOLDER TRACE...  and what changed since

Prints by trace the share of the time of ops by stage before and after, where these differ, and how
many ops are of another step. Of a folder each file in it is a trace.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

import tracekit as tk

_TOLD = ("start", "end", "stage", "stage_source", "iteration")


def told(path: Path, store: Path) -> pl.DataFrame:
    """Return what is told of each op of a trace."""
    ops = tk.open(path, store=store).trace["ops"].select(_TOLD)
    return ops.with_columns(pl.col("stage", "stage_source").cast(pl.String)).collect()


def changes(name: str, before: pl.DataFrame, after: pl.DataFrame) -> Iterator[str]:
    """Yield lines about what is told otherwise."""
    if before.height != after.height:
        yield f"{name}: {before.height:,} ops before and {after.height:,} after"
        return
    both = after.with_columns(
        was=before["stage"], by=before["stage_source"], step=before["iteration"],
        ns=after["end"] - after["start"],
    )  # fmt: skip
    total = max(1, int(both["ns"].sum()))
    other = both.filter(pl.col("was") != pl.col("stage"))
    steps = both.filter(pl.col("step").fill_null(-1) != pl.col("iteration").fill_null(-1)).height
    yield f"{name}: {other['ns'].sum() / total:.2%} of another stage, {steps:,} ops of another step"
    keys = ("was", "by", "stage", "stage_source")
    for *key, ops, ns in (
        other.group_by(keys).agg(pl.len(), pl.col("ns").sum()).sort("ns", descending=True)
    ).iter_rows():
        was, by, now, says = map(str, key)
        yield f"    {was} {by} -> {now} {says}: {ops:,} ops, {ns / total:.2%}"


def main() -> None:
    """Write what is told, and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    files = (sorted(trace.rglob("*")) if trace.is_dir() else [trace] for trace in given.traces)
    for path in (path for each in files for path in each if path.is_file()):
        name = "-".join(path.parts[-2:])
        with tempfile.TemporaryDirectory() as store:
            try:
                found = told(path, Path(store))
            except tk.TracekitError as error:
                print(f"{name}: not read: {str(error).splitlines()[0][:80]}", flush=True)
                continue
        found.write_parquet(given.folder / f"{name}.parquet")
        before = given.against and given.against / f"{name}.parquet"
        if before and before.exists():
            print(*changes(name, pl.read_parquet(before), found), sep="\n", flush=True)


if __name__ == "__main__":
    main()
