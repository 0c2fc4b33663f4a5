"""Try verdicts on steps whose truth is known, and write what came of it into a page.

    python benchmarks/verdicts.py docs/compare.md

It takes some minutes. The table stands between two comments of the page; nothing else is changed.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from verdict_kinds import KINDS, RECORDED, SPREAD, Draw, Kind, autoregressive

from tracekit.analysis.comparison._history import change_points
from tracekit.analysis.comparison._recordings import differing
from tracekit.analysis.comparison._step_change import show

PAIRS = 400
STEPS = (20, 30, 40, 60)
RECORDINGS = (2, 3, 5, 8, 12)
POINTS = (10, 20, 40, 80)
SERIES = {"independent": 0.0, "correlated, +0.3": 0.3, "correlated, +0.5": 0.5}
GAIN = 1.05
MOST_FALSE, LEAST_RIGHT, MOST_UNKNOWN, LEAST_SEEN = 0.08, 0.9, 0.05, 0.9
_WEAK, _MANY = 0.3, 30
"""Correlations up to which, and steps from which on, few pairs may be unknown."""
_MOST = 0.5
"""Where more are unknown, the others are chosen by their looks, and their intervals not judged."""
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
            and self.missed <= 1 - LEAST_RIGHT
            and (not enough or (self.right or 0) >= LEAST_RIGHT)
            and (not (weak and self.steps >= _MANY) or self.unknown <= MOST_UNKNOWN)
            and (not self.is_certain or self.seen >= LEAST_SEEN)
            and (self.kind.has_mean or self.unknown >= 1 - MOST_UNKNOWN)
        )

    @property
    def missed(self) -> float:
        """Share of all pairs, of which some are unknown, with an interval that misses the truth."""
        return 0.0 if self.right is None else (1 - self.unknown) * (1 - self.right)

    @property
    def is_certain(self) -> bool:
        """Whether 5 % are to be seen in theory, by as many independent steps as verdicts need."""
        kind, other = self.kind, self.kind.other_steps or self.steps
        if kind.sd is None:
            return False
        worth = self.steps * (1 - kind.correlation) / (1 + kind.correlation)
        error = kind.sd * np.sqrt(1 / self.steps + 1 / other)
        return bool(_REACH * error <= 100 * (GAIN - 1) and worth >= _WORTH)


Show = Callable[[np.ndarray, np.ndarray], pl.DataFrame]


def _by_steps(a: np.ndarray, b: np.ndarray) -> pl.DataFrame:
    one = np.ones(len(a), dtype=np.int64)
    whole = [np.rint(each).astype(np.int64) for each in (a, b)]
    return show(whole[0], whole[1], (one, one), has_verdict=True, related=False)


def _by_recordings(a: np.ndarray, b: np.ndarray) -> pl.DataFrame:
    return differing(a, b, related=False)


def tried(kind: Kind, steps: int, told_by: Show = _by_steps) -> Trial:
    """Try verdicts on pairs of a kind, of so many steps; or of so many recordings."""
    random = np.random.default_rng(zlib.crc32(f"{kind.name} {steps}".encode()))

    def draw(how: Draw, number: int) -> np.ndarray:
        return np.rint(_NS * how(random, PAIRS, number))

    a = draw(kind.draw, steps)
    b = draw(kind.other or kind.draw, kind.other_steps or steps)
    equal, unequal = told_by(a, b), told_by(a, b * GAIN)
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


def tried_recordings() -> list[Trial]:
    """Try verdicts on several recordings a side."""
    return [tried(kind, number, _by_recordings) for kind in RECORDED for number in RECORDINGS]


def alarms(correlation: float, points: int) -> tuple[float, float]:
    """Return how often a series of points is told to change: one that does not, and one that does.

    The latter is 3 standard deviations longer from the middle on, and told so there or beside it.
    """
    random = np.random.default_rng(zlib.crc32(f"series {correlation} {points}".encode()))
    series = autoregressive(correlation)(random, PAIRS, points)
    longer = series + 3 * SPREAD * (np.arange(points) >= points // 2)
    found = [change_points(each) for each in longer]
    near = [any(abs(change.place - points // 2) <= 1 for change in each) for each in found]
    return sum(bool(change_points(each)) for each in series) / PAIRS, sum(near) / PAIRS


def page_tables(steps: list[Trial], recordings: list[Trial]) -> dict[str, str]:
    """Return what the page holds, in Markdown: by the name of its place in the page."""
    return {
        "trials": _table(steps, "steps", STEPS, shares=("unknown", "false", "right", "seen")),
        "trials of recordings": _table(
            recordings, "recordings a side", RECORDINGS, shares=("false", "right", "seen")
        ),
        "trials of histories": _of_histories(),
    }


def _table(
    trials: list[Trial], what: str, numbers: tuple[int, ...], shares: tuple[str, ...]
) -> str:
    """Return trials as a table: a row per kind, a column per number of steps or recordings."""
    noun = what.partition(" ")[0]
    kinds = list(dict.fromkeys(trial.kind for trial in trials))
    head = f"| {what} | truth | {' | '.join(f'{number} {noun}' for number in numbers)} |"
    rows = [
        f"| {kind.name} | {kind.truth} | "
        + " | ".join(_cell(trial, shares) for trial in trials if trial.kind == kind)
        + " |"
        for kind in kinds
    ]
    return "\n".join([head, "| --- " * (2 + len(numbers)) + "|", *rows])


def _cell(trial: Trial, shares: tuple[str, ...]) -> str:
    return " / ".join(map(_percent, (getattr(trial, share) for share in shares)))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def _of_histories() -> str:
    head = f"| points | {' | '.join(map(str, POINTS))} |"
    rows = [
        f"| {name} | "
        + " | ".join(" / ".join(map(_percent, alarms(correlation, points))) for points in POINTS)
        + " |"
        for name, correlation in SERIES.items()
    ]
    return "\n".join([head, "| --- " * (1 + len(POINTS)) + "|", *rows])


def with_table(page: str, name: str, table: str) -> str:
    """Return a page with one of its tables replaced."""
    return re.sub(
        f"(?<=<!-- {name} -->\n).*?(?=\n<!-- end of {name} -->)",
        lambda _: f"\n{table}\n",
        page,
        flags=re.DOTALL,
    )


def main(page: Path) -> None:
    """Try all kinds, and write the tables into a page."""
    steps = [tried(kind, number) for kind in KINDS for number in STEPS]
    recordings = tried_recordings()
    for trial in (*steps, *recordings):
        if not trial.is_well:
            print(f"not well: {trial}")
    text = page.read_text(encoding="utf-8")
    for name, table in page_tables(steps, recordings).items():
        text = with_table(text, name, table)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
