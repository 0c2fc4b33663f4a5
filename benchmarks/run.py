"""Measure tracekit against SQLite's own scan and against nsys, and write down the ratios.

    python benchmarks/run.py --kernels 1000000 5000000 20000000 --rounds 3 --docs

Every figure is a ratio of whole processes that ran in the same round, one after the other; rounds
are repeated and the median counts. Absolute times are given beside, and depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from figures import COMPARISONS, compared, measured, summary
from goals import GOALS, OF_REPORTS, held_against
from measures import (
    HERE,
    NSYS_REPORTS,
    Workshop,
    first_round,
    name_of,
    one_round,
    ranks_round,
    reports_round,
)
from measuring import ROOT, machine, nsys_version, run
from performance_page import tables, write_page

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROCESSES = (1, 2)
FIXED = "start, imports and exit"
_KERNELS_OF_RANK = 300
_UP_TO = {
    "cuda_gpu_kern_sum": 5_000_000,
    "nvtx_kern_sum": 1_000_000,
    "nvtx_gpu_proj_sum": 1_000_000,
}
"""Largest exports that nsys is given, unless something else is asked for."""


def measure(kernels: int, asked: argparse.Namespace, workshop: Workshop) -> dict[str, Any]:
    """Measure one size of export.

    Returns
    -------
    Figures by measure, comparisons, the seconds of each step of an ingest, and by part.
    """
    count = asked.rounds_large if kernels >= asked.large else asked.rounds
    reports = [report for report in asked.nsys if kernels <= _up_to(asked, report)]
    nsys = dict.fromkeys(reports, asked.nsys_timeout)
    _tell(f"{kernels:,} kernels, generating")
    export = workshop.export("export", kernels)
    try:
        _tell(f"{kernels:,} kernels, first round")
        first = first_round(export, workshop)
        rounds = []
        for number in range(count):
            _tell(f"{kernels:,} kernels, round {number + 1} of {count}")
            asks = kernels <= asked.questions_up_to
            rounds.append(one_round(export, workshop, nsys, asks=asks))
            # What did not end will not end the next time.
            nsys = {each: limit for each, limit in nsys.items() if rounds[-1][f"nsys {each}"].ended}
        return {
            "kernels": kernels,
            "bytes": export.stat().st_size,
            "rounds": count,
            "measures": measured(first, rounds),
            "comparisons": dict(compared(rounds, COMPARISONS)),
            **_steps(export, workshop, count),
        }
    finally:
        export.unlink()


def _up_to(asked: argparse.Namespace, report: str) -> int:
    return int(getattr(asked, f"{report}_up_to"))


def _steps(export: Path, workshop: Workshop, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each step of an ingest, and seconds of processors by part.

    Each of the two adds up to the whole process.
    """
    repeated: list[dict[str, dict[str, float]]] = []
    for _ in range(rounds):
        with workshop.store() as store:
            cost = run([sys.executable, HERE / "pipeline_steps.py", export, store], output=True)
        told = json.loads(str(cost.output))
        outside = {"steps_s": cost.wall_s, "parts_cpu_s": cost.cpu_s}
        repeated.append(
            {
                key: {FIXED: outside[key] - sum(seconds.values()), **seconds}
                for key, seconds in told.items()
            }
        )
    return {
        key: {name: median(each[key][name] for each in repeated) for name in seconds}
        for key, seconds in repeated[0].items()
    }


def measure_reports(asked: argparse.Namespace, workshop: Workshop) -> dict[str, Any]:
    """Measure what several processes make of a run of several reports."""
    _tell(f"{asked.reports} reports, generating")
    exports = [
        workshop.export(f"r{number}", asked.report_kernels, seed=number + 1)
        for number in range(asked.reports)
    ]
    reports_round(exports, workshop, _PROCESSES[-1:], ())  # as for one export
    rounds = []
    for number in range(asked.rounds):
        _tell(f"{asked.reports} reports, round {number + 1} of {asked.rounds}")
        rounds.append(reports_round(exports, workshop, _PROCESSES, asked.dask_workers))
    for export in exports:
        export.unlink()
    one, several = map(name_of, _PROCESSES)
    return {
        "reports": asked.reports,
        "kernels": asked.report_kernels,
        "rounds": asked.rounds,
        "measures": {name: summary(name, rounds, one) for name in rounds[0]},
        "comparisons": dict(compared(rounds, {f"{one} / {several}": ((one,), (several,))})),
    }


