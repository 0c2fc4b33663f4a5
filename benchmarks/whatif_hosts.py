"""Score `tracekit whatif --host 2x` on simulated jobs whose host then really is twice as fast.

    python benchmarks/whatif_hosts.py [--jobs N] [--seed TEXT]

Prints a line per job, and how many ranges hold what came; see docs/evidence/whatif.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

from finding_kinds import FAULTS, plain_job
from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate, usual_changes
from simulate.truth import step_times

import tracekit as tk
from tracekit.errors import UndecidedError

_SKIPPED = 2
_STEPS = 12
_FAULTS = ("a slow host", "none", "a host that waits", "a slow loader",
           "input on the computing stream")  # fmt: skip


def drawn(number: int, seed: str) -> Iterator[Job]:
    """Yield jobs with a fault, every other one with a slow host besides."""
    for index in range(number):
        random = Random(f"{seed}/{index}")
        job = FAULTS[random.choice(_FAULTS)](plain_job(random), random)
        slow = FAULTS["a slow host"](job, random) if index % 2 else job
        yield replace(slow, steps=_STEPS, evaluate=0)


def step_ms(job: Job) -> float:
    """Return the mean step of a simulated job, without its first ones."""
    return mean(step_times(simulate(job).books.ops)[_SKIPPED:]) / 1e6


def asked(job: Job) -> tuple[float, float, bool] | None:
    """Return the range that is said of a job, in ms, and whether a number is; None if refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        write_export(simulate(job), path)
        run = tk.ingest(path, store=Path(folder) / "store")[0]
        try:
            rows = run.whatif(host="2x", skip=_SKIPPED, topology="dgx1v")
        except UndecidedError:
            return None
        row = rows.row(-1, named=True)
        return row["low_ns"] / 1e6, row["high_ns"] / 1e6, row["step_ns"] is not None


def main() -> None:
    """Ask of each job, and say what came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", default="20261129")
    options = parser.parse_args()
    told = held = 0
    for job in drawn(options.jobs, options.seed):
        before = step_ms(job)
        after = step_ms(usual_changes(job)["host launches twice as fast"])
        said = asked(job)
        name = f"{job.network} of {job.batch} on {job.gpus}: {before:.3f} -> {after:.3f} ms"
        if said is None:
            print(name, "refused")
            continue
        low, high, is_told = said
        is_held = low <= after <= high
        told, held = told + is_told, held + (is_told and is_held)
        print(name, f"{low:.3f} to {high:.3f}", "holds" if is_held else "does not hold",
              "" if is_told else "(not told)", flush=True)  # fmt: skip
    print(f"{options.jobs} jobs, {told} told, of which {held} hold")


if __name__ == "__main__":
    main()
