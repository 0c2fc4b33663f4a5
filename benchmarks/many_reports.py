"""Ask questions of a run of thousands of reports: a few real ones, and links to their files.

    python benchmarks/many_reports.py FOLDER --reports 1024 4096 --kernels 3000 --seeds 64
    python benchmarks/many_reports.py FOLDER --reports 256 --kernels 100000 --dask-workers 2

Each rank has a GPU of its own; its other tables are those of one of `--seeds` simulated exports,
whose collectives are calls of one communicator. Prints a table for docs/evidence/performance.md:
processor seconds and the peak of the process that asks, and what its workers took, for the first
time and for the second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from cluster import cluster
from distributed import Client
from measures import Workshop
from measuring import run

_TRACEKIT = (sys.executable, "-m", "tracekit")
QUESTIONS = {
    "breakdown": ("breakdown", "--by", "kernel"), "by rank": ("breakdown", "--by", "rank"),
    "idle": ("idle",), "collectives": ("collectives",), "stragglers": ("stragglers",),
    "links": ("links",), "diagnose": ("diagnose",), "study": ("study",),
}  # fmt: skip


def multiply(store: Path, reports: int) -> None:
    """Make one run of all runs of a store, whose reports are repeated as ranks of one job."""
    import polars as pl  # noqa: PLC0415 - a process that measures others stays small

    from tracekit.model._checks import Check, read_checks, write_checks  # noqa: PLC0415

    runs = sorted(store.glob("runs/*/run.json"))
    entry = json.loads(runs[0].read_text())
    sources = [path.parent / "0" for path in runs]
    told = f'"NCCL communicator ID": 77, "Message size [bytes]": 26214400, "nRanks": {reports}'
    for source in sources:
        paths = sorted((source / "ranges").iterdir())
        ranges = pl.read_parquet(paths)
        is_call = pl.col("name") == "ncclAllReduce"
        call = pl.concat_str(pl.lit(f'{{{told}, "seqNumber": '), is_call.cum_sum(), pl.lit("}"))
        named = ranges.with_columns(payload=pl.when(is_call).then(call).otherwise("payload"))
        checks, first = read_checks(source), 0
        for path in paths:
            height = pl.scan_parquet(path).select(pl.len()).collect().item()
            named[first : first + height].write_parquet(path)
            checks[f"ranges/{path.name}"] = Check.of(path)
            first += height
        write_checks(source, checks)
    folder = f"{entry['folder'].partition('-')[0]}-{reports:016x}"
    target = store / "runs" / folder
    target.mkdir(mode=0o700)
    shutil.copy(runs[0].with_name("made-by-tracekit"), target)
    for number in range(reports):
        source, own = sources[number % len(sources)], target / str(number)
        shutil.copytree(source, own, copy_function=os.link)
        changes = {
            "devices": {"uuid": f"{number:08x}-0000-0000-0000-000000000000"},
            "reports": {
                "file": f"rank{number}.sqlite",
                "digest": f"{number:064x}",
                "host": f"node{number // 8}",
            },
        }
        checks = read_checks(source)
        for name, values in changes.items():
            for path in (own / name).iterdir():
                frame = pl.read_parquet(path).with_columns(
                    pl.lit(value).alias(column) for column, value in values.items()
                )
                path.unlink()
                frame.write_parquet(path)
                checks[f"{name}/{path.name}"] = Check.of(path)
        (own / "checks.json").unlink()
        write_checks(own, checks)
    entry |= {"id": f"{reports:012x}", "name": "many", "digest": f"{reports:064x}",
              "folder": folder, "files": json.dumps([f"rank{n}.sqlite" for n in range(reports)]),
              "warnings": "[]"}  # fmt: skip
    (target / "run.json").write_text(json.dumps(entry) + "\n")
    run([*_TRACEKIT, "runs", "check", "--repair", "--store", store])


def ask(store: Path, words: tuple[str, ...], address: str | None = None) -> tuple[list[str], str]:
    """Ask twice, with nothing kept at first; return what it took, and the answer."""
    for path in store.glob("runs/*/kept"):
        shutil.rmtree(path)
    where = ("--store", str(store), *(("--dask", address) if address else ()))
    command = [*_TRACEKIT, words[0], "many", *words[1:], *where, "--format", "json"]
    cells, answers = [], set()
    for _ in range(2):
        before = _workers()
        cost = run(command, output=True)
        after = _workers()
        answers.add(cost.output)
        cells.append(f"{cost.cpu_s:.1f} s, {cost.peak_bytes / 2**30:.2f} GiB")
        if address:
            spent = sum(cpu - before.get(pid, (0, 0))[0] for pid, (cpu, _) in after.items())
            peak = max(peak for _, peak in after.values())
            cells.append(f"{spent:.1f} s, {peak / 2**30:.2f} GiB")
    kept = sum(path.stat().st_size for path in store.glob("runs/*/kept/*"))
    (answer,) = answers
    return [*cells, f"{kept / 1e6:.1f} MB"], str(answer)


def _workers() -> dict[int, tuple[float, int]]:
    """Return what the processes that this one started took: processor seconds and peak, bytes."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
            times = process.cpu_times()
            found[process.pid] = (times.user + times.system, peak)
    return found


def main() -> None:
    """Make the run, and print a row per question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reports", type=int, nargs="+", default=[4096])
    parser.add_argument("--kernels", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--dask-workers", type=int, nargs="*", default=[])
    parser.add_argument("--ask", nargs="*", default=list(QUESTIONS), choices=list(QUESTIONS))
    asked = parser.parse_args()
    asked.folder.mkdir(exist_ok=True)
    stores = {number: _store(asked, number) for number in asked.reports}
    columns = ["question", "reports", "first", "again", "kept"]
    columns += [f"{number} workers{what}" for number in asked.dask_workers
                for what in ("", ", theirs", ", answer")]  # fmt: skip
    _print_row(*columns)
    _print_row(*["---"] * len(columns))
    for name, (reports, store) in itertools.product(asked.ask, stores.items()):
        cells, here = ask(store, QUESTIONS[name])
        for number in asked.dask_workers:
            with cluster(asked.folder, number) as address:
                with Client(address) as client:
                    client.wait_for_workers(number)
                there, answer = ask(store, QUESTIONS[name], address)
            cells += [*there[:2], "same" if answer == here else "NOT THE SAME"]
        _print_row(f"`{' '.join(QUESTIONS[name])}`", f"{reports:,}", *cells)


def _store(asked: argparse.Namespace, reports: int) -> Path:
    """Return a store with a run of so many reports, which is made if it is not there."""
    store: Path = asked.folder / f"store of {reports}"
    if not store.exists():
        workshop = Workshop(asked.folder, ("--processes", "1"))
        for seed in range(asked.seeds):
            export = workshop.export(f"seed{seed}", asked.kernels, seed + 1)
            run([*_TRACEKIT, "ingest", export, "--store", store])
        multiply(store, reports)
    return store


def _print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
