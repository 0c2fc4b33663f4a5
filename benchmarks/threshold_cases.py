"""Work whose stages are known, and what structure says of it under other numbers than the chosen.

A trace with ranges is held against itself: its ranges are the truth, and structure does not read
them. Each comes as it is, with the launches of its backward thread given to the training thread,
and both with 20 % of its time cut off at either end. Traces in which nothing trains are cases, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "real"))

from structure_table import known_of, on_one_thread, steps_with_work
from structure_works import Known, taken

from tracekit.attribution._thresholds import THRESHOLDS, Thresholds
from tracekit.attribution.structure import find_structure

PROGRAMS = {"ddp_unet": "unet", "unet": "unet", "mnist": "mnist", "ddp_4gpu": "ddp sample"}
"""By how their traces' names begin: programs of which there are several traces."""
_CUT = 5
"""What part of its time is cut off at either end of a trace."""


@dataclass(frozen=True)
class Outcome:
    """What structure says of a case.

    Parameters
    ----------
    method
        How: ``threads``, ``order``, ``refused`` or ``none``.
    same, other
        Share of the time of ops that ranges name to which it gives the same stage, and another
        one. The rest is left untold.
    told, known
        Steps that it tells, and iterations that hold work.
    spare
        By how many these may differ: by one where it is an estimate, or where an edge was cut.
    """

    method: str
    same: float
    other: float
    told: int
    known: int
    spare: int = 0

    @property
    def score(self) -> float:
        """What is right less what is wrong: a refusal is neither."""
        amiss = max(abs(self.told - self.known) - self.spare, 0) if self.same else 0
        return self.same - self.other - min(amiss / max(self.known, 1), 1.0)


@dataclass(frozen=True)
class Case:
    """A process' work in one of the ways in which it is asked about.

    Parameters
    ----------
    trace
        The trace it is of.
    way
        ``as recorded`` or ``one thread``, and whether it is cut.
    known
        The work, and what its ranges say.
    """

    trace: str
    way: str
    known: Known

    @property
    def program(self) -> str:
        """The program that was traced."""
        found = [name for start, name in PROGRAMS.items() if self.trace.startswith(start)]
        return found[0] if found else self.trace


def cases_of(path: Path, store: Path) -> Iterator[Case]:
    """Yield the cases that a trace makes; of several processes, which are alike, the first."""
    known = known_of(path, store)[0]
    trace = path.name.split(".")[0]
    ways = {"as recorded": known}
    if find_structure(known.work).method == "threads":
        ways["one thread"] = on_one_thread(known)
    for way, each in ways.items():
        yield Case(trace, way, each)
        if (known.stage >= 0).any():
            yield Case(trace, f"{way}, cut", _cut(each))


def _cut(known: Known) -> Known:
    begin, end = int(known.work.start.min()), int(known.work.end.max())
    off = (end - begin) // _CUT
    inside = (known.work.start >= begin + off) & (known.work.end <= end - off)
    return taken(known, np.flatnonzero(inside))


class Tried:
    """Stands for `THRESHOLDS` where attribution reads it, while entered, and notes what is read.

    A case's outcome is known for all numbers that agree in what was read for it, so it is asked for
    once only.
    """

    def __init__(self) -> None:
        self._by = THRESHOLDS
        self._read: dict[str, Any] = {}
        self._seen: dict[int, list[tuple[dict[str, Any], Outcome]]] = {}
        self._readers = [
            module
            for name, module in list(sys.modules.items())
            if name.startswith("tracekit.") and getattr(module, "THRESHOLDS", None) is THRESHOLDS
        ]

    def __enter__(self) -> Tried:
        for module in self._readers:
            module.THRESHOLDS = self  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._readers:
            module.THRESHOLDS = THRESHOLDS  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        self._read[name] = getattr(self._by, name)
        return self._read[name]

    def outcome(self, case: Case, by: Thresholds) -> Outcome:
        """Return what structure says of a case by some numbers."""
        seen = self._seen.setdefault(id(case), [])
        for read, outcome in seen:
            if all(getattr(by, name) == value for name, value in read.items()):
                return outcome
        self._by, self._read = by, {}
        found = _outcome(case.known)
        outcome = replace(found, spare=int(found.method == "order" or "cut" in case.way))
        seen.append((self._read, outcome))
        return outcome

    def read(self) -> tuple[str, ...]:
        """Return the names of all numbers that any case has read so far, in their order."""
        read = {name for seen in self._seen.values() for names, _ in seen for name in names}
        return tuple(field.name for field in fields(Thresholds) if field.name in read)


def _outcome(known: Known) -> Outcome:
    found = find_structure(known.work)
    spent = known.work.end - known.work.start
    named = known.stage >= 0
    if not named.any():  # nothing trains, so that each stage that is told is wrong
        wrong = spent[found.stage >= 0].sum() / spent.sum()
        return Outcome(found.method, 0.0, float(wrong), 0, 0)
    told = named & (found.stage >= 0)
    same = spent[told & (found.stage == known.stage)].sum()
    whole = spent[named].sum()
    return Outcome(
        found.method, float(same / whole), float((spent[told].sum() - same) / whole),
        found.steps.height, steps_with_work(known).size,
    )  # fmt: skip


def settings(name: str) -> Mapping[float, Thresholds]:
    """Return what is tried in place of one number, by factor.

    A share is at most 1: from 0.5 on, what is left to 1 is halved where others are doubled.
    """
    value = getattr(THRESHOLDS, name)
    tried = {factor: _times(value, factor) for factor in (0.5, 0.7, 1.0, 1.4, 2.0)}
    return {factor: replace(THRESHOLDS, **{name: other}) for factor, other in tried.items()}


def _times(value: float, factor: float) -> float:
    if isinstance(value, int):
        return round(value * factor)
    if value < 1 <= value * 2 and factor > 1:
        return 1 - (1 - value) / factor
    return value * factor
