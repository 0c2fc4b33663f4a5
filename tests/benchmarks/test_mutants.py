"""Which changes of a module are tried."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

mutations = importlib.import_module("benchmarks.mutations")
ROOT = Path(__file__).resolve().parents[2]

SOURCE = '''\
"""3 words."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from collections.abc import Sequence
LIMIT: "int | None" = 100


def first(given: "list[int]", ä: int = 1) -> "int | None":
    if not given or ä <= 2:
        return None
    return sum(given[0:3]) - frame.join(other, on="a", how="left").min() / LIMIT
'''


def test_every_kind_of_change_is_made_once_and_is_code() -> None:
    made = mutations.mutants_of("m.py", SOURCE)
    assert [(each.line, each.before, each.after) for each in made] == [
        (5, "100", "200"),
        (8, "1", "2"),
        (9, "not", ""),
        (9, "not given or ä <= 2", "(not (not given or ä <= 2))"),
        (9, "or", "and"),
        (9, "<=", "<"),
        (9, "2", "3"),
        (11, "0", "1"),
        (11, "3", "4"),
        (11, "-", "+"),
        (11, '"left"', "'inner'"),
        (11, "min", "max"),
        (11, "/", "*"),
    ]
    for each in made:
        ast.parse(each.of(SOURCE))


@pytest.mark.parametrize("module", ["tracekit/engine/_intervals.py"])
def test_mutants_of_a_real_module_are_code(module: str) -> None:
    source = (ROOT / module).read_text(encoding="utf-8")
    made = mutations.mutants_of(module, source)
    assert len(made) > 20
    for each in made:
        assert each.of(source) != source
        ast.parse(each.of(source))


def test_a_sample_stays_as_it_is_where_code_does() -> None:
    made = mutations.mutants_of("m.py", SOURCE)
    moved = mutations.mutants_of("m.py", SOURCE.replace("LIMIT:", "MORE = 5\n\nLIMIT:"))
    assert [each.key for each in moved if each.code != "MORE = 5"] == [each.key for each in made]
    sample = mutations.drawn(made, 5, 22)
    again = mutations.drawn(moved, 6, 22)
    assert len({each.key for each in sample} - {each.key for each in again}) == 0
    assert mutations.drawn(made, 5, 23) != sample


def test_equal_changes_of_equal_lines_are_told_apart() -> None:
    made = mutations.mutants_of("m.py", "a = b + 1\na = b + 1\n")
    assert [(each.line, each.change, each.nth) for each in made] == [
        (1, "+ -> -", 0),
        (1, "1 -> 2", 0),
        (2, "+ -> -", 1),
        (2, "1 -> 2", 1),
    ]


AROUND = """\
LIMIT = 1
TWICE = (
    LIMIT * 2
)


class Box:
    size: int = 3

    @property
    def large(self, by: int = 4):
        if self.size > TWICE:
            return [
                each for each in range(5)
            ]
"""


@pytest.mark.parametrize(
    ("before", "function", "lines", "names"),
    [
        ("1", None, {1}, ("LIMIT",)),
        ("2", None, {2, 3, 4}, ("TWICE",)),
        ("3", None, {8}, ("size",)),
        ("4", None, {11}, ("large",)),
        (">", ("Box.large", 10), {12}, ()),
        ("5", ("Box.large", 10), {13, 14, 15}, ()),
    ],
)
def test_what_a_change_is_part_of(
    before: str, function: tuple[str, int] | None, lines: set[int], names: tuple[str, ...]
) -> None:
    module = mutations.Module(AROUND)
    [mutant] = [each for each in mutations.mutants_of("m.py", AROUND) if each.before == before]
    assert module.around(mutant) == mutations.Surroundings(function, frozenset(lines), names)


def test_what_is_worked_out_of_a_name_on_import() -> None:
    module = mutations.Module(AROUND)
    assert module.given_of({"LIMIT"}) == {"LIMIT", "TWICE"}
    assert module.given_of({"each"}) == set()
    assert module.lines_of({"TWICE", "size"}) == [2, 8, 12]
