"""Which changes of a module are tried."""

from __future__ import annotations

import ast
import importlib

import pytest

mutants = importlib.import_module("benchmarks.mutants")

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
    made = mutants.mutants_of("m.py", SOURCE)
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


@pytest.mark.parametrize("module", ["tracekit/model/_intervals.py"])
def test_mutants_of_a_real_module_are_code(module: str) -> None:
    source = (mutants.ROOT / module).read_text(encoding="utf-8")
    made = mutants.mutants_of(module, source)
    assert len(made) > 20
    for each in made:
        assert each.of(source) != source
        ast.parse(each.of(source))