def measure_ranks(asked: argparse.Namespace, workshop: Workshop) -> list[dict[str, Any]]:
    """Measure what a run of ever more short reports takes."""
    found = []
    for count in sorted(asked.ranks):
        _tell(f"{count:,} short reports")
        exports = workshop.ranks(count, _KERNELS_OF_RANK)
        costs = ranks_round(exports, workshop)
        for export in exports:
            export.unlink()
        found.append(
            {
                "reports": count,
                "kernels": _KERNELS_OF_RANK,
                "measures": {name: summary(name, [costs], "ingest") for name in costs},
            }
        )
    return found


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--kernels", type=int, nargs="+", default=[200_000, 1_000_000], help="sizes of exports"
    )
    parser.add_argument("--rounds", type=int, default=3, help="repetitions (default %(default)s)")
    parser.add_argument(
        "--rounds-large", type=int, default=1, metavar="N",
        help="repetitions of large exports (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--large", type=int, default=20_000_000, metavar="KERNELS",
        help="from how many kernels on an export is large (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--reports", type=int, default=8, metavar="N",
        help="also make a run of N exports, 0 for none (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--report-kernels", type=int, default=200_000, metavar="KERNELS",
        help="size of each of these exports (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--dask-workers", type=int, nargs="*", default=[], metavar="N",
        help="also make that run by the N workers of a Dask cluster on this machine",
    )  # fmt: skip
    parser.add_argument(
        "--questions-up-to", type=int, default=5_000_000, metavar="KERNELS",
        help="do not ask of larger runs what takes much memory (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[], metavar="N",
        help=f"also make runs of N exports of {_KERNELS_OF_RANK} kernels each",
    )  # fmt: skip
    _nsys_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--docs", action="store_true", help="put the tables into docs/evidence/performance.md"
    )
    parser.add_argument(
        "--folder", type=Path, help="where exports are made and removed (default: temporary files)"
    )
    parser.add_argument(
        "generate", nargs="*", metavar="-- OPTION", help="options of generate_export.py, after --"
    )
    return parser.parse_args()


def _nsys_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nsys", nargs="*", choices=NSYS_REPORTS, default=[],
        help="also measure these reports of the nsys on PATH",
    )  # fmt: skip
    for report, kernels in _UP_TO.items():
        parser.add_argument(
            f"--{report.replace('_', '-')}-up-to", type=int, default=kernels, metavar="KERNELS",
            help="do not wait for it on exports larger than this (default %(default)s)",
        )  # fmt: skip
    parser.add_argument(
        "--nsys-timeout", type=float, default=600, metavar="SECONDS",
        help="how long to wait for each of these reports (default %(default)s)",
    )  # fmt: skip


def _measured(asked: argparse.Namespace, workshop: Workshop) -> Iterator[dict[str, Any]]:
    """Yield all figures so far, each time that there are more."""
    described = machine()
    if asked.nsys:
        described["nsys"] = nsys_version()
    figures: dict[str, Any] = {"machine": described, "exports": [], "goals": []}
    if asked.reports:
        reports = measure_reports(asked, workshop)
        figures |= {"reports": reports, "goals_of_reports": held_against([reports], OF_REPORTS)}
    if asked.ranks:
        figures["ranks"] = measure_ranks(asked, workshop)
    for kernels in sorted(asked.kernels):
        exports = [*figures["exports"], measure(kernels, asked, workshop)]
        figures |= {"exports": exports, "goals": held_against(exports, GOALS)}
        yield figures


def main() -> None:
    """Measure what was asked for, and print it."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # exports are removed all the same
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        for figures in _measured(asked, Workshop(Path(name), asked.generate)):
            if asked.json:
                asked.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
            if asked.docs:
                write_page(ROOT / "docs" / "evidence" / "performance.md", figures)
    print(tables(figures))


if __name__ == "__main__":
    main()
