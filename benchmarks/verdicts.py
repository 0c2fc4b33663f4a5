"""Try verdicts on steps whose truth is known, and write what came of it into two pages.

    python benchmarks/verdicts.py docs

It takes some minutes of one processor. ``evidence/verdicts.md`` is written anew; of
``evidence/recordings.md`` the tables are, which stand between two comments.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import verdict_claims as claims
from numpy.typing import NDArray
from verdict_kinds import KINDS, RECORDED, SPREAD, Draw, Kind, autoregressive

from tracekit.analysis.comparison import change_points, history
from tracekit.analysis.comparison._limit import _named, _of_steps
from tracekit.analysis.comparison._recordings import differing
from tracekit.analysis.comparison._step_change import UNKNOWN, Kinds, verdict_of
from tracekit.analysis.statistics import (
    Regular,
    cold_steps,
    differences,
    outliers,
    regularly_slow,
    shift,
)
from tracekit.analysis.statistics._kinds_of_steps import mode_edges

PAIRS, PAIRS_OF_RECORDINGS, SERIES_EACH = 2_000, 400, 400
STEPS = (5, 12, 30, 200, 2_000)
TYPICAL_PAIRS, TYPICAL_STEPS = 400, (12, 30, 200)
RECORDINGS = (2, 3, 5, 8, 12)
POINTS = (10, 20, 40, 80)
SERIES = {"independent": 0.0, "correlated, +0.3": 0.3, "correlated, +0.5": 0.5}
GAINS = (1.03, 1.05)
MOST_FALSE, LEAST_RIGHT, MOST_UNKNOWN = 0.07, 0.9, 0.05
_MANY, _SOME = 200, 12
"""Steps from which on no kind is told to differ more often, and independent ones are known."""
_LONG = 1.1
"""Shorter steps, in medians, are no outliers that could come regularly."""
_NS = 10_000
_SEED = "held out, for slow steps that come seldom"
"""Rules were chosen among a few by trials with other random numbers."""


@dataclass(frozen=True)
class Trial:
    """What came of many equal pairs, and of as many of which B is slower.

    Parameters
    ----------
    unknown, false
        Shares of the equal pairs that are unknown, and told to differ.
    right
        Share of the intervals that were given which hold the truth; None where none was.
    seen
        Shares of the unequal pairs that are told to be slower, by 3 and by 5 %.
    """

    kind: Kind
    steps: int
    unknown: float
    false: float
    right: float | None
    seen: tuple[float, ...]

    @property
    def is_well(self) -> bool:
        """Whether verdicts are as good as they have to be."""
        if not self.kind.has_mean:
            return True
        counts = self.kind.always or self.steps >= _MANY
        is_known = not self.kind.always or self.steps < _SOME or self.unknown <= MOST_UNKNOWN
        is_plain = self.kind.name == "independent"
        return not counts or (
            self.false <= MOST_FALSE
            and (self.right is None or self.right >= LEAST_RIGHT)
            and (is_known or not is_plain)
        )


Show = Callable[[np.ndarray, np.ndarray], pl.DataFrame]


def _by_steps(a: np.ndarray, b: np.ndarray) -> pl.DataFrame:
    """Compare pairs of runs as `compare` does: each without its cold steps."""
    cold = np.array([[cold_steps(each) for each in run] for run in (a, b)])
    parts = []
    for pair in np.unique(cold, axis=1).T:
        rows = np.flatnonzero((cold == pair[:, np.newaxis]).all(axis=0))
        of_a, of_b = (
            np.rint(run[rows, skip:]).astype(np.int64)
            for run, skip in zip((a, b), pair, strict=True)
        )
        for own, kinds in _alike(of_a, of_b):
            # Each pair is a comparison of its own, so no row is adjusted for the others.
            found = differences(of_a[own], of_b[own], related=False, regular=kinds)
            ends = pl.DataFrame({"low_ns": found.low, "high_ns": found.high}).fill_nan(None)
            told = pl.when(pl.lit(pl.Series(found.is_unknown))).then(pl.lit(UNKNOWN))
            parts.append(ends.with_columns(verdict=told.otherwise(verdict_of())))
    return pl.concat(parts)


def _alike(a: np.ndarray, b: np.ndarray) -> list[tuple[np.ndarray, Kinds]]:
    """Group pairs whose slow steps come at the same places; most have none that come regularly."""
    slow = [_regular(each) for each in (a, b)]
    places = [
        tuple(own and own.is_slow.tobytes() for own in pair) for pair in zip(*slow, strict=True)
    ]
    groups: dict[object, list[int]] = {}
    for row, key in enumerate(places):
        groups.setdefault(key, []).append(row)
    return [(np.array(own), (slow[0][own[0]], slow[1][own[0]])) for own in groups.values()]


def _regular(steps: np.ndarray) -> list[Regular | None]:
    """Return what comes regularly in each row; few have steps that are far enough off the rest."""
    is_long = steps > _LONG * np.median(steps, axis=1, keepdims=True)
    may = is_long.any(axis=1) | ~np.isnan(mode_edges(steps))
    return [regularly_slow(row) if some else None for row, some in zip(steps, may, strict=True)]


def _by_recordings(a: np.ndarray, b: np.ndarray) -> pl.DataFrame:
    """Compare each pair of sides alone: no row is adjusted for the others."""
    return pl.concat([differing(a[[at]], b[[at]]) for at in range(len(a))])


def tried(kind: Kind, number: int, told_by: Show = _by_steps, pairs: int = PAIRS) -> Trial:
    """Try verdicts on pairs of a kind, of so many steps; or of so many recordings."""
    random = np.random.default_rng(zlib.crc32(f"{_SEED} {kind.name} {number}".encode()))

    def draw(how: Draw, columns: int) -> np.ndarray:
        return np.rint(_NS * how(random, pairs, columns))

    a = draw(kind.draw, number)
    b = draw(kind.other or kind.draw, kind.other_steps or number)
    equal = told_by(a, b)
    given = equal.drop_nulls("low_ns")
    right = given.filter((given["low_ns"] <= 0) & (given["high_ns"] >= 0)).height
    return Trial(
        kind,
        number,
        unknown=(equal["verdict"] == "unknown").sum() / pairs,
        false=equal["verdict"].is_in(["faster", "slower"]).sum() / pairs,
        right=right / given.height if given.height else None,
        seen=tuple((told_by(a, b * gain)["verdict"] == "slower").sum() / pairs for gain in GAINS),
    )


def typical(kind: Kind, number: int) -> tuple[float, float, float]:
    """Return how often the typical step is unknown, is told to differ falsely, and seen +3 %."""
    random = np.random.default_rng(zlib.crc32(f"{_SEED} typical {kind.name} {number}".encode()))
    a = np.rint(_NS * kind.draw(random, TYPICAL_PAIRS, number)).astype(np.int64)
    other = kind.other or kind.draw
    b = np.rint(_NS * other(random, TYPICAL_PAIRS, kind.other_steps or number)).astype(np.int64)
    equal = [shift(*pair).interval for pair in zip(a, b, strict=True)]
    longer = np.rint(b * GAINS[0]).astype(np.int64)
    unequal = [shift(*pair).interval for pair in zip(a, longer, strict=True)]
    return (
        sum(each is None for each in equal) / TYPICAL_PAIRS,
        sum(each is not None and not each[0] <= 0 <= each[1] for each in equal) / TYPICAL_PAIRS,
        sum(each is not None and each[0] > 0 for each in unequal) / TYPICAL_PAIRS,
    )


_OUTLIER = 7.0
GATED = (12, 30, 60)


def gated(number: int, gain: float, pairs: int = PAIRS) -> dict[str, float]:
    """Return how a limit of 5 % is answered where one step of B takes 7 times as long as usual."""
    random = np.random.default_rng(zlib.crc32(f"{_SEED} gate {number} {gain}".encode()))
    a, b = (100 + SPREAD * random.normal(size=(pairs, number)) for _ in range(2))
    b *= gain
    b[np.arange(pairs), random.integers(0, number, pairs)] *= _OUTLIER
    told = [_outcome(*np.rint(_NS * np.stack(pair)), 5.0) for pair in zip(a, b, strict=True)]
    return {name: told.count(name) / pairs for name in ("within", "above", "unknown")}


def _outcome(a: NDArray[np.float64], b: NDArray[np.float64], percent: float) -> str:
    """Tell whether the steps of one run are slower than another's by more than a limit."""
    sides = [
        _named(each, np.isin(np.arange(len(each)), outliers(each)), range(len(each)), side)
        for each, side in zip((a, b), "AB", strict=True)
    ]
    return _of_steps(sides[0], sides[1], percent, "mean").outcome


