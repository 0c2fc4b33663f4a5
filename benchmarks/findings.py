"""Score the rules of `tracekit diagnose` on simulated jobs with injected faults and on real traces.

    python benchmarks/findings.py [--jobs N] [--seed N] [--clean N] [--real FOLDER] [--workers N]
                                  [--kept FOLDER]

Every finding of every job is judged by simulating that job once more with its advice followed, and
every fault that is worth as much as a finding and is not named is missed. Writes the tables between
two comments of ``docs/evidence/diagnose.md``, and ``schemas/findings/score.toml``, which `tracekit
diagnose` reads: by it a rule may say no more than it has shown. Findings of real traces are held
against ``judged_findings.toml``, which a person wrote who read the raw tables. Claims of jobs that
were tried before count as well, for rules that have not changed since: ``earlier_findings.toml``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import polars as pl
from finding_kinds import (
    MENDS,
    NOT_TRIED,
    TOGETHER,
    clean_jobs,
    drawn_jobs,
    first_step_ratio,
    step_ns,
)
from scipy.stats import beta
from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate

import tracekit as tk
from tracekit.analysis.diagnosis import RULES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "diagnose.md"
SCORE = ROOT / "schemas" / "findings" / "score.toml"
JUDGED = Path(__file__).with_name("judged_findings.toml")
EARLIER = Path(__file__).with_name("earlier_findings.toml")
_BEGIN, _END = "<!-- trials -->", "<!-- end of trials -->"
_RIGHT = 0.01
"""A claim is right if following its advice wins so much of a step: half of what is spoken of."""
_MISSED = 0.04
"""A fault is missed if mending it wins so much of a step, twice what is spoken of."""
_COLD, _MISSED_COLD = 1.5, 1.75
_REAL = (".sqlite", ".nsys-rep", ".qdrep", ".nvvp", ".json.gz")


@dataclass(frozen=True)
class Trial:
    """A rule on a job: whether it spoke, and what a step wins with its advice followed.

    ``won`` and ``win`` are shares of a step, null where none is claimed; ``held``, whether the
    finding's interval holds what is won.
    """

    rule: str
    job: str
    spoke: bool
    right: bool
    missed: bool
    won: float | None = None
    win: float | None = None
    held: bool | None = None


@dataclass(frozen=True)
class Claim:
    """What a rule said of a real trace, and what a person found; null where nobody looked."""

    trace: str
    rule: str
    finding: str
    right: bool | None
    seen: str


def findings_of(job: Job) -> pl.DataFrame:
    """Return all findings of a simulated job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        write_export(simulate(job), path)
        run, _ = tk.ingest(path, store=Path(folder) / "store")
        return run.diagnose(top=None)


def tried(named: tuple[str, Job]) -> list[Trial]:
    """Try all rules that can be judged on a simulated job."""
    name, job = named
    said = findings_of(job).rows(named=True)
    rows = {row["rule"]: row for row in said if row["rule"] not in NOT_TRIED}
    first = 1 if "cold_steps" in rows else 0
    step = step_ns(job, first)
    gains = {
        rule: max((step - step_ns(other, first) for other in mends(job)), default=0.0)
        for rule, mends in MENDS.items()
    }
    trials = [_trial(name, rule, rows, gain, step) for rule, gain in gains.items()]
    cold, ratio = "cold_steps" in rows, first_step_ratio(job)
    return [*trials, Trial("cold_steps", name, cold, right=ratio >= _COLD * 0.9,
                           missed=not cold and ratio > _MISSED_COLD)]  # fmt: skip


