"""Structure held against ranges, trace by trace.

Run as a program, with traces as arguments, it prints a table: busy milliseconds of each stage by
ranges and by structure, iterations that hold work, and the share of the time of ops that ranges
name to which structure gives another stage. With ``--one-thread`` what backward threads launch is
given to the training thread first.

    python tests/real/structure_table.py [--one-thread] TRACE...
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from structure_works import Known, busy_ms, works_of

import tracekit as tk
from tracekit.attribution.structure import Structure, find_structure
from tracekit.model import STAGES

REPORTS = (".nsys-rep", ".qdrep")
FP, BP = STAGES.index("FP"), STAGES.index("BP")


def known_of(path: Path, store: Path) -> list[Known]:
    """Return the work of each process of a trace, and what ranges say of it."""
    return list(works_of(tk.open(path, store=store).trace))


def on_one_thread(known: Known) -> Known:
    """Give what the backward thread launches to the thread that launches most of forward."""
    found, work = find_structure(known.work), known.work
    launched = work.thread >= 0
    main = np.bincount(work.thread[launched & (found.stage == FP)]).argmax()
    backward = np.unique(work.thread[launched & (found.stage == BP)])
    thread = np.where(np.isin(work.thread, backward), main, work.thread).astype(np.int32)
    return replace(known, work=replace(work, thread=thread))


@dataclass(frozen=True)
class Row:
    """How structure compares with ranges."""

    found: Structure
    ranged: dict[str, float]
    told: dict[str, float]
    steps: int
    moved: float

    @classmethod
    def of(cls, known: Known) -> Row:
        """Compare one process' work."""
        work, found = known.work, find_structure(known.work)
        named = known.stage >= 0
        spent = work.end - work.start
        moved = spent[named & (found.stage != known.stage)].sum() / max(spent[named].sum(), 1)
        busy = [_busy(known, stages) for stages in (known.stage, found.stage)]
        return cls(found, *busy, steps_with_work(known).size, float(moved))

    def error(self, stage: str) -> float:
        """Return by which share structure's busy time differs from the ranges'."""
        return self.told[stage] / self.ranged[stage] - 1


def steps_with_work(known: Known) -> NDArray[Any]:
    """Return the iterations by ranges in which forward or backward work is launched."""
    return np.unique(known.step[(known.step >= 0) & np.isin(known.stage, (FP, BP))])


def _busy(known: Known, stages: NDArray[Any]) -> dict[str, float]:
    return {
        name: busy_ms(known.work, stages == place)
        for place, name in enumerate(STAGES)
        if (stages == place).any()
    }


def _lines(path: Path, store: Path, one_thread: bool) -> Iterator[str]:
    for known in known_of(path, store):
        if one_thread and find_structure(known.work).method != "threads":
            continue
        row = Row.of(on_one_thread(known) if one_thread else known)
        stages = [
            f"{row.ranged.get(name, 0):.2f} {row.told.get(name, 0):.2f}" for name in STAGES[:-1]
        ]
        found = row.found
        cells = (
            path.stem, found.method, *stages, f"{row.steps} {found.steps.height}",
            f"{row.moved:.2%}", f"{found.usual_gaps} of {found.gaps}",
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    one_thread = "--one-thread" in sys.argv
    paths = [Path(each) for each in sys.argv[1:] if not each.startswith("-")]
    head = ("trace", "method", *STAGES[:-1], "iterations", "moved", "usual gaps")
    sys.stdout.write(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n")
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            for line in _lines(path, Path(folder), one_thread):
                sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