def tried_recordings() -> list[Trial]:
    """Try verdicts on several recordings a side."""
    return [
        tried(kind, number, _by_recordings, PAIRS_OF_RECORDINGS)
        for kind in RECORDED
        for number in RECORDINGS
    ]


def alarms(correlation: float, points: int) -> tuple[float, float, float]:
    """Return how often a change is told: where none is, there without a caveat, and where one is.

    The latter is 3 standard deviations longer from the middle on, and told so there or beside it.
    """
    random = np.random.default_rng(zlib.crc32(f"series {correlation} {points}".encode()))
    series = autoregressive(correlation)(random, SERIES_EACH, points)
    longer = series + 3 * SPREAD * (np.arange(points) >= points // 2)
    found = [change_points(each) for each in longer]
    near = [any(abs(change.place - points // 2) <= 1 for change in each) for each in found]
    told = [each for each in series if change_points(each)]
    sure = [each for each in told if not re.search("if no drift|no worse", _first_line(each))]
    return len(told) / SERIES_EACH, len(sure) / SERIES_EACH, sum(near) / SERIES_EACH


def _first_line(series: NDArray[np.float64]) -> str:
    texts = [str(at) for at in range(len(series))]
    points = {"value": texts, "run": texts, "created": range(len(series)), "step_ns": series}
    return str(history(pl.DataFrame(points), label="night").meta["headline"])


def page_tables(recordings: list[Trial]) -> dict[str, str]:
    """Return the tables of the page on comparisons, in Markdown, by the names of their places."""
    numbers = [f"{number} recordings" for number in RECORDINGS]
    rows = [
        [kind.name, kind.truth, *(_cell(each.false, each.right, each.seen[1]) for each in recordings
                                  if each.kind == kind)]
        for kind in RECORDED
    ]  # fmt: skip
    return {
        "trials of recordings": _table(["recordings a side", "truth", *numbers], rows),
        "trials of histories": _of_histories(),
    }


def evidence(steps: list[Trial]) -> str:
    """Return the page of evidence on verdicts from steps."""
    head = ["random process", "definition", *(f"{number} steps" for number in STEPS)]
    of_means = [
        [kind.name, kind.truth, *(_cell(each.unknown, each.false, each.right, *each.seen)
                                  for each in steps if each.kind == kind)]
        for kind in KINDS
    ]  # fmt: skip
    of_typical = [
        [kind.name, *(_cell(*typical(kind, number)) for number in TYPICAL_STEPS)] for kind in KINDS
    ]
    of_limits = [
        [f"{100 * (gain - 1):+.0f} %", *(_cell(*gated(number, gain).values()) for number in GATED)]
        for gain in (1.0, 1.03, 1.1)
    ]
    page = _PAGE.format(
        pairs=f"{PAIRS:,}",
        means=_table(head, of_means),
        few=TYPICAL_PAIRS,
        typical=_table(
            ["random process", *(f"{number} steps" for number in TYPICAL_STEPS)], of_typical
        ),
        limits=_table(["true change", *(f"{number} steps" for number in GATED)], of_limits),
    )
    return page + of_commands()


_PAGE = """# How often verdicts on two runs are wrong

`python benchmarks/verdicts.py docs` draws the step times of two runs, A and B, from the same random
process, for example independent steps or a drift. It compares the runs as `tracekit compare` does
([method](../compare.md#what-can-be-shown)), and counts how often the verdict is wrong. The verdict
`unknown` means that the steps drift. The method was developed with other random seeds.

## The mean step

Each cell gives percentages of {pairs} pairs, without cold steps (`--skip auto`), in this order:

- verdict `unknown`, for equal runs
- false alarms (`faster` or `slower`), for equal runs
- coverage: the 95 % interval contains the true difference, 0, where an interval was given
- power at 3 %: verdict `slower`, for a B that is 3 % slower
- power at 5 %: verdict `slower`, for a B that is 5 % slower

{means}

## The typical step

This table is about the change of the median step. Slow (*cold*) steps at the beginning count, too.
Each cell gives percentages of {few} pairs of runs, in this order:

- verdict `unknown`, for equal runs
- false alarms (`faster` or `slower`), for equal runs
- power at 3 %: verdict `slower`, for a B that is 3 % slower

{typical}

## A limit of 5 %, with an outlier

`tracekit gate` decides whether the mean step of run B exceeds that of run A by more than 5 %. Step
times vary independently (standard deviation 2 %), and one step of B takes 7 times as long as the
others. Each cell gives percentages of {pairs} pairs of runs, by the decision: within the limit /
above the limit / unknown.

{limits}
"""


CLAIMED = (
    "independent", "AR 0.3", "AR 0.7", "AR 0.95", "AR 0.9 + noise", "states of 20", "stalls",
    "rare slow", "long drift", "random walk",
)  # fmt: skip
"""Kinds that other commands are tried on."""


def of_commands() -> str:
    """Return the part of the page on other commands than `compare`."""
    kinds = [kind for kind in KINDS if kind.name in CLAIMED]

    def table(head: Sequence[object], told: Callable[..., tuple[float | None, ...]]) -> str:
        rows = [[kind.name, *(_cell(*told(kind, each)) for each in head)] for kind in kinds]
        return _table(["random process", *map(_named_sizes, head)], rows)

    return _COMMANDS.format(
        trials=claims.TRIALS,
        few=claims.TRIALS // 4,
        ratios=table(claims.LENGTHS, claims.ratios),
        stragglers=table(claims.WAITED, lambda kind, sizes: claims.stragglers(kind, *sizes)),
        kernels=table(claims.ROWS, claims.kernels),
        ranks=_table(
            [f"{number:,} ranks" for number in claims.RANKS],
            [[_cell(*claims.unusual_ranks(number)) for number in claims.RANKS]],
        ),
    )


def _named_sizes(sizes: object) -> str:
    return " / ".join(f"{each:,}" for each in (sizes if isinstance(sizes, tuple) else (sizes,)))


_COMMANDS = """
## Other commands

`scaling`, `overhead`, `diagnose`, `breakdown` and `compare --by kernel` were tried on the same
random processes, each in {trials} trials (kernels: {few}).

**Ratios of two runs** (`scaling`, `overhead`). Column heads give the numbers of steps of both runs.
Cells: ratios without an interval; 95 % intervals that contain the true ratio. With fewer than 200
steps a note says that intervals hold if there is no drift.

{ratios}

**Stragglers** (`diagnose`). Column heads give the numbers of ranks and of steps. Cells: recordings
of equal ranks with a straggler; recordings with one if a rank is 10 % slower. `diagnose` also needs
the straggler to cost 2 % of a step, which is not tested here.

{stragglers}

**Kernels** (`compare --by kernel`). Column heads give the number of steps of each run. All 200
kernels vary with the step, and a little alone. Cells: pairs of equal runs in which any kernel is
called faster or slower; if 20 kernels are 10 % slower, the share of other kernels among those
called so (at most 5 % are expected).

{kernels}

**Unusual ranks** (`breakdown --by rank`), of ranks that vary by 2 %. Cells: recordings of equal
ranks with an unusual one; recordings of which the rank that is 20 % slower is found.

{ranks}
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(*shares: float | None) -> str:
    return " / ".join(map(_percent, shares))


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


def main(docs: Path) -> None:
    """Try all kinds, and write the tables into pages."""
    steps = [tried(kind, number) for kind in KINDS for number in STEPS]
    recordings = tried_recordings()
    for trial in (*steps, *recordings):
        if not trial.is_well:
            print(f"not well: {trial}")
    (docs / "evidence").mkdir(exist_ok=True)
    (docs / "evidence" / "verdicts.md").write_text(evidence(steps), "utf-8")
    page = docs / "evidence" / "recordings.md"
    text = page.read_text(encoding="utf-8")
    for name, table in page_tables(recordings).items():
        text = with_table(text, name, table)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
