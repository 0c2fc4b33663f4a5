"""Simulate training jobs, and write traces with the truth about them.

    python sample_traces/simulate list
    python sample_traces/simulate scenarios FOLDER [--only NAME ...]
    python sample_traces/simulate grid FOLDER [--network NAME ...] [--gpus N ...]
        [--program mxnet|pytorch] [--what-if none|few|all]
    python sample_traces/simulate study-names [--network NAME ...]
    python sample_traces/simulate study FOLDER NAME ...
    python sample_traces/simulate sensitivity [--network NAME ...]
    python sample_traces/simulate bundle [FOLDER]

`grid` makes 240 traces. `study` makes those that are named, without what-ifs; `study-names` names
the 150 that `tracekit study dgx1 --simulated` looks at. `sensitivity` prints, a line of JSON each,
what is assumed, and steps with each assumption at the ends of its range. `bundle` makes again what
lies in ``sample_traces/simulated``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __package__ in {None, ""}:
    sys.path[0] = str(HERE.parent)

from simulate.grid import (  # noqa: E402
    BUNDLED,
    CHANGES,
    GPUS,
    NETWORKS,
    PROGRAMS,
    grid,
    make,
    scenarios,
    study,
)  # fmt: skip
from simulate.sensitivity import assumptions, step_rows  # noqa: E402


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="tell the scenarios")
    some = commands.add_parser("scenarios", help="make the scenarios")
    some.add_argument("folder", type=Path)
    some.add_argument("--only", nargs="+", choices=scenarios(), default=list(scenarios()))
    every = commands.add_parser("grid", help="make the grid of the studies")
    every.add_argument("folder", type=Path)
    every.add_argument("--network", nargs="+", choices=NETWORKS, default=NETWORKS)
    every.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=GPUS)
    every.add_argument("--program", choices=PROGRAMS, default="mxnet", help="how it is built")
    every.add_argument(
        "--what-if", choices=CHANGES, default="few", help="with what changes steps are timed too"
    )
    names = commands.add_parser("study-names", help="name the jobs of the DGX-1 study")
    names.add_argument("--network", nargs="+", choices=NETWORKS, default=NETWORKS)
    named = commands.add_parser("study", help="make jobs of the DGX-1 study")
    named.add_argument("folder", type=Path)
    named.add_argument("only", nargs="+", choices=dict(study()), metavar="NAME")
    varied = commands.add_parser("sensitivity", help="time steps with other assumptions")
    varied.add_argument("--network", nargs="+", choices=NETWORKS, default=())
    bundle = commands.add_parser("bundle", help="make the traces that lie beside this folder")
    bundle.add_argument("folder", type=Path, nargs="?", default=HERE.parent / "simulated")
    for each in (some, every, named, varied, bundle):
        each.add_argument("--workers", type=int, help="processes; as many as cores unless given")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Do what the command line says."""
    asked = _arguments().parse_args(arguments)
    if asked.command == "list":
        for name, scenario in scenarios().items():
            print(f"{name:16} {scenario.summary}")
        return
    if asked.command == "study-names":
        print("\n".join(name for name, _ in study(asked.network)))
        return
    if asked.command == "sensitivity":
        for row in (*assumptions(), *step_rows(asked.network, asked.workers)):
            print(json.dumps(row), flush=True)
        return
    if asked.command == "study":
        jobs = {name: job for name, job in study() if name in asked.only}
        for name in make(jobs, asked.folder, workers=asked.workers, what_if=None):
            print(name, flush=True)
        return
    if asked.command == "grid":
        jobs, what_if = dict(grid(asked.network, asked.gpus, asked.program)), asked.what_if
    else:
        names = BUNDLED if asked.command == "bundle" else asked.only
        jobs, what_if = {name: scenarios()[name].job for name in names}, "all"
    for number, name in enumerate(
        make(jobs, asked.folder, workers=asked.workers, what_if=what_if), 1
    ):
        print(f"{number}/{len(jobs)} {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
