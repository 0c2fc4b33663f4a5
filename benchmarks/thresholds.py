"""How far structure rests on its numbers, and what it says of traces that had no part in them.

    python benchmarks/thresholds.py docs/evidence/thresholds.md TRACE...

Two tables are written into the page, between two comments. In the first one each trace is left
out, with all others of its program: every number is chosen anew on those that remain, and by these
numbers structure is asked about what was left out. In the second one each number is halved and
doubled alone. It takes some minutes; see `threshold_cases.py` for what is asked.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from threshold_cases import Case, Outcome, Tried, cases_of, settings

from tracekit.attribution._thresholds import THRESHOLDS, Thresholds

_BEGIN, _END = (
    "<!-- thresholds: written by benchmarks/thresholds.py -->",
    "<!-- end of thresholds -->",
)
_EQUAL = 1e-6
"""Scores that differ by less are the same."""
_SHOWN = 0.001
"""A score must change by so much to be shown."""

Score = Callable[[Thresholds], float]


class Trials:
    """All cases, and what structure says of them by any numbers.

    Parameters
    ----------
    cases
        The cases.
    tried
        What asks about them; it is entered.
    """

    def __init__(self, cases: Sequence[Case], tried: Tried) -> None:
        self.cases = cases
        self._tried = tried
        for case in cases:
            self._tried.outcome(case, THRESHOLDS)
        self.names = self._tried.read()

    def outcome(self, case: Case, by: Thresholds = THRESHOLDS) -> Outcome:
        """Return what structure says of a case."""
        return self._tried.outcome(case, by)

    def score(self, by: Thresholds, without: str = "") -> float:
        """Return the mean score of all programs but one, each the mean of its cases."""
        programs = sorted({case.program for case in self.cases} - {without})
        return float(np.mean([self._of_program(name, by) for name in programs]))

    def _of_program(self, program: str, by: Thresholds) -> float:
        own = [case for case in self.cases if case.program == program]
        return float(np.mean([self.outcome(case, by).score for case in own]))


def chosen_by(names: Sequence[str], score: Score) -> Thresholds:
    """Choose each number by itself, the others as they are.

    Of neighbours that are equally good the middle one is taken, so that where a number makes no
    difference none is preferred to another.
    """
    chosen = THRESHOLDS
    for name in names:
        tried = settings(name)
        scores = np.array([score(by) for by in tried.values()])
        factor = list(tried)[_middle(scores >= scores.max() - _EQUAL)]
        chosen = replace(chosen, **{name: getattr(tried[factor], name)})
    return chosen


def _middle(best: np.ndarray) -> int:
    """Return the middle of the longest run of places that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], best.astype(int), [0]))))
    begins, ends = edges[::2], edges[1::2]
    longest = int((ends - begins).argmax())
    return int(begins[longest] + ends[longest] - 1) // 2


def left_out(trials: Trials) -> str:
    """Return the table of what is said of traces by numbers that were chosen without them."""
    head = (
        "| left-out trace | method | right stage | wrong stage | steps |"
        " one thread: method | right stage | wrong stage | steps |\n"
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |"
    )
    rows, others = [head], dict[str, set[str]]()
    for program in dict.fromkeys(case.program for case in trials.cases):
        by = chosen_by(trials.names, lambda each, out=program: trials.score(each, out))  # type: ignore[misc]
        for name in trials.names:
            if getattr(by, name) != getattr(THRESHOLDS, name):
                others.setdefault(name, set()).add(_number(by, name))
        traces = dict.fromkeys(case.trace for case in trials.cases if case.program == program)
        rows += [_row(trials, trace, by) for trace in traces]
    said = {name: " or ".join(sorted(values)) for name, values in sorted(others.items())}
    table = "\n".join(rows)
    return (
        f"{table}\n\nIf all traces of one program are left out, fitting gives these thresholds "
        "another value than the one in use. `or` separates the values without one program and "
        f"without another.\n\n{_explained(said, 'refitted')}"
    )


