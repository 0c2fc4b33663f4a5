"""Try verdicts on steps whose truth is known, and write what came of it into a page.

    python benchmarks/verdicts.py docs/compare.md

It takes some minutes. The table stands between two comments of the page; nothing else is changed.
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from verdict_kinds import KINDS, Draw, Kind

from tracekit.analysis.comparison._step_change import show

PAIRS = 400
STEPS = (20, 30, 40, 60)
GAIN = 1.05
MOST_FALSE, LEAST_RIGHT, MOST_UNKNOWN, LEAST_SEEN = 0.08, 0.9, 0.05, 0.9
_WEAK, _MANY = 0.3, 30
"""Correlations up to which, and steps from which on, few pairs may be unknown."""
_MOST = 0.5
"""Where more are unknown, the others are chosen by their looks, and their intervals not judged."""
_BEGIN, _END = "<!-- trials -->", "<!-- end of trials -->"
_NS = 10_000
_REACH = 5.0
_WORTH = 15
"""A gain has to be so many standard errors of the difference, and steps have to be worth so many
independent ones, to be seen for certain in theory."""


@dataclass(frozen=True)
class Trial:
    """What came of many equal pairs, and of as many of which B is 5 % slower.

    Parameters
    ----------
    unknown, false
        Shares of the equal pairs that are unknown, and told to differ.
    right
        Share of the intervals that were given which hold the truth; None where none was.
    seen
        Share of the unequal pairs that are told to be slower.
    """

    kind: Kind
    steps: int
    unknown: float
    false: float
    right: float | None
    seen: float

    @property
    def is_well(self) -> bool:
        """Whether verdicts are as good as they have to be."""
        weak = abs(self.kind.correlation) <= _WEAK and self.kind.sd is not None
        enough = self.unknown <= _MOST and self.right is not None
        return (
            self.false <= MOST_FALSE
            and (not enough or (self.right or 0) >= LEAST_RIGHT)
            and (not (weak and self.steps >= _MANY) or self.unknown <= MOST_UNKNOWN)
            and (not self.is_certain or self.seen >= LEAST_SEEN)
            and (self.kind.has_mean or self.unknown >= 1 - MOST_UNKNOWN)
        )

    @property
    def is_certain(self) -> bool:
        """Whether 5 % are to be seen in theory, by as many independent steps as verdicts need."""
        kind, other = self.kind, self.kind.other_steps or self.steps
        if kind.sd is None:
            return False
        worth = self.steps * (1 - kind.correlation) / (1 + kind.correlation)
        error = kind.sd * np.sqrt(1 / self.steps + 1 / other)
        return bool(_REACH * error <= 100 * (GAIN - 1) and worth >= _WORTH)


def tried(kind: Kind, steps: int) -> Trial:
    """Try verdicts on pairs of a kind."""
    random = np.random.default_rng(zlib.crc32(f"{kind.name} {steps}".encode()))

    def draw(how: Draw, number: int, factor: float = 1.0) -> np.ndarray:
        return np.rint(_NS * factor * how(random, PAIRS, number)).astype(np.int64)

    a = draw(kind.draw, steps)
    b = draw(kind.other or kind.draw, kind.other_steps or steps)
    one = np.ones(PAIRS, dtype=np.int64)
    equal = show(a, b, (one, one), has_verdict=True, related=False)
    slower = np.rint(b * GAIN).astype(np.int64)
    unequal = show(a, slower, (one, one), has_verdict=True, related=False)
    given = equal.drop_nulls("low_ns")
    right = given.filter((given["low_ns"] <= 0) & (given["high_ns"] >= 0)).height
    return Trial(
        kind,
        steps,
        unknown=(equal["verdict"] == "unknown").sum() / PAIRS,
        false=equal["verdict"].is_in(["faster", "slower"]).sum() / PAIRS,
        right=right / given.height if given.height else None,
        seen=(unequal["verdict"] == "slower").sum() / PAIRS,
    )


def page_table(trials: list[Trial]) -> str:
    """Return trials as a table in Markdown: a row per kind, a column per number of steps."""
    head = f"| steps | truth | {' | '.join(f'{steps} steps' for steps in STEPS)} |"
    rows = [
        f"| {kind.name} | {kind.truth} | {' | '.join(map(_cell, _of(trials, kind)))} |"
        for kind in KINDS
    ]
    return "\n".join([head, "| --- " * (2 + len(STEPS)) + "|", *rows])


def _of(trials: list[Trial], kind: Kind) -> list[Trial]:
    return [trial for trial in trials if trial.kind == kind]


def _cell(trial: Trial) -> str:
    shares = (trial.unknown, trial.false, trial.right, trial.seen)
    return " / ".join("-" if share is None else f"{100 * share:.0f}" for share in shares)


def with_table(page: str, table: str) -> str:
    """Return a page with its table of trials replaced."""
    return re.sub(
        f"(?<={_BEGIN}\n).*?(?=\n{_END})", lambda _: f"\n{table}\n", page, flags=re.DOTALL
    )


def main(page: Path) -> None:
    """Try all kinds, and write the table into a page."""
    trials = [tried(kind, steps) for kind in KINDS for steps in STEPS]
    for trial in trials:
        if not trial.is_well:
            print(f"not well: {trial.kind.name}, {trial.steps} steps: {_cell(trial)}")
    page.write_text(with_table(page.read_text(encoding="utf-8"), page_table(trials)), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
