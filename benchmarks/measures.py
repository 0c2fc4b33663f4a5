"""What is measured: whole processes, one after the other."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import cluster
from measuring import Cost, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
NSYS_REPORTS = ("cuda_gpu_kern_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum")
Round = dict[str, Cost]
"""Costs by measure, of processes that ran one after the other."""

_TRACEKIT = (sys.executable, "-m", "tracekit")
_BEGAN_NS = 1_700_000_000_000_000_000
_SMALL = 2_000
"""Kernels of an export on which everything but start and imports takes no time."""


@dataclass(frozen=True)
class Workshop:
    """Where exports and stores are made and removed.

    Parameters
    ----------
    folder
        The folder.
    generate
        Options of `generate_export.py` for every export.
    """

    folder: Path
    generate: Sequence[str] = ()

    def export(self, name: str, kernels: int, seed: int = 1) -> Path:
        """Generate an export."""
        path = self.folder / f"{name}.sqlite"
        size = ("--kernels", str(kernels), "--seed", str(seed))
        run([sys.executable, HERE / "generate_export.py", path, *size, *self.generate])
        return path

    def ranks(self, count: int, kernels: int) -> list[Path]:
        """Generate exports of so many ranks of a job, which differ in their GPUs alone."""
        first = self.export("rank", kernels)
        paths = [first.with_name(f"rank{number}.sqlite") for number in range(count)]
        for number, path in enumerate(paths):
            shutil.copyfile(first, path)
            with closing(sqlite3.connect(path)) as file, file:
                gpus = "UPDATE TARGET_INFO_GPU SET uuid = printf('%08x', ?) || substr(uuid, 9)"
                file.execute(gpus, (number,))
                file.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
                file.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (_BEGAN_NS,))
        return paths

    @contextmanager
    def store(self, name: str = "store") -> Iterator[Path]:
        """Give the path of a store that does not exist yet, and remove it in the end."""
        path = self.folder / name
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def small_store(self) -> Path:
        """A store with a run on which nothing takes any time."""
        path = self.folder / "small-store"
        if not path.exists():
            ingest([self.export("small", _SMALL)], path)
        return path


def ingest(exports: Sequence[Path], store: Path, *options: str, **variables: str) -> Cost:
    """Run `tracekit ingest`, with so named variables in its environment."""
    command = (*_TRACEKIT, "ingest", *exports, "--store", store, *options)
    return run(command, environment=variables)


def breakdown(store: Path, by: str) -> Cost:
    """Run `tracekit breakdown` on the latest run."""
    return run([*_TRACEKIT, "breakdown", "--by", by, "--store", store])


def questions(store: Path) -> Round:
    """Ask what is asked less often of the latest run, and need more of it."""
    same = ("@latest", "@latest")
    asked = {
        "links": ("links",),
        "collectives": ("collectives",),
        "idle": ("idle",),
        "diagnose": ("diagnose",),
        "stragglers": ("stragglers",),
        "critical-path": ("critical-path",),
        "compare": ("compare", *same),
        "compare by kernel": ("compare", *same, "--by", "kernel"),
        "report": ("report", "--output", str(store / "report.html")),
    }
    return {name: run([*_TRACEKIT, *words, "--store", store]) for name, words in asked.items()}


def script(name: str, *arguments: str | Path) -> Cost:
    """Run a program of this folder."""
    return run([sys.executable, HERE / name, *arguments])


def first_round(export: Path, workshop: Workshop) -> Round:
    """Ingest with nothing compiled, and see to it that later rounds find all compiled and cached.

    Fresh memory is slow on virtual machines, so the second of these ingests is to no other purpose.
    """
    script("sql_max.py", export)  # from here on the export is in the page cache
    costs = {"sql_max": script("sql_max.py", export)}
    with workshop.store("compiled") as empty, workshop.store() as store:
        cost = ingest([export], store, NUMBA_CACHE_DIR=str(empty))
        costs["ingest, nothing compiled"] = cost
    with workshop.store() as store:
        ingest([export], store)
    return costs


def one_round(export: Path, workshop: Workshop, nsys: Mapping[str, float], *, asks: bool) -> Round:
    """Run every measure once, and the reports of `nsys`, which have so many seconds each.

    Whether `questions` are measured too, `asks` tells.
    """
    costs = {"sql_max": script("sql_max.py", export)}
    costs["reading"] = script("read_columns.py", export)
    costs["reading, library alone"] = script("read_columns.py", export, "--library-alone")
    with workshop.store() as store:
        costs["ingest"] = ingest([export], store)
        for by in ("kernel", "range", "stage", "iteration"):
            costs[f"by {by}"] = breakdown(store, by)
        costs |= questions(store) if asks else {}
    costs["by stage, small run"] = breakdown(workshop.small_store, "stage")
    costs["--help"] = run([*_TRACEKIT, "--help"])
    for report, limit_s in nsys.items():
        costs[f"nsys {report}"] = _nsys_stats(export, report, limit_s)
    return costs


def _nsys_stats(export: Path, report: str, limit_s: float) -> Cost:
    copy = export.with_stem("copy")
    shutil.copyfile(export, copy)  # nsys adds indexes to the file it reads
    try:
        command = ("nsys", "stats", "--report", report, "--format", "csv", copy)
        return run(command, limit_s=limit_s)
    finally:
        copy.unlink()


def reports_round(
    exports: Sequence[Path], workshop: Workshop, processes: Sequence[int], workers: Sequence[int]
) -> Round:
    """Make one run of several exports, by so many processes, and by so many workers of Dask.

    Of the latter the process counts that they work for; they have loaded what they need.
    """
    costs = {}
    for number in processes:
        options = ("--run", "all", "--processes", str(number))
        with workshop.store() as store:
            costs[name_of(number)] = ingest(exports, store, *options)
    for number in workers:
        with cluster(workshop.folder, number) as address:
            for _ in range(2):
                with workshop.store() as store:
                    cost = ingest(exports, store, "--run", "all", "--dask", address)
            costs[f"Dask, {number} worker{'s' * (number > 1)}"] = cost
    return costs


def ranks_round(exports: Sequence[Path], workshop: Workshop) -> Round:
    """Make one run of many exports, and ask it."""
    with workshop.store() as store:
        costs = {"ingest": ingest(exports, store, "--run", "all")}
        for by in ("stage", "rank", "kernel"):
            costs[f"by {by}"] = breakdown(store, by)
    return costs


def name_of(processes: int) -> str:
    """Return the name of what so many processes do."""
    return f"{processes} process{'es' * (processes > 1)}"
