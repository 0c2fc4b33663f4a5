"""How much the tests try: little while one works, a quarter of it in CI, more at night."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

EFFORTS = {"quick": 0.1, "usual": 0.25, "thorough": 10.0}
FEWEST = 3

_chosen = "usual"


def choose(effort: str) -> None:
    """Choose one of `EFFORTS`, before tests are collected."""
    global _chosen  # noqa: PLW0603 - what pytest's options say, for what is imported afterwards
    _chosen = effort


def examples(usual: int, *, thorough: int | None = None) -> int:
    """Return how many random examples a test tries, which is a quarter of `usual` in CI.

    Where an example takes a tenth of a second or more, CI tries few of them. ``thorough`` is how
    many a thorough run tries then.
    """
    if thorough is not None and _chosen == "thorough":
        return thorough
    return max(FEWEST, round(usual * EFFORTS[_chosen]))


def by_day(cases: Iterable[Any], *chosen: Any) -> Sequence[Any]:
    """Return the cases of a test; those that are not among the chosen ones run at night alone."""
    found = list(cases)
    assert all(each in found for each in chosen)
    night = pytest.mark.nightly
    return [
        each
        if each in chosen
        else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=night)
        for each in found
    ]
