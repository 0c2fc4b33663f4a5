"""Numbers that structure decides by, tried on traces: the page holds what the trials gave."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tracekit.attribution._thresholds import THRESHOLDS, Thresholds

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "thresholds.md"
SAMPLE = ROOT / "sample_traces" / "ddp_4gpu.sqlite"


@pytest.fixture(scope="module")
def chosen() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("thresholds")


@pytest.fixture(scope="module")
def cases(chosen: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return list(chosen.cases_of(SAMPLE, tmp_path_factory.mktemp("store")))


def test_all_numbers_are_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in fields(Thresholds) if f"`{each.name}`" not in page] == []


def test_tables_are_put_into_a_page(chosen: Any) -> None:
    page = f"before\n{chosen._BEGIN}\nold\n{chosen._END}\nafter"
    assert chosen.with_tables(page, "| new |") == page.replace("\nold\n", "\n\n| new |\n\n")


@pytest.mark.parametrize(
    ("best", "middle"),
    [([1, 1, 1, 1, 1], 2), ([0, 0, 1, 1, 0], 2), ([1, 0, 1, 1, 1], 3), ([0, 0, 0, 0, 1], 4)],
)
def test_of_equally_good_neighbours_the_middle_one_is_taken(
    chosen: Any, best: list[int], middle: int
) -> None:
    assert chosen._middle(chosen.np.array(best, bool)) == middle


def test_shares_stay_below_one(chosen: Any) -> None:
    tried = {factor: by.period_share for factor, by in chosen.settings("period_share").items()}
    assert tried == pytest.approx({0.5: 0.45, 0.7: 0.63, 1.0: 0.9, 1.4: 1 - 0.1 / 1.4, 2.0: 0.95})
    assert [by.votes for by in chosen.settings("votes").values()] == [1, 1, 2, 3, 4]


def test_a_sample_is_told_as_its_ranges_say(chosen: Any, cases: Any) -> None:
    ways = ["as recorded", "as recorded, cut", "one thread", "one thread, cut"]
    assert [case.way for case in cases] == ways
    with chosen.Tried() as tried:
        found = {case.way: tried.outcome(case, THRESHOLDS) for case in cases}
        again = tried.outcome(cases[0], chosen.settings("order_repeats")[2.0])
        few = tried.outcome(cases[2], chosen.settings("order_repeats")[2.0])
    assert (found["as recorded"].method, found["as recorded"].score) == ("threads", 1.0)
    assert found["one thread"].method == "order"
    assert found["one thread"].score == 1.0
    assert again is found["as recorded"]  # which does not ask for repeats
    assert (few.method, few.score) == ("order", found["one thread"].score)


def test_numbers_are_as_they_were_after_trials(chosen: Any, cases: Any) -> None:
    module = importlib.import_module("tracekit.attribution.structure._pair")
    with chosen.Tried() as tried:
        tried.outcome(cases[0], chosen.settings("votes")[2.0])
        assert module.THRESHOLDS.votes == 4
    assert module.THRESHOLDS is THRESHOLDS


def test_what_is_left_out_has_no_say(chosen: Any, cases: Any) -> None:
    with chosen.Tried() as tried:
        trials = chosen.Trials(cases, tried)
        assert trials.score(THRESHOLDS) > 0.8
        other = [chosen.Case("other", case.way, case.known) for case in cases]
        both = chosen.Trials([*cases, *other], tried)
        assert both.score(THRESHOLDS, "other") == both.score(THRESHOLDS) == trials.score(THRESHOLDS)
        row = chosen._row(trials, "ddp_4gpu", THRESHOLDS)
    exactly = "100.00 % | 0.00 % | 6 of 6"
    assert row.startswith(f"| `ddp_4gpu` | threads | {exactly} | order | {exactly}")