def _row(trials: Trials, trace: str, by: Thresholds) -> str:
    ways = {case.way: case for case in trials.cases if case.trace == trace}
    cells = [f"`{trace}`"]
    for way in ("as recorded", "one thread"):
        cells += _cells(trials, ways[way], by) if way in ways else ["", "", "", ""]
    return f"| {' | '.join(cells)} |"


def _cells(trials: Trials, case: Case, by: Thresholds) -> Iterator[str]:
    now, before = trials.outcome(case, by), trials.outcome(case)
    if not (now.same or now.other or before.same):
        yield from (now.method, "", "", "")
        return
    for one, other in (
        (now.method, before.method),
        (f"{100 * now.same:.2f} %", f"{100 * before.same:.2f} %"),
        (f"{100 * now.other:.2f} %", f"{100 * before.other:.2f} %"),
        (f"{now.told} of {now.known}", f"{before.told} of {before.known}"),
    ):
        yield one if one == other else f"{one} ({other})"


def sensitivity(trials: Trials) -> str:
    """Return the table of what changes where one number is halved or doubled."""
    head = (
        "| threshold | in use | halved | change of the mean score | largest change |"
        " doubled | change of the mean score | largest change |\n"
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |"
    )
    rows, idle = [head], []
    for name in trials.names:
        tried = settings(name)
        cells = [cell for factor in (0.5, 2.0) for cell in _change(trials, name, tried[factor])]
        if any(cells[2::3]):
            rows.append(f"| `{name}` | {_number(THRESHOLDS, name)} | {' | '.join(cells)} |")
        else:
            idle.append(name)
    unread = [each.name for each in fields(Thresholds) if each.name not in trials.names]
    same, untried = (
        {name: _number(THRESHOLDS, name) for name in names} for names in (idle, unread)
    )
    table = "\n".join(rows)
    return (
        f"{table}\n\nHalving or doubling one of these thresholds changes the score of no trace:\n\n"
        f"{_explained(same, 'in use')}\n\nNo trace of these tables uses these thresholds, so the "
        f"tables do not test them:\n\n{_explained(untried, 'in use')}"
    )


def _explained(values: dict[str, str], column: str) -> str:
    """Return a table of thresholds: name, value, and what the code says that it is."""
    meanings = said_of_thresholds()
    rows = [f"| `{name}` | {value} | {meanings[name]} |" for name, value in values.items()]
    return "\n".join((f"| threshold | {column} | meaning |", "| --- | ---: | --- |", *rows))


def said_of_thresholds() -> dict[str, str]:
    """Return the first sentence below each threshold in `Thresholds`, by name."""
    [of] = ast.parse(textwrap.dedent(inspect.getsource(Thresholds))).body
    assert isinstance(of, ast.ClassDef)
    said = {}
    for field, text in pairwise(of.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            words = " ".join(ast.literal_eval(text.value).split())
            said[ast.unparse(field.target)] = re.split(r"(?<=[a-z)]{2})\. ", words)[0].rstrip(".")
    return said


def _change(trials: Trials, name: str, by: Thresholds) -> tuple[str, str, str]:
    """Return a number, by how much the mean score changes, and in which case it does most."""
    changes = [trials.outcome(case, by).score - trials.outcome(case).score for case in trials.cases]
    most = int(np.abs(changes).argmax())
    if abs(changes[most]) < _SHOWN:
        return _number(by, name), "0", ""
    mean = trials.score(by) - trials.score(THRESHOLDS)
    case = trials.cases[most]
    return _number(by, name), f"{mean:+.3f}", f"{changes[most]:+.2f} `{case.trace}`, {case.way}"


def _number(by: Thresholds, name: str) -> str:
    return f"{getattr(by, name):,.4g}"


def with_tables(page: str, tables: str) -> str:
    """Return a page with both tables replaced."""
    return re.sub(
        f"(?<={_BEGIN}\n).*?(?=\n{_END})", lambda _: f"\n{tables}\n", page, flags=re.DOTALL
    )


def main(page: Path, *paths: Path) -> None:
    """Ask about all traces, and write the tables into a page."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [case for path in paths for case in cases_of(path, Path(folder))]
    with Tried() as tried:
        trials = Trials(cases, tried)
        tables = f"{left_out(trials)}\n\n{sensitivity(trials)}"
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
