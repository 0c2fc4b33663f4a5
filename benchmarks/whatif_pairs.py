"""Score `tracekit whatif` on the simulated pairs: whether its range holds what really came.

    python benchmarks/whatif_pairs.py FOLDER [--only NAME ...] [--workers N]

Writes a Markdown table, which `docs/evidence/whatif.md` shows, and below it what it adds up to.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sample_traces"))
from simulate.pairs import DRAWN, PAIRS, SEALED, SKIPPED, SLOW, Pair, write_pair

import tracekit as tk
from tracekit.errors import UndecidedError


@dataclass(frozen=True)
class Score:
    """A pair as it was and became, in ms, and what was said of it; null ends are refused."""

    name: str
    before: float
    after: float
    low: float | None = None
    high: float | None = None
    told: bool = False

    @property
    def held(self) -> bool:
        """Whether the range holds what came."""
        return (
            self.low is not None and self.high is not None and self.low <= self.after <= self.high
        )

    @property
    def width(self) -> float | None:
        """Width of the range, as a share of a step before."""
        return (
            None if self.low is None or self.high is None else (self.high - self.low) / self.before
        )


def score(pair: Pair, folder: Path) -> Score:
    """Simulate a pair, and ask for the change of the trace of its first job."""
    times = write_pair(pair, folder)
    before, after = times["before_ns"] / 1e6, times["after_ns"] / 1e6
    run = tk.ingest(folder / f"{pair.name}.sqlite", store=folder / pair.name)[0]
    try:
        rows = run.whatif(**pair.asked, skip=SKIPPED, topology="dgx1v")
    except UndecidedError:
        return Score(pair.name, before, after)
    row = rows.row(-1, named=True)
    told = row["step_ns"] is not None
    return Score(pair.name, before, after, row["low_ns"] / 1e6, row["high_ns"] / 1e6, told)


def _line(each: Score) -> str:
    sealed = " (sealed)" if each.name in SEALED else ""
    width = "" if each.width is None else f"{100 * each.width:.1f} %"
    ends = "" if each.low is None or each.high is None else f"{each.low:.3f} to {each.high:.3f}"
    held = "yes" if each.held else "refused" if each.low is None else "**no**"
    said = held if each.told or each.low is None else f"{held}, no number"
    times = f"{each.before:.3f} | {each.after:.3f}"
    return f"| {each.name}{sealed} | {times} | {ends} | {said} | {width} |"


def _sum(name: str, scores: list[Score]) -> str:
    told = [each for each in scores if each.told]
    widths = [each.width for each in told if each.width is not None]
    ends = [each for each in scores if not each.told and each.low is not None]
    return (
        f"{name}: {len(scores)} pairs, {len(told)} told, of which {sum(each.held for each in told)}"
        f" hold, median width {100 * median(widths):.1f} %; {len(scores) - len(told)} not told, of"
        f" whose ends {sum(each.held for each in ends)} of {len(ends)} hold"
    )


def main() -> None:
    """Score the pairs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--drawn", action="store_true", help="those that a seed drew")
    parser.add_argument("--slow", action="store_true", help="those of a slow GPU")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    chosen = DRAWN if asked.drawn else SLOW if asked.slow else PAIRS
    pairs = [pair for pair in chosen if not asked.only or pair.name in asked.only]
    with ProcessPoolExecutor(asked.workers) as pool:
        scores = list(pool.map(partial(score, folder=asked.folder), pairs))
    print("| pair | before (ms) | true step after (ms) | predicted range (ms) | in range | width |")
    print("| --- | ---: | ---: | ---: | --- | ---: |")
    print("\n".join(_line(each) for each in scores))
    print()
    print(_sum("all", scores))
    for name, own in (("sealed", True), ("others", False)):
        chosen = [each for each in scores if (each.name in SEALED) == own]
        if chosen:
            print(_sum(name, chosen))


if __name__ == "__main__":
    main()
