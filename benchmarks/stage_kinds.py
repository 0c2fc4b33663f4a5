"""How often stages and steps are wrong without a warning, by kind of program.

    python benchmarks/stage_kinds.py [--set built|apart|later|strangers] [--seeds N] [KIND...]

Prints a table of simulated programs (`tests/training_kinds.py`) by what is recorded of them: those
used while building, those held apart, those written later (`tests/training_later.py`), or those of
an author who had not read the rules (`tests/training_strangers.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from training_kinds import KINDS, held_apart
from training_later import LATER
from training_outcomes import TOLERATED, Outcome, outcome_of
from training_sim import MODES
from training_strangers import STRANGERS

_CLASSES = (
    "right", "wrong, warned", "wrong, no warning", "unknown", "steps wrong, no warning",
)  # fmt: skip


def cell(found: Iterable[Outcome]) -> str:
    """Return the worst of some outcomes in words."""
    worst = max(
        found, key=lambda each: (each.silent or each.steps_silent, each.wrong + each.unknown)
    )
    parts = []
    if worst.wrong > TOLERATED:
        parts.append(
            f"{'**wrong, no warning**' if worst.silent else 'wrong, warned'} {worst.wrong:.1%}"
        )
    if worst.unknown > TOLERATED:
        parts.append(f"unknown {worst.unknown:.1%}")
    if not worst.steps_right:
        silent = "**, no warning**" if worst.steps_silent else ""
        parts.append(f"steps {worst.steps_told} for {worst.steps}{silent}")
    elif worst.words and not parts:
        parts.append("right, warned")
    return ", ".join(parts) or "right"


def lines(kinds: Iterable[str], seeds: int, *, words: bool) -> Iterator[str]:
    """Yield the lines of the table."""
    modes = {
        "ranges": "ranges", "no_backward_range": "no backward range",
        "threads": "a backward thread", "one_thread": "one thread",
    }  # fmt: skip
    yield f"| kind | {' | '.join(modes.values())} |"
    yield f"| --- |{' --- |' * len(modes)}"
    counts: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
    for name in kinds:
        cells = []
        for mode in MODES:
            found = [outcome_of(name, mode, seed) for seed in range(1, seeds + 1)]
            cells.append(cell(found))
            for each in found:
                counts[mode].update(_classes(each))
                if words:
                    print(name, mode, each, file=sys.stderr)
        yield f"| {name} | {' | '.join(cells)} |"
    for what in _CLASSES:
        yield f"| {what} | {' | '.join(str(counts[mode][what]) for mode in MODES)} |"


def _classes(found: Outcome) -> Iterator[str]:
    if found.wrong > TOLERATED:
        yield "wrong, no warning" if found.silent else "wrong, warned"
    elif found.unknown > TOLERATED:
        yield "unknown"
    else:
        yield "right"
    if found.steps_silent:
        yield "steps wrong, no warning"


def _set_of(name: str) -> str:
    if name in STRANGERS:
        return "strangers"
    return "later" if name in LATER else "apart" if held_apart(name) else "built"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--set", choices=("built", "apart", "later", "strangers"), default="built")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--words", action="store_true")
    given = parser.parse_args()
    kinds = given.kinds or [name for name in KINDS if _set_of(name) == given.set]
    for line in lines(kinds, given.seeds, words=given.words):
        print(line, flush=True)


if __name__ == "__main__":
    main()