def tried_once(drawn: tuple[int, tuple[str, Job]], kept: Path | None) -> list[Trial]:
    """Try all rules on a job by its number, or return what came of it in a run that was ended."""
    number, named = drawn
    path = kept / f"{number}.json" if kept else None
    if path is not None and path.exists():
        return [Trial(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    trials = tried(named)
    if path is not None:
        path.write_text(json.dumps([asdict(each) for each in trials]), encoding="utf-8")
    return trials


def earlier() -> dict[str, dict[str, int]]:
    """Return ``claims, wrong`` by rule of earlier jobs, of rules that have not changed since."""
    return tomllib.loads(EARLIER.read_text(encoding="utf-8"))


def _trial(name: str, rule: str, rows: dict[str, dict], gain: float, step: float) -> Trial:
    said = rows.get(rule)
    others = next((group for group in TOGETHER if rule in group), {rule})
    missed = not others & set(rows) and gain >= _MISSED * step
    if said is None or said["win_ns"] is None:  # who names no win claims none
        return Trial(rule, name, spoke=False, right=False, missed=missed, won=gain / step)
    low, high = said["win_low_ns"], said["win_high_ns"]
    return Trial(
        rule, name, spoke=True, right=gain >= _RIGHT * step, missed=False, won=gain / step,
        win=None if said["win_ns"] is None else said["win_ns"] / step,
        held=None if low is None else low <= gain <= high,
    )  # fmt: skip


def wrong_interval(wrong: int, claims: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate of error (Clopper-Pearson)."""
    low = float(beta.ppf(0.025, wrong, claims - wrong + 1)) if wrong else 0.0
    high = float(beta.ppf(0.975, wrong + 1, claims - wrong)) if wrong < claims else 1.0
    return low, high


def claims_of_traces(folder: Path) -> Iterator[Claim]:
    """Yield what rules say of the traces in a folder, with what a person said of it."""
    judged = tomllib.loads(JUDGED.read_text(encoding="utf-8"))
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(_REAL))
    paths += sorted(path for path in (folder / "tracelens").glob("*.json.gz"))
    for path in {path.name.split(".")[0]: path for path in paths}.values():
        with tempfile.TemporaryDirectory() as own:
            copy = Path(shutil.copy(path, own))
            copy.chmod(0o644)
            run, _ = tk.ingest(copy, store=Path(own) / "store")
            said = run.diagnose(top=None)
        name = path.name.split(".")[0]
        for rule, finding in said.select("rule", "finding").rows():
            known = judged.get(name, {}).get(rule, {})
            yield Claim(name, rule, finding, known.get("right"), known.get("seen", ""))


def score_file(trials: Sequence[Trial], claims: Sequence[Claim]) -> str:
    """Return how often each rule was judged and wrong, as TOML."""
    before = earlier()
    lines = [
        "# Written by `python benchmarks/findings.py`: judged claims of each rule, simulated",
        "# jobs and real traces together. docs/evidence/diagnose.md has the tables.",
    ]
    for rule in RULES:
        right = [each.right for each in trials if each.rule == rule and each.spoke]
        right += [each.right for each in claims if each.rule == rule and each.right is not None]
        claimed, wrong = (before.get(rule, {}).get(key, 0) for key in ("claims", "wrong"))
        lines += ["", f"[{rule}]", f"claims = {len(right) + claimed}",
                  f"wrong = {right.count(False) + wrong}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def rules_table(trials: Sequence[Trial], jobs: int) -> str:
    """Return a line per rule of what came of it on simulated jobs, as Markdown."""
    head = (f"| rule | faults in {jobs} jobs | found | missed | claims | wrong claims | "
            "earlier claims | wrong earlier claims | "
            "share of all claims that is wrong, 95 % interval | predicted win | simulated win | "
            "win within its interval |")  # fmt: skip
    lines = [_rule_line(*each, earlier()) for each in zip(*_by_rule(trials), strict=True)]
    return "\n".join([head, "| --- " + "| ---: " * 11 + "|", *lines])


def _by_rule(trials: Sequence[Trial]) -> tuple[list[str], list[list[Trial]]]:
    names = [rule for rule in RULES if any(each.rule == rule for each in trials)]
    return names, [[each for each in trials if each.rule == rule] for rule in names]


def _rule_line(rule: str, trials: Sequence[Trial], before: dict[str, dict[str, int]]) -> str:
    claims = [each for each in trials if each.spoke]
    missed = sum(each.missed for each in trials)
    found = [each for each in claims if each.right]
    wrong = len(claims) - len(found)
    claimed, erred = (before.get(rule, {}).get(key, 0) for key in ("claims", "wrong"))
    every = len(claims) + claimed
    low, high = wrong_interval(wrong + erred, every) if every else (0.0, 1.0)
    held = [each.held for each in claims if each.held is not None]
    priced = [each for each in found if each.win is not None]
    cells = (
        len(found) + missed, len(found), missed, len(claims), wrong, claimed, erred,
        f"{100 * low:.0f} to {100 * high:.0f} %" if every else "-",
        _spread([each.win or 0 for each in priced]), _spread([each.won or 0 for each in priced]),
        f"{sum(held)} of {len(held)}" if held else "-",
    )  # fmt: skip
    return f"| `{rule}` | {' | '.join(map(str, cells))} |"


def _spread(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    ends = f"{100 * min(shares):.1f} to {100 * max(shares):.1f}"
    return f"{100 * median(shares):.1f} % ({ends})"


def claims_table(claims: Iterable[Claim]) -> str:
    """Return what was said of real traces, and what a person saw, as Markdown."""
    words = {True: "right", False: "wrong", None: "-"}
    lines = [
        f"| {each.trace} | `{each.rule}` | {words[each.right]} | {each.seen} |" for each in claims
    ]
    return "\n".join(
        ["| trace | rule | judged by hand | what the export shows |", "| --- " * 4 + "|", *lines]
    )


def clean_line(number: int) -> str:
    """Return how often rules speak of runs without a fault, in words."""
    said = [(job, findings_of(job)["rule"].to_list()) for job in clean_jobs(number)]
    wrong = [(job, rules) for job, rules in said if rules]
    for job, rules in wrong:
        print(job.network, job.batch, job.gpus, job.seed, rules, file=sys.stderr)
    return f"Of {number} clean runs, {len(wrong)} have a finding."


def with_tables(page: str, tables: str) -> str:
    """Return a page with what came of trials replaced."""
    return re.sub(
        f"(?<={_BEGIN}\n).*?(?=\n{_END})", lambda _: f"\n{tables}\n", page, flags=re.DOTALL
    )


def main() -> None:
    """Try all rules, and write the tables and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=176)
    parser.add_argument("--seed", type=int, default=20261209)
    parser.add_argument("--clean", type=int, default=21)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kept", type=Path, help="keep what came of each job, to go on from there")
    asked = parser.parse_args()
    if asked.kept:
        asked.kept.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(asked.workers) as pool:
        jobs = enumerate(drawn_jobs(asked.jobs, asked.seed))
        parts = pool.map(partial(tried_once, kept=asked.kept), jobs, chunksize=4)
        trials = [trial for part in parts for trial in part]
    for each in trials:
        if each.missed or (each.spoke and not (each.right and each.held is not False)):
            print(each, file=sys.stderr)
    claims = list(claims_of_traces(asked.real)) if asked.real else []
    tables = (
        f"{rules_table(trials, asked.jobs)}\n\n{clean_line(asked.clean)}\n\n{claims_table(claims)}"
    )
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables), "utf-8")
    SCORE.parent.mkdir(exist_ok=True)
    SCORE.write_text(score_file(trials, claims), encoding="utf-8")


if __name__ == "__main__":
    main()
