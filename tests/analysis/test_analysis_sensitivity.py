"""How simulated speedups depend on what is assumed, of a small table worked by hand."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.analysis.studies import load_published
from tracekit.model import Answer
from tracekit.papers import sensitivity

PUBLISHED = load_published("dgx1")
COST = "collective_call_ns"
Step = tuple[str | None, str | None, str, str, int, float]


def _answers(*steps: Step) -> dict[str, Answer]:
    names = ("assumption", "value", "network", "method", "gpus", "step_ns")
    assumed = pl.DataFrame(
        [(name, "14000", "10", "20", "ns", "assumed") for name in ("hop_ns", COST)],
        ["assumption", "value", "low", "high", "unit", "source"], orient="row",
    )  # fmt: skip
    return sensitivity(pl.DataFrame(steps, names, orient="row"), assumed, PUBLISHED)


def _steps(assumption: str | None, value: str | None, *of_nccl: float) -> list[Step]:
    """A step of 4 on one GPU, of 8 with P2P on eight, and with NCCL on two, four and eight."""
    steps: list[Step] = [
        (assumption, value, "lenet", "p2p", 1, 4.0), (assumption, value, "lenet", "p2p", 8, 8.0),
    ]  # fmt: skip
    return steps + [
        (assumption, value, "lenet", "nccl", gpus, step)
        for gpus, step in zip((2, 4, 8), of_nccl, strict=True)
    ]


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """As assumed 1.6, 3.2 and 2 times; a hop takes NCCL's 8 GPUs from 1.6 to 3.2, a call 4 to 2."""
    return _answers(
        *_steps(None, None, 5.0, 5.0, 16.0),
        *_steps("hop_ns", "10", 5.0, 5.0, 10.0), *_steps("hop_ns", "20", 5.0, 5.0, 20.0),
        *_steps(COST, "10", 5.0, 4.0, 8.0), *_steps(COST, "20", 5.0, 8.0, 16.0),
    )  # fmt: skip


def test_a_range_holds_what_was_published_or_not(answers: dict[str, Answer]) -> None:
    """8 x 4 / 16 = 2 as assumed; from 8 x 4 / 20 = 1.6 to 8 x 4 / 10 = 3.2, which holds 2.77."""
    rows = answers["sensitivity"].rows.filter(method="nccl", gpus=8)
    assert rows.select(
        "assumption", "speedup", "speedup_low", "speedup_high", "published", "reached"
    ).rows() == [("hop_ns", 2.0, 1.6, 3.2, 2.77, True), (COST, 2.0, 2.0, 4.0, 2.77, True)]
    change = dict(rows.select("assumption", "change_percent").iter_rows())
    assert change == pytest.approx({"hop_ns": 100, COST: 100})
    apart = answers["sensitivity"].rows.filter(assumption="hop_ns", method="p2p")
    assert apart.select("speedup", "published", "reached").rows() == [(4.0, 3.36, False)]


def test_a_row_of_people_says_what_an_assumption_moves(answers: dict[str, Answer]) -> None:
    people = answers["sensitivity"].readable
    assert people is not None
    assert people.select("assumption", "low", "high", "most_of", "reaches").rows() == [
        ("hop_ns", "10", "20", "lenet nccl 8", "lenet nccl 8"),
        (COST, "10", "20", "lenet nccl 4", "lenet nccl 4, 8"),
    ]
    headline = answers["sensitivity"].meta["headline"]
    assert headline.startswith(
        "Of 4 published speedups 1 are reached as all is assumed (lenet nccl"
    )
    assert "none reaches lenet p2p 8" in headline


def test_one_fitted_point_predicts_the_others(answers: dict[str, Answer]) -> None:
    """From 4 at 10 to 2 at 20: 2.77 at 16.15, where 4 GPUs have 4 - 0.615 x 2 = 2.77 as well."""
    rows = answers["fit"].rows
    assert rows["cost_ns"].to_list() == pytest.approx([16.15] * 3)
    assert rows.select("gpus", "predicted", "fitted").rows() == [
        (2, pytest.approx(1.6), False), (4, pytest.approx(2.77), False),
        (8, pytest.approx(2.77), True),
    ]  # fmt: skip
    errors = dict(rows.select("gpus", "error_percent").iter_rows())
    assert errors == pytest.approx({2: 100 * (1.6 / 1.56 - 1), 4: 100 * (2.77 / 2.27 - 1), 8: 0})


def test_a_point_out_of_reach_is_said_to_be(answers: dict[str, Answer]) -> None:
    fit = _answers(*_steps(None, None, 5.0, 5.0, 16.0), *_steps(COST, "10", 5.0, 4.0, 15.0),
                   *_steps(COST, "20", 5.0, 8.0, 16.0))["fit"]  # fmt: skip
    assert fit.rows["predicted"].null_count() == fit.rows.height == 3
    assert "no cost in the range gives that" in fit.meta["headline"]


def test_alexnet_is_held_against_what_was_said_of_it() -> None:
    """Its speedup was said to be like lenet's: 2.77, of which 2.3 is within a fifth, 2.2 not."""
    steps = [
        (None, None, "alexnet", "p2p", 1, 4.0), (None, None, "alexnet", "nccl", 8, 14.5),
        ("hop_ns", "10", "alexnet", "p2p", 1, 4.0), ("hop_ns", "10", "alexnet", "nccl", 8, 13.9),
    ]  # fmt: skip
    rows = _answers(*steps)["sensitivity"].rows
    assert rows.select("relation", "published", "reached").rows() == [("~", 2.77, True)]
