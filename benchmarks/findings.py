"""Try findings on simulated runs whose faults are known, and write what came of it into a page.

    python benchmarks/findings.py docs/diagnose.md [CLEAN] [SEEDS]

100 clean runs and 5 of each fault take some minutes. The tables stand between two comments of the
page; nothing else is changed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from finding_kinds import FAULTS, Fault, clean_jobs, step_ns
from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate

import tracekit as tk

_BEGIN, _END = "<!-- trials -->", "<!-- end of trials -->"
CLEAN, SEEDS = 100, 5


@dataclass(frozen=True)
class Trial:
    """What was found in a run with a fault.

    Parameters
    ----------
    found
        Whether one of the right rules spoke; ``first``, whether it came first.
    held
        Whether its interval holds what a step really wins; None where it was not found.
    true, win
        What a step wins by simulation, and by the finding, of the step.
    """

    found: bool
    first: bool
    held: bool | None
    true: float
    win: float | None


def findings_of(job: Job) -> pl.DataFrame:
    """Return all findings of a simulated job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        write_export(simulate(job), path)
        run, _ = tk.ingest(path, store=Path(folder) / "store")
        return run.diagnose(top=None)


def tried(fault: Fault) -> Trial:
    """Try findings on a run with a fault."""
    rows = findings_of(fault.job)
    first = 1 if "cold_steps" in rows["rule"] else 0
    step = step_ns(fault.job, first)
    true = step - step_ns(fault.mended, first)
    own = rows.filter(pl.col("rule").is_in(fault.rules)).drop_nulls("win_ns")
    if own.is_empty():
        return Trial(found=False, first=False, held=None, true=true / step, win=None)
    said = own.row(0, named=True)
    return Trial(
        found=True,
        first=rows["rule"][0] in fault.rules,
        held=said["win_low_ns"] <= true <= said["win_high_ns"],
        true=true / step,
        win=said["win_ns"] / step,
    )


def clean_table(number: int) -> str:
    """Return how often each rule speaks of clean runs, in words."""
    said: Counter[str] = Counter()
    wrong = 0
    for job in clean_jobs(number):
        rules = findings_of(job)["rule"].to_list()
        said.update(rules)
        wrong += bool(rules)
        if rules:
            print(job.network, job.batch, job.gpus, job.seed, rules, file=sys.stderr)
    names = ", ".join(f"`{rule}` {times}" for rule, times in said.most_common()) or "none"
    return f"Of {number} clean runs, {wrong} have a finding ({names})."


def fault_table(seeds: int) -> str:
    """Return what comes of runs with faults, as a table in Markdown."""
    head = "| fault | found | first | interval holds | won by simulation | win of the finding |"
    return "\n".join([head, "| --- " * 6 + "|", *(_line(name, seeds) for name in FAULTS)])


def _line(name: str, seeds: int) -> str:
    trials = [tried(FAULTS[name](seed)) for seed in range(seeds)]
    print(name, trials, file=sys.stderr)
    held = [trial.held for trial in trials if trial.held is not None]
    wins = [trial.win for trial in trials if trial.win is not None]
    cells = (
        f"{sum(trial.found for trial in trials)} of {seeds}",
        f"{sum(trial.first for trial in trials)}",
        f"{sum(held)} of {len(held)}",
        _range([trial.true for trial in trials]),
        _range(wins) if wins else "-",
    )
    return f"| {name} | {' | '.join(cells)} |"


def _range(shares: list[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def with_tables(page: str, tables: str) -> str:
    """Return a page with what came of trials replaced."""
    return re.sub(
        f"(?<={_BEGIN}\n).*?(?=\n{_END})", lambda _: f"\n{tables}\n", page, flags=re.DOTALL
    )


def main(page: Path, clean: int = CLEAN, seeds: int = SEEDS) -> None:
    """Try all kinds, and write the tables into a page."""
    tables = f"{clean_table(clean)}\n\n{fault_table(seeds)}"
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
