"""Measure tracekit against SQLite's own scan and against nsys, and write down the ratios.

    python benchmarks/run.py --kernels 200000 1000000 --rounds 3 --docs

Every figure is a ratio of whole processes that ran in the same round, one after the other; rounds
are repeated and the median counts. Absolute times are given beside, and depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measuring import ROOT, Cost, machine, nsys_version, run
from performance_page import write_page

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).resolve().parent
_TRACEKIT = (sys.executable, "-m", "tracekit")
_NSYS_REPORTS = ("cuda_gpu_kern_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum")
_SMALL = 2_000
"""Kernels of an export on which everything but start and imports takes no time."""

_COMPARISONS = {
    "nvtx_kern_sum / (ingest + by range)": (("nsys nvtx_kern_sum",), ("ingest", "by range")),
    "nvtx_gpu_proj_sum / (ingest + by stage)": (
        ("nsys nvtx_gpu_proj_sum",),
        ("ingest", "by stage"),
    ),
    "cuda_gpu_kern_sum / by kernel": (("nsys cuda_gpu_kern_sum",), ("by kernel",)),
}
"""Measures whose times are added up and divided, by name."""

Round = dict[str, Cost]


def one_round(export: Path, folder: Path, reports: list[str]) -> Round:
    """Run every measure once, one process after the other."""
    store = folder / "store"
    costs = {"sql_max": run([sys.executable, _HERE / "sql_max.py", export])}
    costs["ingest"] = run([*_TRACEKIT, "ingest", export, "--store", store])
    for by in ("stage", "kernel", "range"):
        costs[f"by {by}"] = _breakdown(store, by)
    costs["by stage, small run"] = _breakdown(folder / "small-store", "stage")
    costs["--help"] = run([*_TRACEKIT, "--help"])
    shutil.rmtree(store)
    for report in reports:
        copy = folder / "copy.sqlite"
        shutil.copyfile(export, copy)  # nsys adds indexes to the file it reads
        command = ("nsys", "stats", "--report", report, "--format", "csv", str(copy))
        costs[f"nsys {report}"] = run(command)
        copy.unlink()
    return costs


def _breakdown(store: Path, by: str) -> Cost:
    return run([*_TRACEKIT, "breakdown", "--by", by, "--store", str(store)])


def measure(
    kernels: int, rounds: int, folder: Path, options: list[str], reports: list[str]
) -> dict[str, Any]:
    """Measure one size of export.

    Returns
    -------
    Costs by measure and round, their medians and ratios, and the seconds of each step of an ingest.
    """
    export = _generated(folder / "export.sqlite", kernels, options)
    run([sys.executable, _HERE / "sql_max.py", export])  # from here on the page cache is warm
    costs = []
    for number in range(rounds):
        _tell(f"{kernels:,} kernels, round {number + 1} of {rounds}")
        costs.append(one_round(export, folder, reports))
    measured = {
        "kernels": kernels,
        "bytes": export.stat().st_size,
        "rounds": rounds,
        "measures": {name: _summary(name, costs) for name in costs[0]},
        "comparisons": dict(_comparisons(costs)),
        "steps_s": _steps(export, folder, rounds),
    }
    export.unlink()
    return measured


def _generated(path: Path, kernels: int, options: list[str]) -> Path:
    _tell(f"{kernels:,} kernels, generating")
    run([sys.executable, _HERE / "generate_export.py", path, "--kernels", str(kernels), *options])
    return path


def _summary(name: str, rounds: list[Round]) -> dict[str, Any]:
    walls = [costs[name].wall_s for costs in rounds]
    return {
        "wall_s": median(walls),
        "cpu_s": median(costs[name].cpu_s for costs in rounds),
        "peak_bytes": max(costs[name].peak_bytes for costs in rounds),
        "ratio": median(costs[name].wall_s / costs["sql_max"].wall_s for costs in rounds),
        "all_wall_s": walls,
    }


def _comparisons(rounds: list[Round]) -> Iterator[tuple[str, float]]:
    for name, parts in _COMPARISONS.items():
        if not {*parts[0], *parts[1]} <= set(rounds[0]):
            continue
        over, under = ([_seconds(costs, part) for costs in rounds] for part in parts)
        yield name, median(a / b for a, b in zip(over, under, strict=True))


def _seconds(costs: Round, names: tuple[str, ...]) -> float:
    return sum(costs[name].wall_s for name in names)


def _steps(export: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Return the median seconds of each step of an ingest."""
    repeated = []
    for _ in range(rounds):
        store = folder / "steps"
        command = (sys.executable, _HERE / "pipeline_steps.py", export, store)
        repeated.append(json.loads(str(run(command, output=True).output)))
        shutil.rmtree(store)
    return {step: median(times[step] for times in repeated) for step in repeated[0]}


def _tell(what: str) -> None:
    print(what, file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--kernels", type=int, nargs="+", default=[200_000, 1_000_000], help="sizes of exports"
    )
    parser.add_argument("--rounds", type=int, default=3, help="repetitions (default %(default)s)")
    parser.add_argument(
        "--nsys", nargs="*", choices=_NSYS_REPORTS, default=[],
        help="also measure these reports of the nsys on PATH",
    )  # fmt: skip
    parser.add_argument(
        "--nsys-up-to", type=int, default=1_000_000, metavar="KERNELS",
        help="do not wait for nsys on exports larger than this (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--docs", action="store_true", help="put the tables into docs/performance.md"
    )
    parser.add_argument(
        "--folder", type=Path, help="where exports are made and removed (default: temporary files)"
    )
    parser.add_argument(
        "generate", nargs="*", metavar="-- OPTION", help="options of generate_export.py, after --"
    )
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for, and print it."""
    asked = _arguments()
    described = machine()
    if asked.nsys:
        described["nsys"] = nsys_version()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        small = _generated(folder / "small.sqlite", _SMALL, asked.generate)
        run([*_TRACEKIT, "ingest", small, "--store", folder / "small-store"])
        exports = [
            measure(
                kernels,
                asked.rounds,
                folder,
                asked.generate,
                asked.nsys if kernels <= asked.nsys_up_to else [],
            )
            for kernels in asked.kernels
        ]
    figures = {"machine": described, "exports": exports}
    text = json.dumps(figures, indent=2)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    if asked.docs:
        write_page(ROOT / "docs" / "performance.md", figures)
    print(text)


if __name__ == "__main__":
    main()
