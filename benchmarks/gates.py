"""Try `tracekit gate` on simulated pairs with an outlier put in, and write what came of it.

    python benchmarks/gates.py docs/evidence/gate.md [PAIRS]

12 pairs of each kind take some ten minutes of one processor.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "sample_traces"))

from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate

import tracekit as tk

STEPS = (12, 30, 60)
PAIRS = 12
OUTLIER = 6
"""The host stops in the middle of one step for so many times as long as a step takes."""
_BASE = Job(
    network="alexnet", batch=64, pattern="all_reduce", processes="per_gpu", synchronise="loss",
    link_factors={"pcie": 100.0},
)  # fmt: skip
CHANGES: Mapping[str, Callable[[Job], Job]] = {
    "nothing": lambda job: job,
    "kernels 3 % slower": lambda job: replace(job, gpu_pace={0: 1.03}),
    "kernels 10 % slower": lambda job: replace(job, gpu_pace={0: 1.10}),
    "a wait after each layer": lambda job: replace(job, synchronise="layer"),
    "input in pageable memory": lambda job: replace(job, pageable=True, link_factors={}),
}
"""What makes B differ from A."""


def with_outlier(path: Path, step: int) -> None:
    """Stop everything in the middle of a step of an export for `OUTLIER` times as long."""
    with closing(sqlite3.connect(path)) as file:
        start, end = file.execute(
            'SELECT start, "end" FROM NVTX_EVENTS WHERE text = ?', (f"step {step}",)
        ).fetchone()
    with_pause(path, (start + end) // 2, OUTLIER * (end - start))


def with_pause(path: Path, at: int, length: int) -> None:
    """Stop everything in an export for so long: what begins or ends later does so later by that."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "UPDATE ANALYSIS_DETAILS SET duration = duration + ?, stopTime = stopTime + ?",
            (length, length),
        )
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            columns = {row[1] for row in file.execute(f"PRAGMA table_info({table})")}
            for column in ("start", "end") if columns >= {"start", "end"} else ():
                file.execute(
                    f'UPDATE {table} SET "{column}" = "{column}" + ? WHERE "{column}" >= ?',
                    (length, at),
                )


def recorded(job: Job, folder: Path, name: str, *, outlier: int | None = None) -> tk.Run:
    """Simulate and ingest a job, with a pause in the middle of one of its steps."""
    path = folder / f"{name}.sqlite"
    write_export(simulate(job), path)
    if outlier is not None:
        with_outlier(path, outlier)
    run, _ = tk.ingest(path, name=name, store=folder / "store")
    path.unlink()
    return run


def tried(steps: int, pairs: int) -> dict[str, Counter[str]]:
    """Return how often each change came to what, of the step and of findings."""
    found: dict[str, Counter[str]] = {name: Counter() for name in CHANGES}
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as text:
            folder, job = Path(text), replace(_BASE, steps=steps, seed=1000 + pair)
            a = recorded(job, folder, "a")
            for number, (name, change) in enumerate(CHANGES.items()):
                other = change(replace(job, seed=5000 + pair))
                place = 2 + (7 * pair + number) % (steps - 3)
                b = recorded(other, folder, f"b{number}", outlier=place)
                rows = tk.gate(a, b, new_findings=True).rows
                of_step, of_findings = rows.filter(rule="step"), rows.filter(rows["rule"] != "step")
                found[name][f"step {of_step['outcome'][0]}"] += 1
                failed = of_findings.filter(outcome="fail")["rule"].to_list()
                found[name]["findings fail"] += bool(failed)
                found[name].update(failed)
    return found


def page(pairs: int) -> str:
    """Return the page of evidence."""
    lines = []
    for steps in STEPS:
        for name, counts in tried(steps, pairs).items():
            cells = [counts[f"step {outcome}"] for outcome in ("pass", "fail", "undecided")]
            told = {"step pass", "step fail", "step undecided", "findings fail"}
            rules = ", ".join(f"`{rule}` {counts[rule]}" for rule in counts if rule not in told)
            numbers = " / ".join(map(str, cells))
            lines.append(
                f"| {steps} | {name} | {numbers} | {counts['findings fail']} | {rules or '-'} |"
            )
            print(lines[-1], flush=True)
    return _PAGE.format(pairs=pairs, outlier=OUTLIER, rows="\n".join(lines))


_PAGE = """# How often `tracekit gate` decides wrongly

`tracekit gate A B --step 5% --new-findings` fails in two cases: the mean step of run B is more than
5 % longer than that of run A, or B has a finding that A does not have. Each row counts what the
command decides about {pairs} pairs of simulated AlexNet runs with different random seeds. Run B has
an outlier: in one step, the job stalls for {outlier} times the length of that step.
[verdicts.md](verdicts.md) tests the limit of 5 % on 2,000 pairs of random step times.
`python benchmarks/gates.py docs/evidence/gate.md` writes this page.

| steps per run | change in B | gate on step time: pass / fail / undecided |\
 pairs failed by a new finding | findings |
| ---: | --- | --- | ---: | --- |
{rows}
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="file to write")
    parser.add_argument("pairs", type=int, nargs="?", default=PAIRS, help="pairs a line")
    asked = parser.parse_args()
    asked.page.write_text(page(asked.pairs), "utf-8")
